"""The nodes that stand for a row of recurrent steps: one operator, its packed numbers, and what stands around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.cells import Cell
from graphkit.optimizers.context import Context
from graphkit.optimizers.linear_forms import Source

__all__ = ["Chain", "emit", "is_inside", "stride_of"]


@dataclass(slots=True)
class Chain:
    """Steps in a row, each reading the state of the one before, with the same numbers."""

    cells: list[Cell]
    nodes: set[ir.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        for cell in self.cells:
            self.nodes |= cell.nodes


def stride_of(first: Source | None, second: Source | None) -> int:
    """1 or -1 where two inputs are neighbouring places of one value, the second behind or before the first; else 0."""
    if (
        first is None
        or second is None
        or first.axis is None
        or (first.value, first.axis) != (second.value, second.axis)
    ):
        return 0
    step = second.index - first.index
    return step if step in (1, -1) else 0


def _steps(row: list[Cell]) -> tuple[Source, int] | None:
    """The first step's input and the stride, if the inputs are consecutive places of one value."""
    sources = [cell.input() for cell in row]
    first = sources[0]
    if first is None or first.axis is None:
        return None
    strides = {stride_of(a, b) for a, b in pairwise(sources)} or {1}
    return None if len(strides) > 1 or 0 in strides else (first, strides.pop())


def is_inside(value: ir.Value, nodes: set[ir.Node]) -> bool:
    return not value.is_graph_output() and all(use.node in nodes for use in value.uses())


class _Frame:
    """What stands around the operator: the shapes it takes, and one row more where the batch is empty.

    An empty batch ends the process inside the runtime's LSTM and GRU, so where the batch is not known a row of zeros is
    added to an empty one, and cut off again.
    """

    def __init__(self, ctx: Context, near: ir.Node, cell: Cell) -> None:
        self.ctx, self.near, self.size = ctx, near, cell.size
        self.batch = cell.batch if isinstance(cell.batch, int) else -1
        self.rows: ir.Value | None = None
        self.pads: ir.Value | None = None

    def ints(self, hint: str, *numbers: int) -> ir.Value:
        """A constant of integers."""
        return self.ctx.constant(np.array(numbers, np.int64), hint, near=self.near)

    def add(self, operator: str, inputs: list[ir.Value | None], hint: str, **attributes: Any) -> ir.Value:
        """A node of one output."""
        return self.ctx.add(operator, inputs, attributes, before=self.near, hint=hint)[0]

    def reshaped(self, value: ir.Value, *dims: int) -> ir.Value:
        """A value in another shape."""
        return self.add("Reshape", [value, self.ints(f"{value.name}_shape", *dims)], f"{value.name}_steps")

    def widened(self, value: ir.Value) -> ir.Value:
        """A value (steps, batch, features) whose batch is not empty."""
        if self.batch >= 0:
            return value
        if self.pads is None:
            whole = self.add("Shape", [value], f"{value.name}_shape")
            self.rows = self.add("Gather", [whole, self.ints("one", 1)], f"{value.name}_rows")
            empty = self.add("Equal", [self.rows, self.ints("zero", 0)], f"{value.name}_empty")
            row = self.add("Cast", [empty], f"{value.name}_row", to=int(ir.DataType.INT64))
            four = [self.ints("zeros", 0, 0, 0, 0), row, self.ints("zero", 0)]
            self.pads = self.add("Concat", list(four), f"{value.name}_pads", axis=0)
        return self.add("Pad", [value, self.pads], f"{value.name}_padded")

    def cut(self, value: ir.Value, *dims: int) -> ir.Value:
        """The operator's output in the shape ``(..., batch, size)``, without the row that was added."""
        made = self.reshaped(value, *dims, self.batch, self.size)
        if self.rows is None:
            return made
        bounds = [self.ints("zero", 0), self.rows, self.ints("axis", len(dims))]
        return self.add("Slice", [made, *bounds], f"{value.name}_rows")


def emit(
    ctx: Context, chain: Chain, made: dict[object, list[ir.Value | None]], order: dict[ir.Node, int]
) -> set[ir.Value]:
    first, last = chain.cells[0], chain.cells[-1]
    near, count = first.last, len(chain.cells)
    lstm = first.operator == "LSTM"
    frame = _Frame(ctx, near, first)
    x, stride = _sequence(ctx, chain, frame)
    x = frame.widened(x)
    starts = [
        None if value is None else frame.widened(frame.reshaped(value, 1, frame.batch, first.size))
        for value in (first.start, first.start_cell)
    ]
    inputs: list[ir.Value | None] = [x, *_packed(ctx, last, near, made), None, *(starts if lstm else starts[:1])]
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {"hidden_size": first.size}
    if stride < 0:
        attributes["direction"] = "reverse"
    if first.before:
        attributes["linear_before_reset"] = 1
    outputs = ctx.add(first.operator, inputs, attributes, before=near, outputs=3 if lstm else 2)
    wanted = [t for t, cell in enumerate(chain.cells) if not is_inside(cell.hidden, chain.nodes)]
    given: dict[ir.Value, ir.Value] = {}
    if wanted == [count - 1]:
        given[last.hidden] = frame.cut(outputs[1])
    elif wanted:
        whole = frame.cut(outputs[0], count)
        for t in wanted:
            old = chain.cells[t].hidden
            place = np.array(t if stride > 0 else count - 1 - t, np.int64)
            step = ctx.constant(place, f"{old.name}_step", near=near)
            given[old] = frame.add("Gather", [whole, step], f"{old.name}_now", axis=0)
    if lstm and last.cell is not None and not is_inside(last.cell, chain.nodes):
        given[last.cell] = frame.cut(outputs[2])
    for old, new in given.items():
        ctx.replace(old, new)
    for node in sorted(chain.nodes, key=order.__getitem__, reverse=True):
        ctx.remove(node)
    return set(given)


def _sequence(ctx: Context, chain: Chain, frame: _Frame) -> tuple[ir.Value, int]:
    """The inputs of all steps as one value (steps, batch, features), and the stride in which they go through it."""
    near, count = chain.cells[0].last, len(chain.cells)
    sources = [cell.input() for cell in chain.cells]
    steps = _steps(chain.cells)
    if steps is None or (count == 1 and sources[0] is not None and sources[0].own is not None):
        parts: list[ir.Value | None] = []
        for source in sources:
            assert source is not None and source.own is not None
            shape = source.shape(ctx)
            length = None if shape is None else shape[-1]
            assert isinstance(length, int)
            parts.append(frame.reshaped(source.own, 1, frame.batch, length))
        only = parts[0]
        assert only is not None
        return (only if count == 1 else frame.add("Concat", parts, f"{only.name}_all", axis=0)), 1
    first, stride = steps
    axis = first.axis
    shape = ctx.shape(first.value)
    assert axis is not None and shape is not None
    value = first.value
    low = min(first.index, first.index + stride * (count - 1))
    if shape[axis] != count and ctx.opset(near) < 10:
        value = frame.add("Slice", [value], f"{value.name}_part", starts=[low], ends=[low + count], axes=[axis])
    elif shape[axis] != count:
        bounds = [frame.ints(f"{value.name}_{what}", n) for what, n in (("start", low), ("end", low + count))]
        axes = frame.ints(f"{value.name}_axis", axis)
        value = frame.add("Slice", [value, *bounds, axes], f"{value.name}_part")
    if axis != 0:
        order = [axis, *(each for each in range(3) if each != axis)]
        value = frame.add("Transpose", [value], f"{value.name}_by_step", perm=order)
    return value, stride


def _packed(
    ctx: Context, cell: Cell, near: ir.Node, made: dict[object, list[ir.Value | None]]
) -> list[ir.Value | None]:
    """W, R and B of the operator, made once for all chains with the same numbers."""
    products = [[p for p in cell.products(source) if p is not None] for source in (cell.input(), cell.state)]
    matrices = [np.concatenate([p.matrix(ctx) for p in each])[None] for each in products]
    dtype = matrices[0].dtype
    biases = np.concatenate(cell.biases(dtype))[None]
    shared = ctx.root(near) is ctx.model.graph
    key = (cell.operator, cell.before, *(p.key for each in products for p in each), biases.tobytes())
    if shared and key in made:
        return made[key]
    origins = [list(dict.fromkeys(p.weight.name or "" for p in each)) for each in products]
    found: list[ir.Value | None] = [
        ctx.constant(array, f"{cell.operator}_{what}", near=near, origin=origin)
        for array, what, origin in zip(matrices, "WR", origins, strict=True)
    ]
    names = sorted(value.name or "" for value in cell.constants)
    found.append(ctx.constant(biases, f"{cell.operator}_B", near=near, origin=names) if biases.any() else None)
    if shared:
        made[key] = found
    return found
