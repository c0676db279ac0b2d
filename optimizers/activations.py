"""Passes that put the pieces of an activation function together again."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.no_operation import drop, same_shape
from graphkit.optimizers.patterns import Pattern, match

__all__ = ["finish"]

_FLOAT: Final = ir.DataType.FLOAT
# What the runtime takes a missing bound of Clip for: infinities are cut to it.
_LARGEST: Final = {
    ir.DataType.FLOAT: float(np.finfo(np.float32).max),
    ir.DataType.DOUBLE: float(np.finfo(np.float64).max),
}


def finish(ctx: Context, node: ir.Node, made: ir.Value) -> Outcome:
    """Let a new value stand for the node's output."""
    ctx.replace(node.outputs[0], made)
    ctx.remove(node)
    return True


def _bounds(ctx: Context, node: ir.Node) -> tuple[float, float] | None:
    """The numbers between which Clip or Relu keeps its input; None where they are not known."""
    largest = _LARGEST.get(ctx.dtype(node.outputs[0]) or ir.DataType.UNDEFINED)
    if largest is None:
        return None
    if node.op_type == "Relu":
        return 0.0, math.inf
    if ctx.opset(node) < 11:
        return node.attributes.get_float("min", -largest), node.attributes.get_float("max", largest)
    found = [-largest, largest]
    for index in (1, 2):
        if len(node.inputs) > index and node.inputs[index] is not None:
            number = ctx.scalar(node.inputs[index])
            if number is None or math.isnan(number):
                return None
            found[index - 1] = float(number)
    return found[0], found[1]


def _clip(ctx: Context, node: ir.Node, source: ir.Value | None, low: float, high: float) -> ir.Value | None:
    dtype = ctx.dtype(node.outputs[0])
    largest = _LARGEST.get(dtype or ir.DataType.UNDEFINED, 0.0)
    if low == 0 and high == math.inf:
        return ctx.add("Relu", [source], before=node)[0]
    if math.isinf(low) or math.isinf(high) or dtype is None or (dtype != _FLOAT and ctx.opset(node) < 12):
        return None  # before opset 12 the runtime clips float32 only
    if ctx.opset(node) < 11:
        attributes = {name: number for name, number in (("min", low), ("max", high)) if abs(number) != largest}
        return ctx.add("Clip", [source], attributes, before=node)[0]
    inputs: list[ir.Value | None] = [source]
    for what, number in (("min", low), ("max", high)):
        needed = abs(number) != largest
        array = np.array(number, dtype.numpy())
        inputs.append(ctx.constant(array, f"{node.outputs[0].name}_{what}", near=node) if needed else None)
    while inputs[-1] is None:
        inputs.pop()
    return ctx.add("Clip", inputs, before=node)[0]


@rule("merge_clips", "Clip", "Relu")
def merge_clips(ctx: Context, node: ir.Node) -> Outcome:
    """Clip and Relu in a row become one.

    Constant bounds, also disjoint ones that do not meet in 0; nothing else reads the value between.
    """
    inner = inner_node(node, "Clip", "Relu")
    if inner is None:
        return "its input is not a Clip or Relu"
    first, second = _bounds(ctx, inner), _bounds(ctx, node)
    if first is None or second is None or first[0] > first[1] or second[0] > second[1]:
        return "the bounds are not known, or are the wrong way round"
    if second[0] <= first[0] and first[1] <= second[1]:
        return drop(ctx, node, inner.outputs[0])
    if not ctx.only_use(inner.outputs[0]):
        return "something else reads the value between"
    # The second Clip moves both ends of what the first leaves; where they do not overlap, both to one end.
    low, high = (min(max(bound, second[0]), second[1]) for bound in first)
    if low == high == 0:
        return "both bounds would be 0, and a Clip between them keeps the sign of a zero that goes in"
    made = _clip(ctx, node, inner.inputs[0], low, high)
    return "no Clip has these bounds" if made is None else finish(ctx, node, made)


@rule("fuse_clip", "Min", "Max")
def fuse_clip(ctx: Context, node: ir.Node) -> Outcome:
    """Max and Min with one number each become Clip.

    Both numbers are constant, the lower one below the other, and not 0: Max(-0.0, 0.0) is 0.0, and Clip keeps -0.0.
    """
    inner = inner_node(node, "Max" if node.op_type == "Min" else "Min", index=0)
    index = 0
    if inner is None and len(node.inputs) == 2:
        inner, index = inner_node(node, "Max" if node.op_type == "Min" else "Min", index=1), 1
    if inner is None or len(node.inputs) != 2 or len(inner.inputs) != 2 or not ctx.only_use(inner.outputs[0]):
        return "it is not one of Max and Min of two inputs, one in the other"
    number = ctx.scalar(node.inputs[1 - index])
    for at in (0, 1):
        source, other = inner.inputs[1 - at], ctx.scalar(inner.inputs[at])
        if number is None or other is None or number == 0 or other == 0 or math.isnan(number) or math.isnan(other):
            continue
        low, high = (other, number) if node.op_type == "Min" else (number, other)
        if low >= high or ctx.dtype(node.outputs[0]) not in _LARGEST:
            continue
        if not same_shape(ctx.shape(source), ctx.shape(node.outputs[0])):
            continue
        made = _clip(ctx, node, source, float(low), float(high))
        if made is not None:
            return finish(ctx, node, made)
    return "the bounds are not two constants other than 0 that leave the shape as it is"


_SIXTH: Final = 1 / 6
_RELU_SIX: Final = ("Clip", ("Add", "x", 3.0), 0.0, 6.0)
_HARD_SIGMOIDS: Final[tuple[Pattern, ...]] = (("Div", _RELU_SIX, 6.0), ("Mul", _RELU_SIX, _SIXTH))
_HARD_SWISHES: Final[tuple[Pattern, ...]] = (
    ("Div", ("Mul", "x", _RELU_SIX), 6.0),
    ("Mul", ("Mul", "x", _RELU_SIX), _SIXTH),
)
_OLD_RELU_SIX: Final = ("Clip", ("Add", "x", 3.0))
_OLD_HARD_SIGMOIDS: Final[tuple[Pattern, ...]] = (("Div", _OLD_RELU_SIX, 6.0), ("Mul", _OLD_RELU_SIX, _SIXTH))
_OLD_HARD_SWISHES: Final[tuple[Pattern, ...]] = (
    ("Div", ("Mul", "x", _OLD_RELU_SIX), 6.0),
    ("Mul", ("Mul", "x", _OLD_RELU_SIX), _SIXTH),
)
_EXACT_SIXTH: Final = {"alpha": float(np.float32(1 / 6)), "beta": 0.5}


@rule("fuse_hard_sigmoid", "Div", "Mul", tolerance=1e-6)
def fuse_hard_sigmoid(ctx: Context, node: ir.Node) -> Outcome:
    """Clip(x + 3, 0, 6) / 6 becomes HardSigmoid, also inside x times it.

    float32 only, for which every provider has the kernel. (HardSwish has none on the CPU, so it is not made.) Where
    x times Clip(x + 3, 0, 6) is infinite, beyond 5.7e37, x times its HardSigmoid is still x.
    """
    if ctx.dtype(node.outputs[0]) != _FLOAT:
        return "it is not float32"
    old = ctx.opset(node) < 11
    swish = match(ctx, node, *(_OLD_HARD_SWISHES if old else _HARD_SWISHES))
    sigmoid = None if swish else match(ctx, node, *(_OLD_HARD_SIGMOIDS if old else _HARD_SIGMOIDS))
    found = swish or sigmoid
    if found is None or (old and _bounds(ctx, found.node("Clip")) != (0.0, 6.0)):
        return "it is not Clip(x + 3, 0, 6) / 6"
    if not same_shape(ctx.shape(found["x"]), ctx.shape(node.outputs[0])) and ctx.rank(found["x"]) in (None, 0):
        return "the constants may widen x"
    (made,) = ctx.add("HardSigmoid", [found["x"]], _EXACT_SIXTH, before=node)
    if swish:
        (made,) = ctx.add("Mul", [found["x"], made], before=node)
    return finish(ctx, node, made)


@rule("fuse_leaky_relu", "Max")
def fuse_leaky_relu(ctx: Context, node: ir.Node) -> Outcome:
    """Max(x, a x) becomes LeakyRelu.

    The slope is one constant between 0 and 1.
    """
    if ctx.dtype(node.outputs[0]) != _FLOAT or len(node.inputs) != 2:
        return "it is not float32, or not of two inputs"
    for index in (0, 1):
        inner = inner_node(node, "Mul", index=index)
        source = node.inputs[1 - index]
        if inner is None or source not in inner.inputs or not ctx.only_use(inner.outputs[0]):
            continue
        slope = ctx.scalar(inner.inputs[1 - list(inner.inputs).index(source)])
        if slope is None or not 0 < slope < 1 or not same_shape(ctx.shape(source), ctx.shape(node.outputs[0])):
            continue
        return finish(ctx, node, ctx.add("LeakyRelu", [source], {"alpha": float(slope)}, before=node)[0])
    return "it is not the maximum of x and a constant times x"


_ROOT_HALF: Final = math.sqrt(0.5)
_ERF_TERMS: Final[tuple[Pattern, ...]] = (
    ("Add", ("Erf", ("Div", "x", math.sqrt(2))), 1.0),
    ("Add", ("Erf", ("Mul", "x", _ROOT_HALF)), 1.0),
)
_CUBES: Final[tuple[Pattern, ...]] = (("Pow", "x", 3.0), ("Mul", "x", ("Mul", "x", "x")))
_TANH_TERMS: Final[tuple[Pattern, ...]] = (
    *(
        ("Add", ("Tanh", ("Mul", ("Add", "x", ("Mul", cube, 0.044715)), math.sqrt(2 / math.pi))), 1.0)
        for cube in _CUBES
    ),
    (
        "Add",
        ("Tanh", ("Mul", ("Mul", "x", math.sqrt(2 / math.pi)), ("Add", ("Mul", ("Mul", "x", "x"), 0.044715), 1.0))),
        1.0,
    ),
)


def _halves(term: Pattern) -> tuple[Pattern, ...]:
    return (
        ("Mul", ("Mul", "x", term), 0.5),
        ("Mul", "x", ("Mul", term, 0.5)),
        ("Mul", ("Mul", "x", 0.5), term),
    )


_ERF_GELUS: Final = tuple(whole for term in _ERF_TERMS for whole in _halves(term))
_TANH_GELUS: Final = tuple(whole for term in _TANH_TERMS for whole in _halves(term))


@rule("fuse_gelu", "Mul", tolerance=1e-6)
def fuse_gelu(ctx: Context, node: ir.Node) -> Outcome:
    """The error-function and tanh forms of Gelu become Gelu.

    From opset 20 on; float32, with the constants of the published formulas.
    """
    if ctx.opset(node) < 20 or ctx.dtype(node.outputs[0]) != _FLOAT:
        return "Gelu comes with opset 20, and for float32"
    for approximate, forms in (("none", _ERF_GELUS), ("tanh", _TANH_GELUS)):
        found = match(ctx, node, *forms)
        if found is not None and same_shape(ctx.shape(found["x"]), ctx.shape(node.outputs[0])):
            made = ctx.add("Gelu", [found["x"]], {"approximate": approximate}, before=node)[0]
            return finish(ctx, node, made)
    return "it is neither form of Gelu"
