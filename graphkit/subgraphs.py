"""Nodes with bodies of an imported model: interpreted eagerly, written again as the same node in a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import dtypes
from graphkit.bodies import Environment, emit_again, look_up, make_loop, run_body, run_nodes
from graphkit.body_types import infer_bodies, type_of
from graphkit.control import stack, unstack
from graphkit.conversion import attribute_value, captured_values
from graphkit.core import Tensor, as_tensor
from graphkit.errors import OperatorError
from graphkit.graph import Graph
from graphkit.inference import Type
from graphkit.interpreter import apply1, current


def run_subgraphs(
    node: ir.Node, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], env: Environment
) -> Sequence[Tensor | None]:
    """Apply a node with bodies: interpreted eagerly, written again as the same node in a trace."""
    known = node.op_type if not node.domain else ""
    if known not in ("If", "Loop", "Scan", "SequenceMap"):
        raise OperatorError(f"{node.op_type} node '{node.name}' holds a graph, and graphkit does not know what it does")
    if known == "SequenceMap":
        return _sequence_map(attributes["body"], [t for t in inputs if t is not None], env)
    if isinstance(current(), Graph):
        return emit_again(node.op_type, inputs, attributes, env)
    if node.op_type == "If":
        assert inputs[0] is not None
        return _outputs(attributes["then_branch" if inputs[0].numpy().reshape(-1)[0] else "else_branch"], (), env)
    if node.op_type == "Loop":
        return _loop(node, attributes["body"], inputs, env)
    return _scan(node, attributes, [t for t in inputs if t is not None], env)


def _outputs(body: ir.Graph, given: Sequence[Tensor], env: Environment) -> list[Tensor]:
    env.update(zip(body.inputs, given, strict=True))
    run_nodes(body, env, run_subgraphs)
    return [look_up(env, v) for v in body.outputs]


def _loop(node: ir.Node, body: ir.Graph, inputs: Sequence[Tensor | None], env: Environment) -> list[Tensor]:
    limit = None if inputs[0] is None else int(inputs[0].numpy().reshape(-1)[0])
    given = inputs[1] if len(inputs) > 1 else None
    going = True if given is None else bool(given.numpy().reshape(-1)[0])
    states = [t for t in inputs[2:] if t is not None]
    n = len(states)
    rows: list[list[Tensor]] = []
    while going and (limit is None or len(rows) < limit):
        i, c = Tensor(np.array(len(rows), dtype=np.int64)), Tensor(np.array(going))
        results = _outputs(body, [i, c, *states], env)
        going = bool(results[0].numpy().reshape(-1)[0])
        states = results[1 : 1 + n]
        rows.append(results[1 + n :])
    if not rows:
        return [*states, *_nothing(node, inputs, n, env)]
    return [*states, *(stack([row[k] for row in rows]) for k in range(len(rows[0])))]


def _sequence_map(body: ir.Graph, inputs: Sequence[Tensor], env: Environment) -> list[Tensor]:
    """The body applied to each element of a sequence, together with the same element of others, or with tensors."""
    if isinstance(current(), Graph):
        return _traced_sequence_map(body, inputs, env)
    rows = []
    for i in range(len(inputs[0]._array)):
        place = as_tensor(np.int64(i))
        elements = [apply1("SequenceAt", t, place) if isinstance(t._array, list) else t for t in inputs]
        rows.append(_outputs(body, elements, env))
    if not rows:
        kinds = [int(v.dtype) if v.dtype is not None else 1 for v in body.outputs]
        return [apply1("SequenceEmpty", dtype=k) for k in kinds]
    return [apply1("SequenceConstruct", *(row[k] for row in rows)) for k in range(len(rows[0]))]


def _traced_sequence_map(body: ir.Graph, inputs: Sequence[Tensor], env: Environment) -> list[Tensor]:
    """A Loop over the places of the sequence, which gathers the results in sequences."""
    count = len(body.outputs)
    kinds = [int(v.dtype) if v.dtype is not None else 1 for v in body.outputs]

    def step(i: Tensor, going: Tensor, *made: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        elements = [apply1("SequenceAt", t, i) if type_of(t).proto is not None else t for t in inputs]
        results = run_body(body, elements, env)
        return None, [apply1("SequenceInsert", s, r) for s, r in zip(made, results, strict=True)], []

    empty = [apply1("SequenceEmpty", dtype=k) for k in kinds]
    return list(make_loop(apply1("SequenceLength", inputs[0]), None, empty, step))[:count]


def _nothing(node: ir.Node, inputs: Sequence[Tensor | None], states: int, env: Environment) -> list[Tensor]:
    """The scan outputs of a loop that ran no iteration: empty, with the dims that are known without running it."""
    outer = Graph()
    for value in captured_values(node):
        t = look_up(env, value)
        outer._types[value] = Type(t.dtype, t.dims)
    attributes = {a.name: attribute_value(a) for a in node.attributes.values()}
    found = infer_bodies(outer, node, attributes, [None if t is None else Type(t.dtype, t.dims) for t in inputs])
    assert found is not None
    empty = []
    for known in found[states:]:
        shape = () if known is None or known.dims is None else known.dims[1:]
        dtype = dtypes.FLOAT32 if known is None else known.dtype
        empty.append(Tensor(np.zeros((0, *(d if isinstance(d, int) else 0 for d in shape)), dtype=dtype)))
    return empty


def _scan(node: ir.Node, attributes: Mapping[str, Any], operands: Sequence[Tensor], env: Environment) -> list[Tensor]:
    body, count = attributes["body"], int(attributes["num_scan_inputs"])
    n = len(operands) - count
    outputs = len(body.outputs) - n
    axes = attributes.get("scan_input_axes") or [0] * count
    ways = attributes.get("scan_input_directions") or [0] * count
    columns = []
    for x, axis, way in zip(operands[n:], axes, ways, strict=True):
        place = axis % x.ndim
        parts = unstack(x, x.shape[place], place)
        columns.append(parts[::-1] if way else parts)
    states = list(operands[:n])
    rows: list[list[Tensor]] = []
    for elements in zip(*columns, strict=True):
        results = _outputs(body, [*states, *elements], env)
        states = results[:n]
        rows.append(results[n:])
    if not rows:
        return [*states, *_nothing(node, operands, n, env)]
    placed = attributes.get("scan_output_axes") or [0] * outputs
    turned = attributes.get("scan_output_directions") or [0] * outputs
    stacked = []
    for k, (axis, way) in enumerate(zip(placed, turned, strict=True)):
        parts = [row[k] for row in (reversed(rows) if way else rows)]
        stacked.append(stack(parts, axis % (parts[0].ndim + 1)))
    return [*states, *stacked]
