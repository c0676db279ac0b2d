"""DFT: its axis became an input."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.upgrade.adapters import Rewriter, adapter, set_input


@adapter(20, "DFT")
def dft_axis(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``axis`` was an attribute with default 1, and is an input with default -2."""
    attribute = node.attributes.pop("axis", None)
    set_input(node, 2, rewriter.constant(1 if attribute is None else attribute.as_int()))
    return node
