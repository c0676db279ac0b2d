"""RoiAlign and MaxRoiPool: pictures pooled over rectangles that are inputs. The rectangles themselves get no gradient.

A mean over bilinear samples is the product of one matrix for each axis, so its transpose is two matrix products. A
maximum goes to its winners, found again among everything that its bin reads; those that tie share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import as_mask, number
from graphkit.gradients.normalization import widened
from graphkit.gradients.rows import scatter_add
from graphkit.gradients.sampling import extent
from graphkit.gradients.shapes import constant, reshape_to, shaped_like, zeros_like
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class Samples:
    """Where the bins of each region read along one axis, [regions, bins, samples]; ``exists`` is 0 or 1."""

    place: Tensor
    exists: Tensor
    count: Tensor  # [regions, 1, 1]: of samples in each bin


def _column(rois: Tensor, n: int) -> Tensor:
    """One number a region, [regions, 1, 1]."""
    return apply1("Unsqueeze", apply1("Gather", rois, constant_ints([n]), axis=1), constant_ints([2]))


def _steps(count: Tensor | int, like: Tensor) -> Tensor:
    """0, 1, 2... as floats."""
    if isinstance(count, int):
        return constant(np.arange(count), like.dtype)
    return apply1("Range", constant(0, INT64), count, constant(1, INT64)).astype(like.dtype)


def _samples(r: Record, rois: Tensor, axis: int, length: Tensor) -> Samples:
    """RoiAlign's sample places along y (axis 0) or x (axis 1)."""
    scale, ratio = float(r.attribute("spatial_scale", 1.0)), int(r.attribute("sampling_ratio", 0))
    bins = int(r.attribute(("output_height", "output_width")[axis], 1))
    halved = r.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    start, end = (apply1("Mul", _column(rois, n), number(scale, rois)) for n in (1 - axis, 3 - axis))
    if halved:
        start, end = (apply1("Sub", t, number(0.5, t)) for t in (start, end))
    size = apply1("Sub", end, start)
    if not halved:
        size = apply1("Max", size, number(1, size))
    each = apply1("Div", size, number(bins, size))
    if ratio > 0:
        count, most = number(ratio, each), _steps(ratio, each)
    else:
        count = apply1("Ceil", each)
        whole = apply1("ReduceMax", count, keepdims=0)
        most = _steps(apply1("Max", whole, number(0, whole)).astype("int64"), each)
    part = apply1("Div", apply1("Mul", apply1("Add", most, number(0.5, each)), each), count)
    begin = apply1("Add", start, apply1("Mul", constant(np.arange(bins).reshape(1, -1, 1), each.dtype), each))
    place = apply1("Add", begin, part)
    last = length.astype(place.dtype)
    within = apply1("And", apply1("GreaterOrEqual", place, number(-1, place)), apply1("LessOrEqual", place, last))
    exists = within if ratio > 0 else apply1("And", within, apply1("Less", most, count))
    kept = apply1("Min", apply1("Max", place, number(0, place)), apply1("Sub", last, number(1, last)))
    # of the samples beyond the count nothing is left; those beyond the picture still count
    return Samples(kept, as_mask(exists, kept), apply1("Max", count, number(1, count)))


@gradient("RoiAlign", mixes=True)
def roi_align(r: Record, g: Tensor) -> Tensor:
    x, rois, batch = r.inputs
    assert x is not None and rois is not None and batch is not None
    wide, up = widened(x), widened(g)
    boxes = widened(rois).astype(up.dtype)
    lengths = [extent(x, 2), extent(x, 3)]
    samples = [_samples(r, boxes, axis, lengths[axis]) for axis in (0, 1)]
    if r.attribute("mode", "avg") != "avg":
        return _largest_sample(r, wide, batch, up, samples, lengths)
    rows, columns = (_matrix(s, n) for s, n in zip(samples, lengths, strict=True))
    # [regions, channels, bins, width], then regions and bins summed into each picture's rows
    across = apply1("MatMul", up, apply1("Unsqueeze", columns, constant_ints([1])))
    pictures = _steps(extent(x, 0), up)
    own = as_mask(apply1("Equal", apply1("Unsqueeze", pictures, constant_ints([1])), batch.astype(up.dtype)), up)
    # pictures by height by regions by bins
    down = apply1("Mul", apply1("Transpose", rows, perm=[2, 0, 1]), apply1("Unsqueeze", own, constant_ints([1, 3])))
    left = apply1("Reshape", down, apply1("Concat", constant_ints([-1]), _product(across, [0, 2]), axis=0))
    right = apply1("Transpose", across, perm=[0, 2, 1, 3])
    right = apply1("Reshape", right, apply1("Concat", constant_ints([-1]), _product(across, [1, 3]), axis=0))
    total = apply1("MatMul", left, right)
    sides = [apply1("Shape", x, start=n, end=n + 1) for n in (0, 2, 1, 3)]
    apart = apply1("Reshape", total, apply1("Concat", *sides, axis=0))
    return shaped_like(apply1("Transpose", apart, perm=[0, 2, 1, 3]), x)


def _product(t: Tensor, axes: list[int]) -> Tensor:
    """The product of two extents, int64 [1]."""
    return apply1("ReduceProd", apply1("Gather", apply1("Shape", t), constant_ints(axes)), keepdims=1)


def _matrix(s: Samples, length: Tensor) -> Tensor:
    """[regions, bins, elements]: how much of each element the mean of a bin's samples holds."""
    elements = _steps(length, s.place)
    distance = apply1("Abs", apply1("Sub", apply1("Unsqueeze", s.place, constant_ints([3])), elements))
    weight = apply1("Relu", apply1("Sub", number(1, distance), distance))
    counted = apply1("Mul", weight, apply1("Unsqueeze", s.exists, constant_ints([3])))
    return apply1("Div", apply1("ReduceSum", counted, constant_ints([2]), keepdims=0), s.count)


def _largest_sample(
    r: Record, x: Tensor, batch: Tensor, g: Tensor, samples: list[Samples], lengths: list[Tensor]
) -> Tensor:
    """The largest weighted tap of all samples (as ONNX Runtime has it, not the largest interpolated value)."""
    taps = []
    for s, length in zip(samples, lengths, strict=True):
        low = apply1("Floor", s.place)
        last = apply1("Sub", length, constant(1, INT64)).astype(low.dtype)
        high = apply1("Min", apply1("Add", low, number(1, low)), last)
        part = apply1("Sub", s.place, low)
        index = apply1("Concat", low, high, axis=2)
        weight = apply1("Concat", apply1("Sub", number(1, part), part), part, axis=2)
        twice = apply1("Concat", s.exists, s.exists, axis=2)
        taps.append((index, apply1("Mul", weight, twice), _counted(s, twice, r)))
    return _to_winners(x, batch, g, taps[0], taps[1], weighted=True)


def _counted(s: Samples, twice: Tensor, r: Record) -> Tensor:
    """1 for samples that the bin has, within the picture or not: those beyond it hold 0."""
    if int(r.attribute("sampling_ratio", 0)) > 0:
        return apply1("Add", apply1("Mul", twice, number(0, twice)), number(1, twice))
    n = apply1("Shape", s.place, start=2, end=3)
    steps = _steps(apply1("Squeeze", n), s.place)
    has = as_mask(apply1("Less", steps, apply1("Add", apply1("Mul", s.place, number(0, s.place)), s.count)), s.place)
    return apply1("Concat", has, has, axis=2)


Bins = tuple[Tensor, Tensor, Tensor]


def _to_winners(x: Tensor, batch: Tensor, g: Tensor, y: Bins, z: Bins, *, weighted: bool) -> Tensor:
    """The cotangent of each bin's maximum to the elements that attain it.

    ``y`` and ``z`` hold index, weight and existence along the two axes, [regions, bins, reads].
    """

    def outer(op: str, a: Tensor, b: Tensor) -> Tensor:
        """[regions, bins, reads] twice to [regions, reads, reads, bins, bins], flattened to [regions, reads, bins]."""
        left = apply1("Unsqueeze", apply1("Transpose", a, perm=[0, 2, 1]), constant_ints([2, 4]))
        right = apply1("Unsqueeze", apply1("Transpose", b, perm=[0, 2, 1]), constant_ints([1, 3]))
        return apply1(op, left, right)

    width, height = extent(x, 3), extent(x, 2)
    flat = outer("Add", apply1("Mul", y[0].astype("int64"), width), z[0].astype("int64"))
    picture = apply1("Mul", batch.astype("int64"), apply1("Mul", width, height))
    index = apply1("Add", flat, apply1("Unsqueeze", picture, constant_ints([1, 2, 3, 4])))
    exists = apply1("Greater", outer("Mul", y[2], z[2]), number(0, g))
    rows = apply1("Transpose", x, perm=[1, 0, 2, 3])
    shape_of_rows = apply1("Shape", rows)
    rows = apply1("Reshape", rows, constant_ints([0, -1]))
    held = apply1("Gather", rows, index, axis=1)  # [channels, regions, reads, reads, bins, bins]
    weight = outer("Mul", y[1], z[1]) if weighted else None
    value = held if weight is None else apply1("Mul", held, weight)
    lowest = constant(np.finfo(np.float64 if g.dtype == dtypes.FLOAT64 else np.float32).min, g.dtype)
    value = apply1("Where", exists, value, lowest)
    largest = apply1("ReduceMax", value, constant_ints([2, 3]), keepdims=1)
    winner = as_mask(apply1("And", apply1("Equal", value, largest), exists), g)
    ties = apply1("ReduceSum", winner, constant_ints([2, 3]), keepdims=1)
    up = apply1("Unsqueeze", apply1("Transpose", g, perm=[1, 0, 2, 3]), constant_ints([2, 3]))
    share = apply1("Mul", winner, apply1("Div", up, apply1("Max", ties, number(1, ties))))
    if weight is not None:
        share = apply1("Mul", share, weight)
    updates = apply1("Reshape", share, apply1("Concat", apply1("Shape", rows, end=1), constant_ints([-1]), axis=0))
    places = apply1("Expand", apply1("Reshape", index, constant_ints([1, -1])), apply1("Shape", updates))
    total = apply1("Reshape", scatter_add(zeros_like(rows), places, updates, 1), shape_of_rows)
    return shaped_like(apply1("Transpose", total, perm=[1, 0, 2, 3]), x)


@gradient("MaxRoiPool", selects=True)
def max_roi_pool(r: Record, g: Tensor) -> Tensor:
    """Bins of whole elements, which may overlap by one and may be empty."""
    x, rois = r.inputs
    assert x is not None and rois is not None
    wide, up = widened(x), widened(g)
    boxes = widened(rois)
    batch = apply1("Reshape", apply1("Gather", boxes, constant_ints([0]), axis=1), constant_ints([-1])).astype("int64")
    shape = [int(n) for n in r.attribute("pooled_shape")]
    y, z = (_whole_bins(r, boxes, axis, shape[axis], extent(x, 2 + axis)) for axis in (0, 1))
    return reshape_to(_to_winners(wide, batch, up, y, z, weighted=False), x)


def _whole_bins(r: Record, rois: Tensor, axis: int, bins: int, length: Tensor) -> Bins:
    scale = number(float(r.attribute("spatial_scale", 1.0)), rois)
    half = number(0.5, rois)
    start, end = (
        apply1("Floor", apply1("Add", apply1("Mul", _column(rois, n), scale), half)) for n in (2 - axis, 4 - axis)
    )
    size = apply1("Max", apply1("Add", apply1("Sub", end, start), number(1, end)), number(1, end))
    each = apply1("Div", size, number(bins, size))
    steps = np.arange(bins).reshape(1, -1, 1)
    last = length.astype(each.dtype)

    def clipped(t: Tensor) -> Tensor:
        return apply1("Min", apply1("Max", apply1("Add", t, start), number(0, t)), last)

    begin = clipped(apply1("Floor", apply1("Mul", constant(steps, each.dtype), each)))
    stop = clipped(apply1("Ceil", apply1("Mul", constant(steps + 1, each.dtype), each)))
    most = apply1("ReduceMax", apply1("Sub", stop, begin), keepdims=0)
    index = apply1("Add", begin, _steps(apply1("Max", most, number(1, most)).astype("int64"), each))
    exists = as_mask(apply1("Less", index, stop), index)
    kept = apply1("Min", index, apply1("Sub", last, number(1, last)))
    return kept, exists, exists
