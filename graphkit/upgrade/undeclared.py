"""Shapes that a file does not declare, for the rewrites that come out smaller when they know one."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

# Operator -> the version before which its rewrite asks for the rank of its first input.
_ASKING = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13}


def undeclared_shapes(model: ir.Model) -> dict[ir.Value, ir.Shape]:
    """Infer the shapes that rewrites in the main graph and its bodies will ask for; nothing where none is missing.

    The standard's own inference is run on a copy, so that the model does not gain declarations it did not have.
    """
    version = model.graph.opset_imports.get("", 0)
    nodes = list(model.graph.all_nodes())
    missing = [index for index, node in enumerate(nodes) if _asks(node, version)]
    if not missing:
        return {}
    copy = model.clone()
    ShapeInferencePass(check_type=False, strict_mode=False)(copy)
    copied = list(copy.graph.all_nodes())
    found = {}
    for index in missing:
        value, inferred = nodes[index].inputs[0], copied[index].inputs[0]
        if value is not None and inferred is not None and inferred.shape is not None:
            found[value] = inferred.shape
    return found


def _asks(node: ir.Node, version: int) -> bool:
    if node.domain != "" or version >= _ASKING.get(node.op_type, 0) or node.attributes.get_int("axis", 1) == -1:
        return False
    value = node.inputs[0]
    return value is not None and value.shape is None
