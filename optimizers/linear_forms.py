"""What a value is as a sum of products with constant matrices: how recurrent cells are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.context import Context
from graphkit.optimizers.infer_elementwise import axes_of
from graphkit.optimizers.infer_shapes import slice_bounds
from graphkit.optimizers.symbolic import Dim

__all__ = ["LinearForm", "Product", "Source", "linear_form", "source_of", "width"]

_DEPTH: Final = 16
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A value, or one place of it along an axis (one step of a sequence), which that axis then lacks.

    ``own`` is the step as a value, if the graph has it as one.
    """

    value: ir.Value
    axis: int | None = None
    index: int = 0
    own: ir.Value | None = field(default=None, compare=False)

    def shape(self, ctx: Context) -> tuple[Dim, ...] | None:
        """The shape of the step."""
        shape = ctx.shape(self.value)
        return shape if shape is None or self.axis is None else (*shape[: self.axis], *shape[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class Product:
    """A source times a part of a constant matrix: rows ``rows`` of it (its inputs), columns ``columns`` (outputs)."""

    source: Source
    weight: ir.Value
    transposed: bool
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def key(self) -> tuple[ir.Value, bool, tuple[int, int], tuple[int, int]]:
        """What two products with the same numbers share."""
        return self.weight, self.transposed, self.rows, self.columns

    def matrix(self, ctx: Context) -> Array:
        """The numbers, as (outputs, inputs)."""
        whole = ctx.array(self.weight)
        assert whole is not None
        stored = whole if self.transposed else whole.T
        return stored[slice(*self.columns), slice(*self.rows)]


@dataclass(slots=True)
class LinearForm:
    """The products, the constant added to every row, and the nodes that compute them."""

    products: list[Product] = field(default_factory=list)
    bias: Array | None = None
    nodes: set[ir.Node] = field(default_factory=set)
    constants: set[ir.Value] = field(default_factory=set)

    def add(self, other: LinearForm | None) -> LinearForm | None:
        """The sum of two, or None where one of them is not linear."""
        if other is None:
            return None
        bias = other.bias if self.bias is None else self.bias if other.bias is None else self.bias + other.bias
        products = [*self.products, *other.products]
        return LinearForm(products, bias, self.nodes | other.nodes, self.constants | other.constants)


def width(ctx: Context, value: ir.Value | None) -> int | None:
    """The length of a value's last axis, where it is known."""
    shape = ctx.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def linear_form(
    ctx: Context, value: ir.Value | None, columns: tuple[int, int], graph: ir.Graph, depth: int = _DEPTH
) -> LinearForm | None:
    """Columns of a value as products of other values with constant matrices; None where it is anything else."""
    if value is None or not depth:
        return None
    if ctx.tensor(value) is not None:
        return _constant(ctx, value, columns)
    node, last = value.producer(), width(ctx, value)
    if node is None or node.graph is not graph or node.domain != "" or last is None or columns[1] > last:
        return None
    found: LinearForm | None = None
    if node.op_type in ("Split", "Slice"):
        start = _start(ctx, node, value)
        if start is not None:
            moved = (columns[0] + start, columns[1] + start)
            found = linear_form(ctx, node.inputs[0], moved, graph, depth - 1)
    elif node.op_type == "Add":
        found = LinearForm()
        for each in node.inputs:
            if ctx.tensor(each) is None and ctx.shape(each) != ctx.shape(value):
                return None
            found = found.add(linear_form(ctx, each, columns, graph, depth - 1)) if found is not None else None
    elif node.op_type in ("Gemm", "MatMul"):
        found = _product(ctx, node, columns, graph, depth)
    elif node.op_type in ("Gather", "Squeeze"):
        step = _step(ctx, value)
        inner = linear_form(ctx, step.value, columns, graph, depth - 1) if step.axis is not None else None
        if inner is not None and all(each.source.axis is None for each in inner.products):
            at = [Source(each.source.value, step.axis, step.index) for each in inner.products]
            pairs = zip(at, inner.products, strict=True)
            products = [Product(s, p.weight, p.transposed, p.rows, p.columns) for s, p in pairs]
            found = LinearForm(products, inner.bias, inner.nodes, inner.constants)
    if found is not None:
        found.nodes.add(node)
    return found


def _constant(ctx: Context, value: ir.Value, columns: tuple[int, int]) -> LinearForm | None:
    array = ctx.array(value)
    if array is None or array.dtype.kind != "f" or array.size == 0:
        return None
    rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    if not (rows == rows[:1]).all():
        return None
    row = rows[0]
    if len(row) == 1:
        row = np.repeat(row, columns[1])
    return LinearForm([], row[slice(*columns)], set(), {value}) if len(row) >= columns[1] else None


def _start(ctx: Context, node: ir.Node, value: ir.Value) -> int | None:
    """Where along the last axis a part of a Split or Slice begins."""
    shape = ctx.shape(node.inputs[0])
    if shape is None:
        return None
    if node.op_type == "Split":
        lengths = [width(ctx, part) for part in node.outputs]
        at = node.attributes.get_int("axis", 0) % len(shape)
        known = [length for length in lengths if length is not None]
        return sum(known[: value.index() or 0]) if at == len(shape) - 1 and len(known) == len(lengths) else None
    bounds = slice_bounds(ctx.facts, node, len(shape))
    if bounds is None or len(bounds[2]) != 1:
        return None
    (start,), (end,), (axis,), (step,) = bounds
    length = shape[-1]
    if axis != len(shape) - 1 or step != 1 or not (isinstance(start, int) and isinstance(end, int)):
        return None
    return slice(start, end).indices(length)[0] if isinstance(length, int) else None


def _product(ctx: Context, node: ir.Node, columns: tuple[int, int], graph: ir.Graph, depth: int) -> LinearForm | None:
    left, weight = node.inputs[:2]
    array = ctx.array(weight)
    if left is None or weight is None or array is None or array.ndim != 2:
        return None
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0
    if node.op_type == "Gemm" and (
        node.attributes.get_int("transA", 0) != 0
        or node.attributes.get_float("alpha", 1.0) != 1
        or node.attributes.get_float("beta", 1.0) != 1
    ):
        return None
    found = LinearForm([], None, {node}, {weight})
    row = 0
    joined = left.producer()
    parts: Sequence[ir.Value | None] = [left]
    if joined is not None and joined.op_type == "Concat" and joined.domain == "" and joined.graph is graph:
        along = joined.attributes.get_int("axis", 0) in (-1, (ctx.rank(left) or 0) - 1)
        parts = joined.inputs if along else parts
        found.nodes |= {joined} if along else set()
    for part in parts:
        length = width(ctx, part)
        if part is None or length is None:
            return None
        found.products.append(Product(source_of(ctx, part), weight, transposed, (row, row + length), columns))
        row += length
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
    if bias is None:
        return found
    if ctx.tensor(bias) is None and ctx.shape(bias) != ctx.shape(node.outputs[0]):
        return None
    return found.add(linear_form(ctx, bias, columns, graph, depth - 1))


def source_of(ctx: Context, value: ir.Value) -> Source:
    """A value as a step of a sequence, if it is one."""
    step = _step(ctx, value)
    return Source(step.value, step.axis, step.index, value)


def _step(ctx: Context, value: ir.Value) -> Source:
    """One place along an axis, by Gather, or by Slice or Split to a length of 1 and Squeeze or Reshape."""
    plain, node = Source(value), value.producer()
    if node is None or node.domain != "":
        return plain
    source = node.inputs[0] if node.inputs else None
    if node.op_type == "Gather" and source is not None:
        shape, index = ctx.shape(source), ctx.scalar(node.inputs[1])
        if shape is None or index is None or ctx.rank(node.inputs[1]) != 0:
            return plain
        axis = node.attributes.get_int("axis", 0) % len(shape)
        length = shape[axis]
        if axis == len(shape) - 1 or not isinstance(length, int) or not -length <= index < length:
            return plain
        return Source(source, axis, int(index) % length)
    if node.op_type not in ("Squeeze", "Reshape") or source is None:
        return plain
    cutter, shape = source.producer(), ctx.shape(source)
    if cutter is None or cutter.op_type not in ("Slice", "Split") or cutter.domain != "" or shape is None:
        return plain
    whole = ctx.shape(cutter.inputs[0])
    axes = [axis for axis in range(len(shape) - 1) if whole is not None and whole[axis] != shape[axis]]
    if len(axes) != 1 or whole is None or len(whole) != len(shape) or shape[axes[0]] != 1:
        return plain
    (axis,) = axes
    if ctx.shape(value) != (*shape[:axis], *shape[axis + 1 :]) or not isinstance(whole[axis], int):
        return plain
    if node.op_type == "Squeeze" and axes_of(ctx.facts, node) not in ((axis,), (axis - len(shape),)):
        return plain
    start = _place(ctx, cutter, source, axis)
    kept = cutter.inputs[0]
    return plain if start is None or kept is None else Source(kept, axis, start)


def _place(ctx: Context, cutter: ir.Node, part: ir.Value, axis: int) -> int | None:
    whole = ctx.shape(cutter.inputs[0])
    assert whole is not None
    if cutter.op_type == "Split":
        lengths = [(ctx.shape(value) or ())[axis : axis + 1] for value in cutter.outputs]
        before = [length[0] for length in lengths[: part.index() or 0] if length and isinstance(length[0], int)]
        return sum(before) if len(before) == (part.index() or 0) else None
    bounds = slice_bounds(ctx.facts, cutter, len(whole))
    if bounds is None or len(bounds[2]) != 1 or bounds[2][0] != axis:
        return None
    start, length, step = bounds[0][0], whole[axis], bounds[3][0]
    if not (isinstance(start, int) and isinstance(length, int) and isinstance(step, int)) or step < 1:
        return None
    return slice(start, None).indices(length)[0]
