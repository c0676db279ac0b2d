"""Made-up inputs, verification, test vectors, pictures and summaries."""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from graphkit import exporters
from graphkit.errors import GraphkitError, InputError, ModelFileError, VerificationError
from graphkit.exporters import (
    check_test_vectors,
    compare_outputs,
    draw,
    draw_curve,
    listing,
    random_inputs,
    read_test_vectors,
    summarize,
    verify,
    write_test_vectors,
)
from graphkit.exporters.layout import arrange


def model(text: str, **weights: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g ' + text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    return proto


NEG = model("(float[N, 2] x) => (float[N, 2] y) {y = Neg(x)}")


# Inputs


def test_made_up_inputs_fit_and_repeat() -> None:
    proto = model(
        "(float[N, 2] x, int64[N, K] ids, bool[2] m, string[2] s, float lr, float[2] w = {1, 2}, seq(float[3]) q) "
        "=> (float[N, K, 4] y) <float[7, 4] table> {i = Identity(ids) y = Gather(table, i)}",
        table=np.zeros((7, 4), "f"),
    )
    first, again = random_inputs(proto, {"N": 50, "K": 3}), random_inputs(proto, {"N": 50, "K": 3})
    assert list(first) == ["x", "ids", "m", "s", "lr", "q"]
    assert first["ids"].shape == (50, 3)
    assert (first["ids"].min(), first["ids"].max()) == (0, 6)
    assert first["lr"].shape == ()
    assert [element.shape for element in first["q"]] == [(3,), (3,)]
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], random_inputs(proto, {"N": 50, "K": 3}, seed=1)["x"])
    given = random_inputs(proto, given={"x": np.zeros((9, 2), "f")})
    assert given["ids"].shape == (9, 1)
    assert random_inputs(proto, given={"x": [[1, 2]] * 4})["ids"].shape == (4, 1)


def test_dimensions_without_a_name_are_named_by_place() -> None:
    proto = model("(float[?, 2] x, float[N] z) => (float[M, 2] y) {y = Neg(x)}")
    assert random_inputs(proto, {"x.0": 3, "N": 2})["x"].shape == (3, 2)
    assert summarize(proto, {"x.0": 3}).flops == 6
    assert summarize(proto).dims == {"x.0": 1, "N": 1}
    with pytest.raises(InputError, match=r"no symbolic dimension 'x\.1', it has x\.0, N"):
        random_inputs(proto, {"x.1": 3})


def test_inputs_that_cannot_be_made_up() -> None:
    with pytest.raises(InputError, match="no symbolic dimension 'M'"):
        random_inputs(NEG, {"M": 2})
    unknown = model("(float[N] x) => (float[N] y) {y = Neg(x)}")
    unknown.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match="'x' has no declared rank"):
        random_inputs(unknown)


# Verification


def test_verify_against_functions_and_models() -> None:
    two = model("(float[N] a, float[N] b) => (float[N] s, float[N] d) {s = Add(a, b) d = Sub(a, b)}")
    for against in (
        lambda a, b: (a + b, a - b),
        lambda a, b: {"s": a + b, "d": a - b},
        two,
    ):
        assert [one.name for one in verify(two, against, dims={"N": 3})] == ["s", "d"]
    given = {"a": np.ones(2, "f"), "b": np.ones(2, "f")}
    assert verify(two, lambda a, b: (a + 1, a - b), given)
    assert verify(two, lambda a, b: (a + 1, a - b), list(given.values()))
    with pytest.raises(VerificationError, match=r"d float32\[3\]: differs by at most") as caught:
        verify(two, lambda a, b: (a + b, a + b), dims={"N": 3})
    assert "s float32" not in str(caught.value)
    with pytest.raises(VerificationError, match="returned 1 values for the outputs s, d"):
        verify(two, lambda a, b: a)
    with pytest.raises(VerificationError, match=r"expected float64\[1\], got float32\[1\]"):
        verify(two, lambda a, b: (a.astype("d"), a - b))


NAN, INF = math.nan, math.inf
DIFFERENCES: list[tuple[Any, Any, bool, float]] = [
    (np.array([1, NAN, INF], "f"), np.array([1, NAN, INF], "f"), True, 0),
    (np.array([1.0], "f"), np.array([NAN], "f"), False, INF),
    (np.array([INF], "f"), np.array([-INF], "f"), False, INF),
    (np.array([1.0], "f"), np.array([1.00001], "f"), True, 1e-5),
    (np.array([1.0], "d"), np.array([1.00001], "d"), False, 1e-5),
    (np.array([1.0], "f2"), np.array([1.01], "f2"), True, 0.01),
    (np.array([1.0], ml_dtypes.bfloat16), np.array([1.03], ml_dtypes.bfloat16), True, 0.03),
    (np.array([1, 2]), np.array([1, 4]), False, 2),
    (np.array(["a"], object), np.array(["b"], object), False, 1),
    (np.array([True]), np.array([True]), True, 0),
    (np.array([1 + 1j], "F"), np.array([1 + 1j], "F"), True, 0),
    (np.zeros((0, 2), "f"), np.zeros((0, 2), "f"), True, 0),
    ([np.ones(2, "f")], [np.ones(2, "f")], True, 0),
    ([np.ones(2, "f")], [np.zeros(2, "f")], False, 1),
    ([np.ones(2, "f")], [], False, INF),
    (np.ones(2, "f"), np.ones((2, 1), "f"), False, INF),
    (None, None, True, 0),
]


@pytest.mark.parametrize(("expected", "got", "agrees", "worst"), DIFFERENCES)
def test_differences(expected: Any, got: Any, agrees: bool, worst: float) -> None:
    (one,) = compare_outputs({"y": expected}, {"y": got})
    assert one.agrees is agrees
    assert one.absolute == pytest.approx(worst, rel=0.3)


def test_outputs_of_one_side_only_disagree() -> None:
    assert [one.agrees for one in compare_outputs({"a": np.ones(1)}, {"b": np.ones(1)})] == [False, False]


# Test vectors


def test_vectors_are_written_read_and_checked(tmp_path: Path) -> None:
    x = np.arange(4, dtype="f").reshape(2, 2)
    for value in (x, x + 1):  # the second time in the place of the first
        folder = write_test_vectors(tmp_path, {"x": value}, {"y": -value}, {"x_grad": np.full((2, 2), -1, "f")})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["test_data_set_0"]
    assert numpy_helper.to_array(onnx.load_tensor(folder / "input_0.pb")).tolist() == (x + 1).tolist()
    vectors = read_test_vectors(folder)
    np.testing.assert_array_equal(vectors.gradients["x_grad"], np.full((2, 2), -1, "f"))
    assert [one.name for one in check_test_vectors(NEG, folder)] == ["y"]
    with_gradient = model("(float[N, 2] x) => (float[N, 2] y, float[N, 2] x_grad) {y = Neg(x) x_grad = Sign(y)}")
    assert [one.name for one in check_test_vectors(with_gradient, folder)] == ["y", "x_grad"]
    with pytest.raises(VerificationError, match="y float32"):
        check_test_vectors(model("(float[N, 2] x) => (float[N, 2] y) {y = Abs(x)}"), folder)


def test_vectors_of_every_kind(tmp_path: Path) -> None:
    values = {
        f"v{n}": value
        for n, value in enumerate(
            [
                np.array(1.5, "f"),
                np.zeros((0, 3)),
                np.array(["Käse"], object),
                np.ones(2, ml_dtypes.bfloat16),
                [np.ones(2, "f")],
            ]
            + [np.array(n) for n in range(8)]
        )
    }
    vectors = read_test_vectors(write_test_vectors(tmp_path, values, {}))
    assert list(vectors.inputs) == list(values)  # 10 comes after 9, not after 1
    for name, value in values.items():
        np.testing.assert_array_equal(np.asarray(vectors.inputs[name]), np.asarray(value))


def test_damaged_vectors(tmp_path: Path) -> None:
    folder = write_test_vectors(tmp_path, {"x": np.ones(4, "f")}, {})
    file = folder / "input_0.pb"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ModelFileError, match=r"input_0\.pb .* is damaged"):
        read_test_vectors(folder)
    with pytest.raises(ModelFileError, match="not a folder"):
        read_test_vectors(tmp_path / "nowhere")


# Pictures

MLP = model(
    "(float[batch, 8] x) => (float[batch, 3] y, float loss) <float[8, 4] w1, float[4] b1, float[4, 3] w2> "
    "{h = Gemm(x, w1, b1) a = Relu(h) y = MatMul(a, w2) s = Add(a, h) loss = ReduceMean<keepdims = 0>(s)}",
    w1=np.ones((8, 4), "f"),
    b1=np.ones(4, "f"),
    w2=np.ones((4, 3), "f"),
)
BRANCH = model(
    "(bool c, float[N] x) => (float[N] y) {y = If(c) <"
    "then_branch = t () => (float[N] p) {p = Neg(x)}, else_branch = e () => (float[N] q) {q = Abs(x)}>}"
)


def test_a_picture_shows_operators_parameters_inputs_and_outputs(tmp_path: Path) -> None:
    root = ET.parse(draw(MLP, tmp_path / "g.svg")).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for text in ("x", "float32[batch, 8]", "Gemm", "w1 [8, 4]", "Relu", "MatMul", "ReduceMean", "y", "loss"):
        assert text in texts
    boxes = {
        tuple(round(float(box.get(key, "0"))) for key in ("x", "y", "width", "height"))
        for box in root.iter("{http://www.w3.org/2000/svg}rect")
    }
    overlapping = [
        (a, b)
        for a in boxes
        for b in boxes
        if a < b and min(a[2], b[2]) < float(root.get("width", "0")) and _overlap(a, b) and (0, 0) not in (a[:2], b[:2])
    ]
    assert not overlapping


def _overlap(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def test_pictures_of_bodies_and_empty_graphs(tmp_path: Path) -> None:
    text = draw(BRANCH, tmp_path / "g.svg").read_text()
    assert "1 / 1 nodes inside" in text
    assert "stroke-dasharray" in text  # x, which the branches capture
    passing = helper.make_model(
        helper.make_graph([], "g", NEG.graph.input, NEG.graph.input), opset_imports=[helper.make_opsetid("", 17)]
    )
    assert draw(passing, tmp_path / "e.svg").is_file()


def test_a_png_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("matplotlib") is not None:
        assert draw(MLP, tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(GraphkitError, match=r"onnx-graphkit\[plot\], or write h\.svg"):
        draw(MLP, tmp_path / "h.png")
    assert not (tmp_path / "h.png").exists()


def test_pictures_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GraphkitError, match=r"\.svg or \.png"):
        draw(MLP, tmp_path / "g.gif")
    with pytest.raises(GraphkitError, match="could not be written"):
        draw(MLP, tmp_path / "nowhere" / "g.svg")
    monkeypatch.setattr(sys.modules["graphkit.exporters.picture"], "_MOST_NODES", 3)
    with pytest.raises(GraphkitError, match="5 nodes makes no readable picture"):
        draw(MLP, tmp_path / "g.svg")


def test_layout_keeps_order_and_distance() -> None:
    edges = [(0, 2), (1, 2), (0, 3), (2, 4), (3, 4), (0, 4)]
    layout = arrange([50.0, 60.0, 70.0, 80.0, 90.0], edges, {1}, gap=10)
    assert layout.row[:5] == [0, 0, 1, 1, 2]
    rows: dict[int, list[tuple[float, float]]] = {}
    for node, width in enumerate([50.0, 60.0, 70.0, 80.0, 90.0]):
        rows.setdefault(layout.row[node], []).append((layout.x[node], width))
    for row in rows.values():
        row.sort()
        for (x0, w0), (x1, w1) in itertools.pairwise(row):
            assert x1 - x0 >= (w0 + w1) / 2 + 10 - 1e-9


def test_listing_reaches_into_bodies() -> None:
    text = listing(BRANCH)
    assert "then_branch():" in text
    assert "p          = Neg(x)" in text
    assert "return q" in text
    assert "parameter  w1: float32[8, 4]" in listing(MLP)


def test_curves(tmp_path: Path) -> None:
    for number, (series, log) in enumerate(
        [([1.0, 0.5, 0.25], True), ({"a": [3, NAN, 1], "b": [0, 0]}, False), ([2.0], False), ([1e-9] * 5000, False)]
    ):
        path = draw_curve(series, tmp_path / f"{number}.svg", logarithmic=log)
        assert "<path" in ET.tostring(ET.parse(path).getroot()).decode().replace("ns0:", "")
    with pytest.raises(GraphkitError, match="no finite value"):
        draw_curve([NAN], tmp_path / "n.svg")


# Summaries

F = "float32"
COUNTED: dict[str, tuple[onnx.ModelProto, int]] = {
    "MatMul": (model("(float[N, 4] x, float[4, 3] w) => (float[N, 3] y) {y = MatMul(x, w)}"), 2 * 4 * 3 * 2),
    "Gemm": (
        model("(float[N, 4] x, float[3, 4] w, float[3] b) => (float[N, 3] y) {y = Gemm<transB = 1>(x, w, b)}"),
        54,
    ),
    "Conv": (
        model("(float[N, 4, 8, 8] x, float[6, 2, 3, 3] w) => (float[N, 6, 6, 6] y) {y = Conv<group = 2>(x, w)}"),
        2 * 2 * 6 * 36 * 2 * 9,
    ),
    "ConvTranspose": (
        model("(float[N, 4, 5, 5] x, float[4, 6, 3, 3] w) => (float[N, 6, 7, 7] y) {y = ConvTranspose(x, w)}"),
        2 * 2 * 100 * 6 * 9,
    ),
    "MaxPool": (model("(float[N, 1, 4, 4] x) => (float[N, 1, 3, 3] y) {y = MaxPool<kernel_shape = [2, 2]>(x)}"), 72),
    "ReduceSum": (model("(float[N, 5] x) => (float y) {y = ReduceSum<keepdims = 0>(x)}"), 10),
    "Einsum": (
        model('(float[N, 4] x, float[4, 3] w) => (float[N, 3] y) {y = Einsum<equation = "ij,jk->ik">(x, w)}'),
        48,
    ),
    "LSTM": (
        model(
            "(float[5, N, 3] x, float[1, 16, 3] w, float[1, 16, 4] r) => (float[5, 1, N, 4] y) "
            "{y = LSTM<hidden_size = 4>(x, w, r)}"
        ),
        2 * 5 * 2 * 4 * 4 * 7,
    ),
    "moving data": (model("(float[N, 4] x) => (float[4, N] y) {y = Transpose(x)}"), 0),
    "shapes through Reshape": (
        model("(float[N, 4] x) => (float[M] y) <int64[1] s = {-1}> {r = Reshape(x, s) y = Exp(r)}"),
        8,
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_flops(name: str) -> None:
    proto, expected = COUNTED[name]
    summary = summarize(proto, {"N": 2})
    assert (summary.flops, summary.unknown) == (expected, 0)


def test_summaries() -> None:
    summary = summarize(MLP)
    assert (summary.parameters, summary.parameter_bytes) == (32 + 4 + 12, 4 * 48)
    assert summary.parameter_dtypes == {"float32": 48}
    assert {o.name: o.count for o in summary.operators} == {
        "Gemm": 1,
        "Relu": 1,
        "MatMul": 1,
        "Add": 1,
        "ReduceMean": 1,
    }
    assert summary.operators[0].name == "Gemm"
    assert (summary.dims, summary.opsets, summary.lowest_ir_version) == ({"batch": 1}, {"ai.onnx": 21}, 10)
    inside = summarize(BRANCH, {"N": 4})
    assert {o.name: o.count for o in inside.operators} == {"If": 1, "Neg": 1, "Abs": 1}
    with pytest.raises(InputError, match="no symbolic dimension 'M'"):
        summarize(MLP, {"M": 1})
    assert set(exporters.__all__) <= set(dir(exporters))
