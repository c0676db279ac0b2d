"""An estimate of the memory that a run of a model takes for what it computes, from when each value is last read.

A value is there from the node that makes it to the last that reads it, in the order in which ONNX Runtime runs a graph
by default. As there, an operator that only changes a shape makes no copy, and one that works element by element writes
over an input that nothing reads any more. What the caller holds does not count: inputs, initializers, outputs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import onnx_ir as ir

from graphkit.conversion import captured_values
from graphkit.modelfile import ModelLike, borrow_model
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import Facts, at_sizes, subgraphs_of

__all__ = [
    "Liveness",
    "Step",
    "ValueBytes",
    "as_run",
    "live_bytes",
    "peak_activation_bytes",
    "peak_in_graph",
    "peak_of",
    "step_of",
]

# Operators whose output is their first input's memory under another shape.
VIEWS: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
# Operators for which the runtime's CPU kernels may write over an input of the output's size.
IN_PLACE: Final = frozenset(
    {"Abs", "Add", "Ceil", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "LeakyRelu", "Log", "Mul"}
    | {"Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum"}
    | {"Tanh", "ThresholdedRelu"}
)


class Step(NamedTuple):
    """One node of a run: what it makes, with bytes, what it reads, and what its bodies take meanwhile."""

    makes: Sequence[tuple[Hashable, int]]
    reads: Sequence[Hashable]
    inner: int = 0
    view: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Liveness:
    """What ``live_bytes`` found, in bytes.

    ``activations`` is the most that the values computed in a run take at once, ``node`` the output of the node where
    that is; ``inputs``, ``initializers`` and ``outputs`` are the sums of those of the main graph, of which nothing is
    part of ``activations``.
    """

    activations: int
    node: str
    inputs: int
    initializers: int
    outputs: int


class ValueBytes:
    """The bytes of every value of a model whose symbolic dims have the sizes ``dims``; a dim that has none there is 1.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) {y = Abs(x)}'
    >>> model = borrow_model(onnx.parser.parse_model(text))
    >>> ValueBytes(model, {"N": 4})(model.graph.outputs[0])
    48
    """

    def __init__(self, model: ir.Model, dims: Mapping[str, int] | None = None) -> None:
        self._dims = dict(dims or {})
        self.ctx = Context(model, training=False, slack=0)
        self.facts: Facts = self.ctx.facts
        self.facts.sizes = self._dims
        self.facts.sweep(self.ctx.graphs())
        self._known: dict[ir.Value, int] = {}

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The shape of a value in numbers, None where not even its rank is known."""
        shape = self.facts(value).shape
        if shape is not None:
            return tuple(max(at_sizes(dim, self._dims), 0) for dim in shape)
        if value.shape is None:
            return None
        return tuple(d if isinstance(d, int) else self._dims.get(d.value or "", 1) for d in value.shape)

    def __call__(self, value: ir.Value) -> int:
        """The bytes of a value; of one element where its rank is unknown, none for text and sequences."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._count(value)
        return known

    def _count(self, value: ir.Value) -> int:
        dtype = self.facts(value).dtype or value.dtype
        if dtype is None or dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
            return 0
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return 0
        return int(math.prod(self.shape(value) or ()) * dtype.itemsize + 0.5)


def peak_activation_bytes(model: ModelLike, dims: Mapping[str, int] | None = None) -> int:
    """The most bytes that the values computed in one run of a model take at once, by estimate; see ``live_bytes``.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N, 3] x) => (float y) {a = Sin(x) b = Cos(x) c = Mul(a, b) y = ReduceSum<keepdims=0>(c)}'''
    >>> peak_activation_bytes(onnx.parser.parse_model(text), {"N": 10})
    240
    """
    return live_bytes(model, dims).activations


def live_bytes(model: ModelLike, dims: Mapping[str, int] | None = None) -> Liveness:
    """Estimate the memory of one run, from when each value is made and last read.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed.
        dims: The sizes of symbolic dims by name, such as ``{"batch": 32}``; those it does not name count as 1.

    A body of If, Loop or Scan counts at its own peak while its node runs, the largest of a node's bodies alone; a call
    of a function counts as one node. The runtime's own optimizations may merge nodes, and so make less.
    """
    own = borrow_model(model)
    size = ValueBytes(own, dims)
    peak, node = peak_in_graph(own.graph, size)
    return Liveness(
        activations=peak,
        node=next((v.name for v in node.outputs if v.name), "") if node is not None else "",
        inputs=sum(size(v) for v in own.graph.inputs if not v.is_initializer()),
        initializers=sum(size(v) for v in own.graph.initializers.values()),
        outputs=sum(size(v) for v in own.graph.outputs),
    )


def peak_in_graph(graph: ir.Graph, size: ValueBytes) -> tuple[int, ir.Node | None]:
    """The peak of one graph of the model that ``size`` is of, and the node where that is."""
    nodes = list(graph)
    steps = [step_of(node, size) for node in nodes]
    order = as_run(steps)
    kept = graph.outputs if graph is not size.ctx.model.graph else ()
    peak, place = peak_of([steps[n] for n in order], kept)
    return peak, nodes[order[place]] if nodes else None


def step_of(node: ir.Node, size: ValueBytes) -> Step:
    """One node as a step, whose values are keyed by themselves."""
    plain = node.domain == ""
    bodies = subgraphs_of(node)
    reads = [value for value in node.inputs if value is not None and value.producer() is not None]
    inner = 0
    if bodies:
        reads += [value for value in captured_values(node) if value.producer() is not None]
        inner = max(peak_in_graph(body, size)[0] for body in bodies)
    public = node.graph is size.ctx.model.graph
    makes = [(v, 0 if public and v.is_graph_output() else size(v)) for v in node.outputs if v.name != ""]
    if plain and node.op_type == "Constant":
        makes = [(value, 0) for value, _ in makes]  # it is kept with the model, and not made at each run
    return Step(makes, reads, inner, plain and node.op_type in VIEWS, plain and node.op_type in IN_PLACE)


def as_run(steps: Sequence[Step]) -> list[int]:
    """The places of steps in the order in which ONNX Runtime runs them by default.

    Depth first from the steps that nothing reads, the last of them first, and from each to the last of those that it
    reads first (``Graph::ReverseDFSFrom`` in the runtime, with its nodes in the order of the file).
    """
    maker = {key: place for place, step in enumerate(steps) for key, _ in step.makes}
    before = [sorted({maker[key] for key in step.reads if key in maker}) for step in steps]
    read = {place for places in before for place in places}
    stack = [(place, False) for place in range(len(steps)) if place not in read]
    seen: set[int] = set()
    order: list[int] = []
    while stack:
        place, done = stack.pop()
        if done:
            order.append(place)
        elif place not in seen:
            seen.add(place)
            stack.append((place, True))
            stack.extend((earlier, False) for earlier in before[place] if earlier not in seen)
    return order


def peak_of(steps: Sequence[Step], kept: Iterable[Hashable] = ()) -> tuple[int, int]:
    """The most bytes that are live during any step, and the first step where that is; ``kept`` live to the end."""
    last: dict[Hashable, int] = {}
    root: dict[Hashable, Hashable] = {}  # whose memory a value lies in; inputs of the graph are not in here
    for place, step in enumerate(steps):
        for key in step.reads:
            if key in root:
                last[root[key]] = place
        for position, (key, _) in enumerate(step.makes):
            base = root.get(step.reads[0]) if step.view and step.reads and position == 0 else None
            # A view of what is no value of this graph takes no memory either; it has a root to end a chain of views.
            root[key] = key if base is None else base
            last[root[key]] = place
    for key in kept:
        if key in root:
            last[root[key]] = len(steps)
    held: dict[Hashable, int] = {}
    now = peak = where = 0
    for place, step in enumerate(steps):
        dying = {root[key] for key in step.reads if key in root and last[root[key]] == place}
        for key, size in step.makes:
            if root[key] != key:
                continue
            over = next((k for k in dying if held.get(k) == size), None) if step.in_place else None
            if over is not None:
                dying.discard(over)
                now -= held.pop(over)
            held[key] = 0 if step.view else size
            now += held[key]
        if now + step.inner > peak:
            peak, where = now + step.inner, place
        for key, _ in step.makes:
            if key in held and last[key] == place:
                dying.add(key)
        for key in dying:
            now -= held.pop(key, 0)
    return peak, where
