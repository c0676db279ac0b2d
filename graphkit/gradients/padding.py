"""Pad, in its four modes."""

from __future__ import annotations

import numpy as np

from graphkit import dtypes
from graphkit.core import Array, Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.shapes import constant, pad_zeros, rank_of, shaped_as, static_ints
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


def pad_gradient(r: Record, g: Tensor) -> Entries:
    """The cotangents of Pad's data and constant value."""
    x = r.inputs[0]
    assert x is not None
    mode = r.attribute("mode", "constant")
    given, axes = r.inputs[1], r.input(3)
    assert given is not None
    if mode == "constant":
        if axes is not None and (x.rank is None or static_ints(axes) is None):
            middle = pad_zeros(g, apply1("Neg", given), axes)
        else:
            middle = _crop(x, g, given if axes is None else _full_pads(r, rank_of(r, x)))
        middle = middle if middle is g else shaped_as(middle, x)
        if r.input(2) is None:
            return (middle,)
        return (
            middle,
            None,
            lambda: apply1("Sub", apply1("ReduceSum", g, keepdims=0), apply1("ReduceSum", middle, keepdims=0)),
        )
    result = g
    rank = rank_of(r, x)
    pads = _full_pads(r, rank)
    known = static_ints(pads)
    for axis in range(rank):
        if known is None or known[axis] or known[rank + axis]:
            result = _fold_axis(result, axis, x, pads, str(mode))
    return (result if result is g else shaped_as(result, x),)


def _full_pads(r: Record, rank: int) -> Tensor:
    """Pads for every axis, begins then ends, whichever axes the operator was given."""
    pads, axes = r.inputs[1], r.input(3)
    assert pads is not None
    if axes is None:
        return pads
    known_pads, known_axes = static_ints(pads), static_ints(axes)
    if known_axes is None:
        raise GradientError(f"the gradient of {r.describe()} needs axes that are known before it runs")
    n = len(known_axes)
    places = [a % rank for a in known_axes] + [rank + a % rank for a in known_axes]
    if known_pads is not None:
        full = [0] * (2 * rank)
        for place, value in zip(places, known_pads, strict=True):
            full[place] = value
        return constant_ints(full)
    source = [2 * n] * (2 * rank)  # one element behind the pads: zero
    for position, place in enumerate(places):
        source[place] = position
    return apply1("Gather", apply1("Concat", pads, constant_ints([0]), axis=0), constant_ints(source))


def _crop(x: Tensor, g: Tensor, pads: Tensor) -> Tensor:
    """Pad by the opposite amounts: a negative pad crops, and what was cropped comes back as zeros."""
    known = static_ints(pads)
    if known is not None and not any(known):
        return g
    if known is not None and all(k >= 0 for k in known) and x.dims is not None and x.rank is not None:
        axes = [a for a in range(x.rank) if known[a] or known[x.rank + a]]
        if all(isinstance(x.dims[a], int) for a in axes):
            starts = [known[a] for a in axes]
            ends = [known[a] + int(x.dims[a]) for a in axes]
            return apply1("Slice", g, constant_ints(starts), constant_ints(ends), constant_ints(axes))
    opposite = constant_ints([-k for k in known]) if known is not None else apply1("Neg", pads)
    return pad_zeros(g, opposite)


def _fold_axis(g: Tensor, axis: int, x: Tensor, pads: Tensor, mode: str) -> Tensor:
    """Add what the borders of one axis copied back to where it was copied from.

    A product with the one-hot matrix of the positions that were read adds up every copy, in any order of threads. It
    is as large as the square of the extent, so that on a long axis the borders are added piece by piece.
    """
    assert x.rank is not None and x.dims is not None
    known, extent = static_ints(pads), x.dims[axis]
    short = isinstance(extent, int) and extent <= LITERAL_EXTENT
    if known is not None and not short:
        before, after = known[axis], known[x.rank + axis]
        once = mode != "wrap" or (isinstance(extent, int) and max(before, after) <= extent)
        if min(before, after) >= 0 and once:
            return _fold_borders(g, axis, x, before, after, mode)
    if axis == x.rank - 2:
        return apply1("MatMul", _copies(axis, x, pads, mode, g, transposed=True), g)
    matrix = _copies(axis, x, pads, mode, g, transposed=False)
    if axis == x.rank - 1:
        return apply1("MatMul", g, matrix)
    perm = [n for n in range(x.rank) if n != axis] + [axis]
    folded = apply1("MatMul", apply1("Transpose", g, perm=perm), matrix)
    return apply1("Transpose", folded, perm=[perm.index(n) for n in range(x.rank)])


def _fold_borders(g: Tensor, axis: int, x: Tensor, before: int, after: int, mode: str) -> Tensor:
    """The middle of g, and what lies before and behind it where it came from, which overlaps itself nowhere.

    A reflection reaches less far than the axis is long: no runtime takes more.
    """
    assert x.dims is not None
    axes, extent = constant_ints([axis]), x.dims[axis]

    def part(start: int, end: int, step: int = 1) -> Tensor:
        return apply1("Slice", g, constant_ints([start]), constant_ints([end]), axes, constant_ints([step]))

    def place(piece: Tensor, first: int, last: int) -> Tensor:
        """The piece with so many zeros before and behind it; -k stands for the extent less k."""
        if isinstance(extent, int):
            ends = [n if n >= 0 else n + extent for n in (first, last)]
            return pad_zeros(piece, constant_ints(ends), axes)
        length = apply1("Shape", x, start=axis, end=axis + 1)
        ends_at_run = [
            constant_ints([n]) if n >= 0 else apply1("Sub", length, constant_ints([-n])) for n in (first, last)
        ]
        return pad_zeros(piece, apply1("Concat", *ends_at_run, axis=0), axes)

    result = part(before, -after if after else _END)
    if before and mode == "reflect":
        result = apply1("Add", result, place(part(before - 1, -_END, -1), 1, -1 - before))
    elif before and mode == "edge":
        result = apply1("Add", result, place(_sum_along(part(0, before), axes), 0, -1))
    elif before:
        result = apply1("Add", result, place(part(0, before), -before, 0))
    if after and mode == "reflect":
        result = apply1("Add", result, place(part(-1, -1 - after, -1), -1 - after, 1))
    elif after and mode == "edge":
        result = apply1("Add", result, place(_sum_along(part(-after, _END), axes), -1, 0))
    elif after:
        result = apply1("Add", result, place(part(-after, _END), 0, -after))
    return result


def _sum_along(t: Tensor, axes: Tensor) -> Tensor:
    return apply1("ReduceSum", t, axes, keepdims=1)


def _copies(axis: int, x: Tensor, pads: Tensor, mode: str, like: Tensor, *, transposed: bool) -> Tensor:
    """[padded, extent], 1 where a position was read (transposed: [extent, padded])."""
    assert x.dims is not None and x.rank is not None
    known, extent = static_ints(pads), x.dims[axis]
    if known is not None and isinstance(extent, int) and extent <= LITERAL_EXTENT:
        read = read_positions(extent, known[axis], known[x.rank + axis], mode)
        matrix = np.eye(extent)[read]
        return constant(matrix.T if transposed else matrix, like.dtype)
    # the positions that were read are found by padding 0..n-1 in the same mode
    size = apply1("Squeeze", apply1("Shape", x, start=axis, end=axis + 1))
    positions = apply1("Range", constant(0, dtypes.INT64), size, constant(1, dtypes.INT64))
    amounts = apply1("Gather", pads, constant_ints([axis, x.rank + axis]))
    found = apply1("Pad", positions, amounts, mode=mode)
    here, there = (0, 1) if transposed else (1, 0)
    pair = apply1("Unsqueeze", found, constant_ints([here])), apply1("Unsqueeze", positions, constant_ints([there]))
    return apply1("Equal", *pair).astype(like.dtype)


def read_positions(extent: int, before: int, after: int, mode: str) -> Array:
    """Which of 0..extent-1 each element of the padded axis reads; negative pads crop, as the runtime does."""
    cut = np.arange(extent)[max(0, -before) : extent - max(0, -after)]
    padded: Array = np.pad(cut, (max(0, before), max(0, after)), mode=mode)  # type: ignore[call-overload]  # same names
    return padded


LITERAL_EXTENT = 128
_END = 2**31 - 1
