"""If, Loop and Scan in imported and traced graphs: captured values, trip counts, states, nesting, directions, axes."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.runtime import run
from graphkit.testing import check_gradients
from tests.gradients.models import check_model, gradient_model, model_of

rng = np.random.default_rng(0)
X, W, V = rng.normal(size=3), rng.normal(size=3), rng.normal(size=3)
ONE, YES, NO = np.array(1), np.array(True), np.array(False)

LOOP = """g (double[3] x, double[3] w, int64 n) => (double loss) {
  c = Constant<value = bool {1}>()
  s, k, ys = Loop<body = b (int64 i, bool ci, double[3] si, int64 ki)
      => (bool co, double[3] so, int64 ko, double[3] y) {
    co = Identity(ci) t = Mul(si, w) so = Sin(t) ko = Add(ki, i) y = Mul(so, si)
  }>(n, c, x, n)
  a = ReduceSumSquare<keepdims = 0>(s)
  d = ReduceSumSquare<keepdims = 0>(ys)
  loss = Add(a, d)
}"""
ONLY_STATE = """g (double[3] x, double[3] w, int64 n) => (double loss) {
  s = Loop<body = b (int64 i, bool ci, double[3] si) => (bool co, double[3] so) {
    co = Identity(ci) so = Mul(si, w)
  }>(n, "", x)
  loss = ReduceSum<keepdims = 0>(s)
}"""
WHILE = """g (double[3] x, double[3] w) => (double loss) {
  c = Constant<value = bool {1}>()
  limit = Constant<value = double {40.0}>()
  s = Loop<body = b (int64 i, bool ci, si) => (co, so) {
    t = Mul(w, w)
    u = Mul(si, si) v = Add(u, t) so = Add(v, si) total = ReduceSumSquare<keepdims = 0>(so) co = Less(total, limit)
  }>("", c, x)
  loss = ReduceSum<keepdims = 0>(s)
}"""
INDEXED = """g (double[T, 3] xs, double[3] w, int64 n) => (double loss) {
  zero = Constant<value = double[3] {0.1, 0.2, 0.3}>()
  s, ys = Loop<body = b (int64 i, bool ci, si)
      => (co, so, y) {
    co = Identity(ci) e = Gather<axis = 0>(xs, i)
    t = Mul(si, w) u = Add(e, t) so = Tanh(u) y = ReduceMax<keepdims = 0>(so)
  }>(n, "", zero)
  d = ReduceSumSquare<keepdims = 0>(ys)
  a = ReduceSum<keepdims = 0>(s)
  loss = Add(a, d)
}"""
SWAP = """g (double[3] x, double[3] w, int64 n) => (double loss) {
  a, b2, unused = Loop<body = b (int64 i, bool ci, double[3] p, double[3] q, double[3] r)
      => (bool co, double[3] q1, double[3] p1, double[3] r1) {
    co = Identity(ci) q1 = Exp(q) p1 = Identity(p) r1 = Mul(r, q)
  }>(n, "", x, w, x)
  m = Mul(a, b2)
  loss = ReduceSum<keepdims = 0>(m)
}"""
GROWING = """g (double[3] x, double[3] w, int64 n) => (double loss) {
  s = Loop<body = b (int64 i, bool ci, double[M] si) => (bool co, double[K] so) {
    co = Identity(ci) t = Mul(x, w) so = Concat<axis = 0>(si, t)
  }>(n, "", x)
  loss = ReduceSumSquare<keepdims = 0>(s)
}"""
NESTED = """g (double[3] x, double[3] w, double[3] v, int64 n) => (double loss) {
  one = Constant<value = int64 {1}>()
  s = Loop<body = outer (int64 i, bool ci, double[3] si) => (bool co, double[3] so) {
    co = Identity(ci)
    si2 = Mul(si, v)
    inner_n = Add(i, one)
    so = Loop<body = middle (int64 j, bool cj, double[3] sj) => (bool cjo, double[3] sjo) {
      cjo = Identity(cj)
      odd = Mod(j, one)
      k2 = Add(j, i)
      deep = Loop<body = inner (int64 k, bool ck, double[3] sk) => (bool cko, double[3] sko) {
        cko = Identity(ck) t = Mul(sk, w) u = Add(t, si2) sko = Sin(u)
      }>(k2, "", sj)
      sjo = Mul(deep, v)
    }>(inner_n, "", si2)
  }>(n, "", x)
  loss = ReduceSumSquare<keepdims = 0>(s)
}"""
BENT = """g (double[3] x, double[3] w, int64 n) => (double loss) {
  s, k = Loop<body = b (int64 i, bool ci, double[M] si, double[L] ki)
      => (bool co, double[K] so, double[J] ko) {
    co = Identity(ci) e = Sin(si) so = Concat<axis = 0>(e, w) ko = Mul(so, so)
  }>(n, "", x, x)
  a = ReduceSumSquare<keepdims = 0>(s)
  c = ReduceSum<keepdims = 0>(k)
  loss = Add(a, c)
}"""
IF_IN_LOOP = """g (double[3] x, double[3] w, double[3] v, int64 n) => (double loss) {
  two = Constant<value = int64 {2}>()
  zero = Constant<value = int64 {0}>()
  s, ys = Loop<body = outer (int64 i, bool ci, double[3] si) => (bool co, double[3] so, double[3] y) {
    co = Identity(ci)
    m = Mod(i, two)
    even = Equal(m, zero)
    h = Exp(si)
    so, y = If<then_branch = a () => (double[3] p, double[3] p2) { t = Mul(h, w) p = Sin(t) p2 = Mul(t, t) },
           else_branch = e () => (double[3] q, double[3] q2) { u = Mul(si, v) q = Cos(u) q2 = Neg(h) }>(even)
  }>(n, "", x)
  a = ReduceSumSquare<keepdims = 0>(s)
  d = ReduceSumSquare<keepdims = 0>(ys)
  loss = Add(a, d)
}"""
LOOP_IN_IF = """g (double[3] x, double[3] w, bool p, int64 n) => (double loss) {
  s = If<then_branch = a () => (double[3] r) {
      h = Sin(x)
      r = Loop<body = b (int64 i, bool ci, double[3] si) => (bool co, double[3] so) {
        co = Identity(ci) t = Mul(si, w) t2 = Mul(t, h) so = Sin(t2)
      }>(n, "", x)
    }, else_branch = e () => (double[3] q) { q = Mul(x, x) }>(p)
  loss = ReduceSumSquare<keepdims = 0>(s)
}"""
IF = """g (double[3] x, double[3] w, bool p) => (double loss) {
  y, z = If<then_branch = a () => (double[3] p1, double[3] q1) { p1 = Mul(x, w) t = Exp(p1) q1 = Sin(t) },
            else_branch = b () => (double[3] p2, double[3] q2) { p2 = Cos(x) q2 = Exp(p2) }>(p)
  u = Mul(y, z)
  loss = ReduceSum<keepdims = 0>(u)
}"""
IF_SHAPES = """g (double[3] x, double[3] w, bool p) => (double loss) {
  y = If<then_branch = a () => (double[3] p1) { p1 = Mul(x, w) },
         else_branch = b () => (double[M] p2) { c = Cos(x) p2 = Concat<axis = 0>(c, w) }>(p)
  loss = ReduceSumSquare<keepdims = 0>(y)
}"""
IF_RANKS = """g (double[3] x, double[3] w, bool p) => (double loss) {
  y = If<then_branch = a () => (p1) { p1 = Mul(x, w) },
         else_branch = b () => (p2) { c = Cos(x) axes = Constant<value = int64[1] {0}>() p2 = Unsqueeze(c, axes) }>(p)
  loss = ReduceSumSquare<keepdims = 0>(y)
}"""
IF_DEEP = """g (double[3] x, double[3] w, bool p, bool q) => (double loss) {
  y = If<then_branch = a () => (double[3] p1) {
      h = Sin(x)
      p1 = If<then_branch = aa () => (double[3] r1) { t = Mul(h, w) t2 = Exp(t) r1 = Mul(t2, h) },
              else_branch = ab () => (double[3] r2) {
                r2 = If<then_branch = aba () => (double[3] r3) { u = Exp(h) r3 = Mul(u, w) },
                        else_branch = abb () => (double[3] r4) { r4 = Identity(w) }>(p)
              }>(q)
    }, else_branch = b () => (double[3] p2) { p2 = Identity(x) }>(p)
  loss = ReduceSumSquare<keepdims = 0>(y)
}"""


def scan_text(attributes, x, ys):
    return f"""g (double[N] x, double[{x}] xs, double[N] w) => (double loss) {{
  s, ys, zs = Scan<num_scan_inputs = 1, {attributes} body = b (double[N] si, double[N] e)
      => (double[N] so, double[N] y, double[N] z) {{
    t = Mul(si, w) u = Mul(t, e) so = Sin(u) y = Mul(so, t) z = Exp(e)
  }}>(x, xs)
  a = ReduceSumSquare<keepdims = 0>(s)
  k = Constant<value = double[{ys}] {{{", ".join(str(v) for v in range(1, 13))}}}>()
  d0 = Mul(ys, k)
  d = ReduceSum<keepdims = 0>(d0)
  z0 = ReduceSum<keepdims = 0>(zs)
  f = Add(a, z0)
  loss = Add(f, d)
}}"""


TWELVE = {"x": rng.normal(size=12), "xs": rng.normal(size=(1, 12)), "w": rng.normal(size=12)}
TIMES, WIDTH = rng.normal(size=(4, 3)), rng.normal(size=(3, 4))
CASES = {
    **{f"loop, {n} trips": (LOOP, {"x": X, "w": W, "n": np.array(n)}, ["x", "w"]) for n in (0, 1, 4)},
    **{f"only a state, {n} trips": (ONLY_STATE, {"x": X, "w": W, "n": np.array(n)}, ["x", "w"]) for n in (0, 3)},
    "negative count": (ONLY_STATE, {"x": X, "w": W, "n": np.array(-2)}, ["x", "w"]),
    "while": (WHILE, {"x": X, "w": W}, ["x", "w"]),
    "while, more trips": (WHILE, {"x": 0.3 * X, "w": 0.5 * W}, ["x", "w"]),
    "reads its inputs by index": (INDEXED, {"xs": TIMES, "w": W, "n": np.array(3)}, ["xs", "w"]),
    "reads nothing": (INDEXED, {"xs": TIMES, "w": W, "n": np.array(0)}, ["xs", "w"]),
    **{f"states change places, {n}": (SWAP, {"x": X, "w": W, "n": np.array(n)}, ["x", "w"]) for n in (0, 2, 3)},
    **{f"a growing state, {n}": (GROWING, {"x": X, "w": W, "n": np.array(n)}, ["x", "w"]) for n in (0, 3)},
    **{f"growing states that bend, {n}": (BENT, {"x": X, "w": W, "n": np.array(n)}, ["x", "w"]) for n in (0, 1, 3)},
    **{f"three deep, {n}": (NESTED, {"x": X, "w": W, "v": V, "n": np.array(n)}, ["x", "w", "v"]) for n in (0, 1, 3)},
    **{f"If in Loop, {n}": (IF_IN_LOOP, {"x": X, "w": W, "v": V, "n": np.array(n)}, ["x", "w", "v"])
       for n in (0, 1, 4)},
    "Loop in If": (LOOP_IN_IF, {"x": X, "w": W, "p": YES, "n": np.array(3)}, ["x", "w"]),
    "Loop in If, no trip": (LOOP_IN_IF, {"x": X, "w": W, "p": YES, "n": np.array(0)}, ["x", "w"]),
    "Loop in If, not taken": (LOOP_IN_IF, {"x": X, "w": W, "p": NO, "n": np.array(3)}, ["x", "w"]),
    "then": (IF, {"x": X, "w": W, "p": YES}, ["x", "w"]),
    "else": (IF, {"x": X, "w": W, "p": NO}, ["x", "w"]),
    "two shapes, then": (IF_SHAPES, {"x": X, "w": W, "p": YES}, ["x", "w"]),
    "two shapes, else": (IF_SHAPES, {"x": X, "w": W, "p": NO}, ["x", "w"]),
    "two ranks, then": (IF_RANKS, {"x": X, "w": W, "p": YES}, ["x", "w"]),
    "two ranks, else": (IF_RANKS, {"x": X, "w": W, "p": NO}, ["x", "w"]),
    **{f"Ifs, {p} {q}": (IF_DEEP, {"x": X, "w": W, "p": np.array(p), "q": np.array(q)}, ["x", "w"])
       for p in (True, False) for q in (True, False)},
    "scan": (scan_text("", "T, N", "4, 3"), {"x": X, "xs": TIMES, "w": W}, ["x", "xs", "w"]),
    "scan backwards": (
        scan_text("scan_input_directions = [1],", "T, N", "4, 3"), {"x": X, "xs": TIMES, "w": W}, ["x", "xs", "w"],
    ),
    "scan along another axis": (
        scan_text("scan_input_axes = [1],", "N, T", "4, 3"), {"x": X, "xs": WIDTH, "w": W}, ["x", "xs", "w"],
    ),
    "scan writes along another axis": (
        scan_text("scan_output_axes = [1, -1],", "T, N", "3, 4"), {"x": X, "xs": TIMES, "w": W}, ["x", "xs", "w"],
    ),
    "scan every way": (
        scan_text("scan_input_axes = [-1], scan_input_directions = [1], scan_output_axes = [1, 0], "
                  "scan_output_directions = [1, 0],", "N, T", "3, 4"),
        {"x": X, "xs": WIDTH, "w": W}, ["x", "xs", "w"],
    ),
    "scan, one step": (
        scan_text("scan_output_directions = [0, 1],", "T, N", "1, 12"), TWELVE, ["x", "xs", "w"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_models(name):
    text, feeds, wrt = CASES[name]
    check_model(text, feeds, wrt)


def cumulative(w, xs):
    def step(carry, x):
        h, count = carry
        after = gk.op.Tanh(h * w + x)
        return (after, count + 1), {"h": after, "twice": after * 2.0}

    (last, _), stacked = gk.scan(step, (w, gk.tensor(0)), xs)
    return (last * stacked["h"]).sum() + (stacked["twice"] ** 2).sum()


FUNCTIONS = {
    "scan": (cumulative, [W, TIMES]),
    "scan from behind": (
        lambda w, xs: gk.scan(lambda h, x: ((h + x) * w, h * x), w, xs, reverse=True)[1], [W, TIMES],
    ),
    "scan of nothing but a length": (lambda w: gk.scan(lambda h, _: (gk.op.Sin(h * w), h), w, None, length=3)[1], [W]),
    "cond": (lambda x, w: gk.cond(x.sum() > 0, lambda a: a * w, lambda a: gk.op.Exp(a), x), [abs(X), W]),
    "cond, the other": (
        lambda x, w: gk.cond(x.sum() > 0, lambda a: a * w, lambda a: gk.op.Exp(a) + 0 * w, x), [-abs(X), W],
    ),
    "while": (lambda x, w: gk.while_loop(lambda s: (s * s).sum() < 30, lambda s: s * 1.5 + w * w, x), [X, W]),
    "cond in scan": (
        lambda w, xs: gk.scan(
            lambda h, x: (gk.cond(x.sum() > 0, lambda: gk.op.Sin(h * w), lambda: h * x), h), w, xs)[0],
        [W, TIMES],
    ),
    "scan in scan": (
        lambda w, xs: gk.scan(
            lambda h, x: (gk.scan(lambda a, e: (gk.op.Sin(a * w + e), a), h, gk.op.Unsqueeze(x, [1]))[0], h), w, xs)[1],
        [W, TIMES],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_to_second_order(name):
    f, inputs = FUNCTIONS[name]
    check_gradients(f, inputs, order=1)
    check_gradients(f, inputs, order=2)


def test_only_what_the_gradient_reads_is_saved():
    found = gradient_model(model_of(LOOP), ["x", "w"])
    loop = next(n for n in found.graph.node if n.op_type == "Loop")
    # s, k, ys, and: t for the cosine, the state and the result for the product
    assert len(loop.output) == 3 + 3


def test_an_integer_state_carries_no_gradient():
    found = gradient_model(model_of(LOOP), ["x"])
    backward = [n for n in found.graph.node if n.op_type == "Loop"][1]
    assert len(backward.output) == 1


def test_weights_of_a_branch_that_is_not_taken_get_zeros():
    found = gradient_model(model_of(IF), ["w"])
    assert not run(found, {"x": X, "w": W, "p": NO}, optimizations=False)["w_grad"].any()


def test_random_draws_in_an_inner_loop_are_not_drawn_again():
    """What the reverse pass reads is what the forward pass drew: the gradient of sum(x mask) is the mask."""

    def loss(x):
        def inner(carry, e):
            return carry, gk.op.Dropout(e * x, 0.5, True)

        def outer(carry, e):
            return carry, gk.scan(inner, carry, e)[1]

        y = gk.scan(outer, gk.tensor(0.0), gk.op.Expand(gk.op.ReduceMean(x * 0.0 + 1.0), [3, 4]))[1]
        return y.sum(), y

    def both(x):
        (_, y), g = gk.value_and_grad(loss, has_aux=True)(x)
        return y, g

    model = gk.trace(both, gk.spec("float32", [5]), input_names=["x"])
    y, g = run(model, {"x": np.ones(5, dtype=np.float32)}, optimizations=False).values()
    assert 0 < (y == 0).sum() < y.size
    np.testing.assert_allclose(g, y.sum((0, 1)), rtol=1e-6)


def test_a_stopped_gradient_stays_stopped_in_a_loop_that_is_run_again():
    def f(w, xs):
        def inner(h, e):
            return h * w + gk.stop_gradient(h * w) * e, None

        return gk.scan(lambda h, x: (gk.scan(inner, h, gk.op.Unsqueeze(x, [1]))[0], h), w, xs)[1]

    check_gradients(f, [W, TIMES], numeric=False)
