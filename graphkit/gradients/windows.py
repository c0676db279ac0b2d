"""Where the windows of a convolution or a pool lie: kernel, strides, dilations, and pads however they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.dims import Dims
from graphkit.errors import GradientError
from graphkit.gradients.shapes import constant
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@dataclass(frozen=True)
class Windows:
    """Geometry over the spatial axes (those behind batch and channels).

    Attributes:
        kernel, strides, dilations: one number an axis.
        begins, ends: pads; None where they depend on an extent that is only known when the graph runs.
        upper: of pads that are not known, whether the odd one goes to the end.
        rounds_up: whether a last window may reach beyond the pads (ceil_mode).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...] | None
    ends: tuple[int, ...] | None
    upper: bool = True
    rounds_up: bool = False

    @property
    def axes(self) -> int:
        return len(self.kernel)

    @property
    def spans(self) -> tuple[int, ...]:
        """How far each window reaches, dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def pads(self) -> list[int] | None:
        """Begins then ends, as the attribute has them."""
        return None if self.begins is None or self.ends is None else [*self.begins, *self.ends]

    def outputs(self, extents: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit along each axis (rounding down)."""
        assert self.begins is not None and self.ends is not None
        return tuple(
            (n + b + e - span) // s + 1
            for n, b, e, span, s in zip(extents, self.begins, self.ends, self.spans, self.strides, strict=True)
        )


def with_kernels(t: Tensor) -> Tensor:
    """bfloat16 as float32: it has a Conv and an AveragePool, but no ConvTranspose, Resize or Pad to go back by."""
    return t.astype("float32") if t.dtype == dtypes.BFLOAT16 else t


def kernel_of(r: Record, weight: Tensor | None) -> tuple[int, ...]:
    """The kernel's extents, from the weight's dims or the attribute."""
    if weight is not None and weight.dims is not None:
        found = weight.dims[2:]
        if all(isinstance(k, int) for k in found):
            return tuple(int(k) for k in found)
    given = r.attribute("kernel_shape")
    if not given:
        raise GradientError(f"the gradient of {r.describe()} needs the extents of its kernel before it runs")
    return tuple(int(k) for k in given)


def spatial(known: Dims | None, axes: int) -> tuple[int, ...] | None:
    """The extents of the spatial axes if all are known."""
    if known is None or len(known) != axes + 2:
        return None
    found = known[2:]
    return tuple(int(n) for n in found) if all(isinstance(n, int) for n in found) else None


def windows_of(r: Record, x: Tensor, kernel: tuple[int, ...]) -> Windows:
    """The geometry of a record that reads windows of ``x``; pads only where they can be known."""
    n = len(kernel)
    strides = tuple(int(s) for s in r.attribute("strides") or [1] * n)
    dilations = tuple(int(d) for d in r.attribute("dilations") or [1] * n)
    how = str(r.attribute("auto_pad", "NOTSET"))
    ceil = bool(r.attribute("ceil_mode", 0))
    if how == "VALID":
        return Windows(kernel, strides, dilations, (0,) * n, (0,) * n, rounds_up=ceil)
    if how == "NOTSET":
        pads = [int(p) for p in r.attribute("pads") or [0] * (2 * n)]
        return Windows(kernel, strides, dilations, tuple(pads[:n]), tuple(pads[n:]), rounds_up=ceil)
    upper = how == "SAME_UPPER"
    bare = Windows(kernel, strides, dilations, None, None, upper)
    extents = spatial(x.dims, n)
    totals: list[int] = []
    for axis in range(n):
        s, span = strides[axis], bare.spans[axis]
        if s == 1:
            totals.append(span - 1)
        elif extents is not None:
            totals.append(max(0, (-(-extents[axis] // s) - 1) * s + span - extents[axis]))
        else:
            return bare
    begins = tuple(t // 2 if upper else t - t // 2 for t in totals)
    return Windows(kernel, strides, dilations, begins, tuple(t - b for t, b in zip(totals, begins, strict=True)), upper)


def extents_of(x: Tensor) -> Tensor:
    """The extents of the spatial axes, int64 [n]."""
    known = x.dims
    if known is not None and all(isinstance(d, int) for d in known[2:]):
        return constant_ints([int(d) for d in known[2:]])
    return apply1("Shape", x, start=2)


def run_time_pads(x: Tensor, w: Windows) -> tuple[Tensor, Tensor]:
    """Begins and ends of auto_pad SAME, int64 [n] each, computed from the extents of ``x``."""
    extents = extents_of(x)
    strides, one = constant_ints(w.strides), constant(1, extents.dtype)
    steps = apply1("Div", apply1("Sub", extents, one), strides)  # windows less one: ceil(n / s) - 1
    reach = apply1("Add", apply1("Mul", steps, strides), constant_ints(w.spans))
    total = apply1("Max", apply1("Sub", reach, extents), constant(0, extents.dtype))
    less = apply1("Div", total, constant(2, extents.dtype))
    more = apply1("Sub", total, less)
    return (less, more) if w.upper else (more, less)


def padded(x: Tensor, w: Windows, value: float | None = None) -> Tensor:
    """``x`` with its pads written out (zeros, or ``value``), so that windows may be read by slices."""
    fill = [] if value is None else [constant(value, x.dtype)]
    if w.pads is not None:
        if not any(w.pads):
            return x
        assert w.begins is not None and w.ends is not None
        return apply1("Pad", x, constant_ints([0, 0, *w.begins, 0, 0, *w.ends]), *fill)
    begins, ends = run_time_pads(x, w)
    none = constant_ints([0, 0])
    return apply1("Pad", x, apply1("Concat", none, begins, none, ends, axis=0), *fill)


def crop(full: Tensor, x: Tensor, w: Windows) -> Tensor:
    """What of a padded tensor (or one that reaches further still) lies where ``x`` does."""
    axes = constant_ints(list(range(2, 2 + w.axes)))
    begins = constant_ints(w.begins) if w.begins is not None else run_time_pads(x, w)[0]
    extents = spatial(x.dims, w.axes)
    if w.begins is not None and extents is not None:
        if spatial(full.dims, w.axes) == extents and not any(w.begins):
            return full
        ends = constant_ints([b + n for b, n in zip(w.begins, extents, strict=True)])
    elif w.begins is not None and not any(w.begins):
        ends = extents_of(x)
    else:
        ends = apply1("Add", begins, extents_of(x))
    return apply1("Slice", full, begins, ends, axes)


def window_slice(p: Tensor, w: Windows, offset: Sequence[int], axis: int = 2) -> Tensor:
    """Of a padded tensor, the element at ``offset`` of every window; the spatial axes begin at ``axis``.

    The padded extent must be less than one stride longer than what the windows read. The ends count from the end, so
    no extent need be known.
    """
    starts, ends, axes, steps = [], [], [], []
    for n in range(w.axes):
        start = offset[n] * w.dilations[n]
        left = w.spans[n] - 1 - start
        if start or left or w.strides[n] > 1:
            starts.append(start)
            ends.append(-left if left else 2**31 - 1)
            axes.append(axis + n)
            steps.append(w.strides[n])
    if not axes:
        return p
    settings = [constant_ints(v) for v in (starts, ends, axes)]
    if any(s > 1 for s in steps):
        settings.append(constant_ints(steps))
    return apply1("Slice", p, *settings)


def side_by_side(places: Windows) -> bool:
    """Whether windows neither overlap nor leave gaps nor reach beyond the input, which may have a rest at its ends."""
    bare = places.pads is not None and not any(places.pads) and not places.rounds_up
    return bare and places.kernel == places.strides and max(places.dilations) == 1


def tiles(places: Windows, values: Tensor, x: Tensor) -> bool:
    """Whether windows side by side cover ``x`` to its ends; ``values`` holds one number a window."""
    windows, extents = spatial(values.dims, places.axes), spatial(x.dims, places.axes)
    if windows is None or extents is None or not side_by_side(places):
        return False
    return all(w * k == n for w, k, n in zip(windows, places.kernel, extents, strict=True))


def scattered_windows(values: Tensor, kernel: Tensor, x: Tensor, places: Windows, group: int = 1) -> Tensor:
    """The transpose of reading windows: every window's value, times the kernel, added up where the window lies.

    A ConvTranspose to the spatial extents of ``x``: what no window read gets 0, what windows read beyond it is lost.
    """
    settings: dict[str, Any] = {"group": group, "strides": list(places.strides), "dilations": list(places.dilations)}
    extents, windows = spatial(x.dims, places.axes), spatial(values.dims, places.axes)
    pads = places.pads
    if places.begins is not None and extents is not None and windows is not None:
        reach = [s * (w - 1) + span for s, w, span in zip(places.strides, windows, places.spans, strict=True)]
        spare = [full - b - n for full, b, n in zip(reach, places.begins, extents, strict=True)]
        pads = [*places.begins, *(max(0, e) for e in spare)]
        if min(spare) < 0:
            settings["output_padding"] = [max(0, -e) for e in spare]
    elif pads is None or places.rounds_up or any(s > 1 for s in places.strides):
        if any(s > 1 for s in places.strides):  # as far as the input may reach, then cut to where it lies
            settings["output_padding"] = [s - 1 for s in places.strides]
        return crop(apply1("ConvTranspose", values, kernel, **settings), x, places)
    if any(pads):
        settings["pads"] = pads
    return apply1("ConvTranspose", values, kernel, **settings)
