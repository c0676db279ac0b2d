"""Equal nodes become one, except where they only look equal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

GRAPHS = {
    "same_twice": (
        "g (float[N] x) => (float[N] y) {a = Exp(x) b = Exp(x) y = Add(a, b)}",
        {"Exp": 1, "Add": 1},
    ),
    "swapped": (
        "g (float[N] x, float[N] z) => (float[N] y) {a = Mul(x, z) b = Mul(z, x) y = Sub(a, b)}",
        {"Mul": 1, "Sub": 1},
    ),
    "not_commutative": (
        "g (float[N] x, float[N] z) => (float[N] y) {a = Sub(x, z) b = Sub(z, x) y = Mul(a, b)}",
        {"Sub": 2, "Mul": 1},
    ),
    "chains": (
        "g (float[N] x) => (float[N] y) {a = Exp(x) b = Exp(x) c = Neg(a) d = Neg(b) y = Mul(c, d)}",
        {"Exp": 1, "Neg": 1, "Mul": 1},
    ),
    "attributes_differ": (
        "g (float[N] x) => (float[N] y) {a = LeakyRelu<alpha=0.1>(x) b = LeakyRelu<alpha=0.2>(x) y = Add(a, b)}",
        {"LeakyRelu": 2, "Add": 1},
    ),
    "same_length_asked_twice": (
        "g (float[N,3] x) => (float[N,3] y, int64 a, int64 b) <int64 zero = {0}, int64 two = {2}> "
        "{y = Exp(x) s = Shape(x) t = Shape(y) n = Gather(s, zero) m = Gather(t, zero) a = Neg(n) p = Add(m, "
        "m) b = Mul(two, n)}",
        {"Exp": 1, "Shape": 1, "Gather": 1, "Neg": 1, "Add": 1},
    ),
    "other_length": (
        "g (float[N,3] x, float[M,3] z) => (int64 a, int64 b) <int64 zero = {0}> "
        "{s = Shape(x) t = Shape(z) n = Gather(s, zero) m = Gather(t, zero) a = Neg(n) b = Abs(m)}",
        {"Shape": 2, "Gather": 2, "Neg": 1},
    ),
    "both_are_outputs": ("g (float[N] x) => (float[N] y, float[N] z) {y = Exp(x) z = Exp(x)}", {"Exp": 2}),
    "one_is_an_output": (
        "g (float[N] x) => (float[N] y, float[N] z) {y = Exp(x) a = Exp(x) z = Neg(a)}",
        {"Exp": 1, "Neg": 1},
    ),
    "second_is_an_output": (
        "g (float[N] x) => (float[N] y, float[N] z) {a = Exp(x) z = Neg(a) y = Exp(x)}",
        {"Exp": 1, "Neg": 1},
    ),
    "random_twice": (
        "g (float[N] x) => (float[N] y) {a = RandomNormalLike(x) b = RandomNormalLike(x) c = Sub(a, b) z = "
        "Sub(c, c) y = Add(x, z)}",
        {"RandomNormalLike": 2, "Sub": 2, "Add": 1},
    ),
    "dropout_twice": (
        "g (float[N] x) => (float[N] y) <float r = {0.5}, bool t = {1}> {a = Dropout(x, r, t) b = Dropout(x, r, t) "
        "c = Sub(a, b) d = Abs(c) z = Sub(d, d) y = Add(x, z)}",
        {"Dropout": 2, "Sub": 2, "Abs": 1, "Add": 1},
    ),
    "zero_is_not_minus_zero": (
        "g (float[N] x) => (float[N] y) {a = Constant<value = float {0.0}>() b = Constant<value = float {-0.0}>() "
        "c = Mul(x, a) d = Mul(x, b) e = Reciprocal(c) f = Reciprocal(d) y = Sub(e, f)}",
        {"Mul": 2, "Reciprocal": 2, "Sub": 1},
    ),
    "one_is_not_one": (
        "g (float[N] x) => (double[N] y) {a = Constant<value = float {3.0}>() b = Constant<value = double {3.0}>() "
        "c = Mul(x, a) d = Cast<to=11>(c) y = Mul(d, b)}",
        {"Mul": 2, "Cast": 1},
    ),
    "loop_body_sees_outer": (
        "g (float[3] x) => (float[3] y) <int64 n = {20}, bool t = {1}> {e = Exp(x) "
        "y = Loop(n, t, e) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w) {d = Identity(c) f "
        "= Exp(x) w = Mul(v, f)}>}",
        {"Exp": 1, "Loop": 1, "Identity": 1, "Mul": 1},
    ),
}


@pytest.mark.parametrize(("graph", "left"), GRAPHS.values(), ids=GRAPHS.keys())
def test_merged_or_kept(prove, graph, left):
    with np.errstate(all="ignore"):
        prove(graph, expected=left, skip=["unroll_loop"])  # which would leave no body to look into


@pytest.mark.parametrize("preset", ["inference", "training"])
def test_equal_weights_stay_two(prove, preset):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y) {a = Add(x, w) b = Mul(a, '
        "v) y = Add(b, u)}"
    )
    for name in ("w", "v", "u"):
        model.graph.initializer.append(numpy_helper.from_array(np.full(2, 3, np.float32), name))
    result = prove(model, preset=preset)
    assert [tensor.name for tensor in result.graph.initializer] == ["w", "v", "u"]


def test_equal_shapes_become_one(prove):
    graph = (
        "g (float[N,4] x) => (float[M,2] y, float[K,2] z) <int64[2] s = {-1,2}, int64[2] t = {-1,2}> "
        "{a = Exp(x) y = Reshape(a, s) b = Neg(x) z = Reshape(b, t)}"
    )
    assert len(prove(graph).graph.initializer) == 1
