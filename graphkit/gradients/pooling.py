"""The pools: of a maximum, of a mean, of a p-norm; global ones too.

Ties: where the windows of a MaxPool lie side by side (strides as long as the kernel, no pads, no dilation, no
ceil_mode), elements that tie for the maximum share the cotangent evenly, as they do in GlobalMaxPool; where windows may
overlap, the first of them gets it. Either way the total of a window stays one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphkit import dtypes
from graphkit.core import Array, Record, Tensor
from graphkit.gradients.elementwise import as_mask, number
from graphkit.gradients.kept import kept_output
from graphkit.gradients.rows import scatter_add
from graphkit.gradients.shapes import (
    constant,
    divide_by_count,
    element_count,
    expand_to,
    reshape_to,
    shaped_like,
    static_ints,
)
from graphkit.gradients.table import gradient
from graphkit.gradients.windows import (
    Windows,
    extents_of,
    kernel_of,
    run_time_pads,
    scattered_windows,
    side_by_side,
    spatial,
    tiles,
    windows_of,
    with_kernels,
)
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints

INT64 = np.dtype(np.int64)


def _spread(values: Tensor, x: Tensor, places: Windows) -> Tensor:
    """Each window's value added to every element that the window reads, in the shape of ``x``.

    Where windows tile the input this repeats the values; else it is a transposed convolution with a kernel of ones,
    every channel of every image a picture of its own.
    """
    if tiles(places, values, x):
        return shaped_like(_repeated(values, places), x)
    known = spatial(values.dims, places.axes)
    if known is not None:
        pictures = apply1("Reshape", values, constant_ints([-1, 1, *known]))
    else:
        pictures = apply1("Reshape", values, apply1("Concat", constant_ints([-1, 1]), extents_of(values), axis=0))
    ones = constant(np.ones((1, 1, *places.kernel)), values.dtype)
    return reshape_to(scattered_windows(pictures, ones, x, places), x)


def _repeated(values: Tensor, places: Windows) -> Tensor:
    """Each value as often as its window has elements."""
    scales = constant([1, 1, *map(float, places.kernel)], dtypes.FLOAT32)
    return apply1("Resize", values, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                  nearest_mode="floor")  # fmt: skip


@gradient("MaxPool", selects=True)
def max_pool(r: Record, g: Tensor | None, _indices: Tensor | None = None) -> Tensor | None:
    """By comparing where windows lie side by side, else by the operator's Indices.

    Those are flat over the whole tensor, and repeat where windows overlap. Comparing is cheaper, since ONNX Runtime's
    MaxPool takes fifteen times as long when it must give Indices too.
    """
    if g is None:
        return None
    x = r.inputs[0]
    assert x is not None
    places = windows_of(r, x, kernel_of(r, None))
    if side_by_side(places):
        return _compared(x, r.outputs[0], g, places)
    flat = constant_ints([-1])
    size = element_count(x)
    total = constant_ints([size]) if isinstance(size, int) else apply1("Reshape", size, flat)
    zeros = apply1("ConstantOfShape", total, value=np.zeros(1, x.dtype))
    added = scatter_add(zeros, apply1("Reshape", _indices_of(r, x), flat), apply1("Reshape", g, flat), 0)
    return reshape_to(added, x)


def _indices_of(r: Record, x: Tensor) -> Tensor:
    """The output Indices in row-major order; Eager, which seldom needs them, computes them only now."""
    if not r.attribute("storage_order", 0) and (x.traced or len(r.made) > 1):
        return kept_output(r, 1)
    return apply("MaxPool", (x,), {**r.attributes, "storage_order": 0}, 2)[1]


def _compared(x: Tensor, y: Tensor, g: Tensor, places: Windows) -> Tensor:
    """g to the elements that equal their window's maximum, divided by how many do."""
    whole = tiles(places, y, x)
    covered = x if whole else _covered(x, y, places)
    if x.dtype == dtypes.FLOAT64:  # neither Resize nor AveragePool has a kernel for it
        result = _compared_in_place(covered, y, g, places)
    else:
        mask = as_mask(shaped_like(apply1("Equal", covered, _repeated(y, places)), covered), g)
        each = _shared(mask, g, places)
        result = shaped_like(apply1("Mul", mask, _repeated(each, places)), covered)
    return result if whole else shaped_like(_uncovered(result, x, y, places), x)


def _shared(mask: Tensor, g: Tensor, places: Windows) -> Tensor:
    """g divided by the number of ones in each window of ``mask``."""
    sizes = {"kernel_shape": list(places.kernel), "strides": list(places.strides)}
    channels = mask.dims[1] if mask.dims is not None else None
    if g.dtype == dtypes.FLOAT32 and isinstance(channels, int):
        ones = constant(np.ones((channels, 1, *places.kernel)), g.dtype)
        return apply1("Div", g, apply1("Conv", mask, ones, group=channels, **sizes))
    return apply1(
        "Div", apply1("Mul", g, number(1 / float(np.prod(places.kernel)), g)), apply1("AveragePool", mask, **sizes)
    )


def _compared_in_place(x: Tensor, y: Tensor, g: Tensor, places: Windows) -> Tensor:
    """The same on [batch, channels, windows, kernel, windows, kernel...]."""
    inner, outer = [], []
    for axis in range(places.axes):
        windows = apply1("Shape", y, start=2 + axis, end=3 + axis)
        inner += [windows, constant_ints([places.kernel[axis]])]
        outer += [windows, constant_ints([1])]
    apart = apply1("Concat", constant_ints([0, 0]), *inner, axis=0)
    beside = apply1("Concat", constant_ints([0, 0]), *outer, axis=0)
    mask = as_mask(apply1("Equal", apply1("Reshape", x, apart), apply1("Reshape", y, beside)), g)
    ties = apply1("ReduceSum", mask, constant_ints(list(range(3, 3 + 2 * places.axes, 2))), keepdims=1)
    return reshape_to(apply1("Mul", mask, apply1("Div", apply1("Reshape", g, beside), ties)), x)


def _ends(y: Tensor, places: Windows) -> Tensor:
    """How far windows side by side reach along each axis, int64 [axes]."""
    windows = spatial(y.dims, places.axes)
    if windows is not None:
        return constant_ints([m * k for m, k in zip(windows, places.kernel, strict=True)])
    return apply1("Mul", extents_of(y), constant_ints(places.kernel))


def _covered(x: Tensor, y: Tensor, places: Windows) -> Tensor:
    """``x`` without the rest at the ends that fills no window."""
    axes = constant_ints(list(range(2, 2 + places.axes)))
    return apply1("Slice", x, constant_ints([0] * places.axes), _ends(y, places), axes)


def _uncovered(t: Tensor, x: Tensor, y: Tensor, places: Windows) -> Tensor:
    """With zeros for that rest."""
    reach, extents = _ends(y, places), spatial(x.dims, places.axes)
    known, before = static_ints(reach), [0] * (4 + places.axes)
    if known is not None and extents is not None:
        return apply1("Pad", t, constant_ints([*before, *(n - e for n, e in zip(extents, known, strict=True))]))
    rest = apply1("Sub", extents_of(x), reach)
    return apply1("Pad", t, apply1("Concat", constant_ints(before), rest, axis=0))


@gradient("AveragePool", mixes=True)
def average_pool(r: Record, g: Tensor) -> Tensor:
    """Each element of a window gets an equal part: of the window's size, or of what it holds of the input."""
    x = r.inputs[0]
    assert x is not None
    places = windows_of(r, x, kernel_of(r, None))
    g = with_kernels(g)
    count = _counts(r, x, g, places)
    if isinstance(count, Tensor):
        return _spread(apply1("Div", g, count.astype(g.dtype)), x, places)
    if count.size == 1:
        return _spread(apply1("Mul", g, number(1 / float(count.item()), g)), x, places)
    return _spread(apply1("Mul", g, constant(1 / count, g.dtype)), x, places)


def _counts(r: Record, x: Tensor, g: Tensor, places: Windows) -> Array | Tensor:
    """By how many each window's sum was divided: one number, numbers by place, or those traced."""
    with_pads, ceil = bool(r.attribute("count_include_pad", 0)), bool(r.attribute("ceil_mode", 0))
    whole = np.array(float(np.prod(places.kernel)))
    if not ceil and (with_pads or (places.pads is not None and not any(places.pads))):
        return whole
    extents, windows = spatial(x.dims, places.axes), spatial(g.dims, places.axes)
    if places.begins is not None and places.ends is not None and extents is not None and windows is not None:
        result = np.ones(())
        for axis in range(places.axes):
            starts = np.arange(windows[axis]) * places.strides[axis] - places.begins[axis]
            read = starts[:, None] + np.arange(places.kernel[axis]) * places.dilations[axis]
            low, high = (-places.begins[axis], extents[axis] + places.ends[axis]) if with_pads else (0, extents[axis])
            result = np.multiply.outer(result, ((read >= low) & (read < high)).sum(1).astype(np.float64))
        result = np.maximum(result, 1)  # a window may lie in the pads altogether
        return whole if (result == whole).all() else result
    return _run_time_counts(x, g, places, with_pads)


def _run_time_counts(x: Tensor, g: Tensor, places: Windows, with_pads: bool) -> Tensor:
    """The same where extents are only known when the graph runs: for each axis, the reads that hit the input."""
    if places.begins is not None and places.ends is not None:
        begins, ends = constant_ints(places.begins), constant_ints(places.ends)
    else:
        begins, ends = run_time_pads(x, places)
    limits = apply1("Add", extents_of(x), ends) if with_pads else extents_of(x)
    zero, one = constant(0, INT64), constant(1, INT64)
    result: Tensor | None = None
    for axis in range(places.axes):
        windows = apply1("Squeeze", apply1("Shape", g, start=2 + axis, end=3 + axis))
        begin = apply1("Gather", begins, constant([axis], INT64))
        stride = constant(places.strides[axis], INT64)
        starts = apply1("Sub", apply1("Mul", apply1("Range", zero, windows, one), stride), begin)
        offsets = constant(np.arange(places.kernel[axis]) * places.dilations[axis], INT64)
        read = apply1("Add", apply1("Unsqueeze", starts, constant_ints([1])), offsets)
        below = apply1("Less", read, apply1("Gather", limits, constant([axis], INT64)))
        inside = apply1("And", below, apply1("GreaterOrEqual", read, apply1("Neg", begin) if with_pads else zero))
        along = apply1("ReduceSum", inside.astype("float32"), constant_ints([1]), keepdims=0)
        if axis < places.axes - 1:
            along = apply1("Unsqueeze", along, constant_ints(list(range(1, places.axes - axis))))
        result = along if result is None else apply1("Mul", result, along)
    assert result is not None
    return result


@gradient("LpPool", mixes=True)
def lp_pool(r: Record, g: Tensor) -> Tensor:
    """|x|^(p-1) * sign(x), times every window's g * y^(1-p); a window of zeros has no direction, and gives 0."""
    x = r.inputs[0]
    assert x is not None
    places = windows_of(r, x, kernel_of(r, None))
    return _norm_gradient(x, int(r.attribute("p", 2)), lambda scaled: _spread(scaled, x, places), g, r.outputs[0])


@gradient("GlobalLpPool", mixes=True)
def global_lp_pool(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    return _norm_gradient(x, int(r.attribute("p", 2)), lambda scaled: scaled, g, r.outputs[0])


def _norm_gradient(x: Tensor, p: int, spread: Callable[[Tensor], Tensor], g: Tensor, y: Tensor) -> Tensor:
    if p == 1:
        return apply1("Mul", apply1("Sign", x), spread(g))
    zero = as_mask(apply1("Equal", y, number(0, y)), y)
    safe = apply1("Add", y, zero)
    power = safe if p == 2 else apply1("Pow", safe, number(p - 1, y))
    spreaded = spread(apply1("Div", g, power))
    if p == 2:
        return apply1("Mul", x, spreaded)
    size = apply1("Pow", apply1("Abs", x), number(p - 1, x))
    return apply1("Mul", apply1("Mul", size, apply1("Sign", x)), spreaded)


def _spatial_axes(x: Tensor) -> Tensor:
    if x.rank is not None:
        return constant_ints(list(range(2, x.rank)))
    rank = apply1("Size", apply1("Shape", x))
    return apply1("Range", constant(2, INT64), rank, constant(1, INT64))


@gradient("GlobalAveragePool", mixes=True)
def global_average_pool(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    if x.rank is None:
        count: int | Tensor = apply1("Div", apply1("Size", x), apply1("Size", g))
    else:
        count = element_count(x, list(range(2, x.rank)))
    return expand_to(divide_by_count(g, count), x)


@gradient("GlobalMaxPool", selects=True)
def global_max_pool(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    mask = as_mask(apply1("Equal", x, r.outputs[0]), g)
    ties = apply1("ReduceSum", mask, _spatial_axes(x), keepdims=1)
    return apply1("Mul", mask, apply1("Div", g, apply1("Max", ties, number(1, g))))


@gradient("MaxUnpool", selects=True)
def max_unpool(r: Record, g: Tensor) -> Tensor:
    """What was written to a place is read from it."""
    x, indices = r.inputs[0], r.inputs[1]
    assert x is not None and indices is not None
    return shaped_like(apply1("Gather", apply1("Reshape", g, constant_ints([-1])), indices), x)
