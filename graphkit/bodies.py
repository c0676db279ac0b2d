"""The bodies of If, Loop and Scan: nested graphs, made by tracing functions or read from a model.

A body is a Graph whose parent is the graph around its node. It is found again from its ``onnx_ir`` graph, so that a
gradient rule can walk a body's records as the reverse pass walks the main graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import dims, dtypes, interpreter
from graphkit.body_types import BODIES, body_of, infer_bodies, keep, type_of, weakened, without
from graphkit.conversion import attribute_value, constant_array
from graphkit.core import Record, Tensor, as_tensor
from graphkit.dims import Dims
from graphkit.errors import InputError, OperatorError
from graphkit.graph import STOP, Graph, stopping
from graphkit.inference import Type
from graphkit.interpreter import apply, apply1
from graphkit.operands import constant_ints
from graphkit.source import here

Environment = dict[ir.Value, Tensor | None]
Outputs = Sequence[Tensor]


def nested(parent: Graph, name: str) -> Graph:
    """A new, empty body inside ``parent``."""
    return keep(Graph(ir.Graph([], [], nodes=[], name=parent.unique(name)), parent=parent))


def apart(types: Sequence[Type | None], opset: int) -> tuple[Graph, list[Tensor | None]]:
    """A graph that stands alone, with an input for each type, whose contents are known as far as the type's are."""
    graph = Graph(opset=opset)
    inputs: list[Tensor | None] = []
    for t in types:
        if t is None:
            inputs.append(None)
            continue
        made = graph.input("x", t.dtype, t.dims)
        assert made.value is not None
        graph._types[made.value] = Type(t.dtype, t.dims, t.contents, t.array)
        inputs.append(made)
    return graph, inputs


def records_of(body: Graph) -> Iterator[Record]:
    """The records of a body's nodes, last first."""
    for node in reversed(body.graph):
        if node.outputs:
            record = body.tensor(node.outputs[0]).record
            if record is not None:
                yield record


def inputs_of(body: Graph) -> list[Tensor]:
    return [body.tensor(v) for v in body.graph.inputs]


def outputs_of(body: Graph) -> list[Tensor]:
    return [body.tensor(v) for v in body.graph.outputs]


def add_input(body: Graph, name: str, type_: Type, known: Dims | None) -> Tensor:
    """A new input of a body, of a type's element type (or of its sequence type)."""
    t = body.input(name, type_.dtype, known)
    assert t.value is not None
    if type_.proto is not None:
        t.value.type = ir.serde.deserialize_type_proto_for_type(type_.proto)
        t.value.shape = None
        body._types[t.value] = Type(type_.dtype, None, proto=type_.proto)
    return t


def set_outputs(body: Graph, results: Iterable[Tensor]) -> None:
    """Make tensors the outputs of a body; what the body did not make itself goes through an Identity."""
    with interpreter.using(body):
        for result in results:
            t = body.capture(result)
            value = t.value
            assert value is not None
            producer = value.producer()
            if producer is None or producer.graph is not body.graph or value.is_graph_output():
                t = body.apply("Identity", (t,), None, 1, "")[0]
                value = t.value
                assert value is not None
            known = body.type_of(value)
            if known.dims is not None:
                value.shape = ir.Shape([None if dims.is_anonymous(d) else d for d in known.dims])
            body.graph.outputs.append(value)


# Making nodes with bodies, under a Graph


def make_if(condition: Tensor, then: Callable[[], Outputs], other: Callable[[], Outputs]) -> tuple[Tensor, ...]:
    """If, its branches traced from functions of no arguments that return equally many tensors."""
    parent = _graph()
    bodies = []
    for name, function in (("then", then), ("else", other)):
        body = nested(parent, f"{name}_branch")
        with interpreter.using(body):
            results = [as_tensor(t) for t in function()]
        set_outputs(body, results)
        bodies.append(body.graph)
    return apply("If", (condition,), {"then_branch": bodies[0], "else_branch": bodies[1]}, len(bodies[0].outputs))


Step = Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]]


def make_loop(
    count: Tensor | None,
    condition: Tensor | None,
    states: Sequence[Tensor],
    step: Callable[..., tuple[Tensor | None, Sequence[Tensor], Sequence[Tensor]]],
) -> tuple[Tensor, ...]:
    """Loop: ``step(i, condition, *states)`` gives the next condition (None: the same), states, and the scan outputs."""
    parent = _graph()
    states = [parent.capture(s) for s in states]
    assumed = [type_of(s).dims for s in states]
    loose: set[str] = set()
    while True:
        body = nested(parent, "loop_body")
        i = body.input("iteration", dtypes.INT64, ())
        going = body.input("going", dtypes.BOOL, ())
        given = [add_input(body, "state", type_of(s), d) for s, d in zip(states, assumed, strict=True)]
        with interpreter.using(body):
            after, carried, stacked = step(i, going, *given)
            results = [body.capture(as_tensor(t)) for t in (going if after is None else after, *carried, *stacked)]
        found = [type_of(t).dims for t in results[1 : 1 + len(states)]]
        kept = [weakened(a, f, loose) for a, f in zip(assumed, found, strict=True)]
        if kept == assumed:
            break
        assumed = kept
    set_outputs(body, results)
    return apply("Loop", (count, condition, *states), {"body": body.graph}, len(results) - 1)


def make_scan(
    states: Sequence[Tensor],
    xs: Sequence[Tensor],
    step: Step,
    *,
    directions: Sequence[int] = (),
    axes: Sequence[int] = (),
    output_directions: Sequence[int] = (),
    output_axes: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """Scan: ``step(*states, *elements)`` gives the next states and the scan outputs."""
    parent = _graph()
    states = [parent.capture(s) for s in states]
    xs = [parent.capture(x) for x in xs]
    placed = list(axes) or [0] * len(xs)
    assumed = [type_of(s).dims for s in states]
    loose: set[str] = set()
    while True:
        body = nested(parent, "scan_body")
        given = [add_input(body, "state", type_of(s), d) for s, d in zip(states, assumed, strict=True)]
        given += [add_input(body, "element", type_of(x), without(x.dims, a)) for x, a in zip(xs, placed, strict=True)]
        with interpreter.using(body):
            carried, stacked = step(*given)
            results = [body.capture(as_tensor(t)) for t in (*carried, *stacked)]
        found = [type_of(t).dims for t in results[: len(states)]]
        kept = [weakened(a, f, loose) for a, f in zip(assumed, found, strict=True)]
        if kept == assumed:
            break
        assumed = kept
    set_outputs(body, results)
    stacks = len(results) - len(states)
    attributes = scan_attributes(
        body.graph, len(xs), directions, axes, output_directions[:stacks], output_axes[:stacks]
    )
    return apply("Scan", (*states, *xs), attributes, len(results))


def over_time(
    states: Sequence[Tensor], xs: Sequence[Tensor], step: Step, backwards: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Step through the first axis of ``xs``; the last states, and what each step gave at its own place."""
    if isinstance(interpreter.current(), Graph):
        way = [int(backwards)]
        made = make_scan(states, xs, step, directions=way * len(xs), output_directions=way * 8)
        return list(made[: len(states)]), list(made[len(states) :])
    length = xs[0].shape[0]
    if not length:
        raise OperatorError(f"a recurrence at {here()} has no step: its inputs are of length 0")
    where = constant_ints([0])
    parts = [
        [apply1("Squeeze", p, where) for p in apply("Split", (x, constant_ints([1] * length)), {"axis": 0}, length)]
        for x in xs
    ]
    rows: list[Sequence[Tensor]] = [()] * length
    after: Sequence[Tensor] = list(states)
    for t in range(length - 1, -1, -1) if backwards else range(length):
        after, rows[t] = step(*after, *(p[t] for p in parts))
    stacked = [
        apply1("Concat", *(apply1("Unsqueeze", row[k], where) for row in rows), axis=0) for k in range(len(rows[0]))
    ]
    return list(after), stacked


def scan_attributes(
    body: ir.Graph, count: int, directions: Sequence[int], axes: Sequence[int], output_directions: Sequence[int],
    output_axes: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """Scan's attributes, those that are all zero left out."""
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": count}
    for name, value in (
        ("scan_input_directions", directions), ("scan_input_axes", axes),
        ("scan_output_directions", output_directions), ("scan_output_axes", output_axes),
    ):  # fmt: skip
        if any(value):
            attributes[name] = list(value)
    return attributes


def _graph() -> Graph:
    current = interpreter.current()
    assert isinstance(current, Graph)
    return current


# Running the nodes of a graph again, under the current interpreter


def run_nodes(graph: ir.Graph, env: Environment, subgraphs: Callable[..., Sequence[Tensor | None]]) -> None:
    """Apply every node of a graph in order; nodes with bodies are handed to ``subgraphs``."""
    for node in graph:
        if node.op_type == "Constant" and node.domain == "":
            env[node.outputs[0]] = as_tensor(constant_array(node.outputs[0]))
            continue
        inputs = [None if v is None else look_up(env, v) for v in node.inputs]
        attributes = {a.name: attribute_value(a) for a in node.attributes.values()}
        stops = STOP in node.metadata_props
        with stopping(True) if stops else nullcontext():
            if any(isinstance(a, ir.Graph) for a in attributes.values()):
                made = subgraphs(node, inputs, attributes, env)
            else:
                made = apply(node.op_type, inputs, attributes, len(node.outputs), node.domain)
        if stops and not isinstance(interpreter.current(), Graph):
            made = [t if t is None or not t._needs else interpreter.current().stop_gradient(t) for t in made]
        env.update(zip(node.outputs, made, strict=True))


def look_up(env: Environment, value: ir.Value) -> Tensor:
    found = env.get(value)
    if found is None:
        if value.is_initializer() and value.const_value is not None:
            found = env[value] = as_tensor(value.const_value.numpy())
            return found
        raise InputError(f"the model uses the value '{value.name}' before it is made")
    return found


def run_body(body: ir.Graph, given: Sequence[Tensor], env: Environment) -> list[Tensor]:
    """The nodes of a body once more, under the current Graph."""
    env.update(zip(body.inputs, given, strict=True))
    run_nodes(body, env, lambda node, i, a, e: emit_again(node.op_type, i, a, e))
    return [look_up(env, v) for v in body.outputs]


def emit_again(
    op: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], env: Environment
) -> tuple[Tensor, ...]:
    """The same If, Loop or Scan once more, under the current Graph; ``env`` holds what its bodies capture."""

    def outputs(body: ir.Graph, given: Sequence[Tensor]) -> list[Tensor]:
        return run_body(body, given, env)

    if op == "If":
        condition = inputs[0]
        assert condition is not None
        then, other = attributes["then_branch"], attributes["else_branch"]
        return make_if(condition, lambda: outputs(then, ()), lambda: outputs(other, ()))
    body = attributes["body"]
    if op == "Loop":
        n = len(body.inputs) - 2

        def step(*given: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            made = outputs(body, given)
            return made[0], made[1 : 1 + n], made[1 + n :]

        return make_loop(
            inputs[0], inputs[1] if len(inputs) > 1 else None, [t for t in inputs[2:] if t is not None], step
        )
    count = int(attributes["num_scan_inputs"])
    operands = [t for t in inputs if t is not None]
    n = len(operands) - count

    def scan_step(*given: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        made = outputs(body, given)
        return made[:n], made[n:]

    return make_scan(
        operands[:n], operands[n:], scan_step, directions=attributes.get("scan_input_directions") or (),
        axes=attributes.get("scan_input_axes") or (),
        output_directions=attributes.get("scan_output_directions") or (),
        output_axes=attributes.get("scan_output_axes") or (),
    )  # fmt: skip


def false_like_empty(dtype: dtypes.DType, rank: int | None) -> Any:
    """An array without elements, which stands for a value that the other branch of an If makes."""
    return np.zeros((0,) if rank is None else (0,) * rank, dtype=dtype)


__all__ = ["BODIES", "body_of", "infer_bodies", "keep", "without"]
