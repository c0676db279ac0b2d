"""DFT and STFT: linear, so that their gradients are transforms back."""

from __future__ import annotations

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries, as_mask, number
from graphkit.gradients.rows import scatter_add
from graphkit.gradients.shapes import constant, rank_of, static_ints, zeros_like
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@gradient("DFT", mixes=True)
def dft(r: Record, g: Tensor) -> Entries:
    """Of y = F x with F the matrix of length n it is F^H g: n times the inverse transform; of the inverse, F g / n."""
    x = r.inputs[0]
    rank = rank_of(r, x)
    assert x is not None and x.dims is not None
    axis = _axis(r, rank)
    inverse, onesided = bool(r.attribute("inverse", 0)), bool(r.attribute("onesided", 0))
    extent = _extent(x, axis)
    given = r.input(1)
    if given is not None:
        length = apply1("Reshape", given.astype(dtypes.INT64), constant_ints([1]))
    elif onesided and inverse:
        length = _extent(r.outputs[0], axis)
    else:
        length = extent
    if onesided and inverse:
        return (_of_real_inverse(g, axis, rank, length, extent),)
    full = _fit_axis(g, axis, length) if onesided else g
    scale = apply1("Squeeze", length).astype(g.dtype)
    back = apply1("DFT", full, None, _scalar(axis), inverse=0 if inverse else 1)
    back = apply1("Div", back, scale) if inverse else apply1("Mul", back, scale)
    if given is not None:
        back = _fit_axis(back, axis, extent)
    return (_parts_of(x, back),)


def _of_real_inverse(g: Tensor, axis: int | Tensor, rank: int, length: Tensor, extent: Tensor) -> Tensor:
    """The transform of real g, over n. What stands for itself and its mirror image counts twice: all inner places."""
    forward = apply1("DFT", g, None, _scalar(axis), onesided=1)
    size = apply1("Squeeze", length)
    bins = apply1("Add", apply1("Div", size, constant(2, dtypes.INT64)), constant(1, dtypes.INT64))
    places = apply1("Range", constant(0, dtypes.INT64), bins, constant(1, dtypes.INT64))
    inner = apply1(
        "And", apply1("Greater", places, constant(0, dtypes.INT64)),
        apply1("Less", apply1("Add", places, places), size),
    )  # fmt: skip
    counts = apply1("Add", as_mask(inner, g), number(1, g))
    shares = apply1("Div", counts, size.astype(g.dtype))
    if isinstance(axis, Tensor):
        here = apply1("Equal", constant_ints(list(range(rank))), axis)
        shape = apply1("Where", here, constant_ints([-1]), constant_ints([1]))
    else:
        shape = constant_ints([-1, *[1] * (rank - 1 - axis)])
    return _fit_axis(apply1("Mul", forward, apply1("Reshape", shares, shape)), axis, extent)


def _axis(r: Record, rank: int) -> int | Tensor:
    """The axis of a DFT, from the front: a number, or int64 [1] where only the run knows it."""
    given = r.input(2)
    if given is None:
        return int(r.attributes.get("axis", rank - 2)) % rank
    known = static_ints(given)
    if known is not None:
        return known[0] % rank
    axis = apply1("Reshape", given.astype(dtypes.INT64), constant_ints([1]))
    return apply1("Mod", axis, constant_ints([rank]))


def _scalar(axis: int | Tensor) -> Tensor:
    return apply1("Squeeze", axis) if isinstance(axis, Tensor) else constant(axis, dtypes.INT64)


def _extent(x: Tensor, axis: int | Tensor) -> Tensor:
    """int64 [1]"""
    if isinstance(axis, Tensor):
        return apply1("Gather", apply1("Shape", x), axis)
    return apply1("Shape", x, start=axis, end=axis + 1)


def _parts_of(x: Tensor, back: Tensor) -> Tensor:
    """As many parts as x has: the imaginary one of a real signal does not exist."""
    assert x.dims is not None
    parts = x.dims[-1]
    if parts == 2:
        return back
    end = constant_ints([parts]) if isinstance(parts, int) else apply1("Shape", x, start=-1)
    return apply1("Slice", back, constant_ints([0]), end, constant_ints([-1]))


def _fit_axis(x: Tensor, axis: int | Tensor, length: Tensor) -> Tensor:
    """One axis cut off, or filled with zeros, to a length."""
    missing = apply1("Sub", length, _extent(x, axis))
    axes = axis if isinstance(axis, Tensor) else constant_ints([axis])
    return apply1("Pad", x, apply1("Concat", constant_ints([0]), missing, axis=0), None, axes)


@gradient("STFT", mixes=True)
def stft(r: Record, g: Tensor) -> Entries:
    """Each frame transformed back and windowed, and the frames added up where they overlap."""
    signal, step = r.inputs[0], r.inputs[1]
    window, frame_length = r.input(2), r.input(3)
    assert signal is not None and step is not None and signal.dims is not None
    rank_of(r, signal)
    onesided = bool(r.attribute("onesided", 1))
    if frame_length is not None:
        length = apply1("Reshape", frame_length.astype(dtypes.INT64), constant_ints([1]))
    elif window is not None:
        length = apply1("Shape", window)
    else:
        raise GradientError(f"{r.describe()} has neither a window nor a frame length")
    size = apply1("Squeeze", length)
    full = _fit_axis(g, 2, length) if onesided else g
    back = apply1("DFT", full, None, constant(2, dtypes.INT64), inverse=1)
    back = apply1("Mul", back, size.astype(g.dtype))  # [batch, frames, length, 2]
    if signal.rank == 2:
        back = apply1("Slice", back, constant_ints([0]), constant_ints([1]), constant_ints([-1]))
        parts = constant_ints([1])
    else:
        back = _parts_of(signal, back)
        known = signal.dims[-1]
        parts = constant_ints([known]) if isinstance(known, int) else apply1("Shape", signal, start=-1)
    counted = apply1("Range", constant(0, dtypes.INT64), size, constant(1, dtypes.INT64))
    frames = apply1("Squeeze", apply1("Shape", g, start=1, end=2))
    starts = apply1("Mul", apply1("Range", constant(0, dtypes.INT64), frames, constant(1, dtypes.INT64)),
                    apply1("Reshape", step.astype(dtypes.INT64), constant_ints([1])))  # fmt: skip
    places = apply1("Add", apply1("Unsqueeze", starts, constant_ints([1])), counted)  # [frames, length]

    def to_signal() -> Tensor:
        windowed = back if window is None else apply1("Mul", back, apply1("Unsqueeze", window, constant_ints([1])))
        flat_places = apply1("Reshape", places, constant_ints([1, -1, 1]))
        shape = apply1("Concat", constant_ints([0, -1]), parts, axis=0)
        updates = apply1("Reshape", windowed, shape)
        target = signal if signal.rank == 3 else apply1("Unsqueeze", signal, constant_ints([2]))
        indices = apply1("Expand", flat_places, apply1("Shape", updates))
        found = scatter_add(zeros_like(target), indices, updates, 1)
        return found if signal.rank == 3 else apply1("Squeeze", found, constant_ints([2]))

    def to_window() -> Tensor:
        pieces = apply1("Gather", signal, places, axis=1)  # [batch, frames, length(, parts)]
        if signal.rank == 2:
            pieces = apply1("Unsqueeze", pieces, constant_ints([3]))
        return apply1("ReduceSum", apply1("Mul", back, pieces), constant_ints([0, 1, 3]), keepdims=0)

    return to_signal, None, to_window
