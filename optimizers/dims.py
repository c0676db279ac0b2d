"""Passes over the dims that a model reads from its values' shapes while it runs."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.infer_elementwise import axes_of
from graphkit.optimizers.infer_shapes import slice_bounds

__all__: list[str] = []

# The version of Shape that takes a start and an end.
_SHAPE_PARTS = 15
# What a start and an end weigh in a file.
_PART_BYTES = 32


@rule("gather_as_vector", "Unsqueeze")
def gather_as_vector(ctx: Context, node: ir.Node) -> Outcome:
    """One element taken from a vector and made a vector again is taken as a vector of one.

    Nothing else reads the element.
    """
    inner = inner_node(node, "Gather")
    if inner is None or not ctx.only_use(inner.outputs[0]) or axes_of(ctx.facts, node) not in ((0,), (-1,)):
        return "it does not make a vector of an element that nothing else reads"
    index = ctx.array(inner.inputs[1])
    if index is None or index.shape != () or ctx.rank(inner.inputs[0]) != 1:
        return "no single element of a vector is taken"
    name = inner.inputs[1].name if inner.inputs[1] is not None else None
    place = ctx.constant(index.reshape(1), f"{name}_place", near=node)
    return finish(ctx, node, ctx.add("Gather", [inner.inputs[0], place], {"axis": 0}, before=node)[0])


@rule("shape_part", "Gather", "Slice")
def shape_part(ctx: Context, node: ir.Node) -> Outcome:
    """A run of dims taken from a Shape is a Shape with start and end.

    From opset 15 on, of the whole shape, in order and without gaps; nothing that needs the whole shape reads it.
    """
    inner = inner_node(node, "Shape")
    if inner is None or inner.attributes or inner.outputs[0].is_graph_output() or ctx.opset(node) < _SHAPE_PARTS:
        return "its input is not the whole Shape of a value, or the opset is older than 15"
    rank = ctx.rank(inner.inputs[0])
    if rank is None:
        return "the rank of the value is not known"
    parts: list[tuple[ir.Node, range]] = []
    for reader, index in inner.outputs[0].uses():
        places = _places(ctx, reader, rank) if index == 0 and reader.graph is node.graph else None
        if places is None:
            return "something reads other than a run of known dims"
        parts.append((reader, places))
    growth = _PART_BYTES * (len(parts) - 1)  # of the first, what says start and end weighs less than the Shape
    if growth > ctx.budget // 16:
        return "the file would grow"
    for reader, places in parts:
        ends = {"start": places.start, "end": places.stop}
        attributes = {name: item for name, item in ends.items() if item != {"start": 0, "end": rank}[name]}
        (made,) = ctx.add("Shape", [inner.inputs[0]], attributes, before=reader)
        finish(ctx, reader, made)
    return True


def _places(ctx: Context, node: ir.Node, rank: int) -> range | None:
    if node.domain != "" or node.op_type not in ("Gather", "Slice"):
        return None
    if node.op_type == "Slice":
        bounds = slice_bounds(ctx.facts, node, 1)
        if bounds is None or len(bounds[0]) != 1 or bounds[3] != [1]:
            return None
        start, end = bounds[0][0], bounds[1][0]
        if not isinstance(start, int) or not isinstance(end, int):
            return None
        found = range(rank)[start:end]
        return found if len(found) else None
    index = ctx.array(node.inputs[1])
    if index is None or index.ndim != 1 or not index.size or not all(-rank <= i < rank for i in index.tolist()):
        return None
    places = [int(i) % rank for i in index.tolist()]
    return (
        range(places[0], places[0] + len(places)) if places == list(range(places[0], places[0] + len(places))) else None
    )


@rule("join_shape_parts", "Concat")
def join_shape_parts(ctx: Context, node: ir.Node) -> Outcome:
    """Dims of one value's shape that a Concat puts one after the other again are taken together.

    From opset 15 on, in order and without gaps; nothing else reads them apart.
    """
    if ctx.opset(node) < _SHAPE_PARTS:
        return "the opset is older than 15"
    inputs: list[ir.Value | None] = []
    last: tuple[ir.Value, int, int] | None = None
    done = False
    for index, value in enumerate(node.inputs):
        part = _part(ctx, node, index)
        if part is not None and last is not None and last[0] is part[0] and last[2] == part[1]:
            part = (part[0], last[1], part[2])
            attributes = {"start": part[1]} if part[1] else {}
            if part[2] != ctx.rank(part[0]):
                attributes["end"] = part[2]
            (inputs[-1],) = ctx.add("Shape", [part[0]], attributes, before=node)
            done = True
        else:
            inputs.append(value)
        last = part
    if not done:
        return "no two of its inputs are dims of one value, one after the other, that nothing else reads"
    ctx.set_inputs(node, inputs)
    return True


def _part(ctx: Context, node: ir.Node, index: int) -> tuple[ir.Value, int, int] | None:
    """The value whose dims an input is, and from where to where; None where something else reads them too."""
    inner = inner_node(node, "Shape", index=index)
    if inner is None or inner.inputs[0] is None or not ctx.only_use(inner.outputs[0]):
        return None
    rank = ctx.rank(inner.inputs[0])
    if rank is None:
        return None
    places = range(rank)[inner.attributes.get_int("start", 0) : inner.attributes.get_int("end", rank)]
    return (inner.inputs[0], places.start, places.stop) if len(places) else None
