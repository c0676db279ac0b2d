"""Losses: how far outputs are from labels, the mean over all elements or samples unless said otherwise."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from graphkit import dtypes, op
from graphkit.core import Tensor, as_tensor
from graphkit.errors import InputError
from graphkit.interpreter import apply, apply1
from graphkit.source import here

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber", "l1", "mse", "nll"]

Reduction = Literal["mean", "sum", "none"]


def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    axis: int = -1,
    ignore_index: int | None = None,
    weight: Any = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """-log softmax(logits) at the label.

    Args:
        logits: scores of the classes along ``axis``, any shape.
        labels: int32 or int64, the shape of the logits without ``axis``; each from 0 to below the number of classes.
        axis: where the classes are: the last, as in [batch, classes] and [batch, time, classes]; 1 for
            [batch, classes, height, width].
        ignore_index: a label that counts for nothing.
        weight: [classes], the weight of each class.
        reduction: "mean" (weighted), "sum", or "none" for one value a label.

    Raises:
        InputError: for labels that are no integers, have another shape, or (eagerly) are out of range.

    >>> import graphkit as gk
    >>> gk.nn.cross_entropy(gk.tensor([[0.0, 0.0]]), gk.tensor([1])).item()
    0.6931...
    """
    scores, chosen = as_tensor(logits), as_tensor(labels)
    rank = scores.ndim
    place = axis % rank if rank else 0
    if rank < 2 or chosen.dtype not in (dtypes.INT64, dtypes.INT32):
        raise InputError(
            f"cross_entropy at {here()} takes logits [batch, classes...] and int64 labels, got {scores!r} and "
            f"{chosen!r}. "
            "For labels that are probabilities write -(labels * gk.nn.log_softmax(logits)).sum(-1).mean()"
        )
    _check_labels(scores, chosen, place, ignore_index)
    extents: tuple[Any, ...] | None = None
    if rank > 2 and place == rank - 1:  # the operator wants the classes second: every row for itself
        extents = scores.shape[:-1]
        scores, chosen = scores.reshape(-1, scores.shape[-1]), chosen.reshape(-1)
    elif place != 1:
        scores = scores.transpose(0, place, *(n for n in range(1, rank) if n != place))
    inputs = [scores, chosen] if weight is None else [scores, chosen, as_tensor(weight, scores.dtype)]
    settings: dict[str, Any] = {"reduction": reduction}
    if ignore_index is not None:
        settings["ignore_index"] = ignore_index
    if not scores.traced and not chosen.traced and 0 in scores.shape:
        # What ONNX Runtime makes of the operator infers an extent, which it cannot among no elements.
        loss = apply1("NegativeLogLikelihoodLoss", op.LogSoftmax(scores, axis=1), *inputs[1:], **settings)
    else:
        loss, _ = apply("SoftmaxCrossEntropyLoss", inputs, settings, 2)
    return loss.reshape(*extents) if reduction == "none" and extents is not None else loss


def _check_labels(scores: Tensor, labels: Tensor, axis: int, ignore_index: int | None) -> None:
    have, want = labels.dims, scores.dims
    assert want is not None
    expected = want[:axis] + want[axis + 1 :]
    if have is not None and (
        len(have) != len(expected)
        or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(have, expected, strict=True))
    ):
        raise InputError(
            f"cross_entropy at {here()}: logits {list(want)} with the classes on axis {axis} take labels "
            f"{list(expected)}, got {list(have)}"
        )
    classes = want[axis]
    if not labels.traced and isinstance(classes, int):
        values = labels.numpy()
        out = (values < 0) | (values >= classes)
        if ignore_index is not None:
            out &= values != ignore_index
        if out.any():
            raise InputError(
                f"cross_entropy at {here()}: label {int(values[out][0])} is not one of the {classes} classes, "
                f"0 to {classes - 1}"
            )


def nll(log_probabilities: Any, labels: Any, *, reduction: Reduction = "mean") -> Tensor:
    """-log_probabilities [batch, classes...] at the label."""
    return op.NegativeLogLikelihoodLoss(log_probabilities, labels, reduction=reduction)


def mse(outputs: Any, labels: Any, *, reduction: Reduction = "mean") -> Tensor:
    """(outputs - labels)^2."""
    difference = _alike("mse", outputs, labels)
    return _reduced(difference * difference, reduction)


def l1(outputs: Any, labels: Any, *, reduction: Reduction = "mean") -> Tensor:
    """|outputs - labels|; its slope at 0 is 0."""
    return _reduced(abs(_alike("l1", outputs, labels)), reduction)


def huber(outputs: Any, labels: Any, *, delta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """d^2 / 2 for |d| up to ``delta``, delta (|d| - delta / 2) beyond."""
    distance = abs(_alike("huber", outputs, labels))
    near = op.Min(distance, as_tensor(np.array(delta), distance.dtype))
    return _reduced(near * (distance - near * 0.5), reduction)


def binary_cross_entropy_with_logits(logits: Any, labels: Any, *, reduction: Reduction = "mean") -> Tensor:
    """-y log s(x) - (1 - y) log(1 - s(x)) as max(x, 0) - x y + log(1 + e^-|x|), which does not overflow."""
    x, y = as_tensor(logits), as_tensor(labels)
    _alike("binary_cross_entropy_with_logits", x, y, subtract=False)
    return _reduced(op.Relu(x) - x * y + op.Log(op.Exp(-abs(x)) + 1.0), reduction)


def binary_cross_entropy(probabilities: Any, labels: Any, *, reduction: Reduction = "mean") -> Tensor:
    """-y log p - (1 - y) log(1 - p), each logarithm at least -100, as PyTorch has it."""
    p, y = as_tensor(probabilities), as_tensor(labels)
    _alike("binary_cross_entropy", p, y, subtract=False)
    lowest = as_tensor(np.array(-100.0), p.dtype)
    return _reduced(-(y * op.Max(op.Log(p), lowest) + (1.0 - y) * op.Max(op.Log(1.0 - p), lowest)), reduction)


def _alike(name: str, outputs: Any, labels: Any, subtract: bool = True) -> Tensor:
    """outputs - labels, after a check that nothing broadcasts: [n, 1] - [n] would be [n, n]."""
    a, b = as_tensor(outputs), as_tensor(labels)
    if a.dtype != b.dtype:
        raise InputError(
            f"{name} at {here()} takes outputs and labels of one dtype, got {dtypes.name(a.dtype)} and "
            f"{dtypes.name(b.dtype)}"
        )
    if a.dims is not None and b.dims is not None and (
        len(a.dims) != len(b.dims)
        or any(isinstance(m, int) and isinstance(n, int) and m != n for m, n in zip(a.dims, b.dims, strict=True))
    ):  # fmt: skip
        raise InputError(
            f"{name} at {here()} takes outputs and labels of one shape, got {list(a.dims)} and {list(b.dims)}; "
            "reshape one of them"
        )
    return a - b if subtract else a


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r} ({here()})")
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()
