"""Axes, splits, pads, slices and counts: attributes that became inputs, and Scatter's new name."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.upgrade.adapters import Rewriter, adapter, only_input, set_attributes, set_input, take_ints

REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)


@adapter(13, "ReduceSum")
@adapter(18, *REDUCTIONS)
def reduction_axes(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``axes`` was an attribute. No axes, or an empty list, meant all of them, as it still does without the input."""
    axes = take_ints(node, "axes")
    if axes:
        set_input(node, 1, rewriter.constant(axes))
    return node


@adapter(13, "Squeeze", "Unsqueeze")
def squeeze_axes(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``axes`` was an attribute. An empty list is not the same as none: it squeezes nothing."""
    axes = take_ints(node, "axes")
    if axes is not None:
        set_input(node, 1, rewriter.constant(axes))
    return node


@adapter(13, "Split")
def split_lengths(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``split`` was an attribute."""
    lengths = take_ints(node, "split")
    if lengths:
        set_input(node, 1, rewriter.constant(lengths))
    return node


@adapter(18, "Split")
def split_count(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """Without lengths, the number of equal parts was the number of outputs and must now be written out."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        set_attributes(node, num_outputs=len(node.outputs))
    return node


@adapter(11, "Pad")
def pad_amounts(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``pads`` and ``value`` were attributes."""
    pads = take_ints(node, "pads")
    value = node.attributes.pop("value", None)
    set_input(node, 1, rewriter.constant(pads or []))
    if value is not None and node.attributes.get_string("mode", "constant") == "constant":
        set_input(node, 2, rewriter.scalar_like(value.as_float(), only_input(node)))
    return node


@adapter(10, "Slice")
def slice_bounds(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``starts``, ``ends`` and ``axes`` were attributes."""
    for index, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        values = take_ints(node, name)
        if values is not None:
            set_input(node, index, rewriter.constant(values))
    return node


@adapter(10, "TopK")
def top_k_count(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """``k`` was an attribute."""
    set_input(node, 1, rewriter.constant([node.attributes.pop("k").as_int()]))
    return node


@adapter(11, "Scatter")
def scatter_name(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """The operator got a new name."""
    node.op_type = "ScatterElements"
    return node
