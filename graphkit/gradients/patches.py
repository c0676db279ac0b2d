"""Col2Im, and CenterCropPad."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from graphkit.core import Record, Tensor
from graphkit.gradients.convolution import window_positions
from graphkit.gradients.shapes import constant, rank_of, reshape_to, shape_tensor, shaped_like, static_ints
from graphkit.gradients.table import gradient
from graphkit.gradients.windows import padded, windows_of
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

INT64 = np.dtype(np.int64)


@gradient("Col2Im", mixes=True)
def col2im(r: Record, g: Tensor) -> Tensor:
    """Each column reads back the block that it was added to."""
    x = r.inputs[0]
    assert x is not None
    block, image = static_ints(r.inputs[2]), static_ints(r.inputs[1])
    if block is None or image is None:
        return _read_at_run_time(r, x, g)
    places = windows_of(r, g, tuple(block))
    assert places.begins is not None and places.ends is not None
    extents = tuple(n + b + e for n, b, e in zip(image, places.begins, places.ends, strict=True))
    counts = replace(places, begins=(0,) * places.axes, ends=(0,) * places.axes).outputs(extents)
    flat = apply1("Reshape", padded(g, places), constant_ints([0, 0, math.prod(extents)]))
    read = window_positions(places, counts, extents, offsets_first=True)
    return reshape_to(apply1("Gather", flat, read, axis=2), x)  # from [batch, channels, offsets, columns]


def _read_at_run_time(r: Record, x: Tensor, g: Tensor) -> Tensor:
    """The same where the image or the block is only known when the graph runs."""
    n = rank_of(r, g) - 2
    block = r.inputs[2]
    assert block is not None
    places = windows_of(r, g, (1,) * n)
    p = padded(g, places)
    zero, one = constant(0, INT64), constant(1, INT64)
    index: Tensor | None = None
    for axis in range(n):
        extent = apply1("Squeeze", apply1("Shape", p, start=2 + axis, end=3 + axis))
        kernel = apply1("Gather", block, constant(axis, INT64))
        dilation, stride = constant(places.dilations[axis], INT64), constant(places.strides[axis], INT64)
        last = apply1("Sub", extent, apply1("Add", apply1("Mul", apply1("Sub", kernel, one), dilation), one))
        starts = apply1("Range", zero, apply1("Add", last, one), stride)
        offsets = apply1("Mul", apply1("Range", zero, kernel, one), dilation)
        # offsets of every axis, then starts of every axis
        both = apply1("Add", apply1("Unsqueeze", offsets, constant_ints([1])), starts)
        around = [a for a in range(2 * n) if a not in (axis, n + axis)]
        along = apply1("Unsqueeze", both, constant_ints(around)) if around else both
        index = along if index is None else apply1("Add", apply1("Mul", index, extent), along)
    assert index is not None
    flat = apply1("Reshape", p, constant_ints([0, 0, -1]))
    return reshape_to(apply1("Gather", flat, apply1("Reshape", index, constant_ints([-1])), axis=2), x)


@gradient("CenterCropPad", mixes=True)
def center_crop_pad(r: Record, g: Tensor) -> Tensor:
    """What was cropped is padded and what was padded is cropped, about the same centre."""
    x = r.inputs[0]
    assert x is not None
    rank = rank_of(r, x)
    axes = [int(a) % rank for a in r.attribute("axes") or range(rank)]
    shape = shape_tensor(x)
    if axes != list(range(rank)):
        shape = apply1("Gather", shape, constant_ints(axes))
    return shaped_like(apply1("CenterCropPad", g, shape, axes=axes), x)
