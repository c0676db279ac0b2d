"""Dropout of a model file, by a random stream whose state a training graph carries and a checkpoint keeps.

The operator's own generator lives inside a session: it starts again with every session, so a resumed training would
drop other elements than one that was not interrupted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import interpreter, random
from graphkit.core import Tensor
from graphkit.graph import Graph
from graphkit.interpreter import apply1
from graphkit.methods import scalar

__all__ = ["carry_dropout"]


def carry_dropout(graph: Graph) -> dict[str, ir.Value]:
    """Replace every Dropout of the main graph that is in training mode, with a constant ratio, in place.

    Returns:
        The next value of each new state, by the name of the initializer that holds its first. The graph must be
        adopted anew: its records are those of the nodes before.
    """
    following: dict[str, ir.Value] = {}
    for node in list(graph.graph):
        if node.op_type != "Dropout" or node.domain or len(node.inputs) < 3:
            continue
        training, ratio = (_constant(graph, node.inputs[n]) for n in (2, 1))
        if training is None or not training.all() or (node.inputs[1] is not None and ratio is None):
            continue
        probability = 0.5 if ratio is None else float(ratio.reshape(()))
        x = node.inputs[0]
        if x is None or not 0 < probability < 1:
            continue
        seed = node.attributes.get("seed")
        key = random.new_key(None if seed is None else np.random.default_rng(seed.as_int() % 2**63))
        key.name = f"{node.name or 'dropout'}.key"
        _replace(graph, node, graph.tensor(x), key, 1.0 - probability, following)
    return following


def _constant(graph: Graph, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    found = None if value is None else graph.array_of(graph.tensor(value))
    return None if found is None else np.asarray(found)


def _replace(graph: Graph, node: ir.Node, x: Tensor, key: Tensor, keep: float, following: dict[str, ir.Value]) -> None:
    end = graph.graph[-1]
    with interpreter.using(graph):
        mask = random.keep_mask(key, x, keep)
        scale = apply1("Mul", mask.astype(x.dtype), scalar(1.0 / keep, x.dtype))
        dropped = apply1("Mul", x, scale)
        advanced = random.advance(key)
    assert advanced.value is not None
    following[graph.initializer_names[id(key)]] = advanced.value
    made = []
    while graph.graph[-1] is not end:
        made.append(graph.graph[-1])
        graph.graph.remove(made[-1])
    graph.graph.insert_before(node, made[::-1])
    for old, new in zip(node.outputs, (dropped.value, mask.value), strict=False):
        assert new is not None
        if old.is_graph_output():
            new.name, old.name = old.name, f"{old.name}_of_operator"
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.graph.remove(node, safe=True)
