"""The reverse pass over the records of a body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphkit import dtypes, interpreter
from graphkit.body_types import body_of
from graphkit.core import Key, Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.reverse import Reverse, draws
from graphkit.gradients.table import PULLBACK, reason_against
from graphkit.graph import Graph


def current_graph() -> Graph:
    graph = interpreter.current()
    assert isinstance(graph, Graph)
    return graph


def own_record(r: Record) -> Record:
    """The record whose node may be given more outputs: r itself, or the same node again in the current graph.

    Inside the reverse pass of a Loop, an inner node is run once more: what it would save may have another shape in
    every outer iteration (another number of inner iterations, another branch), so it could not be stacked.
    """
    home: Graph = r.made[0].graph
    graph: Graph | None = current_graph()
    while graph is not None:
        if graph is home:
            return r
        if isinstance(graph, Reverse) and graph.forward is home:
            return graph.emitted(r) if graph.stacking and not draws(r) else r
        graph = graph.parent
    raise GradientError(f"{r.describe()} belongs to another trace")


def body(r: Record, name: str = "body") -> Graph:
    found = body_of(r.attributes[name])
    if found is None:
        raise GradientError(f"the body of {r.describe()} was never read")
    return found


def passes(r: Record) -> bool:
    return not r.stopped and reason_against(r.op, r.domain) is None


def reached(records: Iterable[Record], outputs: Iterable[Tensor]) -> set[Key]:
    """What the outputs depend on by differentiable ways; the records last first."""
    live = {t.key for t in outputs if dtypes.is_float(t.dtype)}
    for r in records:
        if passes(r) and any(t.key in live for t in r.made):
            live.update(t.key for t in r.inputs if t is not None and dtypes.is_float(t.dtype))
    return live


def leading(records: Sequence[Record], wanted: Iterable[Key]) -> set[Key]:
    """What depends on the wanted values; the records last first."""
    live = set(wanted)
    for r in reversed(records):
        if passes(r) and any(t is not None and t.key in live and dtypes.is_float(t.dtype) for t in r.inputs):
            live.update(t.key for t in r.made)
    return live


def pull(
    records: Sequence[Record], cotangents: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor]
) -> dict[Key, Tensor]:
    """The reverse pass over a body, under the current Reverse: the cotangents of the wanted values."""
    start: dict[Key, Tensor] = {}
    for output, cotangent in cotangents:
        already = start.get(output.key)
        start[output.key] = cotangent if already is None else interpreter.apply1("Add", already, cotangent)
    keys = {t.key: t for t in wanted}
    down, up = reached(records, [t for t, _ in cotangents]), leading(records, keys)
    chosen = [r for r in records if passes(r) and any(t.key in down and t.key in up for t in r.made)]
    return PULLBACK[0](chosen, start, keys)
