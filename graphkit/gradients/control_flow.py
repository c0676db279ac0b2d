"""If, Loop and Scan: the reverse pass of each body, in an If, Loop or Scan of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphkit import dims, dtypes, interpreter
from graphkit.bodies import add_input, inputs_of, outputs_of, records_of, scan_attributes, set_outputs
from graphkit.body_types import type_of
from graphkit.core import Key, Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.lists import is_sequence, together, whole, zeros_of
from graphkit.gradients.reverse import Reverse, ReverseBranch, ReverseLoop, ReverseScan, add_output
from graphkit.gradients.reverse_pass import body, current_graph, leading, own_record, pull, reached
from graphkit.gradients.shapes import constant, static_value, zeros_like
from graphkit.gradients.table import gradient
from graphkit.graph import Graph
from graphkit.inference import Type
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints


class _Captured:
    """The captured values of a record whose gradient is wanted, as they are and as the node in hand captures them."""

    def __init__(self, r: Record, own: Record) -> None:
        self.record = r
        self.first = len(r.inputs) - r.captured
        graph = current_graph()
        self.inside: dict[Key, Tensor] = {}
        for n, t in enumerate(r.inputs):
            if n >= self.first and t is not None and r.wanted(n):
                self.inside[t.key] = t if own is r else graph.capture(t)

    def values(self) -> list[Tensor]:
        return list(self.inside.values())

    def entries(self, found: dict[Key, Tensor]) -> list[Tensor | None]:
        """An entry for every input of the record, given cotangents by the captured values' keys."""
        result: list[Tensor | None] = []
        for n, t in enumerate(self.record.inputs):
            inner = self.inside.get(t.key) if t is not None and n >= self.first else None
            result.append(None if inner is None else found.get(inner.key))
        return result


@gradient("If")
def if_(r: Record, *gs: Tensor | None) -> Entries:
    """An If of the branches' reverse passes; what only the other branch uses gets zeros."""
    own = own_record(r)
    captured = _Captured(r, own)
    wanted = captured.values()
    branches = [body(own, name) for name in ("then_branch", "else_branch")]
    outputs = [outputs_of(b) for b in branches]
    gs = tuple(None if g is None else whole(g) for g in gs)
    reverse, found = [], []
    for n, forward in enumerate(branches):
        bodies = ReverseBranch(forward, branches[1 - n], own, current_graph())
        records = list(records_of(forward))
        with interpreter.using(bodies):
            pairs = [(y, bodies.cotangent(g, y)) for y, g in zip(outputs[n], gs, strict=False) if g is not None]
            found.append(pull(records, pairs, wanted))
        reverse.append(bodies)
    targets = [t for t in wanted if t.key in found[0] or t.key in found[1]]
    if not targets:
        return (None,)
    for bodies, results in zip(reverse, found, strict=True):
        with interpreter.using(bodies):
            set_outputs(bodies, [results[t.key] if t.key in results else _nothing_of(t) for t in targets])
    attributes = {"then_branch": reverse[0].graph, "else_branch": reverse[1].graph}
    made = apply("If", (r.inputs[0],), attributes, len(targets))
    return tuple(captured.entries({t.key: g for t, g in zip(targets, made, strict=True)}))


def _nothing_of(t: Tensor) -> Tensor:
    """The cotangent of a value that nothing came back to."""
    return zeros_of(t) if is_sequence(t) else zeros_like(t)


class _Plan:
    """What the reverse pass of a repeated body carries from iteration to iteration.

    Attributes:
        carried: the states whose cotangent is carried, by number.
        sums: the captured values whose cotangents are added up over the iterations.
        records: the body's records, last first.
    """

    def __init__(
        self,
        r: Record,
        own: Record,
        forward: Graph,
        states: Sequence[Tensor],
        results: Sequence[Tensor],
        gs: Sequence[Tensor | None],
        first: int,
        elements: Sequence[Tensor] = (),
    ) -> None:
        n = len(states)
        self.records = list(records_of(forward))
        self.states, self.results = states, results
        stacked = [y for y, g in zip(results[n:], gs[n:], strict=False) if g is not None]
        floating = [k for k in range(n) if dtypes.is_float(states[k].dtype)]
        down = {k for k in floating if gs[k] is not None}
        while True:
            live = reached(self.records, [*(results[k] for k in down), *stacked])
            more = down | {k for k in floating if states[k].key in live}
            if more == down:
                break
            down = more
        self.captured = _Captured(r, own)
        captured = [t for t in self.captured.values() if t.key in live]
        up = {k for k in floating if r.wanted(first + k)}
        base = [t.key for t in (*captured, *elements)]
        while True:
            led = leading(self.records, [*base, *(states[k].key for k in up)])
            more = up | {k for k in floating if results[k].key in led}
            if more == up:
                break
            up = more
        self.carried = sorted(down & up)
        self.sums = captured
        self.elements = [t for t in elements if t.key in live]
        self.describe = r.describe
        self.steady = all(
            dims.same_dims(states[k].dims, results[k].dims) for k in self.carried if not is_sequence(states[k])
        )

    def start(self, gs: Sequence[Tensor | None], finals: Sequence[Tensor]) -> list[Tensor]:
        """The cotangents of the final states, and sums of nothing yet."""
        first = []
        for k in self.carried:
            g = gs[k]
            first.append(whole(g) if g is not None else _nothing_of(finals[k]))
        return first + [_nothing_of(t) for t in self.sums]

    def add_inputs(self, reverse: Reverse, values: Sequence[Tensor]) -> list[Tensor]:
        known = [self.states[k].dims for k in self.carried] + [t.dims for t in self.sums]
        types = [type_of(v) if is_sequence(v) else Type(v.dtype, None) for v in values]
        return [add_input(reverse, "cotangent", t, d) for t, d in zip(types, known, strict=True)]

    def step(
        self, given: Sequence[Tensor], stacked: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One iteration back: the next carried cotangents and sums, and the cotangents of the scanned elements."""
        n = len(self.carried)
        pairs = [(self.results[k], g) for k, g in zip(self.carried, given[:n], strict=True)]
        wanted = [*(self.states[k] for k in self.carried), *self.sums, *self.elements]
        found = pull(self.records, [*pairs, *stacked], wanted)
        after = []
        for k, g in zip(self.carried, given[:n], strict=True):
            state = self.states[k]
            if state.key in found:
                after.append(found[state.key])
            elif is_sequence(state):
                raise GradientError(
                    f"the gradient of {self.describe()} needs the length that the sequence '{state.name}' has in every "
                    "iteration, since each begins another; gather the elements as a scan output instead"
                )
            else:
                after.append(zeros_like(g if self.steady else state))
        for t, total in zip(self.sums, given[n:], strict=True):
            if t.key in found:
                total = (together if is_sequence(t) else partial(apply1, "Add"))(total, found[t.key])
            after.append(total)
        return after, [found[t.key] if t.key in found else zeros_like(t) for t in self.elements]

    def answer(self, made: Sequence[Tensor], first: int) -> list[Tensor | None]:
        """Entries for every input of the record, those of scanned inputs left open."""
        n = len(self.carried)
        result = self.captured.entries({t.key: g for t, g in zip(self.sums, made[n:], strict=False)})
        for k, g in zip(self.carried, made, strict=False):
            result[first + k] = g
        return result


@gradient("Loop")
def loop(r: Record, *gs: Tensor | None) -> Entries:
    """A Loop that runs as many iterations from the last to the first, reading what each saved."""
    count = len(r.inputs) - r.captured
    n = count - 2
    own = own_record(r)
    forward = body(own)
    states, results = inputs_of(forward)[2:], outputs_of(forward)[1:]
    plan = _Plan(r, own, forward, states, results, gs, 2)
    if not plan.carried and not plan.sums:
        return (None,)
    graph = current_graph()
    trips = _trips(own, forward, n)
    last = apply1("Sub", trips, constant(1, dtypes.INT64))
    values = [graph.capture(t) for t in plan.start(gs, own.outputs)]
    reverse = ReverseLoop(forward, own, graph, last)
    given = plan.add_inputs(reverse, values)
    going = inputs_of(reverse)[1]
    with interpreter.using(reverse):
        stacked = [
            (y, reverse.row(graph.capture(g), y.dims))
            for y, g in zip(results[n:], gs[n:], strict=False)
            if g is not None
        ]
        after, _ = plan.step(given, stacked)
    set_outputs(reverse, [going, *after])
    made = apply("Loop", (trips, None, *values), {"body": reverse.graph}, len(values))
    return tuple(plan.answer(made, 2))


def _trips(own: Record, forward: Graph, states: int) -> Tensor:
    """How many iterations were run, int64 []: the count that was given, if no condition can end the loop before."""
    limit, condition = own.inputs[0], own.inputs[1]
    known = static_value(condition) if condition is not None else None
    going = forward.graph.outputs[0]
    while going.producer() is not None and going.producer().op_type == "Identity":  # type: ignore[union-attr]  # tested
        source = going.producer().inputs[0]  # type: ignore[union-attr]  # tested
        if source is None or source.graph is not forward.graph:
            break
        going = source
    always = going is forward.graph.inputs[1]
    if not always:
        fixed = static_value(forward.tensor(going))
        always = fixed is not None and bool(fixed.all())
    if limit is not None and always and (condition is None or (known is not None and bool(known.all()))):
        return apply1("Max", limit if limit.rank == 0 else apply1("Reshape", limit, constant_ints([])),
                      constant(0, dtypes.INT64))  # fmt: skip
    stack = next((t for t in own.outputs[states:] if t.dims is not None), None)
    if stack is None:
        i = inputs_of(forward)[0]
        stack = add_output(own, forward, i, Type(dtypes.INT64, (dims.anonymous(),)))
    length = apply1("Shape", stack, start=0, end=1)
    return apply1("Reshape", length, constant_ints([]))


@gradient("Scan")
def scan(r: Record, *gs: Tensor | None) -> Entries:
    """A Scan in the other direction over what each iteration saved."""
    own = own_record(r)
    forward = body(own)
    graph = current_graph()
    reverse = ReverseScan(forward, own, graph)
    n = reverse.states
    inner, results = inputs_of(forward), outputs_of(forward)
    elements = [t for k, t in enumerate(inner[n:]) if r.wanted(n + k)]
    plan = _Plan(r, own, forward, inner[:n], results, gs, 0, elements)
    if not plan.carried and not plan.sums and not plan.elements:
        return (None,)
    values = [graph.capture(t) for t in plan.start(gs, own.outputs)]
    given = plan.add_inputs(reverse, values)
    stacked = []
    for k, (y, g) in enumerate(zip(results[n:], gs[n:], strict=False)):
        if g is not None:
            direction, axis = reverse.of_output(k)
            stacked.append((y, reverse.element(g, 1 - direction, axis, y)))
    with interpreter.using(reverse):
        after, parts = plan.step(given, stacked)
        if not reverse.scanned:  # something must say how many iterations there are
            reverse.read_saved(inner[n])
    set_outputs(reverse, [*after, *parts])
    places = [reverse.of_input(reverse.places[t.key]) for t in plan.elements]
    attributes = scan_attributes(
        reverse.graph, len(reverse.scanned), [d for _, d, _ in reverse.scanned], [a for _, _, a in reverse.scanned],
        [1 - d for d, _ in places], [a for _, a in places],
    )  # fmt: skip
    made = apply("Scan", (*values, *(t for t, _, _ in reverse.scanned)), attributes, len(values) + len(parts))
    answer = plan.answer(made, 0)
    for t, g in zip(plan.elements, made[len(values) :], strict=True):
        answer[n + reverse.places[t.key]] = g
    return tuple(answer)
