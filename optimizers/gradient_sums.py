"""Passes over the sums that bring a gradient down to the shape of what it belongs to."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.no_operation import drop

__all__: list[str] = []


def _summed_to(ctx: Context, node: ir.Node) -> ir.Value | None:
    """The value whose axes of length 1 are summed over, found while the model runs; None for any other ReduceSum."""
    axes = inner_node(node, "NonZero", "Reshape", "Squeeze", "Flatten", "Transpose", index=1)
    for _ in range(3):
        if axes is None or axes.op_type == "NonZero":
            break
        axes = inner_node(axes, "NonZero", "Reshape", "Squeeze", "Flatten", "Transpose")
    equal = None if axes is None else inner_node(axes, "Equal")
    if equal is None:
        return None
    for at, other in ((0, 1), (1, 0)):
        shape, ones = inner_node(equal, "Shape", index=at), ctx.ints(equal.inputs[other])
        if shape is not None and ones is not None and set(ones) == {1} and not shape.attributes:
            return shape.inputs[0]
    return None


@rule("resolve_sum", "ReduceSum", tolerance=1e-7)
def resolve_sum(ctx: Context, node: ir.Node) -> Outcome:
    """A sum over the axes where another value has length 1, found while the model runs, gets constant axes, or goes.

    Each dimension must be 1 there, or known to be the same on both sides: over such an axis, if its length turns out to
    be 1, the sum changes nothing (but -0.0 to 0.0).
    """
    target = _summed_to(ctx, node)
    if target is None:
        return "its axes are not those where another value has length 1"
    if node.attributes.get_int("keepdims", 1) != 1 or node.attributes.get_int("noop_with_empty_axes", 0) != 1:
        return "it does not keep its axes, or sums over all where there are none"
    source, wanted = ctx.shape(node.inputs[0]), ctx.shape(target)
    if source is None or wanted is None or len(source) != len(wanted):
        return "the ranks are not known to be the same"
    axes = [axis for axis, dim in enumerate(wanted) if dim == 1 and source[axis] != 1]
    if any(dim != source[axis] for axis, dim in enumerate(wanted) if axis not in axes):
        return f"{source} and {wanted} may differ where the second is not 1"
    if not axes:
        return drop(ctx, node, node.inputs[0])
    constant = ctx.constant(np.array(axes, np.int64), f"{node.outputs[0].name}_axes", near=node)
    ctx.set_inputs(node, [node.inputs[0], constant])
    return True
