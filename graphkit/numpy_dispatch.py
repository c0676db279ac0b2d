"""numpy's own functions and operators applied to Tensors: ``numpy.sum(x, 0)``, ``numpy.sqrt(2) * x``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from graphkit.source import here

# ufunc -> the method of its first operand, and the one of its second when only that is a Tensor. Going through the
# reflected method matters for numpy.float64, which is a Python float too and so as weak as one.
_UFUNCS: Final[dict[str, tuple[str, str]]] = {
    "add": ("__add__", "__radd__"), "subtract": ("__sub__", "__rsub__"), "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"), "true_divide": ("__truediv__", "__rtruediv__"),
    "floor_divide": ("__floordiv__", "__rfloordiv__"), "remainder": ("__mod__", "__rmod__"),
    "power": ("__pow__", "__rpow__"), "float_power": ("__pow__", "__rpow__"), "matmul": ("__matmul__", "__rmatmul__"),
    "equal": ("__eq__", "__eq__"), "not_equal": ("__ne__", "__ne__"), "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"), "greater": ("__gt__", "__lt__"), "greater_equal": ("__ge__", "__le__"),
    "bitwise_and": ("__and__", "__rand__"), "bitwise_or": ("__or__", "__ror__"), "bitwise_xor": ("__xor__", "__rxor__"),
}  # fmt: skip

# Filled by graphkit.array, which stands above.
NUMPY_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}
# Functions whose second or third positional argument numpy calls the axis; ours takes it by name, as the Array API's.
_AXIS_PLACE: Final[dict[str, int]] = {
    "all": 1, "amax": 1, "amin": 1, "any": 1, "argmax": 1, "argmin": 1, "argsort": 1, "concatenate": 1, "concat": 1,
    "count_nonzero": 1, "cumprod": 1, "cumsum": 1, "diff": 2, "expand_dims": 1, "flip": 1, "max": 1, "mean": 1,
    "min": 1, "prod": 1, "repeat": 2, "roll": 2, "sort": 1, "squeeze": 1, "stack": 1, "std": 1, "sum": 1, "take": 2,
    "take_along_axis": 2, "var": 1,
}  # fmt: skip


def _functions() -> dict[str, Callable[..., Any]]:
    if not NUMPY_FUNCTIONS:
        importlib.import_module("graphkit.array")
    return NUMPY_FUNCTIONS


def numpy_function(name: str) -> Callable[..., Any]:
    """Our function of a numpy name."""
    return _functions()[name]


def call_ufunc(is_tensor: Callable[[Any], bool], ufunc: Any, method: str, inputs: Sequence[Any], kwargs: Any) -> Any:
    """What ``__array_ufunc__`` answers."""
    name = ufunc.__name__
    if kwargs.get("out") is not None:
        raise TypeError(
            f"numpy.{name}(out=...), or an operator such as +=, would put a Tensor's values into an array, out of "
            f"gradients' and traces' reach ({here()}); write y = y + x"
        )
    if method != "__call__" or kwargs:
        return NotImplemented
    if name in _UFUNCS:
        direct, reflected = _UFUNCS[name]
        if is_tensor(inputs[0]):
            return getattr(inputs[0], direct)(inputs[1])
        return getattr(inputs[1], reflected)(inputs[0])
    found = _functions().get(name)
    return NotImplemented if found is None else found(*inputs)


def call_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What ``__array_function__`` answers."""
    name = function.__name__
    found = _functions().get(name)
    if found is None:
        return NotImplemented
    named = dict(kwargs)
    place = _AXIS_PLACE.get(name)
    if place is not None and len(args) == place + 1:
        named["axis"] = args[place]
        args = args[:place]
    elif name == "diff" and len(args) == 2:
        named["n"], args = args[1], args[:1]
    if "ddof" in named:
        named["correction"] = named.pop("ddof")
    return found(*args, **named)
