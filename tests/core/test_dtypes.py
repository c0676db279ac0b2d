"""Element types: their names, how they meet, and what they are to ONNX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from graphkit import dtypes

KNOWN = [dtypes.as_dtype(n) for n in range(1, 25)]


@pytest.mark.parametrize("number", range(1, 25))
def test_every_onnx_type_goes_to_numpy_and_back(number: int) -> None:
    dtype = dtypes.as_dtype(number)
    assert dtypes.to_onnx(dtype) == number
    assert dtypes.as_dtype(dtypes.name(dtype)) == dtype
    name = onnx.TensorProto.DataType.Name(number).lower()
    assert dtypes.as_dtype(name) == dtype
    if number != onnx.TensorProto.STRING:
        assert onnx.helper.tensor_dtype_to_np_dtype(number) == dtype


@pytest.mark.parametrize(
    ("value", "expected"),
    [("float32", np.float32), ("float", np.float32), ("double", np.float64), (np.int8, np.int8),
        (np.dtype("int64"), np.int64), (bool, np.bool_),
     ("bfloat16", ml_dtypes.bfloat16), (ml_dtypes.bfloat16, ml_dtypes.bfloat16), ("str", np.object_),
     (str, np.object_), (float, np.float64), (11, np.float64)],
)  # fmt: skip
def test_ways_to_write_a_dtype(value: object, expected: Any) -> None:
    assert dtypes.as_dtype(value) == np.dtype(expected)


@pytest.mark.parametrize("value", ["flot32", 99, 0, "int65", object()])
def test_what_is_no_dtype_says_what_to_write(value: object) -> None:
    with pytest.raises(TypeError, match=r"is not a|not an ONNX element type"):
        dtypes.as_dtype(value)


def test_numpy_types_that_onnx_lacks() -> None:
    for dtype in (np.dtype("datetime64[s]"), np.dtype(np.longdouble), np.dtype([("a", "i4")])):
        with pytest.raises(TypeError, match="ONNX has no element type"):
            dtypes.to_onnx(dtype)
    assert dtypes.to_onnx(np.dtype(">f4")) == onnx.TensorProto.FLOAT


FLOATS = ("float16", "bfloat16", "float32", "float64")
NUMBERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", *FLOATS)


@pytest.mark.parametrize("a", NUMBERS)
@pytest.mark.parametrize("b", NUMBERS)
def test_promotion_is_symmetric_and_never_widens_a_float_for_an_integer(a: str, b: str) -> None:
    x, y = dtypes.as_dtype(a), dtypes.as_dtype(b)
    try:
        found = dtypes.promote(x, y)
    except TypeError:
        assert {a, b} <= {"uint64", "int8", "int16", "int32", "int64"}
        with pytest.raises(TypeError, match="no common integer type"):
            dtypes.promote(y, x)
        return
    assert found == dtypes.promote(y, x)
    floats = [d for d in (a, b) if d in FLOATS]
    if len(floats) == 1:
        assert found.name == floats[0]
    elif {a, b} == {"float16", "bfloat16"}:
        assert found.name == "float32"
    elif "bfloat16" not in (a, b):
        assert found == np.promote_types(x, y)


@pytest.mark.parametrize(
    ("scalar", "met", "expected"),
    [(1, "float16", "float16"), (1, "bool", "int64"), (1, "uint8", "uint8"), (1.0, "float16", "float16"),
        (1.0, "int8", "float32"), (1.0, "bool", "float32"),
     (True, "float32", "float32"), (True, "int8", "int8"), (True, "bool", "bool"), (1.0, "bfloat16", "bfloat16"),
     (1.0, "float64", "float64")],
)  # fmt: skip
def test_python_numbers_are_weak(scalar: Any, met: str, expected: str) -> None:
    assert dtypes.weak(scalar, dtypes.as_dtype(met)).name == expected


@pytest.mark.parametrize("name", NUMBERS)
def test_what_can_carry_a_gradient(name: str) -> None:
    assert dtypes.is_float(dtypes.as_dtype(name)) is (name in FLOATS)


def test_strings_do_not_meet_numbers() -> None:
    with pytest.raises(TypeError, match="string and float32 do not combine"):
        dtypes.promote(dtypes.STRING, dtypes.FLOAT32)
