"""Notes every node that a gradient rule writes, so that test_kernels can ask the runtime about them all.

The notes are taken while the other tests of this folder trace gradients; test_kernels therefore runs last.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from graphkit import dtypes
from graphkit.core import Tensor
from graphkit.gradients.table import RULES
from graphkit.graph import Graph

# (operator, domain, opset of the graph, dtypes of the inputs, the operator whose rule wrote it)
Note = tuple[str, str, int, tuple[str | None, ...], str]
NOTES = pytest.StashKey[set[Note]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOTES] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == "test_kernels.py")


@pytest.fixture(autouse=True)
def written_by_rules(request: pytest.FixtureRequest) -> Iterator[set[Note]]:
    notes = request.config.stash[NOTES]
    running: list[str] = []
    rules, infer = dict(RULES), Graph._infer

    def watched(name: str, rule: Any) -> Any:
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

    def noting(self: Graph, node: Any, attributes: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        if running:  # not Graph.apply itself, which looks up the line that it was called from
            kinds = tuple(None if t is None else dtypes.name(t.dtype) for t in inputs)
            notes.add((node.op_type, node.domain, self.opset, kinds, running[-1]))
        return infer(self, node, attributes, inputs, *rest, **named)

    RULES.update({key: watched(key[0], rule) for key, rule in rules.items()})
    Graph._infer = noting  # type: ignore[method-assign]
    yield notes
    Graph._infer = infer  # type: ignore[method-assign]
    RULES.update(rules)
