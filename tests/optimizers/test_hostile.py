"""Graphs that break optimizers: odd outputs, names, captured values, lengths that are 1 today, old files."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.optimizers import optimize

X = np.array([1, -2, 3], np.float32)


def value(name: str, shape: list, dtype: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, initializers=(), opset=17, ir=8):
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def branch(name: str, number: float) -> onnx.GraphProto:
    tensor = numpy_helper.from_array(np.array([number], np.float32), f"o{name}")
    return helper.make_graph([], name, [], [value(f"o{name}", [1])], [tensor])


def choice(known: bool) -> onnx.ModelProto:
    chooser = helper.make_node("If", ["c"], ["z"], then_branch=branch("a", 1), else_branch=branch("b", 2))
    inputs = [value("x", [3])] if known else [value("x", [3]), value("c", [], TensorProto.BOOL)]
    constants = [numpy_helper.from_array(np.array(True), "c")] if known else []
    return model([chooser, helper.make_node("Identity", ["z"], ["y"])], inputs, [value("y", [1])], constants)


node = helper.make_node
k = numpy_helper.from_array(X, "k")
ODD = {
    "output_that_is_an_input": model(
        [node("Abs", ["x"], ["y"])], [value("x", [3])], [value("x", [3]), value("y", [3])]
    ),
    "output_given_twice": model(
        [node("Identity", ["x"], ["i"]), node("Abs", ["i"], ["y"])],
        [value("x", [3])],
        [value("y", [3]), value("y", [3])],
    ),
    "output_that_is_an_initializer": model(
        [node("Identity", ["x"], ["i"]), node("Add", ["i", "k"], ["y"])],
        [value("x", [3])],
        [value("y", [3]), value("k", [3])],
        [k],
    ),
    "input_that_is_not_read": model([node("Abs", ["x"], ["y"])], [value("x", [3]), value("u", [2])], [value("y", [3])]),
    "initializer_that_is_not_read": model([node("Abs", ["x"], ["y"])], [value("x", [3])], [value("y", [3])], [k]),
    "branches_that_are_constants": choice(known=False),
    "known_branch_that_is_a_constant": choice(known=True),
    "no_nodes": model([], [value("x", [3])], [value("x", [3])]),
    "dims_of_minus_one": model(
        [node("Identity", ["x"], ["i"]), node("Abs", ["i"], ["y"])], [value("x", [-1])], [value("y", [-1])]
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_interfaces(prove, name):
    feeds = {"x": X, "u": X[:2], "c": np.array(True)}
    names = {entry.name for entry in ODD[name].graph.input}
    prove(ODD[name], {key: array for key, array in feeds.items() if key in names}, verify=True, strict=True)


GRAPHS = {
    "question_marks_are_not_one_dim": (
        'g (float["?",3] x, float["?",3] z) => (float[A,3] y) {s = Shape(x) e = Expand(z, s) y = Mul(x, e)}',
        {"x": np.ones((1, 3), np.float32), "z": np.ones((4, 3), np.float32)},
    ),
    "one_only_today": (
        "g (float[N,3] x, float[M,3] z) => (float[A,3] y) {s = Shape(x) t = Shape(z) e = Expand(x, t) f = "
        "Expand(z, s) y = Add(e, f)}",
        {"x": np.ones((1, 3), np.float32), "z": np.ones((4, 3), np.float32)},
    ),
    "integers_beyond_32_bits": (
        "g (int64[N] x) => (int64[N] y) <int64 big = {4611686018427387904}, int64 one = {1}> "
        "{a = Sub(big, one) b = Add(a, one) y = Add(x, b)}",
        {"x": np.array([1, 2])},
    ),
    "int32_that_wraps": (
        "g (int32[N] x) => (int32[N] y) <int32 big = {2147483647}, int32 one = {1}> {a = Add(big, one) y = Add(x, a)}",
        {"x": np.array([1, 2], np.int32)},
    ),
    "captured_by_two_levels": (
        "g (float[3] x, bool c) => (float[3] y) {o = Identity(x) y = If(c) <then_branch = t () => (float[3] r) "
        "{i = Identity(o) r = If(c) <then_branch = u () => (float[3] q) {q = Add(i, o)}, "
        "else_branch = v () => (float[3] q) {q = Neg(i)}>}, else_branch = e () => (float[3] r) {r = Neg(o)}>}",
        {"x": X, "c": np.array(True)},
    ),
    "same_in_body_and_around": (
        "g (float[3] x, bool c) => (float[3] y) {e = Exp(x) y = If(c) <then_branch = t () => (float[3] r) {r "
        "= Exp(x)}, "
        "else_branch = f () => (float[3] r) {a = Exp(x) r = Add(a, e)}>}",
        {"x": X, "c": np.array(False)},
    ),
    "constants_that_only_a_body_reads": (
        "g (float[3] x) => (float[3] y) <int64 n = {3}, bool t = {1}, float[3] k = {1,2,3}, float[3] l = {1,1,1}> "
        "{m = Mul(k, l) y = Loop(n, t, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] u) "
        "{d = Identity(c) j = Add(m, l) u = Add(v, j)}>}",
        {"x": X},
    ),
    "sequences": (
        "g (float[N] x, float[N] z) => (float[M] y) {s = SequenceConstruct(x, z) i = Identity(s) "
        "y = ConcatFromSequence<axis=0>(i)}",
        {"x": X, "z": X},
    ),
    "empty_tensors": (
        "g (float[0,3] x) => (float[0,3] y, float[3] z) <int64[1] k = {0}> "
        "{a = Identity(x) y = Neg(a) z = ReduceSum<keepdims=0>(x, k)}",
        {"x": np.zeros((0, 3), np.float32)},
    ),
    "quantized_weights": (
        "g (float[N,4] x) => (float[N,2] y) <float s = {0.1}, int8 z = {0}, float[4,2] w = {1,2,3,4,5,6,7,8}> "
        "{q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) wq = QuantizeLinear(w, s, z) "
        "wd = DequantizeLinear(wq, s, z) y = MatMul(d, wd)}",
        {"x": np.ones((2, 4), np.float32)},
    ),
    "cast_to_text": ("g (int64[N] x) => (string[N] y) {a = Cast<to=6>(x) y = Cast<to=8>(a)}", {"x": np.array([1, 2])}),
    "top_k_of_all": (
        "g (float[N] x) => (float[M] y, int64[M] i) <int64[1] n = {2}> {a = Identity(x) y, i = TopK(a, n)}",
        {"x": X},
    ),
    "data_dependent_shape": (
        "g (float[N] x) => (float[M,1] y) <int64[1] m = {-1}, float z = {0.0}, int64[2] t = {0,1}> "
        "{b = Greater(x, z) c = Compress(x, b) s = Shape(c) r = Reshape(c, s) y = Reshape(r, t)}",
        {"x": X},
    ),
    "scatter_keeps_its_order": (
        "g (float[N] x) => (float[N] y) <int64[2] i = {0, 0}, float[2] u = {5, 6}> {a = ScatterElements(x, "
        "i, u) y = Neg(a)}",
        {"x": X},
    ),
    "mod_of_floats": ("g (float[N] x) => (float[N] y) <float t = {2.0}> {a = Mod<fmod=1>(x, t) y = Neg(a)}", {"x": X}),
    "softmax_of_old_opsets": (
        "g (float[2,3,2] x) => (float[2,3,2] y) {a = Identity(x) y = Softmax<axis=1>(a)}",
        {"x": np.arange(12, dtype=np.float32).reshape(2, 3, 2)},
    ),
}


@pytest.mark.parametrize(("graph", "feeds"), GRAPHS.values(), ids=GRAPHS.keys())
def test_hostile_graphs(prove, graph, feeds):
    prove(graph, feeds, verify=True, strict=True, opset=11 if "axis=1>(a)}" in graph else 17)


def test_siblings_with_constants_of_one_name(prove):
    def body(name: str, number: float) -> onnx.GraphProto:
        tensor = numpy_helper.from_array(np.full(3, number, np.float32), "w")
        nodes = [node("Exp", ["w"], ["e"]), node("Add", ["x", "e"], ["r"])]
        return helper.make_graph(nodes, name, [], [value("r", [3])], [tensor])

    given = model(
        [node("If", ["c"], ["y"], then_branch=body("t", 1), else_branch=body("f", 2))],
        [value("x", [3]), value("c", [], TensorProto.BOOL)],
        [value("y", [3])],
    )
    for chosen in (True, False):
        prove(given, {"x": X, "c": np.array(chosen)}, expected={"If": 1, "Add": 2}, grow=40)


def test_metadata_of_every_kind(prove):
    given = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21], producer_name: "me", doc_string: "text"> '
        "g (float[N] x) => (float[N] y) {a = Identity(x) y = Exp(a)}"
    )
    given.metadata_props.add(key="author", value="someone")
    given.graph.metadata_props.add(key="part", value="whole")
    given.graph.node[1].metadata_props.add(key="line", value="7")
    given.graph.input[0].metadata_props.add(key="unit", value="m")
    result = prove(given)
    assert result.graph.node[0].metadata_props[0].value == "7"


@pytest.mark.parametrize("opset", range(7, 24))
def test_every_opset_loads_and_stays(prove, opset):
    axes = "<int64[1] k = {1}>" if opset >= 13 else ""
    squeeze = "Squeeze(b, k)" if opset >= 13 else "Squeeze<axes=[1]>(b)"
    unsqueeze = "Unsqueeze(a, k)" if opset >= 13 else "Unsqueeze<axes=[1]>(a)"
    graph = f"g (float[N] x) => (float[N] y) {axes} {{a = Identity(x) b = {unsqueeze} c = {squeeze} y = Abs(c)}}"
    result = prove(graph, opset=opset, expected={"Abs": 1})
    assert result.opset_import[0].version == opset


def test_very_old_opsets_are_left_alone():
    given = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["": 5]> g (float[N] x) => (float[N] y) {a = Identity(x) y = Abs(a)}'
    )
    assert [each.op_type for each in optimize(given).graph.node] == ["Abs"]
