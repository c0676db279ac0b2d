"""A factor goes into weights past moves of data, where nothing else sees the difference."""

from __future__ import annotations

import pytest

from tests.optimizers.conftest import operators

CONV = (
    "<float[2,3,1,1] w = {1,2,3,4,5,6}, float[2] b = {0.5,-1}, float s = {0.3}, float z = {0}, float[1,1,1,1] t = {3}, "
)
CONV += "float[1,1,1,1,1] wide = {2}, float[2] pair = {2,3}, int64[3] flat = {0,2,-1}>"
G = "g (float[N,3,4,4] x) => (float[A,B,C,D] y) " + CONV + " {c = Conv(x, w, b) "
H = "g (float[N,3,4,4] x) => (float[A,B,C] y) " + CONV + " {c = Conv(x, w, b) "
M = "g (float[N,3] x) => (float[A,B] y) <float[3,2] w = {1,2,3,4,5,6}, float s = {0.3}> {c = MatMul(x, w) "

# name: (graph, operators left)
CASES = {
    "past a Transpose": (G + "m = Transpose<perm = [0,2,3,1]>(c) y = Mul(m, s)}", {"Conv": 1, "Transpose": 1}),
    "past two moves": (H + "m = Reshape(c, flat) n = Transpose<perm = [0,2,1]>(m) y = Div(n, s)}",
                       {"Conv": 1, "Reshape": 1, "Transpose": 1}),
    "of as many dims": (G + "m = Transpose<perm = [0,2,3,1]>(c) y = Mul(t, m)}", {"Conv": 1, "Transpose": 1}),
    "past a product": (M + "m = Transpose<perm = [1,0]>(c) y = Mul(m, s)}", {"MatMul": 1, "Transpose": 1}),
    "zero": (G + "m = Transpose<perm = [0,2,3,1]>(c) y = Mul(m, z)}", {"Conv": 1, "Transpose": 1, "Mul": 1}),
    "one a channel": (
        G + "m = Transpose<perm = [0,2,3,1]>(c) y = Mul(m, pair)}", {"Conv": 1, "Transpose": 1, "Mul": 1}
    ),
    "the moved value is read": (G + "m = Transpose<perm = [0,2,3,1]>(c) n = Mul(m, s) y = Sub(n, m)}",
                                {"Conv": 1, "Transpose": 1, "Mul": 1, "Sub": 1}),
    "the weights are used twice": (G + "d = Conv(x, w) m = Transpose<perm = [0,2,3,1]>(c) n = Mul(m, s) "
                                   "e = Transpose<perm = [0,2,3,1]>(d) o = Sin(e) y = Sub(n, o)}", None),
    "an activation between": (G + "a = Tanh(c) m = Transpose<perm = [0,2,3,1]>(a) y = Mul(m, s)}",
                              {"Conv": 1, "Tanh": 1, "Transpose": 1, "Mul": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "left"), CASES.values(), ids=CASES.keys())
def test_scales(prove, text, left):
    made = prove(text, tolerance=1e-5, grow=120)
    if left is None:
        assert operators(made)["Mul"]
    else:
        assert dict(operators(made)) == left


def test_a_factor_that_widens_stays(prove):
    text = H.replace("float[A,B,C] y", "float[A,B,C,D,E] y") + "m = Transpose<perm = [0,2,3,1]>(c) y = Mul(m, wide)}"
    assert operators(prove(text, tolerance=1e-5))["Mul"] == 1


def test_training_keeps_the_weights(prove):
    text, _ = CASES["past a Transpose"]
    assert operators(prove(text, preset="training", tolerance=1e-5))["Mul"] == 1
