"""GridSample and AffineGrid, and what DeformConv shares with them: reading between the elements of a picture.

A value read at a fractional place is a weighted sum of elements around it, its taps. So the cotangent of the picture is
added up at the taps, and that of the place is what the taps hold, times the slopes of their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries, as_mask, number
from graphkit.gradients.normalization import widened
from graphkit.gradients.rows import scatter_add
from graphkit.gradients.shapes import constant, rank_of, reshape_to, shaped_like, zeros_like
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class Along:
    """The taps along one axis, each [batch, taps, places].

    Attributes:
        index: which element, within the picture.
        weight: by how much it counts.
        slope: how the weight grows with the place; None where it never does.
    """

    index: Tensor
    weight: Tensor
    slope: Tensor | None


@dataclass(frozen=True)
class Taps:
    """All taps of places in a picture of flattened spatial axes: index and weight [batch, taps, places]."""

    index: Tensor
    weight: Tensor
    slopes: list[Tensor | None]


def extent(x: Tensor, axis: int) -> Tensor:
    """An extent as an int64 scalar."""
    known = x.dims[axis] if x.dims is not None else None
    if isinstance(known, int):
        return constant(known, INT64)
    return apply1("Squeeze", apply1("Shape", x, start=axis, end=axis + 1))


def combined(along: Sequence[Along], extents: Sequence[Tensor]) -> Taps:
    """The taps of several axes multiplied out, the first axis outermost."""
    index, weight = along[0].index, along[0].weight
    slopes = [along[0].slope]
    for axis in range(1, len(along)):
        new = along[axis]
        index = _outer("Add", apply1("Mul", index, extents[axis]), new.index)
        slopes = [None if s is None else _outer("Mul", s, new.weight) for s in slopes]
        slopes.append(None if new.slope is None else _outer("Mul", weight, new.slope))
        weight = _outer("Mul", weight, new.weight)
    return Taps(index, weight, slopes)


def _outer(op: str, a: Tensor, b: Tensor) -> Tensor:
    """[batch, n, places] and [batch, m, places] to [batch, n * m, places]."""
    if a.dims is not None and a.dims[1] == 1:
        return apply1(op, a, b)
    if b.dims is not None and b.dims[1] == 1:
        return apply1(op, a, b)
    assert a.dims is not None and b.dims is not None
    count = int(a.dims[1]) * int(b.dims[1])
    product = apply1(op, apply1("Unsqueeze", a, constant_ints([2])), apply1("Unsqueeze", b, constant_ints([1])))
    width = apply1("Shape", product, start=3)
    return apply1("Reshape", product, apply1("Concat", constant_ints([0, count]), width, axis=0))


_LINEAR = np.array([0.0, 1.0])
_CUBIC = np.array([-1.0, 0.0, 1.0, 2.0])


def linear_taps(u: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Elements, weights and slopes for places u [batch, 1, places]; the slopes times ``mask`` if there is one."""
    base = apply1("Floor", u)
    t = apply1("Sub", u, base)
    offsets = constant(_LINEAR.reshape(1, 2, 1), u.dtype)
    signs = constant((2 * _LINEAR - 1).reshape(1, 2, 1), u.dtype)
    # 1 - t and t
    weight = apply1("Add", apply1("Mul", t, signs), constant((1 - _LINEAR).reshape(1, 2, 1), u.dtype))
    return apply1("Add", base, offsets), weight, signs if mask is None else apply1("Mul", mask, signs)


def cubic_taps(u: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The same for four taps: Keys' cubic convolution with a = -0.75."""
    a = -0.75
    base = apply1("Floor", u)
    distance = apply1("Abs", apply1("Sub", apply1("Sub", u, base), constant(_CUBIC.reshape(1, 4, 1), u.dtype)))
    outer = (a, -5 * a, 8 * a, -4 * a)  # coefficients of x^3, x^2, x and 1
    inner = (a + 2, -(a + 3), 0.0, 1.0)
    c = [constant(np.array([o, i, i, o]).reshape(1, 4, 1), u.dtype) for o, i in zip(outer, inner, strict=True)]
    rising = np.array([1.0, 1.0, -1.0, -1.0]).reshape(1, 4, 1)
    square = apply1("Add", apply1("Mul", distance, c[0]), c[1])
    weight = apply1("Add", apply1("Mul", apply1("Add", apply1("Mul", square, distance), c[2]), distance), c[3])
    d = [
        constant(np.array([o, i, i, o]).reshape(1, 4, 1) * power * rising, u.dtype)
        for o, i, power in zip(outer[:3], inner[:3], (3, 2, 1), strict=True)
    ]
    slope = apply1("Add", apply1("Mul", apply1("Add", apply1("Mul", distance, d[0]), d[1]), distance), d[2])
    if mask is not None:
        slope = apply1("Mul", slope, mask)
    return apply1("Add", base, constant(_CUBIC.reshape(1, 4, 1), u.dtype)), weight, slope


def inside(place: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Of whole places, the nearest in 0..length-1 as int64, and 1 where they are in there, else 0."""
    last = apply1("Sub", length, number(1, length)).astype(place.dtype)
    nearest = apply1("Min", apply1("Max", place, number(0, place)), last)
    return nearest.astype("int64"), as_mask(apply1("Equal", nearest, place), place)


def zero_beyond(index: Tensor, weight: Tensor, slope: Tensor | None, length: Tensor) -> Along:
    """Taps beyond the picture count for nothing."""
    nearest, within = inside(index, length)
    return Along(nearest, apply1("Mul", weight, within), None if slope is None else apply1("Mul", slope, within))


@gradient("GridSample", mixes=True)
def grid_sample(r: Record, g: Tensor) -> Entries:
    """Nearest has no slope, so its grid gets zeros."""
    x, grid = r.inputs[0], r.inputs[1]
    assert x is not None and grid is not None
    rank = rank_of(r, x)
    spatial = list(range(2, rank))
    up = widened(g)
    flat = widened(grid)
    places = apply1("Reshape", flat, constant_ints([0, -1, rank - 2]))  # x before y before z: last axis first
    extents = [extent(x, axis) for axis in spatial]
    along = [_along(r, places, rank - 1 - axis, extents[axis - 2], up.dtype) for axis in spatial]
    taps = combined([a for a, _ in along], extents)
    rows = apply1("Reshape", up, constant_ints([0, 0, -1]))

    def grid_gradient() -> Tensor:
        if along[0][0].slope is None:
            return zeros_like(grid)
        held = held_by(_flattened(widened(x)), taps, rows)
        parts = []
        for axis in reversed(spatial):
            slope, scale = taps.slopes[axis - 2], along[axis - 2][1]
            assert slope is not None
            total = apply1("ReduceSum", apply1("Mul", held, slope), constant_ints([1]), keepdims=0)
            parts.append(apply1("Unsqueeze", apply1("Mul", total, scale), constant_ints([2])))
        return reshape_to(apply1("Concat", *parts, axis=2), grid)

    return lambda: reshape_to(added(_flattened(widened(x)), taps, rows), x), grid_gradient


def _flattened(x: Tensor) -> Tensor:
    return apply1("Reshape", x, constant_ints([0, 0, -1]))


def _along(r: Record, places: Tensor, column: int, length: Tensor, dtype: dtypes.DType) -> tuple[Along, Tensor]:
    """The taps along one axis, and elements for each unit of the grid (half the picture)."""
    mode, padding = str(r.attribute("mode", "linear")), str(r.attribute("padding_mode", "zeros"))
    aligned = bool(r.attribute("align_corners", 0))
    n = length.astype(dtype)
    one, half = number(1, n), number(0.5, n)
    v = apply1("Gather", places, constant([column], INT64), axis=2)
    v = apply1("Transpose", v, perm=[0, 2, 1])  # [batch, 1, places]
    last = apply1("Sub", n, one)
    scale = apply1("Mul", last if aligned else n, half)
    u = apply1("Mul", apply1("Add", v, one), scale)
    if not aligned:
        u = apply1("Sub", u, half)
    mask: Tensor | None = None
    bounds = (number(0, n), last) if aligned else (number(-0.5, n), apply1("Sub", n, half))
    if mode == "nearest":
        u = _moved(apply1("Round", u) if padding == "zeros" else u, padding, bounds, last)[0]
        nearest, within = inside(apply1("Round", u), length)
        return Along(nearest, within, None), scale
    if mode == "cubic":
        index, weight, slope = cubic_taps(u)
        if padding == "zeros":
            return zero_beyond(index, weight, slope, length), scale
        index = _moved(index, padding, bounds, last)[0]
        return Along(apply1("Round", index).astype("int64"), weight, slope), scale
    if padding != "zeros":
        u, mask = _moved(u, padding, bounds, last)
    return zero_beyond(*linear_taps(u, mask), length), scale


def _moved(u: Tensor, padding: str, bounds: tuple[Tensor, Tensor], last: Tensor) -> tuple[Tensor, Tensor | None]:
    """A place brought back into the picture, and the slope of that: 1, 0, or -1 where it was reflected."""
    if padding == "zeros":
        return u, None
    slope: Tensor | None = None
    if padding == "reflection":
        low, high = bounds
        span = apply1("Sub", high, low)
        from_low = apply1("Sub", u, low)
        period = apply1("Max", apply1("Add", span, span), number(1e-6, span))
        rest = apply1("Sub", apply1("Mod", apply1("Abs", from_low), period, fmod=1), span)
        u = apply1("Add", apply1("Sub", span, apply1("Abs", rest)), low)
        slope = apply1("Neg", apply1("Mul", apply1("Sign", from_low), apply1("Sign", rest)))
    kept = apply1("Min", apply1("Max", u, number(0, u)), last)
    within = as_mask(apply1("Equal", kept, u), u)
    return kept, within if slope is None else apply1("Mul", slope, within)


def _spread_over_channels(t: Tensor, channels: Tensor) -> Tensor:
    """[batch, taps, places] to [batch, channels, taps * places]."""
    row = apply1("Reshape", t, constant_ints([0, 1, -1]))
    count = apply1("Shape", channels, start=1, end=2)
    return apply1("Expand", row, apply1("Concat", constant_ints([1]), count, constant_ints([1]), axis=0))


def added(rows: Tensor, taps: Taps, g: Tensor) -> Tensor:
    """Every place's cotangent [batch, channels, places] added up at its taps, in the shape of ``rows``."""
    weight = apply1("Unsqueeze", taps.weight, constant_ints([1]))
    weighted = apply1("Mul", apply1("Unsqueeze", g, constant_ints([2])), weight)
    updates = apply1("Reshape", weighted, constant_ints([0, 0, -1]))
    return scatter_add(zeros_like(rows), _spread_over_channels(taps.index, g), updates, 2)


def tapped(rows: Tensor, taps: Taps) -> Tensor:
    """What the taps hold: [batch, channels, taps, places] of ``rows`` [batch, channels, elements]."""
    read = apply1("GatherElements", rows, _spread_over_channels(taps.index, rows), axis=2)
    shape = apply1("Concat", constant_ints([0, 0]), apply1("Shape", taps.index, start=1), axis=0)
    return apply1("Reshape", read, shape)


def held_by(rows: Tensor, taps: Taps, g: Tensor) -> Tensor:
    """What the taps hold, times each place's cotangent, summed over channels: [batch, taps, places]."""
    product = apply1("Mul", tapped(rows, taps), apply1("Unsqueeze", g, constant_ints([2])))
    return apply1("ReduceSum", product, constant_ints([1]), keepdims=0)


@gradient("AffineGrid", mixes=True)
def affine_grid(r: Record, g: Tensor) -> Tensor:
    """The grid is theta times [x, y, 1] (or [x, y, z, 1]), so theta's is the sum of the cotangent times these."""
    theta = r.inputs[0]
    assert theta is not None
    n = rank_of(r, g) - 2
    aligned = bool(r.attribute("align_corners", 0))
    axes = constant_ints(list(range(1, n + 1)))
    columns = []
    for axis in range(n, 0, -1):
        count = extent(g, axis)
        steps = apply1("Range", number(0, count), count, number(1, count)).astype(g.dtype)
        length = count.astype(g.dtype)
        if aligned:
            last = apply1("Max", apply1("Sub", length, number(1, length)), number(1, length))
            along = apply1("Sub", apply1("Div", apply1("Add", steps, steps), last), number(1, g))
        else:
            odd = apply1("Add", apply1("Add", steps, steps), number(1, g))
            along = apply1("Sub", apply1("Div", odd, length), number(1, g))
        beside = apply1("Unsqueeze", along, constant_ints(list(range(1, n - axis + 2))))
        columns.append(apply1("ReduceSum", apply1("Mul", g, beside), axes, keepdims=0))
    columns.append(apply1("ReduceSum", g, axes, keepdims=0))
    stacked = apply1("Concat", *(apply1("Unsqueeze", c, constant_ints([2])) for c in columns), axis=2)
    return shaped_like(stacked, theta)
