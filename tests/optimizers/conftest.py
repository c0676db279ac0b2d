"""What every optimized model is held to: the same interface, the same numbers, no growth, a fixed point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import graphkit.optimizers
from graphkit.optimizers import Report

Feeds = Mapping[str, np.ndarray[Any, Any]]
TYPES = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.BOOL: np.bool_,
}


def parse(text: str, opset: int = 17, imports: str = "") -> onnx.ModelProto:
    """A model from the text form of ONNX: the graph only."""
    ir = 8 if opset < 19 else 9 if opset < 21 else 10 if opset < 23 else 11
    header = f'<ir_version: {ir}, opset_import: ["": {opset}{imports}]>'
    return onnx.parser.parse_model(f"{header} {text}")


def run(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def random_feeds(model: onnx.ModelProto, size: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(size)
    defaults = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in defaults:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else size for d in tensor.shape.dim]
        dtype = TYPES[tensor.elem_type]
        drawn = rng.standard_normal(shape) * 3 if np.dtype(dtype).kind == "f" else rng.integers(0, 2, shape)
        feeds[value.name] = np.asarray(drawn).astype(dtype)
        if np.dtype(dtype).kind == "f" and feeds[value.name].size > 1:
            feeds[value.name].flat[0] = -0.0  # every float input brings a negative zero
    return feeds


def operators(model: onnx.ModelProto) -> Counter[str]:
    """How often each operator stands in a model, bodies and functions included."""
    found: Counter[str] = Counter()

    def visit(nodes: Any) -> None:
        for node in nodes:
            found[node.op_type] += 1
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g.node)

    visit(model.graph.node)
    for function in model.functions:
        visit(function.node)
    return found


def interface(model: onnx.ModelProto) -> list[bytes]:
    parts = [value.SerializeToString(deterministic=True) for value in (*model.graph.input, *model.graph.output)]
    overridable = {value.name for value in model.graph.input} & {tensor.name for tensor in model.graph.initializer}
    meta = [f"{entry.key}={entry.value}" for entry in (*model.metadata_props, *model.graph.metadata_props)]
    texts = [
        model.graph.name,
        model.graph.doc_string,
        model.doc_string,
        model.producer_name,
        *sorted(overridable),
        *meta,
    ]
    return parts + [text.encode() for text in texts]


def assert_same(got: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> None:
    for name, right in expected.items():
        value = got[name]
        if not isinstance(right, np.ndarray):
            assert value == right, name
            continue
        assert (value.dtype, value.shape) == (right.dtype, right.shape), name
        if tolerance:
            np.testing.assert_allclose(value, right, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(value, right, err_msg=name)
            if right.dtype.kind == "f":
                zeros = right == 0
                np.testing.assert_array_equal(np.signbit(value)[zeros], np.signbit(right)[zeros], err_msg=name)


@pytest.fixture
def prove() -> Callable[..., onnx.ModelProto]:
    """Optimize a model and hold the result to everything that every pass promises."""

    def check(
        given: onnx.ModelProto | str,
        *feeds: Feeds,
        opset: int = 17,
        imports: str = "",
        preset: str = "inference",
        tolerance: float = 0.0,
        expected: Mapping[str, int] | None = None,
        report: Report | None = None,
        grow: int = 0,
        verify: bool = False,
        **options: Any,
    ) -> onnx.ModelProto:
        model = parse(given, opset, imports=imports) if isinstance(given, str) else given
        onnx.checker.check_model(model)
        before = model.SerializeToString(deterministic=True)
        result = graphkit.optimizers.optimize(model, preset, verify=verify, report=report, **options)
        assert model.SerializeToString(deterministic=True) == before, "the model that was given changed"
        onnx.checker.check_model(result)
        assert interface(result) == interface(model)
        assert result.ir_version <= max(model.ir_version, 8)
        assert len(result.SerializeToString()) <= len(before) + grow
        again = graphkit.optimizers.optimize(result, preset, verify=False, **options)
        assert operators(again) == operators(result), "a second run changed something"
        assert len(again.graph.initializer) == len(result.graph.initializer)
        for each in feeds or (random_feeds(model, 2), random_feeds(model, 5)):
            assert_same(run(result, each), run(model, each), tolerance)
        if expected is not None:
            assert operators(result) == Counter(expected), str(onnx.printer.to_text(result))
        return result

    return check
