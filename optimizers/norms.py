"""Passes that put normalizations together again, and spell their pieces cheaply."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.infer_elementwise import axes_of
from graphkit.optimizers.no_operation import same_shape
from graphkit.optimizers.patterns import Match, Pattern, match

__all__: list[str] = []

_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_CENTERED: Final = ("Sub", "x", ("ReduceMean", "x"))
_SQUARES: Final[tuple[Pattern, ...]] = (("Mul", _CENTERED, _CENTERED), ("Pow", _CENTERED, 2.0))
_NORMALIZED: Final = tuple(
    ("Div", _CENTERED, ("Sqrt", ("Add", ("ReduceMean", square), "epsilon"))) for square in _SQUARES
)
_LAYER_NORMS: Final[tuple[Pattern, ...]] = tuple(("Add", ("Mul", whole, "scale"), "bias") for whole in _NORMALIZED)
_LAYER_NORMS_WITHOUT_BIAS: Final[tuple[Pattern, ...]] = tuple(("Mul", whole, "scale") for whole in _NORMALIZED)


@rule("fuse_layer_normalization", "Add", "Mul", tolerance=1e-5)
def fuse_layer_normalization(ctx: Context, node: ir.Node) -> Outcome:
    """The pieces of LayerNormalization become LayerNormalization.

    From opset 17 on; over the last axis, which is kept; scale and bias are as long as that axis and no larger.
    """
    if ctx.opset(node) < 17 or ctx.dtype(node.outputs[0]) not in _FLOATS:
        return "LayerNormalization comes with opset 17, and for float32 and float64"
    found = match(ctx, node, *(_LAYER_NORMS if node.op_type == "Add" else _LAYER_NORMS_WITHOUT_BIAS))
    if found is None:
        return "it is not (x - mean) / sqrt(variance + epsilon) * scale + bias"
    if node.op_type == "Mul" and _is_scaled_and_moved(node):
        return "a sum follows, which is looked at as a whole"
    shape = ctx.shape(found["x"])
    epsilon = ctx.scalar(found["epsilon"])
    if shape is None or not shape or epsilon is None or (ctx.rank(found["epsilon"]) or 0) > 1:
        return "the rank or epsilon is not known"
    for reduce in (each for each in found.nodes if each.op_type == "ReduceMean"):
        axes = axes_of(ctx.facts, reduce)
        if axes not in ((-1,), (len(shape) - 1,)) or reduce.attributes.get_int("keepdims", 1) != 1:
            return "a mean is not over the last axis, kept"
    if not _fits(ctx, found, shape):
        return "scale or bias is not exactly as long as the last axis"
    inputs = [found["x"], found["scale"]] + ([found["bias"]] if node.op_type == "Add" else [])
    attributes = {"axis": -1, "epsilon": float(epsilon)}
    return finish(ctx, node, ctx.add("LayerNormalization", inputs, attributes, before=node)[0])


def _is_scaled_and_moved(node: ir.Node) -> bool:
    uses = node.outputs[0].uses()
    return len(uses) == 1 and next(iter(uses)).node.op_type == "Add"


def _fits(ctx: Context, found: Match, shape: tuple[object, ...]) -> bool:
    # A scale longer than the axis would widen the result, which LayerNormalization cannot.
    return all(ctx.shape(found[name]) == (shape[-1],) for name in ("scale", "bias") if name in found.values)


_ROOTS: Final = tuple(
    ("Sqrt", ("Add", ("ReduceMean", square), "epsilon")) for square in (("Mul", "x", "x"), ("Pow", "x", 2.0))
)
_ROOT_MEAN_SQUARES: Final[tuple[Pattern, ...]] = tuple(
    form
    for root in _ROOTS
    for form in (
        ("Mul", ("Div", "x", root), "scale"),
        ("Mul", ("Mul", "x", ("Reciprocal", root)), "scale"),
        ("Mul", ("Mul", "x", ("Div", 1.0, root)), "scale"),
    )
)


@rule("fuse_root_mean_square", "Mul", tolerance=1e-5)
def fuse_root_mean_square(ctx: Context, node: ir.Node) -> Outcome:
    """The pieces of RMSNormalization become RMSNormalization.

    From opset 23 on; over the last axis, which is kept; the scale is as long as that axis and no larger.
    """
    if ctx.opset(node) < 23 or ctx.dtype(node.outputs[0]) not in _FLOATS:
        return "RMSNormalization comes with opset 23, and for float32 and float64"
    found = match(ctx, node, *_ROOT_MEAN_SQUARES)
    if found is None:
        return "it is not x / sqrt(mean(x * x) + epsilon) * scale"
    shape, epsilon = ctx.shape(found["x"]), ctx.scalar(found["epsilon"])
    if not shape or epsilon is None or (ctx.rank(found["epsilon"]) or 0) > 1 or not _fits(ctx, found, shape):
        return "the rank or epsilon is not known, or the scale is not exactly as long as the last axis"
    reduce = found.node("ReduceMean")
    if axes_of(ctx.facts, reduce) not in ((-1,), (len(shape) - 1,)) or reduce.attributes.get_int("keepdims", 1) != 1:
        return "the mean is not over the last axis, kept"
    attributes = {"axis": -1, "epsilon": float(epsilon)}
    made = ctx.add("RMSNormalization", [found["x"], found["scale"]], attributes, before=node)
    return finish(ctx, node, made[0])


_BY_PRODUCT: Final[Pattern] = (
    "Mul",
    ("Div", "x", ("Sqrt", ("Add", ("ReduceMean", ("Mul", "x", "x")), "epsilon"))),
    "scale",
)


@rule("square_by_power", "Mul", tolerance=1e-6, targets=("inference",))
def square_by_power(ctx: Context, node: ir.Node) -> Outcome:
    """The x * x of a root mean square norm is written Pow(x, 2), which the runtime fuses when it loads the model.

    Before opset 23, which has RMSNormalization; the scale is as long as the last axis and no larger, for with another
    the runtime's fused norm fails.
    """
    if ctx.opset(node) >= 23 or ctx.dtype(node.outputs[0]) != ir.DataType.FLOAT:
        return "RMSNormalization stands for it, or it is not float32"
    found = match(ctx, node, _BY_PRODUCT)
    shape = None if found is None else ctx.shape(found["x"])
    if found is None or not shape or not _fits(ctx, found, shape) or ctx.scalar(found["epsilon"]) is None:
        return "it is not x / sqrt(mean(x * x) + epsilon) * scale"
    reduce = found.node("ReduceMean")
    if axes_of(ctx.facts, reduce) not in ((-1,), (len(shape) - 1,)) or reduce.attributes.get_int("keepdims", 1) != 1:
        return "the mean is not over the last axis, kept"
    square = inner_node(reduce, "Mul")
    assert square is not None
    two = ctx.constant(np.array(2, np.float32), "two", near=square)
    return finish(ctx, square, ctx.add("Pow", [found["x"], two], before=square)[0])


@rule("divide_by_root", "Mul", tolerance=1e-6)
def divide_by_root(ctx: Context, node: ir.Node) -> Outcome:
    """x times Reciprocal(r) becomes x / r where that fuses better: after Sqrt, as in root mean square norms.

    Nothing else reads the reciprocal, and the quotient has the shape of the product.
    """
    found = match(ctx, node, ("Mul", "x", ("Reciprocal", "root")), ("Mul", "x", ("Div", 1.0, "root")))
    if found is None:
        return "it is not a product with a reciprocal that nothing else reads"
    producer = found["root"].producer()
    if producer is None or producer.op_type != "Sqrt":
        return "the reciprocal is not that of a root"
    return finish(ctx, node, ctx.add("Div", [found["x"], found["root"]], before=node)[0])


_NEVER_NEGATIVE: Final = ("Exp", "Sigmoid", "Abs", "Softmax", "ReduceSumSquare", "ReduceL1", "ReduceL2", "Softplus")


def never_negative(ctx: Context, value: ir.Value | None, depth: int = 6) -> bool:
    """Whether a value is known to be positive or +0 (or NaN) everywhere."""
    if value is None or not depth:
        return False
    number = ctx.scalar(value)
    if number is not None:
        return number > 0
    node = value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type in _NEVER_NEGATIVE:
        return True
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type == "Pow":
        return ctx.scalar(node.inputs[1]) == 2
    if node.op_type in ("ReduceMean", "ReduceSum", "Sqrt", "Identity", "Unsqueeze", "Reshape"):
        return never_negative(ctx, node.inputs[0], depth - 1)
    return node.op_type == "Add" and all(never_negative(ctx, item, depth - 1) for item in node.inputs)


@rule("cheap_power", "Pow", tolerance=1e-6)
def cheap_power(ctx: Context, node: ir.Node) -> Outcome:
    """A power of 1/2 or -1/2 becomes Sqrt, or Sqrt and Reciprocal, which cost a tenth.

    The base is known not to be negative, nor -0.0 (whose power would be 0.0, its root -0.0).
    """
    exponent = ctx.scalar(node.inputs[1])
    if exponent not in (0.5, -0.5):
        return "the exponent is not 1/2 or -1/2"
    if ctx.dtype(node.inputs[0]) not in _FLOATS or not same_shape(
        ctx.shape(node.inputs[0]), ctx.shape(node.outputs[0])
    ):
        return "it is not float32 or float64, or the exponent may widen it"
    if not never_negative(ctx, node.inputs[0]):
        return "the base may be negative"
    (made,) = ctx.add("Sqrt", [node.inputs[0]], before=node)
    if exponent < 0:
        (made,) = ctx.add("Reciprocal", [made], before=node)
    return finish(ctx, node, made)


@rule("reduce_without_axis", "Squeeze")
def reduce_without_axis(ctx: Context, node: ir.Node) -> Outcome:
    """A reduction that keeps its axes and a Squeeze of just those become a reduction that does not keep them.

    Nothing else reads the value between.
    """
    inner = inner_node(
        node,
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
        *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "ArgMax", "ArgMin"),
    )
    if inner is None or not ctx.only_use(inner.outputs[0]):
        return "its input is not a reduction that nothing else reads"
    rank = ctx.rank(inner.inputs[0])
    if inner.op_type in ("ArgMax", "ArgMin"):
        reduced: tuple[int, ...] | str | None = (inner.attributes.get_int("axis", 0),)
    else:
        reduced = axes_of(ctx.facts, inner)
    squeezed = axes_of(ctx.facts, node)
    if rank is None or not isinstance(reduced, tuple) or not isinstance(squeezed, tuple) or not reduced:
        return "the rank or the axes are not known"
    if inner.attributes.get_int("keepdims", 1) != 1:
        return "the reduction does not keep its axes"
    if sorted(axis % rank for axis in reduced) != sorted(axis % rank for axis in squeezed):
        return "other axes are squeezed"
    attributes = {**dict(inner.attributes.items()), "keepdims": 0}
    (made,) = ctx.add(inner.op_type, inner.inputs, attributes, before=node)
    return finish(ctx, node, made)
