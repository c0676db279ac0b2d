"""Reading the nodes of a recurrent cell: what an LSTM or GRU computes in one step, however its gates are laid out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.broadcasts import uniform
from graphkit.optimizers.context import Context
from graphkit.optimizers.linear_forms import LinearForm, Product, Source, linear_form, width
from graphkit.optimizers.patterns import Match, Pattern, match
from graphkit.optimizers.symbolic import Dim

__all__ = ["Cell", "read_cell"]

Array = np.ndarray[Any, Any]

_LSTM: Final[Pattern] = (
    "Mul",
    ("Sigmoid", "o"),
    ("Tanh", ("Add", ("Mul", ("Sigmoid", "f"), "c"), ("Mul", ("Sigmoid", "i"), ("Tanh", "g")))),
)
_RESET: Final[Pattern] = ("Mul", ("Sigmoid", "r"), "hn")
_NEWS: Final[tuple[Pattern, ...]] = (("Tanh", ("Add", "xn", _RESET)), ("Tanh", "n"))
_Z: Final[Pattern] = ("Sigmoid", "z")
_GRUS: Final[tuple[Pattern, ...]] = tuple(
    form
    for new in _NEWS
    for form in (
        ("Add", ("Mul", ("Sub", "h", new), _Z), new),
        ("Add", ("Mul", ("Sub", 1.0, _Z), new), ("Mul", _Z, "h")),
    )
)


@dataclass(slots=True)
class Cell:
    """One step: what it reads and gives, and for each gate, in ONNX's order, the products that make it.

    ``inputs[k]`` is the product of gate ``k`` with the step's input and ``states[k]`` that with the state before; None
    where that state is all zeros and its product is left out. ``choices`` are the sources that may be the state as long
    as nothing else says which is.
    """

    operator: str
    size: int
    batch: Dim
    before: bool  # GRU: the reset gate is applied to the state's product, and not to the state
    nodes: set[ir.Node]
    last: ir.Node
    hidden: ir.Value
    cell: ir.Value | None
    start_cell: ir.Value | None
    forms: list[LinearForm]
    reset: LinearForm | None = None
    state: Source | None = None
    start: ir.Value | None = None
    choices: list[Source] = field(default_factory=list)

    def products(self, source: Source | None) -> list[Product | None]:
        """Each gate's product with a source."""
        forms = self.forms if self.reset is None or source != self.state else [*self.forms[:2], self.reset]
        return [next((p for p in form.products if p.source == source), None) for form in forms]

    def keys(self, source: Source | None) -> list[object]:
        """What the products with a source share exactly with another step's that uses the same numbers."""
        return [None if product is None else product.key for product in self.products(source)]

    @property
    def constants(self) -> set[ir.Value]:
        """The matrices and biases."""
        return {value for form in self._all() for value in form.constants}

    @property
    def sources(self) -> list[Source]:
        """What the gates are products of, each once."""
        return list(dict.fromkeys(p.source for form in self._all() for p in form.products))

    def input(self) -> Source | None:
        """The step's input, once the state is known."""
        rest = [source for source in self.sources if source != self.state]
        return rest[0] if len(rest) == 1 else None

    def biases(self, dtype: Any) -> tuple[Array, Array]:
        """The constants of each gate: those of the input's products (or of both), and those of the state's alone."""
        zeros = np.zeros(self.size, dtype)
        inputs = np.concatenate([zeros if form.bias is None else form.bias for form in self.forms])
        states = np.zeros_like(inputs)
        if self.reset is not None and self.reset.bias is not None:
            states[2 * self.size :] = self.reset.bias
        return inputs.astype(dtype), states.astype(dtype)

    def _all(self) -> list[LinearForm]:
        return self.forms if self.reset is None else [*self.forms, self.reset]


def read_cell(ctx: Context, node: ir.Node) -> Cell | str:
    """The cell whose last node this is, or why it is none."""
    if node.op_type == "Mul":
        return _read_lstm(ctx, node)
    found = match(ctx, node, *_GRUS, closed=False)
    return "it is not the last node of a recurrent cell" if found is None else _read_gru(ctx, node, found)


def _gate(ctx: Context, found: Match, name: str, size: int) -> LinearForm | None:
    graph = found.nodes[0].graph
    assert graph is not None
    return linear_form(ctx, found[name], (0, size), graph) if width(ctx, found[name]) == size else None


def _sizes(ctx: Context, node: ir.Node) -> tuple[Dim, int] | str:
    shape = ctx.shape(node.outputs[0])
    if shape is None or len(shape) != 2 or not isinstance(shape[1], int):
        return "its state is not known to be a matrix"
    if shape[0] == 0:
        return "the batch is empty"
    return shape[0], shape[1]


def _read_lstm(ctx: Context, node: ir.Node) -> Cell | str:
    found = match(ctx, node, _LSTM, closed=False)
    if found is None:
        return "it is not the last node of a recurrent cell"
    sizes = _sizes(ctx, node)
    if isinstance(sizes, str):
        return sizes
    batch, size = sizes
    forms = [_gate(ctx, found, name, size) for name in "iofg"]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return "a gate is not a sum of products with constant matrices"
    total = next(each for each in found.nodes if each.op_type == "Add").outputs[0]
    zero = uniform(ctx, found["c"]) == 0
    if ctx.shape(total) != (batch, size) or not (zero or ctx.shape(found["c"]) == (batch, size)):
        return "the cell state is not known to be as large as the state"
    nodes = set(found.nodes).union(*(form.nodes for form in known))
    start = None if zero else found["c"]
    made = Cell("LSTM", size, batch, False, nodes, node, node.outputs[0], total, start, known)
    return _checked(ctx, made, None)


def _reset_states(ctx: Context, form: LinearForm, state: ir.Value) -> Iterator[tuple[ir.Value, Match]]:
    """What of a form is the product of a gate and the state before."""
    for product in form.products:
        value = product.source.value
        node = value.producer()
        found = None if node is None else match(ctx, node, ("Mul", ("Sigmoid", "r"), "h"), closed=False)
        if found is not None and found["h"] is state:
            yield value, found


def _read_gru(ctx: Context, node: ir.Node, found: Match) -> Cell | str:
    sizes = _sizes(ctx, node)
    if isinstance(sizes, str):
        return sizes
    batch, size = sizes
    before = "hn" in found.values
    reset: LinearForm | None = None
    rest: LinearForm | None = None
    nodes = set(found.nodes)
    if before:
        names = ["z", "r", "xn"]
        reset = _gate(ctx, found, "hn", size)
    else:
        # n = tanh(W x + R (r * h)): the product of the reset gate and the state is a source of its own.
        inner = _gate(ctx, found, "n", size)
        pairs = [] if inner is None else list(_reset_states(ctx, inner, found["h"]))
        if inner is None or len(pairs) != 1:
            return "its new state is not that of a GRU"
        value, each = pairs[0]
        found.values["r"] = each["r"]
        nodes |= set(each.nodes)
        state = Source(found["h"], own=found["h"])
        parts = [p for p in inner.products if p.source.value is value]
        reset = LinearForm([Product(state, p.weight, p.transposed, p.rows, p.columns) for p in parts])
        rest = LinearForm(
            [p for p in inner.products if p.source.value is not value], inner.bias, inner.nodes, inner.constants
        )
        names = ["z", "r"]
    forms = [_gate(ctx, found, name, size) for name in names]
    if rest is not None:
        forms.append(rest)
    known = [form for form in forms if form is not None]
    if len(known) < 3 or reset is None:
        return "a gate is not a sum of products with constant matrices"
    nodes = nodes.union(reset.nodes, *(form.nodes for form in known))
    made = Cell("GRU", size, batch, before, nodes, node, node.outputs[0], None, None, known, reset)
    return _checked(ctx, made, found["h"])


def _checked(ctx: Context, cell: Cell, state: ir.Value | None) -> Cell | str:
    """The cell with its state found, if everything in it has the shape that the operator takes."""
    sources = cell.sources
    for source in sources:
        shape = source.shape(ctx)
        if shape is None or len(shape) != 2 or shape[0] != cell.batch or not isinstance(shape[1], int):
            return "what a gate is a product of is not known to be a matrix with a row for each of the batch"
    if any(len({p.source for p in form.products}) < len(form.products) for form in cell.forms):
        return "a gate has two products with the same value"
    wide = [s for s in sources if s.own is not None and width(ctx, s.own) == cell.size]
    zeros = [s for s in wide if uniform(ctx, s.own) == 0]
    if state is not None and uniform(ctx, state) != 0:
        cell.state, cell.start = next((s for s in wide if s.own is state), None), state
        if cell.state is None:
            return "no gate is a product with the state before"
        cell.choices = [cell.state]
    elif zeros and len(sources) == 2:
        cell.state = zeros[0]
        cell.choices = [cell.state]
    else:
        cell.choices = [] if state is not None else wide
    if cell.operator == "GRU" and not _is_gru(cell):
        return "its new state is not that of a GRU"
    if not 1 <= len(sources) <= 2:
        return "its gates are not products with one input and one state"
    return cell


def _is_gru(cell: Cell) -> bool:
    """Whether the state is where a GRU has it: reset before its product with the new state's matrix, or after."""
    assert cell.reset is not None
    inside = {p.source for p in cell.reset.products}
    outside = {p.source for p in cell.forms[2].products}
    return inside <= {cell.state} and cell.state not in outside and (cell.before or len(inside) == 1)
