"""DFT and STFT: linear, so that their gradients are transforms back."""

from __future__ import annotations

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries
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
    axis_input = r.input(2)
    known_axis = static_ints(axis_input) if axis_input is not None else [int(r.attributes.get("axis", rank - 2))]
    if known_axis is None:
        raise GradientError(f"the gradient of {r.describe()} needs an axis that is known before it runs")
    axis = known_axis[0] % rank
    if not isinstance(x.dims[-1], int):
        raise GradientError(f"the gradient of {r.describe()} needs to know whether its input is real or complex")
    inverse, onesided = bool(r.attribute("inverse", 0)), bool(r.attribute("onesided", 0))
    extent = apply1("Shape", x, start=axis, end=axis + 1)
    given = r.input(1)
    length = extent if given is None else apply1("Reshape", given.astype(dtypes.INT64), constant_ints([1]))
    if onesided and inverse:
        raise GradientError(f"{r.describe()} is both inverse and onesided, whose gradient is not written")
    full = _fit_axis(g, axis, length) if onesided else g
    scale = apply1("Squeeze", length).astype(g.dtype)
    back = apply1("DFT", full, None, constant(axis, dtypes.INT64), inverse=0 if inverse else 1)
    back = apply1("Div", back, scale) if inverse else apply1("Mul", back, scale)
    if given is not None:
        back = _fit_axis(back, axis, extent)
    if x.dims[-1] == 1:  # a real signal: its imaginary part does not exist
        back = apply1("Slice", back, constant_ints([0]), constant_ints([1]), constant_ints([-1]))
    return (back,)


def _fit_axis(x: Tensor, axis: int, length: Tensor) -> Tensor:
    """One axis cut off, or filled with zeros, to a length."""
    missing = apply1("Sub", length, apply1("Shape", x, start=axis, end=axis + 1))
    return apply1("Pad", x, apply1("Concat", constant_ints([0]), missing, axis=0), None, constant_ints([axis]))


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
    parts = constant_ints([0]), constant_ints([1]), constant_ints([-1])
    if signal.rank == 3 and not isinstance(signal.dims[-1], int):
        raise GradientError(f"the gradient of {r.describe()} needs to know whether its signal is real or complex")
    is_real = signal.rank == 2 or signal.dims[-1] == 1
    if is_real:
        back = apply1("Slice", back, *parts)
    counted = apply1("Range", constant(0, dtypes.INT64), size, constant(1, dtypes.INT64))
    frames = apply1("Squeeze", apply1("Shape", g, start=1, end=2))
    starts = apply1("Mul", apply1("Range", constant(0, dtypes.INT64), frames, constant(1, dtypes.INT64)),
                    apply1("Reshape", step.astype(dtypes.INT64), constant_ints([1])))  # fmt: skip
    places = apply1("Add", apply1("Unsqueeze", starts, constant_ints([1])), counted)  # [frames, length]

    def to_signal() -> Tensor:
        windowed = back if window is None else apply1("Mul", back, apply1("Unsqueeze", window, constant_ints([1])))
        flat_places = apply1("Reshape", places, constant_ints([1, -1, 1]))
        shape = constant_ints([0, -1, 1 if is_real else 2])
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
