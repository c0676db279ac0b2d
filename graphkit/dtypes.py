"""Element types: numpy dtypes are the currency, ONNX's enumeration is what files hold.

float32 and int64 are the defaults. Python scalars are weak: they take the dtype of the tensor they meet, except that
a Python float meeting an integer tensor gives float32 (never float64, and never a truncated integer).
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

DType = np.dtype[Any]

FLOAT32: Final[DType] = np.dtype(np.float32)
FLOAT64: Final[DType] = np.dtype(np.float64)
FLOAT16: Final[DType] = np.dtype(np.float16)
BFLOAT16: Final[DType] = np.dtype(ml_dtypes.bfloat16)
INT64: Final[DType] = np.dtype(np.int64)
INT32: Final[DType] = np.dtype(np.int32)
BOOL: Final[DType] = np.dtype(np.bool_)
STRING: Final[DType] = np.dtype(np.object_)

# onnx.TensorProto.DataType, written out so that this module needs no import of onnx.
_ONNX_TO_NUMPY: Final[dict[int, DType]] = {
    1: FLOAT32,
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    4: np.dtype(np.uint16),
    5: np.dtype(np.int16),
    6: INT32,
    7: INT64,
    8: STRING,
    9: BOOL,
    10: FLOAT16,
    11: FLOAT64,
    12: np.dtype(np.uint32),
    13: np.dtype(np.uint64),
    14: np.dtype(np.complex64),
    15: np.dtype(np.complex128),
    16: BFLOAT16,
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
    27: np.dtype(ml_dtypes.float6_e2m3fn),
    28: np.dtype(ml_dtypes.float6_e3m2fn),
}
_NUMPY_TO_ONNX: Final[dict[DType, int]] = {v: k for k, v in _ONNX_TO_NUMPY.items()}
_ONNX_NAMES: Final[dict[str, int]] = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8, "bool": 9,
    "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15, "bfloat16": 16,
    "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20, "uint4": 21, "int4": 22,
    "float4e2m1": 23, "float8e8m0": 24, "uint2": 25, "int2": 26, "float6e2m3": 27, "float6e3m2": 28,
}  # fmt: skip
_REAL_FLOATS: Final[frozenset[DType]] = frozenset({FLOAT32, FLOAT64, FLOAT16, BFLOAT16})
_RANK: Final[dict[str, int]] = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def as_dtype(value: object) -> DType:
    """Return the numpy dtype for a name, a numpy dtype or scalar type, or an ONNX element type number.

    >>> as_dtype("float32") is as_dtype(1)
    True
    """
    if isinstance(value, np.dtype):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value in _ONNX_TO_NUMPY:
            return _ONNX_TO_NUMPY[value]
        raise TypeError(f"{value} is not an ONNX element type that graphkit knows")
    if isinstance(value, str):
        if value in ("string", "str"):
            return STRING
        if value in _ONNX_NAMES:
            return _ONNX_TO_NUMPY[_ONNX_NAMES[value]]
        for dtype in _NUMPY_TO_ONNX:
            if dtype.name == value:
                return dtype
    try:
        dtype = np.dtype(value)  # type: ignore[call-overload]  # any object numpy accepts as a dtype
    except TypeError:
        raise TypeError(f"{value!r} is not a dtype; write one such as 'float32' or 'int64'") from None
    return STRING if dtype.kind in "US" else dtype


def to_onnx(dtype: DType) -> int:
    """Return ONNX's element type number; TypeError for a numpy dtype that ONNX has no counterpart for."""
    try:
        return _NUMPY_TO_ONNX[dtype]
    except KeyError:
        if dtype.kind in "UST":
            return 8
        if dtype.byteorder not in "=|" and dtype.newbyteorder("=") in _NUMPY_TO_ONNX:
            return _NUMPY_TO_ONNX[dtype.newbyteorder("=")]
        raise TypeError(f"ONNX has no element type for numpy's {dtype}") from None


def name(dtype: DType) -> str:
    """The name users write: ``float32``, ``bfloat16``, ``string``."""
    return "string" if dtype == STRING else dtype.name


def is_float(dtype: DType) -> bool:
    """Whether a gradient can flow through values of this dtype."""
    return dtype in _REAL_FLOATS


def promote(a: DType, b: DType) -> DType:
    """The dtype two tensors meet at: the wider of one kind; floating wins over integer without widening.

    >>> promote(np.dtype("int64"), np.dtype("float32")).name
    'float32'
    """
    if a == b:
        return a
    kind_a, kind_b = ("f" if is_float(d) else d.kind for d in (a, b))
    if kind_a not in _RANK or kind_b not in _RANK:
        raise TypeError(f"{name(a)} and {name(b)} do not combine; cast one of them")
    if _RANK[kind_a] != _RANK[kind_b]:
        return a if _RANK[kind_a] > _RANK[kind_b] else b
    if {a, b} == {FLOAT16, BFLOAT16}:
        return FLOAT32
    result = np.promote_types(a, b)
    if result.kind == "f" and kind_a in "ui":  # uint64 with a signed integer: no common integer type
        raise TypeError(f"{name(a)} and {name(b)} have no common integer type; cast one of them")
    return result


def weak(scalar: bool | int | float | complex, met: DType) -> DType:
    """The dtype of a Python scalar when it meets a tensor of dtype ``met``."""
    if isinstance(scalar, bool):
        return met
    if isinstance(scalar, int):
        return INT64 if met == BOOL else met
    if isinstance(scalar, float):
        return met if is_float(met) or met.kind == "c" else FLOAT32
    return met if met.kind == "c" else np.dtype(np.complex64)
