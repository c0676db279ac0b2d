"""How a weight is quantized: along which axis its scales run, by what reads it, and the numbers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx_ir as ir

from graphkit.modelfile.sparse import SparseTensor

__all__ = ["Layout", "layout_of", "packed"]

_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_RECURRENT: Final = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, slots=True)
class Layout:
    """``axis`` is that of the output channels, of which each has its scale; of a ``block`` it is the axis cut up."""

    bits: int
    axis: int | None
    block: int | None = None


@dataclass(frozen=True, slots=True)
class _Axes:
    """The axis of a weight whose elements have scales of their own, and that which is summed over, if it is one."""

    own: int
    summed: int | None


def layout_of(value: ir.Value, tensor: ir.TensorProtocol, bits: int, block: int | None) -> Layout | str:
    """The layout of a constant, or in words why it is to stay as it is."""
    if tensor.dtype not in _FLOATS:
        return f"it is {tensor.dtype.name.lower()}"
    if isinstance(tensor, SparseTensor):
        return "it is sparse"
    if value.is_graph_output():
        return "it is an output of the model"
    if not value.uses():
        return "nothing reads it"
    found = _axes_of(value, len(tensor.shape), 0)
    if isinstance(found, str):
        return found
    array = np.asarray(tensor.numpy())
    if not np.isfinite(array).all():
        return "it is not finite"
    extent = None if found.summed is None else array.shape[found.summed]
    if block is not None and array.ndim == 2 and extent is not None and extent % block == 0 and extent > block:
        layout = Layout(bits, found.summed, block)
    else:
        layout = Layout(8, found.own)
    _, scale = packed(array, layout)
    smallest = np.finfo(array.dtype).tiny
    return layout if bool((scale >= smallest).all()) else "its scales would be too small to be written"


def _axes_of(value: ir.Value, rank: int, depth: int) -> _Axes | str:
    """The axes that suit everything which reads a value; a reason where something reads it that is no layer."""
    chosen: _Axes | None = None
    for use in value.uses():
        axes = _axes_in(use.node, use.idx, rank, depth)
        if isinstance(axes, str):
            return axes
        # A table that is looked up and multiplied with is first of all a factor.
        if chosen is None or use.node.op_type != "Gather":
            chosen = axes
    return chosen if chosen is not None else "nothing reads it"


def _axes_in(node: ir.Node, index: int, rank: int, depth: int) -> _Axes | str:
    reads = f"{node.op_type} '{node.name}' reads it, which is no layer with weights"
    if node.domain != "" or depth > 4:
        return reads
    if node.op_type == "MatMul" and rank >= 2:
        return _Axes(rank - 1, rank - 2) if index == 1 else _Axes(rank - 2, rank - 1)
    if node.op_type == "Gemm" and index < 2 and rank == 2:
        turned = node.attributes.get_int("transB" if index else "transA", 0) == 1
        own = (0 if turned else 1) if index else (1 if turned else 0)
        return _Axes(own, 1 - own)
    if node.op_type in ("Conv", "ConvTranspose") and index == 1:
        return _Axes(0 if node.op_type == "Conv" else 1, None)
    if node.op_type in _RECURRENT and index in (1, 2) and rank == 3:
        return _Axes(1, 2)
    if node.op_type == "Gather" and index == 0 and rank >= 2:
        axis = node.attributes.get_int("axis", 0) % rank
        return _Axes(axis, 1 - axis if rank == 2 else None)
    if node.op_type in ("Transpose", "Identity") and not node.outputs[0].is_graph_output():
        order = list(range(rank))
        if node.op_type == "Transpose":
            order = [int(axis) for axis in node.attributes.get_ints("perm", order[::-1])]
        inner = _axes_of(node.outputs[0], rank, depth + 1)
        if isinstance(inner, str):
            return inner
        return _Axes(order[inner.own], None if inner.summed is None else order[inner.summed])
    return reads


def packed(array: np.ndarray[Any, Any], layout: Layout) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The integers of an array, of its shape, and their scales.

    The scales of channels are of shape ``[1, .., channels, .., 1]``, those of blocks of the array's rank plus one.
    """
    top = 7 if layout.bits == 4 else 127
    wide = array.astype(np.float64)
    if layout.block is not None:
        assert layout.axis is not None
        axis, shape = layout.axis, array.shape
        wide = wide.reshape(*shape[:axis], shape[axis] // layout.block, layout.block, *shape[axis + 1 :])
        over: tuple[int, ...] = (axis + 1,)
    else:
        over = tuple(axis for axis in range(array.ndim) if axis != layout.axis)
    scale = np.abs(wide).max(axis=over, keepdims=True) / top
    scale[scale < np.finfo(np.float32).tiny] = 1.0  # a channel of zeros, or as good as that
    scale = scale.astype(array.dtype)
    with np.errstate(all="ignore"):  # a scale that is no number any more in float16 is refused by who asked
        whole = np.clip(np.rint(wide / scale.astype(np.float64)), -top, top)
    numbers = whole.reshape(array.shape).astype(ml_dtypes.int4 if layout.bits == 4 else np.int8)
    return numbers, scale
