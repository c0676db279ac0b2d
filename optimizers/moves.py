"""Passes that move data less often: transposes past elementwise nodes, and one Split for several Slices."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import squeezes_ones, target_of
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import use_count
from graphkit.optimizers.infer_shapes import slice_bounds

__all__: list[str] = []

_UNARY: Final = frozenset(
    {
        *("Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Gelu"),
        *("Tanh", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Neg", "Abs", "Sign", "Floor", "Ceil", "Round", "Not"),
        *("Clip", "Cast", "Identity", "Sin", "Cos", "Mish"),
    }
)
_WITH_NUMBER: Final = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")


def _elementwise_input(ctx: Context, node: ir.Node) -> int | None:
    """Which input a node works through element by element, all others being single numbers; None where it does not."""
    if node.domain != "" or len(node.outputs) != 1:
        return None
    if node.op_type in _UNARY:
        return 0
    if node.op_type in _WITH_NUMBER and len(node.inputs) == 2:
        for index in (0, 1):
            tensor = ctx.tensor(node.inputs[1 - index])
            if tensor is not None and tensor.size == 1 and len(tensor.shape) <= 1:
                return index
    return None


@rule("push_transpose", "Transpose")
def push_transpose(ctx: Context, node: ir.Node) -> Outcome:
    """Two Transposes with only elementwise nodes between them become one, or none.

    Nothing else reads the values between.
    """
    order = tuple(node.attributes.get_ints("perm", ()))
    between: list[tuple[ir.Node, int]] = []
    value = node.inputs[0]
    while value is not None and len(between) < 16:
        producer = value.producer()
        if producer is None or not ctx.only_use(value):
            return "there is no Transpose before it with only elementwise nodes between"
        if producer.op_type == "Transpose" and producer.domain == "":
            break
        index = _elementwise_input(ctx, producer)
        if index is None:
            return f"a {producer.op_type} stands between it and the Transpose before"
        between.append((producer, index))
        value = producer.inputs[index]
    first = None if value is None else value.producer()
    if first is None or not between or not order:
        return "there is no Transpose before it with elementwise nodes between"
    before = tuple(first.attributes.get_ints("perm", ()))
    if len(before) != len(order) or len(order) < 2:
        return "an order is not known"
    made = first.inputs[0]
    for each, index in reversed(between):
        inputs = list(each.inputs)
        inputs[index] = made
        (made,) = ctx.add(each.op_type, inputs, dict(each.attributes.items()), before=each)
    whole = tuple(before[axis] for axis in order)
    if whole != tuple(range(len(whole))):
        (made,) = ctx.add("Transpose", [made], {"perm": whole}, before=node)
    assert made is not None
    return finish(ctx, node, made)


@rule("slices_to_split", "Slice")
def slices_to_split(ctx: Context, node: ir.Node) -> Outcome:
    """Slices that together cut a value into parts, in order and without gaps, become one Split.

    Along one axis of known length, with constant bounds and steps of 1.
    """
    source, graph = node.inputs[0], node.graph
    shape = ctx.shape(source)
    if source is None or shape is None or graph is None or use_count(source) > 16:
        return "the shape of its input is not known"
    parts: dict[tuple[int, int], ir.Node] = {}
    axis: int | None = None
    for reader, index in source.uses():
        if reader.op_type != "Slice" or index != 0 or reader.graph is not graph or reader.domain != "":
            continue
        cut = _cut(ctx, reader, shape)
        if cut is None or (axis is not None and cut[0] != axis) or cut[1:] in parts:
            return "a Slice of the same value is of another kind"
        if any(user.op_type == "Slice" for user, _ in reader.outputs[0].uses()):
            return "a Slice follows that may be merged with it"
        axis = cut[0]
        parts[cut[1:]] = reader
    if axis is None or len(parts) < 2:
        return "there are no other Slices of the same value"
    ordered = sorted(parts)
    if ordered[0][0] != 0 or ordered[-1][1] != shape[axis] or any(a[1] != b[0] for a, b in pairwise(ordered)):
        return "the Slices leave gaps or overlap"
    sizes = [end - start for start, end in ordered]
    cutters = set(parts.values())
    first = next(each for each in graph if each in cutters)
    attributes: dict[str, int | list[int]] = {"axis": axis}
    inputs: list[ir.Value | None] = [source]
    if ctx.opset(node) < 13:
        attributes["split"] = sizes
    else:
        inputs.append(ctx.constant(np.array(sizes, np.int64), f"{source.name}_parts", near=node))
    made = ctx.add("Split", inputs, attributes, before=first, outputs=len(sizes))
    for value, bounds in zip(made, ordered, strict=True):
        old = parts[bounds]
        ctx.replace(old.outputs[0], value)
        ctx.remove(old)
    return True


def _cut(ctx: Context, node: ir.Node, shape: tuple[object, ...]) -> tuple[int, int, int] | None:
    bounds = slice_bounds(ctx.facts, node, len(shape))
    if bounds is None or len(bounds[2]) != 1:
        return None
    (start,), (end,), (axis,), (step,) = bounds
    length = shape[axis]
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(length, int)) or step != 1:
        return None
    low, high, _ = slice(start, end).indices(length)
    return (axis, low, high) if high > low else None


@rule("push_reshape", "Reshape")
def push_reshape(ctx: Context, node: ir.Node) -> Outcome:
    """Two Reshapes with only elementwise nodes between them become one.

    Nothing else reads the values between; the final shape can be written as sizes, 0 and -1 from the first.
    """
    between: list[tuple[ir.Node, int]] = []
    value = node.inputs[0]
    first: ir.Node | None = None
    while value is not None and len(between) < 16:
        producer = value.producer()
        if producer is None or not ctx.only_use(value):
            return "there is no Reshape before it with only elementwise nodes between"
        if producer.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze") and producer.domain == "":
            first = producer
            break
        index = _elementwise_input(ctx, producer)
        if index is None or any(_rank_of_constant(ctx, producer, index)):
            return f"a {producer.op_type} stands between it and the Reshape before"
        between.append((producer, index))
        value = producer.inputs[index]
    if first is None or not between or not squeezes_ones(ctx, first):
        return "there is no Reshape before it with elementwise nodes between"
    target = target_of(ctx, node, ctx.shape(node.outputs[0]), first.inputs[0])
    if target is None:
        return "the final shape cannot be written as a constant"
    made = first.inputs[0]
    for each, index in reversed(between):
        inputs = list(each.inputs)
        inputs[index] = made
        (made,) = ctx.add(each.op_type, inputs, dict(each.attributes.items()), before=each)
    attributes = {}
    if node.attributes.get_int("allowzero", 0) != 0 and 0 not in target:
        attributes["allowzero"] = 1
    constant = ctx.constant(np.array(target, np.int64), f"{node.outputs[0].name}_shape", near=node)
    (made,) = ctx.add("Reshape", [made, constant], attributes, before=node)
    assert made is not None
    return finish(ctx, node, made)


def _rank_of_constant(ctx: Context, node: ir.Node, index: int) -> list[bool]:
    """For each other input, whether its rank could raise the rank of what comes in."""
    rank = ctx.rank(node.inputs[index])
    return [
        rank is None or (ctx.rank(value) or 0) > rank
        for at, value in enumerate(node.inputs)
        if at != index and value is not None
    ]


def _only_use(value: ir.Value | None) -> bool:
    return value is not None and Context.only_use(value)


@rule("join_moves", "Add", "Sub", "Mul", "Div", "Max", "Min")
def join_moves(ctx: Context, node: ir.Node) -> Outcome:
    """Two values that are reshaped, or transposed, in the same way and then combined are combined first.

    Both have the same shape before, and nothing else reads them after; one Reshape or Transpose is left of two.
    """
    if len(node.inputs) != 2:
        return "it does not combine two values"
    first, second = (None if value is None else value.producer() for value in node.inputs)
    if first is None or second is None or first is second or not all(map(_only_use, node.inputs)):
        return "an input is no move that nothing else reads"
    shapes = [ctx.shape(mover.inputs[0]) if mover.inputs else None for mover in (first, second)]
    if shapes[0] is None or shapes[0] != shapes[1] or first.domain != "" or second.domain != "":
        return "the shapes before are not known to be the same"
    if first.op_type == second.op_type == "Transpose":
        order = tuple(first.attributes.get_ints("perm", ()))
        if order != tuple(second.attributes.get_ints("perm", ())):
            return "they are transposed in different ways"
        inputs: list[ir.Value | None] = []
        attributes = {"perm": order} if order else {}
        operator = "Transpose"
    elif {first.op_type, second.op_type} <= {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}:
        after = ctx.shape(node.outputs[0])
        if after is None or any(ctx.shape(value) != after for value in node.inputs):
            return "the shapes after are not known to be the same"
        if not (squeezes_ones(ctx, first) and squeezes_ones(ctx, second)):
            return "a Squeeze refuses a dim that is not known to be 1, and a Reshape would not"
        target = target_of(ctx, first, after, first.inputs[0])
        if target is None:
            return "the shape after cannot be written as a constant"
        inputs = [ctx.constant(np.array(target, np.int64), f"{node.outputs[0].name}_shape", near=node)]
        attributes = {}
        operator = "Reshape"
    else:
        return "its inputs are not both reshaped or both transposed"
    (joined,) = ctx.add(node.op_type, [first.inputs[0], second.inputs[0]], dict(node.attributes.items()), before=node)
    (made,) = ctx.add(operator, [joined, *inputs], attributes, before=node)
    return finish(ctx, node, made)
