"""Passes that take what stands before a convolution or pool into it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.linear import keeps_its_digits
from graphkit.optimizers.symbolic import Dim

__all__: list[str] = []

_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
Array = np.ndarray[Any, Any]


@rule("absorb_pad", "Conv", "AveragePool", training=False)
def absorb_pad(ctx: Context, node: ir.Node) -> Outcome:
    """A Pad with zeros before Conv, or before an AveragePool that counts its padding, becomes its own padding.

    Only spatial axes, by zeros, not negative; the weight is constant and finite. Never before MaxPool, whose own
    padding is minus infinity.
    """
    inner = inner_node(node, "Pad")
    if inner is None or not ctx.only_use(inner.outputs[0]):
        return "its input is not a Pad that nothing else reads"
    if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        return "its padding follows from its input's size"
    if node.op_type == "AveragePool" and (
        node.attributes.get_int("count_include_pad", 0) != 1 or node.attributes.get_int("ceil_mode", 0) != 0
    ):
        return "its average leaves padding out, or its windows may hang over"
    if node.op_type == "Conv":
        weight = ctx.array(node.inputs[1])
        if weight is None or not np.isfinite(weight).all():
            return "the weight is not constant, or not finite"
    if inner.attributes.get_string("mode", "constant") != "constant" or len(inner.inputs) > 3:
        return "the Pad repeats or mirrors, or has axes of its own"
    rank = ctx.rank(inner.inputs[0])
    if "pads" in inner.attributes:
        amounts: tuple[int, ...] | None = tuple(inner.attributes.get_ints("pads", ()))
        value: float | int | bool | None = inner.attributes.get_float("value", 0.0)
    else:
        amounts = ctx.ints(inner.inputs[1])
        value = 0 if len(inner.inputs) < 3 or inner.inputs[2] is None else ctx.scalar(inner.inputs[2])
    if rank is None or amounts is None or len(amounts) != 2 * rank or value is None or value != 0 or np.signbit(value):
        return "the Pad's amounts are not known, or its value is not 0"
    if any(amounts[axis] for axis in (0, 1, rank, rank + 1)) or min(amounts) < 0:
        return "it pads the batch or the channels, or cuts"
    spatial = rank - 2
    own = list(node.attributes.get_ints("pads", [0] * (2 * spatial)))
    pads = [own[i] + amounts[2 + i] for i in range(spatial)]
    pads += [own[spatial + i] + amounts[rank + 2 + i] for i in range(spatial)]
    if node.op_type == "AveragePool" and any(p >= k for p, k in zip(pads, _kernel(node) * 2, strict=True)):
        return "a window would lie in the padding alone"
    attributes = {**dict(node.attributes.items()), "pads": pads}
    attributes.pop("auto_pad", None)
    (made,) = ctx.add(node.op_type, [inner.inputs[0], *node.inputs[1:]], attributes, before=node)
    return finish(ctx, node, made)


def _kernel(node: ir.Node) -> list[int]:
    return list(node.attributes.get_ints("kernel_shape", ()))


@rule("absorb_affine", "Conv", tolerance=1e-5, training=False)
def absorb_affine(ctx: Context, node: ir.Node) -> Outcome:
    """A constant factor or offset per channel before a Conv goes into its weights.

    An offset only before a Conv without padding, whose zeros it would otherwise have to reach; one group; the weight is
    constant and not shared.
    """
    inner = inner_node(node, "Mul", "Div", "Add", "Sub")
    if inner is None or not ctx.only_use(inner.outputs[0]):
        return "its input is not a sum or product that nothing else reads"
    weight_value = node.inputs[1]
    weight = ctx.array(weight_value)
    bias = ctx.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if (
        weight is None
        or weight_value is None
        or ctx.dtype(weight_value) not in _FLOATS
        or not ctx.only_use(weight_value)
    ):
        return "the weight is not constant, or shared, or not float32 or float64"
    if len(node.inputs) > 2 and node.inputs[2] is not None and bias is None:
        return "the bias is not constant"
    if node.attributes.get_int("group", 1) != 1:
        return "it has several groups"
    number, source = ctx.array(inner.inputs[1]), inner.inputs[0]
    if number is None and inner.op_type in ("Mul", "Add"):
        number, source = ctx.array(inner.inputs[0]), inner.inputs[1]
    shape = ctx.shape(inner.outputs[0])
    if number is None or shape is None or ctx.shape(source) != shape:
        return "there is no constant beside it that leaves the shape as it is"
    numbers = _per_channel(number, shape, weight.shape[1])
    if numbers is None or not np.isfinite(numbers).all() or (inner.op_type == "Div" and (numbers == 0).any()):
        return "the constant is not one finite number per channel"
    wide = weight.astype(np.float64)
    column = numbers.reshape(1, -1, *[1] * (weight.ndim - 2))
    shift: Array | None = None
    if inner.op_type in ("Mul", "Div"):
        wide = wide * column if inner.op_type == "Mul" else wide / column
    else:
        auto = node.attributes.get_string("auto_pad", "NOTSET")
        if any(node.attributes.get_ints("pads", ())) or auto not in ("NOTSET", "VALID", ""):
            return "the offset would have to reach the padding"
        shift = (wide * column).sum(axis=tuple(range(1, weight.ndim))) * (1 if inner.op_type == "Add" else -1)
    origin = [value.name for value in node.inputs[1:] if value is not None and value.name]
    inputs: list[ir.Value | None] = [source, *node.inputs[1:]]
    if not keeps_its_digits(wide if shift is None else shift, weight.dtype):
        return "the folded weights would not be finite, or too small for their dtype"
    if shift is None:
        inputs[1] = ctx.constant(wide.astype(weight.dtype), f"{weight_value.name}_scaled", near=node, origin=origin)
    else:
        moved = (shift + (0 if bias is None else bias.astype(np.float64))).astype(weight.dtype)
        old = node.inputs[2] if bias is not None else None
        hint = f"{old.name if old is not None else node.outputs[0].name}_moved"
        inputs[2:] = [ctx.constant(moved, hint, near=node, origin=origin)]
    ctx.set_inputs(node, inputs)
    return True


def _per_channel(number: Array, shape: tuple[Dim, ...], channels: int) -> Array | None:
    if number.ndim > len(shape):
        return None
    padded = (1,) * (len(shape) - number.ndim) + number.shape
    if any(dim != 1 for axis, dim in enumerate(padded) if axis != 1) or padded[1] not in (1, channels):
        return None
    return np.broadcast_to(number.astype(np.float64).reshape(-1), (channels,))
