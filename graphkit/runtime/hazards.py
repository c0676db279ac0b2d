"""Optimizations of ONNX Runtime that break correct models, and the models that they would break.

Each was found by running a model with and without optimizations on ONNX Runtime 1.31. They are turned off only where
the pattern occurs, so every other model keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

__all__ = ["hazardous_optimizers"]


def hazardous_optimizers(model: ir.Model) -> list[str]:
    """Return the names of the optimizations of ONNX Runtime that must not run on ``model``.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (double[N] x) => (double[N] y) {a = Relu(x) y = Clip(a)}'
    >>> hazardous_optimizers(ir.from_proto(onnx.parser.parse_model(text)))
    ['FuseReluClip']
    """
    found: dict[str, None] = {}
    for node in model.graph.all_nodes():
        if node.op_type in _HAZARDS and node.domain in ("", "ai.onnx"):
            applies, names = _HAZARDS[node.op_type]
            if applies(node):
                found.update(dict.fromkeys(names))
    return list(found)


def _pads_a_pool(node: ir.Node) -> bool:
    """Zero padding moved into MaxPool becomes padding with the least value: wrong where all values are negative."""
    return _made_by(node, "Pad")


def _clips_relu_of_other_types(node: ir.Node) -> bool:
    """Relu and Clip of float64 are fused with a float32 bound, and the model does not load."""
    value = node.inputs[0]
    if not _made_by(node, "Relu") or value is None:
        return False
    made = value.producer()
    source = made.inputs[0] if made is not None else None
    dtypes = {one.dtype for one in (value, source) if one is not None and one.dtype is not None}
    return dtypes != {ir.DataType.FLOAT}


def _subtracts_a_flattened_mean(node: ir.Node) -> bool:
    """A mean that lost its dimension broadcasts along another one; the fused LayerNormalization knows only one kind."""
    if "keepdims" not in node.attributes or node.attributes["keepdims"].as_int():
        return False
    return any(use.node.op_type in ("Sub", "Add") for use in node.outputs[0].uses())


def _made_by(node: ir.Node, op_type: str) -> bool:
    value = node.inputs[0] if node.inputs else None
    made = value.producer() if value is not None else None
    return made is not None and made.op_type == op_type


_HAZARDS: dict[str, tuple[Callable[[ir.Node], bool], Iterable[str]]] = {
    "MaxPool": (_pads_a_pool, ("Pad_Fusion",)),
    "Clip": (_clips_relu_of_other_types, ("FuseReluClip",)),
    "ReduceMean": (
        _subtracts_a_flattened_mean,
        ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion"),
    ),
}
