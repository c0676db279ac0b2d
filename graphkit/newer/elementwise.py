"""SwiGLU; and Mod, Celu, BitShift and Range of the types that opsets 27 and 28 added to them."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit import dtypes
from graphkit.core import Tensor
from graphkit.interpreter import apply1
from graphkit.newer.table import Call, newer
from graphkit.operands import scalar

HALF = (dtypes.FLOAT16, dtypes.BFLOAT16)


def widened(t: Tensor) -> Tensor:
    """bfloat16 as float32: the CPU has few kernels for it."""
    return t.astype("float32") if t.dtype == dtypes.BFLOAT16 else t


def number(value: float, like: Tensor) -> Tensor:
    return scalar(value, like.dtype)


def swish(x: Tensor, alpha: float) -> Tensor:
    """x sigmoid(alpha x)"""
    inner = x if alpha == 1 else apply1("Mul", x, number(alpha, x))
    return apply1("Mul", x, apply1("Sigmoid", inner))


@newer(28, "SwiGLU")
def swiglu(c: Call) -> Sequence[Tensor]:
    a, b = c.needed(0), c.needed(1)
    if a.dims is not None and b.dims is not None and len(a.dims) != len(b.dims):
        raise c.refused(f"its inputs must have one shape, got ranks {len(a.dims)} and {len(b.dims)}")
    for x, y in zip(a.dims or (), b.dims or (), strict=False):
        if isinstance(x, int) and isinstance(y, int) and x != y:
            raise c.refused(f"its inputs must have one shape (it does not broadcast), got {a.dims} and {b.dims}")
    gate = swish(widened(a), float(c.attribute("alpha", 1.0)))
    return (apply1("Mul", gate, widened(b)).astype(a.dtype),)


@newer(25, "Swish", applied=False)
def swish_without_kernel(c: Call) -> Sequence[Tensor]:
    """ONNX Runtime has no kernel for Swish; it knows the body that opset 24 gives it, and none at opset 25 or 26."""
    x = c.needed(0)
    return (swish(widened(x), float(c.attribute("alpha", 1.0))).astype(x.dtype),)


@newer(28, "Celu")
def celu(c: Call) -> Sequence[Tensor] | None:
    """x where it is above 0, else alpha (exp(x / alpha) - 1); the runtime has it in float32 alone.

    exp(z) - 1 is 2 tanh(z / 2) / (1 - tanh(z / 2)), which loses nothing near 0.
    """
    x, alpha = c.needed(0), float(c.attribute("alpha", 1.0))
    if x.dtype == dtypes.FLOAT32:
        return None
    if x.dtype in HALF:
        return (apply1("Celu", x.astype("float32"), alpha=alpha).astype(x.dtype),)
    half = apply1("Tanh", apply1("Mul", x, number(0.5 / alpha, x)))
    below = apply1("Div", apply1("Mul", half, number(2 * alpha, x)), apply1("Sub", number(1, x), half))
    return (apply1("Where", apply1("GreaterOrEqual", x, number(0, x)), x, below),)


@newer(28, "Mod")
def mod(c: Call) -> Sequence[Tensor] | None:
    """a - b floor(a / b) of floats: C's remainder, moved by b where the signs differ; a zero has b's sign.

    A zero of either sign and +0 are +0, which is then given the sign. (The runtime's Where does not keep signs of zero,
    and it takes out an Add of 0.)
    """
    a, b = c.needed(0), c.needed(1)
    if c.attribute("fmod", 0) or not dtypes.is_float(a.dtype):
        return None
    x, y = widened(a), widened(b)
    zero, sign = number(0, x), apply1("Sign", y)
    rest = apply1("Mod", x, y, fmod=1)
    apart = apply1("Less", apply1("Mul", rest, sign), zero)
    moved = apply1("Where", apart, apply1("Add", rest, y), rest)
    size = apply1("Sum", apply1("Mul", moved, sign), zero)
    return (apply1("Mul", size, sign).astype(a.dtype),)


@newer(28, "BitShift")
def bit_shift(c: Call) -> Sequence[Tensor] | None:
    """In 64 bits; integers below 0 are turned over before and after a shift to the right.

    Shifts by as many bits as there are, or by a negative number, move everything out since opset 28; the runtime's
    kernel, like the processor, would shift by the remainder. Signed integers came with that opset.
    """
    x, y = c.needed(0), c.needed(1)
    signed = x.dtype.kind == "i"
    if not signed and (not c.opset or _within(y, 8 * x.dtype.itemsize)):
        return None
    direction = str(c.attribute("direction"))
    wide, amount = x.astype("int64"), y.astype("int64")
    zero = scalar(0, dtypes.INT64)
    inside = apply1("And", apply1("GreaterOrEqual", amount, zero), apply1("Less", amount, scalar(64, dtypes.INT64)))
    amount = apply1("Where", inside, amount, zero).astype("uint64")
    below = apply1("Less", wide, zero) if signed and direction == "RIGHT" else None
    turned = wide if below is None else apply1("Where", below, apply1("BitwiseNot", wide), wide)
    shifted = apply1("BitShift", turned.astype("uint64"), amount, direction=direction).astype("int64")
    shifted = apply1("Where", inside, shifted, zero)
    if below is not None:
        shifted = apply1("Where", below, apply1("BitwiseNot", shifted), shifted)
    return (shifted.astype(x.dtype),)


def _within(t: Tensor, bits: int) -> bool:
    known = t.graph.array_of(t) if t.graph is not None else t._array
    return known is not None and bool((known < bits).all())


@newer(27, "Range")
def half_range(c: Call) -> Sequence[Tensor] | None:
    """Half precision, in float32 or float64; ``stash_type`` says nothing of other types."""
    start = c.needed(0)
    if start.dtype not in HALF:
        return (apply1("Range", *(c.needed(n) for n in range(3))),) if "stash_type" in c.attributes else None
    stash = dtypes.as_dtype(int(c.attribute("stash_type", 1)))
    if stash not in (dtypes.FLOAT32, dtypes.FLOAT64):
        raise c.refused(f"its stash_type is float32 or float64, not {dtypes.name(stash)}")
    return (apply1("Range", *(c.needed(n).astype(stash) for n in range(3))).astype(start.dtype),)


__all__ = ["HALF", "number", "swish", "widened"]
