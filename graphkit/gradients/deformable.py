"""DeformConv: a convolution whose kernel reads at places of its own for every window."""

from __future__ import annotations

import itertools

import numpy as np

from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.normalization import widened
from graphkit.gradients.sampling import Taps, added, combined, extent, held_by, linear_taps, tapped, zero_beyond
from graphkit.gradients.shapes import constant, rank_of, reshape_to
from graphkit.gradients.table import gradient
from graphkit.gradients.windows import Windows, kernel_of, windows_of
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


def _taps(offset: Tensor, x: Tensor, g: Tensor, places: Windows) -> Taps:
    """Where every window reads: [batch * offset groups, taps, kernel * windows]."""
    assert places.begins is not None
    n = places.axes
    kernel = np.array(list(itertools.product(*(range(k) for k in places.kernel))))
    size = len(kernel)
    shape = apply1("Concat", constant_ints([-1, size, n]), apply1("Shape", offset, start=2), axis=0)
    apart = apply1("Reshape", offset, shape)
    along, extents = [], [extent(x, 2 + axis) for axis in range(n)]
    for axis in range(n):
        count = extent(g, 2 + axis)
        steps = apply1("Range", constant(0, count.dtype), count, constant(1, count.dtype))
        starts = apply1("Mul", steps, constant(places.strides[axis], count.dtype)).astype(x.dtype)
        if axis < n - 1:
            starts = apply1("Unsqueeze", starts, constant_ints(list(range(1, n - axis))))
        reach = kernel[:, axis] * places.dilations[axis] - places.begins[axis]
        base = apply1("Add", starts, constant(reach.reshape(-1, *[1] * n), x.dtype))
        moved = apply1("Add", apply1("Gather", apart, constant(axis, np.dtype(np.int64)), axis=2), base)
        flat = apply1("Reshape", moved, constant_ints([0, 1, -1]))
        along.append(zero_beyond(*linear_taps(flat), extents[axis]))
    return combined(along, extents)


@gradient("DeformConv", mixes=True)
def deform_conv(r: Record, g: Tensor) -> Entries:
    """Through the columns that the kernel multiplies, as an ordinary convolution's."""
    n = rank_of(r, r.inputs[0]) - 2
    # places in half precision would be off by whole elements
    x, w, offset, mask = (None if t is None else widened(t) for t in (*r.inputs[:3], r.input(4)))
    assert x is not None and w is not None and offset is not None and w.dims is not None
    g = widened(g)
    places = windows_of(r, x, kernel_of(r, w))
    group, groups = int(r.attribute("group", 1)), int(r.attribute("offset_group", 1))
    outputs, inner, size = int(w.dims[0]), int(w.dims[1]), int(np.prod(places.kernel))
    channels = inner * group
    taps = _taps(offset, x, g, places)
    area = apply1("ReduceProd", apply1("Shape", x, start=2), keepdims=1)
    rows = apply1("Reshape", x, apply1("Concat", constant_ints([-1, channels // groups]), area, axis=0))
    apart = apply1("Reshape", g, constant_ints([0, group, outputs // group, -1]))
    strength = None
    if mask is not None:
        strength = apply1("Reshape", mask, apply1("Concat", constant_ints([-1, 1]), _reads(mask, size), axis=0))

    # the cotangent of what was read, times its strength: [batch * offset groups, channels, kernel * windows]
    kernel = apply1("Reshape", w, constant_ints([group, outputs // group, inner * size]))
    back = apply1("MatMul", apply1("Transpose", kernel, perm=[0, 2, 1]), apart)
    reads = apply1("Concat", constant_ints([-1, channels // groups]), _reads(g, size), axis=0)
    columns = apply1("Reshape", back, reads)
    scaled = columns if strength is None else apply1("Mul", columns, strength)

    def sampled() -> Tensor:
        weight = apply1("Unsqueeze", taps.weight, constant_ints([1]))
        return apply1("ReduceSum", apply1("Mul", tapped(rows, taps), weight), constant_ints([2]), keepdims=0)

    def kernel_gradient() -> Tensor:
        read = sampled() if strength is None else apply1("Mul", sampled(), strength)
        shape = apply1("Concat", apply1("Shape", apart, start=0, end=2), constant_ints([inner * size, -1]), axis=0)
        turned = apply1("Transpose", apply1("Reshape", read, shape), perm=[0, 1, 3, 2])
        return reshape_to(apply1("ReduceSum", apply1("MatMul", apart, turned), constant_ints([0]), keepdims=0), w)

    def offset_gradient() -> Tensor:
        held = held_by(rows, taps, scaled)
        parts = []
        for slope in taps.slopes:
            assert slope is not None
            total = apply1("ReduceSum", apply1("Mul", held, slope), constant_ints([1]), keepdims=0)
            parts.append(apply1("Reshape", total, constant_ints([0, size, 1, -1])))
        return reshape_to(apply1("Concat", *parts, axis=2), offset)

    def mask_gradient() -> Tensor:
        assert mask is not None
        product = apply1("Mul", columns, sampled())
        return reshape_to(apply1("ReduceSum", product, constant_ints([1]), keepdims=0), mask)

    return (
        lambda: reshape_to(added(rows, taps, scaled), x),
        kernel_gradient,
        offset_gradient,
        lambda: apply1("ReduceSum", g, constant_ints([0, *range(2, 2 + n)]), keepdims=0),
        mask_gradient,
    )


def _reads(t: Tensor, size: int) -> Tensor:
    """Kernel size times windows, int64 [1]."""
    windows = apply1("ReduceProd", apply1("Shape", t, start=2), keepdims=1)
    return apply1("Mul", windows, constant_ints([size]))
