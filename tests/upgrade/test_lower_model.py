"""lower_model on whole models: bodies, functions, names, what is kept, and errors that name everything."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import graphkit as gk
from graphkit.errors import ModelFileError, OperatorError, PassError, TraceError
from graphkit.optimizers import change_opset
from graphkit.upgrade import lower_model, upgrade_model

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def lowered(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    model = ir.from_proto(proto)
    lower_model(model, opset)
    return ir.to_proto(model)


def run(proto: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def same(proto: onnx.ModelProto, opset: int, **feeds: np.ndarray) -> onnx.ModelProto:
    new = lowered(proto, opset)
    onnx.checker.check_model(new)
    for got, want in zip(run(new, **feeds), run(proto, **feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return new


BRANCHES = """<ir_version: 10, opset_import: ["": 21]>
g (bool c, float[2, 3, 4] x) => (float[A, B, C] y) <int64[1] axes = {1}> {
    y = If (c) <
        then_branch = t () => (float[A, B, C] ty) { ty = Softmax <axis = 1> (x) },
        else_branch = e () => (float[A, B, C] ey) {
            d = Squeeze (c)
            ey = If (d) <
                then_branch = tt () => (float[A, B, C] tty) { r = ReduceSum (x, axes) tty = Add (x, r) },
                else_branch = ee () => (float[A, B, C] eey) {
                    zero = Constant <value = float {0.0}> ()
                    eey = Clip (x, zero)
                }
            >
        }
    >
}"""


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 17, 20])
def test_bodies_within_bodies(opset: int):
    for condition in (True, False):
        new = same(parsed(BRANCHES), opset, c=np.array(condition), x=X)
    (node,) = new.graph.node
    assert [branch.g.output[0].name for branch in node.attribute] == ["ty", "ey"]
    assert bool(new.graph.initializer) == (opset >= 13)  # axes are an attribute below, and the constant is gone


@pytest.mark.parametrize("opset", [9, 11, 13, 18])
def test_loop_and_scan_bodies(opset: int):
    proto = parsed("""<ir_version: 10, opset_import: ["": 21]>
    g (int64 n, bool c, float[2, 3, 4] x) => (float[A, B, C] y, float[S, A, B, C] s, float[D, E] z) <
        int64[1] zero = {0}, int64[1] one = {1}> {
        y, s = Loop (n, c, x) <
            body = b (int64 i, bool k, float[2, 3, 4] a) => (bool ko, float[2, 3, 4] o, float[2, 3, 4] t) {
                ko = Identity (k)
                m = ReduceMax (a, one)
                o = Sub (a, m)
                t = LogSoftmax <axis = 0> (o)
            }
        >
        start = Constant <value = float[4] {1, 2, 3, 4}> ()
        rows = Slice (x, zero, one, zero)
        row = Squeeze (rows, zero)
        last, z = Scan <
            num_scan_inputs = 1,
            body = sb (float[4] q, float[4] r) => (float[4] qo, float[4] ro) {
                qo = Add (q, r)
                ru = Unsqueeze (r, zero)
                rs = Trilu (ru)
                ro = Squeeze (rs, zero)
            }
        > (start, row)
    }""")
    same(proto, opset, n=np.array(3), c=np.array(True), x=X)


def test_functions_are_inlined():
    proto = parsed("""<ir_version: 10, opset_import: ["": 21, "local": 1]>
    g (float[2, 3, 4] x) => (float[A] y) { y = local.total (x) }
    <domain: "local", opset_import: ["": 21]>
    total (a) => (b) { axes = Constant <value = int64[2] {0, -1}> () b = ReduceSum <keepdims = 0> (a, axes) }""")
    new = same(proto, 11, x=X)
    assert not new.functions
    assert [node.op_type for node in new.graph.node] == ["ReduceSum"]
    assert new.ir_version == 6


def test_names_metadata_and_initializers_are_kept():
    proto = parsed("""<ir_version: 10, opset_import: ["": 21], producer_name: "someone">
    g (float[N, 3] x) => (float[N, 3] y, float[N, 1] z) <float[3] weight = {1, 2, 3}, int64[1] axes = {-1},
                                                        float[3] never = {0, 0, 0}> {
        h = Mul (x, weight)
        y = Mish (h)
        z = ReduceMean (h, axes)
    }""")
    proto.metadata_props.add(key="owner", value="me")
    proto.graph.node[0].name, proto.graph.node[1].name = "first", "second"
    proto.graph.node[1].metadata_props.add(key="from", value="here")
    new = lowered(proto, 13)
    assert new.producer_name == "someone"
    assert {p.key: p.value for p in new.metadata_props} == {"owner": "me"}
    assert [v.name for v in (*new.graph.input, *new.graph.output)] == ["x", "y", "z"]
    assert [i.name for i in new.graph.initializer] == ["weight", "never"]  # what was never used is not ours to drop
    made = [node for node in new.graph.node if node.name.startswith("second")]
    assert [node.op_type for node in made] == ["Softplus", "Tanh", "Mul"]
    assert all(node.metadata_props[0].value == "here" for node in made)
    assert new.graph.node[0].output[0] == "h"


def test_a_default_that_a_caller_may_override_is_no_attribute():
    proto = parsed("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 3, 4] x, int64[1] axes = {1}) => (float[A, B, C] y) { y = ReduceSum (x, axes) }""")
    with pytest.raises(OperatorError, match=r"its axes are computed by the graph.*Write opset=13 or newer"):
        lowered(proto, 12)
    same(proto, 13, x=X)


def test_an_operator_of_another_library_is_left_alone():
    proto = parsed("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[2, 3, 4] x) => (float[A, B, C] y) {
        h = com.microsoft.QuickGelu <alpha = 1.5> (x)
        m = Abs (h)
        y = Add (m, x)
    }""")
    same(proto, 13, x=X)


@pytest.mark.parametrize(
    ("opset", "ir_version"), [(7, 4), (9, 4), (10, 5), (11, 6), (12, 7), (14, 7), (15, 8), (18, 8), (19, 9), (20, 9)]
)
def test_the_ir_version_is_the_lowest_that_serves(opset: int, ir_version: int):
    proto = parsed('<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) { y = Abs (x) }')
    assert lowered(proto, opset).ir_version == ir_version


def test_types_that_came_later():
    text = '<ir_version: 10, opset_import: ["": 21]> g (bfloat16[N] x) => (bfloat16[N] y) { y = Add (x, x) }'
    lowered(parsed(text), 13)
    with pytest.raises(OperatorError, match=r"it takes no tensor\(bfloat16\) there. Write opset=13"):
        lowered(parsed(text), 12)


def test_one_error_names_everything_and_the_lowest_opset():
    def function(x: gk.Tensor) -> gk.Tensor:
        y = gk.op.BitwiseNot(gk.op.Cast(x, to="int32"))
        z = gk.op.Erf(x) + gk.op.Erf(x * 2.0)
        return z + gk.op.Cast(y, to="float32")

    with pytest.raises(OperatorError) as caught:
        gk.trace(function, gk.spec("float32", ["n", 3]), opset=8)
    text = str(caught.value)
    lines = [int(n) for n in re.findall(r"test_lower_model.py:(\d+)", text)]
    first = function.__code__.co_firstlineno
    assert lines == [first + 1, first + 2, first + 2]
    assert "BitwiseNot at " in text
    assert "needs opset 18, and opset 8 was asked for: it does not exist there" in text
    assert "Erf at " in text
    assert "needs opset 9: it does not exist there" in text
    assert text.endswith("Write opset=18 or newer.")
    assert gk.trace(function, gk.spec("float32", ["n", 3]), opset=18).opset_imports[""] == 18


def test_training_and_random_operators():
    spec = gk.spec("float32", [2, 3])
    with pytest.raises(OperatorError, match=r"Dropout.*it trains"):
        gk.trace(lambda x: gk.op.Dropout(x, 0.5, True), spec, opset=11)
    model = gk.trace(lambda x: gk.op.Bernoulli(x), spec, opset=13)
    assert "RandomUniformLike" in [node.op_type for node in model.graph]


# change_opset: both ways, and any kind of model


@pytest.mark.parametrize("opset", [7, 10, 13, 17, 20, 21, 26])
def test_change_opset_goes_both_ways(opset: int):
    old = parsed("""<ir_version: 6, opset_import: ["": 11]>
    g (float[2, 3, 4] x) => (float[A, B] y) { s = Softmax <axis = 2> (x)
        y = ReduceSum <axes = [1], keepdims = 0> (s) }""")
    new = change_opset(old, opset)
    assert isinstance(new, onnx.ModelProto)
    assert new.opset_import[0].version == opset
    assert old.opset_import[0].version == 11
    np.testing.assert_allclose(run(new, x=X)[0], run(old, x=X)[0], rtol=1e-6)


def test_change_opset_refuses_what_nobody_writes():
    model = gk.trace(gk.op.Relu, gk.spec("float32", [2]))
    for opset in (6, 27):
        with pytest.raises(PassError, match="7 to 26"):
            change_opset(model, opset)
    with pytest.raises(TraceError, match="7 to 26"):
        gk.trace(gk.op.Relu, gk.spec("float32", [2]), opset=6)
    with pytest.raises(ModelFileError):
        change_opset(parsed('<ir_version: 3, opset_import: ["": 6]> g (float[2] x) => (float[2] y) {y = Abs(x)}'), 9)


def test_newer_than_21_can_be_lowered_to_21():
    def normal(x: gk.Tensor) -> gk.Tensor:
        return gk.op.RMSNormalization(x, np.ones(4, np.float32))

    spec = gk.spec("float32", ["n", 4])
    new, old = gk.trace(normal, spec), gk.trace(normal, spec, opset=21)
    assert (new.opset_imports[""], old.opset_imports[""]) == (23, 21)
    got, want = (gk.run(model, {"x": X[0]}, optimizations=False) for model in (old, new))
    np.testing.assert_allclose(got["output"], want["output"], rtol=1e-5)


def test_a_deep_model_takes_time_in_proportion():
    def deep(x: gk.Tensor) -> gk.Tensor:
        for _ in range(400):
            x = gk.op.ReduceMean(gk.op.Mish(x), [1]) + x
        return x

    model = gk.trace(deep, gk.spec("float32", ["n", 4]), opset=13)
    upgrade_model(model)
    assert len(model.graph) > 400 * 5


# optimize(opset=): the passes work in the words of the opset


def test_optimize_at_another_opset():
    model = gk.trace(lambda x: gk.op.Mish(x) + gk.op.ReduceMax(x, [1]), gk.spec("float32", [2, 4]))
    report = gk.optimizers.Report()
    old = gk.optimize(model, opset=13, report=report)
    assert old.opset_imports[""] == 13
    assert report.verified
    want, got = (gk.run(m, {"x": X[0, :2]}, optimizations=False)["output"] for m in (model, old))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    with pytest.raises(OperatorError, match=r"Erf at .*Write opset=9"):
        gk.optimize(gk.trace(gk.op.Erf, gk.spec("float32", [2])), opset=7)


def test_the_command_line_writes_old_opsets(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from graphkit.cli import main
    from graphkit.modelfile import write_model

    new, old, none = (tmp_path / f"{name}.onnx" for name in ("new", "old", "none"))
    write_model(gk.trace(gk.op.Erf, gk.spec("float32", ["n", 4])), new)

    def code(target: Path, opset: int) -> int:
        with pytest.raises(SystemExit) as stopped:
            main(["optimize", str(new), "-o", str(target), "--opset", str(opset)])
        assert isinstance(stopped.value.code, int)
        return stopped.value.code

    assert code(old, 13) == 0
    assert onnx.load(old).opset_import[0].version == 13
    assert code(none, 7) == 1
    assert "Write opset=9 or newer" in capsys.readouterr().err
    assert not none.exists()
    assert code(none, 6) == 2


@pytest.mark.parametrize("opset", [7, 9, 10, 12, 13])
def test_an_empty_batch_keeps_its_shape(opset: int):
    """What allowzero says, in the words of opsets that have it not."""
    proto = parsed("""<ir_version: 10, opset_import: ["": 21]>
    g (float[N, M, 4] x) => (float[A, B] y) <int64[1] last = {4}> {
        columns = Shape <start = 1, end = 2> (x)
        rows = Shape <start = 0, end = 1> (x)
        product = Mul (rows, last)
        target = Concat <axis = 0> (columns, product)
        y = Reshape <allowzero = 1> (x, target)
    }""")
    if opset < 10:
        with pytest.raises(OperatorError, match=r"Reshape.*Write opset=10"):
            lowered(proto, opset)
        return
    for shape in ((2, 3, 4), (0, 3, 4), (3, 0, 4)):
        same(proto, opset, x=np.ones(shape, np.float32))


def test_recurrent_layers_with_the_batch_first():
    proto = parsed("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 5, 3] x, float[1, 4, 3] w, float[1, 4, 4] r) => (float[2, 5, 1, 4] y) {
        y = RNN <hidden_size = 4, layout = 1> (x, w, r)
    }""")
    new = lowered(proto, 13)
    onnx.checker.check_model(new, full_check=True)
    assert not any(a.name == "layout" for node in new.graph.node for a in node.attribute)
    assert run(new, x=X[:, :1, :3].repeat(5, 1), w=np.ones((1, 4, 3), "f"), r=np.ones((1, 4, 4), "f"))[0].shape == (
        2, 5, 1, 4,
    )  # fmt: skip
