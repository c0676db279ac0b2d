"""What follows a convolution or matrix product goes into its weights, within rounding, and only where it may."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

rng = np.random.default_rng(0)


def model(graph: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')
    for name, array in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    return made


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def norm(channels: int) -> dict[str, np.ndarray]:
    scale = rng.uniform(0.5, 2, channels)
    scale[0] = -scale[0]
    return {"s": scale, "o": normal(channels), "m": normal(channels), "v": rng.uniform(0.5, 2, channels)}


CONV = "g (float[N,2,5,5] x) => (float[N,C,H,W] y)"
BATCH = "y = BatchNormalization<epsilon=0.01>(a, s, o, m, v)"
ROWS = "g (float[N,4] x) => (float[N,3] y)"
FOLDED = {
    "conv": (f"{CONV} {{a = Conv(x, w) {BATCH}}}", {"w": normal(3, 2, 3, 3), **norm(3)}, {"Conv": 1}),
    "conv_with_bias": (
        f"{CONV} {{a = Conv<pads=[1,1,1,1]>(x, w, b) {BATCH}}}",
        {"w": normal(3, 2, 3, 3), "b": normal(3), **norm(3)},
        {"Conv": 1},
    ),
    "grouped_conv": (f"{CONV} {{a = Conv<group=2>(x, w) {BATCH}}}", {"w": normal(4, 1, 3, 3), **norm(4)}, {"Conv": 1}),
    "transposed": (
        f"{CONV} {{a = ConvTranspose(x, w) {BATCH}}}",
        {"w": normal(2, 3, 3, 3), **norm(3)},
        {"ConvTranspose": 1},
    ),
    "grouped_transposed": (
        f"{CONV} {{a = ConvTranspose<group=2>(x, w) {BATCH}}}",
        {"w": normal(2, 3, 3, 3), **norm(6)},
        {"ConvTranspose": 1},
    ),
    "gemm": (
        f"{ROWS} {{a = Gemm<transB=1>(x, w, b) {BATCH}}}",
        {"w": normal(3, 4), "b": normal(3), **norm(3)},
        {"Gemm": 1},
    ),
    "gemm_scaled": (
        f"{ROWS} {{a = Gemm<alpha=0.5>(x, w, b) {BATCH}}}",
        {"w": normal(4, 3), "b": normal(1, 3), **norm(3)},
        {"Gemm": 1},
    ),
    "matmul": (f"{ROWS} {{a = MatMul(x, w) {BATCH}}}", {"w": normal(4, 3), **norm(3)}, {"Gemm": 1}),
    "factor_after_conv": (
        f"{CONV} {{a = Conv(x, w, b) c = Mul(a, f) y = Add(c, t)}}",
        {"w": normal(3, 2, 3, 3), "b": normal(3), "f": normal(3, 1, 1), "t": normal(1, 3, 1, 1)},
        {"Conv": 1},
    ),
    "number_after_conv": (
        f"{CONV} {{a = Conv(x, w) c = Div(a, f) y = Sub(c, t)}}",
        {"w": normal(3, 2, 3, 3), "f": np.float32(3), "t": np.float32(2)},
        {"Conv": 1},
    ),
    "factor_after_matmul": (
        "g (float[N,M,4] x) => (float[N,M,3] y) {a = MatMul(x, w) y = Mul(f, a)}",
        {"w": normal(4, 3), "f": normal(3)},
        {"MatMul": 1},
    ),
    "sum_after_matmul": (
        f"{ROWS} {{a = MatMul(x, w) y = Add(b, a)}}",
        {"w": normal(4, 3), "b": normal(3)},
        {"Gemm": 1},
    ),
    "transposed_weight": (
        f"{ROWS} {{t = Transpose(w) a = MatMul(x, t) c = Identity(t) y = Add(a, b)}}",
        {"w": normal(3, 4), "b": normal(1, 3)},
        {"Gemm": 1},
    ),
    "transposed_input": (
        "g (float[4,N] x, float[4,M] z) => (float[N,M] y) {t = Transpose(x) y = MatMul(t, z)}",
        {},
        {"Gemm": 1},
    ),
}
KEPT = {
    "conv_read_twice": (
        f"{CONV} {{a = Conv(x, w) b = {BATCH[4:]} y = Mul(a, b)}}",
        {"w": normal(3, 2, 3, 3), **norm(3)},
        {"Conv": 1, "BatchNormalization": 1, "Mul": 1},
    ),
    "factor_over_width": (
        f"{CONV} {{a = Conv(x, w) y = Mul(a, f)}}",
        {"w": normal(3, 2, 3, 3), "f": normal(3)},
        {"Conv": 1, "Mul": 1},
    ),
    "factor_that_widens": (
        "g (float[1,2,3,3] x) => (float[N,C,H,W] y) {a = Conv(x, w) y = Mul(a, f)}",
        {"w": normal(3, 2, 3, 3), "f": normal(2, 1, 1, 1)},
        {"Conv": 1, "Mul": 1},
    ),
    "sum_that_widens": (
        "g (float[1,4] x) => (float[M,3] y) {a = MatMul(x, w) y = Add(a, b)}",
        {"w": normal(4, 3), "b": normal(5, 3)},
        {"MatMul": 1, "Add": 1},
    ),
    "sum_of_rank_three": (
        "g (float[N,4] x) => (float[1,N,3] y) {a = MatMul(x, w) y = Add(a, b)}",
        {"w": normal(4, 3), "b": normal(1, 1, 3)},
        {"MatMul": 1, "Add": 1},
    ),
    "batched_product": (
        "g (float[N,2,4] x) => (float[N,2,3] y) {a = MatMul(x, w) y = Add(a, b)}",
        {"w": normal(4, 3), "b": normal(3)},
        {"MatMul": 1, "Add": 1},
    ),
    "integer_product": (
        "g (int32[N,4] x, int32[4,3] z) => (int32[N,3] y) {a = MatMul(x, z) y = Add(a, a)}",
        {},
        {"MatMul": 1, "Add": 1},
    ),
}


@pytest.mark.parametrize(("graph", "weights", "left"), FOLDED.values(), ids=FOLDED.keys())
def test_folded(prove, graph, weights, left):
    prove(model(graph, **weights), tolerance=2e-5, expected=left, grow=200, verify=True, strict=True)


@pytest.mark.parametrize(("graph", "weights", "left"), KEPT.values(), ids=KEPT.keys())
def test_kept(prove, graph, weights, left):
    prove(model(graph, **weights), expected=left, verify=True, strict=True)


def test_shared_weight_serves_both(prove):
    graph = (
        "g (float[N,2,5,5] x, float[N,2,5,5] z) => (float[N,3,3,3] y, float[N,3,3,3] u) "
        "{a = Conv(x, w) y = BatchNormalization(a, s, o, m, v) b = Conv(z, w) u = BatchNormalization(b, o, s, m, v)}"
    )
    prove(model(graph, w=normal(3, 2, 3, 3), **norm(3)), tolerance=2e-5)


@pytest.mark.parametrize("name", ["conv", "gemm", "factor_after_conv"])
def test_training_keeps_weights(prove, name):
    graph, weights, _ = FOLDED[name]
    given = model(graph, **weights)
    result = prove(given, preset="training")
    assert [(t.name, t.raw_data) for t in result.graph.initializer] == [
        (t.name, t.raw_data) for t in given.graph.initializer
    ]


@pytest.mark.parametrize("opset", [7, 9, 14])
def test_older_batch_normalization(prove, opset):
    graph, weights, left = FOLDED["conv"]
    prove(model(graph, opset, **weights), tolerance=2e-5, expected=left, grow=200)


def test_numbers_that_do_not_fold(prove):
    graph, weights, _ = FOLDED["conv"]
    for name, number in (("v", -1.0), ("s", np.nan), ("m", np.inf)):
        odd = {**weights, name: np.array([number, 1, 1])}
        prove(model(graph, **odd), expected={"Conv": 1, "BatchNormalization": 1})


def test_a_bias_leaves_a_shared_weight_alone(prove):
    graph = (
        "g (float[N,2,5,5] x) => (float[N,3,3,3] y, float[N,3,3,3] z) "
        "{a = Conv(x, w) y = Add(a, b) e = Exp(x) c = Conv(e, w) z = Sub(c, b)}"
    )
    result = prove(
        model(graph, w=normal(3, 2, 3, 3), b=normal(3, 1, 1)), tolerance=1e-5, expected={"Conv": 2, "Exp": 1}, grow=80
    )
    assert [tensor.name for tensor in result.graph.initializer if len(tensor.dims) == 4] == ["w"]
