"""Passes that put the steps of an unrolled recurrent network together again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import sweep
from graphkit.optimizers.broadcasts import uniform
from graphkit.optimizers.cells import Cell, read_cell
from graphkit.optimizers.context import Context
from graphkit.optimizers.linear_forms import Source

__all__: list[str] = []

_FLOAT: Final = ir.DataType.FLOAT
_NODE_BYTES: Final = 48
Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class _Chain:
    """Steps in a row, each reading the state of the one before, with the same numbers."""

    cells: list[Cell]
    nodes: set[ir.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        for cell in self.cells:
            self.nodes |= cell.nodes


def _why_not(ctx: Context, node: ir.Node) -> str:
    if node.op_type not in ("Mul", "Add"):
        return "it looks at Mul, Add"
    found = read_cell(ctx, node)
    return (
        found if isinstance(found, str) else "something else reads a value inside, or its weights are needed elsewhere"
    )


@sweep("fuse_recurrent_cells", tolerance=1e-5, training=False, explain=_why_not)
def fuse_recurrent_cells(ctx: Context) -> int:
    """Unrolled LSTM and GRU cells become LSTM and GRU: one operator for all the steps in a row.

    The gates are products with constant matrices, in any order and however they are cut; nothing else reads the values
    inside. Several steps, or one with a known batch. float32 only: the runtime lists LSTM for float64 too, and refuses
    it when it runs. Where an input is NaN the runtime's LSTM and GRU give a number: their gates let no NaN through.
    """
    return sum(_fuse_graph(ctx, graph) for root in ctx.graphs() for graph in (root, *root.subgraphs()))


def _fuse_graph(ctx: Context, graph: ir.Graph) -> int:
    cells: list[Cell] = []
    order: dict[ir.Node, int] = {}
    for position, node in enumerate(graph):
        order[node] = position
        if node.op_type in ("Mul", "Add") and node.domain == "" and ctx.dtype(node.outputs[0]) == _FLOAT:
            found = read_cell(ctx, node)
            if isinstance(found, Cell):
                cells.append(found)
    if not cells:
        return 0
    chains = [part for chain in _chains(cells) for part in _ready(ctx, chain, order)]
    fused = {node for chain in chains for node in chain.nodes}
    made: dict[object, list[ir.Value | None]] = {}
    replaced: set[ir.Value] = set()
    done = 0
    for chain in chains:
        read = {source.value for cell in chain.cells for source in cell.sources}
        read |= {cell.start_cell for cell in chain.cells[:1] if cell.start_cell is not None}
        if read & replaced:
            continue  # an earlier chain gives it anew: the next round sees that
        if not _closed(chain) or not _affordable(ctx, chain, fused):
            continue
        name = chain.cells[-1].last.name or chain.cells[0].operator
        replaced |= _emit(ctx, chain, made, order)
        ctx.account.rewritten.append(name)
        done += 1
    return done


def _chains(cells: list[Cell]) -> list[_Chain]:
    """The cells, each behind the one whose state it reads if both compute with the same numbers."""
    giver = {cell.hidden: cell for cell in cells}
    follower: dict[int, Cell] = {}
    headed: set[int] = set()
    for cell in cells:
        before = next((giver[s.own] for s in cell.sources if s.own is not None and s.own in giver), None)
        if before is None or before is cell or id(before) in follower or not _links(before, cell):
            continue
        follower[id(before)] = cell
        headed.add(id(cell))
    found: list[_Chain] = []
    for cell in cells:
        if id(cell) in headed:
            continue
        row = [cell]
        while id(row[-1]) in follower:
            row.append(follower[id(row[-1])])
        found.append(_Chain(row))
    return found


def _links(before: Cell, cell: Cell) -> bool:
    """Settle what the state of both is, if one follows the other."""
    if before.operator != cell.operator or (before.size, before.before) != (cell.size, cell.before):
        return False
    if before.cell is not cell.start_cell:
        return False
    state = next(source for source in cell.sources if source.own is before.hidden)
    if cell.operator == "LSTM":
        cell.state = state
    if cell.state != state or cell.input() is None:
        return False
    first, second = before.biases(np.float64), cell.biases(np.float64)
    if not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)):
        return False
    wanted = cell.keys(cell.input()), cell.keys(cell.state)
    chosen: list[Source | None] = [before.state] if before.state is not None else [*before.choices, None]
    for state_before in chosen:
        before.state = state_before
        if before.keys(before.input()) == wanted[0] and (
            state_before is None or before.keys(state_before) == wanted[1]
        ):
            return True
    before.state = chosen[0] if len(chosen) == 1 else None
    return False


def _ready(ctx: Context, chain: _Chain, order: dict[ir.Node, int]) -> list[_Chain]:
    """A chain cut where steps cannot be run at once: their inputs come too late, or a cell state is read between."""
    rows: list[list[Cell]] = []
    for cell in chain.cells:
        if rows and _may_follow(rows[-1], cell, order):
            rows[-1].append(cell)
        else:
            rows.append([cell])
    return [_Chain(row) for row in rows if _is_settled(ctx, row)]


def _is_settled(ctx: Context, row: list[Cell]) -> bool:
    first = row[0]
    if not isinstance(first.batch, int) and (len(row) == 1 or ctx.opset(first.last) < 11):
        return False  # what guards against an empty batch would take longer than one step, or cannot be written
    if len(row) == 1 and first.state is None and first.operator == "LSTM" and len(first.sources) == 2 and first.choices:
        first.state = next((source for source in first.choices if source.axis is None), first.choices[0])
    last = row[-1]
    whole = [last.products(last.state), last.products(last.input())]
    if last.state is None or any(product is None for products in whole for product in products):
        return False
    if first.start is None and first.operator == "LSTM" and first.state is not None and first.state.own is not None:
        first.start = None if uniform(ctx, first.state.own) == 0 else first.state.own
    return True


def _may_follow(row: list[Cell], cell: Cell, order: dict[ir.Node, int]) -> bool:
    before = row[-1]
    if before.cell is not None and not _is_inside(before.cell, before.nodes | cell.nodes):
        return False
    return _steps([*row, cell]) is not None or all(_is_early(row[0], each, order) for each in [*row, cell])


def _is_early(first: Cell, cell: Cell, order: dict[ir.Node, int]) -> bool:
    """Whether a step's input is there before the first step is done."""
    source = cell.input()
    if source is None or source.own is None:
        return False
    producer = source.own.producer()
    return producer is None or order.get(producer, -1) < order[first.last]


def _steps(row: list[Cell]) -> tuple[Source, int] | None:
    """The first step's input and the stride, if the inputs are consecutive places of one value."""
    sources = [cell.input() for cell in row]
    first = sources[0]
    if first is None or first.axis is None:
        return None
    stride = 1 if len(row) == 1 or sources[1] is None or sources[1].index > first.index else -1
    for number, source in enumerate(sources):
        if source != Source(first.value, first.axis, first.index + stride * number):
            return None
    return first, stride


def _is_inside(value: ir.Value, nodes: set[ir.Node]) -> bool:
    return not value.is_graph_output() and all(use.node in nodes for use in value.uses())


def _closed(chain: _Chain) -> bool:
    given = {cell.hidden for cell in chain.cells}
    last = chain.cells[-1].cell
    given |= {last} if last is not None else set()
    return all(value in given or _is_inside(value, chain.nodes) for node in chain.nodes for value in node.outputs)


def _affordable(ctx: Context, chain: _Chain, fused: set[ir.Node]) -> bool:
    """Whether the packed matrices are no larger than those that are no longer needed, but for a small budget."""
    last = chain.cells[-1]
    needed = [p for source in (last.state, last.input()) for p in last.products(source) if p is not None]
    itemsize = np.dtype(ctx.array(needed[0].weight).dtype).itemsize  # type: ignore[union-attr]
    new = sum(itemsize * last.size * (p.rows[1] - p.rows[0] + 2) for p in needed)
    freed = _NODE_BYTES * len(chain.nodes)
    for value in {value for cell in chain.cells for value in cell.constants}:
        tensor = ctx.tensor(value)
        if tensor is not None and _is_inside(value, fused):
            freed += int(tensor.nbytes)
    if new - freed > ctx.slack:
        return False
    ctx.slack -= max(0, new - freed)
    return True


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


def _emit(
    ctx: Context, chain: _Chain, made: dict[object, list[ir.Value | None]], order: dict[ir.Node, int]
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
    wanted = [t for t, cell in enumerate(chain.cells) if not _is_inside(cell.hidden, chain.nodes)]
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
    if lstm and last.cell is not None and not _is_inside(last.cell, chain.nodes):
        given[last.cell] = frame.cut(outputs[2])
    for old, new in given.items():
        ctx.replace(old, new)
    for node in sorted(chain.nodes, key=order.__getitem__, reverse=True):
        ctx.remove(node)
    return set(given)


def _sequence(ctx: Context, chain: _Chain, frame: _Frame) -> tuple[ir.Value, int]:
    """The inputs of all steps as one value (steps, batch, features), and the stride in which they go through it."""
    near, count = chain.cells[0].last, len(chain.cells)
    sources = [cell.input() for cell in chain.cells]
    steps = _steps(chain.cells)
    if steps is None or (count == 1 and sources[0] is not None and sources[0].own is not None):
        parts: list[ir.Value | None] = []
        for source in sources:
            assert source is not None and source.own is not None
            length = (source.shape(ctx) or ())[1]
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
