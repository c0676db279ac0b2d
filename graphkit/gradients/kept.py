"""Outputs that the reverse pass reads and the forward pass was not asked for: masks, indices, saved statistics."""

from __future__ import annotations

import onnx_ir as ir

from graphkit import dims, dtypes
from graphkit.core import Record, Tensor
from graphkit.graph import Graph
from graphkit.inference import infer


def kept_output(r: Record, index: int) -> Tensor:
    """An output that a rule reads, whether or not the operator was applied with it.

    Eager asks for it when it keeps the record (``keeps=`` of the rule says so); a graph's node is given it now. Nothing
    else changes: these operators compute the same whichever outputs are asked for, and an existing mask or index is
    the one that the forward pass used.
    """
    first = r.made[0]
    if isinstance(first, Tensor) and first.graph is not None and (index >= len(r.made) or not r.made[index].name):
        _extend(first.graph, r, index + 1)
    return r.outputs[index]


def _extend(graph: Graph, r: Record, count: int) -> None:
    """Give the node of a record its first ``count`` outputs, in place."""
    made = list(r.made)
    node = made[0].value.producer()
    if count > len(node.outputs):
        node.resize_outputs(count)
    given = r.inputs[: len(r.inputs) - r.captured]
    types = [None if t is None or t.value is None else graph.type_of(t.value) for t in given]
    found = infer(r.op, r.domain, graph.opset, r.attributes, types, count)
    for index, (output, known) in enumerate(zip(node.outputs[:count], found, strict=True)):
        if index < len(made) and output.name:
            continue
        output.name = graph.unique(f"{r.op.lower()}_kept")
        if known is not None:
            graph._types[output] = known
            output.type = ir.TensorType(ir.DataType(dtypes.to_onnx(known.dtype)))
            shape = known.dims
            output.shape = None if shape is None else ir.Shape([None if dims.is_anonymous(d) else d for d in shape])
        t = graph.tensor(output)
        t.name, t.record, t.index = output.name, r, index
        made[index : index + 1] = [t]
    r.made = made
