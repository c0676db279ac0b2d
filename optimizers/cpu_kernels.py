"""Passes that go round slow kernels of the runtime's CPU provider, where tensors are large enough for it to pay.

What each saves is measured by ``python -m benchmarks.costs``, with ``--web`` on the WASM build; the preset ``web`` has
what pays there too (ReduceLogSumExp does not on every size, PRelu on none). Tensors that are not known to be large are
left alone: two nodes for one cost a small tensor more than its kernel does. A symbolic dim counts as 1 here.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.infer_elementwise import axes_of
from graphkit.optimizers.no_operation import same_shape
from graphkit.optimizers.norms import never_negative

__all__ = ["SMALL", "is_large"]

_CPU: Final = ("inference",)
_CPU_AND_WEB: Final = ("inference", "web")
_FLOAT: Final = ir.DataType.FLOAT
SMALL: Final = "it is not known to be large enough for this to pay"


def is_large(ctx: Context, value: ir.Value | None, least: int) -> bool:
    """Whether a value has at least so many elements, as far as static dims tell."""
    shape = ctx.shape(value)
    if shape is None:
        return False
    count = 1
    for dim in shape:
        count *= dim if isinstance(dim, int) else 1
    return count >= least


def _number(ctx: Context, node: ir.Node, number: float, hint: str) -> ir.Value:
    return ctx.constant(np.array(number, np.float32), f"{node.outputs[0].name}_{hint}", near=node)


@rule("softmax_in_three_dims", "Softmax", "LogSoftmax", targets=_CPU_AND_WEB)
def softmax_in_three_dims(ctx: Context, node: ir.Node) -> Outcome:
    """A Softmax over an axis with several axes behind it sees them as one, by two Reshapes.

    The runtime transposes such a tensor twice; with three dims it takes a third to a fifth of the time for that. The
    dims behind the axis are static; bit for bit the same.
    """
    source, shape = node.inputs[0], ctx.shape(node.inputs[0])
    if ctx.opset(node) < 13 or shape is None or ctx.dtype(source) != _FLOAT:
        return "its rank is not known, or it is not float32, or of an opset in which the axis means something else"
    axis = node.attributes.get_int("axis", -1) % len(shape) if shape else -1
    behind = [dim for dim in shape[axis + 1 :] if isinstance(dim, int) and dim > 0]
    if axis < 0 or len(behind) < 2 or len(behind) < len(shape) - axis - 1:
        return "there are not two or more static dims behind its axis"
    if not is_large(ctx, source, 256):
        return SMALL
    name, before = node.outputs[0].name, [0] * (axis + 1)
    joined = ctx.constant(np.array([*before, int(np.prod(behind))], np.int64), f"{name}_joined", near=node)
    apart = ctx.constant(np.array([*before, *behind], np.int64), f"{name}_apart", near=node)
    (made,) = ctx.add("Reshape", [source, joined], before=node)
    (made,) = ctx.add(node.op_type, [made], {"axis": axis}, before=node)
    (made,) = ctx.add("Reshape", [made, apart], before=node)
    return finish(ctx, node, made)


@rule("split_log_sum_exp", "ReduceLogSumExp", tolerance=1e-6, targets=_CPU)
def split_log_sum_exp(ctx: Context, node: ir.Node) -> Outcome:
    """ReduceLogSumExp becomes the largest element plus the logarithm of the sum of what is above or below it.

    float32, static reduced dims, 4,096 elements or more. The largest is kept within the finite numbers, so that
    infinities come out as they do from the operator.
    """
    source, shape = node.inputs[0], ctx.shape(node.inputs[0])
    axes = axes_of(ctx.facts, node)
    if not axes and shape is not None and node.attributes.get_int("noop_with_empty_axes", 0) != 1:
        axes = tuple(range(len(shape)))
    if ctx.opset(node) < 13 or shape is None or ctx.dtype(source) != _FLOAT or not isinstance(axes, tuple) or not axes:
        return "it is not float32 of known rank, with known axes"
    axes = tuple(sorted(axis % len(shape) for axis in axes))
    reduced = [dim for axis in axes if isinstance(dim := shape[axis], int) and dim > 0]
    if len(reduced) < len(axes) or not is_large(ctx, source, 4096):
        return SMALL
    largest = float(np.finfo(np.float32).max)
    along = ctx.constant(np.array(axes, np.int64), f"{node.outputs[0].name}_axes", near=node)
    low, high = _number(ctx, node, -largest, "low"), _number(ctx, node, largest, "high")
    if ctx.opset(node) < 18:
        (top,) = ctx.add("ReduceMax", [source], {"axes": axes}, before=node)
    else:
        (top,) = ctx.add("ReduceMax", [source, along], before=node)
    (top,) = ctx.add("Clip", [top, low, high], before=node)
    (made,) = ctx.add("Sub", [source, top], before=node)
    (made,) = ctx.add("Exp", [made], before=node)
    (made,) = ctx.add("ReduceSum", [made, along], before=node)
    (made,) = ctx.add("Log", [made], before=node)
    (made,) = ctx.add("Add", [made, top], before=node)
    if node.attributes.get_int("keepdims", 1) != 1:
        (made,) = ctx.add("Squeeze", [made, along], before=node)
    return finish(ctx, node, made)


@rule("split_softplus", "Softplus", tolerance=1e-6, targets=_CPU_AND_WEB)
def split_softplus(ctx: Context, node: ir.Node) -> Outcome:
    """Softplus becomes Relu(x) + log1p(Exp(-|x|)), with log1p(e) as Log(1 + e) + (e - ((1 + e) - 1)).

    float32, 4,096 elements or more. The second term gives back what 1 + e rounds away (W. Kahan), so that results near
    zero keep all their digits.
    """
    source = node.inputs[0]
    if ctx.dtype(source) != _FLOAT or not is_large(ctx, source, 4096):
        return SMALL
    if any(use.node.op_type == "Tanh" for use in node.outputs[0].uses()) and _mish_behind(ctx, node) is not None:
        return "it is part of a Mish"
    one = _number(ctx, node, 1.0, "one")
    (made,) = ctx.add("Abs", [source], before=node)
    (made,) = ctx.add("Neg", [made], before=node)
    (power,) = ctx.add("Exp", [made], before=node)
    (above,) = ctx.add("Add", [power, one], before=node)
    (kept,) = ctx.add("Sub", [above, one], before=node)
    (lost,) = ctx.add("Sub", [power, kept], before=node)
    (made,) = ctx.add("Log", [above], before=node)
    (made,) = ctx.add("Add", [made, lost], before=node)
    (positive,) = ctx.add("Relu", [source], before=node)
    (made,) = ctx.add("Add", [positive, made], before=node)
    return finish(ctx, node, made)


def _mish_behind(ctx: Context, softplus: ir.Node) -> ir.Node | None:
    """The Mul of x * Tanh(Softplus(x)), if that is all that reads the parts."""
    value = softplus.outputs[0]
    for operator in ("Tanh", "Mul"):
        if not ctx.only_use(value):
            return None
        (use,) = value.uses()
        if use.node.op_type != operator or use.node.domain != "":
            return None
        value = use.node.outputs[0]
    mul = value.producer()
    return mul if mul is not None and softplus.inputs[0] in mul.inputs else None


@rule("split_mish", "Mish", "Mul", tolerance=1e-6, targets=_CPU_AND_WEB)
def split_mish(ctx: Context, node: ir.Node) -> Outcome:
    """Mish, and x * Tanh(Softplus(x)), become x * n / (n + 2) with e = Exp(x) and n = e (e + 2).

    That is the tangent of the logarithm with both multiplied out; above 20, where it is 1, x is cut so that n stays
    finite. float32, 256 elements or more.
    """
    source, parts = node.inputs[0], []
    if node.op_type == "Mul":
        tanh = inner_node(node, "Tanh", index=0) or inner_node(node, "Tanh", index=1)
        softplus = None if tanh is None else inner_node(tanh, "Softplus")
        if tanh is None or softplus is None or _mish_behind(ctx, softplus) is not node:
            return "it is not x * Tanh(Softplus(x))"
        source, parts = softplus.inputs[0], [tanh, softplus]
    if ctx.dtype(source) != _FLOAT or not is_large(ctx, source, 256):
        return SMALL
    two, most = _number(ctx, node, 2.0, "two"), _number(ctx, node, 20.0, "most")
    (made,) = ctx.add("Clip", [source, None, most], before=node)
    (power,) = ctx.add("Exp", [made], before=node)
    (made,) = ctx.add("Add", [power, two], before=node)
    (upper,) = ctx.add("Mul", [power, made], before=node)
    (lower,) = ctx.add("Add", [upper, two], before=node)
    (made,) = ctx.add("Div", [upper, lower], before=node)
    (made,) = ctx.add("Mul", [source, made], before=node)
    done = finish(ctx, node, made)
    for part in parts:
        ctx.remove(part)
    return done


@rule("split_prelu", "PRelu", tolerance=1e-7, targets=_CPU)
def split_prelu(ctx: Context, node: ir.Node) -> Outcome:
    """PRelu becomes Relu(x) + slope * Clip(x, max=0).

    float32 with constant, finite slopes, 8,192 elements or more. Only the sign of a zero may differ.
    """
    source, slope = node.inputs[:2]
    slopes = ctx.array(slope)
    if ctx.opset(node) < 12 or ctx.dtype(source) != _FLOAT or slopes is None or not np.isfinite(slopes).all():
        return "it is not float32, or its slopes are not constant"
    if not is_large(ctx, source, 8192):
        return SMALL
    # Without a lower bound the runtime would cut -inf to the lowest finite number.
    least, zero = _number(ctx, node, -np.inf, "least"), _number(ctx, node, 0.0, "zero")
    (positive,) = ctx.add("Relu", [source], before=node)
    (made,) = ctx.add("Clip", [source, least, zero], before=node)
    (made,) = ctx.add("Mul", [made, slope], before=node)
    (made,) = ctx.add("Add", [positive, made], before=node)
    return finish(ctx, node, made)


@rule("power_by_products", "Pow", tolerance=1e-6, targets=_CPU_AND_WEB)
def power_by_products(ctx: Context, node: ir.Node) -> Outcome:
    """A power of -1, -2, 4 or 3/2 becomes Reciprocal, products or Sqrt, which cost a tenth.

    float32, and the exponent is one constant that does not widen the base; for 3/2 the base is known not to be
    negative. Two nodes only for 256 elements or more. (2 and 3 have kernels of their own.)
    """
    base, exponent = node.inputs[0], ctx.scalar(node.inputs[1])
    if exponent not in (-1, -2, 4, 1.5):
        return "the exponent is not -1, -2, 4 or 3/2"
    if ctx.dtype(base) != _FLOAT or not same_shape(ctx.shape(base), ctx.shape(node.outputs[0])):
        return "it is not float32, or the exponent may widen it"
    if exponent == 1.5:
        if not never_negative(ctx, base):
            return "the base may be negative"
        if not is_large(ctx, base, 256):
            return SMALL
        (root,) = ctx.add("Sqrt", [base], before=node)
        return finish(ctx, node, ctx.add("Mul", [base, root], before=node)[0])
    if exponent == -1:
        return finish(ctx, node, ctx.add("Reciprocal", [base], before=node)[0])
    if not is_large(ctx, base, 256):
        return SMALL
    (square,) = ctx.add("Mul", [base, base], before=node)
    if exponent == -2:
        return finish(ctx, node, ctx.add("Reciprocal", [square], before=node)[0])
    return finish(ctx, node, ctx.add("Mul", [square, square], before=node)[0])
