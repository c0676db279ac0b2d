"""graphkit: write a model eagerly, or bring any .onnx file; get its gradients as plain ONNX; train it and ship it."""

from __future__ import annotations

import importlib
from typing import Any, Final

__version__ = "0.1.0"

# Public name -> the module it comes from, imported when first asked for, so that `import graphkit` itself is cheap.
_WHERE: Final[dict[str, str]] = {
    "Tensor": "core",
    "tensor": "core",
    "apply": "interpreter",
    "backward": "autograd",
    "checkpoint": "custom",
    "custom_vjp": "custom",
    "grad": "transforms",
    "hessian": "transforms",
    "hvp": "transforms",
    "jacobian": "transforms",
    "jvp": "transforms",
    "no_grad": "autograd",
    "stop_gradient": "autograd",
    "value_and_grad": "transforms",
    "vjp": "transforms",
    "vmap": "custom",
    "cond": "control",
    "scan": "control",
    "while_loop": "control",
    "jit": "jitting",
    "spec": "tracing",
    "trace": "tracing",
    "export": "exporters",
    "load": "importer",
    "run": "runtime",
    "optimize": "optimizers",
    "Trainer": "training",
}
_MODULES: Final = frozenset(
    {"array", "autograd", "control", "dims", "dtypes", "eager", "errors", "exporters", "gradients", "nn", "op", "optim",
     "optimizers", "random", "runtime", "testing", "tracing", "training", "tree"}
)  # fmt: skip


# Modules that read nothing of Tensors; asking for one must not pull in the rest while the package is being imported.
_PLAIN: Final = frozenset({"dims", "dtypes", "errors", "eager", "gradients", "autograd", "tree"})


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        found = getattr(importlib.import_module(f"graphkit.{_WHERE[name]}"), name)
        _wire()
        globals()[name] = found
        return found
    if name in _MODULES:
        module = importlib.import_module(f"graphkit.{name}")
        if name not in _PLAIN:
            _wire()
        return module
    raise AttributeError(f"module 'graphkit' has no attribute {name!r}")


_wired: list[bool] = []


def _wire() -> None:
    # Tensor.backward() and numpy's functions on tensors are registered by the modules that define them.
    if not _wired:
        _wired.append(True)
        importlib.import_module("graphkit.eager")
        importlib.import_module("graphkit.autograd")
        importlib.import_module("graphkit.transforms")
        importlib.import_module("graphkit.array")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, *_MODULES])
