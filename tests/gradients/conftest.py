"""Watches what the tests of this folder do, for the sake of what no single one of them can check.

- Every node that a gradient rule writes is noted, so that test_kernels can ask the runtime about them all.
- Every function that check_gradients is given is noted too, for test_suite, which counts operators.
- Cases are checked once more as files: see ``loaded.py``. All are where slow tests run, a slice of them elsewhere.

The notes are taken while the other tests trace gradients; test_kernels and test_suite therefore run last.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from graphkit import dtypes, testing
from graphkit.core import Tensor
from graphkit.gradients.table import RULES
from graphkit.graph import Graph
from tests.gradients.loaded import check_traced

# (operator, domain, opset of the graph, dtypes of the inputs, the operator whose rule wrote it)
Note = tuple[str, str, int, tuple[str | None, ...], str]
NOTES = pytest.StashKey[set[Note]]()
LAST = ("test_kernels.py", "test_suite.py")
ALWAYS = ("test_control_flow.py", "test_sequences.py")  # whose files hold what no other case has: bodies
SLICE = 10  # without the slow tests, one case in so many is checked as a file


@dataclass
class Suite:
    """What check_gradients was asked.

    Attributes:
        functions: how many functions were checked.
        checked: the operators in them, by the order of derivative that was asked for.
        files: how many cases were checked as files, and ``operators``, those in their graphs.
    """

    functions: int = 0
    checked: dict[int, set[str]] = field(default_factory=lambda: {1: set(), 2: set()})
    files: int = 0
    operators: set[str] = field(default_factory=set)


SUITE = pytest.StashKey[Suite]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOTES] = set()
    config.stash[SUITE] = Suite()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name in LAST)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    suite = config.stash[SUITE]
    if suite.files:
        terminalreporter.line(
            f"check_gradients: {suite.functions} functions of {len(suite.checked[1] | suite.checked[2])} operators, "
            f"{len(suite.checked[2])} of them to second order; {suite.files} checked as files too"
        )


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> Suite:
    return request.config.stash[SUITE]


@pytest.fixture
def checks_files(request: pytest.FixtureRequest) -> bool:
    """Whether this test is one of those whose cases are checked as files."""
    return _is_chosen(request)


def _is_chosen(request: pytest.FixtureRequest) -> bool:
    if "not slow" not in request.config.option.markexpr or request.node.path.name in ALWAYS:
        return True
    return zlib.crc32(request.node.nodeid.encode()) % SLICE == 0


class _Watch:
    """One test's watch: what runs just now, and what check_gradients asks for."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.notes = request.config.stash[NOTES]
        self.suite = request.config.stash[SUITE]
        self.chosen = _is_chosen(request)
        self.running: list[str] = []  # the rules that run
        self.depth = 0  # how many functions of check_gradients run: as many as its order where the given one does
        self.order = 1
        self.written: set[str] = set()  # operators of the trace at hand
        self.graph, self.weighted, self.with_squares = testing._graph, testing._weighted, testing._with_squares
        self.infer = Graph._infer

    def rule(self, name: str, rule: Any) -> Any:
        """A rule that is known to run while it does, and while what it returns is made."""
        running = self.running

        def within(f: Any) -> Any:
            def call(*args: Any, **named: Any) -> Any:
                running.append(name)
                try:
                    return f(*args, **named)
                finally:
                    running.pop()

            return call

        @functools.wraps(rule)
        def run(*args: Any, **named: Any) -> Any:
            answer = within(rule)(*args, **named)
            entries = answer if isinstance(answer, tuple | list) else [answer]
            return tuple(within(e) if callable(e) and not isinstance(e, Tensor) else e for e in entries)

        return run

    def node(self, graph: Graph, node: Any, attributes: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        """In place of Graph._infer, not of Graph.apply, which looks up the line that it was called from."""
        self.written.add(node.op_type)
        if self.running:
            kinds = tuple(None if t is None else dtypes.name(t.dtype) for t in inputs)
            self.notes.add((node.op_type, node.domain, graph.opset, kinds, self.running[-1]))
        elif self.depth == self.order:
            self.suite.checked[self.order].add(node.op_type)
        return self.infer(graph, node, attributes, inputs, *rest, **named)

    def function(self, f: Any, seed: int) -> Any:
        """In place of testing._weighted."""
        if not self.depth:
            self.order = 1

        def call(*args: Any) -> Any:
            self.depth += 1
            try:
                return f(*args)
            finally:
                self.depth -= 1

        return self.weighted(call, seed)

    def squares(self, loss: Any) -> Any:
        """In place of testing._with_squares, which goes from one order to the next."""
        self.order += 1
        return self.with_squares(loss)

    def traced(self, loss: Any, arrays: Any, wrt: Any, layout: Any) -> Any:
        """In place of testing._graph."""
        self.written.clear()
        found = self.graph(loss, arrays, wrt, layout)
        self.suite.functions += all(dims is None for dims in layout)
        if self.chosen or not self.written <= self.suite.operators:
            self.suite.operators |= self.written
            self.suite.files += 1
            check_traced(loss, arrays, wrt, layout)
        return found


@pytest.fixture(autouse=True)
def written_by_rules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Note]]:
    watch = _Watch(request)
    rules = dict(RULES)
    RULES.update({key: watch.rule(key[0], rule) for key, rule in rules.items()})
    monkeypatch.setattr(Graph, "_infer", lambda self, *args, **named: watch.node(self, *args, **named))
    monkeypatch.setattr(testing, "_weighted", watch.function)
    monkeypatch.setattr(testing, "_with_squares", watch.squares)
    monkeypatch.setattr(testing, "_graph", watch.traced)
    yield watch.notes
    RULES.update(rules)
