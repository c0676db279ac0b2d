"""What an expression does with its operands: dtypes met, axes read, and the few operators ONNX spells otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit import dtypes
from graphkit.dims import Extent
from graphkit.errors import OperatorError
from graphkit.interpreter import apply1, current
from graphkit.source import here

if TYPE_CHECKING:
    from graphkit.core import Tensor

Scalar = bool | int | float
Axis = int | Sequence[int] | None

_scalars: dict[tuple[type, Scalar, int], Tensor] = {}
_ints: dict[tuple[int, ...], Tensor] = {}


def scalar(value: Scalar, dtype: dtypes.DType) -> Tensor:
    """A rank-0 Tensor of a Python scalar; equal ones are shared."""
    from graphkit.core import Tensor

    key = (type(value), value, dtype.num)
    shared = bool(value) or math.copysign(1.0, value) > 0  # -0.0 == 0.0, so that one is not looked up
    found = _scalars.get(key) if shared else None
    if found is None:
        with np.errstate(over="ignore"):
            array = np.asarray(value).astype(dtype)
        array.flags.writeable = False
        found = Tensor(array, literal=True)
        if shared and len(_scalars) < 4096:
            _scalars[key] = found
    return found


def together(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands, at least one a Tensor, as Tensors of one dtype."""
    from graphkit.core import Tensor, as_tensor

    if not isinstance(a, Tensor):
        right, left = together(b, a)
        return left, right
    if isinstance(b, Tensor):
        pass
    elif isinstance(b, bool | int | float):
        dtype = dtypes.weak(b, a.dtype)
        return a.astype(dtype), scalar(b, dtype)
    else:
        b = as_tensor(b)
    if a.dtype != b.dtype:
        try:
            dtype = dtypes.promote(a.dtype, b.dtype)
        except TypeError as error:
            raise OperatorError(f"{error} ({here()})") from None
        return a.astype(dtype), b.astype(dtype)
    return a, b


def stack_scalars(items: Sequence[Any]) -> Tensor:
    """A one-dimensional Tensor from numbers, Dims and scalar Tensors."""
    from graphkit.core import Dim, as_tensor

    tensors = [i.as_vector() if isinstance(i, Dim) else as_tensor(i) for i in items]
    strong = [t.dtype for i, t in zip(items, tensors, strict=True) if not isinstance(i, bool | int | float)]
    dtype = strong[0]
    for other in strong[1:]:
        dtype = dtypes.promote(dtype, other)
    for item in items:
        if isinstance(item, bool | int | float):
            dtype = dtypes.weak(item, dtype)
    pieces = []
    for item, t in zip(items, tensors, strict=True):
        cast = t.astype(dtype)
        pieces.append(cast if isinstance(item, Dim) else cast.unsqueeze(0))
    return apply1("Concat", *pieces, axis=0)


def constant_ints(values: Sequence[int]) -> Tensor:
    """int64 [n], as the axes, starts and shape inputs of operators want it; equal short ones are shared."""
    from graphkit.core import Tensor

    key = tuple(values)
    found = _ints.get(key)
    if found is None:
        array = np.array(values, dtype=np.int64)
        array.flags.writeable = False
        found = Tensor(array, literal=True)
        if len(key) <= 8 and len(_ints) < 4096:
            _ints[key] = found
    return found


def extent(t: Tensor, axis: int) -> Extent | None:
    """A dimension, None where even the rank is unknown."""
    return None if t.dims is None else t.dims[axis]


def length(t: Tensor, axis: int) -> Tensor:
    """A dimension as an int64 scalar; an axis that counts from the end needs a known rank."""
    found = extent(t, axis)
    if isinstance(found, int):
        return scalar(found, dtypes.INT64)
    axis = axis % (t.rank or 1)
    return apply1("Squeeze", apply1("Shape", t, start=axis, end=axis + 1))


def extents(t: Tensor, start: int, end: int) -> Tensor:
    """Dimensions from ``start`` to before ``end`` as an int64 vector; both count from the front."""
    known = None if t.dims is None else t.dims[start:end]
    whole = [e for e in known or () if isinstance(e, int)]
    if known is not None and len(whole) == len(known):
        return constant_ints(whole)
    return apply1("Shape", t, start=start, end=end)


def joined_shape(*parts: Tensor | Sequence[int]) -> Tensor:
    """A shape put together of vectors and numbers."""
    from graphkit.core import Tensor

    given = [p if isinstance(p, Tensor) else constant_ints(p) for p in parts]
    if all(not p.traced for p in given):
        return constant_ints([int(n) for p in given for n in p._array])
    return apply1("Concat", *given, axis=0)


def binary(op: str, a: Any, b: Any) -> Tensor:
    """An elementwise operator on two operands after promotion."""
    left, right = together(a, b)
    return current().apply(op, (left, right), None, 1, "")[0]


def axis_list(axis: int | Sequence[int]) -> list[int]:
    return [axis] if isinstance(axis, int) else [int(a) for a in axis]


def reduced(op: str, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    if axis is None:
        return apply1(op, x, keepdims=int(keepdims))
    axes = axis_list(axis)
    return apply1(op, x, constant_ints(axes), keepdims=int(keepdims)) if axes else x


def accumulate(op: str, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    """A sum or product: of small integers in 64 bits, where it does not overflow (and where kernels are)."""
    if x.dtype.kind not in "biu":
        return reduced(op, x, axis, keepdims)
    total = reduced(op, x.astype("int64"), axis, keepdims)
    return total.astype("uint64") if x.dtype.kind == "u" else total  # the same bits, modulo 2^64


def argument(op: str, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    if axis is None:
        flat = apply1(op, x.reshape(-1), axis=0, keepdims=0)
        return flat.reshape(*[1] * x.ndim) if keepdims else flat
    return apply1(op, x, axis=axis, keepdims=int(keepdims))


def logic(op: str, bitwise: str, a: Any, b: Any) -> Tensor:
    left, right = together(a, b)
    return apply1(op if left.dtype == dtypes.BOOL else bitwise, left, right)


def divide(a: Any, b: Any) -> Tensor:
    left, right = together(a, b)
    if not dtypes.is_float(left.dtype) and left.dtype.kind != "c":
        left, right = left.astype("float32"), right.astype("float32")
    return apply1("Div", left, right)


def floor_divide(a: Any, b: Any) -> Tensor:
    left, right = together(a, b)
    if dtypes.is_float(left.dtype):
        return apply1("Floor", apply1("Div", left, right))
    # ONNX divides integers towards zero; taking the (floored) remainder off first makes the division exact.
    return apply1("Div", apply1("Sub", left, apply1("Mod", left, right)), right)


def modulo(a: Any, b: Any) -> Tensor:
    left, right = together(a, b)
    if not dtypes.is_float(left.dtype):
        return apply1("Mod", left, right)
    # fmod is exact, where x - floor(x / y) y is not even within [0, y) for a large x; it has the sign of x, though
    rest = apply1("Mod", left, right, fmod=1)
    zero = scalar(0, rest.dtype)
    other_sign = apply1("Less", apply1("Mul", apply1("Sign", rest), apply1("Sign", right)), zero)
    return apply1("Where", other_sign, apply1("Add", rest, right), rest)
