"""Rotary position embeddings become one operator; look-alikes do not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimizers.conftest import assert_same, operators, parse, run

HEAD = "g (float[{b},2,3,4] x, float[{a},3,2] t) => (float[B,H,S,D] y)"
ANGLES = "f = Concat<axis=-1>(t, t) c0 = Cos(f) s0 = Sin(f) c = Unsqueeze(c0, one) s = Unsqueeze(s0, one)"
HALVES = "p, q = Split<axis=-1>(x, two) n = Neg(q) r = Concat<axis=-1>(n, p)"
SUM = "u = Mul(x, c) v = Mul(r, s) y = Add(u, v)"
SLICED = "p = Slice(x, zero, two1, three) q = Slice(x, two1, four, three) n = Neg(q) r = Concat<axis=-1>(n, p)"
PAIRS = (
    "p = Slice(x, zero, four, three, two1) q = Slice(x, one, four, three, two1) n = Neg(q) e = Unsqueeze(n, last) "
    "d = Unsqueeze(p, last) w = Concat<axis=-1>(e, d) h = Shape(x) r = Reshape(w, h)"
)
PAIRED = (
    "k = Unsqueeze(t, last) f2 = Concat<axis=-1>(k, k) f = Reshape(f2, flat) c0 = Cos(f) s0 = Sin(f) "
    "c = Unsqueeze(c0, one) s = Unsqueeze(s0, one)"
)
APART = (
    "c0 = Cos(t) s0 = Sin(t) c = Unsqueeze(c0, one) s = Unsqueeze(s0, one) p, q = Split<axis=-1>(x, two) "
    "i = Mul(p, c) j = Mul(q, s) k = Sub(i, j) l = Mul(s, p) m = Mul(c, q) n = Add(l, m) y = Concat<axis=-1>(k, n)"
)
CONSTANTS = (
    "<int64[1] zero = {0}, int64[1] one = {1}, int64[2] two = {2,2}, int64[1] two1 = {2}, int64[1] three = {3}, "
    "int64[1] four = {4}, int64[1] last = {-1}, int64[3] flat = {0,0,-1}, int64[2] uneven = {1,2}, "
    "int64[2] part = {4,2}>"
)
PARTLY = (
    "g (float[{b},2,3,6] z, float[{a},3,2] t) => (float[B,H,S,D] y)",
    f"{ANGLES} x, rest = Split<axis=-1>(z, part) {HALVES} u = Mul(x, c) v = Mul(r, s) o = Add(u, v) "
    "y = Concat<axis=-1>(o, rest)",
)


def graph(body: str, head: str = HEAD, batch: str = "N", angles: str = "1") -> str:
    return f"{head.format(b=batch, a=angles)} {CONSTANTS} {{ {body} }}"


FUSED = {
    "halves": graph(f"{ANGLES} {HALVES} {SUM}"),
    "slices": graph(f"{ANGLES} {SLICED} {SUM}"),
    "angles for each of the batch": graph(f"{ANGLES} {HALVES} {SUM}", angles="N"),
    "one of the batch": graph(f"{ANGLES} {HALVES} {SUM}", batch="1"),
    "the other way round": graph(f"{ANGLES} {HALVES} u = Mul(c, x) v = Mul(s, r) y = Add(v, u)"),
    "pairs": graph(f"{PAIRED} {PAIRS} {SUM}"),
    "halves apart": graph(APART),
    "the first features": graph(PARTLY[1], PARTLY[0]),
}


@pytest.mark.parametrize("text", FUSED.values(), ids=FUSED.keys())
def test_fused(prove, text):
    found = operators(prove(text, opset=23, tolerance=1e-5, verify=True, strict=True, grow=300))
    assert found["RotaryEmbedding"] == 1
    assert not {"Neg", "Mul", "Split", "Add"} & set(found)


KEPT = {
    "angles that do not repeat": graph(
        f"f = Concat<axis=-1>(t, w) {ANGLES[len('f = Concat<axis=-1>(t, t) ') :]} {HALVES} {SUM}".replace(
            "f = C", "w = Neg(t) f = C"
        )
    ),
    "halves the wrong way round": graph(f"{ANGLES} {HALVES} {SUM}".replace("(n, p)", "(p, n)")),
    "the first half is negative": graph(
        f"{ANGLES} {HALVES} {SUM}".replace("Neg(q) r = Concat<axis=-1>(n, p)", "Neg(p) r = Concat<axis=-1>(q, n)")
    ),
    "a difference": graph(f"{ANGLES} {HALVES} u = Mul(x, c) v = Mul(r, s) y = Sub(u, v)"),
    "another axis": graph(f"{ANGLES} p, q = Split<axis=2>(x, uneven) n = Neg(q) r = Concat<axis=2>(n, p) {SUM}"),
    "pairs with angles of halves": graph(f"{ANGLES} {PAIRS} {SUM}"),
    "halves with angles of pairs": graph(f"{PAIRED} {HALVES} {SUM}"),
    "a value read elsewhere": graph(f"{ANGLES} {HALVES} {SUM}".replace("y = Add(u, v)", "m = Add(u, v) y = Add(m, v)")),
    "halves apart, one sign": graph(APART.replace("Sub(i, j)", "Add(i, j)")),
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_kept(prove, text):
    assert not operators(prove(text, opset=23, tolerance=1e-6))["RotaryEmbedding"]


def test_not_before_opset_23(prove):
    assert not operators(prove(FUSED["halves"], opset=22, tolerance=1e-6))["RotaryEmbedding"]


def test_not_in_float64(prove):
    text = FUSED["halves"].replace("float[", "double[")
    assert not operators(prove(text, opset=23, tolerance=1e-12))["RotaryEmbedding"]


def test_not_where_angles_differ_between_heads(prove):
    text = graph(f"{ANGLES} {HALVES} {SUM}", angles="2").replace("c0, one", "c0, zero").replace("s0, one", "s0, zero")
    assert not operators(prove(text, opset=23, tolerance=1e-6))["RotaryEmbedding"]


def test_constant_angles_keep_their_origin(prove):
    rows = [[np.cos(i), np.cos(2 * i)] * 2 for i in range(3)], [[np.sin(i), np.sin(2 * i)] * 2 for i in range(3)]
    c, s = (",".join(str(float(v)) for row in table for v in row) for table in rows)
    text = (
        f"g (float[N,2,3,4] x) => (float[B,H,S,D] y) <float[1,1,3,4] c = {{{c}}}, float[3,4] s = {{{s}}}, "
        f"int64[2] two = {{2,2}}> {{ {HALVES} {SUM} }}"
    )
    result = prove(text, opset=23, tolerance=1e-5, verify=True, strict=True, grow=300)
    assert {"from c", "from s"} <= {tensor.doc_string for tensor in result.graph.initializer}


def test_an_empty_batch(prove):
    text = FUSED["halves"]
    feeds = {"x": np.zeros((0, 2, 3, 4), np.float32), "t": np.ones((1, 3, 2), np.float32)}
    result = prove(text, feeds, opset=23, grow=300)
    assert_same(run(result, feeds), run(parse(text, 23), feeds), 0)
