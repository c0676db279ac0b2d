"""DequantizeLinear, and the straight-through estimate for rounding and quantization.

Rounding has a derivative of 0 almost everywhere, so by default gradients stop there. Under ``straight_through()`` it
counts as the identity instead: Round, Floor, Ceil and a pair of QuantizeLinear and DequantizeLinear (a "fake
quantization") hand the cotangent on, the pair where its input lies within the range of the quantized type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries, as_mask, number
from graphkit.gradients.shapes import rank_of
from graphkit.gradients.table import STRAIGHT_THROUGH, gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

_STEPS = ("Round", "Floor", "Ceil")
_on: ContextVar[bool] = ContextVar("graphkit_straight_through", default=False)


@contextmanager
def straight_through() -> Iterator[None]:
    """Within the block gradients pass through rounding and fake quantization as if they were not there.

    >>> import graphkit as gk
    >>> f = gk.grad(lambda x: (gk.op.Round(x) * x).sum())
    >>> f(gk.tensor([1.4])).tolist()
    [1.0]
    >>> with gk.gradients.straight_through():
    ...     [round(v, 6) for v in f(gk.tensor([1.4])).tolist()]
    [2.4]
    """
    token = _on.set(True)
    try:
        yield
    finally:
        _on.reset(token)


def _active(op: str) -> bool:
    return _on.get() and op in (*_STEPS, "QuantizeLinear")


STRAIGHT_THROUGH.append(_active)


@gradient(*_STEPS)
def step(r: Record, g: Tensor) -> Tensor:
    """Asked for under ``straight_through`` only; elsewhere the reverse pass stops."""
    return g


@gradient("QuantizeLinear")
def quantize_linear(r: Record, g: Tensor) -> Entries:
    """In units of the quantized type: x / scale + zero point, within its range."""
    x, scale = r.inputs[0], r.inputs[1]
    assert x is not None and scale is not None
    (y,) = r.outputs
    info = np.iinfo(y.dtype) if y.dtype.kind in "iu" else None
    spread = _along(r, scale)
    units = apply1("Div", x, spread)
    to_units = g.astype(x.dtype)
    if info is not None:
        zero = r.input(2)
        shifted = units if zero is None else apply1("Add", units, _along(r, zero.astype(x.dtype)))
        low = apply1("GreaterOrEqual", shifted, number(info.min - 0.5, x))
        high = apply1("LessOrEqual", shifted, number(info.max + 0.5, x))
        to_units = apply1("Mul", to_units, as_mask(apply1("And", low, high), x))
    return (
        lambda: apply1("Div", to_units, spread),
        lambda: _onto(r, apply1("Neg", apply1("Div", apply1("Mul", to_units, units), spread)), scale),
    )


@gradient("DequantizeLinear")
def dequantize_linear(r: Record, g: Tensor) -> Entries:
    """(x - zero point) scale: to the scale, and under ``straight_through`` to x, in units of the quantized type."""
    x, scale = r.inputs[0], r.inputs[1]
    assert x is not None and scale is not None
    zero = r.input(2)

    def to_scale() -> Tensor:
        units = x.astype(g.dtype)
        if zero is not None:
            units = apply1("Sub", units, _along(r, zero.astype(g.dtype)))
        return _onto(r, apply1("Mul", g, units), scale)

    return lambda: apply1("Mul", g, _along(r, scale).astype(g.dtype)), to_scale


def _along(r: Record, t: Tensor) -> Tensor:
    """A scale or zero point ready to broadcast against the input: a scalar, one an axis position, or one a block."""
    x = r.inputs[0]
    rank = rank_of(r, x)
    if t.rank == 0 or (t.rank == 1 and t.dims == (1,)):
        return t
    axis = int(r.attribute("axis", 1)) % rank
    if t.rank == 1 and rank > 1:
        behind = list(range(1, rank - axis))
        return apply1("Unsqueeze", t, constant_ints(behind)) if behind else t
    block = int(r.attribute("block_size", 0) or 0)
    if not block:
        return t
    # every element of a block reads the block's own: [.., blocks, ..] to [.., blocks * size, ..], cut to the extent
    extent = apply1("Shape", x, start=axis, end=axis + 1)
    size = apply1("Squeeze", extent)
    places = apply1("Range", _int(0), size, _int(1))
    return apply1("Gather", t, apply1("Div", places, _int(block)), axis=axis)


def _int(value: int) -> Tensor:
    from graphkit.gradients.shapes import constant

    return constant(value, dtypes.INT64)


def _onto(r: Record, g: Tensor, scale: Tensor) -> Tensor:
    """A cotangent of the input's shape summed to the scale's."""
    x = r.inputs[0]
    rank = rank_of(r, x)
    axis = int(r.attribute("axis", 1)) % max(rank, 1)
    if scale.rank == 0 or (scale.rank == 1 and scale.dims == (1,)):
        total = apply1("ReduceSum", g, keepdims=0)
        return total if scale.rank == 0 else apply1("Unsqueeze", total, constant_ints([0]))
    if scale.rank == 1:
        others = [n for n in range(rank) if n != axis]
        return apply1("ReduceSum", g, constant_ints(others), keepdims=0) if others else g
    block = int(r.attribute("block_size", 0) or 0)
    blocks = apply1("Shape", scale, start=axis, end=axis + 1)
    missing = apply1("Sub", apply1("Mul", blocks, constant_ints([block])), apply1("Shape", x, start=axis, end=axis + 1))
    filled = apply1("Pad", g, apply1("Concat", constant_ints([0]), missing, axis=0), None, constant_ints([axis]))
    front, behind = apply1("Shape", scale, start=0, end=axis + 1), apply1("Shape", x, start=axis + 1)
    parts = [front, constant_ints([block])] + ([behind] if axis < rank - 1 else [])
    folded = apply1("Reshape", filled, apply1("Concat", *parts, axis=0), allowzero=1)
    return apply1("ReduceSum", folded, constant_ints([axis + 1]), keepdims=0)
