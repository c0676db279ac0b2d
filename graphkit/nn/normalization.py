"""Normalization layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit import autograd, op
from graphkit.core import Tensor, as_tensor, tensor
from graphkit.errors import OperatorError
from graphkit.interpreter import apply
from graphkit.nn.initializers import parameter
from graphkit.nn.module import Module
from graphkit.source import here

__all__ = ["BatchNorm", "LayerNorm"]


class BatchNorm(Module):
    """Normalize each channel of x [batch, channels, ...], by the batch's statistics while training.

    The running statistics follow them, r <- (1 - momentum) r + momentum s, with the unbiased variance as PyTorch has
    it, and are what ``eval()`` normalizes by. They are buffers: no optimizer touches them.

    >>> import graphkit as gk
    >>> norm = gk.nn.BatchNorm(2)
    >>> norm(gk.tensor([[1.0, 2.0], [3.0, 6.0]])).tolist(), norm.running_mean.tolist()
    ([[-0.999..., -0.999...], [0.999..., 0.999...]], [0.2..., 0.4...])
    """

    def __init__(self, channels: int, momentum: float = 0.1, epsilon: float = 1e-5, dtype: Any = "float32") -> None:
        self.momentum, self.epsilon = momentum, epsilon
        self.weight = parameter(np.ones(channels), dtype)
        self.bias = parameter(np.zeros(channels), dtype)
        self.running_mean = tensor(np.zeros(channels), dtype)
        self.running_var = tensor(np.ones(channels), dtype)

    def forward(self, x: Any) -> Tensor:
        """The same shape."""
        x = as_tensor(x)
        extents = x.shape
        (channels,) = self.weight.shape
        if len(extents) < 2 or (isinstance(extents[1], int) and extents[1] != channels):
            raise OperatorError(
                f"BatchNorm({channels}) at {here()} takes [batch, {channels}, ...], got {list(extents)}"
            )
        # Detached: what is assigned below would otherwise be an input that changed before the reverse pass.
        mean, variance = autograd.stop_gradient(self.running_mean), autograd.stop_gradient(self.running_var)
        inputs = (x, self.weight, self.bias, mean, variance)
        if not self.training:
            return op.BatchNormalization(*inputs, epsilon=self.epsilon)
        settings = {"epsilon": self.epsilon, "momentum": 1.0 - self.momentum, "training_mode": 1}
        y, mean, variance = apply("BatchNormalization", inputs, settings, 3)
        with autograd.no_grad():
            self.running_mean.assign(autograd.stop_gradient(mean))
            self.running_var.assign(self._unbiased(x, autograd.stop_gradient(variance)))
        return y

    def _unbiased(self, x: Tensor, updated: Tensor) -> Tensor:
        """The operator averages in the population variance v; what is meant is v n / (n - 1)."""
        kept = self.running_var * (1.0 - self.momentum)
        if x.dims is not None and all(isinstance(d, int) for d in x.dims):
            count = int(np.prod([int(d) for d in x.dims])) // int(self.weight.shape[0])
            factor: Any = count / max(count - 1, 1)
        else:
            (channels,) = self.weight.shape
            n = op.Size(x).astype(self.running_var.dtype) * (1.0 / channels)
            factor = n / op.Max(n - 1.0, as_tensor(1.0, n.dtype))
        result: Tensor = kept + (updated - kept) * factor
        return result


class LayerNorm(Module):
    """Normalize over the last axes, whose extents are ``shape``, then scale and shift.

    >>> import graphkit as gk
    >>> gk.nn.LayerNorm(2)(gk.tensor([[1.0, 3.0]])).tolist()
    [[-0.999..., 0.999...]]
    """

    def __init__(
        self, shape: int | Sequence[int], epsilon: float = 1e-5, bias: bool = True, dtype: Any = "float32"
    ) -> None:
        extents = [shape] if isinstance(shape, int) else list(shape)
        self.axis, self.epsilon = -len(extents), epsilon
        self.weight = parameter(np.ones(extents), dtype)
        self.bias = parameter(np.zeros(extents), dtype) if bias else None

    def forward(self, x: Any) -> Tensor:
        """The same shape."""
        operands = [as_tensor(x), self.weight, *([] if self.bias is None else [self.bias])]
        return op.LayerNormalization(*operands, axis=self.axis, epsilon=self.epsilon)
