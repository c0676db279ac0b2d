"""What to compute a second time: the forward of a training graph, cut into segments, and what each cut costs and saves.

The forward of a model is what its loss depends on. What the nodes after it (the reverse pass, the updates) read of the
forward would have to be kept until they run; of a segment, only what other segments read is kept, and the rest is
computed again just before it is first read (Chen et al., 2016, "Training deep nets with sublinear memory cost").
Where to cut is decided by the bytes that cross: between the blocks of a residual network, not inside them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final, Literal, NamedTuple

import onnx_ir as ir

from graphkit.conversion import captured_values, constant_array
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.known import is_pure
from graphkit.optimizers.liveness import Step, ValueBytes, peak_of, step_of

__all__ = ["Action", "Choice", "Forward", "is_masked", "schedule"]

# One operation in about as many bytes' time, where a matrix product runs from the caches and the rest from memory.
_OPERATIONS_PER_BYTE: Final = 6
# What takes many operations for each byte, in ways that are not counted here.
_HEAVY: Final = frozenset({"LSTM", "GRU", "RNN", "Attention", "Einsum", "ConvTranspose", "DeformConv", "Det"})
_HEAVY_FACTOR: Final = 50
_FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
# What ``graphkit.ordering.after`` takes.
_WAITING: Final = _FLOATS | {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL}


class Forward:
    """A training graph taken apart: its forward, what comes after, and what is read from the one by the other.

    Attributes:
        before: the nodes up to the last of the forward, in order; nodes beside it (metrics, say) are among them.
        after: the nodes behind it, in an order in which nothing that frees memory waits to the end.
        made: for each value that the forward makes, the place of its node among the forward's nodes.
        first_read: for each such value that ``after`` reads, the place in ``after`` of the first node that does.
    """

    def __init__(self, graph: ir.Graph, loss: ir.Value, size: ValueBytes) -> None:
        self.graph, self.size, self.loss = graph, size, loss
        self.nodes = _ancestors(loss)
        order = list(graph)
        last = max(place for place, node in enumerate(order) if node in self.nodes)
        self.before = order[: last + 1]
        self.forward = [node for node in self.before if node in self.nodes]
        self.made = {v: place for place, node in enumerate(self.forward) for v in node.outputs}
        self.after = _early(order[last + 1 :], size)
        self.first_read: dict[ir.Value, int] = {}
        for place, node in enumerate(self.after):
            for value in reads_of(node):
                if value in self.made:
                    self.first_read.setdefault(value, place)
        self._repeatable: dict[ir.Node, bool] = {}
        self._steps: dict[ir.Node, Step] = {}

    def repeatable(self, node: ir.Node) -> bool:
        """Whether computing a node again gives the same, changes nothing else, and can be made to wait."""
        known = self._repeatable.get(node)
        if known is None:
            known = self._repeatable[node] = self._is_repeatable(node)
        return known

    def _is_repeatable(self, node: ir.Node) -> bool:
        if subgraphs_of(node) or (node.op_type == "Constant" and node.domain == ""):
            return False
        if any(a.is_ref() for a in node.attributes.values()) or not (is_pure(node) or is_masked(node)):
            return False
        values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name != ""]
        if any(v.type is not None and not isinstance(v.type, ir.TensorType) for v in values):
            return False
        return any(self.can_wait(v) for v in node.inputs if v is not None)

    def can_wait(self, value: ir.Value) -> bool:
        """Whether a value has a dtype that can be made to wait for others."""
        return self.dtype(value) in _WAITING

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The dtype of a value."""
        return self.size.facts(value).dtype or value.dtype

    def step(self, node: ir.Node) -> Step:
        """The node as a step of a run."""
        known = self._steps.get(node)
        if known is None:
            known = self._steps[node] = step_of(node, self.size)
        return known

    def cost(self, node: ir.Node) -> int:
        """What computing a node takes: about the bytes that could be moved meanwhile."""
        outputs = sum(self.size(v) for v in node.outputs)
        moved = outputs + sum(self.size(v) for v in node.inputs if v is not None)
        if node.op_type in ("MatMul", "Gemm", "Conv"):
            inner = self._inner_extent(node)
            return moved + 2 * inner * (outputs // 4) // _OPERATIONS_PER_BYTE
        return moved * (_HEAVY_FACTOR if node.op_type in _HEAVY else 1)

    def _inner_extent(self, node: ir.Node) -> int:
        place = 1 if node.op_type == "Conv" else 0
        operand = node.inputs[place]
        shape = () if operand is None else self.size.shape(operand) or ()
        if node.op_type == "Conv":
            extent = 1
            for dim in shape[1:]:
                extent *= dim
            return extent
        if not shape:
            return 1
        return shape[0] if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) else shape[-1]

    # Where to cut

    @cached_property
    def _crossing(self) -> list[int]:
        """For each node of the forward, the bytes made up to it that the forward reads after it."""
        change = [0] * (len(self.forward) + 1)
        last: dict[ir.Value, int] = {}
        for place, node in enumerate(self.forward):
            for value in reads_of(node):
                if value in self.made:
                    last[value] = place
        for value, end in last.items():
            change[self.made[value]] += self.size(value)
            change[end] -= self.size(value)
        return list(accumulate(change))[:-1]

    @cached_property
    def _saved(self) -> list[int]:
        """For each node of the forward, the bytes made up to it that are read after the forward."""
        at = [0] * len(self.forward)
        for value in self.first_read:
            at[self.made[value]] += self.size(value)
        return list(accumulate(at))

    def cuts(self, segments: int) -> tuple[int, ...]:
        """The last nodes of about ``segments`` segments that keep equally much, cut where few bytes cross."""
        total = self._saved[-1] if self._saved else 0
        wanted = max(total // max(segments, 1), 1)
        found: list[int] = []
        start = place = 0
        count = len(self.forward)
        while place < count:
            done = self._saved[place] - start
            if total - self._saved[place] < wanted // 2:
                break
            if 2 * done < wanted:
                place += 1
                continue
            best = place
            while place + 1 < count and 2 * (self._saved[place + 1] - start) <= 3 * wanted:
                place += 1
                if self._rank(place, start, wanted) < self._rank(best, start, wanted):
                    best = place
            found.append(best)
            start, place = self._saved[best], best + 1
        return tuple(found)

    def _rank(self, place: int, start: int, wanted: int) -> tuple[int, int]:
        return self._crossing[place], abs(self._saved[place] - start - wanted)

    def finest(self) -> int:
        """How many segments there can be: one for each value that is kept."""
        return max(len(self.first_read), 1)


def is_masked(node: ir.Node) -> bool:
    """Whether a node is a Dropout that is on, by a known ratio, whose mask is an output: it can be applied again."""
    if node.op_type != "Dropout" or node.domain != "" or len(node.outputs) < 2 or not node.outputs[1].name:
        return False
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    ratio, training = (None if v is None else constant_array(v) for v in node.inputs[1:3])
    if any(v is not None and v.is_graph_input() for v in node.inputs[1:3]) or training is None or not training.all():
        return False
    return node.inputs[1] is None or ratio is not None


def reads_of(node: ir.Node) -> list[ir.Value]:
    """What a node reads, by its inputs and by its bodies."""
    return [*(v for v in node.inputs if v is not None), *(captured_values(node) if subgraphs_of(node) else ())]


def _ancestors(value: ir.Value) -> set[ir.Node]:
    found: set[ir.Node] = set()
    stack = [value.producer()]
    while stack:
        node = stack.pop()
        if node is None or node in found:
            continue
        found.add(node)
        stack.extend(v.producer() for v in reads_of(node))
    return found


def _early(nodes: Sequence[ir.Node], size: ValueBytes) -> list[ir.Node]:
    """The nodes in an order where one that frees more than it makes, such as an update, runs as soon as it can."""
    place = {node: n for n, node in enumerate(nodes)}
    last: dict[ir.Value, int] = {}
    for n, node in enumerate(nodes):
        for value in reads_of(node):
            last[value] = n
    moved: dict[int, list[ir.Node]] = {}
    for n, node in enumerate(nodes):
        reads = reads_of(node)
        ready = max((place[p] for v in reads if (p := v.producer()) is not None and p in place), default=n)
        freed = sum(size(v) for v in dict.fromkeys(reads) if v.producer() is not None and last[v] == n)
        if ready < n - 1 and freed > sum(size(v) for v in node.outputs if not v.is_graph_output()):
            moved.setdefault(ready, []).append(node)
            place[node] = ready
    result: list[ir.Node] = []
    gone = {node for group in moved.values() for node in group}

    def put(node: ir.Node, n: int) -> None:
        result.append(node)
        for follower in moved.get(n, ()) if node not in gone else ():
            put(follower, -1)

    for n, node in enumerate(nodes):
        if node not in gone:
            put(node, n)
    return result


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
        kept = set(keep) | {v for v in forward.graph.outputs if v is not None}
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
    stack = [v.producer() for v in wanted]
    needed: set[ir.Value] = set()
    while stack:
        node = stack.pop()
        if node is None or node in repeat:
            continue
        repeat.add(node)
        for value in _inputs_again(node):
            producer = value.producer()
            if value in kept or producer not in forward.nodes:
                continue
            if producer in inside and producer is not None and forward.repeatable(producer):
                stack.append(producer)
            else:
                needed.add(value)
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
    return [v for v in node.inputs if v is not None]


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
        for value in reads_of(node):
            open_.pop(value, None)
        for value in makes:
            if value.name and forward.dtype(value) in _FLOATS:
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
        new.update(v for v in node.outputs if not (is_masked(node) and v is node.outputs[1]))
    return tuple(starts)


def _peak(choice: Choice) -> int:
    """The estimated peak of activations of the rewritten graph."""
    forward = choice.forward
    steps: list[Step] = []
    current: dict[ir.Value, object] = {}
    version = 0

    def key(value: object) -> object:
        return current.get(value, value) if isinstance(value, ir.Value) else value

    for action in schedule(choice):
        if action.kind == "wait":
            version += 1
            for value in action.waiting:
                reads = [key(value)]
                current[value] = (value, version)
                steps.append(Step([(current[value], forward.size(value))], reads, in_place=True))
            continue
        assert action.node is not None
        step = forward.step(action.node)
        if action.kind == "run":
            steps.append(step._replace(reads=[key(v) for v in step.reads]))
            continue
        reads = [key(v) for v in (_inputs_again(action.node) if is_masked(action.node) else step.reads)]
        makes = []
        for value, size in step.makes:
            assert isinstance(value, ir.Value)
            if is_masked(action.node) and value is action.node.outputs[1]:
                continue
            current[value] = (value, "again", version)
            makes.append((current[value], size))
        steps.append(step._replace(reads=reads, makes=makes))
    return peak_of(steps, [v for v in forward.graph.outputs if v.producer() is not None])[0]

