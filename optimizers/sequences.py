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


@rule("split_for_gathers", "Gather")
def split_for_gathers(ctx: Context, node: ir.Node) -> Outcome:
    """Gathers that each take one of several equal parts, which were moved to the front, become a Split of the whole.

    The parts lie side by side along the last axis before they are moved, every one is taken, and nothing else reads
    what is between. PyTorch takes queries, keys and values apart so.
    """
    moved, graph = node.inputs[0], node.graph
    shape = ctx.shape(moved)
    if moved is None or graph is None or not shape or moved.is_graph_output():
        return "the shape of its input is not known"
    axis = node.attributes.get_int("axis", 0) % len(shape)
    count = shape[axis]
    readers: dict[int, ir.Node] = {}
    for reader, index in moved.uses():
        place = ctx.scalar(reader.inputs[1]) if reader.op_type == "Gather" and reader.domain == "" else None
        same = index == 0 and reader.graph is graph and reader.attributes.get_int("axis", 0) % len(shape) == axis
        if place is None or not same or ctx.rank(reader.inputs[1]) != 0 or not isinstance(count, int):
            return "something else than Gathers of single places along one axis reads its input"
        if not -count <= place < count or int(place) % count in readers:
            return "a place is taken twice, or is none"
        readers[int(place) % count] = reader
    if not isinstance(count, int) or len(readers) != count or count < 2:
        return "not every place is taken"
    source = _side_by_side(ctx, moved, axis)
    if source is None:
        return "the parts do not lie side by side along the last axis of what was moved"
    whole = ctx.shape(source)
    assert whole is not None and isinstance(whole[-1], int)
    sizes = [whole[-1] // count] * count
    attributes: dict[str, int | list[int]] = {"axis": len(whole) - 1}
    inputs: list[ir.Value | None] = [source]
    takers = set(readers.values())
    first = next(each for each in graph if each in takers)
    if ctx.opset(node) < 13:
        attributes["split"] = sizes
    else:
        inputs.append(ctx.constant(np.array(sizes, np.int64), f"{source.name}_parts", near=first))
    made = ctx.add("Split", inputs, attributes, before=first, outputs=count)
    for place, value in enumerate(made):
        ctx.replace(readers[place].outputs[0], value)
        ctx.remove(readers[place])
    return True


def _side_by_side(ctx: Context, moved: ir.Value, axis: int) -> ir.Value | None:
    """The value whose last axis holds the parts one after another that ``moved`` has along ``axis``, and is else alike.

    Each dim of ``moved`` is followed back through Squeeze and Transpose to the view that cut the last axis in two.
    """
    shape, value = ctx.shape(moved), moved
    if shape is None:
        return None
    places = list(range(len(shape)))  # for each dim of ``moved``, its axis in ``value``
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in ("Squeeze", "Transpose"):
        inner = node.inputs[0]
        rank = ctx.rank(inner)
        if not ctx.only_use(node.outputs[0]) and value is not moved:
            return None
        if inner is None or rank is None:
            return None
        if node.op_type == "Transpose":
            order = list(node.attributes.get_ints("perm", tuple(reversed(range(rank)))))
            places = [order[place] for place in places]
        else:
            gone = axes_of(ctx.facts, node)
            if not isinstance(gone, tuple):
                return None
            kept = [each for each in range(rank) if each not in {one % rank for one in gone}]
            places = [kept[place] for place in places]
        value, node = inner, inner.producer()
    if value is moved or node is None or node.domain != "" or node.op_type != "Reshape" or not ctx.only_use(value):
        return None
    source, view = node.inputs[0], ctx.shape(value)
    whole = ctx.shape(source)
    if source is None or whole is None or view is None or not whole or not isinstance(whole[-1], int):
        return None
    parts, width = places[axis], view[-1]
    # (..., count, width): what is left of the view without dims of 1 that were dropped is the source's other dims.
    rest = [place for index, place in enumerate(places) if index != axis]
    if parts != len(view) - 2 or rest[-1:] != [len(view) - 1] or rest != sorted(rest):
        return None
    dropped = set(range(len(view))) - set(places)
    if any(view[place] != 1 for place in dropped) or tuple(view[place] for place in rest[:-1]) != whole[:-1]:
        return None
    if not isinstance(width, int) or width < 1 or view[parts] != whole[-1] // width or whole[-1] % width:
        return None
    return source
