"""Passes that put the steps of an unrolled recurrent network together again."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import sweep
from graphkit.optimizers.broadcasts import uniform
from graphkit.optimizers.cells import Cell, read_cell
from graphkit.optimizers.context import Context
from graphkit.optimizers.linear_forms import Source
from graphkit.optimizers.recurrent_nodes import Chain, emit, is_inside, stride_of

__all__: list[str] = []

_FLOAT: Final = ir.DataType.FLOAT
_NODE_BYTES: Final = 48
_MOST_BYTES: Final = 1024


def _why_not(ctx: Context, node: ir.Node) -> str:
    if node.op_type not in ("Mul", "Add"):
        return "it looks at Mul, Add"
    found = read_cell(ctx, node)
    return (
        found if isinstance(found, str) else "something else reads a value inside, or its weights are needed elsewhere"
    )


# Not for CUDA: cuDNN's GRU takes one form alone, and none of it was measured there.
@sweep("fuse_recurrent_cells", tolerance=1e-5, training=False, targets=("inference", "web"), explain=_why_not)
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
        replaced |= emit(ctx, chain, made, order)
        ctx.account.rewritten.append(name)
        done += 1
    return done


def _chains(cells: list[Cell]) -> list[Chain]:
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
    found: list[Chain] = []
    for cell in cells:
        if id(cell) in headed:
            continue
        row = [cell]
        while id(row[-1]) in follower:
            row.append(follower[id(row[-1])])
        found.append(Chain(row))
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


def _ready(ctx: Context, chain: Chain, order: dict[ir.Node, int]) -> list[Chain]:
    """A chain cut where steps cannot be run at once: their inputs come too late, or a cell state is read between."""
    rows: list[list[Cell]] = []
    # Whether the inputs of the row are consecutive places of one value, and whether all are there at its beginning.
    stride, early = 0, True
    for cell in chain.cells:
        row = rows[-1] if rows else []
        if row and (before := row[-1]).cell is not None and not is_inside(before.cell, before.nodes | cell.nodes):
            row = []  # the cell state between is read
        step = stride_of(row[-1].input(), cell.input()) if row else 0
        consecutive = step if len(row) == 1 or step == stride else 0
        if row and (consecutive or (early and _is_early(row[0], cell, order))):
            row.append(cell)
            stride, early = consecutive, early and _is_early(row[0], cell, order)
        else:
            rows.append([cell])
            stride, early = 0, _is_early(cell, cell, order)
    return [Chain(row) for row in rows if _is_settled(ctx, row)]


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


def _is_early(first: Cell, cell: Cell, order: dict[ir.Node, int]) -> bool:
    """Whether a step's input is there before the first step is done."""
    source = cell.input()
    if source is None or source.own is None:
        return False
    producer = source.own.producer()
    return producer is None or order.get(producer, -1) < order[first.last]


def _closed(chain: Chain) -> bool:
    given = {cell.hidden for cell in chain.cells}
    last = chain.cells[-1].cell
    given |= {last} if last is not None else set()
    return all(value in given or is_inside(value, chain.nodes) for node in chain.nodes for value in node.outputs)


def _affordable(ctx: Context, chain: Chain, fused: set[ir.Node]) -> bool:
    """Whether the packed matrices are no larger than what is no longer needed, but for a little."""
    last = chain.cells[-1]
    needed = [p for source in (last.state, last.input()) for p in last.products(source) if p is not None]
    itemsize = np.dtype(ctx.array(needed[0].weight).dtype).itemsize  # type: ignore[union-attr]
    new = sum(itemsize * last.size * (p.rows[1] - p.rows[0] + 2) for p in needed)
    freed = _NODE_BYTES * len(chain.nodes)
    for value in {value for cell in chain.cells for value in cell.constants}:
        tensor = ctx.tensor(value)
        if tensor is not None and is_inside(value, fused):
            freed += int(tensor.nbytes)
    return new - freed <= _MOST_BYTES
