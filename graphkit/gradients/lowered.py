"""Operators whose gradient is that of plain operators that compute the same: a table of lowerings.

A lowering applies ai.onnx operators to the inputs of a call and returns its outputs. The reverse pass applies it again
and runs over what it did, so gradient graphs stay plain. Types of operators that onnx does not know are read off it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from graphkit import interpreter
from graphkit.bodies import apart
from graphkit.core import Key, Record, Tensor
from graphkit.gradients.table import PULLBACK, RULES, VJP
from graphkit.graph import Graph
from graphkit.inference import WITHOUT_SCHEMA, Type
from graphkit.newer import Call

Results = Sequence[Tensor | None]


Lowering = Callable[[Call], Results]
LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {}


def lowering(*ops: str, domain: str = "", rule: bool = True) -> Callable[[Lowering], Lowering]:
    """Register how operators are written in plain ones; with ``rule``, their gradient follows from it.

    >>> LOWERINGS["BiasGelu", "com.microsoft"].__name__
    'bias_gelu'
    """

    def register(function: Lowering) -> Lowering:
        for op in ops:
            LOWERINGS[op, domain] = function
            if rule:
                RULES[op, domain] = by_lowering
        return function

    return register


def lower(r: Record, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """A record's outputs, from other inputs, in plain operators."""
    made = list(LOWERINGS[r.op, r.domain](Call(r.op, r.domain, inputs, r.attributes, len(r.made))))
    return (made + [None] * len(r.made))[: len(r.made)]


def by_lowering(r: Record, *gs: Tensor | None) -> list[Tensor | None]:
    """The gradient rule of every operator in the table."""
    wanted = [n for n, want in enumerate(r.wants) if want]
    graph = interpreter.current()
    if not isinstance(graph, Graph):
        return _by_vjp(r, gs, wanted)
    marker = Record("", "", (), {}, (), None).sequence
    outputs = lower(r, r.inputs)
    start: dict[Key, Tensor] = {}
    for y, g in zip(outputs, gs, strict=False):
        if y is not None and g is not None:
            already = start.get(y.key)
            start[y.key] = g if already is None else interpreter.apply1("Add", already, g)
    targets = {t.key: t for n in wanted if (t := r.inputs[n]) is not None}
    found = PULLBACK[0](_since(marker, [y for y in outputs if y is not None], targets), start, targets)
    answer: list[Tensor | None] = [None] * len(r.inputs)
    for n in wanted:
        t = r.inputs[n]
        if t is not None:
            answer[n] = found.pop(t.key, None)  # an input given twice gets its gradient once
    return answer


def _since(marker: int, outputs: Sequence[Tensor], targets: Mapping[Key, Tensor]) -> list[Record]:
    """The records that a lowering made and that lead from the targets to its outputs, last first."""
    from graphkit.gradients.reverse_pass import leading, passes

    seen: dict[int, Record] = {}
    stack = [t.record for t in outputs if t.record is not None]
    while stack:
        record = stack.pop()
        if id(record) in seen or record.sequence < marker or not passes(record):
            continue
        seen[id(record)] = record
        stack.extend(t.record for t in record.inputs if t is not None and t.record is not None)
    records = sorted(seen.values(), key=lambda r: -r.sequence)
    live = leading(records, targets)
    return [r for r in records if any(t.key in live for t in r.made)]


def _by_vjp(r: Record, gs: Sequence[Tensor | None], wanted: Sequence[int]) -> list[Tensor | None]:
    def outputs(*changed: Tensor) -> list[Tensor]:
        inputs = list(r.inputs)
        for n, t in zip(wanted, changed, strict=True):
            inputs[n] = t
        made = lower(r, inputs)
        return [y for y, g in zip(made, gs, strict=False) if g is not None and y is not None]

    _, pull = VJP[0](outputs, *[r.inputs[n] for n in wanted])
    found = pull([g for g in gs if g is not None])
    answer: list[Tensor | None] = [None] * len(r.inputs)
    for n, t in zip(wanted, found, strict=True):
        answer[n] = t
    return answer


def infer_lowered(
    op: str, domain: str, opset: int, attributes: Mapping[str, Any], types: Sequence[Type | None], count: int
) -> list[Type | None] | None:
    """The types of an operator's outputs, read off its lowering in a graph that is thrown away."""
    found = LOWERINGS.get((op, domain))
    if found is None or any(t is not None and t.proto is not None for t in types):
        return None
    graph, inputs = apart(types, opset)
    try:
        with interpreter.using(graph):
            outputs = list(found(Call(op, domain, inputs, attributes, count)))
    except Exception:  # noqa: BLE001  # inference that fails says nothing; the runtime reports a real error when the graph runs
        return None
    return [None if t is None else Type(t.dtype, t.dims) for t in (*outputs, *[None] * count)[:count]]


WITHOUT_SCHEMA.append(infer_lowered)

__all__ = ["LOWERINGS", "Call", "by_lowering", "infer_lowered", "lower", "lowering"]
