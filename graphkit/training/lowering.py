"""SoftmaxCrossEntropyLoss in a form that runs well.

ONNX Runtime expands the operator into 11 to 21 small nodes when it loads a model. For the plain mean or sum this is
five, of which the gradient shares the first.
"""

from __future__ import annotations

import onnx_ir as ir

from graphkit import interpreter
from graphkit.graph import Graph
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

__all__ = ["lower_losses"]


def lower_losses(graph: Graph) -> None:
    """Rewrite every unweighted SoftmaxCrossEntropyLoss of the main graph, in place.

    A label out of range is still refused by the runtime, by GatherElements.
    """
    for node in list(graph.graph):
        if node.op_type != "SoftmaxCrossEntropyLoss" or node.domain or len(node.inputs) != 2:
            continue
        reduction = node.attributes.get_string("reduction", "mean")
        if "ignore_index" in node.attributes or reduction not in ("mean", "sum"):
            continue
        scores, labels = (graph.tensor(v) for v in node.inputs if v is not None)
        end = graph.graph[-1]
        with interpreter.using(graph):
            logarithms = apply1("LogSoftmax", scores, axis=1)
            column = apply1("Unsqueeze", labels, constant_ints([1]))
            picked = apply1("GatherElements", logarithms, column, axis=1)
            reduced = apply1("ReduceMean" if reduction == "mean" else "ReduceSum", picked, keepdims=0)
            loss = apply1("Neg", reduced)
        made = []
        while graph.graph[-1] is not end:
            made.append(graph.graph[-1])
            graph.graph.remove(made[-1])
        graph.graph.insert_before(node, made[::-1])
        for old, new in zip(node.outputs, (loss.value, logarithms.value), strict=False):
            assert new is not None
            if old.is_graph_output():
                new.name, old.name = old.name, f"{old.name}_of_operator"
                new.shape = old.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.graph.remove(node, safe=True)
