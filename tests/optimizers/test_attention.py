"""Attention's pieces become one operator, masks become sums; look-alikes do not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimizers.conftest import operators

HEAD = "g (float[2,4,3,8] q, float[2,4,3,8] k, float[2,4,3,6] v) => (float[B,H,S,D] y)"
LOW = -3.4028234663852886e38
TRI = [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
PLAIN = "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t)"
END = "p = Softmax<axis=-1>(w) y = MatMul(p, v)"


def bools(rows: list[list[int]]) -> str:
    return "{" + ",".join(str(x) for row in rows for x in row) + "}"


def floats(rows: list[list[int]], low: float, high: float = 0.0) -> str:
    return "{" + ",".join(str(high if x else low) for row in rows for x in row) + "}"


def graph(body: str, constants: str = "", head: str = HEAD) -> str:
    more = f", {constants}" if constants else ""
    return f"{head} <float c = {{0.35}}, float two = {{2.0}}{more}> {{ {body} }}"


SPARSE = [[1, 0, 1], [1, 1, 0], [0, 1, 1]]
FUSED = {
    "no mask, no scale": (graph(f"{PLAIN} w = Identity(s) {END}"), {}),
    "scaled after": (graph(f"{PLAIN} w = Mul(s, c) {END}"), {}),
    "divided": (graph(f"{PLAIN} w = Div(s, two) {END}"), {}),
    "scaled before": (
        graph(f"a = Mul(q, c) t = Transpose<perm=[0,1,3,2]>(k) b = Mul(c, t) w = MatMul(a, b) {END}"),
        {},
    ),
    "keys scaled, then turned": (graph(f"a = Mul(k, c) t = Transpose<perm=[0,1,3,2]>(a) w = MatMul(q, t) {END}"), {}),
    "added mask": (
        graph(f"{PLAIN} u = Mul(s, c) w = Add(u, m) {END}", f"float[3,3] m = {floats(SPARSE, -7.5, 0.25)}"),
        {},
    ),
    "mask per head": (
        graph(f"{PLAIN} w = Add(m, s) {END}", "float[1,4,3,3] m = {" + ",".join(str(i % 5) for i in range(36)) + "}"),
        {},
    ),
    "causal": (graph(f"{PLAIN} w = Add(s, m) {END}", f"float[1,1,3,3] m = {floats(TRI, LOW)}"), {"is_causal": 1}),
    "causal fill": (
        graph(f"{PLAIN} w = Where(m, s, f) {END}", f"bool[3,3] m = {bools(TRI)}, float f = {{{LOW}}}"),
        {"is_causal": 1},
    ),
    "causal, turned": (
        graph(
            f"{PLAIN} w = Where(m, f, s) {END}",
            f"bool[3,3] m = {bools([[1 - x for x in r] for r in TRI])}, float f = {{{LOW}}}",
        ),
        {"is_causal": 1},
    ),
    "fill": (graph(f"{PLAIN} w = Where(m, s, f) {END}", f"bool[3,3] m = {bools(SPARSE)}, float f = {{{LOW}}}"), {}),
    "fill, turned": (
        graph(
            f"{PLAIN} w = Where(m, f, s) {END}",
            f"bool[3,3] m = {bools([[1 - x for x in r] for r in SPARSE])}, float f = {{{LOW}}}",
        ),
        {},
    ),
    "causal while running": (
        graph(
            f"{PLAIN} full = Expand(f, n) m = Trilu(full, one) w = Add(s, m) {END}",
            f"float f = {{{LOW}}}, int64[2] n = {{3,3}}, int64 one = {{1}}",
        ),
        {"is_causal": 1},
    ),
    "positions before heads": (
        graph(
            f"b = Transpose<perm=[0,2,1,3]>(k) t = Transpose<perm=[0,1,3,2]>(b) w = MatMul(q, t) {END}",
            head=HEAD.replace("float[2,4,3,8] k", "float[2,3,4,8] k"),
        ),
        {},
    ),
}


@pytest.mark.parametrize(("text", "attributes"), FUSED.values(), ids=FUSED.keys())
def test_fused(prove, text, attributes):
    result = prove(text, opset=23, tolerance=1e-5, verify=True, strict=True, grow=60)
    found = operators(result)
    assert found["Attention"] == 1
    assert not {"MatMul", "Softmax", "Add", "Where"} & set(found)
    node = next(node for node in result.graph.node if node.op_type == "Attention")
    assert {a.name: a.i for a in node.attribute if a.name != "scale"} == attributes


def test_grouped_queries(prove):
    head = "g (float[2,4,3,8] q, float[2,2,3,8] k0, float[2,2,3,6] v0) => (float[B,H,S,D] y)"
    body = (
        "a = Unsqueeze(k0, ax) b = Expand(a, n) k = Reshape(b, o) d = Unsqueeze(v0, ax) e = Expand(d, i) "
        f"v = Reshape(e, j) {PLAIN} w = Mul(s, c) {END}"
    )
    constants = (
        "int64[1] ax = {2}, int64[5] n = {2,2,2,3,8}, int64[4] o = {2,4,3,8}, int64[5] i = {2,2,2,3,6}, "
        "int64[4] j = {2,4,3,6}"
    )
    text = graph(body, constants, head)
    prove(text, opset=23, tolerance=1e-5, verify=True, strict=True, expected={"Attention": 1})


KEPT = {
    "a row hidden as a whole": graph(
        f"{PLAIN} w = Add(s, m) {END}", f"float[3,3] m = {floats([[0, 0, 0], *TRI[1:]], LOW)}"
    ),
    "a row filled as a whole": graph(
        f"{PLAIN} w = Where(m, s, f) {END}", f"bool[3,3] m = {bools([[0, 0, 0], *TRI[1:]])}, float f = {{{LOW}}}"
    ),
    "a mask that is an input": graph(f"{PLAIN} w = Add(s, m) {END}", head=HEAD.replace("6] v)", "6] v, float[3,3] m)")),
    "a fill that scores may reach": graph(
        f"{PLAIN} w = Where(m, s, f) {END}", f"bool[3,3] m = {bools(TRI)}, float f = {{-9.0}}"
    ),
    "scaled after the mask": graph(
        f"{PLAIN} u = Add(s, m) w = Mul(u, c) {END}", f"float[3,3] m = {floats(SPARSE, -7.5)}"
    ),
    "softmax over queries": graph(f"{PLAIN} p = Softmax<axis=2>(s) y = MatMul(p, v)"),
    "keys not turned": graph(f"w = MatMul(q, k) {END}", head=HEAD.replace("3,8] k", "8,3] k")),
    "weights given out": graph(
        f"{PLAIN} {END}".replace("(w)", "(s)") + " z = Exp(p)", head=HEAD.replace("D] y", "D] y, float[B,H,S,E] z")
    ),
    "a negative scale": graph(f"{PLAIN} n = Neg(s) w = Mul(n, c) {END}"),
    "a batch that may be empty": graph(f"{PLAIN} w = Mul(s, c) {END}", head=HEAD.replace("[2,", "[N,")),
    "keys for all heads": graph(
        f"{PLAIN} w = Mul(s, c) {END}", head=HEAD.replace("float[2,4,3,8] k", "float[1,1,3,8] k")
    ),
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_kept(prove, text):
    assert not operators(prove(text, opset=23, tolerance=1e-5, grow=60))["Attention"]


@pytest.mark.parametrize("opset", [20, 22])
def test_not_before_opset_23(prove, opset):
    assert not operators(prove(FUSED["causal"][0], opset=opset, tolerance=1e-5))["Attention"]


def test_not_in_float64(prove):
    text = (
        FUSED["scaled after"][0]
        .replace("float[", "double[")
        .replace("float c", "double c")
        .replace("float two", "double two")
    )
    assert not operators(prove(text, opset=23, tolerance=1e-12))["Attention"]


MASKS = (
    "g (float[N,4,3,3] x, bool[{m}] m) => (float[N,4,3,3] y) <float f = {{{f}}}> {{ w = Where({w}) y = Softmax(w) }}"
)


@pytest.mark.parametrize("low", ["-inf", str(LOW)])
@pytest.mark.parametrize("order", ["m, x, f", "m, f, x"])
def test_a_fill_becomes_a_sum(prove, low, order):
    """Rows that are hidden as a whole stay what they were: NaN below minus infinity, equal weights otherwise."""
    given = np.random.default_rng(0).standard_normal((2, 4, 3, 3)).astype(np.float32) * 50
    text = MASKS.format(m="3,3", f=low, w=order)
    feeds = [{"x": given, "m": np.array(rows, bool)} for rows in (TRI, [[0, 0, 0], *TRI[1:]], [[1, 1, 1], *TRI[:2]])]
    expected = {"Where": 1, "Add": 1, "Softmax": 1}
    prove(text, *feeds, tolerance=1e-6, expected=expected, grow=120, passes=["add_mask", "prune"])


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("preset", ["inference", "training", "web", "cuda"])
def test_hidden_scores_that_are_no_numbers_stay_hidden(prove, hidden, preset):
    given = np.ones((2, 4, 3, 3), np.float32)
    given[..., ~np.array(TRI, bool)] = hidden
    text = MASKS.format(m="3,3", f=str(LOW), w="m, x, f")
    prove(text, {"x": given, "m": np.array(TRI, bool)}, preset=preset, expected={"Where": 1, "Softmax": 1})


@pytest.mark.parametrize(
    ("shape", "low"), [("N,4,3,3", "-inf"), ("3,3", "-1000000000.0")], ids=["as large", "not enough"]
)
def test_a_fill_that_stays(prove, shape, low):
    text, passes = MASKS.format(m=shape, f=low, w="m, x, f"), ["add_mask"]
    prove(text, tolerance=1e-6, expected={"Where": 1, "Softmax": 1}, passes=passes)
