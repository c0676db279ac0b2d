"""Half precision and few bits on whole networks: sizes, errors, and that the runtime takes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import graphkit as gk
from graphkit.modelfile import write_model
from graphkit.optimizers import (
    PrecisionReport,
    QuantizationReport,
    change_opset,
    extract,
    optimize,
    quantize_weights,
    to_precision,
)
from graphkit.optimizers.loss_check import relative_error
from models.gpt import GPT
from models.lenet import LeNet
from models.lstm import Rows
from models.mlp import MLP
from models.resnet import ResNet

NETWORKS: dict[str, tuple[Callable[[], gk.nn.Module], str, list[Any]]] = {
    "mlp": (lambda: MLP([784, 128, 64, 10]), "float32", ["batch", 784]),
    "lenet": (LeNet, "float32", ["batch", 784]),
    "resnet": (lambda: ResNet((16, 32, 64)), "float32", ["batch", 784]),
    "lstm": (lambda: Rows(width=96), "float32", ["batch", 784]),
    "gpt": (lambda: GPT(width=96), "int64", ["batch", "time"]),
    "tied gpt": (lambda: GPT(width=96, tied=True), "int64", ["batch", "time"]),
}


QUICK = ("mlp", "lenet")


@pytest.fixture(params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A network at inference as a file, and inputs for it."""
    make, dtype, dims = NETWORKS[request.param]
    gk.random.seed(0)
    model = optimize(gk.trace(make().eval(), gk.spec(dtype, dims), input_names=["x"]), verify=False)
    write_model(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 784)).astype(np.float32) if dtype == "float32" else rng.integers(0, 96, (2, 20))
    return tmp_path / "m.onnx", {"x": x}


def outputs(path: Path, feeds: dict[str, np.ndarray]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def test_half_the_size(network, tmp_path):
    path, feeds = network
    report = PrecisionReport()
    write_model(to_precision(path, "float16", report=report), tmp_path / "half.onnx")
    assert report.bytes_after < 0.52 * report.bytes_before and report.converted > 3 * len(report.kept)
    assert report.error is not None and 0 < report.error < 0.01 and not report.by_check
    assert (tmp_path / "half.onnx").stat().st_size < 0.6 * path.stat().st_size
    for got, right in zip(outputs(tmp_path / "half.onnx", feeds), outputs(path, feeds), strict=True):
        assert relative_error(got, right) < 0.01
    # The emulated rounding costs what eight bits less of the mantissa cost in bfloat16.
    coarse = PrecisionReport()
    at = change_opset(path, 22)
    write_model(to_precision(at, "bfloat16", report=coarse), tmp_path / "brain.onnx")
    assert coarse.error is not None and report.error < coarse.error < 0.08
    onnx.checker.check_model(tmp_path / "brain.onnx", full_check=True)


def test_a_quarter_of_the_size(network, tmp_path):
    path, feeds = network
    sizes = {tensor.name: 4 * int(np.prod(tensor.dims)) for tensor in onnx.load(path).graph.initializer}
    for bits, options, most in ((8, {}, 0.05), (8, {"form": "dequantize"}, 0.05), (4, {}, 0.2)):
        report = QuantizationReport()
        write_model(quantize_weights(path, bits, report=report, **options), tmp_path / "small.onnx")
        whole = sum(sizes[name] for name in report.quantized)
        assert bits == 4 or whole > 0.8 * sum(sizes.values())
        assert report.bytes_before - report.bytes_after > 0.71 * whole
        assert report.error is not None and report.error < most
        assert bits == 4 or not report.by_check
        assert len(report.quantized) >= 2
        if "form" not in options:  # on the runtime as everybody has it
            for got, right in zip(outputs(tmp_path / "small.onnx", feeds), outputs(path, feeds), strict=True):
                assert relative_error(got, right) < most
        again = optimize(tmp_path / "small.onnx", verify=True, strict=True)
        kinds = {"INT8", "INT4"}
        left = [v for v in again.graph.initializers.values() if v.dtype is not None and v.dtype.name in kinds]
        assert len(left) == len(report.quantized)


def test_a_network_cut_in_two_computes_the_same(network, tmp_path):
    path, feeds = network
    model = onnx.load(path)
    middle = next(node.output[0] for node in model.graph.node if node.op_type in ("Relu", "LSTM", "Gelu"))
    write_model(extract(path, outputs=[middle]), tmp_path / "first.onnx")
    write_model(extract(path, inputs=[middle, "x"] if _reads_x(model, middle) else [middle]), tmp_path / "second.onnx")
    between = outputs(tmp_path / "first.onnx", feeds)[0]
    rest = {value.name for value in onnx.load(tmp_path / "second.onnx").graph.input} - {middle}
    got = outputs(tmp_path / "second.onnx", {middle: between} | {name: feeds[name] for name in rest})
    for a, b in zip(got, outputs(path, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _reads_x(model: onnx.ModelProto, middle: str) -> bool:
    """Whether the outputs need the input beside a value."""
    made = {name: node for node in model.graph.node for name in node.output}
    stack, seen = [value.name for value in model.graph.output], {middle}
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        stack += made[name].input if name in made else ()
    return "x" in seen
