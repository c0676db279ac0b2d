"""What to compute a second time of a forward that is cut into segments, in which order, and what it saves and costs.

Of a segment only what other segments read is kept, and the rest is computed again just before it is first read (Chen et
al., 2016, "Training deep nets with sublinear memory cost").
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import onnx_ir as ir

from graphkit.optimizers.liveness import Step, as_run, peak_of
from graphkit.optimizers.recompute_forward import FLOATS, Forward, is_masked, outputs_again, overwrites

__all__ = ["Action", "Choice", "schedule"]


@dataclass
class Choice:
    """Which nodes of the forward are computed again, and where.

    Attributes:
        again: by the place in ``after`` before which they run, the nodes to repeat, in order.
        cuts: the last node of each segment but the last, by its place among the forward's.
        peak, cost: the estimated peak of activations in bytes, and the estimated cost of what is computed again.
    """

    forward: Forward
    again: dict[int, list[ir.Node]] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    peak: int = 0
    cost: int = 0

    @classmethod
    def of(cls, forward: Forward, cuts: Sequence[int], keep: Collection[ir.Value] = ()) -> Choice:
        """The choice for these cuts, with the values of ``keep`` kept whatever they cost."""
        kept = {*keep, *forward.graph.outputs}
        for node in forward.forward:
            kept.update(set(node.outputs) - set(outputs_again(node)))
        made = cls(forward, cuts=tuple(cuts))
        limit = 0
        by_segment = [forward.forward[a + 1 : b + 1] for a, b in pairwise((-1, *made.cuts))]
        for nodes in reversed(by_segment):
            found = _of_segment(forward, nodes, kept, limit)
            if found is not None:
                limit, again = found
                made.again.setdefault(limit, [])[:0] = again
        made.cost = sum(forward.cost(node) for nodes in made.again.values() for node in nodes)
        made.peak = _peak(made)
        return made

    def nodes(self) -> Iterator[ir.Node]:
        """Every node that is computed again."""
        for nodes in self.again.values():
            yield from nodes


def _of_segment(
    forward: Forward, nodes: Sequence[ir.Node], kept: set[ir.Value], limit: int
) -> tuple[int, list[ir.Node]] | None:
    """The place from which the segment's values are read again and the nodes to repeat; adds to what is kept."""
    inside = set(nodes)
    wanted = []
    for node in nodes:
        for value in node.outputs:
            place = forward.first_read.get(value)
            if place is None or value in kept:
                continue
            # What is read before the segments behind this one are through would live longer than it has to.
            if place < limit or not forward.repeatable(node):
                kept.add(value)
            else:
                wanted.append(value)
    repeat: set[ir.Node] = set()
    stack = list(wanted)
    needed: set[ir.Value] = set()
    while stack:
        value = stack.pop()
        maker = value.producer()
        if maker is None or maker not in inside or not forward.repeatable(maker):
            needed.add(value)
        elif maker not in repeat:
            repeat.add(maker)
            stack.extend(v for v in _inputs_again(maker) if v in forward.made and v not in kept)
    gained = sum(forward.size(v) for v in wanted)
    if not wanted or gained <= sum(forward.size(v) for v in needed if v not in forward.first_read):
        kept.update(wanted)
        return None
    kept |= needed
    return min(forward.first_read[v] for v in wanted), [node for node in nodes if node in repeat]


def _inputs_again(node: ir.Node) -> list[ir.Value]:
    """What is read to compute a node again: a Dropout's mask instead of new random numbers."""
    if is_masked(node):
        return [v for v in (node.inputs[0], node.outputs[1]) if v is not None]
    return [v for v in (node.inputs[:3] if overwrites(node) else node.inputs) if v is not None]


class Action(NamedTuple):
    """One step of the rewritten graph: run a node, run it again, or make what follows wait for what came before."""

    kind: Literal["run", "again", "wait"]
    node: ir.Node | None = None
    waiting: tuple[ir.Value, ...] = ()
    sinks: tuple[ir.Value, ...] = ()


def schedule(choice: Choice) -> Iterator[Action]:
    """The rewritten graph in order.

    Before a segment is computed again, "wait" names the values that it starts from (``waiting``), and those that must
    be computed by then (``sinks``): what was made since the forward or the wait before, and is not read yet.
    """
    forward = choice.forward
    open_: dict[ir.Value, None] = {}

    def seen(node: ir.Node, makes: Iterable[ir.Value]) -> None:
        for value in forward.reads[node]:
            open_.pop(value, None)
        for value in makes:
            if value.name and forward.dtype(value) in FLOATS:
                open_[value] = None

    for node in forward.before:
        yield Action("run", node)
        seen(node, () if node in forward.nodes else node.outputs)
    for place, node in enumerate(forward.after):
        nodes = choice.again.get(place)
        if nodes:
            sinks = tuple(open_) or (forward.loss,)
            open_.clear()
            yield Action("wait", None, _starts(forward, nodes), sinks)
            for again in nodes:
                yield Action("again", again)
        yield Action("run", node)
        seen(node, node.outputs)


def _starts(forward: Forward, nodes: Sequence[ir.Node]) -> tuple[ir.Value, ...]:
    """The fewest of what repeated nodes read through which each of them must wait."""
    new: set[ir.Value] = set()
    starts: list[ir.Value] = []
    for node in nodes:
        reads = _inputs_again(node)
        if not any(v in new for v in reads):
            # What the forward made rather than a weight, which the runtime may have packed for its kernels.
            usable = [v for v in reads if forward.can_wait(v)]
            first = min(usable, key=lambda v: (v not in forward.made, v.is_initializer(), forward.size(v)))
            starts.append(first)
            new.add(first)
        new.update(outputs_again(node))
    return tuple(starts)


def _peak(choice: Choice) -> int:
    """The estimated peak of activations of the rewritten graph."""
    forward = choice.forward
    steps: list[Step] = []
    current: dict[Hashable, Hashable] = {}
    version = 0

    for action in schedule(choice):
        if action.kind == "wait":
            version += 1
            steps.append(Step([(version, 1)], action.sinks))
            for value in action.waiting:
                reads = [current.get(value, value), version]
                current[value] = (value, version)
                steps.append(Step([(current[value], forward.size(value))], reads, in_place=True))
            continue
        assert action.node is not None
        step = forward.step(action.node)
        if action.kind == "run":
            steps.append(step._replace(reads=[current.get(v, v) for v in step.reads]))
            continue
        reads = [current.get(v, v) for v in _inputs_again(action.node) if v.producer() is not None]
        makes = []
        for made in outputs_again(action.node):
            current[made] = (made, "again", version)
            makes.append((current[made], forward.size(made)))
        steps.append(step._replace(reads=reads, makes=makes))
    return peak_of([steps[place] for place in as_run(steps)])[0]
