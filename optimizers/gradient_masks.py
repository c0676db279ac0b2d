"""Passes over the masks by which a gradient goes back through Relu and MaxPool."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.no_operation import same_shape

__all__: list[str] = []


def _either_way(node: ir.Node, *operators: str) -> tuple[ir.Node, ir.Node] | None:
    """The producers of a commutative node's two inputs, in the order of ``operators``."""
    for at, other in ((0, 1), (1, 0)):
        first, second = inner_node(node, operators[0], index=at), inner_node(node, operators[1], index=other)
        if first is not None and second is not None:
            return first, second
    return None


def _repeats(node: ir.Node, other: ir.Node) -> bool:
    """Whether two Resizes repeat values, which they neither change nor mix, in the same way."""
    modes = [
        [each.attributes.get_string(name, "") for name in ("mode", "coordinate_transformation_mode", "nearest_mode")]
        for each in (node, other)
    ]
    return (
        len(node.inputs) == len(other.inputs) == 3
        and node.inputs[2] is other.inputs[2]
        and modes == [["nearest", "asymmetric", "floor"]] * 2
        and all("axes" not in each.attributes for each in (node, other))
    )


def _is_share(node: ir.Node, mask: ir.Value) -> bool:
    """Whether a node divides by the number of maxima in each window: NaN where there are none, as where one is NaN."""
    count = inner_node(node, "Conv", "AveragePool", index=1)
    return node.op_type == "Div" and count is not None and count.inputs[0] is mask


@rule("mask_pooled", "Mul")
def mask_pooled(ctx: Context, node: ir.Node) -> Outcome:
    """The mask of a Relu in front of a MaxPool is applied to the gradient before it is spread over the windows.

    What the gradient reaches equals the maximum of its window, so that the one is above zero where the other is, and
    there are fewer maxima. Always exact.
    """
    parts = _either_way(node, "Mul", "Cast")
    if parts is None:
        return "it is not a gradient times a mask"
    spread, positive = parts
    greater = inner_node(positive, "Greater")
    pieces = _either_way(spread, "Cast", "Resize")
    equal = None if pieces is None else inner_node(pieces[0], "Equal")
    if greater is None or equal is None or pieces is None:
        return "it is not the gradient of a MaxPool times the mask of a Relu"
    relu, zero = greater.inputs
    if ctx.scalar(zero) != 0 or relu is None or zero is None:
        return "the mask is not that of what is above zero"
    maxima, repeated = equal.inputs[1], inner_node(equal, "Resize", index=1)
    if equal.inputs[0] is not relu or maxima is None or repeated is None:
        return "the mask and the maxima are not of the same values"
    pooled = inner_node(repeated, "MaxPool")
    cast, resize = pieces
    share = inner_node(resize, "Div")
    if pooled is None or share is None or not _is_share(share, cast.outputs[0]):
        return "it is not the gradient of a MaxPool"
    y, given = pooled.outputs[0], share.outputs[0]
    dtype = ctx.dtype(given)
    if not _repeats(repeated, resize) or not same_shape(ctx.shape(y), ctx.shape(given)) or dtype is None:
        return "the gradient and the maxima are not known to be spread in the same way"
    if not ctx.only_use(spread.outputs[0]):
        return "something else reads the gradient between the two"
    if inner_node(pooled, "Relu") is not None and dtype == ir.DataType.FLOAT:
        (mask,) = ctx.add("Sign", [y], before=node)  # of what is never negative: one node instead of two
    else:
        (above,) = ctx.add("Greater", [y, zero], before=node)
        (mask,) = ctx.add("Cast", [above], {"to": int(dtype)}, before=node)
    (masked,) = ctx.add("Mul", [given, mask], before=node)
    inputs = [masked, *list(resize.inputs)[1:]]
    (wide,) = ctx.add("Resize", inputs, dict(resize.attributes), before=node)
    return finish(ctx, node, ctx.add("Mul", [cast.outputs[0], wide], before=node)[0])


@rule("divide_once", "Mul", tolerance=1e-7)
def divide_once(ctx: Context, node: ir.Node) -> Outcome:
    """A product with the reciprocal of one number is a quotient.

    The reciprocal must be read by nothing else, or the division would be made again for every element.
    """
    for at in (0, 1):
        inner = inner_node(node, "Div", index=at)
        other = node.inputs[1 - at]
        if inner is None or ctx.scalar(inner.inputs[0]) != 1 or ctx.rank(inner.outputs[0]) != 0:
            continue
        if not ctx.only_use(inner.outputs[0]):
            return "something else reads the reciprocal"
        return finish(ctx, node, ctx.add("Div", [other, inner.inputs[1]], before=node)[0])
    return "neither factor is the reciprocal of one number"
