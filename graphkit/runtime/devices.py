"""Devices: which one was asked for, whether it is there, and what is missing when it is not.

ONNX Runtime answers a session on CUDA without CUDA with a line on stderr and a session on the CPU. Here a device that
was asked for by name is used or is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from graphkit.errors import DeviceError

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class Device:
    """A device: ``type`` is "cpu" or "cuda", ``index`` which one of them."""

    type: str
    index: int = 0

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    @property
    def providers(self) -> list[Any]:
        """What to ask ONNX Runtime for; the CPU stays behind CUDA for the few operators on shapes that run there."""
        return [_CPU] if self.type == "cpu" else [(_CUDA, {"device_id": str(self.index)}), _CPU]


def find_device(name: object) -> Device:
    """Return the device that ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"auto"`` names; "auto" is CUDA where it starts.

    Raises ``DeviceError`` for other names, not for a device that turns out to be absent: only a session knows that.
    """
    if name == "auto":
        return Device("cuda") if cuda_problem() is None else Device("cpu")
    found = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name) if isinstance(name, str) else None
    if found is None or (found[1] == "cpu" and found[2] not in (None, "0")):
        raise DeviceError(f"{name!r} is not a device; write 'cpu', 'cuda', 'cuda:1' or 'auto'")
    return Device(found[1], int(found[2] or 0))


def create_session(
    model: str | bytes, options: onnxruntime.SessionOptions, device: Device, disabled_optimizers: list[str]
) -> onnxruntime.InferenceSession:
    """Create a session on ``device`` and nowhere else; ``DeviceError`` says what is missing."""
    if device.type == "cuda":
        if _CUDA not in onnxruntime.get_available_providers():
            raise DeviceError(f"{device} is not available: {_missing_build()}")
        preload()
    with _quiet():
        try:
            session = onnxruntime.InferenceSession(
                model,
                options,
                providers=device.providers,
                disabled_optimizers=disabled_optimizers or None,
                enable_fallback=0,
            )
        except Exception as error:
            if device.type == "cuda" and re.search(r"CUDA|cuDNN|cudnn|ordinal", str(error)):
                raise DeviceError(f"{device} is not available: {str(error).strip().splitlines()[0]}") from error
            raise
    if device.type == "cuda" and _CUDA not in session.get_providers():
        remedy = "Use device='cpu', or 'auto' to fall back to it"
        raise DeviceError(f"{device} is not available: {_missing_library()}. {remedy}")
    return session


@functools.cache
def cuda_problem(index: int = 0) -> str | None:
    """Return why CUDA does not start here, or None when it does."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        create_session(_smallest_model(), options, Device("cuda", index), [])
    except DeviceError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # ONNX Runtime's exceptions share no base; whichever, it does not start
        return str(error)
    return None


def check_cpu() -> None:
    """Raise whatever keeps the smallest model from running on the CPU."""
    session = create_session(_smallest_model(), onnxruntime.SessionOptions(), Device("cpu"), [])
    (result,) = session.run(None, {"x": np.array(-1, np.float32)})
    if result != 1:
        raise DeviceError(f"the absolute value of -1 came out as {result}")


def _smallest_model() -> bytes:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in "xy")
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


def available_devices() -> list[str]:
    """Return the devices a session can be created on: ``["cpu"]``, or with ``"cuda:0"`` and so on behind it."""
    found = ["cpu"]
    for index in range(64):
        if cuda_problem(index) is not None:
            break
        found.append(f"cuda:{index}")
    return found


@functools.cache
def preload() -> None:
    """Load the CUDA libraries that came as Python packages, which the loader does not find by itself."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        onnxruntime.preload_dlls()


def _missing_build() -> str:
    built = ", ".join(p.removesuffix("ExecutionProvider") for p in onnxruntime.get_available_providers())
    return (
        f"this build of ONNX Runtime has no CUDA provider (it has {built}). Install onnxruntime-gpu in place of "
        "onnxruntime, or use device='cpu'"
    )


def _missing_library() -> str:
    """Say which shared library keeps ONNX Runtime's CUDA provider from loading."""
    folder = Path(str(onnxruntime.__file__)).parent / "capi"
    for name in ("libonnxruntime_providers_cuda.so", "onnxruntime_providers_cuda.dll"):
        if (folder / name).is_file():
            try:
                ctypes.CDLL(str(folder / name))
            except OSError as error:
                return f"ONNX Runtime's CUDA provider does not load, {error}"
    return "ONNX Runtime's CUDA provider loads but finds no usable GPU; see `nvidia-smi` for the driver"


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep ONNX Runtime's own log lines off stderr: what they say is in the errors raised here."""
    onnxruntime.set_default_logger_severity(4)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)
