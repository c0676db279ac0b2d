"""Clip, Dropout: attributes that became inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit.upgrade.adapters import Rewriter, adapter, is_used, only_input, set_input


@adapter(11, "Clip")
def clip_bounds(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``min`` and ``max`` were attributes. A bound that was left out stays out: the defaults did not change."""
    x = only_input(node)
    for index, name in ((1, "min"), (2, "max")):
        attribute = node.attributes.pop(name, None)
        if attribute is not None:
            set_input(node, index, rewriter.scalar_like(attribute.as_float(), x))
    return node


@adapter(10, "Dropout")
def dropout_mask(node: ir.Node, rewriter: Rewriter) -> ir.Node | None:
    """The mask was of the data's type and is now boolean."""
    if not is_used(node, 1):
        return node
    x = only_input(node)
    ratio = rewriter.constant(node.attributes.get_float("ratio", 0.5), np.float32)
    y, mask = rewriter.apply("Dropout", [x, ratio], name=node.name, outputs=2)
    mask.type = ir.TensorType(ir.DataType.BOOL)
    rewriter.replace([y, rewriter.apply1("CastLike", [mask, x])])
    return None


@adapter(12, "Dropout")
def dropout_ratio(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``ratio`` was an attribute. The old form never drops in inference, nor does the new one without training_mode."""
    attribute = node.attributes.pop("ratio", None)
    if attribute is not None:
        set_input(node, 1, rewriter.constant(attribute.as_float(), np.float32))
    return node
