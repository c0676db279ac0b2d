"""First values of parameters.

Each draws from ``graphkit.random``'s generator unless one is given, in float64, and rounds to the dtype once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit import random
from graphkit.core import Tensor, tensor

__all__ = ["glorot_uniform", "he_normal", "he_uniform", "normal", "parameter", "uniform"]

Array = np.ndarray[Any, Any]


def parameter(values: Any, dtype: Any = "float32") -> Tensor:
    """A tensor that requires a gradient."""
    return tensor(np.asarray(values), dtype, requires_grad=True)


def uniform(
    shape: Sequence[int], bound: float, dtype: Any = "float32", rng: np.random.Generator | None = None
) -> Tensor:
    """Between ``-bound`` and ``bound``."""
    return parameter((rng or random.generator()).uniform(-bound, bound, tuple(shape)), dtype)


def normal(
    shape: Sequence[int], scale: float, dtype: Any = "float32", rng: np.random.Generator | None = None
) -> Tensor:
    """Normally distributed around 0 with standard deviation ``scale``."""
    return parameter((rng or random.generator()).normal(0.0, scale, tuple(shape)), dtype)


def glorot_uniform(shape: Sequence[int], dtype: Any = "float32", rng: np.random.Generator | None = None) -> Tensor:
    """Bound sqrt(6 / (fan in + fan out)) (Glorot and Bengio, 2010): for tanh and sigmoid."""
    fan_in, fan_out = fans(shape)
    return uniform(shape, math.sqrt(6.0 / (fan_in + fan_out)), dtype, rng)


def he_uniform(
    shape: Sequence[int], gain: float = math.sqrt(2.0), dtype: Any = "float32", rng: np.random.Generator | None = None
) -> Tensor:
    """Bound gain * sqrt(3 / fan in) (He et al., 2015); the default gain is that for ReLU."""
    return uniform(shape, gain * math.sqrt(3.0 / fans(shape)[0]), dtype, rng)


def he_normal(
    shape: Sequence[int], gain: float = math.sqrt(2.0), dtype: Any = "float32", rng: np.random.Generator | None = None
) -> Tensor:
    """Standard deviation gain / sqrt(fan in)."""
    return normal(shape, gain / math.sqrt(fans(shape)[0]), dtype, rng)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many inputs an output of a weight [out, in, *kernel] reads, and how many outputs an input reaches."""
    kernel = math.prod(shape[2:])
    return int(shape[1]) * kernel, int(shape[0]) * kernel
