"""Passes that write what has no kernel for CUDA in operators that have one, where that can be said closely.

The runtime runs an operator without a CUDA kernel on the CPU, and copies what it reads and makes. The inverse
trigonometric and hyperbolic functions, Hardmax, CumProd, Col2Im, Det, DFT, MaxRoiPool and MaxUnpool have neither a
kernel nor another form that is as exact, and stay as they are.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context

__all__: list[str] = []

_CUDA: Final = ("cuda",)
_FLOAT: Final = ir.DataType.FLOAT
_OTHER: Final = "it is not float32"


def _is_float(ctx: Context, node: ir.Node) -> bool:
    return ctx.dtype(node.outputs[0]) == _FLOAT


def _number(ctx: Context, node: ir.Node, number: float, hint: str) -> ir.Value:
    return ctx.constant(np.array(number, np.float32), f"{node.outputs[0].name}_{hint}", near=node)


@rule("sum_for_mean", "Mean", tolerance=1e-6, targets=_CUDA)
def sum_for_mean(ctx: Context, node: ir.Node) -> Outcome:
    """Mean becomes Sum times one over the number of inputs.

    float32, of two inputs or more.
    """
    if not _is_float(ctx, node) or len(node.inputs) < 2:
        return "it is not float32, or of one input"
    (made,) = ctx.add("Sum", list(node.inputs), before=node)
    share = _number(ctx, node, 1 / len(node.inputs), "share")
    return finish(ctx, node, ctx.add("Mul", [made, share], before=node)[0])


@rule("sine_for_tangent", "Tan", tolerance=1e-5, targets=_CUDA)
def sine_for_tangent(ctx: Context, node: ir.Node) -> Outcome:
    """Tan becomes Sin / Cos.

    float32.
    """
    if not _is_float(ctx, node):
        return _OTHER
    (sine,) = ctx.add("Sin", [node.inputs[0]], before=node)
    (cosine,) = ctx.add("Cos", [node.inputs[0]], before=node)
    return finish(ctx, node, ctx.add("Div", [sine, cosine], before=node)[0])


@rule("exponential_for_hyperbolic", "Cosh", "Sinh", tolerance=1e-5, targets=_CUDA)
def exponential_for_hyperbolic(ctx: Context, node: ir.Node) -> Outcome:
    """Cosh becomes h h / 2 + 1 / (2 h h) with h = Exp(|x| / 2), and Sinh that times Tanh(x).

    float32. The halved exponent keeps what is finite finite, and Tanh keeps the digits of small x.
    """
    if not _is_float(ctx, node):
        return _OTHER
    source, half = node.inputs[0], _number(ctx, node, 0.5, "half")
    (made,) = ctx.add("Abs", [source], before=node)
    (made,) = ctx.add("Mul", [made, half], before=node)
    (power,) = ctx.add("Exp", [made], before=node)
    (rising,) = ctx.add("Mul", [power, half], before=node)
    (rising,) = ctx.add("Mul", [rising, power], before=node)
    (falling,) = ctx.add("Div", [half, power], before=node)
    (falling,) = ctx.add("Div", [falling, power], before=node)
    (made,) = ctx.add("Add", [rising, falling], before=node)
    if node.op_type == "Sinh":
        (slope,) = ctx.add("Tanh", [source], before=node)
        (made,) = ctx.add("Mul", [slope, made], before=node)
    return finish(ctx, node, made)


@rule("elu_for_celu", "Celu", tolerance=1e-6, targets=_CUDA)
def elu_for_celu(ctx: Context, node: ir.Node) -> Outcome:
    """Celu with slope a becomes a * Elu(x / a), or Relu(x) + a * Elu(Min(x, 0) / a) where x / a may be infinite.

    float32, a above 0; a negative zero, of which Celu makes 0.0, stays one.
    """
    if not _is_float(ctx, node):
        return _OTHER
    slope, made = node.attributes.get_float("alpha", 1.0), node.inputs[0]
    if not slope > 0:
        return "its slope is not above 0"
    if slope == 1:
        return finish(ctx, node, ctx.add("Elu", [made], before=node)[0])
    size = _number(ctx, node, slope, "alpha")
    above = None
    if slope < 1:
        (above,) = ctx.add("Relu", [made], before=node)
        (made,) = ctx.add("Min", [made, _number(ctx, node, 0, "zero")], before=node)
    (made,) = ctx.add("Div", [made, size], before=node)
    (made,) = ctx.add("Elu", [made], before=node)
    (made,) = ctx.add("Mul", [made, size], before=node)
    return finish(ctx, node, made if above is None else ctx.add("Add", [above, made], before=node)[0])


@rule("average_for_norm_pool", "LpPool", tolerance=1e-5, targets=_CUDA)
def average_for_norm_pool(ctx: Context, node: ir.Node) -> Outcome:
    """LpPool of p = 1 or 2 becomes the AveragePool of |x| or x x, times the elements of a window, and Sqrt for 2.

    float32, no dilation, no ceil_mode, and explicit pads, which count as zeros in both.
    """
    attributes = node.attributes
    power, kernel = attributes.get_int("p", 2), tuple(attributes.get_ints("kernel_shape", ()))
    if not _is_float(ctx, node) or power not in (1, 2) or not kernel or ctx.opset(node) < 7:
        return "it is not float32, or its p is not 1 or 2"
    dilated = any(size != 1 for size in attributes.get_ints("dilations", ()))
    if dilated or attributes.get_int("ceil_mode", 0) == 1 or attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return "it has dilations, ceil_mode or auto_pad"
    source = node.inputs[0]
    (made,) = ctx.add("Abs", [source], before=node) if power == 1 else ctx.add("Mul", [source, source], before=node)
    kept = {name: attribute for name, attribute in attributes.items() if name in ("kernel_shape", "pads", "strides")}
    (made,) = ctx.add("AveragePool", [made], {**kept, "count_include_pad": 1}, before=node)
    (made,) = ctx.add("Mul", [made, _number(ctx, node, math.prod(kernel), "window")], before=node)
    if power == 2:
        (made,) = ctx.add("Sqrt", [made], before=node)
    return finish(ctx, node, made)


@rule("reduce_for_global_norm_pool", "GlobalLpPool", tolerance=1e-6, targets=_CUDA)
def reduce_for_global_norm_pool(ctx: Context, node: ir.Node) -> Outcome:
    """GlobalLpPool of p = 1 or 2 becomes ReduceL1 or ReduceL2 over the dims behind the second.

    float32 of known rank.
    """
    rank, power = ctx.rank(node.inputs[0]), node.attributes.get_int("p", 2)
    if not _is_float(ctx, node) or rank is None or rank < 3 or power not in (1, 2):
        return "it is not float32 of known rank, or its p is not 1 or 2"
    axes, operator = list(range(2, rank)), f"ReduceL{power}"
    if ctx.opset(node) < 18:
        return finish(ctx, node, ctx.add(operator, [node.inputs[0]], {"axes": axes, "keepdims": 1}, before=node)[0])
    along = ctx.constant(np.array(axes, np.int64), f"{node.outputs[0].name}_axes", near=node)
    return finish(ctx, node, ctx.add(operator, [node.inputs[0], along], before=node)[0])


@rule("split_mean_variance", "MeanVarianceNormalization", tolerance=1e-5, targets=_CUDA)
def split_mean_variance(ctx: Context, node: ir.Node) -> Outcome:
    """MeanVarianceNormalization becomes the difference from the mean over its root mean square and 1e-9.

    float32, opset 9 or newer.
    """
    if not _is_float(ctx, node) or ctx.opset(node) < 9:
        return _OTHER
    axes, source = list(node.attributes.get_ints("axes", (0, 2, 3))), node.inputs[0]
    along = None
    if ctx.opset(node) >= 18:
        along = ctx.constant(np.array(axes, np.int64), f"{node.outputs[0].name}_axes", near=node)

    def mean(value: ir.Value | None) -> ir.Value:
        if along is not None:
            return ctx.add("ReduceMean", [value, along], before=node)[0]
        return ctx.add("ReduceMean", [value], {"axes": axes}, before=node)[0]

    (made,) = ctx.add("Sub", [source, mean(source)], before=node)
    (square,) = ctx.add("Mul", [made, made], before=node)
    (root,) = ctx.add("Sqrt", [mean(square)], before=node)
    (root,) = ctx.add("Add", [root, _number(ctx, node, 1e-9, "epsilon")], before=node)
    return finish(ctx, node, ctx.add("Div", [made, root], before=node)[0])


@rule("fuse_hard_swish", "Mul", tolerance=1e-6, targets=_CUDA)
def fuse_hard_swish(ctx: Context, node: ir.Node) -> Outcome:
    """x times its HardSigmoid of slope 1/6 becomes HardSwish, which has a kernel on CUDA, but none on the CPU.

    float32, from opset 14 on.
    """
    if not _is_float(ctx, node) or ctx.opset(node) < 14:
        return "it is not float32, or of an opset before 14"
    for index in (0, 1):
        inner, source = inner_node(node, "HardSigmoid", index=index), node.inputs[1 - index]
        if inner is None or inner.inputs[0] is not source or not ctx.only_use(inner.outputs[0]):
            continue
        slope, offset = inner.attributes.get_float("alpha", 0.2), inner.attributes.get_float("beta", 0.5)
        if math.isclose(slope, 1 / 6, rel_tol=1e-6) and offset == 0.5:
            done = finish(ctx, node, ctx.add("HardSwish", [source], before=node)[0])
            ctx.remove(inner)
            return done
    return "it is not x times HardSigmoid(x) with the slope 1/6"
