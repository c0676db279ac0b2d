"""Sequences and optionals: made, read, changed, mapped; one element read often; what only the run knows."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit.graph import Graph
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.testing import check_gradients

op = gk.op
X = np.random.default_rng(0).normal(size=(2, 3))
Y = np.random.default_rng(1).normal(size=(2, 1))

CASES = {
    "construct and read": lambda x, y: op.SequenceAt(op.SequenceConstruct(x, y), np.array(1)) * 2,
    "negative": lambda x, y: op.SequenceAt(op.SequenceConstruct(y, x), np.array(-1)) ** 2,
    "read twice": lambda x, y: _twice(op.SequenceConstruct(x, y)),
    "concat": lambda x, y: op.ConcatFromSequence(op.SequenceConstruct(x, y, x), axis=1) ** 2,
    "concat one": lambda x, y: op.ConcatFromSequence(op.SequenceConstruct(x), axis=0) + y,
    "stack": lambda x, y: op.ConcatFromSequence(op.SequenceConstruct(x, x * y), axis=0, new_axis=1) ** 2,
    "stack last": lambda x, y: op.ConcatFromSequence(op.SequenceConstruct(x, x * y), axis=-1, new_axis=1) ** 2,
    "split": lambda x, y: op.SequenceAt(op.SplitToSequence(x, axis=1), np.array(2)) * y,
    "split and squeeze": lambda x, y: op.SequenceAt(op.SplitToSequence(x, axis=1, keepdims=0), np.array(0)) ** 2,
    "split by size": lambda x, y: op.SequenceAt(op.SplitToSequence(x, np.array(2), axis=1), np.array(1)) ** 2,
    "split by sizes": lambda x, y: op.ConcatFromSequence(op.SplitToSequence(x, np.array([1, 2]), axis=1), axis=1) ** 2,
    "insert": lambda x, y: op.ConcatFromSequence(op.SequenceInsert(op.SequenceConstruct(x, x), y), axis=1) ** 2,
    "insert in front": lambda x, y: op.SequenceAt(
        op.SequenceInsert(op.SequenceConstruct(x), y, np.array(0)), np.array(0)) ** 3,
    "insert in the middle": lambda x, y: op.ConcatFromSequence(
        op.SequenceInsert(op.SequenceConstruct(x, x * x), y, np.array(-1)), axis=1) ** 2,
    "erase": lambda x, y: op.ConcatFromSequence(
        op.SequenceErase(op.SequenceConstruct(x, y, x * x), np.array(1)), axis=1) ** 2,
    "erase the last": lambda x, y: op.ConcatFromSequence(
        op.SequenceErase(op.SequenceConstruct(x, y, x * x)), axis=1) ** 2,
}  # fmt: skip


def _twice(sequence):
    first = op.SequenceAt(sequence, np.array(0))
    return first * first * op.SequenceAt(sequence, np.array(0)) + op.SequenceAt(sequence, np.array(1))


@pytest.mark.parametrize("name", CASES)
def test_sequences(name):
    f = lambda x, y: CASES[name](x, y).sum() + (x * x).sum() + (y * y).sum()
    order = 2 if name in {"concat", "read twice", "insert"} else 1
    check_gradients(f, [X, Y], order=order, symbolic=[["a", 3], ["a", 1]])


def test_a_place_that_only_the_run_knows():
    f = lambda x, y, i: op.SequenceAt(op.SequenceConstruct(x, x * 2, x * y), i) ** 2
    for place in (0, 2, -1):
        check_gradients(lambda x, y, i: f(x, y, i).sum() + (y * y).sum(), [X, Y, np.array(place)], wrt=[0, 1],
                        symbolic=[["a", 3], ["a", 1], []])  # fmt: skip


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')


def test_sequence_map():
    model = _model("""g (float[2, 3] x, float[3] w) => (float loss) {
        s = SplitToSequence <axis = 0> (x)
        m = SequenceMap <body = b (float[1, 3] e, float[3] v) => (float[1, 3] o) { p = Mul(e, v) o = Mul(p, e) }> (s, w)
        c = ConcatFromSequence <axis = 0> (m)
        loss = ReduceSumSquare <keepdims = 0> (c)
    }""")
    out = gk.run(add_gradients(model, "loss", ["x", "w"]), {"x": X.astype("f"), "w": np.array([1, 2, 3], "f")})
    w = np.array([1.0, 2, 3])
    np.testing.assert_allclose(out["x_grad"], 4 * w**2 * X**3, rtol=1e-5)
    np.testing.assert_allclose(out["w_grad"], (2 * w * X**4).sum(0), rtol=1e-5)


def test_optionals():
    model = _model("""g (float[3] x) => (float loss) {
        o = Optional(x)
        e = OptionalGetElement(o)
        d = OptionalGetElement(o)
        p = Mul(e, d)
        loss = ReduceSum <keepdims = 0> (p)
    }""")
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(gk.run(add_gradients(model, "loss", ["x"]), {"x": x})["x_grad"], 2 * x)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_branches_whose_elements_differ_in_size(condition, swapped):
    branches = ["{ a = SplitToSequence <axis = 0> (x) }", "{ a = SequenceConstruct(w, x) }"][:: -1 if swapped else 1]
    model = _model(f"""g (bool c, float[3, 2] x, float[3, 2] w) => (float loss) {{
        s = If(c) <then_branch = t() => (seq(float[K, 2]) a) {branches[0]},
                   else_branch = e() => (seq(float[L, 2]) a) {branches[1].replace("a =", "b =")}>
        z = ConcatFromSequence <axis = 0> (s)
        loss = ReduceSumSquare <keepdims = 0> (z)
    }}""".replace("(seq(float[L, 2]) a)", "(seq(float[L, 2]) b)"))
    x, w = np.arange(12, dtype="f4").reshape(2, 3, 2)
    found = gk.run(add_gradients(model, "loss", ["x", "w"]), {"x": x, "w": w, "c": np.array(condition)})
    np.testing.assert_allclose(found["x_grad"], 2 * x)
    np.testing.assert_allclose(found["w_grad"], 0 * w if condition != swapped else 2 * w)


def test_a_loop_that_may_not_run_has_elements_of_either_size():
    model = _model("""g (int64 n, float[3, 2] x) => (float loss) {
        s = SequenceConstruct(x)
        f = Loop(n, , s) <body = b (int64 i, bool c, seq(float[A, 2]) q) => (bool d, seq(float[1, 2]) p) {
            d = Identity(c) p = SplitToSequence <axis = 0> (x) }>
        z = ConcatFromSequence <axis = 0> (f)
        loss = ReduceSumSquare <keepdims = 0> (z)
    }""")
    graph = ir.serde.deserialize_model(model)
    proto = Graph.adopt(graph).type_of(graph.graph.node(1).outputs[0]).proto
    assert [d.dim_value for d in proto.sequence_type.elem_type.tensor_type.shape.dim] == [0, 2]
