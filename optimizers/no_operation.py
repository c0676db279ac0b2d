"""Passes that drop nodes which give out their input unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context
from graphkit.optimizers.symbolic import Dim

__all__: list[str] = []

_NAMED = "its output is a graph output whose name could not be kept"


def drop(ctx: Context, node: ir.Node, source: ir.Value | None) -> Outcome:
    """Let ``source`` stand for the first output of ``node`` and remove the node."""
    if source is None or not ctx.replace(node.outputs[0], source):
        return _NAMED
    ctx.remove(node)
    return True


def same_shape(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    """Whether two shapes are known and equal at every run."""
    return a is not None and b is not None and a == b


@rule("remove_identity", "Identity")
def remove_identity(ctx: Context, node: ir.Node) -> Outcome:
    """Identity is its input.

    Kept where it gives a second name to a graph input, an initializer or another output.
    """
    return drop(ctx, node, node.inputs[0])


@rule("remove_cast", "Cast", "CastLike")
def remove_cast(ctx: Context, node: ir.Node) -> Outcome:
    """A Cast to the dtype that its input has already is its input.

    The dtype of the input must be known.
    """
    source = ctx.dtype(node.inputs[0])
    target = ir.DataType(node.attributes.get_int("to", 0)) if node.op_type == "Cast" else ctx.dtype(node.inputs[1])
    if source is None or target is None or source != target:
        return f"it casts {source} to {target}"
    return drop(ctx, node, node.inputs[0])


@rule("remove_reshape", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Slice", "Pad")
def remove_reshape(ctx: Context, node: ir.Node) -> Outcome:
    """A node that may only reshape, widen or cut, and whose output has its input's shape, is its input.

    Every dimension must be known to be equal; an unknown one equals nothing. A Slice must not run backwards, a Pad must
    pad by nothing.
    """
    source, target = ctx.shape(node.inputs[0]), ctx.shape(node.outputs[0])
    if node.op_type == "Slice" and not _steps_are_one(ctx, node):
        return "its steps are not known to be 1"
    if node.op_type == "Pad":
        amounts = _amounts(ctx, node)
        if amounts is None or any(amounts):
            return "it pads by something, or by what is not known"
    elif node.op_type == "Tile":
        repeats = ctx.ints(node.inputs[1])
        if repeats is None or any(count != 1 for count in repeats):
            return "its repeats are not all 1"
    elif not same_shape(source, target) and not _copies_shape(ctx, node):
        return f"it turns the shape {source} into {target}"
    return drop(ctx, node, node.inputs[0])


def _copies_shape(ctx: Context, node: ir.Node) -> bool:
    """Forms that keep the shape whatever it is: Reshape to (0, 0, -1), Expand to ones, Squeeze of no axis."""
    rank = ctx.rank(node.inputs[0])
    if rank is None or len(node.inputs) < 2:
        return False
    wanted = ctx.ints(node.inputs[1])
    if wanted is None:
        return False
    if node.op_type == "Reshape":
        zeros = not node.attributes.get_int("allowzero", 0)
        return len(wanted) == rank and (
            (zeros and all(item == 0 for item in wanted[:-1]) and wanted[-1:] in ((0,), (-1,))) or wanted == (-1,)
        )
    if node.op_type == "Expand":
        return len(wanted) <= rank and all(item == 1 for item in wanted)
    return node.op_type in ("Squeeze", "Unsqueeze") and not wanted


def _steps_are_one(ctx: Context, node: ir.Node) -> bool:
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    steps = ctx.ints(node.inputs[4])
    return steps is not None and all(step == 1 for step in steps)


def _amounts(ctx: Context, node: ir.Node) -> tuple[int, ...] | None:
    for name in ("pads", "paddings"):
        if name in node.attributes:
            return tuple(node.attributes.get_ints(name, ()))
    return ctx.ints(node.inputs[1]) if len(node.inputs) > 1 else None


@rule("remove_transpose", "Transpose")
def remove_transpose(ctx: Context, node: ir.Node) -> Outcome:
    """A Transpose that leaves every axis in its place is its input.

    The default order reverses, so without ``perm`` the rank must be known to be 1 or 0.
    """
    order = node.attributes.get_ints("perm", ())
    if "perm" not in node.attributes:
        rank = ctx.rank(node.inputs[0])
        if rank is None or rank > 1:
            return "it reverses the axes"
    elif tuple(order) != tuple(range(len(order))):
        return f"it moves axes: {tuple(order)}"
    return drop(ctx, node, node.inputs[0])


@rule("remove_single", "Concat", "Sum", "Mean", "Max", "Min", "Split", "Einsum")
def remove_single(ctx: Context, node: ir.Node) -> Outcome:
    """Concat, Sum, Mean, Max or Min of one input, and Split into one part, are their input.

    Exact: none of them computes anything then.
    """
    if node.op_type == "Split":
        if len(node.outputs) != 1:
            return f"it splits into {len(node.outputs)} parts"
        if len(node.inputs) > 1 or "split" in node.attributes:
            dims = (ctx.shape(node.inputs[0]), ctx.shape(node.outputs[0]))
            if not same_shape(*dims):
                return "the size of its part is not known to be the whole"
    elif node.op_type == "Einsum":
        equation = node.attributes.get_string("equation", "").replace(" ", "")
        left, arrow, right = equation.partition("->")
        if not arrow or left != right or len(set(left)) != len(left) or "." in left:
            return "its equation computes something"
    elif len(node.inputs) != 1:
        return f"it has {len(node.inputs)} inputs"
    elif any(use.node.op_type == "BatchNormalization" and use.idx > 2 for use in node.outputs[0].uses()):
        return "it copies running statistics, which the runtime writes over"
    return drop(ctx, node, node.inputs[0])


@rule("remove_empty_parts", "Concat")
def remove_empty_parts(ctx: Context, node: ir.Node) -> Outcome:
    """Inputs of Concat that are empty along its axis are left out.

    Their dimension must be known to be 0 while another input's stays.
    """
    axis = node.attributes.get_int("axis", 0)
    kept = []
    for value in node.inputs:
        shape = ctx.shape(value)
        if shape is None or not -len(shape) <= axis < len(shape) or shape[axis] != 0:
            kept.append(value)
    if len(kept) == len(node.inputs) or not kept:
        return "no input is known to be empty"
    ctx.set_inputs(node, kept)
    return True


@rule("remove_resize", "Resize", "Upsample")
def remove_resize(ctx: Context, node: ir.Node) -> Outcome:
    """A nearest or linear Resize to the size that its input has already is its input.

    All scales are 1, or the sizes are known to be the input's; not for cubic interpolation or crops.
    """
    if node.attributes.get_string("mode", "nearest") not in ("nearest", "linear"):
        return "cubic interpolation mixes neighbours, and 0 x Inf is not 0"
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") in (
        "tf_crop_and_resize",
        "half_pixel_symmetric",
        "tf_half_pixel_for_nn",  # which lies half a pixel further, and may be rounded up
    ):
        return "its coordinates may crop or shift"
    if node.attributes.get_int("antialias", 0) or "axes" in node.attributes:
        return "it filters, or resizes chosen axes"
    scales = node.inputs[1 if len(node.inputs) == 2 else 2] if len(node.inputs) in (2, 3) else None
    if len(node.inputs) == 1:
        factors: tuple[float, ...] | None = tuple(node.attributes.get_floats("scales", ()))
    elif len(node.inputs) == 4:
        sizes = ctx.facts(node.inputs[3]).content
        if sizes is None or sizes != ctx.shape(node.inputs[0]):
            return "its sizes are not known to be the input's"
        return drop(ctx, node, node.inputs[0])
    else:
        array = ctx.array(scales)
        factors = None if array is None else tuple(float(item) for item in array.reshape(-1))
    if not factors or any(factor != 1 for factor in factors):
        return "its scales are not all 1"
    return drop(ctx, node, node.inputs[0])


@rule("remove_dropout", "Dropout", training=False)
def remove_dropout(ctx: Context, node: ir.Node) -> Outcome:
    """Dropout at inference is its input.

    Training mode is absent or known to be off, and nothing reads the mask.
    """
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return "its mask is read"
    if len(node.inputs) > 2 and node.inputs[2] is not None and ctx.scalar(node.inputs[2]) is not False:
        return "its training mode is not known to be off"
    return drop(ctx, node, node.inputs[0])


_ZERO_ON_THE_RIGHT = ("Add", "Sub", "Or", "Xor", "BitwiseOr", "BitwiseXor", "BitShift")
_COMMUTATIVE = ("Add", "Mul", "And", "Or", "Xor", "BitwiseOr", "BitwiseXor")
_NEVER_MINUS_ZERO = ("Exp", "Sigmoid", "Abs", "Softmax", "ReduceL1", "ReduceL2", "ReduceSumSquare")


@rule("remove_neutral", "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "BitwiseOr", "BitwiseXor", "BitShift")
def remove_neutral(ctx: Context, node: ir.Node) -> Outcome:
    """Adding 0, multiplying or dividing by 1, raising to 1, ``and True``, ``or False`` change nothing.

    The constant must not widen the other input, and signed zeros are respected: for floats, x + 0.0 turns -0.0 into
    0.0, so there only x + -0.0 and x - 0.0 are dropped, or where x is never -0.0.
    """
    operator = node.op_type
    sides = ((0, 1), (1, 0)) if operator in _COMMUTATIVE else ((0, 1),)
    for kept, other in sides:
        source, value = node.inputs[kept], node.inputs[other]
        tensor = ctx.tensor(value)
        if value is None or source is None or tensor is None or tensor.size == 0:
            continue
        if not _keeps_shape(ctx.shape(source), ctx.shape(value)):
            continue
        if ctx.dtype(source) != ctx.dtype(node.outputs[0]) or ctx.dtype(source) is None:
            continue
        array = ctx.array(value)
        if array is not None and _is_neutral(operator, source, array):
            return drop(ctx, node, source)
    return "neither input is a neutral constant that keeps the other's shape"


def _keeps_shape(source: tuple[Dim, ...] | None, other: tuple[Dim, ...] | None) -> bool:
    if source is None:
        return other == ()
    if other is None or len(other) > len(source):
        return False
    tail = source[len(source) - len(other) :]
    return all(dim in (1, known) for dim, known in zip(other, tail, strict=True))


def _is_neutral(operator: str, source: ir.Value, array: np.ndarray[Any, Any]) -> bool:
    if operator in ("Mul", "Div", "Pow", "And"):
        return bool((array == 1).all())
    if not bool((array == 0).all()):
        return False
    if array.dtype.kind in "iub":
        return True
    minus = bool(np.signbit(array).all())
    if operator == "Sub":
        return not bool(np.signbit(array).any())
    producer = source.producer()
    return minus or (producer is not None and producer.domain == "" and producer.op_type in _NEVER_MINUS_ZERO)


@rule("remove_double", "Neg", "Not", "Abs", "Relu", "Floor", "Ceil", "Round", "Sign", "BitwiseNot")
def remove_double(ctx: Context, node: ir.Node) -> Outcome:
    """Neg of Neg and Not of Not are the value itself; Relu, Abs, Floor, Ceil, Round or Sign of the same is once.

    Always exact.
    """
    source = node.inputs[0]
    inner = None if source is None else source.producer()
    if inner is None or inner.op_type != node.op_type or inner.domain != "" or inner.attributes or node.attributes:
        return "its input is not made by the same operator"
    return drop(ctx, node, inner.inputs[0] if node.op_type in ("Neg", "Not", "BitwiseNot") else source)


@rule("remove_where", "Where")
def remove_where(ctx: Context, node: ir.Node) -> Outcome:
    """Where with a constant condition that always takes one side is that side.

    The side must have the shape of the result.
    """
    condition = ctx.array(node.inputs[0])
    if condition is None or condition.size == 0 or not (condition.all() or not condition.any()):
        return "its condition is not known, or mixed"
    chosen = node.inputs[1 if condition.all() else 2]
    if not same_shape(ctx.shape(chosen), ctx.shape(node.outputs[0])):
        return "the chosen side is not known to have the shape of the result"
    return drop(ctx, node, chosen)
