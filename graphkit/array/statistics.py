"""Statistical, searching, sorting and set functions of the Array API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphkit import dtypes
from graphkit.array.creation import full
from graphkit.core import Tensor, as_tensor
from graphkit.interpreter import apply, apply1

Axis = int | Sequence[int] | None


def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Sum."""
    t = as_tensor(x) if dtype is None else as_tensor(x, dtype)
    return t.sum(axis, keepdims)


def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Arithmetic mean."""
    return as_tensor(x).mean(axis, keepdims)


def prod(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Product."""
    t = as_tensor(x) if dtype is None else as_tensor(x, dtype)
    return t.prod(axis, keepdims)


def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Largest value."""
    return as_tensor(x).max(axis, keepdims)


def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Smallest value."""
    return as_tensor(x).min(axis, keepdims)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Variance; ``correction=1`` divides by one less than the count."""
    t = as_tensor(x)
    t = t if dtypes.is_float(t.dtype) else t.astype("float32")
    away = t - t.mean(axis, keepdims=True)
    square = away * away
    if not correction:
        return square.mean(axis, keepdims)
    count = as_tensor(np.ones((), t.dtype))
    axes = range(t.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    for a in axes:
        extent = t.shape[a]
        count = count * (float(extent) if isinstance(extent, int) else extent.as_tensor().astype(t.dtype))
    return square.sum(axis, keepdims) / (count - correction)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Standard deviation. Of equal elements it is a Sqrt at 0, whose slope is NaN: see docs/gradients.md."""
    return apply1("Sqrt", var(x, axis=axis, correction=correction, keepdims=keepdims))


def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether every element is true."""
    return ~any(~as_tensor(x).astype("bool"), axis=axis, keepdims=keepdims)


def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether some element is true."""
    return count_nonzero(x, axis=axis, keepdims=keepdims) > 0


def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are not zero."""
    return as_tensor(x).astype("bool").sum(axis, keepdims)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first largest element."""
    return as_tensor(x).argmax(axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first smallest element."""
    return as_tensor(x).argmin(axis, keepdims)


def nonzero(x: Any, /) -> tuple[Tensor, ...]:
    """Indices of the elements that are not zero, one array an axis."""
    t = as_tensor(x)
    found = apply1("NonZero", t)
    return tuple(found[n] for n in range(t.ndim))


def _cumulative(op: str, x: Any, axis: int | None, dtype: Any, include_initial: bool) -> Tensor:
    t = as_tensor(x) if dtype is None else as_tensor(x, dtype)
    if axis is None:
        t, axis = t.reshape(-1), 0
    kind = t.dtype.kind
    if dtype is None and kind in "biu":
        t = t.astype("int64")  # does not overflow so soon, and has a kernel
    result = apply1(op, t, as_tensor(np.int64(axis)))
    if include_initial:
        shape = [1 if n == axis % t.ndim else extent for n, extent in enumerate(t.shape)]
        result = apply1("Concat", full(shape, 0 if op == "CumSum" else 1, dtype=t.dtype), result, axis=axis)
    return result.astype("uint64") if dtype is None and kind == "u" else result


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """Running sum along an axis."""
    return _cumulative("CumSum", x, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """Running product along an axis."""
    return _cumulative("CumProd", x, axis, dtype, include_initial)


def diff(x: Any, /, *, axis: int = -1, n: int = 1) -> Tensor:
    """Differences of neighbours along an axis."""
    t = as_tensor(x)
    for _ in range(n):
        later, earlier = [slice(None)] * t.ndim, [slice(None)] * t.ndim
        later[axis], earlier[axis] = slice(1, None), slice(None, -1)
        t = t[tuple(later)] - t[tuple(earlier)]
    return t


def _ordered(x: Any, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    t = as_tensor(x)
    count = apply1("Shape", t, start=axis % t.ndim, end=axis % t.ndim + 1)
    values, indices = apply("TopK", (t, count), {"axis": axis, "largest": int(descending), "sorted": 1}, 2)
    return values, indices


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in order along an axis."""
    return _ordered(x, axis, descending)[0]


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Indices that would sort along an axis; of equal elements the first comes first."""
    return _ordered(x, axis, descending)[1]


class UniqueAll(NamedTuple):
    """What ``unique_all`` returns."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What ``unique_counts`` returns."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What ``unique_inverse`` returns."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Any, /) -> UniqueAll:
    """Distinct values in order, where each was first met, which each element is, and how often each occurs."""
    t = as_tensor(x)
    values, first, inverse, counts = apply("Unique", (t,), {"sorted": 1}, 4)
    return UniqueAll(values, first, inverse.reshape(*t.shape), counts)


def unique_counts(x: Any, /) -> UniqueCounts:
    """Distinct values in order, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Distinct values in order, and which of them each element is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Tensor:
    """Distinct values in order."""
    return unique_all(x).values
