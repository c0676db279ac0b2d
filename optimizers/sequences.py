"""Passes over tensors that are taken apart into a known number of parts, or put together from them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.infer_elementwise import axes_of
from graphkit.optimizers.infer_sequences import part_sizes
from graphkit.optimizers.linear_forms import Source
from graphkit.optimizers.no_operation import drop

__all__: list[str] = []


@rule("split_for_sequence", "SplitToSequence")
def split_for_sequence(ctx: Context, node: ir.Node) -> Outcome:
    """A SplitToSequence whose parts are only taken out again, each by its known number, becomes a Split.

    The axis has a known length. PyTorch writes every ``split`` and ``chunk`` so.
    """
    parts = part_sizes(ctx.facts, node)
    if parts is None:
        return "the length of the axis, or the sizes of the parts, are not known"
    axis, sizes = parts
    readers: list[tuple[ir.Node, int]] = []
    for reader, _ in node.outputs[0].uses():
        number = ctx.scalar(reader.inputs[1]) if reader.op_type == "SequenceAt" and reader.domain == "" else None
        if number is None or not -len(sizes) <= number < len(sizes) or reader.graph is not node.graph:
            return "something else than SequenceAt with a known number reads the sequence"
        readers.append((reader, int(number) % len(sizes)))
    if node.outputs[0].is_graph_output() or not readers:
        return "the sequence is given out, or nothing reads it"
    named = [number for reader, number in readers if reader.outputs[0].is_graph_output()]
    if len(set(named)) < len(named):
        return "two outputs of the graph are one part"
    attributes: dict[str, int | list[int]] = {"axis": axis}
    inputs: list[ir.Value | None] = [node.inputs[0]]
    if ctx.opset(node) < 13:
        attributes["split"] = list(sizes)
    else:
        hint = f"{node.outputs[0].name}_parts"
        inputs.append(ctx.constant(np.array(sizes, np.int64), hint, near=node))
    made = ctx.add("Split", inputs, attributes, before=node, outputs=len(sizes))
    for reader, number in sorted(readers, key=lambda each: not each[0].outputs[0].is_graph_output()):
        ctx.replace(reader.outputs[0], made[number])
        ctx.remove(reader)
    ctx.remove(node)
    return True


@rule("cast_for_cast_like", "CastLike")
def cast_for_cast_like(ctx: Context, node: ir.Node) -> Outcome:
    """CastLike to a dtype that is known becomes Cast, which no longer reads the other value.

    Only without attributes: those of a float8 type stay as they are.
    """
    dtype = ctx.dtype(node.inputs[1])
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return "the dtype is not known"
    if any(name != "saturate" for name in node.attributes):
        return "it rounds in a way of its own"
    attributes = {**dict(node.attributes.items()), "to": int(dtype)}
    (made,) = ctx.add("Cast", [node.inputs[0]], attributes, before=node)
    ctx.replace(node.outputs[0], made)
    ctx.remove(node)
    return True


@rule("merge_stacked_steps", "Concat")
def merge_stacked_steps(ctx: Context, node: ir.Node) -> Outcome:
    """All places of a value, gathered one by one and stacked again, are the value, transposed where the axis moved.

    Every place once, in order.
    """
    places: list[Source] = []
    for index in range(len(node.inputs)):
        inner = inner_node(node, "Unsqueeze", "Reshape", index=index)
        gather = None if inner is None else inner_node(inner, "Gather")
        place = None if gather is None or gather.inputs[0] is None else ctx.scalar(gather.inputs[1])
        if inner is None or gather is None or place is None or ctx.rank(gather.inputs[1]) != 0:
            return "an input is not one place of a value, with an axis of length 1 put in"
        assert gather.inputs[0] is not None
        rank = ctx.rank(gather.inputs[0]) or 1
        places.append(Source(gather.inputs[0], gather.attributes.get_int("axis", 0) % rank, int(place)))
    source, axis = places[0].value, places[0].axis
    shape, wanted = ctx.shape(source), ctx.shape(node.outputs[0])
    if shape is None or wanted is None or axis is None or len(wanted) != len(shape):
        return "the shapes are not known"
    at = node.attributes.get_int("axis", 0) % len(shape)
    order = [each for each in range(len(shape)) if each != axis]
    order.insert(at, axis)
    if places != [Source(source, axis, place) for place in range(len(places))] or shape[axis] != len(places):
        return "it does not stack every place of one value, in order"
    if wanted != tuple(shape[each] for each in order):
        return "the axis put in is not the one that is stacked"
    if not all(_puts_in(ctx, node, index, at) for index in range(len(node.inputs))):
        return "the axis put in is not the one that is stacked"
    if order == sorted(order):
        return drop(ctx, node, source)
    (made,) = ctx.add("Transpose", [source], {"perm": order}, before=node)
    ctx.replace(node.outputs[0], made)
    ctx.remove(node)
    return True


def _puts_in(ctx: Context, node: ir.Node, index: int, at: int) -> bool:
    """Whether input ``index`` of a Concat has an axis of length 1 put in at ``at``, and is the same otherwise."""
    value = node.inputs[index]
    inner = None if value is None else value.producer()
    if inner is None or value is None:
        return False
    before, after = ctx.shape(inner.inputs[0]), ctx.shape(value)
    if before is None or after is None:
        return False
    if inner.op_type == "Unsqueeze":
        return axes_of(ctx.facts, inner) in ((at,), (at - len(after),))
    return after == (*before[:at], 1, *before[at:])
