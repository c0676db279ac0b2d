"""Which loss a training graph has: an output that is one already, one by name, or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from graphkit import dtypes, nn
from graphkit.core import Tensor, as_tensor
from graphkit.dims import text
from graphkit.errors import GradientError, did_you_mean
from graphkit.graph import Graph
from graphkit.optimizers.add_updates import new_input
from graphkit.tracing import Spec

__all__ = ["LABELS", "LOSSES", "LossFunction", "LossLike", "add_loss"]

LossFunction = Callable[..., Tensor]
LossLike = str | LossFunction

LABELS: Final = "labels"
LOSSES: Final[dict[str, LossFunction]] = {
    "cross_entropy": nn.cross_entropy,
    "mse": nn.mse,
    "l1": nn.l1,
    "huber": nn.huber,
    "binary_cross_entropy_with_logits": nn.binary_cross_entropy_with_logits,
    "binary_cross_entropy": nn.binary_cross_entropy,
}


def add_loss(
    graph: Graph,
    loss: LossLike,
    outputs: dict[str, Tensor],
    result: Any,
    values: dict[str, Tensor],
    labels: Spec | None,
) -> Tensor:
    """The loss as a tensor of the graph, which is the current interpreter; an input for the labels if it takes any.

    Args:
        graph: with the model's nodes in it.
        loss: what ``build`` was given.
        outputs: the model's, by name.
        result: what the loss function is called with.
        values: everything that a loss's name may mean.
        labels: how the labels are described, where the loss does not say so itself.
    """
    if isinstance(loss, str) and loss in outputs:
        found = outputs[loss]
    elif isinstance(loss, str) and loss in values and loss not in LOSSES:
        found = values[loss]
    elif isinstance(loss, str):
        found = _named(graph, loss, outputs, labels)
    else:
        found = _function(graph, loss, outputs, result, labels)
    _check(found, loss)
    return found


def _named(graph: Graph, loss: str, outputs: dict[str, Tensor], labels: Spec | None) -> Tensor:
    if loss not in LOSSES:
        raise GradientError(
            f"there is no loss '{loss}'.{did_you_mean(loss, [*LOSSES, *outputs])} It is the name of a scalar output "
            f"({', '.join(outputs)}), one of {', '.join(LOSSES)}, or a function of outputs and labels"
        )
    floating = [t for t in outputs.values() if dtypes.is_float(t.dtype)]
    if len(floating) != 1:
        raise GradientError(
            f"loss='{loss}' is of one floating output, and the model has {len(floating)} ({', '.join(outputs)}). Write "
            f"a function: loss=lambda outputs, labels: gk.nn.{loss}(outputs[0], labels)"
        )
    output = floating[0]
    if labels is None:
        labels = Spec(dtypes.INT64, output.dims[:-1]) if loss == "cross_entropy" and output.dims else _like(output)
    if loss == "cross_entropy" and (output.rank is None or output.rank < 2):
        raise GradientError(f"cross_entropy takes an output [batch, classes], '{output.name}' is {text(output.dims)}")
    return LOSSES[loss](output, _labels_input(graph, labels))


def _like(output: Tensor) -> Spec:
    return Spec(output.dtype, output.dims if output.dims is not None else ())


def _labels_input(graph: Graph, labels: Spec) -> Tensor:
    return new_input(graph, labels.name or LABELS, labels.dtype, labels.shape)


def _function(graph: Graph, loss: LossFunction, outputs: dict[str, Tensor], result: Any, labels: Spec | None) -> Tensor:
    if _positional(loss) == 1 and labels is None:
        return as_tensor(loss(result))
    if labels is None:
        first = next((t for t in outputs.values() if dtypes.is_float(t.dtype)), next(iter(outputs.values())))
        # The losses of gk.nn say what their labels are; any other function is taken to compare like with like.
        labels = Spec(dtypes.INT64, first.dims[:-1]) if loss is nn.cross_entropy and first.dims else _like(first)
    return as_tensor(loss(result, _labels_input(graph, labels)))


def _positional(function: Any) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.kind in kinds and p.default is p.empty]) or 1


def _check(loss: Tensor, given: LossLike) -> None:
    shown = f"loss '{given}'" if isinstance(given, str) else f"the loss function {getattr(given, '__name__', given)}"
    if not dtypes.is_float(loss.dtype):
        raise GradientError(f"{shown} is {dtypes.name(loss.dtype)}; a loss is a floating scalar")
    dims: Sequence[Any] | None = loss.dims
    if dims is None or any(d != 1 for d in dims):
        raise GradientError(
            f"{shown} has shape {text(loss.dims)}, and a loss is a scalar. Reduce it, with .mean() or .sum(); for a "
            "file whose outputs are no losses name one, such as loss='cross_entropy' or loss='mse', or give a function"
        )
