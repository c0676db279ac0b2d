"""Sequences and optionals. How their cotangents are kept is said in ``lists``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from graphkit import dtypes
from graphkit.bodies import make_loop, run_body
from graphkit.core import Record, Tensor
from graphkit.dims import same_dims
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries, as_mask
from graphkit.gradients.lists import Spots, is_sequence, place_in, whole
from graphkit.gradients.shapes import constant, rank_of, shaped_like, static_ints, sum_to, zeros_like
from graphkit.gradients.table import Pieces, gradient, vjp
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints

Items = list[Tensor | None]


def length_of(t: Tensor | None) -> int | None:
    """How many elements a sequence has, where that is known before a graph runs."""
    if t is None:
        return None
    if isinstance(t._array, list):
        return len(t._array)
    r = t.record
    if r is None:
        return None
    if r.op == "SequenceConstruct":
        return len(r.inputs)
    if r.op == "SequenceEmpty":
        return 0
    if r.op in {"Identity", "Optional", "OptionalGetElement", "SequenceMap"}:
        return length_of(r.inputs[0]) if r.inputs else None
    if r.op in {"SequenceInsert", "SequenceErase"}:
        before = length_of(r.inputs[0])
        return None if before is None else before + (1 if r.op == "SequenceInsert" else -1)
    if r.op == "SplitToSequence":
        return _split_count(r)
    return None


def _split_count(r: Record) -> int | None:
    x, split = r.inputs[0], r.input(1)
    assert x is not None
    extent = x.dims[int(r.attribute("axis", 0))] if x.dims is not None else None
    if split is None:
        return extent if isinstance(extent, int) else None
    if split.rank == 1:
        count = split.dims[0] if split.dims is not None else None
        return count if isinstance(count, int) else None
    size = static_ints(split)
    return -(-extent // size[0]) if size and isinstance(extent, int) else None


def _items(g: Tensor, count: int) -> Items:
    """A sequence's cotangent element by element."""
    if isinstance(g, Pieces):
        return list(g.items)
    full = whole(g)
    return [apply1("SequenceAt", full, constant(n, dtypes.INT64)) for n in range(count)]


def _place(position: Tensor | None, count: int | None, default: int) -> int | None:
    """Where an operator points in a sequence of ``count`` elements, None where only the run knows."""
    if count is None:
        return None
    if position is None:
        return default
    known = static_ints(position)
    return None if known is None else known[0] % count if count else 0


@gradient("SequenceConstruct")
def sequence_construct(r: Record, g: Tensor) -> Entries:
    return tuple(_items(g, len(r.inputs)))


@gradient("SequenceAt", selects=True)
def sequence_at(r: Record, g: Tensor) -> Entries:
    sequence, position = r.inputs
    assert sequence is not None and position is not None
    count = length_of(sequence)
    place = _place(position, count, 0)
    if count is None:
        return (Spots([(position, g)], sequence),)
    if place is not None:
        return (Pieces([g if n == place else None for n in range(count)], sequence),)
    elements = [apply1("SequenceAt", sequence, constant(n, dtypes.INT64)) for n in range(count)]
    if not all(same_dims(e.dims, g.dims) for e in elements):
        return (Spots([(position, g)], sequence),)
    wrapped = place_in(sequence, position)
    masks = [as_mask(apply1("Equal", wrapped, constant(n, dtypes.INT64)), g) for n in range(count)]
    return (Pieces([apply1("Mul", g, mask) for mask in masks], sequence),)


@gradient("SequenceInsert")
def sequence_insert(r: Record, g: Tensor) -> Entries:
    sequence, added, position = r.inputs[0], r.inputs[1], r.input(2)
    assert sequence is not None and added is not None
    count = length_of(sequence)
    place = _place(position, count, count or 0)
    if count is not None and place is not None:
        items = _items(g, count + 1)
        return Pieces(items[:place] + items[place + 1 :], sequence), items[place]
    full = whole(g)
    if position is None:  # behind all others
        there = constant(-1, dtypes.INT64)
    else:
        one = constant(1, dtypes.INT64)
        wide = position.astype(dtypes.INT64)  # from the end it counts the elements that there were before
        negative = apply1("Less", wide, constant(0, dtypes.INT64))
        there = apply1("Where", negative, apply1("Sub", wide, one), wide)
    return apply1("SequenceErase", full, there), shaped_like(apply1("SequenceAt", full, there), added)


@gradient("SequenceErase", selects=True)
def sequence_erase(r: Record, g: Tensor) -> Entries:
    sequence, position = r.inputs[0], r.input(1)
    assert sequence is not None
    count = length_of(sequence)
    place = _place(position, count, (count or 0) - 1)
    if count is not None and place is not None:
        items = _items(g, count - 1)
        return (Pieces([*items[:place], None, *items[place:]], sequence),)
    full = whole(g)
    there = position if position is not None else constant(-1, dtypes.INT64)
    nothing = zeros_like(apply1("SequenceAt", sequence, there))
    if position is None:
        return (apply1("SequenceInsert", full, nothing),)
    wide = position.astype(dtypes.INT64)
    length = apply1("Add", apply1("SequenceLength", full), constant(1, dtypes.INT64))
    from_front = apply1("Where", apply1("Less", wide, constant(0, dtypes.INT64)), apply1("Add", wide, length), wide)
    return (apply1("SequenceInsert", full, nothing, from_front),)


@gradient("SplitToSequence", selects=True)
def split_to_sequence(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    axis = int(r.attribute("axis", 0))
    if axis < 0:
        axis %= rank_of(r, x)
    (y,) = r.outputs
    count = length_of(y)
    if count is None:
        alone = r.input(1) is None and not int(r.attribute("keepdims", 1))
        joined = apply1("ConcatFromSequence", whole(g), axis=axis, new_axis=int(alone))
        return shaped_like(joined, x) if x is not None else joined
    items = _items(g, count)
    parts = [zeros_like(apply1("SequenceAt", y, constant(n, dtypes.INT64))) if p is None else p
             for n, p in enumerate(items)]  # fmt: skip
    if r.input(1) is None and not int(r.attribute("keepdims", 1)):
        parts = [apply1("Unsqueeze", p, constant_ints([axis])) for p in parts]
    return parts[0] if len(parts) == 1 else apply1("Concat", *parts, axis=axis)


@gradient("ConcatFromSequence")
def concat_from_sequence(r: Record, g: Tensor) -> Entries:
    sequence = r.inputs[0]
    assert sequence is not None
    axis = int(r.attribute("axis"))
    if axis < 0:
        axis %= rank_of(r, r.outputs[0])
    count = length_of(sequence)
    if count is None:
        return (_split_again(r, g, sequence, axis),)
    if int(r.attribute("new_axis", 0)):
        places = [constant(n, dtypes.INT64) for n in range(count)]
        return (Pieces([apply1("Gather", g, n, axis=axis) for n in places], sequence),)
    lengths = [apply1("Shape", apply1("SequenceAt", sequence, constant(n, dtypes.INT64)), start=axis, end=axis + 1)
               for n in range(count)]  # fmt: skip
    if count == 1:
        return (Pieces([g], sequence),)
    parts = apply("Split", (g, apply1("Concat", *lengths, axis=0)), {"axis": axis}, outputs=count)
    return (Pieces(list(parts), sequence),)


def _split_again(r: Record, g: Tensor, sequence: Tensor, axis: int) -> Tensor:
    """A concatenation's cotangent cut where its parts meet; how many there are only the run knows."""
    if int(r.attribute("new_axis", 0)):
        return apply1("SplitToSequence", g, axis=axis, keepdims=0)

    def step(i: Tensor, _: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        extent = apply1("Shape", apply1("SequenceAt", sequence, i), start=axis, end=axis + 1)
        return None, [], [apply1("Reshape", extent, constant_ints([]))]

    extents = make_loop(apply1("SequenceLength", sequence), None, [], step)[0]
    return apply1("SplitToSequence", g, extents, axis=axis)


@gradient("Optional", "OptionalGetElement")
def optional(r: Record, g: Tensor) -> Entries:
    """The value itself: an optional that holds nothing has no gradient to ask for."""
    return (g,)


@gradient("SequenceMap")
def sequence_map(r: Record, *gs: Tensor | None) -> Entries:
    """The body once more for each element, and the reverse pass over it."""
    body: Any = r.attributes["body"]
    if not isinstance(body, ir.Graph):
        raise GradientError(f"the gradient of {r.describe()} needs a graph: load the model, or trace the function")
    own = len(r.inputs) - r.captured
    outer = [t for t in r.inputs[own:] if t is not None]
    count = length_of(r.inputs[0])
    if count is None:
        return _map_back(r, body, [t for t in r.inputs[:own] if t is not None], outer, gs)
    results: list[Items] = [[None] * count for _ in range(own)]
    captured: Items = [None] * len(outer)
    for n in range(count):
        given = [_element(t, constant(n, dtypes.INT64)) for t in r.inputs[:own]]
        pieces = [None if g is None else _items(g, count)[n] for g in gs]
        if all(p is None for p in pieces):
            continue
        found = _pulled(body, given, outer, pieces)
        for m, cotangent in enumerate(found):
            if cotangent is None:
                continue
            if m < own:
                results[m][n] = cotangent
            else:
                already = captured[m - own]
                captured[m - own] = cotangent if already is None else apply1("Add", already, cotangent)
    entries: list[Tensor | None] = []
    for m, t in enumerate(r.inputs[:own]):
        assert t is not None
        entries.append(Pieces(results[m], t) if is_sequence(t) else _total(results[m], t))
    return (*entries, *captured)


def _map_back(
    r: Record, body: ir.Graph, inputs: Sequence[Tensor], outer: Sequence[Tensor], gs: Sequence[Tensor | None]
) -> Entries:
    """The same in a Loop, where only the run knows how many elements there are."""
    own = len(inputs)
    operands = [*inputs, *outer]
    wanted = [n for n, t in enumerate(operands) if r.wanted(n) and dtypes.is_float(t.dtype)]
    fulls = [None if g is None else whole(g) for g in gs]
    starts = [
        apply1("SequenceEmpty", dtype=dtypes.to_onnx(operands[n].dtype)) if n < own and is_sequence(operands[n])
        else zeros_like(operands[n])
        for n in wanted
    ]  # fmt: skip

    def step(i: Tensor, _: Tensor, *states: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        given = [_element(t, i) for t in inputs]
        pieces = [None if g is None else apply1("SequenceAt", g, i) for g in fulls]
        found = _pulled(body, given, outer, pieces)
        after = []
        for n, state in zip(wanted, states, strict=True):
            part = found[n]
            if n < own and is_sequence(operands[n]):
                after.append(apply1("SequenceInsert", state, zeros_like(given[n]) if part is None else part))
            else:
                after.append(state if part is None else shaped_like(apply1("Add", state, part), state))
        return None, after, []

    made = make_loop(apply1("SequenceLength", inputs[0]), None, starts, step)
    entries: list[Tensor | None] = [None] * len(operands)
    for n, t in zip(wanted, made, strict=True):
        entries[n] = t
    return tuple(entries)


def _pulled(
    body: ir.Graph, given: Sequence[Tensor], outer: Sequence[Tensor], pieces: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The reverse pass over the body of one element: the cotangents of its inputs and of what it captures."""
    operands = [*given, *outer]
    floating = [m for m, t in enumerate(operands) if dtypes.is_float(t.dtype)]

    def outputs(*changed: Tensor) -> list[Tensor]:
        values = list(operands)
        for m, t in zip(floating, changed, strict=True):
            values[m] = t
        inner = values[len(given) :]
        env: dict[ir.Value, Tensor | None] = {
            o.value: v for o, v in zip(outer, inner, strict=True) if o.value is not None
        }
        made = run_body(body, values[: len(given)], env)
        return [y for y, p in zip(made, pieces, strict=False) if p is not None]

    _, pull = vjp(outputs, *[operands[m] for m in floating])
    found: list[Tensor | None] = [None] * len(operands)
    for m, cotangent in zip(floating, pull([p for p in pieces if p is not None]), strict=True):
        found[m] = cotangent
    return found


def _element(t: Tensor | None, place: Tensor) -> Tensor:
    assert t is not None
    return apply1("SequenceAt", t, place) if is_sequence(t) else t


def _total(items: Sequence[Tensor | None], t: Tensor) -> Tensor | None:
    total: Tensor | None = None
    for item in items:
        if item is not None:
            total = item if total is None else apply1("Add", total, item)
    return None if total is None else sum_to(total, t)
