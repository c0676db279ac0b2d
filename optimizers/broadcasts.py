"""Passes over values that only repeat one number or one row: what broadcasting does by itself need not be made."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import broadcast
from graphkit.optimizers.no_operation import drop, same_shape
from graphkit.optimizers.symbolic import Dim

__all__: list[str] = []

_BINARY: Final = (
    *("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual"),
    *("LessOrEqual", "Mod", "Min", "Max", "Where", "Sum"),
)


# Between 0.0 and -0.0 the runtime chooses by which input is a single number, so a zero stays as wide as it was.
_CHOOSERS: Final = ("Max", "Min")
# What gives out only numbers that its first input holds.
_REPEATERS: Final = (
    *("Expand", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Tile", "Flatten", "Slice", "Split"),
    *("Gather", "GatherElements", "GatherND"),
)


def uniform(ctx: Context, value: ir.Value | None, depth: int = 8) -> float | int | bool | None:
    """The one number that every element of a value is, constant or made by Expand or ConstantOfShape; else None."""
    if value is None or not depth:
        return None
    if ctx.tensor(value) is not None:
        array = ctx.array(value)
        if array is None or array.size == 0 or array.nbytes > 4096:
            return None
        first = array.reshape(-1)[0]
        same = (array == first).all() and (array.dtype.kind != "f" or len(set(np.signbit(array).reshape(-1))) == 1)
        number: float | int | bool = first.item()
        return number if same else None
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type in _REPEATERS:
        return uniform(ctx, node.inputs[0], depth - 1)
    if node.op_type == "ConstantOfShape":
        tensor = node.attributes.get_tensor("value", None)
        item: float | int | bool = 0.0 if tensor is None else np.asarray(tensor.numpy()).reshape(-1)[0].item()
        return item
    return None


@rule("remove_ones", "Mul", "Div", "Pow")
def remove_ones(ctx: Context, node: ir.Node) -> Outcome:
    """A product with ones that are made while the model runs (Expand, ConstantOfShape) is the other factor.

    The ones must be known not to widen the other factor. A gradient that begins with ones leaves many of these.
    """
    for kept, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
        source = node.inputs[kept]
        if ctx.tensor(node.inputs[other]) is not None or uniform(ctx, node.inputs[other]) != 1:
            continue
        if ctx.dtype(source) == ctx.dtype(node.outputs[0]) and same_shape(
            ctx.shape(source), ctx.shape(node.outputs[0])
        ):
            return drop(ctx, node, source)
    return "neither factor is known to be ones that do not widen the other"


@rule("remove_expand", *_BINARY)
def remove_expand(ctx: Context, node: ir.Node) -> Outcome:
    """An Expand that broadcasting makes needless is left out.

    Without it, the inputs are known to broadcast to the same shape. Rows that are taken by indices which are expanded
    are taken once.
    """
    wanted = ctx.shape(node.outputs[0])
    if wanted is None:
        return "the shape of the result is not known"
    for index in range(len(node.inputs)):
        inner = inner_node(node, "Expand", index=index)
        if inner is None:
            if _narrow_gather(ctx, node, index, wanted):
                return True
            continue
        if node.op_type in _CHOOSERS and not uniform(ctx, inner.inputs[0]):
            continue
        inputs = list(node.inputs)
        inputs[index] = inner.inputs[0]
        if broadcast(*(ctx.shape(value) for value in inputs)) == wanted:
            ctx.set_inputs(node, inputs)
            return True
    return "no input is an Expand without which the result would be known to have the same shape"


def _narrow_gather(ctx: Context, node: ir.Node, index: int, wanted: tuple[Dim, ...]) -> bool:
    """Take the rows of a Gather by its indices as they were before an Expand, if broadcasting repeats them the same."""
    gather = inner_node(node, "Gather", index=index)
    if gather is None or gather.attributes.get_int("axis", 0) != 0 or not ctx.only_use(gather.outputs[0]):
        return False
    expand = inner_node(gather, "Expand", index=1)
    rows, narrow = ctx.shape(gather.inputs[0]), ctx.shape(expand.inputs[0]) if expand is not None else None
    if expand is None or not rows or narrow is None:
        return False
    rest = [ctx.shape(value) for at, value in enumerate(node.inputs) if at != index]
    if broadcast((*narrow, *rows[1:]), *rest) != wanted:
        return False
    ctx.set_inputs(gather, [gather.inputs[0], expand.inputs[0]])
    ctx.facts.infer(gather)
    ctx.touch((node,))
    return True


@rule("widen_constant", *_BINARY)
def widen_constant(ctx: Context, node: ir.Node) -> Outcome:
    """A ConstantOfShape that broadcasting makes needless becomes one number.

    The number broadcasts to the same shape as the whole did.
    """
    wanted = ctx.shape(node.outputs[0])
    if wanted is None or len(node.inputs) < 2:
        return "the shape of the result is not known"
    for index in range(len(node.inputs)):
        inner = inner_node(node, "ConstantOfShape", index=index)
        if inner is None:
            continue
        rest = [value for at, value in enumerate(node.inputs) if at != index]
        if broadcast(*(ctx.shape(value) for value in rest), ()) != wanted:
            continue
        tensor = inner.attributes.get_tensor("value", None)
        number = np.zeros(1, np.float32) if tensor is None else np.asarray(tensor.numpy())
        if node.op_type in _CHOOSERS and not number.all():
            continue
        inputs = list(node.inputs)
        inputs[index] = ctx.constant(number.reshape(()), f"{inner.outputs[0].name}_number", near=node)
        ctx.set_inputs(node, inputs)
        return True
    return "no input is a ConstantOfShape that the others make needless"


@rule("remove_reduction", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceMean")
def remove_reduction(ctx: Context, node: ir.Node) -> Outcome:
    """A reduction over no axes, or a maximum, minimum or product over axes of length 1 that are kept, is its input.

    Sums and means over axes of length 1 are left: they turn -0.0 into 0.0.
    """
    if node.attributes.get_int("noop_with_empty_axes", 0) != 0 and ctx.ints((*node.inputs, None)[1]) == ():
        return drop(ctx, node, node.inputs[0])
    if node.op_type in ("ReduceSum", "ReduceMean"):
        return "it sums over axes, or over what is not known"
    if not same_shape(ctx.shape(node.inputs[0]), ctx.shape(node.outputs[0])):
        return "it reduces something"
    source = ctx.shape(node.inputs[0]) or ()
    axes = node.attributes.get_ints("axes", ()) or (ctx.ints(node.inputs[1]) if len(node.inputs) > 1 else None)
    if node.attributes.get_int("noop_with_empty_axes", 0) == 0 and not axes:
        axes = tuple(range(len(source)))
    if axes is None or any(source[axis] != 1 for axis in axes):
        return "the axes are not known to have length 1"
    return drop(ctx, node, node.inputs[0])


@rule("drop_zero_state", "LSTM", "GRU", "RNN")
def drop_zero_state(ctx: Context, node: ir.Node) -> Outcome:
    """A recurrent layer that begins with zeros, made while the model runs, begins so by itself.

    Every element of the initial state is known to be 0, and not -0.0.
    """
    inputs = list(node.inputs)
    for index in (5, 6):
        number = uniform(ctx, inputs[index]) if index < len(inputs) else None
        if number is not None and number == 0 and not np.signbit(number):
            inputs[index] = None
    if inputs == list(node.inputs):
        return "its initial state is not known to be zeros"
    while inputs[-1] is None:
        inputs.pop()
    ctx.set_inputs(node, inputs)
    return True
