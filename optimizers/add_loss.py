"""add_loss: a scalar made of the outputs of any graph, as more nodes of that graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, overload

import numpy as np
import onnx
import onnx_ir as ir

from graphkit import dtypes, interpreter
from graphkit.core import Tensor, as_tensor
from graphkit.dims import text
from graphkit.errors import GradientError, did_you_mean
from graphkit.graph import Graph
from graphkit.interpreter import apply1
from graphkit.modelfile import ModelLike, give_back, lowest_ir_version, read_model
from graphkit.optimizers.add_gradients import collection_paused, differentiable_graph, named_values

__all__ = ["LOSSES", "add_loss"]

Loss = str | Callable[..., Any]


@overload
def add_loss(model: onnx.ModelProto, loss: Loss = ..., name: str = ...) -> onnx.ModelProto: ...


@overload
def add_loss(model: ModelLike, loss: Loss = ..., name: str = ...) -> ir.Model | onnx.ModelProto: ...


def add_loss(model: ModelLike, loss: Loss = "mean_square", name: str = "loss") -> ir.Model | onnx.ModelProto:
    """Return a model with one more output, a scalar made of the others: something for ``add_gradients`` to start from.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model`` of opset 7 to 28; it is not changed, and its
            kind comes back. Operators of an opset before 21 are written in their form of opset 21.
        loss: "mean_square", the mean of the squares of a floating output, those of several added up; or a function on
            Tensors of the output (of a tuple of all outputs, if there are several).
        name: the new output's name.

    Returns:
        The model; the loss has no dims, and the dtype that the outputs or the function give it (of "mean_square" of a
        half precision output, float32).

    Raises:
        GradientError: for a loss that is unknown, not floating or not scalar, and a name that is taken.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N] x) => (float[N] y) <float[1] w = {2}> {y = Mul(x, w)}'''
    >>> model = add_loss(onnx.parser.parse_model(text))
    >>> [o.name for o in model.graph.output]
    ['y', 'loss']
    >>> import graphkit as gk
    >>> float(gk.run(model, {"x": np.array([1, 2], "float32")})["loss"])
    10.0
    """
    with collection_paused():
        own = read_model(model)
        graph = differentiable_graph(own)
        if name in named_values(own.graph):
            raise GradientError(f"the model already has a value called '{name}'; give the loss another: name=...")
        outputs = [graph.tensor(v) for v in own.graph.outputs]
        with interpreter.using(graph):
            found = graph.capture(as_tensor(_made(graph, loss, outputs)))
            found = _scalar(found, loss)
            if _is_named(found):
                found = graph.apply("Identity", (found,), None, 1, "")[0]
        value = found.value
        assert value is not None
        value.name = name
        own.graph.outputs.append(value)
    own.ir_version = max(own.ir_version, lowest_ir_version(own))
    return give_back(model, own)


def mean_square(outputs: Sequence[Tensor]) -> Tensor:
    """The sum over all floating outputs of the mean of their squares."""
    floating = [t for t in outputs if dtypes.is_float(t.dtype) and not _is_container(t)]
    if not floating:
        raise GradientError(
            f"loss='mean_square' is of floating outputs, and of {', '.join(str(t.name) for t in outputs)} none is one"
        )
    wide = dtypes.FLOAT64 if any(t.dtype == dtypes.FLOAT64 for t in floating) else dtypes.FLOAT32
    total: Tensor | None = None
    for t in floating:
        t = t.astype(wide)
        mean = apply1("ReduceMean", apply1("Mul", t, t), keepdims=0)
        total = mean if total is None else apply1("Add", total, mean)
    assert total is not None
    return total


LOSSES: Final[dict[str, Callable[[Sequence[Tensor]], Tensor]]] = {"mean_square": mean_square}


def _made(graph: Graph, loss: Loss, outputs: Sequence[Tensor]) -> Any:
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise GradientError(
                f"there is no loss '{loss}'.{did_you_mean(loss, LOSSES)} It is {', '.join(LOSSES)}, or a function of "
                "the model's outputs"
            )
        return LOSSES[loss](outputs)
    return loss(outputs[0] if len(outputs) == 1 else tuple(outputs))


def _is_container(t: Tensor) -> bool:
    """Whether an output is a sequence or an optional."""
    return t.graph is not None and t.value is not None and t.graph.type_of(t.value).proto is not None


def _is_named(t: Tensor) -> bool:
    """Whether a value of the graph has a name to keep, or no node to hold it."""
    value = t.value
    assert value is not None
    return value.is_graph_output() or value.is_graph_input() or value.producer() is None


def _scalar(found: Tensor, loss: Loss) -> Tensor:
    shown = f"loss='{loss}'" if isinstance(loss, str) else f"the loss function {getattr(loss, '__name__', loss)}"
    if not dtypes.is_float(found.dtype):
        raise GradientError(f"{shown} is {dtypes.name(found.dtype)}; a loss is a floating scalar")
    known = found.dims
    if known is None or any(d != 1 for d in known):
        raise GradientError(f"{shown} has shape {text(known)}, and a loss is a scalar: reduce it, by .mean() or .sum()")
    return apply1("Reshape", found, as_tensor(np.zeros(0, np.int64))) if known else found
