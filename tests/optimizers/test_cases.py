"""The sample cases about optimizing, which lie beside the repository, through the public call."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from graphkit.optimizers import Report, optimize

FOLDER = Path(__file__).parents[3] / "shared" / "cases"


def load() -> list[dict[str, Any]]:
    if not (FOLDER / "a_optimize.py").is_file():
        return []
    sys.path.insert(0, str(FOLDER))
    try:
        module = importlib.import_module("a_optimize")
    finally:
        sys.path.remove(str(FOLDER))
    return [getattr(module, name)() for name in dir(module) if name.startswith("case_")]


def test_the_cases_are_found():
    if not FOLDER.is_dir():
        pytest.skip("the sample cases are not beside this checkout")
    assert load()


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("case", load(), ids=lambda case: case["name"])
def test_case(case):
    extra, model = case["extra"], case["model"]
    report = Report()
    result = optimize(model, report=report)
    onnx.checker.check_model(result)
    assert not report.dropped
    assert [value.SerializeToString() for value in result.graph.output] == [
        value.SerializeToString() for value in model.graph.output
    ]
    assert [value.SerializeToString() for value in result.graph.input] == [
        value.SerializeToString() for value in model.graph.input
    ]
    if "max_bytes" in extra:
        assert len(result.SerializeToString()) <= extra["max_bytes"]
    assert set(extra.get("must_keep_ops", ())) <= {node.op_type for node in result.graph.node}
    if extra.get("runnable", True) is False:
        return
    running = session(result)
    names = [value.name for value in result.graph.output]
    for turn in [case, *extra.get("more_runs", ())]:
        got = dict(zip(names, running.run(names, turn["inputs"]), strict=True))
        for name, expected in turn["expected"].items():
            assert got[name].shape == expected.shape
            np.testing.assert_allclose(got[name], expected, *case["tol"], err_msg=name)
        again = dict(zip(names, running.run(names, turn["inputs"]), strict=True))
        assert all(np.any(got[name]) for name in extra.get("nonzero", ()))
        assert all(not np.array_equal(got[name], again[name]) for name in extra.get("varies", ()))
