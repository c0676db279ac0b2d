"""Array creation functions of the Array API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit import dtypes
from graphkit.core import Dim, Tensor, as_tensor
from graphkit.gradients import shapes
from graphkit.interpreter import apply1

Shape = int | Sequence[Any]


def asarray(value: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """A Tensor of numbers, nested lists or an array; a Tensor is returned as it is."""
    return as_tensor(value, dtype)


def full(shape: Shape, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One value everywhere; a dimension may be a ``Dim`` or scalar Tensor of a traced graph."""
    extents = list(shape) if isinstance(shape, Sequence) else [shape]
    fill = as_tensor(fill_value, dtype)
    if any(isinstance(s, Dim) or (isinstance(s, Tensor) and s.traced) for s in extents):
        if fill.traced:
            return apply1("Expand", fill, as_tensor(extents, "int64"))
        return apply1("ConstantOfShape", as_tensor(extents, "int64"), value=fill.numpy().reshape(1))
    size = [int(s) for s in extents]
    if fill.traced or np.prod(size, dtype=np.int64) > 1024:
        from graphkit.methods import constant_ints

        return apply1("Expand", fill, constant_ints(size))
    return as_tensor(np.full(size, fill.numpy()))


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros, float32 by default."""
    return full(shape, 0.0, dtype=dtype)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones, float32 by default."""
    return full(shape, 1.0, dtype=dtype)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros: memory is never left uninitialized."""
    return zeros(shape, dtype=dtype)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One value in the shape of x."""
    t = as_tensor(x)
    wanted = t.dtype if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(fill_value, Tensor):
        return apply1("Expand", fill_value.astype(wanted), shapes.shape_tensor(t))
    known = t.dims
    if not t.traced and known is not None:
        return as_tensor(np.full([int(d) for d in known], fill_value, dtype=wanted))
    return apply1("ConstantOfShape", shapes.shape_tensor(t), value=np.array([fill_value], dtype=wanted))


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros in the shape of x."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones in the shape of x."""
    return full_like(x, 1, dtype=dtype)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros in the shape of x."""
    return zeros_like(x, dtype=dtype)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """start, start + step, ... below stop; the bounds may be traced."""
    if stop is None:
        start, stop = 0, start
    bounds = (start, stop, step)
    if any(isinstance(b, Tensor | Dim) for b in bounds):
        parts = [as_tensor(b) for b in bounds]
        wanted = dtypes.as_dtype(dtype) if dtype is not None else parts[0].dtype
        if dtype is None:
            for part in parts[1:]:
                wanted = dtypes.promote(wanted, part.dtype)
        return apply1("Range", *(p.astype(wanted) for p in parts))
    if dtype is None:
        dtype = "int64" if all(isinstance(b, int) for b in bounds) else "float32"
    return as_tensor(np.arange(start, stop, step).astype(dtypes.as_dtype(dtype)))


def linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """``num`` evenly spaced numbers."""
    return as_tensor(np.linspace(start, stop, num, endpoint=endpoint).astype(dtypes.as_dtype(dtype or "float32")))


def eye(n_rows: Any, n_cols: Any = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on a diagonal."""
    if isinstance(n_rows, Dim | Tensor) or isinstance(n_cols, Dim | Tensor):
        rows, columns = arange(n_rows).unsqueeze(1), arange(n_rows if n_cols is None else n_cols)
        return (rows + k == columns).astype(dtype or "float32")
    return as_tensor(np.eye(n_rows, n_cols, k=k, dtype=dtypes.as_dtype(dtype or "float32")))


def tril(x: Any, /, *, k: int = 0) -> Tensor:
    """The lower triangle of the last two dimensions, zeros above it."""
    return apply1("Trilu", as_tensor(x), as_tensor(np.int64(k)), upper=0)


def triu(x: Any, /, *, k: int = 0) -> Tensor:
    """The upper triangle of the last two dimensions, zeros below it."""
    return apply1("Trilu", as_tensor(x), as_tensor(np.int64(k)), upper=1)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """Coordinate matrices from coordinate vectors."""
    vectors = [as_tensor(a) for a in arrays]
    n = len(vectors)
    order = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    lengths = [vectors[i].shape[0] for i in order]
    grids = []
    for i, vector in enumerate(vectors):
        place = order.index(i)
        spread = vector.reshape([vector.shape[0] if p == place else 1 for p in range(n)])
        grids.append(apply1("Expand", spread, as_tensor(lengths, "int64")))
    return grids
