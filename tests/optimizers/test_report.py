"""The report: sizes before and after and by pass, the steps, and the reasons of passes that leave a node alone."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from graphkit.errors import PassError
from graphkit.optimizers import Report, optimize, passes
from graphkit.optimizers.flops import node_flops
from tests.optimizers.conftest import assert_same, parse, random_feeds, run

TWICE = "g (float[N,3] x) => (float[N,3] y) {a = Identity(x) b = Exp(a) c = Exp(x) y = Add(b, c)}"
AFFINE = (
    "g (float[N,4] x) => (float[N,8] y) <float[4,8] w, float[8] b, float[8] s> "
    "{a = MatMul(x, w) c = Add(a, b) d = Identity(c) y = Mul(d, s)}"
)


def weighted(text: str) -> onnx.ModelProto:
    model = parse(text)
    rng = np.random.default_rng(0)
    for value in model.graph.value_info:  # so the parser reads what is declared in angle brackets without numbers
        array = rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del model.graph.value_info[:]
    return model


def test_estimates_before_and_after():
    report = Report()
    optimize(parse(TWICE), report=report)
    assert (report.before.nodes, report.before.flops, report.before.peak_activation_bytes) == (4, 9, 24)
    assert (report.after.nodes, report.after.flops, report.after.peak_activation_bytes) == (2, 6, 12)
    assert report.passes["merge_common"].flops == -3
    title = str(report.table().title)
    assert "9 → 6 FLOPs" in title and "24 → 12 bytes of activations" in title


def test_what_the_passes_did_adds_up():
    report = Report()
    optimize(weighted(AFFINE), report=report)
    assert sum(entry.nodes for entry in report.passes.values()) == report.after.nodes - report.before.nodes
    before, after = report.before.flops or 0, report.after.flops or 0
    assert sum(entry.flops for entry in report.passes.values()) == after - before
    assert all(entry.seconds > 0 for entry in report.passes.values() if entry.rewrites)


def test_operations_that_cannot_be_counted():
    report = Report()
    model = parse("g (float[N] x) => (float[N] y) {a = Exp(x) y = my.own.Op(a)}", imports=', "my.own": 1')
    optimize(model, report=report)
    assert (report.before.flops, report.before.uncounted) == (1, 1)
    assert "at least 1" in str(report.table().title)


def test_nobody_pays_for_estimates_without_a_report():
    report = Report()
    optimize(parse(TWICE), verify=False, report=report)
    assert report.steps == []


def test_a_report_in_a_file_holds_the_steps(tmp_path):
    optimize(weighted(AFFINE), report=tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    steps = content["steps"]
    assert [step["pass"] for step in steps] == [name for name, did in content["passes"].items() if did["rewrites"]]
    assert len(steps) >= 2
    last = {key: number for key, number in steps[-1].items() if key not in ("pass", "file")}
    assert last == content["after"]


def test_log_steps(tmp_path):
    model = weighted(AFFINE)
    report = Report()
    result = optimize(model, report=report, log_steps=tmp_path / "new" / "steps")
    files = sorted(path.name for path in (tmp_path / "new" / "steps").iterdir())
    assert files == ["00_original.onnx", *(step.file for step in report.steps)]
    assert files[1].startswith("01_")
    feeds = random_feeds(model, 3)
    for file in files:
        step = onnx.load(tmp_path / "new" / "steps" / file)
        assert_same(run(step, feeds), run(model, feeds), 1e-5)
    assert [node.op_type for node in step.graph.node] == [node.op_type for node in result.graph.node]
    with pytest.raises(PassError, match="the steps cannot be written to"):
        optimize(model, log_steps=tmp_path / "new" / "steps" / files[0])


# Explanations

WHY = {
    "no equal": ("y = Add(a, x)", "y", "merge_common", "no other Add reads the same inputs"),
    "other attributes": (
        "b = Softmax<axis = 0>(a) c = Softmax<axis = 1>(a) y = Add(b, c)",
        "b",
        "merge_common",
        "'c' reads the same inputs, with other attributes",
    ),
    "random": (
        "b = RandomNormalLike(a) c = RandomNormalLike(a) y = Add(b, c)",
        "b",
        "merge_common",
        "two draws stay two",
    ),
    "read": ("b = Exp(a) y = Add(b, x)", "b", "prune", "'b' is read by Add 'y'"),
    "given out": ("y = Add(a, x)", "y", "prune", "a graph gives out 'y'"),
    "no Constant": ("y = Add(a, x)", "y", "lift_constants", "looks at Constant"),
    "rewritten": ("b = Identity(a) y = Add(b, x)", "b", "remove_identity", "it rewrote or removed a node"),
    "not constant": ("y = Add(a, x)", "y", "fold_constants", "'a' is not constant"),
}


@pytest.mark.parametrize("name", WHY)
def test_why_a_pass_left_a_node_alone(name):
    nodes, node, by, words = WHY[name]
    report = Report()
    optimize(parse(f"g (float[N,3] x) => (float[N,3] y) {{a = Abs(x) {nodes}}}"), report=report, explain=[node])
    assert words in {entry.by_pass: entry.reason for entry in report.explanations}[by]


def test_every_pass_answers():
    report = Report()
    optimize(parse(TWICE), report=report, explain="y")
    answers = {entry.by_pass: entry.reason for entry in report.explanations}
    assert set(answers) == {name for name, made in passes().items() if made.in_preset("inference")}
    assert all(answers.values())


def test_a_node_whose_attribute_the_caller_sets_is_left_alone():
    text = (
        '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[N] x) => (float[N] y) {y = f.leak<slope = 0.1>(x)} '
        '<domain: "f", opset_import: ["": 17]> leak<slope>(a) => (b) {b = LeakyRelu<alpha: float = @slope>(a)}'
    )
    report = Report()
    optimize(onnx.parser.parse_model(text), report=report, explain="b", passes=["merge_clips", "prune"])
    assert {entry.by_pass: entry.elsewhere for entry in report.explanations} == {"merge_clips": True, "prune": False}


# Operations of single nodes that the summaries' tests do not hold

COUNTED = {
    "Einsum with an ellipsis": (
        "float[2,5,3,4] x, float[5,4,6] w",
        'y = Einsum<equation = "...ij,...jk->...ik">(x, w)',
        2 * 2 * 5 * 3 * 4 * 6,
    ),
    "Einsum of three": ("float[3,4] x, float[4,5] w, float[5] v", 'y = Einsum<equation = "ij,jk,k->i">(x, w, v)', 180),
    "Attention of four dims": (
        "float[2,8,5,16] q, float[2,4,7,16] k, float[2,4,7,32] v",
        "y = Attention(q, k, v)",
        2 * 8 * 5 * 7 * (2 * 16 + 2 * 32 + 5),
    ),
    "Attention of three dims": (
        "float[2,5,32] q, float[2,7,16] k, float[2,7,16] v",
        "y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v)",
        2 * 4 * 5 * 7 * (2 * 8 + 2 * 8 + 5),
    ),
    "GRU": ("float[5,2,3] x, float[2,12,3] w, float[2,12,4] r", "y = GRU<hidden_size = 4>(x, w, r)", 3360),
    "Gemm, transposed": ("float[4,2] x, float[4,3] w", "y = Gemm<transA = 1>(x, w)", 2 * 2 * 3 * 4),
    "LayerNormalization": ("float[2,5] x, float[5] w", "y = LayerNormalization(x, w)", 80),
    "unknown operator": ("float[2] x", "y = my.own.Op(x)", None),
    "Gelu of the runtime": ("float[2] x", "y = com.microsoft.Gelu(x)", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_operations(name):
    import onnx_ir as ir

    inputs, nodes, expected = COUNTED[name]
    proto = parse(f"g ({inputs}) => (float[?] y) {{{nodes}}}", opset=23, imports=', "my.own": 1, "com.microsoft": 1')
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    node = list(model.graph)[-1]
    if node.domain:
        node.outputs[0].shape = ir.Shape([2])
    assert node_flops(node) == expected
