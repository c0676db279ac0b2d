"""Cotangents of sequences.

Where the number of elements is known before the graph runs, the cotangent is kept as ``Pieces``, one an element, so
that twelve SequenceAt of one sequence cost no more than twelve outputs of a Split would. Elsewhere it is a sequence of
the graph, as long as the value and with elements of the same shapes; and what reads single elements gives ``Spots``,
which are added to that sequence where there is one, so that zeros are made only where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphkit import dtypes
from graphkit.absent import Absent
from graphkit.bodies import make_loop
from graphkit.core import Tensor
from graphkit.gradients.shapes import constant, shaped_like, static_ints, zeros_like
from graphkit.gradients.table import Pieces
from graphkit.interpreter import apply1


class Spots(Tensor):
    """The cotangent of a sequence of unknown length, of which single elements were read."""

    __slots__ = ("places", "sequence")

    def __init__(self, places: Sequence[tuple[Tensor, Tensor]], sequence: Tensor) -> None:
        super().__init__(None)
        self.places = list(places)
        self.sequence = sequence


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


def whole(g: Tensor) -> Tensor:
    """A cotangent as a sequence of the graph (one that is neither Pieces nor Spots is one, or is no sequence's)."""
    if isinstance(g, Spots):
        return _with_spots(zeros_of(g.sequence), g)
    if not isinstance(g, Pieces):
        return g
    items = [zeros_like(apply1("SequenceAt", g.sequence, constant(n, dtypes.INT64))) if p is None else p
             for n, p in enumerate(g.items)]  # fmt: skip
    return apply1("SequenceConstruct", *items) if items else _empty(g.sequence)


def together(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two cotangents of one sequence."""
    if isinstance(a, Pieces) and isinstance(b, Pieces):
        pairs = zip(a.items, b.items, strict=True)
        items = [q if p is None else p if q is None else apply1("Add", p, q) for p, q in pairs]
        return Pieces(items, b.sequence)
    if isinstance(a, Spots) and isinstance(b, Spots):
        return Spots([*a.places, *b.places], b.sequence)
    if isinstance(a, Spots):
        return _with_spots(whole(b), a)
    if isinstance(b, Spots):
        return _with_spots(whole(a), b)
    first, second = whole(a), whole(b)
    return each(first, lambda i: apply1("Add", apply1("SequenceAt", first, i), apply1("SequenceAt", second, i)))


def zeros_of(sequence: Tensor) -> Tensor:
    """Zeros of the shapes of a sequence's elements."""
    return each(sequence, lambda i: zeros_like(apply1("SequenceAt", sequence, i)))


def each(sequence: Tensor, element: Callable[[Tensor], Tensor]) -> Tensor:
    """A sequence as long as another, made element by element of their numbers."""

    def step(i: Tensor, _: Tensor, made: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        return None, [apply1("SequenceInsert", made, element(i))], []

    return make_loop(apply1("SequenceLength", sequence), None, [_empty(sequence)], step)[0]


def place_in(sequence: Tensor, position: Tensor) -> Tensor:
    """A place in a sequence counted from the front, int64 []."""
    known = static_ints(position)
    if known is not None and known[0] >= 0:
        return constant(known[0], dtypes.INT64)
    wide = position.astype(dtypes.INT64)
    return apply1("Where", apply1("Less", wide, constant(0, dtypes.INT64)),
                  apply1("Add", wide, apply1("SequenceLength", sequence)), wide)  # fmt: skip


def _with_spots(full: Tensor, spots: Spots) -> Tensor:
    for position, g in spots.places:
        place = place_in(full, position)
        held = shaped_like(apply1("SequenceAt", full, place), g)
        full = apply1("SequenceInsert", apply1("SequenceErase", full, place), apply1("Add", held, g), place)
    return full


def _empty(sequence: Tensor) -> Tensor:
    return apply1("SequenceEmpty", dtype=dtypes.to_onnx(sequence.dtype))
