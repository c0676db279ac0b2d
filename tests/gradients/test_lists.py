"""Sequences whose length only the run knows, and sequences that a Loop carries: against differences, and eagerly."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.bodies import make_loop
from graphkit.errors import GradientError
from graphkit.testing import check_gradients
from tests.gradients.models import check_model, gradient_model, model_of

rng = np.random.default_rng(0)
X, W = rng.normal(size=(4, 3)), rng.normal(size=3)
INPUTS = "double[n, 3] x, double[3] w, int64 i, int64 j"


def whole(body: str, loss: str = "loss = ReduceSumSquare<keepdims = 0>(y)") -> str:
    return f"g ({INPUTS}) => (double loss) {{ {body} {loss} }}"


# Every element times w, so that each gradient differs from the others.
ROWS = "xw = Mul(x, w) s = SplitToSequence<axis = 0, keepdims = 0>(xw)"
TABLE = "xw = Mul(x, w) s = SplitToSequence<axis = 0>(xw)"
APPEND = """empty = SequenceEmpty<dtype = 11>()
  s = Loop<body = b (int64 k, bool ci, seq(double[3]) si) => (bool co, seq(double[3]) so) {
    co = Identity(ci) e = Gather<axis = 0>(x, k) p = Mul(e, w) t = Sin(p) so = SequenceInsert(si, t)
  }>(four, "", empty)"""
FOUR = "four = Constant<value = int64 {4}>() zero = Constant<value = int64 {0}>() last = Constant<value = int64 {-1}>()"
ADDED = "c = ConcatFromSequence<axis = 0>(s) y = Mul(c, c)"
STACKED = "c = ConcatFromSequence<axis = 0, new_axis = 1>(s) y = Mul(c, c)"

MODELS = {
    "read one": f"{ROWS} y = SequenceAt(s, i)",
    "read two": f"{ROWS} a = SequenceAt(s, i) b = SequenceAt(s, j) y = Mul(a, b)",
    "read and concat": f"{TABLE} a = SequenceAt(s, i) c = ConcatFromSequence<axis = 0>(s) y = Mul(a, c)",
    "stack": f"{ROWS} {STACKED}",
    "stack last": f"{ROWS} c = ConcatFromSequence<axis = -1, new_axis = 1>(s) y = Mul(c, c)",
    "uneven": f"xw = Mul(x, w) size = Constant<value = int64 {{3}}>() s = SplitToSequence<axis = 0>(xw, size) {ADDED}",
    "insert": f"{TABLE} a = SequenceAt(s, i) q = Mul(a, a) t = SequenceInsert(s, q, j) r = SequenceAt(t, i) "
              "c = ConcatFromSequence<axis = 0>(t) y = Mul(c, r)",
    "insert behind": f"{TABLE} a = SequenceAt(s, i) q = Mul(a, a) t = SequenceInsert(s, q) "
                     "c = ConcatFromSequence<axis = 0>(t) y = Mul(c, c)",
    "erase": f"{TABLE} t = SequenceErase(s, i) c = ConcatFromSequence<axis = 0>(t) y = Mul(c, c)",
    "erase the last": f"{TABLE} t = SequenceErase(s) u = SequenceErase(t, j) c = ConcatFromSequence<axis = 0>(u) "
                      "y = Mul(c, c)",
    "map": f"""{ROWS} m = SequenceMap<body = b (double[3] e, double[3] v) => (double[3] o) {{
        p = Mul(e, v) o = Sin(p) }}>(s, w) c = ConcatFromSequence<axis = 0, new_axis = 1>(m) y = Mul(c, c)""",
    "map two, which captures": f"""{ROWS} m, k = SequenceMap<body = b (double[3] e, double[3] f)
        => (double[3] o, double[3] q) {{ p = Mul(e, w) o = Add(p, f) q = Exp(f) }}>(s, s)
        c = ConcatFromSequence<axis = 0, new_axis = 1>(m) d = SequenceAt(k, i) y = Mul(c, d)""",
    "append, read": f"{FOUR} {APPEND} a = SequenceAt(s, zero) b = SequenceAt(s, i) y = Mul(a, b)",
    "append, concat": f"{FOUR} {APPEND} {ADDED}",
    "append, stack": f"{FOUR} {APPEND} {STACKED}",
    "read what was appended": f"""{FOUR} first = SequenceConstruct(w)
        s = Loop<body = b (int64 k, bool ci, seq(double[3]) si) => (bool co, seq(double[3]) so) {{
          co = Identity(ci) a = SequenceAt(si, last) b = SequenceAt(si, zero) p = Mul(a, b) t = Sin(p)
          so = SequenceInsert(si, t)
        }}>(four, "", first)
        {STACKED} """,
    "read a captured one": f"""{FOUR} {ROWS}
        z = Loop<body = b (int64 k, bool ci, double[3] h) => (bool co, double[3] ho) {{
          co = Identity(ci) e = SequenceAt(s, k) p = Mul(h, e) ho = Tanh(p)
        }}>(four, "", w)
        y = Mul(z, z)""",
    "carried as it is": f"""{FOUR} {ROWS}
        s2, z = Loop<body = b (int64 k, bool ci, seq(double[3]) si, double[3] h)
            => (bool co, seq(double[3]) so, double[3] ho) {{
          co = Identity(ci) e = SequenceAt(si, k) ho = Mul(h, e) so = Identity(si)
        }}>(four, "", s, w)
        c = ConcatFromSequence<axis = 0, new_axis = 1>(s2) y = Mul(c, z)""",
    "shrinking": f"""{FOUR} {ROWS} three = Constant<value = int64 {{3}}>()
        s2, z = Loop<body = b (int64 k, bool ci, seq(double[3]) si, double[3] h)
            => (bool co, seq(double[3]) so, double[3] ho) {{
          co = Identity(ci) e = SequenceAt(si, zero) p = Mul(h, e) ho = Sin(p) so = SequenceErase(si, zero)
        }}>(three, "", s, w)
        c = SequenceAt(s2, zero) y = Mul(c, z)""",
    "of a branch": f"""{ROWS} none = Constant<value = int64 {{0}}>() p = Equal(i, none)
        t = If<then_branch = a () => (seq(double[3]) u) {{ q = Mul(w, w) u = SequenceInsert(s, q) }},
               else_branch = b () => (seq(double[3]) v) {{ v = SequenceErase(s) }}>(p)
        c = ConcatFromSequence<axis = 0, new_axis = 1>(t) y = Mul(c, c)""",
}  # fmt: skip


# counted from the end too, where a model reads one of the places
CASES = [(name, (0, 2)) for name in MODELS] + [
    (name, (-1, 1)) for name, text in MODELS.items() if ", i)" in text or ", j)" in text
]


@pytest.mark.parametrize(("name", "places"), CASES)
def test_models(name, places):
    feeds = {"x": X, "w": W, "i": np.array(places[0]), "j": np.array(places[1])}
    check_model(whole(MODELS[name]), feeds, ["x", "w"], unreached="zeros")


KEPT = {
    "read as a whole": f"""{FOUR} {ROWS}
        s2, z = Loop<body = b (int64 k, bool ci, seq(double[3]) si, double[m, 3] h)
            => (bool co, seq(double[3]) so, double[m, 3] ho) {{
          co = Identity(ci) e = ConcatFromSequence<axis = 0, new_axis = 1>(si) ho = Mul(h, e) so = SequenceMap<
            body = c (double[3] u) => (double[3] v) {{ v = Sin(u) }}>(si)
        }}>(four, "", s, x)
        y = Mul(z, z)""",
    "a loop in a loop": f"""{FOUR} empty = SequenceEmpty<dtype = 11>() two = Constant<value = int64 {{2}}>()
        s = Loop<body = b (int64 k, bool ci, seq(double[3]) si) => (bool co, seq(double[3]) so) {{
          co = Identity(ci)
          so = Loop<body = d (int64 l, bool di, seq(double[3]) ti) => (bool do, seq(double[3]) to) {{
            do = Identity(di) e = Gather<axis = 0>(x, l) f = Gather<axis = 0>(x, k) p = Mul(e, f) q = Mul(p, w)
            to = SequenceInsert(ti, q)
          }}>(two, "", si)
        }}>(two, "", empty)
        {STACKED}""",
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_a_sequence_that_would_have_to_be_kept_is_refused_by_name(name):
    with pytest.raises(GradientError, match=r"Loop.*sequence 'si'"):
        gradient_model(model_of(whole(KEPT[name])), ["x"])


def test_a_loop_that_draws_at_random_is_not_run_again():
    text = """g (double[n] x, double[n] w, int64 i) => (double loss) {
      y = Loop<body = b (int64 k, bool ci, double[m] h) => (bool co, double[l] ho) {
        co = Identity(ci) r = RandomNormalLike(h) q = Mul(h, r) s = Sin(q) ho = Concat<axis = 0>(s, h)
      }>(i, "", x)
      loss = ReduceSumSquare<keepdims = 0>(y)
    }"""
    with pytest.raises(GradientError, match="draws at random"):
        gradient_model(model_of(text), ["x"])


def _appended(x, w):
    def step(i, going, made):
        return None, [gk.op.SequenceInsert(made, gk.op.Sin(gk.op.Gather(x, i) * w))], []

    count = gk.op.Squeeze(gk.op.Shape(x, start=0, end=1))
    return make_loop(count, None, [gk.op.SequenceEmpty(dtype=1)], step)[0]


SECOND = {
    "stack": lambda x, w: gk.op.ConcatFromSequence(gk.op.SplitToSequence(x * w, keepdims=0), axis=0, new_axis=1) ** 3,
    "concat": lambda x, w: gk.op.ConcatFromSequence(gk.op.SplitToSequence(x * w), axis=0) ** 3,
    "read": lambda x, w: gk.op.SequenceAt(gk.op.SplitToSequence(x * w), np.array(1)) ** 3,
}


@pytest.mark.parametrize("name", SECOND)
def test_to_second_order(name):
    check_gradients(SECOND[name], [X, W], order=2, symbolic=[["n", 3], [3]])


def test_what_a_loop_appends_to_second_order():
    """In a graph alone: eagerly a loop is Python's."""
    f = lambda x, w: (gk.op.ConcatFromSequence(_appended(x, w), axis=0, new_axis=1) ** 2).sum()
    second = lambda x, w: (gk.grad(f, [0, 1])(x, w)[1] ** 2).sum()
    model = gk.trace(
        lambda x, w: (gk.grad(f, [0, 1])(x, w), gk.grad(second, [0, 1])(x, w)),
        gk.spec("float32", ["n", 3]), gk.spec("float32", [3]), input_names=["x", "w"],
    )  # fmt: skip
    plain = lambda x, w: (gk.op.Sin(x * w) ** 2).sum()
    twice = lambda x, w: (gk.grad(plain, [0, 1])(x, w)[1] ** 2).sum()
    x, w = gk.tensor(X, dtype="float32"), gk.tensor(W, dtype="float32")
    expected = [*gk.grad(plain, [0, 1])(x, w), *gk.grad(twice, [0, 1])(x, w)]
    found = gk.run(model, {"x": x.numpy(), "w": w.numpy()}, optimizations=False)
    for got, want in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
