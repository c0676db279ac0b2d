"""Slice: the cotangent put back where it came from, zeros elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.dims import Extent
from graphkit.gradients.shapes import constant, pad_zeros, rank_of, shaped_as, static_ints
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@dataclass
class _Cut:
    """One sliced axis: each setting a number if every run has the same."""

    axis: int
    extent: Extent
    start: int | None
    end: int | None
    step: int | None

    def chosen(self) -> range | None:
        """The positions that were read, if they are known."""
        if self.start is None or self.end is None or self.step is None or not isinstance(self.extent, int):
            return None
        return range(self.extent)[self.start : _end(self.end, self.step) : self.step]

    def whole(self) -> bool:
        """Whether everything was read in order, whatever the extent."""
        far = self.end is not None and self.end >= 2**31 - 1
        return self.step == 1 and self.start == 0 and far


def _end(end: int, step: int) -> int | None:
    # an end far below zero says "down to the first", which a Python range writes as None
    return None if step < 0 and end < -(2**31) + 2 else end


@gradient("Slice", selects=True)
def slice_(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    cuts = _cuts(r, x)
    if cuts is None:
        return _by_places(r, x, g)
    strided = [c for c in cuts if c.step != 1]
    plain = [c for c in cuts if c.step == 1 and not c.whole()]
    result = g
    for cut in strided:
        result = _put_back(r, cuts.index(cut), cut, x, result)
    if plain:
        result = _pad(r, x, result, plain, [cuts.index(c) for c in plain])
    return result if result is g else shaped_as(result, x)


def _by_places(r: Record, x: Tensor, g: Tensor) -> Tensor:
    """Whatever is unknown: the elements of x are numbered, and their numbers sliced as they were."""
    size = apply1("Size", x)
    numbers = apply1("Range", constant(0, dtypes.INT64), size, constant(1, dtypes.INT64))
    read = apply1("Slice", apply1("Reshape", numbers, apply1("Shape", x), allowzero=1), *r.inputs[1:])
    flat = constant_ints([-1])
    nothing = apply1("ConstantOfShape", apply1("Reshape", size, constant_ints([1])), value=np.zeros(1, g.dtype))
    back = apply1("ScatterElements", nothing, apply1("Reshape", read, flat), apply1("Reshape", g, flat), axis=0)
    return shaped_as(apply1("Reshape", back, apply1("Shape", x), allowzero=1), x)


def _cuts(r: Record, x: Tensor) -> list[_Cut] | None:
    """What is cut from each axis; None where only the run knows the axes."""
    rank = x.rank
    if rank is None or x.dims is None:
        return None
    starts, ends, steps = (static_ints(r.input(n)) for n in (1, 2, 4))
    axes = static_ints(r.input(3))
    if axes is None:
        given = r.inputs[1]
        count = given.dims[0] if given is not None and given.dims else None
        if r.input(3) is not None or not isinstance(count, int):
            return None
        axes = list(range(count))
    if r.input(4) is None:
        steps = [1] * len(axes)
    empty = [None] * len(axes)
    settings = zip(axes, starts or empty, ends or empty, steps or empty, strict=True)
    return [_Cut(a % rank, x.dims[a % rank], start, end, step) for a, start, end, step in settings]


def _pad(r: Record, x: Tensor, g: Tensor, cuts: list[_Cut], places: list[int]) -> Tensor:
    """Zeros before and behind, for steps of 1."""
    assert x.rank is not None
    known = [c.chosen() for c in cuts]
    if all(k is not None for k in known):
        before, after = [0] * x.rank, [0] * x.rank
        for cut, chosen in zip(cuts, known, strict=True):
            assert chosen is not None and isinstance(cut.extent, int)
            before[cut.axis] = chosen.start if len(chosen) else 0
            after[cut.axis] = cut.extent - before[cut.axis] - len(chosen)
        return pad_zeros(g, constant_ints(before + after)) if any(before + after) else g
    # What was cut off in front follows from the starts, what was cut off behind from the extents that are left.
    axes = [c.axis for c in cuts]
    extents, left = _extents(x, axes), _extents(g, axes)
    fixed = [c.start for c in cuts]
    if all(s == 0 for s in fixed):
        first = constant_ints([0] * len(cuts))
        behind = apply1("Sub", extents, left)
    else:
        if all(s is not None and s >= 0 for s in fixed):
            first = apply1("Min", constant_ints([s for s in fixed if s is not None]), extents)
        else:
            given = r.inputs[1]
            assert given is not None
            starts = given if given.dtype == dtypes.INT64 else given.astype(dtypes.INT64)
            if places != list(range(len(_cuts(r, x) or ()))):
                starts = apply1("Gather", starts, constant_ints(places))
            zero = constant_ints([0])
            negative = apply1("Less", starts, zero).astype(dtypes.INT64)
            wrapped = apply1("Add", starts, apply1("Mul", negative, extents))
            first = apply1("Max", apply1("Min", wrapped, extents), zero)
        behind = apply1("Sub", apply1("Sub", extents, left), first)
    pads = apply1("Concat", first, behind, axis=0)
    if axes == list(range(x.rank)):
        return pad_zeros(g, pads)
    return pad_zeros(g, pads, constant_ints(axes))


def _extents(t: Tensor, axes: list[int]) -> Tensor:
    """The extents of some axes, int64 [n]."""
    assert t.dims is not None
    wanted = [t.dims[a] for a in axes]
    if all(isinstance(d, int) for d in wanted):
        return constant_ints([int(d) for d in wanted])
    if axes == list(range(axes[0], axes[0] + len(axes))):
        return apply1("Shape", t, start=axes[0], end=axes[0] + len(axes))
    return apply1("Gather", apply1("Shape", t), constant_ints(axes))


def _put_back(r: Record, place: int, cut: _Cut, x: Tensor, g: Tensor) -> Tensor:
    """Rows of ``g`` at the (distinct) positions of an axis that were read, zeros at the others, by gathering.

    Every position reads its row of ``g``, with a row of zeros behind for those that were not chosen: a Gather is many
    times cheaper than a scatter, and two threads cannot race in it.
    """
    rank = rank_of(r, x)
    behind = constant_ints([0] * rank + [int(n == cut.axis) for n in range(rank)])
    chosen = cut.chosen()
    if chosen is not None:
        assert isinstance(cut.extent, int)
        table = np.full(cut.extent, len(chosen), np.int64)
        table[list(chosen)] = np.arange(len(chosen))
        source = g if len(chosen) == cut.extent else pad_zeros(g, behind)
        return apply1("Gather", source, constant(table, dtypes.INT64), axis=cut.axis)
    one = constant_ints([place])
    start, end = (apply1("Gather", t, one) for t in r.inputs[1:3])
    step = constant_ints([cut.step]) if cut.step is not None else apply1("Gather", r.inputs[4], one)
    zero, unit = constant(0, dtypes.INT64), constant(1, dtypes.INT64)
    extent, width = _extents(x, [cut.axis]), _extents(g, [cut.axis])
    positions = apply1("Range", zero, apply1("Squeeze", extent), unit)
    read = apply1("Slice", positions, _int64(start), _int64(end), constant_ints([0]), _int64(step))
    empty = apply1("Expand", width, extent)  # every position first points at the row of zeros
    found = apply1("ScatterElements", empty, read, apply1("Range", zero, apply1("Squeeze", width), unit), axis=0)
    return apply1("Gather", pad_zeros(g, behind), found, axis=cut.axis)


def _int64(t: Tensor) -> Tensor:
    return t if t.dtype == dtypes.INT64 else t.astype(dtypes.INT64)
