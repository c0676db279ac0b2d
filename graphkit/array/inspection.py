"""Data type functions of the Array API."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from graphkit import dtypes
from graphkit.core import Tensor, as_tensor


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """x cast to another dtype."""
    return as_tensor(x).astype(dtype)


def result_type(*values: Any) -> dtypes.DType:
    """The dtype that operands meet at; Python scalars are weak."""
    strong = [v.dtype if isinstance(v, Tensor | np.ndarray) else v for v in values]
    found: dtypes.DType | None = None
    for value in strong:
        if not isinstance(value, bool | int | float):
            dtype = dtypes.as_dtype(value)
            found = dtype if found is None else dtypes.promote(found, dtype)
    for value in strong:
        if isinstance(value, bool | int | float):
            default = dtypes.BOOL if isinstance(value, bool) else dtypes.INT64
            found = dtypes.weak(value, found if found is not None else default)
    if found is None:
        raise TypeError("result_type() needs at least one argument")
    return found


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether every value of one dtype promotes to the other."""
    source = from_.dtype if isinstance(from_, Tensor) else dtypes.as_dtype(from_)
    target = dtypes.as_dtype(to)
    try:
        return dtypes.promote(source, target) == target
    except TypeError:
        return False


def finfo(dtype: Any, /) -> Any:
    """Machine limits of a floating dtype."""
    limits: Any = ml_dtypes.finfo
    return limits(dtype.dtype if isinstance(dtype, Tensor) else dtypes.as_dtype(dtype))


def iinfo(dtype: Any, /) -> Any:
    """Machine limits of an integer dtype."""
    return np.iinfo(dtype.dtype if isinstance(dtype, Tensor) else dtypes.as_dtype(dtype))


_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "iufc",
}  # fmt: skip


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind ("integral", "real floating", ...), another dtype, or one of several of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    own = dtypes.as_dtype(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return ("f" if dtypes.is_float(own) else own.kind) in _KINDS[kind]
    return own == dtypes.as_dtype(kind)
