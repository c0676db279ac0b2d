"""Loops of a few known turns are written out; what is the same in each turn moves out; all others stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.optimizers.conftest import operators, parse

HEAD = "g (float[2,3] x) => (float[2,3] y{more})"
CONSTANTS = "int64 n = {{{turns}}}, bool yes = {{{go}}}, float half = {{0.5}}"
# Loops are written out where the file hardly grows by it: in one that holds 64 KiB.
WEIGHT = np.linspace(-1, 1, 128 * 128, dtype=np.float32).reshape(128, 128)


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in a file that holds more than it."""
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "weight"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("wide_in", onnx.TensorProto.FLOAT, [1, 128]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("wide_out", onnx.TensorProto.FLOAT, [1, 128]))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["wide_in", "weight"], ["wide_out"]))
    return model


PLAIN = (
    "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) { d = Identity(c) t = Tanh(a) b = Mul(t, half) }"
)
COUNTED = (
    "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b, float[2,3] s) "
    "{ d = Identity(c) f = Cast<to=1>(i) b = Add(a, f) s = Neg(b) }"
)


def graph(body: str, outputs: str = "y", turns: int = 3, go: int = 1, head: str = HEAD, more: str = "") -> str:
    loop = f"{outputs} = Loop<body = {body}>(n, yes, x)"
    return f"{head.format(more=more)} <{CONSTANTS.format(turns=turns, go=go)}> {{ {loop} }}"


STACK = ", float[N,2,3] z"
# name: (graph, operators left)
WRITTEN_OUT = {
    "three turns": (graph(PLAIN), {"Tanh": 3, "Mul": 3}),
    "one turn": (graph(PLAIN, turns=1), {"Tanh": 1, "Mul": 1}),
    "no turns": (graph(PLAIN, turns=0), {"Identity": 1}),
    "never begins": (graph(PLAIN, go=0), {"Identity": 1}),
    "a negative count": (graph(PLAIN, turns=-2), {"Identity": 1}),
    "a stack": (graph(COUNTED, "y, z", more=STACK), {"Add": 3, "Neg": 3, "Unsqueeze": 3, "Concat": 1}),
    "a stack of one": (graph(COUNTED, "y, z", turns=1, more=STACK), {"Add": 1, "Neg": 1, "Unsqueeze": 1}),
    "a stack that nothing reads": (graph(COUNTED, "y, z"), {"Add": 3}),
    "a state that is passed on": (
        graph("body (int64 i, bool c, float[2,3] a) => (bool c, float[2,3] a) { }").replace("{ }", "{ u = Neg(a) }"),
        {"Identity": 1},
    ),
    "an outer value": (
        graph(
            "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) "
            "{ d = Identity(c) e = Exp(x) b = Add(a, e) }"
        ),
        {"Exp": 1, "Add": 3},
    ),
    "a condition that is true": (
        graph("body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) { d = Identity(yes) b = Abs(a) }"),
        None,
    ),
}


@pytest.mark.parametrize(("text", "left"), WRITTEN_OUT.values(), ids=WRITTEN_OUT.keys())
def test_written_out(prove, text, left):
    model = with_weights(parse(text))
    expected = {"MatMul": 1, **left} if left else None
    assert not operators(prove(model, tolerance=1e-6, grow=1000, expected=expected))["Loop"]


def test_a_small_file_is_not_made_larger(prove):
    assert operators(prove(graph(PLAIN)))["Loop"] == 1


KEPT = {
    "a count that is not known": graph(PLAIN, head="g (float[2,3] x, int64 n) => (float[2,3] y{more})").replace(
        "int64 n = {3}, ", ""
    ),
    "a body that may end it": graph(
        "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) "
        "{ b = Tanh(a) r = ReduceMax<keepdims=0>(b) d = Greater(r, half) }"
    ),
    "many turns": graph(PLAIN, turns=1000),
    "a body with a body": graph(
        "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) { d = Identity(c) r = ReduceMax<keepdims=0>(a) "
        "p = Greater(r, half) b = If<then_branch = t () => (float[2,3] u) { u = Neg(a) }, "
        "else_branch = e () => (float[2,3] w) { w = Abs(a) }>(p) }"
    ),
    "random draws": graph(
        "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) "
        "{ d = Identity(c) r = RandomNormalLike<seed=3.0>(a) b = Add(a, r) }"
    ),
    "an empty stack": graph(COUNTED, "y, z", turns=0, more=STACK),
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_kept(prove, text):
    feeds = {
        "x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32),
        "wide_in": np.ones((1, 128), "f"),
    }
    if "int64 n)" in text:
        feeds["n"] = np.array(3)
    assert operators(prove(with_weights(parse(text)), feeds, tolerance=1e-6))["Loop"] == 1


def test_a_body_too_large_for_the_budget_stays(prove):
    body = "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) { d = Identity(c) t0 = Tanh(a) "
    body += " ".join(f"t{k + 1} = Sin(t{k})" for k in range(9)) + " b = Mul(t9, half) }"
    assert operators(prove(with_weights(parse(graph(body, turns=16))), tolerance=1e-5))["Loop"] == 1


def test_names_of_bodies_do_not_collide(prove):
    loop = f"Loop<body = {PLAIN}>(n, yes, "
    text = f"{HEAD.format(more='')} <{CONSTANTS.format(turns=2, go=1)}> {{ q = {loop}x) u = {loop}q) y = Add(q, u) }}"
    expected = {"Tanh": 4, "Mul": 4, "Add": 1, "MatMul": 1}
    prove(with_weights(parse(text)), tolerance=1e-6, grow=1000, expected=expected)


def test_invariants_move_before_a_loop(prove):
    text = graph(
        "body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) "
        "{ d = Identity(c) e = Exp(x) f = Mul(e, half) g = Add(f, a) b = Tanh(g) }",
        turns=1000,
    )
    result = prove(text, tolerance=1e-5, grow=20)
    (loop,) = [node for node in result.graph.node if node.op_type == "Loop"]
    assert not {"Exp", "Mul"} & {node.op_type for node in loop.attribute[0].g.node}
    assert {"Exp", "Mul", "Loop"} == {node.op_type for node in result.graph.node}


def test_what_may_fail_stays_in_a_loop_that_may_not_run(prove):
    """With no turns, the Reshape that does not fit is never computed."""
    text = (
        "g (float[N,3] x, int64[2] s, int64 n) => (float[N,3] y) <bool yes = {1}> { y = Loop<body = body "
        "(int64 i, bool c, float[M,3] a) => (bool d, float[M,3] b) { d = Identity(c) r = Reshape(x, s) b = Add(a, r) }>"
        "(n, yes, x) }"
    )
    x = np.ones((2, 3), np.float32)
    feeds = [{"x": x, "s": np.array([5, 5]), "n": np.array(0)}, {"x": x, "s": np.array([2, 3]), "n": np.array(2)}]
    result = prove(text, *feeds)
    assert [node.op_type for node in result.graph.node] == ["Loop"]
    assert operators(parse(text)) == operators(result)
