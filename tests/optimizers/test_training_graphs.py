"""What gradients leave behind is cleared away, and what training needs is not touched."""

from __future__ import annotations

import numpy as np
import pytest

SUM = (
    "<int64 one = {1}, int64[1] flat = {-1}> {p = Abs(b) s = Shape(p) e = Equal(s, one) n = NonZero(e) "
    "k = Reshape(n, flat) y = ReduceSum<keepdims=1, noop_with_empty_axes=1>(g, k)}"
)
SUMS = {
    "same_symbolic_shape": (f"g (float[N,3] g, float[N,3] b) => (float[A,B] y) {SUM}", {}),
    "a_row": (f"g (float[N,3] g, float[1,3] b) => (float[A,B] y) {SUM}", {"ReduceSum": 1}),
    "names_that_may_differ": (
        f"g (float[N,3] g, float[M,3] b) => (float[A,B] y) {SUM}",
        {"ReduceSum": 1, "Abs": 1, "Shape": 1, "Equal": 1, "NonZero": 1, "Reshape": 1},
    ),
    "ranks_that_differ": (
        f"g (float[N,3] g, float[3] b) => (float[A,B] y) {SUM}",
        {},  # the axes are worked out beforehand: there are none
    ),
}


@pytest.mark.parametrize(("graph", "left"), SUMS.values(), ids=SUMS.keys())
def test_sums_to_a_shape(prove, graph, left):
    rng = np.random.default_rng(0)
    rows = 1 if "float[1,3] b" in graph or "M,3" in graph else 4
    b = rng.standard_normal((3,) if "float[3] b" in graph else (rows, 3)).astype(np.float32)
    g = rng.standard_normal((4, 3)).astype(np.float32)
    if not left:
        # The last sum had the output's name; its input cannot take it, so the sum stays, over no axis.
        graph = graph.replace("y = ReduceSum", "r = ReduceSum").replace("(g, k)}", "(g, k) y = Neg(r)}")
        left = {"Neg": 1}
    prove(graph, {"g": g, "b": b}, preset="training", expected=left, tolerance=1e-6, grow=40)


TRAINING = {
    "two_dropouts": (
        "g (float[N,3] x) => (float[N,3] y) <float r = {0.5}, bool t = {1}> {a = Dropout(x, r, t) b = Dropout(x, r, t) "
        "c = Sub(a, b) d = Sub(c, c) y = Add(x, d)}",
        {"Dropout": 2, "Sub": 2, "Add": 1},
    ),
    "state_outputs": (
        "g (float[3] w, float[3] m, float[3] g) => (float[3] w_next, float[3] m_next, float[3] same) <float r = {0.1}> "
        "{s = Mul(g, r) m_next = Add(m, g) w_next = Sub(w, s) same = Identity(w)}",
        {"Mul": 1, "Add": 1, "Sub": 1, "Identity": 1},
    ),
    "forward_shared_with_backward": (
        "g (float[N,3] x, float[N,3] g) => (float[N,3] y, float[N,3] d) <float one = {1.0}> "
        "{y = Sigmoid(x) s = Sigmoid(x) n = Sub(one, s) p = Mul(s, n) q = Sum(p) u = Mul(q, one) d = Mul(g, u)}",
        {"Sigmoid": 1, "Sub": 1, "Mul": 2},
    ),
    "double_transposes": (
        "g (float[N,3] g, float[4,3] w) => (float[N,4] y) {a = Transpose(w) b = Transpose(a) c = Transpose(b) "
        "y = MatMul(g, c)}",
        {"Gemm": 1},
    ),
    "seed_of_ones": (
        "g (float[N,3] g) => (float[N,3] y) <float one = {1.0}> {s = Shape(g) o = Expand(one, s) y = Mul(o, g)}",
        {"Mul": 1},
    ),
    "batch_normalization_in_training": (
        "g (float[N,3] x) => (float[N,3] y, float[3] mean, float[3] var) <float[3] s = {1,2,3}, float[3] o = {0,0,1}, "
        "float[3] m = {0,0,0}, float[3] v = {1,1,1}> {y, mean, var = BatchNormalization<training_mode=1>(x, s, "
        "o, m, v)}",
        {"BatchNormalization": 1},
    ),
}


@pytest.mark.parametrize(("graph", "left"), TRAINING.values(), ids=TRAINING.keys())
def test_training_preset(prove, graph, left):
    prove(graph, preset="training", expected=left, tolerance=1e-6, verify=True, strict=True)
