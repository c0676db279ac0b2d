"""Arrays in and out of ONNX Runtime's values, for the element types its numpy bridge does not know.

bfloat16, the float8 family and the 4-bit types have kernels but no numpy conversion in ONNX Runtime's Python package,
so their bytes are copied to and from the buffer behind a value.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi import _pybind_state

_runtime: Any = _pybind_state  # what it holds is compiled, and not described to type checkers

# What ONNX Runtime converts from and to numpy by itself.
_BRIDGED = frozenset(
    np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64", "object",
    )
)  # fmt: skip


def is_bridged(dtype: np.dtype[Any] | None) -> bool:
    """Whether ONNX Runtime itself takes and gives numpy arrays of this dtype."""
    return dtype is None or dtype in _BRIDGED


def allocate(
    shape: tuple[int, ...], dtype: np.dtype[Any], device_type: str = "cpu", device_id: int = 0
) -> onnxruntime.OrtValue:
    """Return an uninitialized value on a device."""
    device = onnxruntime.OrtDevice.make(device_type, device_id)._get_c_device()
    number = int(ir.DataType.from_numpy(dtype))
    return onnxruntime.OrtValue(_runtime.OrtValue.ortvalue_from_shape_and_onnx_type(list(shape), number, device))


def to_value(array: Any, dtype: np.dtype[Any], device_type: str = "cpu", device_id: int = 0) -> onnxruntime.OrtValue:
    """Return a value that holds an array: without a copy on the CPU where numpy and the runtime share the dtype."""
    if is_bridged(dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, device_type, device_id)
    value = allocate(array.shape, dtype)
    content = ir.Tensor(array).tobytes()
    ctypes.memmove(value.data_ptr(), content, len(content))
    if device_type == "cpu":
        return value
    placed = allocate(array.shape, dtype, device_type, device_id)
    placed.update_inplace(value)
    return placed


def overwrite(value: onnxruntime.OrtValue, array: np.ndarray[Any, Any]) -> None:
    """Copy an array of the same shape and dtype into the buffer behind a value."""
    if is_bridged(array.dtype):
        value.update_inplace(array)
    else:
        value.update_inplace(to_value(array, array.dtype))


def to_array(value: onnxruntime.OrtValue) -> Any:
    """Return what a value holds, which is a tensor."""
    number = value.element_type()
    dtype = ir.DataType(number).numpy()
    if is_bridged(dtype):
        return value.numpy()
    if value.device_name() != "cpu":
        host = allocate(tuple(value.shape()), dtype)
        host.update_inplace(value)
        value = host
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    proto = onnx.TensorProto(data_type=number, dims=value.shape(), raw_data=content)
    return onnx.numpy_helper.to_array(proto)
