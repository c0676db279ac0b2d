"""Downward: normalizations and Softmax along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphkit import dtypes
from graphkit.upgrade.adapters import is_used, only_input, set_attributes
from graphkit.upgrade.lower_body import expand
from graphkit.upgrade.lower_table import Cannot, Lowering, lowers, optional_input


@lowers(13, "Softmax", "LogSoftmax", "Hardmax")
def softmax_of_a_matrix(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """All dims from ``axis`` on were taken together, so the axis is moved to the end."""
    x = only_input(node)
    axis = node.attributes.get_int("axis", -1)
    known = lowering.dims(x)
    if known is None:
        if axis == -1 and lowering.target >= 11:
            set_attributes(node, axis=-1)
            return node
        raise Cannot(f"the rank of its input '{x.name}' is not known")
    axis += len(known) if axis < 0 else 0
    if all(extent == 1 for extent in known[axis + 1 :]):
        set_attributes(node, axis=axis)
        return node
    order = [n for n in range(len(known)) if n != axis] + [axis]
    back = [order.index(n) for n in range(len(known))]
    moved = lowering.apply1("Transpose", [x], perm=order)
    result = lowering.apply1(node.op_type, [moved], axis=len(known) - 1)
    lowering.replace([lowering.apply1("Transpose", [result], perm=back)])
    return None


def _mean(x: ir.Value, axes: Sequence[int], lowering: Lowering) -> ir.Value:
    return lowering.apply1("ReduceMean", [x, lowering.constant(list(axes))], keepdims=1)


def _cast(x: ir.Value, dtype: dtypes.DType, lowering: Lowering) -> ir.Value:
    return x if lowering.dtype(x) == dtype else lowering.apply1("Cast", [x], to=dtypes.to_onnx(dtype))


def _stash(node: ir.Node, x: ir.Value, lowering: Lowering) -> dtypes.DType:
    """The type to compute in. (float64 stays: no kernel narrows it, whatever ``stash_type`` says.)"""
    asked = dtypes.as_dtype(node.attributes.get_int("stash_type", 1))
    return dtypes.FLOAT64 if lowering.dtype(x) == dtypes.FLOAT64 else asked


@lowers(17, "LayerNormalization")
def layer_normalization(node: ir.Node, lowering: Lowering) -> None:
    """The form that every runtime recognizes."""
    x, scale, bias = only_input(node), only_input(node, 1), optional_input(node, 2)
    if lowering.dims(x) is None:
        expand(node, lowering)
        return
    rank = lowering.rank(x)
    first = node.attributes.get_int("axis", -1) % rank
    axes = range(first, rank)
    own, stash = lowering.dtype(x), _stash(node, x, lowering)
    given = _cast(x, stash, lowering)
    mean = _mean(given, axes, lowering)
    centred = lowering.apply1("Sub", [given, mean])
    variance = _mean(lowering.apply1("Mul", [centred, centred]), axes, lowering)
    epsilon = lowering.scalar_like(node.attributes.get_float("epsilon", 1e-5), given)
    deviation = lowering.apply1("Sqrt", [lowering.apply1("Add", [variance, epsilon])])
    normal = _cast(lowering.apply1("Div", [centred, deviation]), own, lowering)
    result = lowering.apply1("Mul", [normal, scale])
    if bias is not None:
        result = lowering.apply1("Add", [result, bias])
    inverse = lowering.apply1("Reciprocal", [deviation]) if is_used(node, 2) else None
    extra = [value if is_used(node, index) else None for index, value in ((1, mean), (2, inverse))]
    wanted = dtypes.as_dtype(node.attributes.get_int("stash_type", 1))
    lowering.replace([result, *(None if value is None else _cast(value, wanted, lowering) for value in extra)])


@lowers(23, "RMSNormalization")
def root_mean_square(node: ir.Node, lowering: Lowering) -> None:
    x, scale = only_input(node), only_input(node, 1)
    if lowering.dims(x) is None:
        expand(node, lowering)
        return
    rank = lowering.rank(x)
    first = node.attributes.get_int("axis", -1) % rank
    own, stash = lowering.dtype(x), _stash(node, x, lowering)
    given = _cast(x, stash, lowering)
    square = _mean(lowering.apply1("Mul", [given, given]), range(first, rank), lowering)
    epsilon = lowering.scalar_like(node.attributes.get_float("epsilon", 1e-5), given)
    root = lowering.apply1("Sqrt", [lowering.apply1("Add", [square, epsilon])])
    normal = _cast(lowering.apply1("Div", [given, root]), own, lowering)
    lowering.replace([lowering.apply1("Mul", [normal, scale])])


@lowers(21, "GroupNormalization")
def group_normalization(node: ir.Node, lowering: Lowering) -> None:
    """The form of before had a scale for each group, which says less, and no runtime has a kernel for either."""
    expand(node, lowering)


@lowers(9, "BatchNormalization")
def batch_normalization_per_channel(node: ir.Node, lowering: Lowering) -> ir.Node:
    """``spatial`` says what it has come to mean, where it is left out."""
    return node


@lowers(14, "BatchNormalization")
def batch_normalization(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """Training was asked for by naming five outputs, which few runtimes heed; it is written out instead."""
    training = node.attributes.get_int("training_mode", 0)
    node.attributes.pop("training_mode", None)
    if not training:
        return node
    x, scale, bias, old_mean, old_variance = (only_input(node, index) for index in range(5))
    rank = lowering.rank(x)
    own, kept = lowering.dtype(x), lowering.dtype(old_mean)
    axes = [axis for axis in range(rank) if axis != 1]
    shape = lowering.constant([1, -1] + [1] * (rank - 2))
    given = _cast(x, kept, lowering)
    mean = _mean(given, axes, lowering)
    centred = lowering.apply1("Sub", [given, mean])
    variance = _mean(lowering.apply1("Mul", [centred, centred]), axes, lowering)
    epsilon = lowering.scalar_like(node.attributes.get_float("epsilon", 1e-5), given)
    deviation = lowering.apply1("Sqrt", [lowering.apply1("Add", [variance, epsilon])])
    normal = _cast(lowering.apply1("Div", [centred, deviation]), own, lowering)
    columns = [_cast(lowering.apply1("Reshape", [value, shape]), own, lowering) for value in (scale, bias)]
    result = lowering.apply1("Add", [lowering.apply1("Mul", [normal, columns[0]]), columns[1]])
    momentum = node.attributes.get_float("momentum", 0.9)
    running: list[ir.Value | None] = []
    for index, (old, new) in enumerate(((old_mean, mean), (old_variance, variance)), start=1):
        if not is_used(node, index):
            running.append(None)
            continue
        flat = lowering.apply1("Reshape", [new, lowering.constant([-1])])
        before = lowering.apply1("Mul", [old, lowering.scalar_like(momentum, old)])
        now = lowering.apply1("Mul", [flat, lowering.scalar_like(1 - momentum, flat)])
        running.append(lowering.apply1("Add", [before, now]))
    lowering.replace([result, *running])
    return None
