"""ScatterElements, ScatterND and TensorScatter, with every reduction."""

from __future__ import annotations

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries, as_mask, number
from graphkit.gradients.indexing import index_width, row_numbers
from graphkit.gradients.products import products_of_same
from graphkit.gradients.rows import scatter_add
from graphkit.gradients.shapes import (
    compare,
    constant,
    element_count,
    full_like,
    rank_of,
    reshape_to,
    shape_tensor,
    static_value,
    zeros_like,
)
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@gradient("ScatterElements", selects=True)
def scatter_elements(r: Record, g: Tensor) -> Entries:
    x, indices, updates = r.inputs
    assert x is not None and indices is not None and updates is not None
    axis = int(r.attribute("axis", 0))
    reduction = str(r.attribute("reduction", "none"))
    if reduction in ("none", "mul"):
        axis %= rank_of(r, indices) or 1
    if reduction == "mul":
        rank_of(r, updates)
    (y,) = r.outputs
    return _by_element(r, x, indices, updates, y, g, axis, reduction)


def _by_element(
    r: Record, x: Tensor, indices: Tensor, updates: Tensor, y: Tensor, g: Tensor, axis: int, reduction: str
) -> Entries:
    def read(t: Tensor) -> Tensor:
        return apply1("GatherElements", t, indices, axis=axis)

    if reduction == "add":
        return g, None, lambda: read(g)
    if reduction == "none":
        return (
            lambda: apply1("ScatterElements", g, indices, zeros_like(updates), axis=axis),
            None,
            lambda: _of_last_write(x, indices, read(g), axis),
        )
    if reduction == "mul":
        return _of_products(x, indices, updates, g, axis)
    # max and min: those that tie share the cotangent evenly
    from_data = as_mask(compare("Equal", x, y), g)
    from_updates = as_mask(compare("Equal", updates, read(y)), g)
    ties = scatter_add(from_data, indices, from_updates, axis)
    share = apply1("Div", g, apply1("Max", ties, number(1, g)))
    return (
        lambda: apply1("Mul", share, from_data),
        None,
        lambda: apply1("Mul", read(share), from_updates),
    )


def _of_last_write(x: Tensor, indices: Tensor, g: Tensor, axis: int) -> Tensor:
    """g where an update was the last one written to its place, 0 where another overwrote it.

    Which one that was is found by writing the updates' numbers in the same way and reading them back.
    """
    assert indices.dims is not None
    if indices.dims[axis] == 1 or _distinct(indices, axis):
        return g
    numbers = apply1("Range", constant(0, dtypes.INT64), apply1("Size", indices), constant(1, dtypes.INT64))
    numbers = apply1("Reshape", numbers, shape_tensor(indices))
    nothing = apply1("ConstantOfShape", shape_tensor(x), value=np.array([-1]))
    written = apply1("ScatterElements", nothing, indices, numbers, axis=axis)
    last = compare("Equal", apply1("GatherElements", written, indices, axis=axis), numbers)
    return apply1("Mul", g, as_mask(last, g))


def _distinct(indices: Tensor, axis: int) -> bool:
    """Whether known indices name no place twice."""
    known = static_value(indices) if indices.traced or indices.literal else None
    if known is None or (np.asarray(known) < 0).any():
        return False
    ordered = np.sort(np.asarray(known), axis=axis)
    return bool((np.diff(ordered, axis=axis) != 0).all())


def _of_products(x: Tensor, indices: Tensor, updates: Tensor, g: Tensor, axis: int) -> Entries:
    """Each factor's slope is the product of all the others, made without a division: right where one is 0."""

    def to_data() -> Tensor:
        return apply1("Mul", g, scatter_add(full_like(x, 1), indices, updates, axis, "mul"))

    def to_updates() -> Tensor:
        met = apply1("GatherElements", apply1("Mul", g, x), indices, axis=axis)
        assert indices.dims is not None
        if indices.dims[axis] == 1 or _distinct(indices, axis):
            return met
        extent = apply1("Shape", x, start=axis, end=axis + 1)
        places = apply1("Mod", indices.astype(dtypes.INT64), extent)  # from the end or not
        return apply1("Mul", met, products_of_same(updates, places, axis))

    return to_data, None, to_updates


@gradient("ScatterND", selects=True)
def scatter_nd(r: Record, g: Tensor) -> Entries:
    x, indices, updates = r.inputs
    assert x is not None and indices is not None and updates is not None
    reduction = str(r.attribute("reduction", "none"))
    if reduction == "add":
        return g, None, lambda: apply1("GatherND", g, indices)
    if reduction == "none":
        return (
            lambda: apply1("ScatterND", g, indices, zeros_like(updates)),
            None,
            lambda: _of_last_row(r, x, indices, updates, apply1("GatherND", g, indices)),
        )
    return _by_row(r, x, indices, updates, g, reduction)


def _of_last_row(r: Record, x: Tensor, indices: Tensor, updates: Tensor, g: Tensor) -> Tensor:
    """The same for whole rows."""
    rank_of(r, indices)
    assert indices.dims is not None
    if all(d == 1 for d in indices.dims[:-1]) or _distinct_rows(indices):
        return g
    width = index_width(r, x, indices, updates)
    rows = row_numbers(r, x, indices, width)
    numbers = apply1("Range", constant(0, dtypes.INT64), apply1("Size", rows), constant(1, dtypes.INT64))
    count = element_count(x, list(range(width)))
    total = constant_ints([count]) if isinstance(count, int) else apply1("Unsqueeze", count, constant_ints([0]))
    written = apply1("ScatterElements", apply1("Expand", constant_ints([-1]), total), rows, numbers, axis=0)
    last = as_mask(compare("Equal", apply1("Gather", written, rows), numbers), g)
    # [rows] against [index dims..., row dims...]
    leading = apply1("Shape", indices, start=0, end=-1)
    inner = rank_of(r, x) - width
    shape = apply1("Concat", leading, constant_ints([1] * inner), axis=0) if inner else leading
    return apply1("Mul", g, apply1("Reshape", last, shape))


def _distinct_rows(indices: Tensor) -> bool:
    known = static_value(indices) if indices.traced or indices.literal else None
    if known is None or (np.asarray(known) < 0).any():
        return False
    flat = np.asarray(known).reshape(-1, known.shape[-1])
    return len(np.unique(flat, axis=0)) == len(flat)


def _by_row(r: Record, x: Tensor, indices: Tensor, updates: Tensor, g: Tensor, reduction: str) -> Entries:
    """As ScatterElements on [rows, width], whose kernel no two threads race in."""
    depth = index_width(r, x, indices, updates)
    rows = row_numbers(r, x, indices, depth)
    width = element_count(x, list(range(depth, rank_of(r, x))))
    behind = constant_ints([width]) if isinstance(width, int) else apply1("Unsqueeze", width, constant_ints([0]))
    flat = apply1("Concat", constant_ints([-1]), behind, axis=0)
    table, given, cotangent, result = (apply1("Reshape", t, flat) for t in (x, updates, g, r.outputs[0]))
    places = apply1("Expand", apply1("Unsqueeze", rows, constant_ints([1])), apply1("Shape", given))
    to_x, _, to_updates = _by_element(r, table, places, given, result, cotangent, 0, reduction)
    assert callable(to_x) and callable(to_updates)
    return lambda: reshape_to(to_x(), x), None, lambda: reshape_to(to_updates(), updates)


@gradient("TensorScatter", selects=True)
def tensor_scatter(r: Record, g: Tensor) -> Entries:
    """The cache outside of what was written, and what was written read back."""
    cache, update = r.inputs[0], r.inputs[1]
    assert cache is not None and update is not None
    starts = r.input(2)
    axis = int(r.attribute("axis", -2)) % rank_of(r, cache)
    circular = r.attribute("mode", "linear") == "circular"

    def to_cache() -> Tensor:
        return apply1("TensorScatter", g, zeros_like(update), starts, **r.attributes)

    def to_update() -> Tensor:
        assert update.rank is not None
        length = apply1("Squeeze", apply1("Shape", update, start=axis, end=axis + 1))
        steps = apply1("Range", constant(0, dtypes.INT64), length, constant(1, dtypes.INT64))
        places = apply1("Reshape", steps, constant_ints([-1] + [1] * (update.rank - 1 - axis)))
        if starts is not None:
            first = apply1("Reshape", starts, constant_ints([-1] + [1] * (update.rank - 1)))
            places = apply1("Add", first.astype(dtypes.INT64), places)
        if circular:
            places = apply1("Mod", places, apply1("Shape", cache, start=axis, end=axis + 1))
        return apply1("GatherElements", g, apply1("Expand", places, shape_tensor(update)), axis=axis)

    return to_cache, to_update
