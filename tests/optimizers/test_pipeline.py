"""Choosing passes, the proof, the report, explanations, bodies, functions, and what must come through unchanged."""

from __future__ import annotations

import json
import time

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import PassError
from graphkit.optimizers import PRESETS, Report, freeze, optimize, passes, to_inference
from graphkit.optimizers.base import Pass, _registry
from graphkit.optimizers.context import Context


def parse(graph: str, header: str = '<ir_version: 8, opset_import: ["": 17]>') -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{header} {graph}")


SMALL = "g (float[N,3] x) => (float[N,3] y) {a = Identity(x) b = Identity(a) y = Abs(b)}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "inferrence"}, ["inferrence", "Did you mean 'inference'?", "training", "web"]),
        ({"passes": ["prun"]}, ["prun", "Did you mean 'prune'?", "merge_common"]),
        ({"skip": ["fold_constant"]}, ["Did you mean 'fold_constants'?", "skip"]),
        ({"passes": "prune"}, ["list of names"]),
    ],
)
def test_unknown_names(options, words):
    with pytest.raises(PassError) as caught:
        optimize(parse(SMALL), **options)
    for word in words:
        assert word in str(caught.value)


def test_selection():
    assert len(optimize(parse(SMALL), "none").graph.node) == 3
    assert len(optimize(parse(SMALL), passes=["prune"]).graph.node) == 3
    assert len(optimize(parse(SMALL), skip=["remove_identity"]).graph.node) == 3
    assert len(optimize(parse(SMALL), passes=["remove_identity"]).graph.node) == 1


def test_every_pass_says_what_it_does():
    for name, made in passes().items():
        assert made.name == name
        assert made.summary.endswith("."), name
        assert made.precondition, name
        assert (made.rewrite is None) != (made.run is None), name
        assert made.tolerance <= 1e-4, name
    assert {"inference", "training", "none"} <= set(PRESETS)


@pytest.mark.parametrize("kind", ["path", "proto", "model"])
def test_the_kind_comes_back(tmp_path, kind):
    proto = parse(SMALL)
    if kind == "proto":
        assert isinstance(optimize(proto), onnx.ModelProto)
    elif kind == "model":
        given = ir.from_proto(proto)
        result = optimize(given)
        assert isinstance(result, ir.Model)
        assert (len(given.graph), len(result.graph)) == (3, 1)
    else:
        onnx.save(proto, tmp_path / "m.onnx")
        assert isinstance(optimize(tmp_path / "m.onnx"), ir.Model)


# The proof


@pytest.fixture
def bad_pass():
    """A pass that is wrong: it takes every Abs for its input."""

    def rewrite(ctx: Context, node: ir.Node):
        source = node.inputs[0]
        assert source is not None
        if not ctx.replace(node.outputs[0], source):
            return "an output"
        ctx.remove(node)
        return True

    made = Pass("bad", "Wrong.", "None.", 0.0, True, frozenset({"inference"}), ("Abs",), rewrite=rewrite)
    _registry["bad"] = made
    yield made
    del _registry["bad"]


WRONG = "g (float[N,3] x) => (float[N,3] y) {a = Identity(x) b = Abs(a) c = Exp(b) d = Exp(b) y = Add(c, d)}"


def test_a_wrong_pass_is_found_and_taken_back(bad_pass):
    report = Report()
    result = optimize(parse(WRONG), report=report)
    assert list(report.dropped) == ["bad"]
    assert "differs" in report.dropped["bad"]
    assert report.verified
    assert [node.op_type for node in result.graph.node] == ["Abs", "Exp", "Add"]  # the sound passes stay
    assert "bad" in json.loads(report.to_json())["dropped"]


def test_strict_raises(bad_pass):
    with pytest.raises(PassError, match="'bad'"):
        optimize(parse(WRONG), strict=True)


def test_without_verification_nobody_notices(bad_pass):
    report = Report()
    result = optimize(parse(WRONG), verify=False, report=report)
    assert "Abs" not in [node.op_type for node in result.graph.node]
    assert not report.verified


def test_inputs_of_the_user(bad_pass):
    report = Report()
    optimize(parse(WRONG), report=report, inputs={"x": np.ones((1, 3), np.float32)})
    assert report.verified
    assert not report.dropped  # on positive numbers there is nothing to see


def test_indices_are_drawn_within_bounds():
    report = Report()
    graph = (
        "g (int64[N] i, int64[N] l) => (float[N,4] y, float z) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}> "
        "{a = Identity(i) y = Gather(w, a) z = SoftmaxCrossEntropyLoss(y, l)}"
    )
    optimize(parse(graph), report=report)
    assert report.verified, report.note


def test_what_the_runtime_cannot_run_is_said():
    report = Report()
    header = '<ir_version: 8, opset_import: ["": 17, "my.own": 1]>'
    graph = "g (float[N] x) => (float[N] y) {a = Identity(x) y = my.own.Op(a)}"
    result = optimize(parse(graph, header), report=report)
    assert not report.verified
    assert report.note
    assert [node.op_type for node in result.graph.node] == ["Op"]


def test_report_file(tmp_path):
    optimize(parse(SMALL), report=tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    assert (content["before"]["nodes"], content["after"]["nodes"], content["verified"]) == (3, 1, True)
    assert content["passes"]["remove_identity"]["rewrites"] == 2


def test_explain():
    report = Report()
    graph = parse("g (float[N,3] x) => (float[N,3] y) {a = Transpose<perm=[1,0]>(x) y = Transpose<perm=[0,1]>(a)}")
    optimize(
        parse("g (float[N,3] x) => (float[3,N] y) {a = Exp(x) y = Transpose<perm=[1,0]>(a)}"),
        report=report,
        explain="y",
    )
    reasons = {entry.by_pass: entry.reason for entry in report.explanations}
    assert "moves axes" in reasons["remove_transpose"]
    assert "not a Transpose" in reasons["merge_transposes"]
    assert "looks at" in reasons["merge_casts"]
    optimize(graph, report=report, explain=["nothing"])
    assert "no node" in report.explanations[0].reason


WHY = {
    "a": ("Expand", "bytes"),
    "b": ("Mul", "'k' is not constant"),
    "c": ("DequantizeLinear", "never"),
    "d": ("RandomNormalLike", "random"),
}


@pytest.mark.parametrize("name", WHY)
def test_explain_why_not_folded(name):
    graph = (
        "g (float[2] x, float[2] k) => (float[1000,2] a2, float[2] b, float[1] c2, float[2] d2) <float[2] k = {1,2}, "
        "float[2] w = {3,4}, int64[2] s = {1000, 2}, int8[1] q = {1}, float t = {0.5}> {a = Expand(w, s) a2 "
        "= Add(a, x) "
        "b = Mul(k, w) c = DequantizeLinear(q, t) c2 = Neg(c) d = RandomNormalLike(w) d2 = Neg(d)}"
    )
    report = Report()
    optimize(parse(graph), report=report, explain=name, skip=["remove_expand"])
    found = {entry.by_pass: (entry.operator, entry.reason) for entry in report.explanations}["fold_constants"]
    assert found[0] == WHY[name][0]
    assert WHY[name][1] in found[1]


# Bodies and functions

BODIES = {
    "known_if": (
        "g (float[N] x) => (float[N] y) <bool c = {1}> {v = Abs(x) y = If(c) <then_branch = t () => (float[N] r) "
        "{a = Exp(v) r = Neg(a)}, else_branch = e () => (float[N] r) {r = Sqrt(v)}>}",
        {"Abs": 1, "Exp": 1, "Neg": 1},
    ),
    "known_ifs_with_the_same_names": (
        "g (float[N] x) => (float[N] y, float[N] z) <bool c = {1}, bool d = {0}> {v = Abs(x) "
        "y = If(c) <then_branch = t () => (float[N] r) {a = Exp(v) r = Neg(a)}, else_branch = e () => "
        "(float[N] r) {r = Sqrt(v)}> "
        "z = If(d) <then_branch = t () => (float[N] r) {a = Exp(v) r = Neg(a)}, else_branch = e () => "
        "(float[N] r) {r = Sqrt(v)}>}",
        {"Abs": 1, "Exp": 1, "Neg": 1, "Sqrt": 1},
    ),
    "if_that_gives_an_outer_value": (
        "g (float[N] x) => (float[N] y) <bool c = {0}> {v = Abs(x) y = If(c) <then_branch = t () => (float[N] r) "
        "{r = Exp(v)}, else_branch = e () => (float[N] r) {r = Identity(x)}>}",
        {"Identity": 1},
    ),
    "nested_known_ifs": (
        "g (float[N] x) => (float[N] y) <bool c = {1}> {y = If(c) <then_branch = t () => (float[N] r) "
        "{a = Exp(x) r = If(c) <then_branch = u () => (float[N] r2) {r2 = Neg(a)}, else_branch = f () => "
        "(float[N] r2) {r2 = Abs(a)}>}, "
        "else_branch = e () => (float[N] r) {r = Sqrt(x)}>}",
        {"Exp": 1, "Neg": 1},
    ),
    "unknown_if": (
        "g (float[N] x, bool c) => (float[N] y) {v = Identity(x) y = If(c) <then_branch = t () => (float[N] r) "
        "{a = Identity(v) r = Neg(a)}, else_branch = e () => (float[N] r) {b = Abs(v) r = Identity(b)}>}",
        {"If": 1, "Neg": 1, "Abs": 1},
    ),
    "branches_of_one_shape": (
        "g (float[N,2] x, bool c) => (float[N,2] y) <int64[2] s = {-1, 2}> {v = If(c) <then_branch = t () => "
        "(float[N,2] r) "
        "{r = Neg(x)}, else_branch = e () => (float[N,2] r) {r = Abs(x)}> w = Reshape(v, s) y = Exp(w)}",
        {"If": 1, "Neg": 1, "Abs": 1, "Exp": 1},
    ),
    "branches_of_two_shapes": (
        "g (float[N,2] x, bool c) => (float[A,2] y) <int64[2] s = {-1, 2}> {v = If(c) <then_branch = t () => "
        "(float[N,2] r) "
        "{r = Neg(x)}, else_branch = e () => (float[M,2] r) {r = Concat<axis=0>(x, x)}> w = Reshape(v, s) y = Exp(w)}",
        {"If": 1, "Neg": 1, "Concat": 1, "Exp": 1},
    ),
    "branch_that_gives_a_constant": (
        "g (float[2] x, bool c) => (float[2] y) {y = If(c) <then_branch = t () => (float[2] r) "
        "{r = Constant<value = float[2] {1,2}>()}, else_branch = e () => (float[2] r) {r = Abs(x)}>}",
        {"If": 1, "Constant": 1, "Abs": 1},
    ),
    "loop": (
        "g (float[3] x) => (float[3] y) <int64 n = {30}, bool t = {1}, float o = {1.0}> {w = Mul(x, o) "
        "y = Loop(n, t, w) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] u) "
        "{d = Identity(c) e = Identity(v) f = Mul(e, w) u = Identity(f)}>}",
        {"Loop": 1, "Identity": 1, "Mul": 1},
    ),
    "loop_whose_shape_grows": (
        "g (float[3] x) => (float[A] y) <int64 n = {30}, bool t = {1}> "
        "{y = Loop(n, t, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] u) "
        "{d = Identity(c) s = Shape(v) f = Cast<to=1>(s) u = Concat<axis=0>(v, f)}>}",
        {"Loop": 1, "Identity": 1, "Shape": 1, "Cast": 1, "Concat": 1},
    ),
    "scan": (
        "g (float[N,3] x, float[3] s) => (float[3] y, float[N,3] z) {y, z = Scan(s, x) <num_scan_inputs = 1, body = b "
        "(float[3] a, float[3] e) => (float[3] c, float[3] d) {p = Identity(a) c = Add(p, e) d = Identity(c)}>}",
        {"Scan": 1, "Add": 1, "Identity": 1},
    ),
}


@pytest.mark.parametrize(("graph", "left"), BODIES.values(), ids=BODIES.keys())
def test_bodies(prove, graph, left):
    prove(graph, expected=left, verify=True, strict=True)


def test_functions(prove):
    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[N] x) => (float[N] y) {a = my.twice<k=2.0>(x) y = Identity(a)}
    <opset_import: ["": 17], domain: "my"> twice <k> (v) => (w)
    {c = Constant<value_float: float = @k>() d = Identity(v) e = Mul(d, c) u = Exp(d) w = Identity(e)}
    <opset_import: ["": 17], domain: "my"> unused (v) => (w) {w = Exp(v)}"""
    result = prove(onnx.parser.parse_model(text))
    assert [function.name for function in result.functions] == ["twice"]
    assert [node.op_type for node in result.functions[0].node] == ["Constant", "Mul"]


# What must come through


def test_names_metadata_and_documents_come_through(prove):
    model = parse(
        "g (float[batch,3] x, float[2] unused) => (float[batch,3] y, float[batch,3] y2) {a = Exp(x) y = "
        "Identity(a) y2 = Abs(a)}"
    )
    model.doc_string, model.graph.doc_string, model.producer_name = "about", "graph", "me"
    model.metadata_props.add(key="k", value="v")
    model.graph.output[0].doc_string = "the output"
    model.graph.input[1].doc_string = "not read"
    model.graph.node[0].name, model.graph.node[0].doc_string = "exponent", "kept"
    model.graph.node[0].metadata_props.add(key="source", value="line 3")
    result = prove(model)
    (node,) = (node for node in result.graph.node if node.op_type == "Exp")
    assert (node.name, node.doc_string, node.metadata_props[0].value) == ("exponent", "kept", "line 3")


def test_a_replaced_node_hands_on_its_metadata(prove):
    model = parse("g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}> {a = MatMul(x, w) y = Add(a, a)}")
    model.graph.node[1].input[1] = "b"
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "b"))
    model.graph.node[1].name = "sum"
    model.graph.node[1].metadata_props.add(key="source", value="line 4")
    (node,) = prove(model, tolerance=1e-6).graph.node
    assert (node.op_type, node.name, node.metadata_props[0].value) == ("Gemm", "sum", "line 4")


RARE = [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.BFLOAT16]


@pytest.mark.parametrize("dtype", RARE)
def test_rare_dtypes_come_through(dtype):
    tensor = helper.make_tensor("w", dtype, [3], [1, 2, 3])
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["w"], ["c"], to=1),
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    result = optimize(model)
    assert [node.op_type for node in result.graph.node] == ["Cast", "Add"]
    assert result.graph.initializer[0].data_type == dtype
    assert result.graph.initializer[0].SerializeToString() == tensor.SerializeToString()


def test_strings_come_through(prove):
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["k"], value=helper.make_tensor("t", TensorProto.STRING, [1], [b"b"])),
            helper.make_node("Identity", ["k"], ["l"]),
            helper.make_node("Equal", ["x", "l"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [2])],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    prove(model, {"x": np.array(["a", "b"], object)}, expected={"Constant": 1, "Equal": 1})


def test_unsorted_graph_is_sorted():
    given = parse("g (float[N] x) => (float[N] y) {a = Exp(x) b = Identity(a) y = Neg(b)}")
    first = given.graph.node.pop(0)
    given.graph.node.append(first)
    assert [node.op_type for node in optimize(given).graph.node] == ["Exp", "Neg"]


def test_linear_in_the_number_of_nodes():
    nodes = []
    for index in range(0, 6000, 3):
        source = "x" if not index else f"v{index}"
        nodes += [
            helper.make_node("Identity", [source], [f"a{index}"]),
            helper.make_node("Add", [f"a{index}", "w"], [f"b{index}"]),
            helper.make_node("Relu", [f"b{index}"], [f"v{index + 3}"]),
        ]
    nodes.append(helper.make_node("Neg", ["v6000"], ["y"]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "y")]
    graph = helper.make_graph(
        nodes, "g", values[:1], values[1:], [numpy_helper.from_array(np.ones(3, np.float32), "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    started = time.process_time()
    result = optimize(model, verify=False)
    assert time.process_time() - started < 5
    assert len(result.graph.node) == 4001


def test_to_inference():
    graph = (
        "g (float[N,3,2] x) => (float[N,3,2] y, float[3] mean, bool[N,3,2] mask) <float[3] s = {1,2,3}, "
        "float[3] m = {0.5,0,1}, float[3] v = {1,4,9}, float r = {0.5}, bool t = {1}> "
        "{d, mask = Dropout(x, r, t) a, mean, var = BatchNormalization<training_mode=1>(d, s, s, m, v) y = Neg(a)}"
    )
    result = to_inference(parse(graph))
    x = np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32)
    column = lambda *numbers: np.array(numbers, np.float32)[:, None]
    scale, mean, variance = column(1, 2, 3), column(0.5, 0, 1), column(1, 4, 9)
    y, new_mean, mask = onnxruntime.InferenceSession(
        result.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, {"x": x})
    np.testing.assert_allclose(y, -((x - mean) / np.sqrt(variance + 1e-5) * scale + scale), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(new_mean, mean[:, 0])
    assert mask.all()
    assert [value.name for value in result.graph.output] == ["y", "mean", "mask"]


def test_sparse_initializers_come_through(prove):
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([1, 2], np.float32), "k"),
        numpy_helper.from_array(np.array([0, 2]), "places"),
        [3],
    )
    model = parse("g (float[3] x) => (float[3] y) {a = Identity(x) y = Add(a, k)}")
    model.graph.sparse_initializer.append(sparse)
    result = prove(model, expected={"Add": 1}, verify=True, strict=True)
    assert list(result.graph.sparse_initializer) == [sparse]


def test_freeze():
    graph = parse(
        "g (float[batch,S,12] x, float[S] z) => (float[batch,S,3,4] y, float[S] w) <int64 i = {0}, int64 j = {1}, "
        "int64[1] k = {0}, int64[2] t = {3,4}> {s = Shape(x) a = Gather(s, i) b = Gather(s, j) c = Unsqueeze(a, k) "
        "d = Unsqueeze(b, k) v = Concat<axis=0>(c, d, t) y = Reshape(x, v) w = Abs(z)}"
    )
    frozen = freeze(graph, {"batch": 1, "S": 5})
    dims = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in frozen.graph.input]
    assert dims == [[1, 5, 12], [5]]
    assert [node.op_type for node in optimize(frozen).graph.node] == ["Reshape", "Abs"]
    assert graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize(
    ("dims", "words"),
    [({"bacth": 1}, "Did you mean 'batch'"), ({"batch": 0}, "at least 1"), ({"batch": 1.5}, "whole number")],
)
def test_freeze_refuses(dims, words):
    with pytest.raises(PassError, match=words):
        freeze(parse("g (float[batch] x) => (float[batch] y) {y = Abs(x)}"), dims)


ODD = {
    "no preset": ({"preset": None}, "a preset is the text 'inference' or .*, not None"),
    "an opset with a fraction": ({"opset": 17.0}, "an opset is a whole number, 7 to 26, not 17.0"),
    "a truth for an opset": ({"opset": True}, "an opset is a whole number"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_arguments(name):
    options, words = ODD[name]
    with pytest.raises(PassError, match=words):
        optimize(parse("g (float[N] x) => (float[N] y) {y = Abs(x)}"), **options)
