"""Gather and its relatives, TopK, Compress, OneHot, Unique."""

from __future__ import annotations

import numpy as np

from graphkit import dims, dtypes
from graphkit.core import Array, Record, Tensor
from graphkit.dims import is_static
from graphkit.gradients.elementwise import Entries, as_mask, selected
from graphkit.gradients.rows import add_rows, scatter_add
from graphkit.gradients.shapes import (
    constant,
    element_count,
    pad_zeros,
    rank_of,
    reshape_to,
    shape_tensor,
    shaped_as,
    static_value,
    zeros_like,
)
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints


@gradient("Gather", selects=True)
def gather(r: Record, g: Tensor) -> Entries:
    """Every read of a row adds to it; rows that are read once at most are put back by another Gather."""
    x, indices = r.inputs
    assert x is not None and indices is not None
    rank_of(r, indices)
    axis = int(r.attribute("axis", 0)) % rank_of(r, x)
    return (shaped_as(put_back(r, x, indices, g, axis), x),)


def put_back(r: Record, x: Tensor, indices: Tensor, g: Tensor, axis: int) -> Tensor:
    assert x.dims is not None and indices.dims is not None
    extent, count = x.dims[axis], dims.size(indices.dims)
    known = static_value(indices) if indices.traced or indices.literal else None
    if known is not None and isinstance(extent, int):
        flat = np.asarray(known).ravel() % max(extent, 1)
        if len(set(flat.tolist())) == flat.size:
            return _read_back(_one_axis(g, indices, axis), flat, extent, axis)
    if count == 0:
        return zeros_like(x)
    if count == 1:
        places = _places(x, axis)
        wrapped = nonnegative(apply1("Reshape", indices, constant_ints([1])), _extent(x, axis))
        mask = as_mask(apply1("Equal", places, wrapped), g)
        return selected(r, _one_axis(g, indices, axis), mask)
    return _add_back(x, indices, g, axis)


def _one_axis(g: Tensor, indices: Tensor, axis: int) -> Tensor:
    """The index dims of a gathered tensor as one axis."""
    assert indices.rank is not None and g.dims is not None
    if indices.rank == 1:
        return g
    if indices.rank == 0:
        return apply1("Unsqueeze", g, constant_ints([axis]))
    behind = g.dims[axis + indices.rank :]
    if all(isinstance(d, int) and d for d in behind) and all(d != 0 for d in g.dims[:axis]):
        return apply1("Reshape", g, constant_ints([*([0] * axis), -1, *(int(d) for d in behind)]))
    parts = [apply1("Shape", g, start=0, end=axis)] if axis else []
    parts.append(apply1("Unsqueeze", apply1("Size", indices), constant_ints([0])))
    if behind:
        parts.append(apply1("Shape", g, start=axis + indices.rank))
    return apply1("Reshape", g, apply1("Concat", *parts, axis=0), allowzero=1)


def _read_back(g: Tensor, places: Array, extent: int, axis: int) -> Tensor:
    """Rows of ``g`` at distinct known places of an axis, zeros at the others."""
    assert g.rank is not None
    if len(places) and (np.diff(places) == 1).all():  # neighbours, or a single one
        before, behind = [0] * g.rank, [0] * g.rank
        before[axis], behind[axis] = int(places[0]), extent - 1 - int(places[-1])
        return pad_zeros(g, constant_ints(before + behind)) if any(before + behind) else g
    table = np.full(extent, len(places), np.int64)
    table[places] = np.arange(len(places))
    source = g if len(places) == extent else pad_zeros(g, _row_behind(g, axis))
    return apply1("Gather", source, constant(table, dtypes.INT64), axis=axis)


def _row_behind(g: Tensor, axis: int) -> Tensor:
    assert g.rank is not None
    return constant_ints([0] * g.rank + [int(n == axis) for n in range(g.rank)])


def _extent(x: Tensor, axis: int) -> int | Tensor:
    """The extent of an axis: a number, or an int64 [1]."""
    assert x.dims is not None
    found = x.dims[axis]
    return found if isinstance(found, int) else apply1("Shape", x, start=axis, end=axis + 1)


def _places(x: Tensor, axis: int) -> Tensor:
    """0, 1, ... along an axis, ready to broadcast against ``x``."""
    assert x.rank is not None
    extent = _extent(x, axis)
    behind = x.rank - 1 - axis
    if isinstance(extent, int) and extent <= 1024:
        return constant(np.arange(extent).reshape([extent] + [1] * behind), dtypes.INT64)
    found = apply1("Range", constant(0, dtypes.INT64), _scalar(extent), constant(1, dtypes.INT64))
    return apply1("Unsqueeze", found, constant_ints(list(range(1, 1 + behind)))) if behind else found


def _scalar(extent: int | Tensor) -> Tensor:
    return constant(extent, dtypes.INT64) if isinstance(extent, int) else apply1("Squeeze", extent)


def nonnegative(indices: Tensor, extent: int | Tensor) -> Tensor:
    """Indices as int64, those that count from the end made to count from the start."""
    known = static_value(indices) if indices.traced or indices.literal else None
    if known is not None and (np.asarray(known) >= 0).all():
        return indices if indices.dtype == dtypes.INT64 else indices.astype(dtypes.INT64)
    if indices.dtype != dtypes.INT64:
        indices = indices.astype(dtypes.INT64)
    negative = apply1("Less", indices, constant(0, dtypes.INT64)).astype(dtypes.INT64)
    size = constant(extent, dtypes.INT64) if isinstance(extent, int) else extent
    return apply1("Add", indices, apply1("Mul", negative, size))


def _add_back(x: Tensor, indices: Tensor, g: Tensor, axis: int) -> Tensor:
    """The general form: the axis in front, its rows added up by index."""
    assert x.rank is not None
    extent = _extent(x, axis)
    flat = indices if indices.rank == 1 else apply1("Reshape", indices, constant_ints([-1]))
    flat = nonnegative(flat, extent)
    g = _one_axis(g, indices, axis)
    if axis:
        g = apply1("Transpose", g, perm=[axis, *range(axis), *range(axis + 1, x.rank)])
    wide = apply1("Reshape", g, _rows_by(x, axis))
    summed = add_rows(wide, flat, extent)
    if not axis:
        return reshape_to(summed, x)
    front = _front_shape(x, axis)
    return apply1(
        "Transpose", apply1("Reshape", summed, front), perm=[*range(1, axis + 1), 0, *range(axis + 1, x.rank)]
    )


def _rows_by(x: Tensor, axis: int) -> Tensor:
    """[-1, how many elements a row has]."""
    assert x.rank is not None
    width = element_count(x, [n for n in range(x.rank) if n != axis])
    if isinstance(width, int) and width:
        return constant_ints([-1, width])
    behind = constant_ints([width]) if isinstance(width, int) else apply1("Unsqueeze", width, constant_ints([0]))
    return apply1("Concat", constant_ints([-1]), behind, axis=0)


def _front_shape(x: Tensor, axis: int) -> Tensor:
    """The shape of x with the axis moved to the front."""
    assert x.dims is not None and x.rank is not None
    order = [axis, *(n for n in range(x.rank) if n != axis)]
    if is_static(x.dims):
        return constant_ints([int(x.dims[n]) for n in order])
    return apply1("Gather", apply1("Shape", x), constant_ints(order))


@gradient("GatherElements", selects=True)
def gather_elements(r: Record, g: Tensor) -> Entries:
    x, indices = r.inputs
    assert x is not None and indices is not None and indices.dims is not None
    axis = int(r.attribute("axis", 0)) % rank_of(r, x)
    if indices.dims[axis] == 1:  # one element of each row, as the score of a label: none is read twice
        return (apply1("ScatterElements", zeros_like(x), indices, g, axis=axis),)
    return (scatter_add(zeros_like(x), indices, g, axis),)


@gradient("GatherND", selects=True)
def gather_nd(r: Record, g: Tensor) -> Entries:
    x, indices = r.inputs
    assert x is not None and indices is not None
    batch = int(r.attribute("batch_dims", 0))
    width = index_width(r, x, indices, g, batch)
    rows = row_numbers(r, x, indices, width, batch)
    inner = list(range(batch + width, rank_of(r, x)))
    size = element_count(x, inner)
    behind = constant_ints([size]) if isinstance(size, int) else apply1("Unsqueeze", size, constant_ints([0]))
    updates = apply1("Reshape", g, apply1("Concat", constant_ints([-1]), behind, axis=0))
    count = element_count(x, list(range(batch + width)))
    total = count if isinstance(count, int) else apply1("Unsqueeze", count, constant_ints([0]))
    return (apply1("Reshape", add_rows(updates, rows, total), shape_tensor(x), allowzero=1),)


def index_width(r: Record, x: Tensor, indices: Tensor, read: Tensor, batch: int = 0) -> int:
    """How many axes of ``x`` [..., k] indices address: k itself, or what the ranks of x and of what is read tell."""
    from graphkit.errors import GradientError

    rank, places = rank_of(r, x), rank_of(r, indices)
    assert indices.dims is not None
    width = indices.dims[-1]
    if not isinstance(width, int) and read.rank is not None:
        width = places - 1 + rank - batch - read.rank
    if not isinstance(width, int):
        raise GradientError(f"the gradient of {r.describe()} needs the last dim of its indices, which is unknown")
    return width


def row_numbers(r: Record, x: Tensor, indices: Tensor, width: int, batch: int = 0) -> Tensor:
    """What [..., width] indices address, counted through the leading batch + width axes of ``x``: int64, flat."""
    rank_of(r, x)
    assert x.dims is not None and indices.dims is not None
    if indices.dtype != dtypes.INT64:
        indices = indices.astype(dtypes.INT64)
    shape = shape_tensor(x)
    leading = apply1("Slice", shape, constant_ints([batch]), constant_ints([batch + width]))
    negative = apply1("Less", indices, constant(0, dtypes.INT64)).astype(dtypes.INT64)
    wrapped = apply1("Add", indices, apply1("Mul", negative, leading))
    strides = _strides(x, batch, width)
    numbers = apply1("ReduceSum", apply1("Mul", wrapped, strides), constant_ints([-1]), keepdims=0)
    if batch:
        block = apply1("ReduceProd", leading, keepdims=0)
        batches = apply1("Slice", shape, constant_ints([0]), constant_ints([batch]))
        count = apply1("ReduceProd", batches, keepdims=0)
        offsets = apply1("Mul", apply1("Range", constant(0, dtypes.INT64), count, constant(1, dtypes.INT64)), block)
        offsets = apply1("Reshape", offsets, apply1("Concat", batches, constant_ints([1]), axis=0))
        flat = apply1("Reshape", numbers, apply1("Concat", batches, constant_ints([-1]), axis=0))
        numbers = apply1("Add", flat, offsets)
    return apply1("Reshape", numbers, constant_ints([-1]))


def _strides(x: Tensor, batch: int, width: int) -> Tensor:
    """How many rows one step along each indexed axis skips, int64 [width]."""
    assert x.dims is not None
    axes = x.dims[batch : batch + width]
    if all(isinstance(d, int) for d in axes[1:]):
        steps = [1]
        for extent in axes[:0:-1]:
            steps.insert(0, steps[0] * int(extent))
        return constant_ints(steps)
    found = [constant_ints([1])]
    for axis in range(batch + width - 1, batch, -1):
        found.insert(0, apply1("Mul", found[0], apply1("Shape", x, start=axis, end=axis + 1)))
    return apply1("Concat", *found, axis=0)


@gradient("TopK", selects=True)
def top_k(r: Record, g: Tensor | None, *_: Tensor | None) -> Entries:
    """The picked places are distinct, so nothing needs adding up; of equal values, those that were picked."""
    x = r.inputs[0]
    assert x is not None and g is not None
    axis = int(r.attribute("axis", -1))
    return (apply1("ScatterElements", zeros_like(x), r.outputs[1], g, axis=axis),)


@gradient("Compress", selects=True)
def compress(r: Record, g: Tensor) -> Entries:
    x, condition = r.inputs
    assert x is not None and condition is not None
    places = apply1("Reshape", apply1("NonZero", condition), constant_ints([-1]))
    axis = r.attributes.get("axis")
    if axis is not None:
        axis = int(axis) % rank_of(r, x)
        return (shaped_as(rows_at(g, places, _extent(x, axis), axis), x),)
    size = element_count(x)
    extent = size if isinstance(size, int) else apply1("Unsqueeze", size, constant_ints([0]))
    return (reshape_to(rows_at(g, places, extent, 0), x),)


def rows_at(g: Tensor, places: Tensor, extent: int | Tensor, axis: int) -> Tensor:
    """Rows of ``g`` at distinct places of an axis, zeros at the others, by gathering."""
    count = apply1("Shape", places)
    target = constant_ints([extent]) if isinstance(extent, int) else extent
    nowhere = apply1("Expand", count, target)  # behind g stands a row of zeros
    numbers = apply1("Range", constant(0, dtypes.INT64), apply1("Squeeze", count), constant(1, dtypes.INT64))
    table = apply1("ScatterElements", nowhere, places, numbers, axis=0)
    return apply1("Gather", pad_zeros(g, _row_behind(g, axis)), table, axis=axis)


@gradient("OneHot", selects=True)
def one_hot(r: Record, g: Tensor) -> Entries:
    """The off value takes what the on value does not."""
    indices, depth, _ = r.inputs
    axis = int(r.attribute("axis", -1))
    hot = as_mask(apply1("OneHot", indices, depth, constant([0, 1], dtypes.INT64), axis=axis), g)
    on = apply1("ReduceSum", apply1("Mul", g, hot), keepdims=0)
    off = apply1("Sub", apply1("ReduceSum", g, keepdims=0), on)
    first = constant_ints([0])
    return None, None, apply1("Concat", apply1("Unsqueeze", off, first), apply1("Unsqueeze", on, first), axis=0)


@gradient("Unique", selects=True)
def unique(r: Record, g: Tensor | None, *_: Tensor | None) -> Entries:
    """Of equal elements the first one stands for all, as the operator's own indices say."""
    x = r.inputs[0]
    assert x is not None and g is not None
    outputs = r.outputs if len(r.made) > 1 else apply("Unique", (x,), dict(r.attributes), outputs=2)
    axis = r.attributes.get("axis")
    if axis is not None:
        axis = int(axis) % rank_of(r, x)
        return (shaped_as(rows_at(g, outputs[1], _extent(x, axis), axis), x),)
    size = element_count(x)
    extent = size if isinstance(size, int) else apply1("Unsqueeze", size, constant_ints([0]))
    return (reshape_to(rows_at(g, outputs[1], extent, 0), x),)
