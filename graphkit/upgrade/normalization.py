"""Softmax and its kin, BatchNormalization, GroupNormalization: operators whose meaning changed."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.errors import ModelFileError
from graphkit.upgrade.adapters import Rewriter, adapter, is_used, only_input, set_attributes, set_input


@adapter(13, "Softmax", "LogSoftmax", "Hardmax")
def flattening_softmax(node: ir.Node, rewriter: Rewriter) -> ir.Node | None:
    """Before opset 13 the input was seen as a matrix, the dims before ``axis`` by those from ``axis`` on (default 1).

    That is the same as along one axis where at most one of the dims from ``axis`` on is more than 1.
    """
    x = only_input(node)
    axis = node.attributes.get_int("axis", 1)
    dims = rewriter.known_dims(x)
    if axis == -1:
        set_attributes(node, axis=-1)
        return node
    if dims is not None:
        first = axis + len(dims) if axis < 0 else axis
        wide = [index for index in range(first, len(dims)) if dims[index] != 1]
        if len(wide) <= 1:
            set_attributes(node, axis=(wide or [first])[0])
            return node
    matrix = rewriter.apply1("Flatten", [x], axis=axis)
    y = rewriter.apply(node.op_type, [matrix], name=node.name, axis=-1)[0]
    # allowzero: an empty batch is a dim of 0, which is to stay 0 and not to be read off the matrix.
    rewriter.replace([rewriter.apply1("Reshape", [y, rewriter.apply1("Shape", [x])], allowzero=1)])
    return None


@adapter(9, "BatchNormalization")
def batch_normalization_per_element(node: ir.Node, rewriter: Rewriter) -> ir.Node | None:
    """``spatial=0``: statistics, scale and bias have a value for each element of a sample, not for each channel."""
    spatial = node.attributes.pop("spatial", None)
    if spatial is None or spatial.as_int() == 1:
        return node
    if any(is_used(node, index) for index in range(1, len(node.outputs))):
        raise ModelFileError(
            f"the BatchNormalization node {node.name!r} trains with spatial=0, which no newer opset has; export it "
            "again for inference, or with spatial=1"
        )
    x, scale, bias, mean, variance = (only_input(node, index) for index in range(5))
    epsilon = rewriter.scalar_like(node.attributes.get_float("epsilon", 1e-5), variance)
    deviation = rewriter.apply1("Sqrt", [rewriter.apply1("Add", [variance, epsilon])])
    factor = rewriter.apply1("Div", [scale, deviation])
    offset = rewriter.apply1("Sub", [bias, rewriter.apply1("Mul", [mean, factor])])
    rewriter.replace([rewriter.apply1("Add", [rewriter.apply1("Mul", [x, factor]), offset])])
    return None


@adapter(14, "BatchNormalization")
def batch_normalization_mode(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """Training was asked for by the number of outputs, and is now by ``training_mode``; two of the five are gone."""
    if any(is_used(node, index) for index in range(3, len(node.outputs))):
        raise ModelFileError(
            f"something reads the saved mean or variance of the BatchNormalization node {node.name!r}; from opset 14 "
            "on the operator has no such outputs. Export the model again at opset 14 or newer, or for inference"
        )
    if sum(1 for value in node.outputs if value.name) > 1:
        node.resize_outputs(3)
        set_attributes(node, training_mode=1)
    else:
        node.resize_outputs(1)
    return node


@adapter(21, "GroupNormalization")
def group_normalization_per_channel(node: ir.Node, rewriter: Rewriter) -> ir.Node:
    """Scale and bias had a value for each group and now have one for each channel; the inner type is an attribute."""
    x = only_input(node)
    groups = node.attributes["num_groups"].as_int()
    dims = rewriter.known_dims(x)
    channels = None if dims is None else dims[1]
    if channels is not None:
        expanded = rewriter.constant([groups, channels // groups])
    else:
        count = rewriter.apply1("Div", [rewriter.apply1("Shape", [x], start=1, end=2), rewriter.constant([groups])])
        expanded = rewriter.apply1("Concat", [rewriter.constant([groups]), count], axis=0)
    for index in (1, 2):
        column = rewriter.apply1("Unsqueeze", [only_input(node, index), rewriter.constant([1])])
        repeated = rewriter.apply1("Expand", [column, expanded])
        set_input(node, index, rewriter.apply1("Reshape", [repeated, rewriter.constant([-1])]))
    if x.dtype is not None and x.dtype != ir.DataType.FLOAT:
        # The old operator computed in the type of its input, the new one in float32 unless it is told.
        set_attributes(node, stash_type=int(x.dtype))
    return node
