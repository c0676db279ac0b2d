"""Constants are computed beforehand where that makes the file no larger, and shapes where they are known."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.optimizers import Report

# name: (graph, operators left)
GRAPHS = {
    "arithmetic_of_constants": (
        "g (float[N,2] x) => (float[N,2] y) <float[2] a = {1,2}, float[2] b = {3,4}> {c = Mul(a, b) d = Add(c, "
        "b) y = Add(x, d)}",
        {"Add": 1},
    ),
    "constant_nodes_are_lifted": (
        "g (float[N,2] x) => (float[N,2] y) {c = Constant<value = float[2] {1,2}>() y = Add(x, c)}",
        {"Add": 1},
    ),
    "constants_of_every_form": (
        "g (float[N] x) => (float[N] y, int64[2] z) {c = Constant<value_float=2.5>() y = Mul(x, c) "
        "i = Constant<value_ints=[1,2]>() j = Constant<value_int=3>() z = Add(i, j)}",
        {"Mul": 1},
    ),
    "dequantize_stays": (
        "g (float[N] x) => (float[N] y) <int8[1] q = {3}, float s = {0.5}> {c = DequantizeLinear(q, s) y = Mul(x, c)}",
        {"DequantizeLinear": 1, "Mul": 1},
    ),
    "output_that_is_constant": (
        "g (float[N] x) => (float[N] y, float[2] z) <float[2] a = {1,2}, float[2] b = {3,4}> {z = Add(a, b) y "
        "= Abs(x)}",
        {"Abs": 1},
    ),
    "int64_is_exact": (
        "g (int64[N] x) => (int64[N] y) <int64 a = {9007199254740993}, int64 b = {2}> {c = Add(a, b) y = Add(x, c)}",
        {"Add": 1},
    ),
    "division_of_negative_integers": (
        "g (int64[N] x) => (int64[N] y) <int64 a = {-7}, int64 b = {2}> {c = Div(a, b) d = Mod(a, b) e = "
        "Add(c, d) y = Add(x, e)}",
        {"Add": 1},
    ),
    "shape_of_a_static_input": (
        "g (float[2,3] x) => (int64[2] y, float[2,3] z) {y = Shape(x) z = Abs(x)}",
        {"Abs": 1, "Shape": 1},  # the two numbers would take more bytes than the node
    ),
    "shape_of_a_symbolic_input_stays": (
        "g (float[N,3] x) => (int64[2] y, float[N,3] z) {y = Shape(x) z = Abs(x)}",
        {"Shape": 1, "Abs": 1},
    ),
    "static_dim_of_a_symbolic_shape": (
        "g (float[N,3] x) => (float[N,3] y) <int64 one = {1}> "
        "{s = Shape(x) d = Gather(s, one) f = Cast<to=1>(d) y = Div(x, f)}",
        {"Div": 1},
    ),
    "heads_split": (
        "g (float[N,S,12] x) => (float[N,S,3,4] y) <int64 i = {0}, int64 j = {1}, int64[1] z = {0}, int64[2] t = {3,4}>"
        "{s = Shape(x) a = Gather(s, i) b = Gather(s, j) c = Unsqueeze(a, z) d = Unsqueeze(b, z) "
        "w = Concat<axis=0>(c, d, t) y = Reshape(x, w)}",
        {"Reshape": 1},
    ),
    "heads_merged": (
        "g (float[N,3,S,4] x) => (float[N,S,12] y) <int64[1] i = {0}, int64[1] j = {2}, int64[1] t = {12}>"
        "{s = Shape(x) a = Gather(s, i) b = Gather(s, j) r = Transpose<perm=[0,2,1,3]>(x) "
        "w = Concat<axis=0>(a, b, t) y = Reshape(r, w)}",
        {"Transpose": 1, "Reshape": 1},
    ),
    "rows_by_product": (
        "g (float[N,S,4] x) => (float[M,4] y) <int64[1] i = {0}, int64[1] j = {1}, int64[1] t = {4}>"
        "{s = Shape(x) a = Gather(s, i) b = Gather(s, j) p = Mul(a, b) w = Concat<axis=0>(p, t) y = Reshape(x, w)}",
        {"Reshape": 1},
    ),
    "view_by_batch_is_flatten": (
        "g (float[N,H,W] x) => (float[N,M] y) <int64[1] i = {0}, int64[1] j = {1}, int64[1] k = {2}>"
        "{s = Shape(x) a = Gather(s, i) b = Gather(s, j) c = Gather(s, k) p = Mul(b, c) "
        "w = Concat<axis=0>(a, p) y = Reshape(x, w)}",
        {"Flatten": 1},
    ),
    "halves_that_round": (
        "g (float[N,4] x) => (float[M,4] y) <int64[1] i = {0}, int64[1] two = {2}, int64[1] t = {4}, int64[1] z = {0}>"
        "{s = Shape(x) a = Gather(s, i) h = Div(a, two) b = Mul(h, two) y = Slice(x, z, b, z)}",
        {"Shape": 1, "Div": 1, "Mul": 1, "Slice": 1},
    ),
    "two_unknown_dims_are_not_one": (
        "g (float[?,?] x) => (float[?,?] y) <int64[1] i = {0}, int64[1] j = {1}>"
        "{s = Shape(x) a = Gather(s, i) b = Gather(s, j) w = Concat<axis=0>(b, a) y = Reshape(x, w)}",
        {"Shape": 1, "Gather": 2, "Concat": 1, "Reshape": 1},
    ),
    "random_is_no_constant": (
        "g (float[N] x) => (float[N] y, float[4] z) <float[4] a = {1,1,1,1}> {r = RandomNormalLike<seed=1.0>(a) "
        "z = Sub(r, r) y = Abs(x)}",
        {"RandomNormalLike": 1, "Sub": 1, "Abs": 1},
    ),
}


@pytest.mark.parametrize(("graph", "left"), GRAPHS.values(), ids=GRAPHS.keys())
def test_folded_or_kept(prove, graph, left):
    prove(graph, expected=left, verify=True, strict=True)


@pytest.mark.parametrize("name", ["heads_split", "heads_merged", "rows_by_product", "view_by_batch_is_flatten"])
def test_empty_batches_still_run(prove, name):
    graph = GRAPHS[name][0]
    rank = {"heads_split": (0, 5, 12), "heads_merged": (0, 3, 5, 4), "rows_by_product": (0, 2, 4)}
    prove(graph, {"x": np.zeros(rank.get(name, (0, 3, 2)), np.float32)})


def overridable():
    graph = helper.make_graph(
        [helper.make_node("Mul", ["k", "two"], ["kk"]), helper.make_node("Add", ["x", "kk"], ["y"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "k")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "k"), numpy_helper.from_array(np.float32(2), "two")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_overridable_initializer(prove):
    x = np.array([10, 20], np.float32)
    prove(overridable(), {"x": x}, {"x": x, "k": np.array([5, 6], np.float32)}, expected={"Mul": 1, "Add": 1})


def test_old_ir_version_lists_weights_as_inputs(prove):
    model = overridable()
    model.ir_version = 3
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("two", TensorProto.FLOAT, []))
    prove(model, {"x": np.array([10, 20], np.float32)}, expected={"Mul": 1, "Add": 1})


BLOW_UPS = {
    "constant_of_shape": "<int64[2] s = {1000, 50}> {c = ConstantOfShape(s) y = Add(x, c)}",
    "expand": "<float[50] r = {%s}, int64[2] s = {1000, 50}> {c = Expand(r, s) y = Add(x, c)}",
    "tile": "<float[1,50] r = {%s}, int64[2] s = {1000, 1}> {c = Tile(r, s) y = Add(x, c)}",
    "range": "<float a = {0.0}, float b = {50000.0}, float d = {1.0}, int64[2] s = {1000, 50}>"
    " {r = Range(a, b, d) c = Reshape(r, s) y = Add(x, c)}",
    "one_hot": "<int64[50] i = {%s}, int64 n = {1000}, float[2] v = {0, 1}> {c = OneHot<axis=0>(i, n, v) y = "
    "Add(x, c)}",
    "outer_product": "<float[1000,1] a = {%l}, float[1,50] b = {%s}> {c = Mul(a, b) y = Add(x, c)}",
}


@pytest.mark.parametrize("graph", BLOW_UPS.values(), ids=BLOW_UPS.keys())
def test_no_blow_up(prove, graph):
    graph = graph.replace("%s", ",".join(["1"] * 50)).replace("%l", ",".join(["1"] * 1000))
    prove(f"g (float[1] x) => (float[1000,50] y) {graph}")


def test_shared_weight_is_not_doubled(prove):
    weight = numpy_helper.from_array(np.ones((64, 32), np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (int64[N] i) => (float[N,64] y) '
        "{e = Gather(w, i) t = Transpose(w) y = MatMul(e, t)}"
    )
    model.graph.initializer.append(weight)
    prove(model, preset="inference", skip=["absorb_transpose"], expected={"Gather": 1, "Transpose": 1, "MatMul": 1})


def test_weight_that_only_a_transpose_reads_is_folded(prove):
    weight = numpy_helper.from_array(np.arange(2048, dtype=np.float32).reshape(64, 32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N,32] x) => (float[N,64] y) {t = Transpose(w) y = '
        "MatMul(x, t)}"
    )
    model.graph.initializer.append(weight)
    result = prove(model, skip=["absorb_transpose"], expected={"MatMul": 1}, grow=64)
    assert "w" in result.graph.initializer[0].doc_string  # where the constant came from is recorded


def test_training_folds_no_parameter(prove):
    graph = "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}> {t = Transpose(w) y = MatMul(x, t)}"
    prove(graph, preset="training", skip=["absorb_transpose"], expected={"Transpose": 1, "MatMul": 1})
    prove(graph, preset="inference", skip=["absorb_transpose"], expected={"MatMul": 1}, grow=64)


def test_stale_shapes_inside_are_not_believed(prove):
    # Somebody made the batch dynamic and left the old shape on the value inside.
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N,3] x) => (int64[2] y) {a = Abs(x) y = Shape(a)}'
    )
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 3]))
    prove(model, expected={"Abs": 1, "Shape": 1})


def test_report_counts_what_was_done(prove):
    report = Report()
    prove(GRAPHS["arithmetic_of_constants"][0], report=report)
    assert (report.before.nodes, report.after.nodes) == (3, 1)
    assert report.passes["fold_constants"].rewrites == 1
    assert "fold_constants" in report.to_json()
    assert report.table().row_count >= 1


@pytest.mark.parametrize(
    ("chain", "left"),
    [
        (["Expand", "Sin", "Neg", "Tanh", "Cos", "Exp"], ["MatMul", "Concat"]),
        (["Expand"], ["Expand", "MatMul", "Concat"]),
    ],
)
def test_each_node_that_goes_may_take_some_bytes(prove, chain, left):
    """2,048 bytes are too many for one Expand beside 98,304 bytes of weights, and not for a chain of six."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((96, 256)), "v": rng.standard_normal((1, 256)), "shape": np.array([2, 256])}
    kept = [numpy_helper.from_array(a.astype("q" if n == "shape" else "f"), n) for n, a in arrays.items()]
    nodes, last = [], "v"
    for operator in chain:
        nodes.append(helper.make_node(operator, [last, "shape"] if operator == "Expand" else [last], [operator]))
        last = operator
    nodes += [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Concat", ["m", last], ["y"], axis=0)]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2, 96]), ("y", [4, 256]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = prove(model, tolerance=1e-6, grow=2048)
    assert [node.op_type for node in made.graph.node] == left
