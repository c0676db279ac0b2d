"""A training graph taken apart into its forward and what comes after, and where the forward can be cut.

The forward of a model is what its loss depends on. What the nodes behind it (the reverse pass, the updates) read of it
has to be kept until they run. Where to cut is decided by the bytes that cross: between the blocks of a residual
network, not inside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final

import onnx_ir as ir

from graphkit.conversion import captured_values, constant_array
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.flops import node_flops
from graphkit.optimizers.known import is_pure
from graphkit.optimizers.liveness import Step, ValueBytes, peak_in_graph, step_of

__all__ = ["FLOATS", "Forward", "is_masked", "outputs_again", "overwrites"]

# One operation in about as many bytes' time, where a matrix product runs from the caches and the rest from memory.
_OPERATIONS_PER_BYTE: Final = 6
FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
# What ``graphkit.ordering.after`` takes.
_WAITING: Final = FLOATS | {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL}


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
        order = list(graph)
        self.reads = {node: reads_of(node) for node in order}
        self.nodes = self._ancestors(loss)
        last = max(place for place, node in enumerate(order) if node in self.nodes)
        self.before = order[: last + 1]
        self.forward = [node for node in self.before if node in self.nodes]
        self.made = {v: place for place, node in enumerate(self.forward) for v in node.outputs}
        self.after = self._early(order[last + 1 :])
        self.first_read: dict[ir.Value, int] = {}
        for place, node in enumerate(self.after):
            for value in self.reads[node]:
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
        if overwrites(node) and len({self.dtype(v) for v in node.inputs if v is not None}) > 1:
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
        moved = sum(self.size(v) for v in (*node.inputs, *node.outputs) if v is not None)
        return moved + (node_flops(node, self.size.shape) or 0) // _OPERATIONS_PER_BYTE

    def _ancestors(self, value: ir.Value) -> set[ir.Node]:
        found: set[ir.Node] = set()
        stack = [value.producer()]
        while stack:
            node = stack.pop()
            if node is None or node in found:
                continue
            found.add(node)
            stack.extend(v.producer() for v in self.reads[node])
        return found

    def _early(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """The nodes in an order where one that frees more than it makes, such as an update, runs as soon as it can."""
        place = {node: n for n, node in enumerate(nodes)}
        last: dict[ir.Value, int] = {}
        for n, node in enumerate(nodes):
            for value in self.reads[node]:
                last[value] = n
        moved: dict[int, list[ir.Node]] = {}
        for n, node in enumerate(nodes):
            reads = self.reads[node]
            ready = max((place[p] for v in reads if (p := v.producer()) is not None and p in place), default=n)
            freed = sum(self.size(v) for v in dict.fromkeys(reads) if v.producer() is not None and last[v] == n)
            if ready < n - 1 and freed > sum(self.size(v) for v in node.outputs if not v.is_graph_output()):
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

    @cached_property
    def peak(self) -> int:
        """The estimated peak of activations of the graph as it is."""
        return peak_in_graph(self.graph, self.size)[0]

    # Where to cut

    @cached_property
    def _crossing(self) -> list[int]:
        """For each node of the forward, the bytes made up to it that the forward reads after it."""
        change = [0] * (len(self.forward) + 1)
        last: dict[ir.Value, int] = {}
        for place, node in enumerate(self.forward):
            for value in self.reads[node]:
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


def overwrites(node: ir.Node) -> bool:
    """Whether a node updates running statistics, for which the runtime writes over the memory of what it reads."""
    return node.op_type == "BatchNormalization" and node.domain == "" and len(node.outputs) > 1


def outputs_again(node: ir.Node) -> list[ir.Value]:
    """What a node that is repeated gives out again: neither the mask that was drawn nor updated statistics."""
    return list(node.outputs[:1] if is_masked(node) or overwrites(node) else node.outputs)


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
