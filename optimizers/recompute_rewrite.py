"""Write a training graph in the order of a schedule, with what is computed again in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit import interpreter
from graphkit.conversion import constant_array
from graphkit.core import Tensor, as_tensor
from graphkit.graph import Graph
from graphkit.interpreter import apply1
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.recompute_forward import Forward, is_masked, outputs_again, overwrites
from graphkit.optimizers.recompute_plan import Choice, schedule
from graphkit.ordering import after, false_after
from graphkit.statistics import keep_apart

__all__ = ["is_recomputed", "rewrite"]

# In the metadata of every node that is there a second time, or that such nodes wait for.
MARK: Final = "graphkit.recomputed"


def is_recomputed(graph: ir.Graph) -> bool:
    """Whether a graph computes activations again already."""
    return any(MARK in node.metadata_props for node in graph)


def rewrite(model: ir.Model, choice: Choice) -> int:
    """Rewrite the model that a choice was made for, in place; returns how many nodes are computed again."""
    forward = choice.forward
    actions = list(schedule(choice))
    behind = set(forward.after)
    graph = Graph.around(model)
    model.graph.remove(forward.after)
    current: dict[ir.Value, ir.Value] = {}
    with interpreter.using(graph):
        for action in actions:
            if action.kind == "wait":
                never = false_after(_typed(graph, forward, v) for v in action.sinks)
                for value in action.waiting:
                    waiting = after(_typed(graph, forward, current.get(value, value), value), never)
                    current[value] = _made(waiting, value)
            elif action.node in behind:
                assert action.node is not None
                _rebind(action.node, current)
                model.graph.append(action.node)
            elif action.kind == "again":
                assert action.node is not None
                _repeat(graph, action.node, current)
    keep_apart(model.graph)
    return sum(1 for _ in choice.nodes())


def _typed(graph: Graph, forward: Forward, value: ir.Value, like: ir.Value | None = None) -> Tensor:
    """The value's Tensor, with a dtype and a rank, which passes need not have written down."""
    known = like if like is not None else value
    if value.type is None or value.dtype is None:
        dtype = forward.dtype(known)
        assert dtype is not None
        value.type = ir.TensorType(dtype)
    if value.shape is None:
        shape = forward.size.shape(known)
        value.shape = None if shape is None else ir.Shape([None] * len(shape))
    return graph.tensor(value)


def _made(t: Tensor, like: ir.Value) -> ir.Value:
    value = t.value
    assert value is not None
    value.type, value.shape = like.type, like.shape
    node = value.producer()
    assert node is not None
    node.metadata_props[MARK] = "1"
    return value


def _repeat(graph: Graph, node: ir.Node, current: dict[ir.Value, ir.Value]) -> None:
    if is_masked(node):
        _drop_again(graph, node, current)
        return
    given = outputs_again(node)
    inputs = [None if v is None else current.get(v, v) for v in node.inputs]
    if overwrites(node):
        # The runtime writes over the running statistics' memory, which must not be that of the first time.
        inputs[3:5] = [None if v is None else apply1("Sum", graph.tensor(v)).value for v in inputs[1:3]]
    made = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        overload=node.overload,
        num_outputs=len(node.outputs),
        name=graph.unique(f"{node.name or node.op_type}_again"),
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props) | {MARK: "1"},
    )
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name = graph.unique(f"{old.name}_again") if old.name else ""
        new.type, new.shape = old.type, old.shape
    current.update((old, new) for old, new in zip(node.outputs, made.outputs, strict=True) if old in given)
    graph.graph.append(made)


def _drop_again(graph: Graph, node: ir.Node, current: dict[ir.Value, ir.Value]) -> None:
    """Dropout by the mask that was drawn, as the runtime's kernel does it."""
    x, mask = node.inputs[0], node.outputs[1]
    assert x is not None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    ratio = None if given is None else constant_array(given)
    probability = np.float32(0.5) if ratio is None else np.float32(ratio.reshape(()))
    t = graph.tensor(current.get(x, x))
    kept = apply1("Mul", graph.tensor(current.get(mask, mask)).astype(t.dtype), t)
    dropped = apply1("Div", kept, as_tensor(np.asarray(np.float32(1) - probability, dtype=t.dtype)))
    current[node.outputs[0]] = _made(dropped, node.outputs[0])


def _rebind(node: ir.Node, current: Mapping[ir.Value, ir.Value]) -> None:
    """Let a node, and its bodies, read the values that stand for others now."""
    for index, value in enumerate(node.inputs):
        if value is not None and value in current:
            node.replace_input_with(index, current[value])
    for body in subgraphs_of(node):
        for inner in body:
            _rebind(inner, current)
        for index, value in enumerate(body.outputs):
            if value in current:
                body.outputs[index] = current[value]
