"""Weights in 8 and 4 bits: which, how exactly, and that they stay so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from graphkit.errors import PassError
from graphkit.modelfile import read_model, write_model
from graphkit.optimizers import QuantizationReport, optimize, quantize_weights
from tests.optimizers.conftest import operators, parse, random_feeds

SMALL = (TensorProto.INT8, TensorProto.INT4)


def with_weights(text: str, opset: int = 17, **shapes: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = parse(text, opset)
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return model


def run(model: onnx.ModelProto, feeds: dict[str, Any], level: str = "ORT_DISABLE_ALL") -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(made.run(None, feeds))


def error(got: Any, right: Any) -> float:
    return float(np.abs(got - right).max() / np.abs(right).max())


# Each: the graph, the shapes of its weights, and the axis along which each weight has its scales.
LAYERS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "MatMul": ("g (float[N,64] x) => (float[N,48] y) {y = MatMul(x, w)}", {"w": (64, 48)}, {"w": 1}),
    "MatMul, weight first": ("g (float[64,N] x) => (float[48,N] y) {y = MatMul(w, x)}", {"w": (48, 64)}, {"w": 0}),
    "MatMul, batched": ("g (float[2,N,64] x) => (float[2,N,48] y) {y = MatMul(x, w)}", {"w": (2, 64, 48)}, {"w": 2}),
    "Gemm": ("g (float[N,64] x) => (float[N,48] y) {y = Gemm(x, w, b)}", {"w": (64, 48), "b": 48}, {"w": 1}),
    "Gemm, transB": ("g (float[N,64] x) => (float[N,48] y) {y = Gemm<transB=1>(x, w)}", {"w": (48, 64)}, {"w": 0}),
    "Gemm, transA": ("g (float[64,N] x) => (float[48,N] y) {y = Gemm<transA=1>(w, x)}", {"w": (64, 48)}, {"w": 1}),
    "Conv": ("g (float[1,16,9,9] x) => (float[1,32,7,7] y) {y = Conv(x, w)}", {"w": (32, 16, 3, 3)}, {"w": 0}),
    "ConvTranspose": (
        "g (float[1,16,5,5] x) => (float[1,32,7,7] y) {y = ConvTranspose(x, w)}", {"w": (16, 32, 3, 3)}, {"w": 1},
    ),
    "Gather": ("g (int64[N] i) => (float[N,32] y) {y = Gather(w, i)}", {"w": (50, 32)}, {"w": 0}),
    "LSTM": (
        "g (float[5,1,16] x) => (float[5,1,1,16] y) {y = LSTM<hidden_size=16>(x, w, r)}",
        {"w": (1, 64, 16), "r": (1, 64, 16)}, {"w": 1, "r": 1},
    ),
    "behind a Transpose": (
        "g (float[N,64] x) => (float[N,48] y) {t = Transpose(w) y = MatMul(x, t)}", {"w": (48, 64)}, {"w": 0},
    ),
    "tied": (
        "g (int64[N] i) => (float[N,50] y) {h = Gather(w, i) t = Transpose(w) y = MatMul(h, t)}",
        {"w": (50, 32)}, {"w": 0},
    ),
    "a branch": (
        "g (bool p, float[N,64] x) => (float[N,48] y) {y = If<then_branch = a () => (float[N,48] t) "
        "{t = MatMul(x, w)}, else_branch = b () => (float[N,48] e) {e = MatMul(x, v)}>(p)}",
        {"w": (64, 48), "v": (64, 48)}, {"w": 1, "v": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ["cast", "dequantize"])
@pytest.mark.parametrize("name", LAYERS)
def test_scales_follow_the_channels(name, form):
    text, shapes, axes = LAYERS[name]
    model = with_weights(text, **shapes)
    before = model.SerializeToString(deterministic=True)
    report = QuantizationReport()
    result = quantize_weights(model, form=form, report=report)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(result, full_check=True)
    assert set(report.quantized) == set(axes) and not report.by_check
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    for weight, axis in axes.items():
        whole, scale = tensors[f"{weight}_quantized"], tensors[f"{weight}_scale"]
        exact = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == weight))
        others = tuple(n for n in range(exact.ndim) if n != axis)
        wide = np.abs(exact).max(axis=others, keepdims=True) / 127
        np.testing.assert_allclose(scale.reshape(wide.shape), wide, rtol=1e-6)
        assert whole.dtype == np.int8 and np.abs(whole).max() == 127
        # Rounding to the nearest: nowhere off by more than half a step.
        assert (np.abs(whole * wide - exact) <= wide * 0.501).all()
    for feeds in (random_feeds(model, 2), random_feeds(model, 5)):
        right, got = run(model, feeds)[0], run(result, feeds)[0]
        assert error(got, right) < 0.03 and report.error is not None
        if form == "cast":  # the runtime computes the weights at load, and nothing in 8 bits
            assert error(run(result, feeds, "ORT_ENABLE_ALL")[0], got) < 2e-6
    assert [v.SerializeToString() for v in (*result.graph.input, *result.graph.output)] == [
        v.SerializeToString() for v in (*model.graph.input, *model.graph.output)
    ]


@pytest.mark.parametrize("form", ["cast", "dequantize"])
@pytest.mark.parametrize("name", LAYERS)
def test_quantized_weights_stay_quantized(name, form):
    text, shapes, axes = LAYERS[name]
    small = quantize_weights(with_weights(text, **shapes), form=form, check=False)
    for preset in ("inference", "training", "web", "cuda"):
        again = optimize(small, preset, verify=True, strict=True)
        kinds = [tensor.data_type for tensor in again.graph.initializer]
        assert kinds.count(TensorProto.INT8) == len(axes)
        assert len(again.SerializeToString()) < len(small.SerializeToString()) + 64
    report = QuantizationReport()
    twice = quantize_weights(small, report=report)
    assert not report.quantized and operators(twice) == operators(small)


@pytest.mark.parametrize(
    ("bits", "opset", "options", "size", "most"),
    [
        (8, 17, {}, 0.27, 0.02),
        (8, 17, {"form": "dequantize"}, 0.27, 0.02),
        (8, 17, {"block": 32}, 0.30, 0.02),
        (8, 21, {"block": 16, "form": "dequantize"}, 0.33, 0.02),
        (4, 21, {}, 0.17, 0.2),
        (4, 21, {"form": "dequantize"}, 0.17, 0.2),
        (4, 21, {"block": 128}, 0.145, 0.25),
    ],
)
def test_size_and_error(bits, opset, options, size, most, tmp_path: Path):
    model = with_weights("g (float[N,256] x) => (float[N,256] y) {y = MatMul(x, w)}", opset, w=(256, 256))
    onnx.save(model, tmp_path / "m.onnx")
    report = QuantizationReport()
    write_model(
        quantize_weights(tmp_path / "m.onnx", bits, report=report, tolerance=0.3, **options), tmp_path / "s.onnx"
    )
    small = onnx.load(tmp_path / "s.onnx")
    assert (tmp_path / "s.onnx").stat().st_size < size * (tmp_path / "m.onnx").stat().st_size
    assert report.error is not None and report.error < most and report.bytes_after < size * report.bytes_before
    assert any(tensor.data_type == SMALL[bits == 4] for tensor in small.graph.initializer)
    feeds = random_feeds(model, 3)
    assert error(run(small, feeds)[0], run(model, feeds)[0]) < most
    if options.get("form") != "dequantize":
        assert error(run(small, feeds, "ORT_ENABLE_ALL")[0], run(small, feeds)[0]) < 2e-6


KEPT = {
    "a small one": ("g (float[N,8] x) => (float[N,8] y) {y = MatMul(x, w)}", {"w": (8, 8)}, {}),
    "an addend": (
        "g (float[N,2048] x) => (float[N,2048] y) {y = Add(x, w)}", {"w": 2048},
        {"w": "Add '' reads it, which is no layer"},
    ),
    "one that is also added": (
        "g (float[64,64] x) => (float[64,64] y) {a = MatMul(x, w) y = Add(a, w)}", {"w": (64, 64)}, {"w": "Add"},
    ),
    "an output": (
        "g (float[64,64] x) => (float[64,64] y, float[64,64] w) {y = MatMul(x, w)}", {"w": (64, 64)}, {"w": "output"},
    ),
    "unread": ("g (float[N] x) => (float[N] y) {y = Abs(x)}", {"w": (64, 64)}, {"w": "nothing reads"}),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_and_why(name):
    text, shapes, reasons = KEPT[name]
    report = QuantizationReport()
    result = quantize_weights(with_weights(text, **shapes), report=report)
    assert not report.quantized and set(report.kept) == set(reasons)
    assert all(word in report.kept[weight] for weight, word in reasons.items())
    assert not any(tensor.data_type in SMALL for tensor in result.graph.initializer)


def test_overridable_and_not_finite_weights_stay():
    model = with_weights("g (float[N,64] x, float[64,48] w) => (float[N,48] y) {y = MatMul(x, w)}", w=(64, 48))
    assert operators(quantize_weights(model)) == {"MatMul": 1}
    model = with_weights("g (float[N,64] x) => (float[N,48] y) {y = MatMul(x, w)}", w=(64, 48))
    array = np.ones((64, 48), np.float32)
    array[3, 3] = np.inf
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))
    report = QuantizationReport()
    quantize_weights(model, report=report)
    assert report.kept == {"w": "it is not finite"}


def test_channels_of_zeros_and_of_next_to_nothing():
    model = with_weights("g (float[N,64] x) => (float[N,48] y) {y = MatMul(x, w)}", w=(64, 48))
    array = np.ones((64, 48), np.float32)
    array[:, 3], array[:, 5] = 0, 1e-40
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))
    y = run(quantize_weights(model), {"x": np.ones((1, 64), np.float32)})[0][0]
    assert y[3] == y[5] == 0 and y[0] == pytest.approx(64, rel=1e-6)


def test_weights_in_constant_nodes_and_in_bodies(tmp_path: Path):
    rng = np.random.default_rng(0)
    tensor = numpy_helper.from_array(rng.standard_normal((64, 48)).astype(np.float32), "c")
    inner = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "inside"], ["t"])], "then", [],
        [onnx.helper.make_tensor_value_info("t", 1, ["N", 48])],
        [numpy_helper.from_array(rng.standard_normal((64, 48)).astype(np.float32), "inside")],
    )  # fmt: skip
    outer = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Constant", [], ["c"], value=tensor),
            onnx.helper.make_node("MatMul", ["x", "c"], ["e"]),
        ],
        "else", [], [onnx.helper.make_tensor_value_info("e", 1, ["N", 48])],
    )  # fmt: skip
    model = parse("g (bool p, float[N,64] x) => (float[N,48] y) {y = Identity(x)}")
    del model.graph.node[:]
    model.graph.node.append(onnx.helper.make_node("If", ["p"], ["y"], then_branch=inner, else_branch=outer))
    report = QuantizationReport()
    result = quantize_weights(model, report=report)
    assert sorted(report.quantized) == ["c", "inside"]
    assert len(result.SerializeToString()) < 0.35 * len(model.SerializeToString())
    for p in (True, False):
        feeds = {"p": np.array(p), "x": rng.standard_normal((3, 64)).astype(np.float32)}
        assert error(run(result, feeds)[0], run(model, feeds)[0]) < 0.02


def test_the_loss_check_finds_the_weight_at_fault():
    """One column of a weight holds numbers of sizes that no one scale serves."""
    model = with_weights(
        "g (float[N,64] x) => (float[N,64] y) "
        "{a = MatMul(x, w0) b = MatMul(a, w1) c = MatMul(b, w2) y = MatMul(c, w3)}",
        w0=(64, 64), w1=(64, 64), w2=(64, 64), w3=(64, 64),
    )  # fmt: skip
    bad = numpy_helper.to_array(model.graph.initializer[2]).copy()
    bad[0], bad[1:] = 1e4, bad[1:] * 0.9
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(bad, "w2"))
    first = numpy_helper.to_array(model.graph.initializer[1]).copy()
    first[:, 0] = 0  # so that the large numbers meet zeros
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(first, "w1"))
    report = QuantizationReport()
    quantize_weights(model, report=report)
    assert report.by_check == ["w2"] and report.quantized == ["w0", "w1", "w3"]
    assert report.error is not None and report.error < 0.05 and "loss check" in report.kept["w2"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [(["w0"], {"w0"}), (["MatMul"], {"w0", "w1"}), (["b"], {"w1"}), (["w*"], {"w0", "w1"}), ([], set())],
)
def test_the_keep_list(keep, left):
    model = with_weights(
        "g (float[N,64] x) => (float[N,64] b) {a = MatMul(x, w0) b = MatMul(a, w1)}", w0=(64, 64), w1=(64, 64)
    )
    report = QuantizationReport()
    quantize_weights(model, keep=keep, report=report)
    assert set(report.kept) == left


REFUSED = {
    "bits": ({"bits": 3}, "8 or 4 bits, not 3"),
    "form": ({"form": "dequantise"}, "Did you mean 'dequantize'"),
    "opset of 4 bits, advice": ({"bits": 4}, r"change_opset to 21 first \(--opset 21\)"),
    "opset of 4 bits": ({"bits": 4}, "4-bit weights need opset 21, and the model is at 17"),
    "opset of blocks": ({"block": 32, "form": "dequantize"}, "blocks in DequantizeLinear need opset 21"),
    "block": ({"block": 1}, "at least 2"),
    "keep": ({"keep": ["MatMull"]}, "Did you mean 'MatMul'"),
    "text": ({"keep": "MatMul"}, "keep is a list"),
    "tolerance": ({"tolerance": -1.0}, "above 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    options, words = REFUSED[name]
    model = with_weights("g (float[N,64] x) => (float[N,48] y) {y = MatMul(x, w)}", w=(64, 48))
    with pytest.raises(PassError, match=words):
        quantize_weights(model, **options)


def test_half_precision_weights_and_their_kind_comes_back():
    model = with_weights("g (float16[N,64] x) => (float16[N,48] y) {y = MatMul(x, w)}", w=(64, 48))
    half = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(half, "w"))
    result = quantize_weights(model)
    assert isinstance(result, onnx.ModelProto)
    feeds = {"x": np.ones((2, 64), np.float16)}
    assert error(run(result, feeds)[0].astype(float), run(model, feeds)[0].astype(float)) < 0.02
    loaded = read_model(model)
    assert quantize_weights(loaded).graph is not loaded.graph
