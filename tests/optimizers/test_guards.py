"""The guard around a Squeeze: dropped only where the model would fail without the Squeeze."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimizers.conftest import operators, run


def _numbers(count):
    return ", ".join(f"{(n * 7 % 11 - 5) / 8}" for n in range(count))


GUARD = (
    "s = Shape(x) d = Gather(s, {at}) p = Equal(d, one) v = If<"
    "then_branch = a () => (float[N,3] t) {{t = Squeeze(x, axis)}}, "
    "else_branch = b () => (float[N,3,K] e) {{e = Identity(x)}}>(p) "
)
HEAD = (
    "g (float[N,3,K] x) => (float[M,L,H] y) <int64[1] axis = {-1}, int64 two = {2}, int64 one = {1}, int64 zero = {0}, "
    "int64[1] front = {0}, float[1,8,3] w = {" + _numbers(24) + "}, float[1,8,2] r = {" + _numbers(16) + "}, "
    "float[3,1] k = {1,2,3}> {"
)
LAST = HEAD + GUARD.format(at="two")
# As PyTorch's exporter writes an LSTM whose input may be batched or not.
BATCHED = (
    "vs = Shape(v) rank = Size(vs) flat = Equal(rank, two) q = Not(flat) u = If<"
    "then_branch = c () => (float[1,N,3] ut) {ut = Unsqueeze(v, front)}, "
    "else_branch = d () => (float[N,3] ue) {ue = Identity(v)}>(q) m = Unsqueeze(u, front) "
)

# what follows the guard, and the Ifs that are left
CASES = {
    "an LSTM takes three dims": (LAST + "m = Unsqueeze(v, front) " + "j, y = LSTM<hidden_size = 2>(m, w, r)}", 0),
    "an LSTM behind a guard of its own": (LAST + BATCHED + "j, y = LSTM<hidden_size = 2>(m, w, r)}", 0),
    "a Transpose of two dims": (LAST + "h = Transpose<perm = [1,0]>(v) y = Unsqueeze(h, front)}", 0),
    "a Concat with a matrix": (LAST + "j = Concat<axis = 0>(v, v, gm) y = Unsqueeze(j, front)}", 0),
    "what follows takes either rank": (LAST + "y = Relu(v)}", 1),
    "a product takes either rank": (LAST + "h = MatMul(v, k) y = Unsqueeze(h, front)}", 1),
    "the LSTM is dead": (LAST + "m = Unsqueeze(v, front) j, jh = LSTM<hidden_size = 2>(m, w, r) y = Relu(v)}", 1),
    "the length of another axis is asked": (
        HEAD + GUARD.format(at="zero") + "m = Unsqueeze(v, front) j, y = LSTM<hidden_size = 2>(m, w, r)}", 1
    ),
    "the LSTM runs in a branch that need not be taken": (
        LAST.replace("(float[N,3,K] x)", "(float[N,3,K] x, bool c)")
        + "y = If<then_branch = c1 () => (float[A,B,C] t1) {m = Unsqueeze(v, front) "
        "j, t1 = LSTM<hidden_size = 2>(m, w, r)}, else_branch = c2 () => (float[A,B,C] t2) {t2 = Relu(v)}>(c)}", 2,
    ),
}  # fmt: skip
CASES["a Concat with a matrix"] = (
    CASES["a Concat with a matrix"][0].replace("float[3,1] k", "float[1,3] gm = {7,8,9}, float[3,1] k"), 0
)  # fmt: skip


def feeds(text, length):
    batch = 1 if "Gather(s, zero)" in text else 4
    x = np.random.default_rng(length).standard_normal((batch, 3, length)).astype(np.float32)
    return {"x": x, "c": np.array(True)} if "bool c" in text else {"x": x}


@pytest.mark.parametrize(("text", "left"), CASES.values(), ids=CASES.keys())
def test_guards(prove, text, left):
    made = prove(text, feeds(text, 1), tolerance=1e-6, grow=300)
    assert operators(made)["If"] == left


@pytest.mark.parametrize("name", [name for name, (_, left) in CASES.items() if not left])
def test_what_failed_fails_still(prove, name):
    text = CASES[name][0]
    made = prove(text, feeds(text, 1), tolerance=1e-6, grow=300)
    with pytest.raises(Exception, match="Squeeze"):
        run(made, feeds(text, 2))


def test_other_lengths_go_on_as_they_were(prove):
    text = CASES["what follows takes either rank"][0]
    prove(text, feeds(text, 1), feeds(text, 2), grow=300)
