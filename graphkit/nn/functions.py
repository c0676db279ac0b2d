"""Activations, pools and rearrangements: functions on Tensors, and the few that have settings as modules too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit import op
from graphkit.core import Tensor, as_tensor
from graphkit.nn.layers import per_axis
from graphkit.nn.module import Module

__all__ = [
    "AvgPool", "MaxPool", "avg_pool", "elu", "flatten", "gelu", "global_avg_pool", "leaky_relu", "log_softmax",
    "max_pool", "relu", "sigmoid", "silu", "softmax", "softplus", "tanh",
]  # fmt: skip

Extents = int | Sequence[int]


def relu(x: Any) -> Tensor:
    """max(x, 0); its slope at 0 is 0."""
    return op.Relu(x)


def leaky_relu(x: Any, slope: float = 0.01) -> Tensor:
    """x above 0, ``slope`` x below."""
    return op.LeakyRelu(x, alpha=slope)


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha (e^x - 1) below."""
    return op.Elu(x, alpha=alpha)


def gelu(x: Any, approximate: bool = False) -> Tensor:
    """x times the normal distribution function of x; ``approximate`` takes the tanh form."""
    return op.Gelu(x, approximate="tanh" if approximate else "none")


def sigmoid(x: Any) -> Tensor:
    """1 / (1 + e^-x)."""
    return op.Sigmoid(x)


def silu(x: Any) -> Tensor:
    """x sigmoid(x)."""
    t = as_tensor(x)
    return t * sigmoid(t)


def tanh(x: Any) -> Tensor:
    """The hyperbolic tangent."""
    return op.Tanh(x)


def softplus(x: Any) -> Tensor:
    """log(1 + e^x)."""
    return op.Softplus(x)


def softmax(x: Any, axis: int = -1) -> Tensor:
    """e^x over its sum along ``axis``."""
    return op.Softmax(x, axis=axis)


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """The logarithm of ``softmax``, without its overflow."""
    return op.LogSoftmax(x, axis=axis)


def flatten(x: Any) -> Tensor:
    """All axes but the first as one."""
    return op.Flatten(x, axis=1)


def max_pool(x: Any, kernel: Extents, stride: Extents | None = None, padding: Extents = 0) -> Tensor:
    """The largest value of each window of x [batch, channels, *spatial]; windows touch unless ``stride`` is given."""
    largest: Tensor = op.MaxPool(x, **_window(as_tensor(x), kernel, stride, padding))
    return largest


def avg_pool(x: Any, kernel: Extents, stride: Extents | None = None, padding: Extents = 0) -> Tensor:
    """The mean of each window, padding counted as PyTorch counts it."""
    return op.AveragePool(x, count_include_pad=1, **_window(as_tensor(x), kernel, stride, padding))


def global_avg_pool(x: Any) -> Tensor:
    """The mean of each channel: [batch, channels, *spatial] to [batch, channels]."""
    t = as_tensor(x)
    return t.mean(axis=tuple(range(2, t.ndim)))


def _window(x: Tensor, kernel: Extents, stride: Extents | None, padding: Extents) -> dict[str, Any]:
    count = x.ndim - 2
    extents = per_axis(kernel, count)
    return {
        "kernel_shape": extents,
        "strides": extents if stride is None else per_axis(stride, count),
        "pads": per_axis(padding, count) * 2,
    }


class MaxPool(Module):
    """``max_pool`` with its settings."""

    def __init__(self, kernel: Extents, stride: Extents | None = None, padding: Extents = 0) -> None:
        self.settings = (kernel, stride, padding)

    def forward(self, x: Any) -> Tensor:
        """[batch, channels, *spatial] to [batch, channels, *fewer]."""
        return max_pool(x, *self.settings)


class AvgPool(Module):
    """``avg_pool`` with its settings."""

    def __init__(self, kernel: Extents, stride: Extents | None = None, padding: Extents = 0) -> None:
        self.settings = (kernel, stride, padding)

    def forward(self, x: Any) -> Tensor:
        """[batch, channels, *spatial] to [batch, channels, *fewer]."""
        return avg_pool(x, *self.settings)
