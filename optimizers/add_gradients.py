"""add_gradients: the gradient of an output of any graph, as more nodes of that graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, overload

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from graphkit import autograd, dims, dtypes, interpreter
from graphkit.core import Key, Record, Tensor
from graphkit.errors import GradientError, did_you_mean
from graphkit.gradients import reason_against
from graphkit.gradients.shapes import ones_like, zeros_like
from graphkit.graph import Graph
from graphkit.modelfile import ModelLike, give_back, lowest_ir_version, read_model
from graphkit.optimizers.lift_weights import float_weights, lift_weights
from graphkit.optimizers.lower_training import lower_training_nodes
from graphkit.schemas import WORKING_OPSET
from graphkit.upgrade import upgrade_model

__all__ = ["add_gradients", "differentiable_graph", "gradients_of"]

Unreached = Literal["error", "zeros"]
ALL: Final = "all"


@overload
def add_gradients(
    model: onnx.ModelProto, of: str = ..., wrt: Sequence[str] | str = ..., *, unreached: Unreached = ...,
    suffix: str = ...,
) -> onnx.ModelProto: ...  # fmt: skip


@overload
def add_gradients(
    model: ModelLike, of: str = ..., wrt: Sequence[str] | str = ..., *, unreached: Unreached = ..., suffix: str = ...
) -> ir.Model | onnx.ModelProto: ...


def add_gradients(
    model: ModelLike,
    of: str = "loss",
    wrt: Sequence[str] | str = (),
    *,
    unreached: Unreached = "error",
    suffix: str = "_grad",
) -> ir.Model | onnx.ModelProto:
    """Return a model with one more output for each name of ``wrt``: the gradient of the scalar ``of``.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model`` of opset 7 to 28; it is not changed, and its
            kind comes back. Operators of an opset before 21 are written in their form of opset 21.
        of: a scalar value, usually an output.
        wrt: graph inputs, initializers, or any other floating values, by name; constants in the bodies of If, Loop
            and Scan too, which become initializers of the main graph. One whose name several bodies use is called by
            the way to it, as in "if_node/then_branch/w". A value gets all that arrives at it, whatever else is asked
            for: of x and exp(x), x gets what flows through exp(x) too. The string "all" stands for every floating
            constant of rank 1 or more that ``of`` depends on (a value that has that name is asked for as ["all"]).
        unreached: "error", or "zeros" to give zeros for a name that ``of`` does not depend on.
        suffix: a gradient is called by its value's name and this.

    Returns:
        The model; each gradient has the shape and dtype of its value.

    Raises:
        GradientError: for an unknown name, a loss that is not scalar, an integer value, a value that the loss does
            not depend on, and for operators without a rule, all of which one message names.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N] x) => (float loss) {loss = ReduceSumSquare<keepdims=0>(x)}'''
    >>> model = add_gradients(onnx.parser.parse_model(text), of="loss", wrt=["x"])
    >>> [o.name for o in model.graph.output]
    ['loss', 'x_grad']
    """
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    everything = wrt == ALL
    if not names:
        raise GradientError("say with respect to what: wrt=[...] names graph inputs, initializers or other values")
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise GradientError(f"wrt names '{twice}' twice")
    with collection_paused():
        own = read_model(model)
        if everything:
            if own.functions:
                common.InlinePass()(own)
            names = float_weights(own)
            if not names:
                raise GradientError(f"wrt='{ALL}': the model has no floating weight, in an initializer or a Constant")
        lift_weights(own, names)
        lower_training_nodes(own)
        graph = differentiable_graph(own)
        if everything and unreached == "error":
            names, found = _all_gradients(graph, of, names)
        else:
            found = gradients_of(graph, of, names, unreached)
        taken = named_values(own.graph)
        for name, gradient in zip(names, found, strict=True):
            _add_output(graph, gradient, name + suffix, name, taken)
        if not isinstance(model, onnx.ModelProto):  # for which give_back finds it
            own.ir_version = max(own.ir_version, lowest_ir_version(own))
        return give_back(model, own)


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection meanwhile.

    A graph under construction is all cycles and no garbage, and every pass of the collector over it would cost in
    proportion to what has been built.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def differentiable_graph(model: ir.Model) -> Graph:
    """A Graph around ``model``, in place, with functions inlined and every node in its form of the working opset."""
    if model.functions:
        common.InlinePass()(model)
    if model.opset_imports.get("", WORKING_OPSET) < WORKING_OPSET:
        upgrade_model(model, WORKING_OPSET)
    model.graph.opset_imports.setdefault("", WORKING_OPSET)
    return Graph.adopt(model)


def gradients_of(graph: Graph, of: str, wrt: Sequence[str], unreached: Unreached = "error") -> list[Tensor]:
    """Append the gradient nodes of ``of`` with respect to each of ``wrt`` to the graph; the gradients in that order."""
    loss, targets, found = _pulled_back(graph, of, wrt)
    missing = [t for t in targets if t.key not in found]
    if missing and unreached == "error":
        raise GradientError(_why_unreached(loss, missing))
    with interpreter.using(graph):
        return [found[t.key] if t.key in found else zeros_like(t) for t in targets]


def _all_gradients(graph: Graph, of: str, names: Sequence[str]) -> tuple[list[str], list[Tensor]]:
    """The same for those of the names that ``of`` depends on, and which those are."""
    loss, targets, found = _pulled_back(graph, of, names)
    if not found:
        raise GradientError(_why_unreached(loss, targets))
    pairs = [(name, found[t.key]) for name, t in zip(names, targets, strict=True) if t.key in found]
    return [name for name, _ in pairs], [g for _, g in pairs]


def _pulled_back(graph: Graph, of: str, wrt: Sequence[str]) -> tuple[Tensor, list[Tensor], dict[Key, Tensor]]:
    """The loss, the values of ``wrt``, and the gradients by the values' keys."""
    values = named_values(graph.graph)
    loss = _value(graph, values, of, "the value to differentiate")
    _check_scalar(loss, of)
    targets = [_value(graph, values, name, "a value to differentiate with respect to") for name in wrt]
    for t in (loss, *targets):
        if not dtypes.is_float(t.dtype):
            raise GradientError(f"'{t.name}' is {dtypes.name(t.dtype)}; only floating values have gradients")
    wanted: dict[Key, Tensor] = {t.key: t for t in targets}
    with interpreter.using(graph):
        records = autograd.history([loss], wanted, independent=False)
        return loss, targets, autograd.pullback(records, {loss.key: ones_like(loss)}, wanted)


def named_values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Every value of the main graph by name."""
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values()) if v.name}
    for node in graph:
        values.update({v.name: v for v in node.outputs if v.name})
    return values


def _value(graph: Graph, values: dict[str, ir.Value], name: str, role: str) -> Tensor:
    if name not in values:
        raise GradientError(
            f"the model has no value '{name}' ({role}).{did_you_mean(name, values)} Its outputs are "
            f"{', '.join(str(o.name) for o in graph.graph.outputs)}; its inputs "
            f"{', '.join(str(i.name) for i in graph.graph.inputs)}; its initializers "
            f"{', '.join(list(graph.graph.initializers)[:20]) or 'none'}."
        )
    return graph.tensor(values[name])


def _check_scalar(loss: Tensor, name: str) -> None:
    known = loss.dims
    if known is not None and any(d != 1 for d in known):
        raise GradientError(
            f"'{name}' has shape {dims.text(known)}; a gradient is of a scalar. Reduce it first, with ReduceMean or "
            "ReduceSum, or name an output that is a loss."
        )


def _why_unreached(loss: Tensor, missing: Sequence[Tensor]) -> str:
    names = ", ".join(f"'{t.name}'" for t in missing)
    stops = []
    for record in _everything_before(loss):
        reason = reason_against(record.op, record.domain)
        if record.stopped:
            reason = "a gradient was stopped there"
        if reason and any(t is not None and dtypes.is_float(t.dtype) for t in record.inputs):
            stops.append(f"{record.describe()} ({reason})")
    hint = f" Gradients stop at {'; '.join(stops[:3])}." if stops else ""
    return (
        f"'{loss.name}' does not depend on {names} by any differentiable way, so there is no gradient.{hint} Leave "
        "the name out, or ask for zeros with unreached='zeros'."
    )


def _everything_before(loss: Tensor) -> list[Record]:
    seen: dict[int, Record] = {}
    stack = [loss.record] if loss.record is not None else []
    while stack:
        record = stack.pop()
        if id(record) in seen:
            continue
        seen[id(record)] = record
        stack.extend(t.record for t in record.inputs if t is not None and t.record is not None)
    return list(seen.values())


def _add_output(graph: Graph, gradient: Tensor, name: str, of: str, taken: Mapping[str, ir.Value]) -> None:
    value = gradient.value if gradient.traced else None
    with interpreter.using(graph):
        if value is None or value.is_graph_output() or value.is_graph_input() or value.producer() is None:
            gradient = graph.apply("Identity", (gradient,), None, 1, "")[0]
            value = gradient.value
    assert value is not None
    if name in taken and taken[name] is not value:
        raise GradientError(f"the model already has a value called '{name}', where the gradient of '{of}' belongs")
    value.name = name
    graph.graph.outputs.append(value)
