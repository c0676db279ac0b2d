"""A pass that brings a factor to the weights that can take it, past moves of data."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context

__all__: list[str] = []

_MOVES: Final = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
_WEIGHTED: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_MOST: Final = 8


@rule("scale_before_moves", "Mul", "Div", training=False)
def scale_before_moves(ctx: Context, node: ir.Node) -> Outcome:
    """A factor that only moves of data separate from a Conv, Gemm or MatMul is multiplied before them.

    There it goes into the weights, which are constant and used once. One finite number other than 0; nothing else reads
    the values between. Below opset 23, whose Attention takes the factor as it is.
    """
    if ctx.opset(node) >= 23 or ctx.dtype(node.outputs[0]) not in _FLOATS:
        return "it is not float32 or float64, or Attention may take the factor"
    for at, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
        source, factor = node.inputs[at], node.inputs[other]
        number = ctx.scalar(factor)
        rank, own = ctx.rank(source), ctx.rank(factor)
        if number is None or not number or not math.isfinite(number) or rank is None or own is None or own > rank:
            continue
        moves: list[ir.Node] = []
        value = source
        while value is not None and ctx.only_use(value) and len(moves) < _MOST:
            producer = value.producer()
            if (
                producer is None
                or producer.op_type not in _MOVES
                or producer.domain != ""
                or producer.graph is not node.graph
            ):
                break
            moves.append(producer)
            value = producer.inputs[0]
        if not moves or value is None or not _takes(ctx, value):
            continue
        dtype = ctx.dtype(node.outputs[0])
        assert dtype is not None
        constant = ctx.constant(np.array(number, dtype.numpy()), f"{node.outputs[0].name}_factor", near=moves[-1])
        (made,) = ctx.add(node.op_type, [value, constant], before=moves[-1])
        for move in reversed(moves):
            (made,) = ctx.add(move.op_type, [made, *move.inputs[1:]], dict(move.attributes.items()), before=move)
        done = finish(ctx, node, made)
        for move in moves:
            ctx.remove(move)
        return done
    return "no single factor is separated from weights by moves of data alone"


def _takes(ctx: Context, value: ir.Value) -> bool:
    """Whether the weights behind a value can take a factor."""
    node = value.producer()
    if node is None or node.op_type not in _WEIGHTED or node.domain != "" or not ctx.only_use(value):
        return False
    weight = node.inputs[1]
    if weight is None or not ctx.is_constant(weight) or not ctx.only_use(weight):
        return False
    if node.op_type == "MatMul":
        return ctx.rank(weight) == 2
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return (bias is None or ctx.is_constant(bias)) and node.attributes.get_float("beta", 1.0) == 1.0
