"""add_updates: an optimizer's update of every parameter, as more nodes of a graph that has the gradients.

The rule is the one of ``graphkit.optim``, recorded. What it changes (parameters, momentum, the number of the step)
becomes inputs of the graph, and the next values become outputs, so that one run is one step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir

from graphkit import dtypes, interpreter
from graphkit.bodies import nested
from graphkit.conversion import ir_tensor
from graphkit.core import Tensor, as_tensor
from graphkit.errors import GradientError, GraphkitError, did_you_mean
from graphkit.graph import Graph
from graphkit.inference import Type
from graphkit.interpreter import apply1
from graphkit.modelfile import ModelLike, give_back, lowest_ir_version, read_model
from graphkit.optim import Optimizer
from graphkit.optimizers.add_gradients import differentiable_graph, named_values

__all__ = [
    "APPLY", "STATE", "STEP", "Updates", "add_updates", "append_updates", "make_constant", "make_input", "make_output",
    "new_input",
]  # fmt: skip

Array = np.ndarray[Any, Any]

NEXT: Final = ".next"
STEP: Final = "optimizer.step"
WEIGHT: Final = "optimizer.weight"
APPLY: Final = "apply"
ACCUMULATED: Final = ".accumulated"
# Where a model says which of its inputs is followed by which of its outputs.
STATE: Final = "graphkit.state"


@dataclass
class Updates:
    """What a graph carries from step to step: each state input's first value, and the output that is its next."""

    first: dict[str, Array] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)


def add_updates(model: ModelLike, gradients: Mapping[str, str], optimizer: Optimizer) -> ir.Model | onnx.ModelProto:
    """Return a model that takes one step of ``optimizer`` at every run.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``, which is not changed; its kind comes back.
        gradients: for each parameter (an initializer) the value that is its gradient, both by name.
        optimizer: the rule, of ``graphkit.optim``.

    Returns:
        The model, in which every parameter ``w`` is an input with an output ``w.next``, and so is the optimizer's state
        (``w.momentum``, ``optimizer.step``...). Their first values are the inputs' defaults. The metadata entry
        ``graphkit.state`` maps each to its output, as JSON.

    Raises:
        GradientError: for an unknown name, or a gradient whose dtype or shape is not its parameter's.

    >>> import onnx.parser, graphkit as gk
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float loss)
    ... <float[2] w = {1, 2}> {p = Mul(x, w) loss = ReduceSum<keepdims=0>(p)}'''
    >>> step = gk.optimizers.add_gradients(onnx.parser.parse_model(text), "loss", ["w"])
    >>> step = add_updates(step, {"w": "w_grad"}, gk.optim.SGD(0.5))
    >>> gk.run(step, {"x": [1.0, 1.0]}, outputs=["w.next"])["w.next"]
    array([0.5, 1.5], dtype=float32)
    """
    own = read_model(model)
    graph = differentiable_graph(own)
    values = named_values(graph.graph)
    targets = []
    for name, gradient in gradients.items():
        for wanted in (name, gradient):
            if wanted not in values:
                raise GradientError(f"the model has no value '{wanted}'.{did_you_mean(wanted, values)}")
        if name not in graph.graph.initializers:
            raise GradientError(f"'{name}' is no parameter: it is not an initializer, so it has no value to start from")
        targets.append((graph.tensor(values[name]), graph.tensor(values[gradient])))
    first = {p.name or "": make_input(graph, p) for p, _ in targets}
    updates = append_updates(graph, targets, optimizer)
    for name, array in (first | updates.first).items():
        value = next(v for v in graph.graph.inputs if v.name == name)
        value.const_value = ir_tensor(array, name)
        graph.graph.register_initializer(value)
    own.metadata_props[STATE] = json.dumps(updates.pairs)
    own.ir_version = max(own.ir_version, lowest_ir_version(own))
    return give_back(model, own)


def make_input(graph: Graph, t: Tensor) -> Array:
    """Turn an initializer into a required input; its value is returned, and no longer known to the graph."""
    value = t.value
    assert value is not None and value.name is not None and value.const_value is not None
    array: Array = value.const_value.numpy()
    graph.graph.initializers.pop(value.name)
    value.const_value = None
    if not value.is_graph_input():
        graph.graph.inputs.append(value)
    value.type = ir.TensorType(ir.DataType(dtypes.to_onnx(array.dtype)))
    value.shape = ir.Shape(array.shape)
    graph._types[value] = Type(array.dtype, array.shape)
    return array


def make_constant(graph: Graph, t: Tensor, array: Array) -> None:
    """Undo ``make_input``."""
    value = t.value
    assert value is not None and value.name is not None
    graph.graph.inputs.remove(value)
    value.const_value = ir_tensor(array, value.name)
    graph.graph.register_initializer(value)


def make_output(graph: Graph, t: Tensor, name: str) -> str:
    """Make a value an output called ``name``."""
    t = graph.capture(t)
    value = t.value
    assert value is not None
    if value.is_graph_input() or value.is_initializer() or value.is_graph_output() or value.producer() is None:
        t = graph.apply("Identity", (t,), None, 1, "")[0]
        value = t.value
        assert value is not None
    value.name = _only(name, graph.unique(name))
    graph.graph.outputs.append(value)
    return name


def new_input(graph: Graph, name: str, dtype: Any, shape: Sequence[int | str | None] | None) -> Tensor:
    """A new input of the graph, under this name or not at all."""
    made = graph.input(name, dtype, shape)
    _only(name, made.name)
    return made


def _only(name: str, given: str | None) -> str:
    if name != given:
        raise GraphkitError(f"the model already has a value called '{name}', which the training graph needs; rename it")
    return name


def append_updates(
    graph: Graph, targets: Sequence[tuple[Tensor, Tensor]], optimizer: Optimizer, weight: Tensor | None = None,
    mean: bool = True,
) -> Updates:  # fmt: skip
    """Append the update of every (parameter, gradient) pair to the graph; the parameters are inputs already.

    With ``weight`` (float32 [], what this batch counts), gradients are added up over runs, each times its weight, and
    the update by their weighted mean (or their sum, without ``mean``) is made only by a run whose input ``apply`` is
    true.
    """
    for parameter, gradient in targets:
        if gradient.dtype != parameter.dtype or (gradient.rank is not None and gradient.rank != parameter.rank):
            raise GradientError(
                f"'{gradient.name}' cannot be the gradient of '{parameter.name}': {gradient!r}, {parameter!r}"
            )
    made = Updates()
    with interpreter.using(graph):
        state = _State(graph, made)
        parameters = [parameter for parameter, _ in targets]
        gradients = [gradient for _, gradient in targets]
        slots = [{slot: state.add(f"{p.name}.{slot}", _zeros(p)) for slot in optimizer.slots} for p in parameters]
        step = state.add(STEP, np.array(0, dtype=np.int64)) if optimizer.counts else None

        def update(by: Sequence[Tensor]) -> list[Tensor]:
            following = None if step is None else step + 1
            updates = optimizer.update_all(parameters, by, slots, following)
            flat = [value for value, _ in updates]
            flat += [after[slot] for _, after in updates for slot in optimizer.slots]
            return flat if following is None else [*flat, following]

        before = [*parameters, *(each[slot] for each in slots for slot in optimizer.slots)]
        before += [] if step is None else [step]
        if weight is None:
            after = update(gradients)
        else:
            before, after = _accumulated(graph, state, targets, weight, mean, before, update)
    for old, new in zip(before, after, strict=True):
        assert old.name is not None
        made.pairs[old.name] = make_output(graph, new, old.name + NEXT)
        graph.declare(new, old.dims)
    return made


class _State:
    """The state inputs that are being added to a graph."""

    def __init__(self, graph: Graph, made: Updates) -> None:
        self.graph, self.made = graph, made

    def add(self, name: str, first: Array) -> Tensor:
        self.made.first[name] = first
        return new_input(self.graph, name, first.dtype, first.shape)


def _zeros(parameter: Tensor) -> Array:
    assert parameter.dims is not None
    return np.zeros([int(d) for d in parameter.dims], parameter.dtype)


def _accumulated(
    graph: Graph, state: _State, targets: Sequence[tuple[Tensor, Tensor]], weight: Tensor, mean: bool,
    before: list[Tensor], update: Any,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The state and its next values, when only some runs update: an If whose other branch hands everything on."""
    apply_now = new_input(graph, APPLY, "bool", ())
    sums = [state.add(f"{p.name}{ACCUMULATED}", _zeros(p)) for p, _ in targets]
    so_far = state.add(WEIGHT, np.array(0, dtype=np.float32))
    total = so_far + weight
    added = [s + g * weight.astype(g.dtype) for s, (_, g) in zip(sums, targets, strict=True)]
    then, otherwise = nested(graph, "update"), nested(graph, "wait")
    with interpreter.using(then):
        share = 1.0 / total
        updated = update([s * share.astype(s.dtype) for s in added] if mean else added)
        _body_outputs(then, [*updated, *(as_tensor(_zeros(s)) for s in sums), as_tensor(np.float32(0))])
    with interpreter.using(otherwise):
        _body_outputs(otherwise, [*before, *added, total])
    results = graph.apply(
        "If", (apply_now,), {"then_branch": then.graph, "else_branch": otherwise.graph}, len(before) + len(sums) + 1, ""
    )
    for result, old in zip(results, [*before, *sums, so_far], strict=True):
        graph.declare(result, old.dims)
    return [*before, *sums, so_far], list(results)


def _body_outputs(body: Graph, results: Sequence[Tensor]) -> None:
    for result in results:
        inner = body.capture(result)
        if inner.value is None or inner.value.graph is not body.graph or inner.value.is_graph_output():
            inner = apply1("Identity", inner)
        assert inner.value is not None
        body.graph.outputs.append(inner.value)
