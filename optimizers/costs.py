"""Passes that spell something more cheaply for the runtime's CPU provider, without a change in any bit."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context
from graphkit.optimizers.no_operation import drop, same_shape

__all__: list[str] = []


@rule("cast_condition", "Where")
def cast_condition(ctx: Context, node: ir.Node) -> Outcome:
    """Where between the constants 1 and 0, or 0 and 1, is a Cast of the condition (or of its negation).

    A Where costs twenty times as much. Both are single numbers, the 0 has no sign, and the condition has the shape of
    the result; for bool there is nothing left to do at all.
    """
    condition = node.inputs[0]
    yes, no = ctx.scalar(node.inputs[1]), ctx.scalar(node.inputs[2])
    dtype = ctx.dtype(node.outputs[0])
    if (
        yes is None
        or no is None
        or (yes, no) not in ((1, 0), (0, 1))
        or dtype is None
        or condition is None
        or np.signbit(no)
        or np.signbit(yes)
    ):
        return "its branches are not the constants 1 and 0"
    if not same_shape(ctx.shape(condition), ctx.shape(node.outputs[0])):
        return "the condition is not known to have the shape of the result"
    if dtype == ir.DataType.BOOL and yes:
        return drop(ctx, node, condition)
    if not yes:
        (condition,) = ctx.add("Not", [condition], before=node)
    if dtype != ir.DataType.BOOL:
        (condition,) = ctx.add("Cast", [condition], {"to": int(dtype)}, before=node)
    return finish(ctx, node, condition)


@rule("product_for_einsum", "Einsum", tolerance=1e-6)
def product_for_einsum(ctx: Context, node: ir.Node) -> Outcome:
    """An Einsum that is a plain product of matrices becomes MatMul.

    The same leading axes in both inputs and the result, then rows and columns: no diagonal or transpose, and no
    broadcasting, neither of leading axes nor of the one that is summed over.
    """
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    parts = left.split(",")
    if not arrow or len(parts) != 2 or not left.replace(",", "").isalpha() or min(len(p) for p in parts) < 2:
        return "it is not a product of two matrices"
    a, b = parts
    lead = a[:-2]
    rows, inner, columns = a[-2], a[-1], b[-1]
    letters = {rows, inner, columns, *lead}
    if b != f"{lead}{inner}{columns}" or result != f"{lead}{rows}{columns}" or len(letters) != len(lead) + 3:
        return "its equation is not that of MatMul"
    if not _same_dims(ctx, node, len(lead)):
        return "the leading dims, or those summed over, are not known to be the same"
    return finish(ctx, node, ctx.add("MatMul", node.inputs, before=node)[0])


def _same_dims(ctx: Context, node: ir.Node, lead: int) -> bool:
    """Whether the leading dims are the same, and the first's last is the second's last but one."""
    a, b = (ctx.shape(value) for value in node.inputs)
    if a is None or b is None or len(a) != lead + 2 or len(b) != lead + 2:
        return False
    return (*a[:lead], a[-1]) == (*b[:lead], b[-2])
