"""Random numbers: from one seeded generator eagerly, as operators inside a trace, and a stream that can be resumed.

``seed`` fixes every later draw of this module: initial weights, eager draws, and the seeds of the random operators that
a trace records. ``advance`` and ``keep_mask`` are a generator made of plain integer operators whose whole state is one
tensor, so that a training graph with Dropout, saved and loaded again, goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from graphkit import dtypes
from graphkit.core import Dim, Tensor, as_tensor
from graphkit.eager import Eager
from graphkit.errors import OperatorError
from graphkit.interpreter import apply1, current
from graphkit.methods import constant_ints
from graphkit.rewinding import note
from graphkit.source import here

__all__ = ["advance", "bernoulli", "generator", "keep_mask", "new_key", "normal", "seed", "uniform"]

_generators: Final[list[np.random.Generator]] = []


def seed(value: int) -> None:
    """Start the generator again from ``value``.

    >>> import graphkit as gk
    >>> gk.random.seed(7)
    >>> a = gk.random.normal([2])
    >>> gk.random.seed(7)
    >>> (a == gk.random.normal([2])).tolist()
    [True, True]
    """
    _generators[:] = [np.random.default_rng(value)]


def generator() -> np.random.Generator:
    """The generator that every draw of this process comes from, unseeded until ``seed`` is called."""
    if not _generators:
        _generators.append(np.random.default_rng())
    return _generators[0]


def uniform(
    shape: Sequence[Any],
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = "float32",
    *,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """Draw from ``low`` <= x < ``high``. Inside a trace a random operator is recorded, which draws at every run.

    >>> import graphkit as gk
    >>> gk.random.uniform([2, 3]).shape
    (2, 3)
    """
    wanted = _floating(dtype)
    if isinstance(current(), Eager):
        drawn = _drawing(rng).uniform(low, high, _sizes(shape))
        return as_tensor(drawn.astype(wanted))
    return _traced("RandomUniform", shape, wanted, {"low": float(low), "high": float(high)}, rng)


def normal(
    shape: Sequence[Any],
    mean: float = 0.0,
    scale: float = 1.0,
    dtype: Any = "float32",
    *,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """Draw from the normal distribution of this mean and standard deviation; see ``uniform``."""
    wanted = _floating(dtype)
    if isinstance(current(), Eager):
        drawn = _drawing(rng).normal(mean, scale, _sizes(shape))
        return as_tensor(drawn.astype(wanted))
    return _traced("RandomNormal", shape, wanted, {"mean": float(mean), "scale": float(scale)}, rng)


def bernoulli(
    shape: Sequence[Any], probability: float, dtype: Any = "bool", *, rng: np.random.Generator | None = None
) -> Tensor:
    """Draw 1 (or True) with ``probability``, else 0; see ``uniform``."""
    return (uniform(shape, rng=rng) < float(probability)).astype(dtype)


def _drawing(rng: np.random.Generator | None) -> np.random.Generator:
    """The generator to draw from, whose state is noted for what is computed again."""
    bits = (chosen := rng or generator()).bit_generator

    def write(state: Any) -> None:
        bits.state = state

    note(bits, lambda: bits.state, write)
    return chosen


def _floating(dtype: Any) -> dtypes.DType:
    wanted = dtypes.as_dtype(dtype)
    if not dtypes.is_float(wanted):
        raise OperatorError(f"random draws are floating, got {dtypes.name(wanted)} ({here()}); cast the result")
    return wanted


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape)


def _traced(
    op: str, shape: Sequence[Any], dtype: dtypes.DType, settings: dict[str, float], rng: np.random.Generator | None
) -> Tensor:
    # A seed from our generator: unseeded sessions of one process would draw the same numbers as each other.
    drawn = {**settings, "dtype": dtypes.to_onnx(dtype), "seed": float(_drawing(rng).integers(2**24))}
    if any(isinstance(extent, Dim | Tensor) for extent in shape):
        sizes = as_tensor([extent if isinstance(extent, Dim | Tensor) else int(extent) for extent in shape], "int64")
        return apply1(f"{op}Like", apply1("ConstantOfShape", sizes), **drawn)
    return apply1(op, shape=list(_sizes(shape)), **drawn)


# A generator made of operators: int32 arithmetic that wraps around, which every provider of ONNX Runtime does alike.

_MULTIPLIER, _INCREMENT, _STRIDE, _HALF = 1664525, 1013904223, -1640531535, 65536


def new_key(rng: np.random.Generator | None = None) -> Tensor:
    """The first state of a stream, int32 [], drawn from the generator."""
    return as_tensor(np.array((rng or generator()).integers(-(2**31), 2**31), dtype=np.int32))


def advance(key: Tensor) -> Tensor:
    """The state after ``key``: a linear congruential generator of period 2**32."""
    return apply1("Add", apply1("Mul", key, _int32(_MULTIPLIER)), _int32(_INCREMENT))


def keep_mask(key: Tensor, like: Tensor, probability: float) -> Tensor:
    """bool, of the shape of ``like``: True with ``probability``, the same for the same key on every machine.

    Element i's number is a hash of i and the key, by two rounds of B. Widynski's counter-based generator "Squares"
    (arXiv:2004.06278) cut to 32 bits, with the halves exchanged by a division and a product since CUDA has no shifts.
    """
    known = like.dims
    if known is not None and all(isinstance(d, int) for d in known):
        count: Tensor = _int32(int(np.prod([int(d) for d in known], dtype=np.int64)))
        shape = constant_ints([int(d) for d in known])
    else:
        count = apply1("Size", like).astype("int32")
        shape = apply1("Shape", like)
    places = apply1("Range", _int32(0), count, _int32(1))
    x = apply1("Add", apply1("Mul", places, _int32(_STRIDE)), key)
    second = apply1("Add", x, key)
    squared = apply1("Add", apply1("Mul", x, x), x)
    turned = apply1("Add", apply1("Mul", squared, _int32(_HALF)), apply1("Div", squared, _int32(_HALF)))
    drawn = apply1("Add", apply1("Mul", turned, turned), second)
    limit = min(round(probability * 2**32) - 2**31, 2**31 - 1)
    mask = apply1("Reshape", apply1("Less", drawn, _int32(limit)), shape)
    if mask.graph is not None:
        mask.graph.declare(mask, known)
    return mask


def _int32(value: int) -> Tensor:
    array = np.array(value, dtype=np.int32)
    array.flags.writeable = False
    return Tensor(array, literal=True)
