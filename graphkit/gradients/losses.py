"""The two loss operators, SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss.

Both pick one score a sample by its label. With few classes and no ignored label, the picking takes rows of an identity
matrix, one node; else it is a comparison with 0..C-1, which is right for labels of any integer type and needs no index
in range: an ignored label may be anything, and its row gets exactly zero.
"""

from __future__ import annotations

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries, as_mask
from graphkit.gradients.shapes import constant, divide_by_count, element_count, shape_tensor, shaped_as
from graphkit.gradients.softmax import log_softmax_cotangent
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

LITERAL_CLASSES = 1024
IDENTITY_CLASSES = 64


class _Picked:
    """What both losses need: which class each sample picks, with what weight, and what the loss divides by."""

    def __init__(self, r: Record) -> None:
        scores, labels = r.inputs[0], r.inputs[1]
        assert scores is not None and labels is not None
        if scores.rank is None:
            raise GradientError(f"the gradient of {r.describe()} needs the rank of its scores, which is unknown")
        self.rank = scores.rank
        self.dtype = scores.dtype
        self.labels = labels
        self.weights = r.input(2)
        self.mean = r.attribute("reduction", "mean") == "mean"
        self.each = r.attribute("reduction", "mean") == "none"
        ignored = r.attribute("ignore_index")
        self.one_hot = _one_hot(scores, labels, any_label=ignored is not None)
        self.kept: Tensor | None = None  # [N, 1, d...], 0 for an ignored label
        if ignored is not None:
            same = apply1("Equal", labels, constant(int(ignored), labels.dtype))
            self.kept = apply1("Unsqueeze", as_mask(apply1("Not", same), scores), constant_ints([1]))
        self.weighted = self.one_hot  # [N, C, d...], the weight at the label, 0 elsewhere
        self.weight = self.kept  # [N, 1, d...], the weight of each label; None for all 1
        if self.kept is not None:
            self.weighted = apply1("Mul", self.weighted, self.kept)
        if self.weights is not None:
            self.weighted = apply1("Mul", self.weighted, self.along_classes(self.weights))
            self.weight = apply1("ReduceSum", self.weighted, constant_ints([1]), keepdims=1)

    def along_classes(self, x: Tensor) -> Tensor:
        """[C] as [C, 1...], which broadcasts along the second axis."""
        return x if self.rank == 2 else apply1("Unsqueeze", x, constant_ints(list(range(1, self.rank - 1))))

    def share(self, g: Tensor) -> Tensor:
        """The cotangent of each sample's own loss, ready to broadcast against the scores."""
        if self.each:
            return apply1("Unsqueeze", g, constant_ints([1]))
        if not self.mean:
            return g
        if self.weight is None:
            return divide_by_count(g, element_count(self.labels))
        return apply1("Mul", g, self.over_total())

    def over_total(self) -> Tensor:
        assert self.weight is not None
        return _one_over_total(self.weight, self.dtype)

    def to_weights(self, r: Record, g: Tensor, log_probabilities: Tensor) -> Tensor:
        """The cotangent of the class weights: of a mean, (loss of the sample - mean) / (sum of the weights)."""
        picked = self.one_hot if self.kept is None else apply1("Mul", self.one_hot, self.kept)
        value = apply1("Neg", log_probabilities)
        if self.mean:
            value = apply1("Sub", value, r.outputs[0])
        axes = [n for n in range(self.rank) if n != 1]
        each = apply1("Mul", apply1("Mul", picked, value), self.share(g))
        return apply1("ReduceSum", each, constant_ints(axes), keepdims=0)


def _one_hot(scores: Tensor, labels: Tensor, *, any_label: bool) -> Tensor:
    """[N, C, d...], 1 at each label: rows of the identity where those are few, else by comparing with 0..C-1."""
    extent = None if scores.dims is None else scores.dims[1]
    if (
        not any_label
        and isinstance(extent, int)
        and extent <= IDENTITY_CLASSES
        and scores.rank == 2
        and labels.dtype in (dtypes.INT32, dtypes.INT64)
    ):
        return apply1("Gather", constant(np.eye(extent), scores.dtype), labels)
    column = apply1("Unsqueeze", labels, constant_ints([1]))
    return as_mask(apply1("Equal", column, _classes(scores, labels)), scores)


def _one_over_total(weight: Tensor, dtype: dtypes.DType) -> Tensor:
    """1 / (sum of the weights), never summed in half precision, where counts beyond 2,048 are not exact."""
    wide = dtypes.FLOAT64 if dtype == dtypes.FLOAT64 else dtypes.FLOAT32
    total = apply1("ReduceSum", weight.astype(wide), keepdims=0)
    # The mean of nothing is NaN, but it depends on no score: their gradient is 0, not 0 / 0.
    empty = as_mask(apply1("Equal", total, constant(0, wide)), total)
    return apply1("Reciprocal", apply1("Add", total, empty)).astype(dtype)


def _classes(scores: Tensor, labels: Tensor) -> Tensor:
    """0..C-1 in the labels' dtype, as [C, 1...]."""
    assert scores.dims is not None
    extent = scores.dims[1]
    ones = (1,) * (len(scores.dims) - 2)
    if isinstance(extent, int) and extent <= LITERAL_CLASSES:
        return constant(np.arange(extent).reshape(extent, *ones), labels.dtype)
    if isinstance(extent, int):
        count = constant(extent, dtypes.INT64)
    else:
        count = apply1("Squeeze", apply1("Shape", scores, start=1, end=2))
    classes = apply1("Range", constant(0, dtypes.INT64), count, constant(1, dtypes.INT64)).astype(labels.dtype)
    return apply1("Unsqueeze", classes, constant_ints(list(range(1, 1 + len(ones))))) if ones else classes


@gradient("SoftmaxCrossEntropyLoss", mixes=True)
def softmax_cross_entropy_loss(r: Record, g: Tensor | None, g_log: Tensor | None = None) -> Entries:
    """(softmax - one-hot) w g; and that of the second output, the log-softmax, if it is used."""
    scores = r.inputs[0]
    assert scores is not None
    outputs = r.outputs
    given = outputs[1] if len(outputs) > 1 else None
    if g is None:
        assert given is not None and g_log is not None
        return (log_softmax_cotangent(given, g_log, 1),)
    if _has_many_classes(r, scores):
        found = _by_scattering(r, scores, given, g)
        return (
            found if g_log is None or given is None else apply1("Add", found, log_softmax_cotangent(given, g_log, 1)),
        )
    picked = _Picked(r)

    def to_scores() -> Tensor:
        softmax = apply1("Softmax", scores, axis=1) if given is None else apply1("Exp", given)
        expected = softmax if picked.weight is None else apply1("Mul", softmax, picked.weight)
        found = shaped_as(apply1("Mul", apply1("Sub", expected, picked.weighted), picked.share(g)), scores)
        if g_log is None:
            return found
        assert given is not None
        return apply1("Add", found, log_softmax_cotangent(given, g_log, 1))

    def to_weights() -> Tensor:
        logs = apply1("LogSoftmax", scores, axis=1) if given is None else given
        return picked.to_weights(r, g, logs)

    return to_scores, None, to_weights


def _has_many_classes(r: Record, scores: Tensor) -> bool:
    extent = scores.dims[1] if scores.dims is not None else None
    wide = scores.dtype in (dtypes.FLOAT32, dtypes.FLOAT64)  # what ScatterElements adds up on the CPU
    return isinstance(extent, int) and extent > LITERAL_CLASSES and wide and not r.wanted(2)


def _by_scattering(r: Record, scores: Tensor, given: Tensor | None, g: Tensor) -> Tensor:
    """The same for many classes: softmax w g, less w g at the label, without a one-hot of the scores' size."""
    labels, weights, ignored = r.inputs[1], r.input(2), r.attribute("ignore_index")
    assert labels is not None
    second = constant_ints([1])
    places = apply1("Unsqueeze", labels, second)  # [N, 1, d...]
    weight: Tensor | None = None
    if ignored is not None:
        kept = apply1("Not", apply1("Equal", places, constant(int(ignored), labels.dtype)))
        places = apply1("Mul", places, kept.astype(labels.dtype))  # an ignored label may lie outside: it points at 0
        weight = as_mask(kept, scores)
    if weights is not None:
        own = apply1("Gather", weights, places)
        weight = own if weight is None else apply1("Mul", weight, own)
    reduction = r.attribute("reduction", "mean")
    if reduction == "none":
        share = apply1("Unsqueeze", g, second)
    elif reduction == "sum":
        share = g
    elif weight is None:
        share = divide_by_count(g, element_count(labels))
    else:
        share = apply1("Mul", g, _one_over_total(weight, scores.dtype))
    amount = share if weight is None else apply1("Mul", weight, share)
    softmax = apply1("Softmax", scores, axis=1) if given is None else apply1("Exp", given)
    less = apply1("Neg", amount)
    if amount.rank == 0:
        less = apply1("Expand", less, shape_tensor(places))
    found = apply1("ScatterElements", apply1("Mul", softmax, amount), places, less, axis=1, reduction="add")
    return shaped_as(found, scores)


@gradient("NegativeLogLikelihoodLoss", mixes=True)
def negative_log_likelihood_loss(r: Record, g: Tensor) -> Entries:
    """-one-hot w g"""
    scores = r.inputs[0]
    assert scores is not None
    picked = _Picked(r)
    return (
        lambda: shaped_as(apply1("Mul", picked.weighted, apply1("Neg", picked.share(g))), scores),
        None,
        lambda: picked.to_weights(r, g, scores),
    )
