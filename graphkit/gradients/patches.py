"""Col2Im, and CenterCropPad."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from graphkit.core import Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.convolution import window_positions
from graphkit.gradients.shapes import constant, rank_of, shape_tensor, shaped_like, static_ints
from graphkit.gradients.table import gradient
from graphkit.gradients.windows import padded, window_slice, windows_of
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@gradient("Col2Im", mixes=True)
def col2im(r: Record, g: Tensor) -> Tensor:
    """Each column reads back the block that it was added to."""
    x = r.inputs[0]
    assert x is not None
    block, image = static_ints(r.inputs[2]), static_ints(r.inputs[1])
    if block is None:
        raise GradientError(f"the gradient of {r.describe()} needs a block_shape that is known before it runs")
    places = windows_of(r, g, tuple(block))
    p = padded(g, places)
    size = int(np.prod(block))
    if image is not None:
        assert places.begins is not None and places.ends is not None
        extents = tuple(n + b + e for n, b, e in zip(image, places.begins, places.ends, strict=True))
        counts = replace(places, begins=(0,) * places.axes, ends=(0,) * places.axes).outputs(extents)
        flat = apply1("Reshape", p, constant_ints([0, 0, int(np.prod(extents))]))
        read = constant(window_positions(places, counts, extents).T, np.dtype(np.int64))
        result = apply1("Gather", flat, read, axis=2)  # [batch, channels, offsets, columns]
    else:
        parts = [
            apply1("Reshape", window_slice(p, places, offset), constant_ints([0, 0, 1, -1]))
            for offset in itertools.product(*(range(k) for k in block))
        ]
        result = apply1("Concat", *parts, axis=2)
    channels = x.dims[1] if x.dims is not None else None
    if isinstance(channels, int):
        return shaped_like(apply1("Reshape", result, constant_ints([0, channels, -1])), x)
    count = apply1("Mul", apply1("Shape", g, start=1, end=2), constant_ints([size]))
    shape = apply1("Concat", constant_ints([0]), count, constant_ints([-1]), axis=0)
    return shaped_like(apply1("Reshape", result, shape), x)


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
