"""Gradient clipping by the norm of all gradients together."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit import op
from graphkit.core import Tensor, as_tensor

__all__ = ["clip_by_global_norm", "global_norm"]


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients as one vector, float32 (float64 if one of them is).

    >>> import graphkit as gk
    >>> gk.optim.global_norm([gk.tensor([3.0]), gk.tensor([[4.0]])]).item()
    5.0
    """
    total: Tensor | None = None
    for g in gradients:
        wide = g if g.dtype.itemsize >= 4 else g.astype("float32")  # squares overflow in half precision
        part = (wide * wide).sum()
        total = part if total is None else total + part
    assert total is not None, "there are no gradients"
    return op.Sqrt(total)


def clip_by_global_norm(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """The gradients times min(1, limit / (norm + 1e-6)), as PyTorch's ``clip_grad_norm_`` has it.

    >>> import graphkit as gk
    >>> [g.item() for g in gk.optim.clip_by_global_norm([gk.tensor(3.0), gk.tensor(4.0)], 1.0)]
    [0.5999..., 0.7999...]
    """
    norm = global_norm(gradients)
    factor = op.Min(limit / (norm + 1e-6), as_tensor(1.0, norm.dtype))
    return [g * factor.astype(g.dtype) for g in gradients]
