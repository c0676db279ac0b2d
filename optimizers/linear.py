"""Passes that fold what follows a convolution or matrix product into its weights, and sums into Gemm."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.symbolic import Dim

__all__ = ["keeps_its_digits"]

_T = ir.DataType
_GEMM_TYPES: Final = (_T.FLOAT, _T.DOUBLE, _T.FLOAT16)
_FOLD_TYPES: Final = (_T.FLOAT, _T.DOUBLE)
Array = np.ndarray[Any, Any]


def _finish(ctx: Context, node: ir.Node, made: ir.Value) -> Outcome:
    ctx.replace(node.outputs[0], made)
    ctx.remove(node)
    return True


def _scaled(
    ctx: Context, inner: ir.Node, scale: Array, shift: Array
) -> tuple[list[ir.Value | None], dict[str, Any]] | str:
    """The inputs of ``inner`` once its output channels are multiplied by ``scale`` and moved by ``shift``."""
    weight_value = inner.inputs[1]
    weight = ctx.array(weight_value)
    if weight is None or weight_value is None:
        return "the weight is not constant"
    if weight_value.dtype not in _FOLD_TYPES and ctx.dtype(weight_value) not in _FOLD_TYPES:
        return f"weights of {ctx.dtype(weight_value)} are not rounded anew"
    old_bias = inner.inputs[2] if len(inner.inputs) > 2 else None
    bias: Array | None = np.zeros((), weight.dtype)
    if old_bias is not None:
        bias = ctx.array(old_bias)
        if bias is None:
            return "the bias is not constant"
    assert bias is not None
    plain = bool((scale == 1).all())  # then the weight stays as it is, shared or not
    shared = not plain and not ctx.only_use(weight_value)
    if shared and weight.nbytes > ctx.slack:
        return "the weight is used elsewhere too, and a second copy would make the file larger"
    attributes = dict(inner.attributes.items())
    wide, scale, shift = weight.astype(np.float64), scale.astype(np.float64), shift.astype(np.float64)
    group = inner.attributes.get_int("group", 1)
    if inner.op_type == "Conv":
        channels = weight.shape[0]
        new = wide * _per_channel(scale, channels).reshape(-1, *[1] * (weight.ndim - 1))
    elif inner.op_type == "ConvTranspose":
        channels = weight.shape[1] * group
        # (in, out / group, ...): the inputs of a group lead to the outputs of that group only.
        by_group = _per_channel(scale, channels).reshape(group, 1, weight.shape[1], *[1] * (weight.ndim - 2))
        new = (wide.reshape(group, weight.shape[0] // group, *weight.shape[1:]) * by_group).reshape(weight.shape)
    elif inner.op_type == "Gemm" and inner.attributes.get_int("transB", 0) != 0:
        channels = weight.shape[0]
        new = wide * _per_channel(scale, channels)[:, None]
    else:
        channels = weight.shape[-1]
        new = wide * _per_channel(scale, channels)
    beta = inner.attributes.get_float("beta", 1.0) if inner.op_type == "Gemm" else 1.0
    if beta != 1.0:
        return "its bias is scaled"
    moved = bias.astype(np.float64) * _per_channel(scale, channels) + _per_channel(shift, channels)
    if moved.ndim > 1 and moved.shape[0] != 1:
        return "its bias differs from row to row"
    moved = moved.reshape(-1)
    if not (keeps_its_digits(new, weight.dtype) and keeps_its_digits(moved, weight.dtype)):
        return "the folded weights would not be finite, or too small for their dtype"
    ctx.slack -= weight.nbytes if shared else 0
    bare = old_bias is None and not moved.any()
    origin = [value.name for value in (weight_value, old_bias) if value is not None and value.name]
    made = weight_value
    if not plain:
        made = ctx.constant(new.astype(weight.dtype), f"{weight_value.name}_folded", near=inner, origin=origin)
    if bare:
        return [inner.inputs[0], made], attributes
    name = old_bias.name if old_bias is not None else f"{inner.outputs[0].name}_bias"
    made_bias = ctx.constant(moved.astype(weight.dtype), f"{name}_folded", near=inner, origin=origin)
    return [inner.inputs[0], made, made_bias], attributes


def _per_channel(numbers: Array, channels: int) -> Array:
    return np.broadcast_to(numbers.reshape(-1), (channels,))


def keeps_its_digits(wide: Array, dtype: Any) -> bool:
    """Whether numbers worked out in float64 are finite in ``dtype``, and none is lost that counts beside the rest."""
    narrow = wide.astype(dtype).astype(np.float64)
    if not np.isfinite(narrow).all():
        return False
    return bool((np.abs(narrow - wide) <= 1e-6 * np.abs(wide).max(initial=0)).all())


@rule("fold_batch_normalization", "BatchNormalization", tolerance=1e-5, training=False)
def fold_batch_normalization(ctx: Context, node: ir.Node) -> Outcome:
    """BatchNormalization at inference goes into the weights of the Conv, ConvTranspose or Gemm before it.

    All its numbers are constant, nothing else reads the value between, and the weight is not shared (or small).
    """
    if node.attributes.get_int("training_mode", 0) or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "it is in training mode"
    if node.attributes.get_int("spatial", 1) != 1:
        return "it normalizes every activation by itself"
    inner = inner_node(node, "Conv", "ConvTranspose", "Gemm", "MatMul")
    if inner is None:
        return "its input is not a Conv, ConvTranspose, Gemm or MatMul"
    if inner.op_type == "MatMul" and (ctx.rank(inner.inputs[0]) != 2 or ctx.rank(inner.inputs[1]) != 2):
        return "the product is not known to be one of two matrices"
    if not ctx.only_use(inner.outputs[0]):
        return "something else reads the value between them"
    numbers = [ctx.array(value) for value in node.inputs[1:5]]
    if any(array is None for array in numbers):
        return "its scale, bias, mean or variance is not constant"
    gamma, beta, mean, variance = (array.astype(np.float64) for array in numbers if array is not None)
    scale = gamma / np.sqrt(variance + np.float64(np.float32(node.attributes.get_float("epsilon", 1e-5))))
    return _fold(ctx, node, inner, scale, beta - mean * scale)


def _fold(ctx: Context, node: ir.Node, inner: ir.Node, scale: Array, shift: Array) -> Outcome:
    found = _scaled(ctx, inner, scale, shift)
    if isinstance(found, str):
        return found
    inputs, attributes = found
    operator = "Gemm" if inner.op_type == "MatMul" and len(inputs) > 2 else inner.op_type
    (made,) = ctx.add(operator, inputs, attributes, before=inner, hint=f"{inner.outputs[0].name}_folded")
    return _finish(ctx, node, made)


@rule("fold_affine", "Mul", "Div", "Add", "Sub", tolerance=1e-5, training=False)
def fold_affine(ctx: Context, node: ir.Node) -> Outcome:
    """A constant factor or offset per channel goes into the weights of the Conv, Gemm or MatMul before it.

    The constant is one number, or one per output channel and nothing else; nothing else reads the value between.
    """
    sides = ((0, 1), (1, 0)) if node.op_type in ("Add", "Mul") else ((0, 1),)
    reason = "its input is not a Conv, ConvTranspose or Gemm, with a constant beside it"
    for at, other in sides:
        inner = inner_node(node, "Conv", "ConvTranspose", "Gemm", "MatMul", index=at)
        number = ctx.array(node.inputs[other])
        if inner is None or number is None:
            continue
        if inner.op_type == "MatMul" and (node.op_type in ("Add", "Sub") or ctx.rank(inner.inputs[1]) != 2):
            continue
        if not ctx.only_use(inner.outputs[0]):
            return "something else reads the value between them"
        shape = ctx.shape(inner.outputs[0])
        axis = -1 if inner.op_type == "MatMul" else 1
        if shape is None or ctx.shape(node.outputs[0]) != shape or not _is_per_channel(number.shape, shape, axis):
            reason = "the constant is not one number per channel"
            continue
        numbers = number.astype(np.float64).reshape(-1)
        if node.op_type == "Div" and (numbers == 0).any():
            return "it divides by zero"
        ones, zeros = np.ones(1), np.zeros(1)
        scale = {"Mul": numbers, "Div": 1 / numbers if node.op_type == "Div" else ones}.get(node.op_type, ones)
        shift = {"Add": numbers, "Sub": -numbers}.get(node.op_type, zeros)
        return _fold(ctx, node, inner, scale, shift)
    return reason


def _is_per_channel(number: tuple[int, ...], shape: tuple[Dim, ...], channels: int) -> bool:
    """Whether a constant of this shape is one number, or one for each channel, once broadcast."""
    if len(number) > len(shape):
        return False
    padded = (1,) * (len(shape) - len(number)) + number
    place = channels % len(shape)
    return all(dim == 1 or (axis == place and dim == shape[place]) for axis, dim in enumerate(padded))


@rule("merge_gemm", "Add", tolerance=1e-6)
def merge_gemm(ctx: Context, node: ir.Node) -> Outcome:
    """MatMul and Add become Gemm.

    Both matrices have rank 2, the sum is no larger than the product, and nothing else reads the product. The dtypes are
    those that Gemm has a kernel for everywhere.
    """
    for at, other in ((0, 1), (1, 0)):
        inner = inner_node(node, "MatMul", "Gemm", index=at)
        bias = node.inputs[other]
        if inner is None or bias is None or bias is inner.outputs[0]:
            continue
        if inner.op_type == "Gemm" and len(inner.inputs) > 2 and inner.inputs[2] is not None:
            continue
        if not ctx.only_use(inner.outputs[0]):
            return "something else reads the product"
        if ctx.rank(inner.inputs[0]) != 2 or ctx.rank(inner.inputs[1]) != 2:
            return "the matrices are not known to have rank 2"
        if ctx.dtype(inner.outputs[0]) not in _GEMM_TYPES or ctx.dtype(bias) != ctx.dtype(inner.outputs[0]):
            return f"Gemm has no kernel for {ctx.dtype(inner.outputs[0])} everywhere"
        product, added = ctx.shape(inner.outputs[0]), ctx.shape(bias)
        if product is None or added is None or len(added) > 2 or not _widens_to(added, product):
            return "the sum is not known to have the product's shape"
        attributes = dict(inner.attributes.items())
        (made,) = ctx.add("Gemm", [*inner.inputs[:2], bias], attributes, before=node)
        return _finish(ctx, node, made)
    return "neither input is a matrix product"


def _widens_to(added: tuple[Dim, ...], product: tuple[Dim, ...]) -> bool:
    tail = product[len(product) - len(added) :]
    return all(dim in (1, known) for dim, known in zip(added, tail, strict=True))


@rule("absorb_transpose", "MatMul", "Gemm", tolerance=1e-6)
def absorb_transpose(ctx: Context, node: ir.Node) -> Outcome:
    """A Transpose of a matrix before MatMul or Gemm becomes Gemm's transA or transB.

    Both matrices have rank 2, and nothing else reads the transposed one.
    """
    if ctx.rank(node.inputs[0]) != 2 or ctx.rank(node.inputs[1]) != 2:
        return "the matrices are not known to have rank 2"
    if len(node.inputs) < 3 and ctx.opset(node) < 11:
        return "before opset 11, Gemm takes no two inputs"
    if ctx.dtype(node.outputs[0]) not in _GEMM_TYPES:
        return f"Gemm has no kernel for {ctx.dtype(node.outputs[0])} everywhere"
    inputs = list(node.inputs)
    flags = {"transA": node.attributes.get_int("transA", 0), "transB": node.attributes.get_int("transB", 0)}
    found = False
    for index, flag in enumerate(flags):
        inner = inner_node(node, "Transpose", index=index)
        if inner is not None and ctx.only_use(inner.outputs[0]):
            order = inner.attributes.get_ints("perm", (1, 0))
            if tuple(order) == (1, 0):
                inputs[index] = inner.inputs[0]
                flags[flag] = 1 - flags[flag]
                found = True
    if not found:
        return "neither matrix is a Transpose that nothing else reads"
    attributes: dict[str, Any] = dict(node.attributes.items()) if node.op_type == "Gemm" else {}
    attributes.update(flags)
    attributes = {name: item for name, item in attributes.items() if not (name in flags and item == 0)}
    (made,) = ctx.add("Gemm", inputs, attributes, before=node)
    return _finish(ctx, node, made)
