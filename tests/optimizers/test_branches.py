"""What an If's condition settles within its branches, as the gradient of an If needs it."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.optimizers import add_gradients, add_loss
from tests.optimizers.conftest import parse

X = np.array([1.5, -2, 0.5], np.float32)
FEEDS = [{"x": X, "p": np.array(p)} for p in (True, False)]

CASES = {
    "the condition itself": (
        "g (float[3] x, bool p) => (float[3] y) {y = If<"
        "then_branch = a () => (float[3] t) {t = If<then_branch = aa () => (float[3] u) {u = Abs(x)}, "
        "else_branch = ab () => (float[3] v) {v = Neg(x)}>(p)}, "
        "else_branch = b () => (float[3] e) {n = Not(p) c = Cast<to = 1>(n) e = Mul(x, c)}>(p)}",
        1,
    ),
    "what another If of that condition gives out": (
        "g (float[3] x, bool p) => (float[3] y, float[3] z) {y, s = If<"
        "then_branch = a () => (float[3] t, bool ts) {t = Abs(x) ts = Constant<value = bool {1}>()}, "
        "else_branch = b () => (float[3] e, bool es) {e = Neg(x) es = Constant<value = bool {0}>()}>(p) "
        "z = If<then_branch = c () => (float[3] h) {h = If<then_branch = ca () => (float[3] u) {u = Sqrt(y)}, "
        "else_branch = cb () => (float[3] v) {v = Neg(x)}>(s)}, "
        "else_branch = d () => (float[3] f) {f = If<then_branch = da () => (float[3] k) {k = Neg(x)}, "
        "else_branch = db () => (float[3] l) {l = Exp(y)}>(s)}>(p)}",
        2,
    ),
    "another condition settles nothing": (
        "g (float[3] x, bool p) => (float[3] y, float[3] z) {q = Not(p) y = If<"
        "then_branch = a () => (float[3] t) {t = Abs(x)}, else_branch = b () => (float[3] e) {e = Neg(x)}>(p) "
        "z = If<then_branch = c () => (float[3] h) {h = If<then_branch = ca () => (float[3] u) {u = Sqrt(y)}, "
        "else_branch = cb () => (float[3] v) {v = Neg(x)}>(p)}, "
        "else_branch = d () => (float[3] f) {f = Exp(y)}>(q)}",
        3,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "left"), CASES.values(), ids=CASES.keys())
def test_branches(prove, text, left):
    made = prove(text, *FEEDS, grow=200)
    assert str(made).count('op_type: "If"') == left


def test_the_gradient_of_a_branch_that_cannot_run_goes_with_it(prove):
    """The saved values of an inlined branch have no elements where it is not taken: the runtime would refuse them."""
    text = (
        "g (float[N,1,3] x, bool p) => (float[N,3] y) <float[3] w = {1, 2, 3}, int64[1] one = {1}> {y = If<"
        "then_branch = a () => (float[N,3] t) {c = Constant<value = bool {1}>() m = Mul(x, w) "
        "t = If<then_branch = aa () => (float[N,3] u) {r = Tanh(m) u = Squeeze(r, one)}, "
        "else_branch = ab () => (float[N,3] v) {k = Sigmoid(m) l = Mul(k, m) v = Squeeze(l, one)}>(c)}, "
        "else_branch = b () => (float[N,3] e) {o = Mul(x, w) e = Squeeze(o, one)}>(p)}"
    )
    model = add_gradients(add_loss(parse(text)), "loss", ["w", "x"])
    feeds = [{"x": np.random.default_rng(0).standard_normal((2, 1, 3)).astype(np.float32), "p": p["p"]} for p in FEEDS]
    made = prove(model, *feeds, preset="training", tolerance=1e-6, grow=4000)
    assert str(made).count('op_type: "If"') == 2
