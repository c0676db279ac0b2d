"""Nodes in an order in which they can run, and an error for a graph that has none."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.errors import ModelFileError

__all__ = ["is_sorted", "put_in_order"]


def put_in_order(model: ir.Model, where: str) -> None:
    """Sort graphs whose nodes stand before what they read, in place; ModelFileError naming the nodes of a cycle.

    ONNX asks for sorted nodes, and ONNX Runtime does not insist; graphkit reads such files as it does.
    """
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if not is_sorted(graph):
            try:
                graph.sort()
            except ValueError:
                names = ", ".join(node.name or f"{node.op_type} ({node.outputs[0].name})" for node in _cycle(graph))
                raise ModelFileError(f"{where}: the nodes {names} read one another in a circle") from None


def is_sorted(graph: ir.Graph) -> bool:
    """Whether every node, those of bodies too, stands behind what it reads."""
    seen: set[ir.Node] = set()
    for node in graph.all_nodes():
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            # A node around a body comes before the body's nodes here, and what a body reads must be made before it.
            if producer is not None and producer not in seen:
                return False
        seen.add(node)
    return True


def _cycle(graph: ir.Graph) -> list[ir.Node]:
    """The nodes of one circle, found by walking against the arrows among nodes that never become ready."""
    waiting = {node: {v.producer() for v in node.inputs if v is not None} - {None} for node in graph}
    ready = [node for node, needs in waiting.items() if not needs]
    while ready:
        done = ready.pop()
        waiting.pop(done, None)
        for node, needs in waiting.items():
            if done in needs:
                needs.discard(done)
                if not needs:
                    ready.append(node)
    if not waiting:
        return list(graph)[:3]
    walked: dict[ir.Node, None] = {}
    node = next(iter(waiting))
    while node not in walked:
        walked[node] = None
        node = next(n for n in waiting[node] if n is not None)
    chain = list(walked)
    return chain[chain.index(node) :][:10]
