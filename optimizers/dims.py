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

_FLOAT8: frozenset[ir.DataType] = frozenset(
    {ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ}
)
# The version of Shape that takes a start and an end.
_SHAPE_PARTS = 15


@rule("cast_like", "CastLike")
def cast_like(ctx: Context, node: ir.Node) -> Outcome:
    """CastLike becomes a Cast to the dtype of its second input, which it then need not read.

    The dtype is known, and none of the 8-bit floats, which are rounded as an attribute says.
    """
    dtype = ctx.dtype(node.inputs[1])
    if dtype is None or dtype in _FLOAT8:
        return f"the dtype is {dtype}"
    return finish(ctx, node, ctx.add("Cast", [node.inputs[0]], {"to": int(dtype)}, before=node)[0])


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

    From opset 15 on, of the whole shape, in order and without gaps.
    """
    inner = inner_node(node, "Shape")
    if inner is None or inner.attributes or ctx.opset(node) < _SHAPE_PARTS:
        return "its input is not the whole Shape of a value, or the opset is older than 15"
    rank = ctx.rank(inner.inputs[0])
    places = None if rank is None else _places(ctx, node, rank)
    if places is None or rank is None:
        return "it does not take a run of known dims"
    attributes = {"start": places[0], "end": places[-1] + 1}
    (made,) = ctx.add("Shape", [inner.inputs[0]], attributes, before=node)
    return finish(ctx, node, made)


def _places(ctx: Context, node: ir.Node, rank: int) -> range | None:
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
            attributes = {"start": part[1], "end": part[2]}
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
