"""Recurrent layers with the batch first, which ONNX Runtime does not run, with time first, which it does."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.newer.recurrent import STATES, TURNED_INPUTS, TURNED_OUTPUTS
from graphkit.upgrade.adapters import Names


def time_major(model: ir.Model) -> None:
    """Write every RNN, GRU and LSTM of layout 1 in layout 0, between transposes, in place.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[2, 5, 3] x, float[1, 4, 3] w, float[1, 4, 4] r) => (float[2, 5, 1, 4] y) {
    ...     y = RNN<hidden_size = 4, layout = 1>(x, w, r)}'''
    >>> model = ir.from_proto(onnx.parser.parse_model(text))
    >>> time_major(model)
    >>> [node.op_type for node in model.graph]
    ['Transpose', 'RNN', 'Transpose']
    """
    found = batchwise(model)
    if not found:
        return
    names = Names([model.graph, *model.functions.values()])
    for node in found:
        _rewrite(node, names)


def batchwise(model: ir.Model) -> list[ir.Node]:
    """The recurrent nodes of layout 1."""
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return [node for scope in scopes for node in ir.traversal.RecursiveGraphIterator(scope) if _is_batchwise(node)]


def _is_batchwise(node: ir.Node) -> bool:
    layout = node.attributes.get("layout")
    return node.op_type in ("RNN", "GRU", "LSTM") and not node.domain and layout is not None and layout.as_int() == 1


def _rewrite(node: ir.Node, names: Names) -> None:
    graph = node.graph
    assert graph is not None
    node.attributes.pop("layout")
    for place in TURNED_INPUTS:
        given = node.inputs[place] if place < len(node.inputs) else None
        if given is not None:
            made = _transpose(node, given, STATES, names)
            graph.insert_before(node, made)
            node.replace_input_with(place, made.outputs[0])
    for output, perm in zip(list(node.outputs), TURNED_OUTPUTS, strict=False):
        if not output.name:
            continue
        uses = list(output.uses())
        made = _transpose(node, output, perm, names)
        result, name = made.outputs[0], output.name
        graph.insert_after(node, made)
        for user, index in uses:
            user.replace_input_with(index, result)
        for index, value in enumerate(graph.outputs):
            if value is output:
                graph.outputs[index] = result
        result.type, result.shape = output.type, output.shape
        output.name, output.shape = result.name, None
        result.name = name


def _transpose(node: ir.Node, value: ir.Value, perm: list[int], names: Names) -> ir.Node:
    made = ir.Node(
        "", "Transpose", [value], [ir.AttrInt64s("perm", perm)],
        name=names.fresh(f"{node.name or node.op_type}/Transpose"), metadata_props=dict(node.metadata_props),
    )  # fmt: skip
    made.outputs[0].name = names.fresh(f"{value.name}_by_time")
    if value.type is not None:
        made.outputs[0].type = value.type
    return made
