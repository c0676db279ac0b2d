"""The standard's own tests of operators with bodies, run eagerly node by node and traced again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit.runtime import run
from graphkit.schemas import NEWEST_OPSET
from tests.conformance.onnx_backend import as_array, check, node_cases, opset_of


def has_bodies(graph: onnx.GraphProto) -> bool:
    return any(a.HasField("g") for node in graph.node for a in node.attribute)


# FlexAttention lives in a domain of previews, which no runtime has.
CASES = {
    name: case
    for name, case in node_cases().items()
    if has_bodies(case.model.graph) and (opset_of(case.model) or 0) <= NEWEST_OPSET and "flexattention" not in name
}


@pytest.mark.parametrize("name", CASES)
def test_eager(name: str) -> None:
    case: Any = CASES[name]
    for inputs, outputs in case.data_sets:
        found = gk.load(case.model)(*[as_array(i) for i in inputs])
        results = found if isinstance(found, tuple) else (found,)
        for mine, theirs in zip(results, outputs, strict=True):
            check(mine._array, as_array(theirs), case.rtol, case.atol)


@pytest.mark.parametrize("name", CASES)
def test_traced(name: str) -> None:
    case: Any = CASES[name]
    for inputs, outputs in case.data_sets:
        given = [as_array(i) for i in inputs]
        if not all(isinstance(i, np.ndarray) for i in given):
            pytest.skip("a trace has no inputs that are sequences")
        names = [f"x{n}" for n in range(len(given))]
        loaded = gk.load(case.model)
        model = gk.trace(lambda *args: loaded(*args), *given, input_names=names)  # noqa: B023  # called before the next
        got = run(model, dict(zip(names, given, strict=True)), optimizations=False)
        for mine, theirs in zip(got.values(), outputs, strict=True):
            check(mine, as_array(theirs), case.rtol, case.atol)
