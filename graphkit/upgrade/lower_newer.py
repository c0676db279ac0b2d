"""Downward from what no runtime loads: the nodes of opsets 27 and 28, in the operators that graphkit.newer names.

Such an operator is written on Tensors, so it is traced into a graph of its own, whose nodes then take the node's place.
"""

from __future__ import annotations

import onnx_ir as ir

from graphkit import interpreter
from graphkit.bodies import apart
from graphkit.body_types import forget
from graphkit.conversion import attribute_value, captured_values
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.newer import NEWER, written
from graphkit.schemas import NEWEST_OPSET
from graphkit.upgrade.adapters import Names
from graphkit.upgrade.lower_table import Cannot, Lowering, lowers


def write_out(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """Put the nodes that say the same in a node's place; the node itself where its form is an older one."""
    values = [*node.inputs, *captured_values(node)]
    types = [None if value is None else lowering.types.get(value) for value in values]
    for value, known in zip(values, types, strict=True):
        if value is not None and (known is None or known.proto is not None):
            raise Cannot(f"the type of its input '{value.name}' is not known, by which it would be written out")
    graph, inputs = apart(types, lowering.source)
    attributes = {a.name: attribute_value(a) for a in node.attributes.values()}
    try:
        with interpreter.using(graph):
            made = written(node.op_type, inputs, attributes, len(node.outputs), node.domain, lowering.source)
    except GraphkitError as error:
        raise Cannot(f"it cannot be written out: {error}") from None
    if made is None:
        return node
    results = [graph.capture(t).value for t in made]
    stands_for = _constants(graph, lowering)
    for value, inner in zip(values, inputs, strict=True):
        if value is not None and inner is not None and inner.value is not None:
            stands_for[inner.value] = value
    for inner_value, value in stands_for.items():
        inner_value.replace_all_uses_with(value)
    for new in list(graph.graph):
        graph.graph.remove(new)
        for output in new.outputs:
            lowering.types[output] = graph.type_of(output)
        lowering.place(new)
        _name_bodies(new, lowering.names)
    lowering.replace([None if value is None else stands_for.get(value, value) for value in results])
    return None


def _constants(graph: Graph, lowering: Lowering) -> dict[ir.Value, ir.Value]:
    """What stands for each initializer of a graph in the graph that is lowered."""
    found = {}
    for value in graph.graph.initializers.values():
        assert value.const_value is not None
        array = value.const_value.numpy()
        found[value] = lowering.constant(array, array.dtype)
    return found


def _name_bodies(node: ir.Node, names: Names) -> None:
    for attribute in node.attributes.values():
        if attribute.type != ir.AttributeType.GRAPH:
            continue
        body = attribute.as_graph()
        forget(body)
        for value in body.inputs:
            value.name = names.fresh(value.name or "state")
        for inner in body:
            inner.name = names.fresh(inner.name or inner.op_type)
            for value in inner.outputs:
                value.name = names.fresh(value.name or inner.op_type)
            _name_bodies(inner, names)


for (_operator, _domain), (_version, _) in NEWER.items():
    if not _domain and _version > NEWEST_OPSET:
        lowers(_version, _operator)(write_out)
