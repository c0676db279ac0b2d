"""The standard's own operator tests, as the onnx package ships them: models with inputs and expected outputs.

Each is written at the opset in which its operator last changed, from 1 to the newest.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort


@functools.cache
def node_cases() -> dict[str, Any]:
    """All of them by name; making the data takes a few seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def opset_of(model: onnx.ModelProto) -> int | None:
    """The model's ai.onnx opset."""
    return next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), None)


def run(model: onnx.ModelProto, inputs: Iterable[Any]) -> list[Any]:
    """Run a model on stock ONNX Runtime with its optimizations off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = [value.name for value in model.graph.input]
    return session.run(None, dict(zip(given, inputs, strict=False)))


def as_array(value: Any) -> Any:
    """Shipped values are arrays, sequences of them, None, or protobuf tensors of types numpy does not know."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, np.generic):
        return np.asarray(value)  # the runtime does not take numpy's scalars
    if isinstance(value, (list, tuple)):
        return [as_array(item) for item in value]
    return value


def check(got: Any, want: Any, rtol: float, atol: float) -> None:
    """Assert that a result is the expected one, as the standard's own runner does."""
    if want is None:
        assert got is None
    elif isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check(one, other, rtol, atol)
    else:
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape
        if want.dtype.kind in "OUS":
            assert got.astype(str).tolist() == want.astype(str).tolist()
        else:
            assert got.dtype == want.dtype
            if want.dtype.kind not in "biufc":
                got, want = got.astype(np.float32), want.astype(np.float32)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
