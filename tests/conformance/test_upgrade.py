"""The standard's operator tests of opset 7 to 25, upgraded: still right where they were right."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from graphkit.modelfile.versions import MAX_OPSETS
from graphkit.upgrade import OLDEST, WORKING, upgrade_model
from tests.conformance.onnx_backend import as_array, check, node_cases, opset_of, run

NEWEST = MAX_OPSETS[""]
# ONNX Runtime has no kernel for Swish and expands it, but only at opset 24: its body holds a Constant, changed in 25.
EXPANDED_AT_ITS_OPSET_ONLY = {"test_swish"}
READ = {
    name: case
    for name, case in node_cases().items()
    if OLDEST <= (opset_of(case.model) or 0) < NEWEST and name not in EXPANDED_AT_ITS_OPSET_ONLY
}


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_operator_is_right_after_the_upgrade(case: Any):
    inputs, outputs = ([as_array(value) for value in values] for values in case.data_sets[0])
    opset = opset_of(case.model) or 0
    model = ir.from_proto(case.model)
    upgrade_model(model, WORKING if opset < WORKING else NEWEST)  # whether or not the runtime knows the operator
    assert model.opset_imports[""] > opset
    try:
        before = run(case.model, inputs)
    except Exception:  # noqa: BLE001 (whatever it is, there is nothing to compare with)
        pytest.skip("stock ONNX Runtime does not run the original")
    for got, shipped, was in zip(run(ir.to_proto(model), inputs), outputs, before, strict=True):
        if agrees(was, shipped, case):
            check(got, shipped, case.rtol, case.atol)
        else:  # the runtime's result is not the standard's (a DFT's zeros, say): then it is to stay what it was
            check(got, was, rtol=0, atol=0)


def agrees(got: Any, want: Any, case: Any) -> bool:
    try:
        check(got, want, case.rtol, case.atol)
    except AssertionError:
        return False
    return True


def test_there_are_many():
    assert len(READ) > 1200
