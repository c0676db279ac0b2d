"""Sequences and optionals.

The cotangent of a sequence is one cotangent an element. It is kept as ``Pieces``, a list that is only made a sequence
of the graph where somebody asks for it, so that twelve SequenceAt of one sequence cost no more than twelve outputs of a
Split would. That needs the number of elements before the graph runs; where only the run knows it, the gradient is
refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import dtypes
from graphkit.absent import Absent
from graphkit.bodies import run_body
from graphkit.core import Record, Tensor
from graphkit.dims import same_dims
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries, as_mask
from graphkit.gradients.shapes import constant, rank_of, static_ints, sum_to, zeros_like
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


def _count(r: Record, t: Tensor | None) -> int:
    found = length_of(t)
    if found is None:
        raise GradientError(
            f"the gradient of {r.describe()} needs to know how many elements its sequence has, which only the run does"
        )
    return found


def _items(r: Record, g: Tensor, sequence: Tensor | None) -> Items:
    """A sequence's cotangent element by element."""
    if isinstance(g, Pieces):
        return list(g.items)
    return [apply1("SequenceAt", g, constant(n, dtypes.INT64)) for n in range(_count(r, sequence))]


def _place(r: Record, position: Tensor | None, count: int, default: int) -> int | None:
    """Where an operator points in a sequence of ``count`` elements, None where only the run knows."""
    if position is None:
        return default
    known = static_ints(position)
    return None if known is None else known[0] % count if count else 0


@gradient("SequenceConstruct")
def sequence_construct(r: Record, g: Tensor) -> Entries:
    return tuple(_items(r, g, r.outputs[0]))


@gradient("SequenceAt", selects=True)
def sequence_at(r: Record, g: Tensor) -> Entries:
    sequence, position = r.inputs
    assert sequence is not None and position is not None
    count = _count(r, sequence)
    place = _place(r, position, count, 0)
    if place is not None:
        return (Pieces([g if n == place else None for n in range(count)], sequence),)
    elements = [apply1("SequenceAt", sequence, constant(n, dtypes.INT64)) for n in range(count)]
    if not all(same_dims(e.dims, g.dims) for e in elements):
        raise GradientError(f"the gradient of {r.describe()}, whose place only the run knows, needs equal shapes")
    wide = position.astype(dtypes.INT64)
    negative = apply1("Less", wide, constant(0, dtypes.INT64)).astype(dtypes.INT64)
    wrapped = apply1("Add", wide, apply1("Mul", negative, constant(count, dtypes.INT64)))
    masks = [as_mask(apply1("Equal", wrapped, constant(n, dtypes.INT64)), g) for n in range(count)]
    return (Pieces([apply1("Mul", g, mask) for mask in masks], sequence),)


@gradient("SequenceInsert")
def sequence_insert(r: Record, g: Tensor) -> Entries:
    sequence, position = r.inputs[0], r.input(2)
    assert sequence is not None
    count = _count(r, sequence)
    place = _place(r, position, count, count)
    if place is None:
        raise GradientError(f"the gradient of {r.describe()} needs a place that is known before it runs")
    items = _items(r, g, r.outputs[0])
    return Pieces(items[:place] + items[place + 1 :], sequence), items[place]


@gradient("SequenceErase", selects=True)
def sequence_erase(r: Record, g: Tensor) -> Entries:
    sequence, position = r.inputs[0], r.input(1)
    assert sequence is not None
    count = _count(r, sequence)
    place = _place(r, position, count, count - 1)
    if place is None:
        raise GradientError(f"the gradient of {r.describe()} needs a place that is known before it runs")
    items = _items(r, g, r.outputs[0])
    return (Pieces([*items[:place], None, *items[place:]], sequence),)


@gradient("SplitToSequence", selects=True)
def split_to_sequence(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    axis = int(r.attribute("axis", 0)) % rank_of(r, x)
    (y,) = r.outputs
    items = _items(r, g, y)
    parts = [zeros_like(apply1("SequenceAt", y, constant(n, dtypes.INT64))) if p is None else p
             for n, p in enumerate(items)]  # fmt: skip
    if r.input(1) is None and not int(r.attribute("keepdims", 1)):
        parts = [apply1("Unsqueeze", p, constant_ints([axis])) for p in parts]
    return parts[0] if len(parts) == 1 else apply1("Concat", *parts, axis=axis)


@gradient("ConcatFromSequence")
def concat_from_sequence(r: Record, g: Tensor) -> Entries:
    sequence = r.inputs[0]
    assert sequence is not None
    rank, axis = rank_of(r, r.outputs[0]), int(r.attribute("axis"))
    axis %= rank
    count = _count(r, sequence)
    if int(r.attribute("new_axis", 0)):
        places = [constant(n, dtypes.INT64) for n in range(count)]
        return (Pieces([apply1("Gather", g, n, axis=axis) for n in places], sequence),)
    lengths = [apply1("Shape", apply1("SequenceAt", sequence, constant(n, dtypes.INT64)), start=axis, end=axis + 1)
               for n in range(count)]  # fmt: skip
    if count == 1:
        return (Pieces([g], sequence),)
    parts = apply("Split", (g, apply1("Concat", *lengths, axis=0)), {"axis": axis}, outputs=count)
    return (Pieces(list(parts), sequence),)


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
    count = _count(r, r.inputs[0])
    own = len(r.inputs) - r.captured
    outer = [t for t in r.inputs[own:] if t is not None]
    results: list[Items] = [[None] * count for _ in range(own)]
    captured: Items = [None] * len(outer)
    for n in range(count):
        given = [_element(t, n) for t in r.inputs[:own]]
        pieces = [None if g is None else _items(r, g, y)[n] for g, y in zip(gs, r.outputs, strict=False)]
        if all(p is None for p in pieces):
            continue
        floating = [m for m, t in enumerate([*given, *outer]) if dtypes.is_float(t.dtype)]

        def outputs(*changed: Tensor) -> list[Tensor]:
            values = [*given, *outer]  # noqa: B023  # called within the iteration
            for m, t in zip(floating, changed, strict=True):  # noqa: B023
                values[m] = t
            env: dict[ir.Value, Tensor | None] = {
                o.value: v for o, v in zip(outer, values[own:], strict=True) if o.value is not None
            }
            made = run_body(body, values[:own], env)
            return [y for y, p in zip(made, pieces, strict=False) if p is not None]  # noqa: B023

        _, pull = vjp(outputs, *[[*given, *outer][m] for m in floating])
        found = pull([p for p in pieces if p is not None])
        for m, cotangent in zip(floating, found, strict=True):
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


def _element(t: Tensor | None, n: int) -> Tensor:
    assert t is not None
    return apply1("SequenceAt", t, constant(n, dtypes.INT64)) if is_sequence(t) else t


def _total(items: Sequence[Tensor | None], t: Tensor) -> Tensor | None:
    total: Tensor | None = None
    for item in items:
        if item is not None:
            total = item if total is None else apply1("Add", total, item)
    return None if total is None else sum_to(total, t)


def is_sequence(t: Tensor) -> bool:
    if t.graph is not None and t.value is not None:
        proto = t.graph.type_of(t.value).proto
        return proto is not None and proto.WhichOneof("value") == "sequence_type"
    return not isinstance(t._array, np.ndarray | Absent)


def is_tensor(t: Tensor) -> bool:
    """Whether the value is neither a sequence nor an optional."""
    if t.graph is not None and t.value is not None:
        proto = t.graph.type_of(t.value).proto
        return proto is None or proto.WhichOneof("value") == "tensor_type"
    return isinstance(t._array, np.ndarray | Absent)


def as_sequence(g: Pieces) -> Tensor:
    """The pieces as a sequence of the graph, zeros where nothing came back."""
    items = [zeros_like(apply1("SequenceAt", g.sequence, constant(n, dtypes.INT64))) if p is None else p
             for n, p in enumerate(g.items)]  # fmt: skip
    return apply1("SequenceConstruct", *items)
