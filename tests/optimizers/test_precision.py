"""float16 and bfloat16: what becomes half, what stays, and that it is still the same model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.errors import PassError
from graphkit.modelfile import read_model, write_model
from graphkit.optimizers import PrecisionReport, to_precision
from graphkit.optimizers.loss_check import relative_error
from graphkit.optimizers.precision_operators import _FROM, _KERNELS
from tests.optimizers.conftest import operators, parse, random_feeds

FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
W = "float[3,3] w = {1,2,-1,0.5,0.25,3,-2,1,1}"


def constant(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array, np.float32), name)


def with_weights(text: str, opset: int = 17, imports: str = "", **arrays: Any) -> onnx.ModelProto:
    model = parse(text, opset, imports)
    model.graph.initializer.extend(constant(name, array) for name, array in arrays.items())
    return model


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def types(model: onnx.ModelProto) -> dict[str, int]:
    return {v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}


def no_chains(model: onnx.ModelProto) -> None:
    """No Cast reads a Cast, in any body."""

    def visit(graph: onnx.GraphProto, made: Mapping[str, str]) -> None:
        here = dict(made) | {name: node.op_type for node in graph.node for name in node.output}
        for node in graph.node:
            assert not (node.op_type == "Cast" and here.get(node.input[0]) == "Cast"), node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g, here)

    visit(model.graph, {})


def converted(model: onnx.ModelProto, dtype: str = "float16", tolerance: float = 0.01, **options: Any):
    """Convert, and hold the result to what every conversion promises; the error is that of onnx's own evaluator."""
    onnx.checker.check_model(model, full_check=True)
    before = model.SerializeToString(deterministic=True)
    report = PrecisionReport()
    result = to_precision(model, dtype, report=report, **options)
    assert model.SerializeToString(deterministic=True) == before, "the model that was given changed"
    onnx.checker.check_model(result, full_check=True)
    assert len(result.graph.output) == len(model.graph.output)
    assert [v.name for v in result.graph.output] == [v.name for v in model.graph.output]
    if options.get("keep_io", True) and model.ir_version > 3:
        assert types(result) == types(model)
    no_chains(result)
    feeds = {name: np.abs(x) if x.dtype.kind == "f" else x for name, x in random_feeds(model, 3).items()}
    wanted = session(model).run(None, feeds)
    if dtype == "float16":
        kinds = {v.name: v.type.tensor_type.elem_type for v in result.graph.input}
        fitting = {n: x.astype(np.float16) if kinds[n] == HALF else x for n, x in feeds.items()}
        for got, right in zip(session(result).run(None, fitting), wanted, strict=True):
            assert relative_error(got, right, 1e-3) <= tolerance
        # The runtime computes in float32 here; onnx's evaluator rounds every result to half, as numpy does. (What a
        # Loop collects, it joins along an axis that is there already.)
        with np.errstate(all="ignore"):
            by_numpy = [] if "Loop" in operators(result) else ReferenceEvaluator(result).run(None, fitting)
            for got, right in zip(by_numpy, wanted, strict=False):
                assert relative_error(np.asarray(got), np.asarray(right), 1e-3) <= tolerance
    again = to_precision(result, dtype, **options)
    assert operators(again) == operators(result), "a second conversion changed something"
    return result, report


# Each: the graph, what is left of it, and what stays in float32 and why (a word of the reason).
GRAPHS: dict[str, tuple[onnx.ModelProto, dict[str, int], dict[str, str]]] = {
    "a layer": (
        parse(f"g (float[N,3] x) => (float[N,3] y) <{W}> {{h = MatMul(x, w) y = Relu(h)}}"),
        {"Cast": 2, "MatMul": 1, "Relu": 1}, {},
    ),
    "softmax": (
        parse(f"g (float[N,3] x) => (float[N,3] y) <{W}> {{h = MatMul(x, w) s = Softmax(h) y = MatMul(s, w)}}"),
        {"Cast": 4, "MatMul": 2, "Softmax": 1}, {"Softmax (s)": "overflow"},
    ),
    "a written-out norm": (
        parse(
            "g (float[N,3] x) => (float[N,3] y) <float two = {2}, float eps = {1e-12}> {m = ReduceMean<axes=[1]>(x) "
            "d = Sub(x, m) p = Pow(d, two) v = ReduceMean<axes=[1]>(p) e = Add(v, eps) s = Sqrt(e) y = Div(d, s)}"
        ),
        {"Cast": 4, "ReduceMean": 2, "Sub": 1, "Pow": 1, "Add": 1, "Sqrt": 1, "Div": 1},
        {"Pow (p)": "overflow", "Add (e)": "underflows", "ReduceMean (v)": "follows", "Sqrt (s)": "follows"},
    ),
    "a mask of the lowest float32": (
        parse(
            f"g (float[N,3] x, bool[N,3] m) => (float[N,3] y) <{W}, float k = {{-3.4028234663852886e38}}> "
            "{h = MatMul(x, w) f = Where(m, h, k) a = Add(f, x) s = Softmax(a) y = MatMul(s, w)}"
        ),
        {"Cast": 4, "MatMul": 2, "Where": 1, "Add": 1, "Softmax": 1},
        {"Where (f)": "'k' overflows", "Add (a)": "range", "Softmax (s)": "range"},
    ),
    "a mask of infinity": (
        parse(
            "g (float[N,3] x, bool[N,3] m) => (float[N,3] y) {k = Constant<value_float = -inf>() "
            "f = Where(m, x, k) y = Sigmoid(f)}".replace("-inf", "-1e30")
        ),
        {"Where": 1, "Constant": 1, "Sigmoid": 1}, {"Where (f)": "overflows", "Sigmoid (y)": "range"},
    ),
    "scales of Resize": (
        parse("g (float[1,1,2,2] x) => (float[1,1,?,?] y) <float[4] s = {1,1,2,2}> {a = Abs(x) y = Resize(a, , s)}"),
        {"Cast": 2, "Abs": 1, "Resize": 1}, {},
    ),
    "positions": (
        parse(
            "g (float[N,3] x) => (float[N,3] y) <float[3] f = {1,0.1,0.01}, int64 i = {0}, int64 o = {1}, "
            "int64[1] z = {1}> {s = Shape(x) n = Gather(s, i) r = Range(i, n, o) c = Cast<to=1>(r) "
            "u = Unsqueeze(c, z) a = Mul(u, f) k = Cos(a) y = Mul(x, k)}"
        ),
        {"Shape": 1, "Gather": 1, "Range": 1, "Cast": 4, "Unsqueeze": 1, "Mul": 2, "Cos": 1},
        {"Unsqueeze (u)": "positions", "Mul (a)": "positions", "Cos (k)": "positions"},
    ),
    "branches": (
        parse(
            f"g (bool p, float[N,3] x) => (float[N,3] y) <{W}> {{h = MatMul(x, w) z = If<then_branch = a () => "
            "(float[N,3] t) {t = Neg(h)}, else_branch = b () => (float[N,3] e) {e = MatMul(h, w)}>(p) y = Relu(z)}"
        ),
        {"Cast": 2, "MatMul": 2, "If": 1, "Neg": 1, "Relu": 1}, {},
    ),
    "branches of which one stays": (
        parse(
            f"g (bool p, float[N,3] x) => (float[N,3] y) <{W}> {{h = MatMul(x, w) z = If<then_branch = a () => "
            "(float[N,3] t) {t = Neg(h)}, else_branch = b () => (float[N,3] e) {e = Exp(x)}>(p) y = Relu(z)}"
        ),
        {"Cast": 4, "MatMul": 1, "If": 1, "Neg": 1, "Exp": 1, "Relu": 1}, {"Exp (e)": "steep"},
    ),
    "a loop": (
        parse(
            f"g (float[3,3] x) => (float[3,3] y, float[K,3,3] z) <int64 n = {{3}}, bool t = {{1}}, {W}> "
            "{q = Abs(x) y, z = Loop<body = b (int64 i, bool c, float[3,3] s) => (bool d, float[3,3] u, float[3,3] o) "
            "{d = Identity(c) u = Add(s, q) o = MatMul(u, w)}>(n, t, x)}"
        ),
        {"Cast": 4, "Abs": 1, "Loop": 1, "Identity": 1, "Add": 1, "MatMul": 1}, {},
    ),
    "a scan": (
        parse(
            f"g (float[3] x, float[K,3] v) => (float[3] y, float[K,3] z) <{W}> {{y, z = Scan<num_scan_inputs=1, "
            "body = b (float[3] s, float[3] e) => (float[3] u, float[3] o) {u = Add(s, e) o = MatMul(u, w)}>(x, v)}"
        ),
        {"Cast": 4, "Scan": 1, "Add": 1, "MatMul": 1}, {},
    ),
    "a function": (
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[N,3] x) => (float[N,3] y) '
            f'<{W}> {{y = own.f(x, w)}} <domain: "own", opset_import: ["": 17]> f (a, b) => (c) '
            "{d = MatMul(a, b) c = Tanh(d)}"
        ),
        {"Cast": 2, "MatMul": 1, "Tanh": 1}, {},
    ),
    "a constant for both": (
        parse("g (float[N,3] x) => (float[N,3] y) <float k = {3}> {a = Mul(x, k) b = Pow(a, k) y = Mul(b, k)}"),
        {"Cast": 2, "Mul": 2, "Pow": 1}, {"Pow (b)": "overflow", "Mul (y)": "follows"},
    ),
    "constants in nodes": (
        parse("g (float[N,3] x) => (float[N,3] y) {k = Constant<value_float = 3.0>() y = Mul(x, k)}"),
        {"Cast": 2, "Constant": 1, "Mul": 1}, {},
    ),
    "half already": (
        parse("g (float16[N,3] x) => (float[N,3] y) {f = Cast<to=1>(x) y = Tanh(f)}"), {"Tanh": 1, "Cast": 1}, {},
    ),
    "a mask of booleans": (
        parse("g (float[N,3] x, bool[N,3] m) => (float[N,3] y) {f = Cast<to=1>(m) y = Mul(x, f)}"),
        {"Mul": 1, "Cast": 3}, {},
    ),
    "casts that are none": (
        parse("g (float[N,3] x) => (float[N,3] y) {a = Cast<to=1>(x) b = CastLike(a, x) y = Tanh(b)}"),
        {"Identity": 2, "Tanh": 1, "Cast": 2}, {},
    ),
    "outputs of all kinds": (
        parse(
            "g (float[2] x) => (float[2] x, float[2] k, float[2] y, float[2] y, float[2] z) <float[2] k = {1,2}> "
            "{y = Add(x, k) z = Relu(y)}"
        ),
        {"Cast": 3, "Add": 1, "Relu": 1}, {},
    ),
    "moves between nodes that stay": (
        parse("g (float[N,3] x) => (float[3,N] y) {a = Abs(x) e = Exp(a) n = Neg(e) y = Transpose(n)}"),
        {"Abs": 1, "Exp": 1, "Neg": 1, "Transpose": 1},
        {"Abs (a)": "moves numbers", "Exp (e)": "steep", "Neg (n)": "follows", "Transpose (y)": "follows"},
    ),
    "float64": (
        parse("g (double[2] x) => (float[2] y) {a = Abs(x) b = Cast<to=1>(a) y = Tanh(b)}"),
        {"Abs": 1, "Cast": 2, "Tanh": 1}, {},
    ),
    "the shape of a weight": (
        parse(f"g (float[N,3] x) => (float[N,3] y, int64[2] s) <{W}> {{y = MatMul(x, w) s = Shape(w)}}"),
        {"Cast": 2, "MatMul": 1, "Shape": 1}, {},
    ),
    "a filling": (
        parse(
            "g (float[N,3] x) => (float[N,3] y) {s = Shape(x) k = ConstantOfShape<value = float[1] {2}>(s) "
            "y = Add(x, k)}"
        ),
        {"Shape": 1, "ConstantOfShape": 1, "Add": 1, "Cast": 2}, {},
    ),
    "numbers that leave the range": (
        parse("g (float[N,3] x) => (float[N,3] y) <float k = {30000}> {a = Mul(x, k) b = Mul(a, k) y = Tanh(b)}"),
        {"Mul": 2, "Tanh": 1}, {"Mul (a)": "range", "Mul (b)": "range", "Tanh (y)": "range"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_becomes_half(name):
    model, left, kept = GRAPHS[name]
    result, report = converted(model)
    assert operators(result) == left, onnx.printer.to_text(result)
    assert set(report.kept) == set(kept)
    for node, word in kept.items():
        assert word in report.kept[node], report.kept
    assert report.error is not None and report.error <= 0.01 and "rounded to float16" in report.checked


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_inputs_and_outputs_in_half(name, dtype):
    model = GRAPHS[name][0]
    result, _ = converted(model, dtype, keep_io=False, tolerance=0.05)
    made = types(result)
    half = HALF if dtype == "float16" else BFLOAT
    constants = {tensor.name for tensor in model.graph.initializer}
    for value, kind in types(model).items():
        assert made[value] == (half if kind == FLOAT and value not in constants else kind) or value in constants


@pytest.mark.parametrize("name", GRAPHS)
def test_bfloat16(name):
    _, report = converted(GRAPHS[name][0], "bfloat16")
    assert report.error is not None and report.error <= 0.08
    assert "ONNX's checker takes the file" in report.checked


@pytest.mark.parametrize(
    ("keep", "stays"),
    [
        (["first"], {"first"}),
        (["MatMul"], {"first", "middle", "second"}),
        (["h"], {"first"}),
        (["w"], {"first", "middle", "second"}),
        (["x"], {"first"}),
        (["s*"], {"second"}),
        (["Relu", "y"], {"middle", "second"}),
        ([], set()),
    ],
)
def test_the_keep_list(keep, stays):
    model = parse(f"g (float[N,3] x) => (float[N,3] y) <{W}> {{h = MatMul(x, w) r = Relu(h) y = MatMul(r, w)}}")
    for node, name in zip(model.graph.node, ("first", "middle", "second"), strict=True):
        node.name = name
    _, report = converted(model, keep=keep)
    assert set(report.kept) == stays
    moved = {name for name, reason in report.kept.items() if "moves numbers between" in reason}
    assert moved == stays & {"middle"} - set(keep) - ({"middle"} if "Relu" in keep else set())
    assert all("keep list" in reason for name, reason in report.kept.items() if name not in moved)


OVERFLOWING = {
    # Where no value of the main graph can be looked at, the nodes at fault are found by trying.
    "in a loop": (
        "g (float[3] x) => (float[3] y) <int64 n = {2}, bool t = {1}, float k = {900}, float j = {1e-3}> {z = Loop<"
        "body = b (int64 i, bool c, float[3] s) => (bool d, float[3] u) {d = Identity(c) q = Abs(s) a = Mul(q, k) "
        "f = Mul(a, k) v = Mul(f, j) u = Mul(v, j)}>(n, t, x) y = Neg(z)}",
        {"Mul (f)", "Mul (v)"},
    ),
    "in a branch": (
        "g (bool p, float[3] x) => (float[3] y) <float k = {1000}> {z = If<then_branch = a () => (float[3] t) "
        "{q = Abs(x) e = Mul(q, k) f = Mul(e, k) t = Tanh(f)}, else_branch = b () => (float[3] w) "
        "{q = Abs(x) e = Mul(q, k) f = Mul(e, k) h = Div(f, k) w = Div(h, k)}>(p) y = Neg(z)}",
        {"Mul (f)", "Div (h)"},
    ),
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_the_loss_check_finds_the_nodes_at_fault(name):
    text, faults = OVERFLOWING[name]
    report = PrecisionReport()
    feeds = {"x": np.array([1, 2, 3], np.float32)} | ({"p": np.array(False)} if "bool p" in text else {})
    model = parse(text)
    result = to_precision(model, "float16", report=report, inputs=feeds)
    assert faults <= set(report.by_check) and len(report.by_check) <= 4
    assert report.error is not None and report.error < 0.01
    got, right = (session(m).run(None, feeds)[0] for m in (result, model))
    assert relative_error(got, right) < 0.01


def test_the_check_can_be_left_out_or_loosened_and_says_so():
    model = parse(OVERFLOWING["in a branch"][0])
    report = PrecisionReport()
    to_precision(model, "float16", check=False, report=report)
    assert report.error is None and report.checked == "not checked: it was not asked for" and not report.by_check
    other = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[N] x) => (float[N] y) {h = own.Odd(x) y = Neg(h)}'
    )
    to_precision(other, "float16", report=report)
    assert report.checked.startswith("not checked: the original does not run")
    assert report.kept["Odd (h)"] == "operators of own are left alone"
    assert json.loads(json.dumps(report.to_dict()))["dtype"] == "float16"


def test_what_cannot_be_given_out_is_refused():
    model = parse("g (float[N] x) => (float[N] y) <float k = {1e6}> {y = Mul(x, k)}")
    with pytest.raises(PassError, match="'y' cannot be given out in float16"):
        to_precision(model, "float16", keep_io=False)


TRAINING = "g (float[4,3] x) => (float[4,3] y) <float r = {0.5}, bool t = {1}> {y = Dropout(x, r, t)}"
REFUSED = {
    "dtype": (parse("g (float[N] x) => (float[N] y) {y = Abs(x)}"), {"dtype": "float8"}, "'float16' or 'bfloat16'"),
    "keep": (
        parse("g (float[N] x) => (float[N] y) {y = Sigmoid(x)}"),
        {"keep": ["Sigmod"]}, r"called 'Sigmod' \(in keep\). Did you mean 'Sigmoid'",
    ),
    "text": (parse("g (float[N] x) => (float[N] y) {y = Abs(x)}"), {"keep": "Abs"}, "keep is a list"),
    "tolerance": (parse("g (float[N] x) => (float[N] y) {y = Abs(x)}"), {"tolerance": 0.0}, "above 0"),
    "training": (parse(TRAINING), {}, "training graph .* float32 master weights and a loss scale"),
    "opset": (
        parse("g (float[N] x) => (float[N] y) {y = Abs(x)}", 12), {"dtype": "bfloat16"}, "opset to 13 or newer",
    ),
    "inputs": (
        parse("g (float[N] x) => (float[N] y) {y = Abs(x)}"),
        {"inputs": {"x": np.zeros((2, 2), np.float32)}}, "does not run on the inputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    model, options, words = REFUSED[name]
    with pytest.raises(PassError, match=words):
        to_precision(model, **({"dtype": "float16"} | options))


def test_a_graph_of_training_is_refused_and_its_inference_is_not():
    net = gk.nn.Sequential(gk.nn.Linear(4, 8), gk.nn.relu, gk.nn.Linear(8, 2))
    graph = gk.training.build(
        net, loss="cross_entropy", optimizer=gk.optim.SGD(0.1), inputs={"x": gk.spec("float32", ["n", 4])}
    )
    with pytest.raises(PassError, match="training graph"):
        to_precision(graph.train, "float16")
    report = PrecisionReport()
    to_precision(graph.inference(), "float16", report=report)
    assert report.converted and report.error is not None


def test_initializers_that_may_be_overridden():
    model = parse(f"g (float[N,3] x, float[3,3] w) => (float[N,3] y) <{W}> {{h = MatMul(x, w) y = Relu(h)}}")
    result, _ = converted(model)
    assert types(result)["w"] == FLOAT and {t.name: t.data_type for t in result.graph.initializer} == {"w": FLOAT}
    result = to_precision(model, "float16", keep_io=False)
    assert types(result)["w"] == HALF and {t.name: t.data_type for t in result.graph.initializer} == {"w": HALF}
    feeds = {"x": np.ones((2, 3), np.float16), "w": np.ones((3, 3), np.float16)}
    assert session(result).run(None, feeds)[0].tolist() == [[3, 3, 3], [3, 3, 3]]


def test_a_file_of_ir_3_whose_weights_are_inputs():
    model = parse(f"g (float[N,3] x, float[3,3] w) => (float[N,3] y) <{W}> {{h = MatMul(x, w) y = Relu(h)}}", 8)
    model.ir_version = 3
    result = to_precision(model, "float16")
    assert result.ir_version == 3 and types(result) == {"x": FLOAT, "w": HALF, "y": FLOAT}
    feeds = {"x": np.ones((2, 3), np.float32)}
    np.testing.assert_allclose(session(result).run(None, feeds)[0], session(model).run(None, feeds)[0], rtol=1e-3)


def test_tied_weights_stay_one_and_the_file_is_half_as_large(tmp_path: Path):
    rng = np.random.default_rng(0)
    table = rng.standard_normal((300, 32)).astype(np.float32)
    text = "g (int64[N] i) => (float[N,300] y) {h = Gather(t, i) g = Gelu(h) u = Transpose(t) y = MatMul(g, u)}"
    model = with_weights(text, 20, t=table)
    model.metadata_props.add(key="author", value="somebody")
    result, report = converted(model)
    assert [(t.name, t.data_type) for t in result.graph.initializer] == [("t", HALF)]
    assert report.bytes_after * 2 == report.bytes_before
    assert list(result.metadata_props) == list(model.metadata_props)
    onnx.save(model, tmp_path / "m.onnx")
    write_model(to_precision(tmp_path / "m.onnx", "float16"), tmp_path / "half.onnx")
    assert (tmp_path / "half.onnx").stat().st_size < 0.51 * (tmp_path / "m.onnx").stat().st_size
    again = to_precision(read_model(model), "float16")
    assert again.graph.initializers["t"].dtype.name == "FLOAT16"


LAYERS = {
    "convolutions": (
        "g (float[1,3,9,9] x) => (float[1,4] y) {c = Conv<pads=[1,1,1,1]>(x, k) n = BatchNormalization(c, s, b, m, v) "
        "r = Relu(n) p = MaxPool<kernel_shape=[2,2]>(r) a = GlobalAveragePool(p) f = Flatten(a) y = Gemm(f, g, b)}",
        {"k": (4, 3, 3, 3), "s": 4, "b": 4, "m": 4, "v": 4, "g": (4, 4)},
    ),
    "recurrence": (
        "g (float[5,1,3] x) => (float[5,1,1,4] y) {y = LSTM<hidden_size=4>(x, w, r)}",
        {"w": (1, 16, 3), "r": (1, 16, 4)},
    ),
    "normalization": (
        "g (float[N,8] x) => (float[N,8] y) {n = LayerNormalization(x, s, b) y = Mul(n, x)}", {"s": 8, "b": 8},
    ),
    "einsum": ('g (float[3,4] x) => (float[3,5] y) {y = Einsum<equation="ij,jk->ik">(x, w)}', {"w": (4, 5)}),
    "transposed convolution": (
        "g (float[1,3,5,5] x) => (float[1,2,7,7] y) {y = ConvTranspose(x, w)}", {"w": (3, 2, 3, 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    text, shapes = LAYERS[name]
    rng = np.random.default_rng(0)
    arrays = {key: np.abs(rng.standard_normal(shape)) + 0.1 for key, shape in shapes.items()}
    model = with_weights(text, **arrays)
    report = PrecisionReport()
    result = to_precision(model, "float16", report=report)
    assert {tensor.data_type for tensor in result.graph.initializer} == {HALF}, report.kept
    assert operators(result)["Cast"] == 2 and report.error is not None and report.error < 0.01
    feeds = random_feeds(model, 2)
    assert relative_error(session(result).run(None, feeds)[0], session(model).run(None, feeds)[0]) < 0.01


def test_the_emulation_is_what_half_precision_gives():
    """Against numpy, which computes each of these in float32, rounds once, and gives the same bits."""
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal((4, 16)).astype(np.float32) for _ in range(2))
    model = with_weights("g (float[4,16] x) => (float[4,16] y) {a = Mul(x, w) b = Add(a, x) y = Mul(b, w)}", w=w)
    report = PrecisionReport()
    to_precision(model, "float16", inputs={"x": x}, report=report)
    exact = (x * w + x) * w
    a, b = x.astype(np.float16), w.astype(np.float16)
    rounded = ((a * b + a) * b).astype(np.float32)
    assert report.error == pytest.approx(np.abs(rounded - exact).max() / np.abs(exact).max(), rel=1e-6)


def test_the_table_is_that_of_the_kernels():
    """Against the runtime's registry, as written down for opsets 21 and newer."""
    table = Path(__file__).parents[1] / "gradients" / "kernels.json"
    registry = json.loads(table.read_text())["CUDA"]
    for kind, names in _KERNELS.items():
        for opset in (21, 22, 23, 24, 25, 26):
            for op in (*names, *_FROM[kind]):
                if opset < _FROM[kind].get(op, 0) or op == "ConstantOfShape":
                    continue
                version = onnx.defs.get_schema(op, opset).since_version
                assert any(
                    low <= version <= high and any(kind in each for each in taken.values())
                    for low, high, taken in registry.get(op, [])
                ), (op, kind, opset)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_hostile_graphs_keep_their_types(dtype):
    from tests.optimizers.hostile.every import CASES

    for case in CASES.values():
        if not case.loads or case.training or "training" in case.name or "mode_is_given" in case.name:
            continue
        for keep_io in (True, False):
            if dtype == "bfloat16" and case.model.opset_import[0].version < 13:
                continue
            result = to_precision(case.model, dtype, keep_io=keep_io, check=False)
            if dtype == "float16":
                session(result)
            elif is_sound(case.model):
                onnx.checker.check_model(result, full_check=True)


def is_sound(model: onnx.ModelProto) -> bool:
    if model.graph.sparse_initializer or "sparse_value" in str(model):
        return False  # onnx's own inference knows no types of sparse tensors
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.onnx_cpp2py_export.checker.ValidationError:
        return False
    except onnx.shape_inference.InferenceError:
        return False
    return True
