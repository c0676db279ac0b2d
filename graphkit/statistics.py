"""BatchNormalization's running statistics, kept apart from the values they are updated from.

ONNX Runtime's CPU kernel for training_mode=1 writes the updated mean and variance over its inputs' memory, unless they
are outputs of the graph: over a parameter that other nodes read, over the caller's own array. A Sum of one input is a
copy that no optimization of the runtime removes.
"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["keep_apart", "overwritten_inputs"]

_PLACES = ((3, 1), (4, 2))  # input, and the output that is written over it


def overwritten_inputs(node: ir.Node) -> list[int]:
    """Which of a node's inputs the runtime would write over."""
    if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
        return []
    if not node.attributes.get_int("training_mode", 0):
        return []
    return [
        place
        for place, made in _PLACES
        if made < len(node.outputs) and place < len(node.inputs) and not _is_copy(node.inputs[place])
    ]


def _is_copy(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return (
        producer is not None
        and producer.op_type == "Sum"
        and len(producer.inputs) == 1
        and producer.outputs[0].is_graph_output() is False
        and len(producer.outputs[0].uses()) == 1
    )


def keep_apart(graph: ir.Graph) -> int:
    """Put a copy in front of every input that would be written over, in place; returns how many.

    >>> import onnx.parser
    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] x, float[2] s, float[2] m) => (float[N,2] y) {
    ... y, a, b = BatchNormalization<training_mode=1>(x, s, s, m, s)}'''
    >>> keep_apart(ir.from_proto(onnx.parser.parse_model(text)).graph)
    2
    """
    done = 0
    for node in list(graph.all_nodes()):
        owner = node.graph
        for place in overwritten_inputs(node):
            value = node.inputs[place]
            if value is None or owner is None:
                continue
            copy = ir.Node("", "Sum", [value], name=f"{node.name or value.name}_copy_{place}")
            copy.outputs[0].name = f"{value.name}_copy_{node.name or node.outputs[0].name}_{place}"
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            node.prepend(copy)
            node.replace_input_with(place, copy.outputs[0])
            done += 1
    return done
