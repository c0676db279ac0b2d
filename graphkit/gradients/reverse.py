"""What the gradients of If, Loop and Scan share: bodies that run the reverse pass over another body.

The reverse pass of a body is traced in a body of its own, a ``Reverse``. Whenever a gradient rule in it asks for a
value of the forward body, that value becomes one more output of the forward node: of If as it is, of Loop and Scan
stacked over the iterations. So exactly what the gradient needs is kept, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from graphkit import dims, dtypes, interpreter
from graphkit.bodies import emit_again, false_like_empty, inputs_of, make_loop, run_body
from graphkit.body_types import BODIES, keep, without
from graphkit.conversion import constant_array
from graphkit.core import Key, Record, Tensor, as_tensor
from graphkit.dims import Dims
from graphkit.errors import GradientError
from graphkit.gradients.lists import is_sequence
from graphkit.graph import Graph
from graphkit.inference import Type
from graphkit.interpreter import Attributes

_RANDOM = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial Dropout".split()
)


class Reverse(Graph):
    """A body for the reverse pass over ``forward``, a body of ``record``.

    Attributes:
        forward: the body that the reverse pass goes over.
        record: the node of If, Loop or Scan that ``forward`` belongs to; it gets more outputs.
        stacking: whether the node repeats its body.
    """

    stacking = True

    def __init__(self, forward: Graph, record: Record, parent: Graph) -> None:
        super().__init__(ir.Graph([], [], nodes=[], name=parent.unique("reverse_body")), parent=parent)
        keep(self)
        self.forward = forward
        self.record = record
        self._read: dict[Key, Tensor] = {}
        self._fixed: dict[ir.Value, bool] = {}
        self._again: dict[int, Record] = {}
        # Dims that every iteration sees alike: those of the outer values that go in.
        outer = [t.dims for t in record.inputs if t is not None and t.dims is not None]
        self._steady = {d for known in outer for d in known if isinstance(d, str)}

    def capture(self, t: Tensor) -> Tensor:
        """The reverse body's tensor for a value of the forward body; anything else as usual."""
        if t.value is None or t.graph is not self.forward:
            return super().capture(t)
        if t.value.graph is not self.forward.graph:  # an outer value that the forward body knows the dims of
            assert self.forward.parent is not None
            return self.seen_here(super().capture(self.forward.parent.tensor(t.value)), t.dims)
        found = self._read.get(t.key)
        if found is None:
            array = constant_array(t.value)
            if array is not None:
                literal = as_tensor(array)
                literal.literal = True
                found = super().capture(literal)
            elif self.stacking and self._made_again(t):
                found = self._make_again(t)
            else:
                found = self.read_saved(t)
            self._read[t.key] = found
        return found

    def seen_here(self, t: Tensor, known: Dims | None) -> Tensor:
        """An outer value with the dims that hold in here alone, so that nothing declares them outside."""
        value = t.value
        assert value is not None
        self._types[value] = Type(t.dtype, known)
        self._tensors[value] = Tensor(None, name=value.name, value=value, graph=self)
        return self._tensors[value]

    def apply(
        self, op: str, inputs: Sequence[Tensor | None], attributes: Attributes | None, outputs: int, domain: str
    ) -> tuple[Tensor, ...]:
        first = inputs[0] if inputs else None
        own = first is not None and first.value is not None and first.value.graph is self.forward.graph
        if first is not None and own and first.graph is self.forward:
            if op in ("Shape", "Size", "SequenceLength"):  # a few integers are saved, not the tensor itself
                return self.forward.apply(op, (first,), attributes, 1, domain)
            place = inputs[1] if op == "SequenceAt" else None
            if place is not None and place.graph in (None, *self._around_forward()):
                return self.forward.apply(op, (first, place), attributes, 1, domain)
        return super().apply(op, inputs, attributes, outputs, domain)

    def _around_forward(self) -> Iterator[Graph]:
        """The forward body and the graphs around it, whose values it sees."""
        graph: Graph | None = self.forward
        while graph is not None:
            yield graph
            graph = graph.parent

    def _made_again(self, t: Tensor) -> bool:
        """Whether to compute a value of the forward body once more instead of saving it.

        That is so if every iteration computes the same of outer values, and if its shape may differ from iteration to
        iteration, so that it could not be stacked.
        """
        assert t.value is not None
        record = t.record
        if record is None or t.value.is_graph_input() or draws(record):
            return False
        if record.op not in BODIES and self._is_fixed(t.value):
            return True
        return not self.is_steady(t) and not any(i is not None and is_sequence(i) for i in record.inputs)

    def is_steady(self, t: Tensor) -> bool:
        """Whether the value has one shape in all iterations."""
        known = t.dims
        return known is not None and all(isinstance(d, int) or d in self._steady for d in known)

    def _make_again(self, t: Tensor) -> Tensor:
        record = t.record
        assert record is not None
        if record.op in BODIES:
            made: Sequence[Tensor] = self.emitted(record).outputs
        else:
            made = super().apply(record.op, record.inputs, record.attributes, len(record.made), record.domain)
        for old, new in zip(record.made, made, strict=True):
            self._read.setdefault(old.key, new)
            self.declare(new, old.dims)
        return made[t.index]

    def emitted(self, r: Record) -> Record:
        """A forward node with bodies once more, in this graph."""
        found = self._again.get(id(r))
        if found is None:
            count = len(r.inputs) - r.captured
            env: dict[ir.Value, Tensor | None] = {
                t.value: t for t in r.inputs[count:] if t is not None and t.value is not None
            }
            with interpreter.using(self):
                found = emit_again(r.op, r.inputs[:count], r.attributes, env)[0].record
            assert found is not None
            for new, old in zip(found.made, r.made, strict=False):
                new.graph.declare(new, old.dims)
            self._again[id(r)] = found
        return found

    def _is_fixed(self, value: ir.Value) -> bool:
        """Whether the value of every iteration is the same."""
        found = self._fixed.get(value)
        if found is None:
            producer = value.producer()
            if value.is_graph_input() and value.graph is self.forward.graph:
                found = False
            elif producer is None or producer.graph is not self.forward.graph:
                found = True  # a constant, or of an outer graph
            else:
                found = producer.op_type not in _RANDOM | BODIES and all(
                    v is None or self._is_fixed(v) for v in producer.inputs
                )
            self._fixed[value] = found
        return found

    def read_saved(self, t: Tensor) -> Tensor:
        """Save a forward value as an output of the forward node, and read it here."""
        raise NotImplementedError


class ReverseBranch(Reverse):
    """The reverse pass of one branch of If. The other branch gives an empty tensor for what is saved."""

    stacking = False

    def __init__(self, forward: Graph, other: Graph, record: Record, parent: Graph) -> None:
        super().__init__(forward, record, parent)
        self.other = other

    def read_saved(self, t: Tensor) -> Tensor:
        _refuse_sequence(self.record, t)
        saved = add_output(self.record, self.forward, t, Type(t.dtype, unnamed(t.dims)))
        empty = self.other.apply("Constant", (), {"value": false_like_empty(t.dtype, t.rank)}, 1, "")[0]
        assert empty.value is not None
        self.other.graph.outputs.append(empty.value)
        # Inside the branch its dims are known; of the If's output only the rank is.
        return self.seen_here(super().capture(saved), t.dims)

    def cotangent(self, g: Tensor, y: Tensor) -> Tensor:
        """The cotangent of an output of the branch: of the output's dims in here, whatever the other branch's are."""
        outer = self.capture(g)
        return outer if y.dims is None or outer.value is None or is_sequence(y) else self.seen_here(outer, y.dims)


class ReverseLoop(Reverse):
    """The reverse pass of Loop: iteration j reads row ``last - j`` of what was stacked."""

    def __init__(self, forward: Graph, record: Record, parent: Graph, last: Tensor) -> None:
        super().__init__(forward, record, parent)
        j = self.input("iteration", dtypes.INT64, ())
        going = self.input("going", dtypes.BOOL, ())
        with interpreter.using(self):
            self.index = self.apply("Sub", (last, j), None, 1, "")[0]
        self._read[inputs_of(forward)[0].key] = self.index
        self._read[inputs_of(forward)[1].key] = going
        self._sequences: dict[Key, Tensor] = {}

    def read_saved(self, t: Tensor) -> Tensor:
        _refuse_sequence(self.record, t)
        if t.value is not None and not self.is_steady(t) and not draws(t.record):
            return self._changing(t)
        return self.row(add_output(self.record, self.forward, t, _stack_type(t)), t.dims)

    def row(self, stack: Tensor, known: Dims | None) -> Tensor:
        """This iteration's part of something that was stacked."""
        part = self.apply("Gather", (stack, self.index), {"axis": 0}, 1, "")[0]
        self.declare(part, known)
        return part

    def _changing(self, t: Tensor) -> Tensor:
        """A value that has another shape in every iteration: kept in a sequence, by a second run of the loop."""
        if t.key not in self._sequences:
            if draws(self.record):
                raise GradientError(
                    f"the gradient of {self.record.describe()} would have to run it once more, to keep '{t.name}', "
                    "whose shape may change from iteration to iteration; but it draws at random, and would draw others"
                )
            values = [t.value for t in inputs_of(self.forward)[2:] if not (self.is_steady(t) or is_sequence(t))]
            if t.value not in values:
                values = [t.value]
            assert self.parent is not None
            with interpreter.using(self.parent):
                made = self._collect([v for v in values if v is not None])
            for value, sequence in zip(values, made, strict=True):
                self._sequences[self.forward.tensor(value).key] = sequence  # type: ignore[arg-type]  # states have values
        part = self.apply("SequenceAt", (self._sequences[t.key], self.index), None, 1, "")[0]
        self.declare(part, t.dims)
        return part

    def _collect(self, values: Sequence[ir.Value]) -> Sequence[Tensor]:
        r = self.record
        count = len(r.inputs) - r.captured
        n = count - 2
        body = self.forward.graph
        empty = [
            interpreter.apply1("SequenceEmpty", dtype=dtypes.to_onnx(self.forward.tensor(v).dtype)) for v in values
        ]

        def step(i: Tensor, going: Tensor, *given: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            env: dict[ir.Value, Tensor | None] = {
                t.value: t for t in r.inputs[count:] if t is not None and t.value is not None
            }
            made = run_body(body, (i, going, *given[:n]), env)
            longer = [
                interpreter.apply1("SequenceInsert", sequence, env[v])
                for v, sequence in zip(values, given[n:], strict=True)
            ]
            return made[0], [*made[1 : 1 + n], *longer], []

        states = [t for t in r.inputs[2:count] if t is not None]
        return make_loop(r.inputs[0], r.inputs[1], [*states, *empty], step)[n:]


class ReverseScan(Reverse):
    """The reverse pass of Scan: a Scan that reads what was stacked, and the scanned inputs again, from behind.

    Attributes:
        scanned: the outer tensors that it scans, with direction and axis.
    """

    def __init__(self, forward: Graph, record: Record, parent: Graph) -> None:
        super().__init__(forward, record, parent)
        self.scanned: list[tuple[Tensor, int, int]] = []
        self.count = int(record.attributes["num_scan_inputs"])
        self.states = len(forward.graph.inputs) - self.count
        self.places = {t.key: n for n, t in enumerate(inputs_of(forward)[self.states :])}

    def read_saved(self, t: Tensor) -> Tensor:
        place = self.places.get(t.key)
        if place is not None:
            outer = self.record.inputs[self.states + place]
            assert outer is not None
            direction, axis = self.of_input(place)
            return self.element(outer, 1 - direction, axis, t)
        return self.element(add_output(self.record, self.forward, t, _stack_type(t)), 1, 0, t)

    def of_input(self, place: int) -> tuple[int, int]:
        """Direction and axis of a scanned input."""
        return _at(self.record, "scan_input_directions", place), _at(self.record, "scan_input_axes", place)

    def of_output(self, place: int) -> tuple[int, int]:
        """Direction and axis of a scan output."""
        return _at(self.record, "scan_output_directions", place), _at(self.record, "scan_output_axes", place)

    def element(self, outer: Tensor, direction: int, axis: int, like: Tensor) -> Tensor:
        """One more scanned input."""
        assert self.parent is not None
        outer = self.parent.capture(outer)
        self.scanned.append((outer, direction, axis))
        return self.input("element", like.dtype, like.dims if like.dims is not None else without(outer.dims, axis))


def _refuse_sequence(record: Record, t: Tensor) -> None:
    if is_sequence(t):
        raise GradientError(
            f"the gradient of {record.describe()} would have to keep the sequence '{t.name}' as it is each time the "
            "body runs, and sequences cannot be stacked; gather the elements as a scan output instead"
        )


def draws(record: Record | None) -> bool:
    """Whether the operator draws at random, so that doing it again would give something else."""
    if record is None:
        return False
    if record.op in _RANDOM:
        return True
    bodies = [a for a in record.attributes.values() if isinstance(a, ir.Graph)]
    return any(node.op_type in _RANDOM for body in bodies for node in ir.traversal.RecursiveGraphIterator(body))


def _at(record: Record, name: str, place: int) -> int:
    values = record.attributes.get(name)
    return int(values[place]) if values and place < len(values) else 0


def unnamed(known: Dims | None) -> Dims | None:
    """The rank alone."""
    return None if known is None else tuple(dims.anonymous() for _ in known)


def _stack_type(t: Tensor) -> Type:
    return Type(t.dtype, None if t.dims is None else (dims.anonymous(), *t.dims))


def add_output(record: Record, body: Graph, t: Tensor, type_: Type) -> Tensor:
    """Make a value of a body one more output of the node, in place; returns the node's new output."""
    made = record.made
    assert isinstance(made, list) and t.value is not None
    owner: Graph = made[0].graph
    node = made[0].value.producer()
    value = t.value
    if value.producer() is None or value.is_graph_output() or value.is_graph_input():
        # under no_grad or not, an Identity changes nothing; an output must be a value of the body's own
        again = body.apply("Identity", (t,), None, 1, "")[0].value
        assert again is not None
        value = again
    if t.dims is not None:
        value.shape = ir.Shape([None if dims.is_anonymous(d) else d for d in t.dims])
    body.graph.outputs.append(value)
    place = len(node.outputs)
    for name in ("scan_output_directions", "scan_output_axes"):
        given = record.attributes.get(name)
        if given:
            record.attributes[name] = [*given, 0]
            node.attributes[name] = ir.AttrInt64s(name, record.attributes[name])
    node.resize_outputs(place + 1)
    new = node.outputs[place]
    new.name = owner.unique(f"{node.op_type.lower()}_saved")
    new.type = ir.TensorType(ir.DataType(dtypes.to_onnx(t.dtype)))
    new.shape = None if type_.dims is None else ir.Shape([None if dims.is_anonymous(d) else d for d in type_.dims])
    owner._types[new] = type_
    result = owner.tensor(new)
    result.record, result.index = record, place
    made.append(result)
    return result
