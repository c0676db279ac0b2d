"""Conv and ConvTranspose.

Each is the other's transpose, so the cotangent of one's input is the other applied to the cotangent. The weight's is
a sum over every place at which the kernel was applied: one matrix product for each offset in the kernel, over a slice
of the padded input; where channels are few, one product over all windows put side by side, since then the slices would
cost more than the products. For a single channel a group, and for kernels of many offsets, it is one
convolution with images as channels: strides and dilations change places, and the cotangent is the kernel.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphkit.core import Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.shapes import constant, reshape_to, shaped_like, static_ints
from graphkit.gradients.table import gradient
from graphkit.gradients.windows import (
    Windows,
    crop,
    extents_of,
    kernel_of,
    padded,
    scattered_windows,
    spatial,
    window_slice,
    windows_of,
    with_kernels,
)
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

# From so many channels on, a product an offset is faster than one over gathered windows (measured on one thread: 3
# channels 7.5 against 2.1 ms, 16 channels 9.3 and 10.0, 64 channels 28 and 46), at three nodes an offset.
SLICES_FROM = 48
# Above so many offsets one convolution: as fast at 64 channels and 7x7, 5 to 25 times so at few channels and 1x256.
MANY_OFFSETS = 32
GATHER_LIMIT = 1 << 21  # of elements an image has when its windows are put side by side
UNKNOWN_LIMIT = 9 * 16  # of elements a window has, where the windows are not known to be few
CONSTANT_LIMIT = 1 << 14  # of positions that become a constant of the file; more are added up when it runs


@gradient("Conv", mixes=True)
def conv(r: Record, g: Tensor) -> Entries:
    x, w = r.inputs[0], r.inputs[1]
    assert x is not None and w is not None
    x, w, g = with_kernels(x), with_kernels(w), with_kernels(g)
    group = int(r.attribute("group", 1))
    if w.dims is not None and spatial(w.dims, len(w.dims) - 2) is None and not r.attribute("kernel_shape"):
        return _of_unknown_kernel(r, x, w, g, group)
    places = windows_of(r, x, kernel_of(r, w))
    return (
        lambda: shaped_like(scattered_windows(g, w, x, places, group), x),
        lambda: shaped_like(kernel_gradient(x, g, w, places, group), w),
        lambda: _bias_gradient(g, places),
    )


def _of_unknown_kernel(r: Record, x: Tensor, w: Tensor, g: Tensor, group: int) -> Entries:
    """Where the kernel's extents are known only when the graph runs, as in the gradient of a weight's gradient."""
    assert w.dims is not None
    n = len(w.dims) - 2
    if str(r.attribute("auto_pad", "NOTSET")).startswith("SAME"):
        raise GradientError(f"the gradient of {r.describe()} with auto_pad needs the extents of its kernel")
    places = windows_of(r, x, (1,) * n)  # of which only strides, dilations and pads are read
    settings: dict[str, Any] = {"group": group, "strides": list(places.strides), "dilations": list(places.dilations)}
    if max(places.strides) > 1:
        settings["output_padding"] = [s - 1 for s in places.strides]
    return (
        lambda: shaped_like(crop(apply1("ConvTranspose", g, w, **settings), x, places), x),
        lambda: shaped_like(_by_convolution(x, g, w, places, group, exact=False), w),
        lambda: _bias_gradient(g, places),
    )


def _bias_gradient(g: Tensor, places: Windows) -> Tensor:
    axes = [0, *range(2, 2 + places.axes)]
    return apply1("ReduceSum", g, constant_ints(axes), keepdims=0)


def kernel_gradient(x: Tensor, g: Tensor, w: Tensor, places: Windows, group: int) -> Tensor:
    """[outputs, inputs / group, *kernel]: for each offset, the sum over every window of g times what it read of x.

    Args:
        x: what the windows read, [batch, inputs, *spatial].
        g: one value a window, [batch, outputs, *windows].
        w: the weight itself, for its dims.
    """
    size = math.prod(places.kernel)
    inner = w.dims[1] if w.dims is not None else None  # unknown where the weight is itself a cotangent, a batch
    if size > MANY_OFFSETS or not isinstance(inner, int) or (size > 1 and inner == 1):
        return _by_convolution(x, g, w, places, group, exact=_reads_all(x, g, places))
    outputs, channels = _channels(w, 0), group * inner
    p = padded(x, places)
    counts = spatial(g.dims, places.axes)
    extents = spatial(p.dims, places.axes)
    small = counts is not None and math.prod(counts) * math.prod(places.kernel) * channels <= GATHER_LIMIT
    plain = all(k == 1 for k in places.kernel) and all(s == 1 for s in places.strides)
    if size > 1 and inner < SLICES_FROM:
        fits = size * inner <= math.prod(counts) and small if counts is not None else size * inner <= UNKNOWN_LIMIT
        if fits:
            return _side_by_side(x, g, places, group, inner, outputs)
    if counts is not None and extents is not None and (plain or (channels // group < SLICES_FROM and small)):
        return _gathered(p, g, places, group, channels, outputs, counts, extents)
    return _by_offset(p, g, places, group, channels, outputs)


def _reads_all(x: Tensor, g: Tensor, places: Windows) -> bool:
    """Whether so few elements are left behind the last window that no further offset fits in."""
    extents, counts = spatial(x.dims, places.axes), spatial(g.dims, places.axes)
    if extents is None or counts is None or places.begins is None or places.ends is None:
        return False
    reach = [s * (m - 1) + span for s, m, span in zip(places.strides, counts, places.spans, strict=True)]
    sizes = zip(extents, places.begins, places.ends, reach, places.dilations, strict=True)
    return all(n + b + e - r < d for n, b, e, r, d in sizes)


def _by_convolution(x: Tensor, g: Tensor, w: Tensor, places: Windows, group: int, *, exact: bool) -> Tensor:
    """Images as channels, and the cotangent as a kernel; ``exact``: no more offsets come out than the kernel has."""
    n, single = places.axes, w.dims is not None and w.dims[1] == 1
    swap, axes = [1, 0, *range(2, 2 + n)], list(range(2, 2 + n))
    settings: dict[str, Any] = {"strides": list(places.dilations), "dilations": list(places.strides)}
    if places.pads is None or min(places.pads) < 0:
        x = padded(x, places)
    elif any(places.pads):
        settings["pads"] = places.pads
    if group == 1:
        rows = apply1("Transpose", x, perm=swap)
    else:
        settings["group"] = group
        extents = extents_of(x)
        if single:
            rows = apply1("Transpose", x, perm=swap)
            rows = apply1("Reshape", rows, _joined([1, -1], extents))
        else:
            rows = apply1("Reshape", x, _joined([0, group, -1], extents))
            rows = apply1("Transpose", rows, perm=[2, 1, 0, *range(3, 3 + n)])
            rows = apply1("Reshape", rows, _joined([0, -1], extents))
    whole = apply1("Conv", rows, apply1("Transpose", g, perm=swap), **settings)  # [inner, outputs, *kernel or more]
    if not exact:
        whole = apply1("Slice", whole, constant_ints([0] * n), extents_of(w), constant_ints(axes))
    return reshape_to(whole, w) if single else apply1("Transpose", whole, perm=swap)


def _joined(first: Sequence[int], extents: Tensor) -> Tensor:
    """A shape, of which the spatial extents may only be known when the graph runs."""
    known = static_ints(extents)
    if known is not None:
        return constant_ints([*first, *known])
    return apply1("Concat", constant_ints(first), extents, axis=0)


def _channels(w: Tensor, axis: int) -> int:
    extent = w.dims[axis] if w.dims is not None else None
    if not isinstance(extent, int):
        raise GradientError(f"the gradient of a convolution's weight needs the dims of {w.name or 'the weight'}")
    return extent


def _offsets(places: Windows) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(k) for k in places.kernel)))


def _side_by_side(x: Tensor, g: Tensor, places: Windows, group: int, inner: int, outputs: int) -> Tensor:
    """All windows side by side by a convolution whose kernels each pick one offset, then one product an image."""
    n, size = places.axes, math.prod(places.kernel)
    settings: dict[str, Any] = {"strides": list(places.strides), "dilations": list(places.dilations)}
    if places.pads is None or min(places.pads) < 0:
        x = padded(x, places)
    elif any(places.pads):
        settings["pads"] = places.pads
    picks = np.tile(np.eye(size).reshape(size, 1, *places.kernel), (group * inner, *[1] * (n + 1)))
    windows = apply1("Conv", x, constant(picks, x.dtype), group=group * inner, **settings)  # channels x offsets
    groups = [group] if group > 1 else []
    rows = apply1("Reshape", windows, constant_ints([0, *groups, inner * size, -1])) if n > 1 or groups else windows
    left = apply1("Reshape", g, constant_ints([0, *groups, outputs // group, -1])) if n > 1 or groups else g
    turned = apply1("Transpose", rows, perm=[0, 1, 3, 2] if groups else [0, 2, 1])
    product = apply1("ReduceSum", apply1("MatMul", left, turned), constant_ints([0]), keepdims=0)
    return apply1("Reshape", product, constant_ints([outputs, inner, *places.kernel]))


def _gathered(
    p: Tensor, g: Tensor, places: Windows, group: int, channels: int, outputs: int, counts: tuple[int, ...],
    extents: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """One product over all windows side by side.

    The product is taken image by image and summed where that makes less than the windows are; else over all images
    at once.
    """
    n, size = places.axes, len(_offsets(places))
    inner, total = channels // group, int(np.prod(counts))
    area = int(np.prod(extents))
    each = size * inner <= total
    grouped = group > 1
    if grouped:
        rows = apply1("Reshape", p, constant_ints([0, group, inner, area]))
        rows = apply1("Transpose", rows, perm=[0, 1, 3, 2] if each else [1, 0, 3, 2])
    else:
        rows = apply1("Transpose", p, perm=[0, *range(2, 2 + n), 1])
        if n > 1:
            rows = apply1("Reshape", rows, constant_ints([0, area, channels]))
    gathers = size > 1 or any(s > 1 for s in places.strides)
    if gathers:
        # rows become: batch, windows, offsets, channels
        rows = apply1("Gather", rows, window_positions(places, counts, extents), axis=2 if grouped else 1)
    if each:
        if gathers:
            rows = apply1("Reshape", rows, constant_ints([0, *([0] if grouped else []), total, size * inner]))
        sides = [0, *([group] if grouped else []), outputs // group, total]
        left = apply1("Reshape", g, constant_ints(sides)) if grouped or n > 1 else g
        product = apply1("ReduceSum", apply1("MatMul", left, rows), constant_ints([0]), keepdims=0)
    else:
        rows = apply1("Reshape", rows, constant_ints([*([group] if grouped else []), -1, size * inner]))
        product = apply1("MatMul", _windows_last(g, n, group, outputs), rows)
    if size == 1:
        return apply1("Reshape", product, constant_ints([outputs, inner, *places.kernel]))
    if inner == 1:
        return apply1("Reshape", product, constant_ints([outputs, inner, *places.kernel]))
    split = apply1("Reshape", product, constant_ints([outputs, *places.kernel, inner]))
    return apply1("Transpose", split, perm=[0, n + 1, *range(1, n + 1)])


def window_positions(
    places: Windows, counts: tuple[int, ...], extents: tuple[int, ...], *, offsets_first: bool = False
) -> Tensor:
    """[windows, offsets], or the other way round: where in the flattened spatial axes each offset of a window lies."""

    def flattened(along: list[Any]) -> Any:
        total = np.zeros((), np.int64)
        for axis, steps in enumerate(along):
            total = np.add.outer(total * extents[axis], steps)
        return total.reshape(-1)

    windows = flattened([np.arange(m) * s for m, s in zip(counts, places.strides, strict=True)])
    offsets = flattened([np.arange(k) * d for k, d in zip(places.kernel, places.dilations, strict=True)])
    first, second = (offsets, windows) if offsets_first else (windows, offsets)
    if windows.size * offsets.size <= CONSTANT_LIMIT:
        return constant(first[:, None] + second, np.dtype(np.int64))
    return apply1("Add", constant(first[:, None], np.dtype(np.int64)), constant(second, np.dtype(np.int64)))


def _windows_last(g: Tensor, n: int, group: int, outputs: int) -> Tensor:
    """g as [outputs, batch and windows]; with groups [group, outputs / group, batch and windows]."""
    turned = apply1("Transpose", g, perm=[1, 0, *range(2, 2 + n)])
    return apply1("Reshape", turned, constant_ints([*([group, outputs // group] if group > 1 else [outputs]), -1]))


def _by_offset(p: Tensor, g: Tensor, places: Windows, group: int, channels: int, outputs: int) -> Tensor:
    """One product an offset, over a slice; nothing here needs to know an extent."""
    n, inner = places.axes, channels // group
    left = _windows_last(g, n, group, outputs)
    spatial_axes = list(range(2, 2 + n))
    if group > 1:
        shape = apply1("Shape", p, start=2) if spatial(p.dims, n) is None else extents_of(p)
        rows = apply1("Reshape", p, apply1("Concat", constant_ints([0, group, inner]), shape, axis=0))
        rows = apply1("Transpose", rows, perm=[1, 0, *(a + 1 for a in spatial_axes), 2])
    else:
        rows = apply1("Transpose", p, perm=[0, *spatial_axes, 1])
    flat = constant_ints([*([group] if group > 1 else []), -1, inner])
    first = 2 if group > 1 else 1
    parts = [
        apply1("MatMul", left, apply1("Reshape", window_slice(rows, places, offset, first), flat))
        for offset in _offsets(places)
    ]  # of [outputs, inner], or [group, outputs / group, inner]
    if len(parts) == 1:
        return apply1("Reshape", parts[0], constant_ints([outputs, inner, *places.kernel]))
    whole = apply1("Concat", *parts, axis=0)
    stacked = apply1("Reshape", whole, constant_ints([*places.kernel, outputs, inner]))
    return apply1("Transpose", stacked, perm=[n, n + 1, *range(n)])


@gradient("ConvTranspose", mixes=True)
def conv_transpose(r: Record, g: Tensor) -> Entries:
    x, w = r.inputs[0], r.inputs[1]
    assert x is not None and w is not None
    places, extra = _transposed_windows(r, x, kernel_of(r, w))
    group = int(r.attribute("group", 1))
    read = _read(r, x, g, places, extra)
    tight = replace(places, begins=(0,) * places.axes, ends=(0,) * places.axes)
    settings = {"group": group, "strides": list(places.strides), "dilations": list(places.dilations)}

    def input_gradient() -> Tensor:
        pads = places.pads
        if pads is not None and min(pads) >= 0 and all(e < s for e, s in zip(extra, places.strides, strict=True)):
            return shaped_like(apply1("Conv", g, w, **settings, **({"pads": pads} if any(pads) else {})), x)
        return shaped_like(apply1("Conv", read(), w, **settings), x)

    return (
        input_gradient,
        lambda: shaped_like(kernel_gradient(read(), x, w, tight, group), w),
        lambda: _bias_gradient(g, places),
    )


def _read(r: Record, x: Tensor, g: Tensor, places: Windows, extra: tuple[int, ...]) -> Callable[[], Tensor]:
    """g with pads written out, to exactly what the windows of x reach: made once, if at all."""

    @functools.cache
    def made() -> Tensor:
        if places.begins is not None and places.ends is not None:
            ends = tuple(e - more for e, more in zip(places.ends, extra, strict=True))
            return padded(g, replace(places, ends=ends))
        steps = apply1(
            "Mul", apply1("Sub", extents_of(x), constant(1, np.dtype(np.int64))), constant_ints(places.strides)
        )
        reach = apply1("Add", steps, constant_ints(places.spans))
        wanted = constant_ints([int(n) for n in r.attribute("output_shape")])
        spare = apply1("Sub", apply1("Add", reach, constant_ints(extra)), wanted)
        total = apply1("Max", spare, constant(0, np.dtype(np.int64)))
        half = apply1("Div", total, constant(2, np.dtype(np.int64)))
        begins = half if places.upper else apply1("Sub", total, half)
        ends_at_run = apply1("Sub", apply1("Sub", reach, wanted), begins)
        none = constant_ints([0, 0])
        return apply1("Pad", g, apply1("Concat", none, begins, none, ends_at_run, axis=0))

    return made


def _transposed_windows(r: Record, x: Tensor, kernel: tuple[int, ...]) -> tuple[Windows, tuple[int, ...]]:
    """The geometry, and how far the output reaches beyond the windows at each end (output_padding)."""
    n = len(kernel)
    strides = tuple(int(s) for s in r.attribute("strides") or [1] * n)
    dilations = tuple(int(d) for d in r.attribute("dilations") or [1] * n)
    extra = tuple(int(o) for o in r.attribute("output_padding") or [0] * n)
    how = str(r.attribute("auto_pad", "NOTSET"))
    upper = how == "SAME_UPPER"
    bare = Windows(kernel, strides, dilations, None, None, upper)
    shape = r.attribute("output_shape")
    extents = spatial(x.dims, n)
    if shape:
        if extents is None:
            return bare, extra
        wanted = [int(s) for s in shape][-n:]
        totals = [
            s * (m - 1) + e + span - out
            for s, m, e, span, out in zip(strides, extents, extra, bare.spans, wanted, strict=True)
        ]
    elif how in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, e + span - s) for e, span, s in zip(extra, bare.spans, strides, strict=True)]
    else:
        pads = [0] * (2 * n) if how == "VALID" else [int(p) for p in r.attribute("pads") or [0] * (2 * n)]
        return Windows(kernel, strides, dilations, tuple(pads[:n]), tuple(pads[n:])), extra
    begins = tuple(max(t, 0) // 2 if upper else max(t, 0) - max(t, 0) // 2 for t in totals)
    return replace(bare, begins=begins, ends=tuple(t - b for t, b in zip(totals, begins, strict=True))), extra
