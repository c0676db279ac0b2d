"""Passes that turn two nodes in a row, which only move or reinterpret data, into one."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context
from graphkit.optimizers.infer_shapes import slice_bounds
from graphkit.optimizers.no_operation import drop, same_shape
from graphkit.optimizers.symbolic import Dim, product

__all__ = ["inner_node", "squeezes_ones", "target_of"]

_VIEWS: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def inner_node(node: ir.Node, *operators: str, index: int = 0) -> ir.Node | None:
    """The ai.onnx node behind an input, if its operator is one of these and that is its first output."""
    value = node.inputs[index] if index < len(node.inputs) else None
    producer = None if value is None else value.producer()
    if (
        producer is None
        or producer.op_type not in operators
        or producer.domain != ""
        or value is not producer.outputs[0]
    ):
        return None
    return producer


@rule("merge_transposes", "Transpose")
def merge_transposes(ctx: Context, node: ir.Node) -> Outcome:
    """Two Transposes in a row become one, or none.

    Nothing else reads the value between them, or they cancel each other.
    """
    inner = inner_node(node, "Transpose")
    if inner is None:
        return "its input is not a Transpose"
    rank = ctx.rank(inner.inputs[0])
    orders = []
    for each in (inner, node):
        if "perm" in each.attributes:
            orders.append(tuple(each.attributes.get_ints("perm", ())))
        elif rank is not None:
            orders.append(tuple(reversed(range(rank))))
        else:
            return "the rank, and so the default order, is not known"
    first, second = orders
    if len(first) != len(second):
        return "the ranks differ"
    order = tuple(first[axis] for axis in second)
    if order == tuple(range(len(order))):
        return drop(ctx, node, inner.inputs[0])
    if not ctx.only_use(inner.outputs[0]):
        return "something else reads the value between them"
    (made,) = ctx.add("Transpose", [inner.inputs[0]], {"perm": order}, before=node)
    return _finish(ctx, node, made)


def _finish(ctx: Context, node: ir.Node, made: ir.Value) -> Outcome:
    ctx.replace(node.outputs[0], made)
    ctx.remove(node)
    return True


def reshape_target(
    source: tuple[Dim, ...] | None, wanted: tuple[Dim, ...], written: tuple[Dim, ...] | None
) -> list[int] | None:
    """A constant Reshape target that gives the shape ``wanted`` from ``source``, or None where there is none.

    A symbolic dim is a 0 where the source has it at the same place. A -1 stands for one dim only where the original
    target (``written``) had it too or the others are positive integers: with a 0 among them, an empty batch would fail.
    """
    target: list[int] = []
    open_places: list[int] = []
    for index, dim in enumerate(wanted):
        same = source is not None and index < len(source) and source[index] == dim
        if isinstance(dim, int) and (dim > 0 or same):
            target.append(dim)
        elif same:
            target.append(0)
        else:
            target.append(-1)
            open_places.append(index)
    if len(open_places) > 1:
        return None
    if open_places:
        (place,) = open_places
        kept = written is not None and len(written) == len(wanted) and written[place] == -1
        if isinstance(wanted[place], int) or (not kept and any(item == 0 for item in target)):
            return None
    return target


@rule("simplify_reshape", "Reshape")
def simplify_reshape(ctx: Context, node: ir.Node) -> Outcome:
    """A Reshape whose target is computed from shapes gets a constant target of sizes, 0 and -1, or becomes Flatten.

    The shape it gives must be known symbolically, and the constant target must give it for empty batches too.
    """
    if ctx.tensor(node.inputs[1]) is not None:
        return "its target is constant already"
    wanted = ctx.shape(node.outputs[0])
    written = ctx.facts(node.inputs[1]).content
    if wanted is None or written is None:
        return "its target is not known"
    source = ctx.shape(node.inputs[0])
    target = reshape_target(source, wanted, written)
    if target is None:
        axis = _flatten_axis(source, wanted)
        if axis is None:
            return f"no constant target turns {source} into {wanted}"
        (made,) = ctx.add("Flatten", [node.inputs[0]], {"axis": axis}, before=node)
        return _finish(ctx, node, made)
    name = node.inputs[1].name if node.inputs[1] is not None else None
    constant = ctx.constant(np.array(target, np.int64), name or "shape", near=node)
    # What the constant means must not depend on allowzero: no zero is meant literally.
    if 0 in target and node.attributes.get_int("allowzero", 0) != 0:
        (made,) = ctx.add("Reshape", [node.inputs[0], constant], before=node)
        return _finish(ctx, node, made)
    ctx.set_inputs(node, [node.inputs[0], constant])
    return True


def _flatten_axis(source: tuple[Dim, ...] | None, wanted: tuple[Dim, ...]) -> int | None:
    if source is None or len(wanted) != 2:
        return None
    for axis in range(len(source) + 1):
        if product(source[:axis]) == wanted[0] and product(source[axis:]) == wanted[1]:
            return axis
    return None


@rule("merge_reshapes", *_VIEWS)
def merge_reshapes(ctx: Context, node: ir.Node) -> Outcome:
    """Reshape, Flatten, Squeeze and Unsqueeze in a row become one Reshape, or none.

    The final shape is known well enough to be written as sizes, 0 and -1; nothing else reads the value between; what a
    Squeeze drops is known to have length 1.
    """
    inner = inner_node(node, *_VIEWS)
    if inner is None:
        return "its input is not a Reshape, Flatten, Squeeze or Unsqueeze"
    if not (squeezes_ones(ctx, inner) and squeezes_ones(ctx, node)):
        return "a Squeeze refuses a dim that is not known to be 1, and a Reshape would not"
    start = inner.inputs[0]
    wanted = ctx.shape(node.outputs[0])
    if same_shape(ctx.shape(start), wanted) or _undoes(ctx, node, inner):
        return drop(ctx, node, start)
    if not ctx.only_use(inner.outputs[0]):
        return "something else reads the value between them"
    target = target_of(ctx, node, wanted, start)
    if target is None:
        return f"no constant target turns {ctx.shape(start)} into {wanted}"
    attributes = {}
    if node.op_type == "Reshape" and node.attributes.get_int("allowzero", 0) != 0 and 0 not in target:
        attributes["allowzero"] = 1
    constant = ctx.constant(np.array(target, np.int64), f"{node.outputs[0].name}_shape", near=node)
    (made,) = ctx.add("Reshape", [start, constant], attributes, before=node)
    return _finish(ctx, node, made)


def target_of(ctx: Context, node: ir.Node, wanted: tuple[Dim, ...] | None, start: ir.Value | None) -> list[int] | None:
    """A constant Reshape target that gives the shape of ``node`` from ``start``, or None."""
    written = ctx.facts(node.inputs[1]).content if node.op_type == "Reshape" else None
    if written is not None and all(isinstance(item, int) and item != 0 for item in written):
        return [item for item in written if isinstance(item, int)]  # it names every size itself
    if wanted is None or 0 in wanted:
        return None
    return reshape_target(ctx.shape(start), wanted, written)


def squeezes_ones(ctx: Context, node: ir.Node) -> bool:
    """Whether a Squeeze can only drop dims of length 1, so that it never fails; true of every other operator."""
    if node.op_type != "Squeeze":
        return True
    shape, axes = ctx.shape(node.inputs[0]), _axes(ctx, node)
    if axes is None:
        return len(node.inputs) < 2 and "axes" not in node.attributes
    return shape is not None and all(-len(shape) <= axis < len(shape) and shape[axis] == 1 for axis in axes)


def _undoes(ctx: Context, node: ir.Node, inner: ir.Node) -> bool:
    """Squeeze of Unsqueeze, or the reverse, over the same axes, whatever the rank."""
    if {node.op_type, inner.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    axes = [_axes(ctx, each) for each in (node, inner)]
    return axes[0] is not None and axes[0] == axes[1] and all(axis >= 0 for axis in axes[0])


def _axes(ctx: Context, node: ir.Node) -> list[int] | None:
    if "axes" in node.attributes:
        return sorted(node.attributes.get_ints("axes", ()))
    known = ctx.ints(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if known is None else sorted(known)


_T = ir.DataType
# Which dtypes hold every value of a dtype.
_HOLDS: Final[dict[ir.DataType, frozenset[ir.DataType]]] = {
    _T.BOOL: frozenset({_T.INT8, _T.UINT8, _T.INT16, _T.UINT16, _T.INT32, _T.UINT32, _T.INT64, _T.UINT64})
    | {_T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.INT8: frozenset({_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE}),
    _T.UINT8: frozenset({_T.INT16, _T.UINT16, _T.INT32, _T.UINT32, _T.INT64, _T.UINT64})
    | {_T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.INT16: frozenset({_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE}),
    _T.UINT16: frozenset({_T.INT32, _T.UINT32, _T.INT64, _T.UINT64, _T.FLOAT, _T.DOUBLE}),
    _T.INT32: frozenset({_T.INT64, _T.DOUBLE}),
    _T.UINT32: frozenset({_T.INT64, _T.UINT64, _T.DOUBLE}),
    _T.FLOAT16: frozenset({_T.FLOAT, _T.DOUBLE}),
    _T.BFLOAT16: frozenset({_T.FLOAT, _T.DOUBLE}),
    _T.FLOAT: frozenset({_T.DOUBLE}),
}
_FLOATS: Final = (_T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE)


@rule("merge_casts", "Cast")
def merge_casts(ctx: Context, node: ir.Node) -> Outcome:
    """Two Casts in a row become one, or none, where the dtype between loses nothing.

    The middle dtype holds every value of the first, and the second Cast rounds from either in the same way.
    """
    inner = inner_node(node, "Cast")
    if inner is None:
        return "its input is not a Cast"
    first, middle = ctx.dtype(inner.inputs[0]), ctx.dtype(inner.outputs[0])
    last = ir.DataType(node.attributes.get_int("to", 0))
    if first is None or middle is None:
        return "the dtypes are not known"
    if middle not in _HOLDS.get(first, frozenset()):
        return f"{middle} does not hold every value of {first}"
    if last == first:
        return drop(ctx, node, inner.inputs[0])
    whole = first.is_integer() and middle.is_integer() and last.is_integer()
    rounds = middle in _FLOATS and last in _FLOATS
    if not (last == _T.BOOL or last in _HOLDS[first] or whole or rounds):
        return f"from {first} and from {middle}, values that {last} does not hold may end differently"
    (made,) = ctx.add("Cast", [inner.inputs[0]], {"to": int(last)}, before=node)
    return _finish(ctx, node, made)


@rule("merge_concats", "Concat")
def merge_concats(ctx: Context, node: ir.Node) -> Outcome:
    """A Concat inside a Concat along the same axis is taken into it; Concat of all parts of a Split is its input.

    Nothing else reads the inner one.
    """
    axis = node.attributes.get_int("axis", 0)
    split = inner_node(node, "Split")
    if split is not None and list(node.inputs) == list(split.outputs) and split.attributes.get_int("axis", 0) == axis:
        return drop(ctx, node, split.inputs[0])
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        return "nothing reads it"
    if _joins(ctx, node.outputs[0], axis) and any(_concat_behind(ctx, value, axis) for value in node.inputs):
        return "the Concat that reads it takes all in at once"
    inputs: list[ir.Value | None] = []
    found = False
    stack = list(reversed(node.inputs))  # at once: one after the other, a chain would be copied at each link
    while stack:
        inner = _concat_behind(ctx, value := stack.pop(), axis)
        if inner is None:
            inputs.append(value)
        else:
            stack.extend(reversed(inner.inputs))
            found = True
    if not found:
        return "no input is a Concat along the same axis that nothing else reads"
    ctx.set_inputs(node, inputs)
    return True


def _concat_behind(ctx: Context, value: ir.Value | None, axis: int) -> ir.Node | None:
    """The Concat along an axis that makes a value, if nothing but one input reads it."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Concat" or node.domain != "" or value is None or not ctx.only_use(value):
        return None
    return node if node.attributes.get_int("axis", 0) == axis else None


def _joins(ctx: Context, value: ir.Value, axis: int) -> bool:
    """Whether a value is read by one Concat alone, along the same axis."""
    if not ctx.only_use(value):
        return False
    reader = next(iter(value.uses())).node
    return reader.op_type == "Concat" and reader.domain == "" and reader.attributes.get_int("axis", 0) == axis


@rule("cancel_split", "Split")
def cancel_split(ctx: Context, node: ir.Node) -> Outcome:
    """A Split that takes a Concat apart again gives out the Concat's inputs.

    The same axis, as many parts, and every part known to be as long as its input.
    """
    inner = inner_node(node, "Concat")
    if inner is None or len(inner.inputs) != len(node.outputs):
        return "its input is not a Concat of as many parts"
    if inner.attributes.get_int("axis", 0) != node.attributes.get_int("axis", 0):
        return "the axes differ"
    pairs = list(zip(node.outputs, inner.inputs, strict=True))
    for part, value in pairs:
        if not same_shape(ctx.shape(part), ctx.shape(value)):
            return "a part is not known to be as long as the Concat's input"
    for part, value in pairs:
        if value is None or (part.is_graph_output() and not ctx.can_replace(part, value)):
            return "an output's name could not be kept"
    if len(set(inner.inputs)) < len(inner.inputs):
        return "two parts are one value"
    for part, value in pairs:
        assert value is not None
        ctx.replace(part, value)
    ctx.remove(node)
    return True


@rule("merge_slices", "Slice")
def merge_slices(ctx: Context, node: ir.Node) -> Outcome:
    """Two Slices in a row along different axes become one.

    Both are constant, and nothing else reads the value between them.
    """
    inner = inner_node(node, "Slice")
    if inner is None:
        return "its input is not a Slice"
    if not ctx.only_use(inner.outputs[0]):
        return "something else reads the value between them"
    rank = ctx.rank(inner.inputs[0])
    parts = [_slices(ctx, each, rank) for each in (inner, node)]
    first, second = parts
    if first is None or second is None:
        return "the bounds or axes are not known"
    if set(first) & set(second):
        return "they cut the same axis"
    bounds = list({**first, **second}.items())
    columns = [[bound[i] for _, bound in bounds] for i in range(3)]
    axes = [axis for axis, _ in bounds]
    if ctx.opset(node) < 10:
        attributes = {"starts": columns[0], "ends": columns[1], "axes": axes}
        (made,) = ctx.add("Slice", [inner.inputs[0]], attributes, before=node)
        return _finish(ctx, node, made)
    hint = node.outputs[0].name or "slice"
    inputs = [
        ctx.constant(np.array(column, np.int64), f"{hint}_{what}", near=node)
        for what, column in (("starts", columns[0]), ("ends", columns[1]), ("axes", axes), ("steps", columns[2]))
    ]
    if all(step == 1 for step in columns[2]):
        inputs.pop()
    (made,) = ctx.add("Slice", [inner.inputs[0], *inputs], before=node)
    return _finish(ctx, node, made)


def _slices(ctx: Context, node: ir.Node, rank: int | None) -> dict[int, tuple[int, int, int]] | None:
    if rank is None:
        return None
    bounds = slice_bounds(ctx.facts, node, rank)
    if bounds is None:
        return None
    found: dict[int, tuple[int, int, int]] = {}
    for start, end, axis, step in zip(*bounds, strict=True):
        if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)) or axis in found:
            return None
        found[axis] = (start, end, step)
    return found
