"""The standard's operator tests that ONNX Runtime does not load: of opset 27 and 28, and of FlexAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.newer import NEWER, PREVIEW
from graphkit.schemas import NEWEST_OPSET
from tests.conformance.onnx_backend import as_array, check, node_cases, opset_of

# No element of these types goes through a kernel of the CPU provider, at any opset.
WITHOUT_KERNEL = ("FLOAT4E2M1", "float4e2m1", "celu_bfloat16_expanded")
CASES = {
    name: case
    for name, case in node_cases().items()
    if (opset_of(case.model) or 0) > NEWEST_OPSET or any(e.domain == PREVIEW for e in case.model.opset_import)
}
RUN = [name for name in CASES if not any(part in name for part in WITHOUT_KERNEL)]


def marked(names: list[str]) -> list[Any]:
    """Those of operators that are written out are run always; the others, which are only read, among the slow ones."""
    known = {operator for operator, _ in NEWER}
    kinds = {name: {node.op_type for node in CASES[name].model.graph.node} for name in names}
    return [pytest.param(n, marks=[] if kinds[n] & known else pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", marked(RUN))
def test_run(name: str) -> None:
    case: Any = CASES[name]
    for inputs, outputs in case.data_sets:
        feeds = {v.name: as_array(i) for v, i in zip(case.model.graph.input, inputs, strict=True)}
        got = gk.run(case.model, feeds, optimizations=False)
        for mine, theirs in zip(got.values(), outputs, strict=True):
            check(mine, as_array(theirs), case.rtol, case.atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in RUN if not n.endswith(("_expanded", "_expanded_ver26"))])
def test_eager(name: str) -> None:
    case: Any = CASES[name]
    for inputs, outputs in case.data_sets:
        given = [as_array(i) for i in inputs]
        if not all(isinstance(i, np.ndarray) for i in given):
            pytest.skip("eager tensors are no optionals")
        found = gk.load(case.model)(*given)
        for mine, theirs in zip(found if isinstance(found, tuple) else (found,), outputs, strict=True):
            check(mine._array, as_array(theirs), case.rtol, case.atol)


def test_there_are_many():
    assert len(RUN) > 300
    assert len(CASES) - len(RUN) < 10
