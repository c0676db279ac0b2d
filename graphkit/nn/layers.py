"""Layers with parameters: affine maps, convolutions, tables; and Dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit import dtypes, op, random
from graphkit.core import Tensor, as_tensor
from graphkit.errors import OperatorError
from graphkit.interpreter import apply1
from graphkit.methods import scalar
from graphkit.nn import initializers
from graphkit.nn.module import Module
from graphkit.source import here

__all__ = ["Conv", "Dropout", "Embedding", "Linear"]

Generator = np.random.Generator | None


class Linear(Module):
    """y = x W^T + b over the last axis; the weight is [outputs, inputs], as PyTorch has it.

    Args:
        inputs, outputs: extents of the last axis.
        bias: whether b is added.
        dtype: of the parameters.
        rng: where the first values come from: uniform within 1 / sqrt(inputs), as PyTorch's.

    >>> import graphkit as gk
    >>> gk.nn.Linear(3, 2)(gk.tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, dtype: Any = "float32", rng: Generator = None
    ) -> None:
        bound = 1 / math.sqrt(inputs) if inputs else 0.0
        self.weight = initializers.uniform([outputs, inputs], bound, dtype, rng)
        self.bias = initializers.uniform([outputs], bound, dtype, rng) if bias else None

    def forward(self, x: Any) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        x = as_tensor(x)
        outputs, inputs = self.weight.shape
        extents = x.shape
        if not extents or (isinstance(extents[-1], int) and extents[-1] != inputs):
            raise OperatorError(f"Linear({inputs}, {outputs}) at {here()} takes [..., {inputs}], got {list(extents)}")
        if len(extents) == 2:
            return _affine(x, self.weight, self.bias)
        # One Gemm over all rows: its bias is free, and the transposed weight need not be made.
        leading = [extent if isinstance(extent, int) else -1 for extent in extents[:-1]]
        target = [*leading, outputs] if leading.count(-1) <= 1 else [*extents[:-1], outputs]
        y = _affine(x.reshape(-1, inputs), self.weight, self.bias).reshape(*target)
        if y.graph is not None and x.dims is not None:
            y.graph.declare(y, (*x.dims[:-1], outputs))
        return y


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return op.Gemm(x, weight, transB=1) if bias is None else op.Gemm(x, weight, bias, transB=1)


class Conv(Module):
    """Cross-correlation with a weight [outputs, inputs / groups, *kernel], over x [batch, inputs, *spatial].

    Args:
        inputs, outputs: channels.
        kernel: extents, or one for both dimensions of an image.
        stride, padding, dilation: for each spatial axis, or one for all; padding on both sides alike.
        groups: how many groups of channels are kept apart.
        bias, dtype, rng: as for ``Linear``.

    >>> import graphkit as gk
    >>> gk.nn.Conv(1, 6, 5, padding=2)(gk.random.normal([2, 1, 28, 28])).shape
    (2, 6, 28, 28)
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int | Sequence[int], stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, bias: bool = True,
        dtype: Any = "float32", rng: Generator = None,
    ) -> None:  # fmt: skip
        self.kernel = [kernel, kernel] if isinstance(kernel, int) else list(kernel)
        count = len(self.kernel)
        self.stride, self.padding, self.dilation = (per_axis(v, count) for v in (stride, padding, dilation))
        self.groups = groups
        if inputs % groups or outputs % groups:
            raise OperatorError(f"Conv at {here()}: {inputs} and {outputs} channels do not divide into {groups} groups")
        shape = [outputs, inputs // groups, *self.kernel]
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.weight = initializers.uniform(shape, bound, dtype, rng)
        self.bias = initializers.uniform([outputs], bound, dtype, rng) if bias else None

    def forward(self, x: Any) -> Tensor:
        """[batch, inputs, *spatial] to [batch, outputs, *smaller]."""
        operands = [as_tensor(x), self.weight, *([] if self.bias is None else [self.bias])]
        return op.Conv(
            *operands, kernel_shape=self.kernel, strides=self.stride, pads=self.padding * 2, dilations=self.dilation,
            group=self.groups,
        )  # fmt: skip


def per_axis(value: int | Sequence[int], count: int) -> list[int]:
    """One setting for each spatial axis."""
    settings = [value] * count if isinstance(value, int) else list(value)
    if len(settings) != count:
        raise OperatorError(f"{settings} at {here()}: {count} spatial axes need {count} numbers, or one for all")
    return settings


class Embedding(Module):
    """Rows of a table [count, width] by integer index; the first values are normal, as PyTorch's.

    >>> import graphkit as gk
    >>> gk.nn.Embedding(10, 4)(gk.tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self, count: int, width: int, scale: float = 1.0, dtype: Any = "float32", rng: Generator = None
    ) -> None:
        self.weight = initializers.normal([count, width], scale, dtype, rng)

    def forward(self, indices: Any) -> Tensor:
        """int64 [...] to [..., width]."""
        chosen = as_tensor(indices)
        if dtypes.is_float(chosen.dtype) or chosen.dtype == dtypes.BOOL:
            raise OperatorError(f"Embedding at {here()} takes int32 or int64 indices, got {dtypes.name(chosen.dtype)}")
        return op.Gather(self.weight, chosen, axis=0)


class Dropout(Module):
    """Zero each element with ``probability`` while training, and scale the others up so that the mean stays.

    Its random state is a buffer, ``key``: a training graph carries it from step to step, a checkpoint keeps it, and an
    eager run with the same key drops the same elements.
    """

    def __init__(self, probability: float = 0.5, rng: Generator = None) -> None:
        if not 0 <= probability < 1:
            raise OperatorError(f"Dropout at {here()}: the probability is from 0 to below 1, got {probability}")
        self.probability = probability
        self.key = random.new_key(rng)

    def forward(self, x: Any) -> Tensor:
        """The same shape."""
        t = as_tensor(x)
        if not self.training or not self.probability:
            return t
        keep = 1.0 - self.probability
        mask = random.keep_mask(self.key, t, keep).astype(t.dtype)
        self.key.assign(random.advance(self.key))
        return apply1("Mul", t, apply1("Mul", mask, scalar(1.0 / keep, t.dtype)))
