"""gk.load: files of every opset as functions on Tensors, with parameters, gradients, and the numbers of gk.run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import graphkit as gk
from graphkit.errors import GradientError, InputError, ModelFileError
from graphkit.runtime import run

F = np.float32
X = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -0.5]], F)


def parse(text: str, opset: int = 21, ir_version: int = 10) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}, "acme": 1]> {text}')


def check(model: Any, feeds: dict[str, Any], tolerance: float = 0.0) -> list[Any]:
    """What the loaded function gives; asserted equal to ONNX Runtime on the file."""
    got = gk.load(model)(**feeds)
    got = list(got) if isinstance(got, tuple) else [got]
    for g, e in zip(got, run(model, feeds, optimizations=False).values(), strict=True):
        if np.asarray(e).dtype == object:
            assert g.tolist() == e.tolist()
        else:
            np.testing.assert_allclose(g.numpy(), e, rtol=tolerance, atol=tolerance)
            assert g.dtype == e.dtype
    return got


BY_OPSET = """g (float[N,3] x, float[3,2] w) => (float[N,2] y) { h = MatMul(x, w)  r = Relu(h)
    s = Softmax<axis=1>(r)  y = Mul(s, r) }"""


@pytest.mark.parametrize("opset", range(7, 29))
def test_every_opset_loads_runs_and_has_gradients(opset: int) -> None:
    model = parse(BY_OPSET, opset)
    w = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]], F)
    check(model, {"x": X, "w": w}, tolerance=1e-6)
    f = gk.load(model)
    x = gk.tensor(X, requires_grad=True)
    f(x, w).sum().backward()
    assert x.grad is not None
    assert np.isfinite(x.grad.numpy()).all()
    assert x.grad.shape == X.shape


FORMS: list[tuple[str, int, str]] = [
    ("clip with attributes", 6 + 1, "g (float[2,3] x) => (float[2,3] y) { y = Clip<max=1.0, min=-0.5>(x) }"),
    ("axes as an attribute", 11, "g (float[2,3] x) => (float[2] y) { y = ReduceSum<axes=[1], keepdims=0>(x) }"),
    ("squeeze of opset 11", 11,
        "g (float[2,3] x) => (float[2,3] y) { u = Unsqueeze<axes=[0]>(x) y = Squeeze<axes=[0]>(u) }"),
    ("slice of opset 9", 9, "g (float[2,3] x) => (float[2,2] y) { y = Slice<axes=[1], starts=[0], ends=[2]>(x) }"),
    ("an optional input left out", 21,
        "g (float[2,3] x) => (float[2,3] y) <float high = {1.0}> { y = Clip(x, , high) }"),
    ("constants of every kind", 21,
        """g (float[2,3] x) => (float[2,3] y) { a = Constant<value_float=2.0>() b = Constant<value_ints=[3,1]>()
        c = Constant<value = float[3] {1.0, 2.0, 3.0}>() d = Expand(a, b) t = Transpose(d) m = Mul(x, c) y = Add(m,
            t) }"""),
    ("a weight in a Constant node", 21,
        "g (float[2,3] x) => (float[2,2] y) { w = Constant<value = float[3,2] {1,2,3,4,5,6}>() y = MatMul(x, w) }"),
    ("several outputs", 21,
        "g (float[2,3] x) => (float[2,1] v, int64[2,1] i) <int64[1] k = {1}> { v, i = TopK(x, k) }"),
    ("an output that is an input", 21, "g (float[2,3] x) => (float[2,3] x, float[2,3] y) { y = Neg(x) }"),
    ("an unused output", 21, "g (float[2,3] x) => (float[2,3] y) { y, mask = Dropout(x) }"),
    ("if", 21, """
        g (float[2,3] x, bool c) => (float[2,3] y) { y = If (c) <
        then_branch = a () => (float[2,3] t) { t = Neg(x) },
        else_branch = b () => (float[2,3] e) { e = Add(x, x) }> }"""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "opset", "text"), FORMS, ids=[f[0] for f in FORMS])
def test_forms_of_files(name: str, opset: int, text: str) -> None:
    feeds: dict[str, Any] = {"x": X}
    if "bool c" in text:
        feeds["c"] = np.array(True)
    check(parse(text, opset), feeds, tolerance=1e-6)


def test_functions_are_inlined() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "acme": 1]>
        g (float[N,3] x) => (float[N,3] y) { h = acme.twice(x) y = acme.twice(h) }
        <domain: "acme", opset_import: ["": 21]> twice (a) => (b) { b = Add(a, a) }""")
    (y,) = check(model, {"x": X})
    assert y.tolist() == (4 * X).tolist()
    assert gk.grad(lambda x: gk.load(model)(x).sum())(gk.tensor(X)).tolist() == np.full((2, 3), 4.0).tolist()


def test_strings_go_in_and_out() -> None:
    model = parse("g (string[N] x) => (string[N] y, bool[N] same) { y = StringConcat(x, x) same = Equal(x, y) }")
    check(model, {"x": np.array(["a", "b"], object)})
    assert gk.load(model)(["a"])[0].tolist() == ["aa"]


# Parameters


def with_weights(overridable: bool = False) -> onnx.ModelProto:
    model = parse("g (float[N,3] x) => (float[N,2] y) { h = MatMul(x, w) k = Mul(h, scale) y = Add(k, b) }")
    for name, array in (
        ("w", np.array([[1, 0], [0, 1], [1, 1]], F)),
        ("b", np.array([0.5, -0.5], F)),
        ("scale", np.array(2, F)),
    ):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        if overridable:
            model.graph.input.append(helper.make_tensor_value_info(name, 1, array.shape))
    return model


@pytest.mark.parametrize("overridable", [False, True])
def test_parameters_are_the_floating_weights_and_train(overridable: bool) -> None:
    f = gk.load(with_weights(overridable))
    assert list(f.parameters()) == ["w", "b"]
    assert all(p.requires_grad for p in f.parameters().values())
    first = (f(X) ** 2).mean()
    first.backward()
    for p in f.parameters().values():
        assert p.grad is not None
        p.assign(p.detach() - 0.01 * p.grad)
    with gk.no_grad():
        assert (f(X) ** 2).mean().item() < first.item()


def test_overridable_initializers_are_optional_inputs() -> None:
    f = gk.load(with_weights(overridable=True))
    assert (f.inputs, f.optional_inputs) == (["x"], ["b", "scale", "w"])
    default = f(X)
    np.testing.assert_array_equal(f(X, scale=np.array(0, F)).numpy(), np.tile([0.5, -0.5], (2, 1)))
    np.testing.assert_array_equal(f(X).numpy(), default.numpy())
    feeds = {"x": X, "b": np.zeros(2, F)}
    np.testing.assert_array_equal(
        f(**feeds).numpy(), next(iter(run(with_weights(overridable=True), feeds, optimizations=False).values()))
    )


def test_a_trace_of_a_loaded_file_keeps_its_names() -> None:
    model = gk.trace(gk.load(with_weights()), gk.spec("float32", ["n", 3]))
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert {"w", "b", "scale"} <= set(model.graph.initializers)
    np.testing.assert_array_equal(run(model, {"x": X})["y"], run(with_weights(), {"x": X})["y"])


@pytest.mark.parametrize("kind", ["path", "proto", "ir"])
def test_a_model_in_every_form(kind: str, tmp_path: Path) -> None:
    proto = with_weights()
    onnx.save(proto, tmp_path / "m.onnx")
    source: Any = {"path": tmp_path / "m.onnx", "proto": proto, "ir": ir.from_proto(proto)}[kind]
    before = proto.SerializeToString()
    expected = X @ np.array([[1, 0], [0, 1], [1, 1]], F) * 2 + np.array([0.5, -0.5], F)
    np.testing.assert_allclose(gk.load(source)(X).numpy(), expected)
    assert proto.SerializeToString() == before


# Refusals


BAD_FEEDS: list[tuple[Any, str]] = [
    (lambda f: f(), r"missing input x \(.*test_importer.py:\d+\)"),
    (lambda f: f(X, X), r"the model has 1 inputs \(x\), got 2"),
    (lambda f: f(X, y=X), r"unknown input y.*The model's inputs are x"),
    (lambda f: f(X, x=X), "input x was given twice"),
    (lambda f: f(xs=X), r"missing input x; unknown input xs\. Did you mean 'x'"),
    (lambda f: f(X.astype(np.float64)), "input 'x' takes float32, got float64.*write x.astype"),
    (lambda f: f(X[0]), r"input 'x' takes rank 2 \[N,3\], got 1"),
    (lambda f: f(X[:, :2]), r"input 'x' .*\[N,3\].*\[2, 2\]"),
]


@pytest.mark.parametrize(("attempt", "message"), BAD_FEEDS)
def test_what_does_not_fit_is_one_clear_message(attempt: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attempt(gk.load(with_weights()))


def test_lists_and_numbers_take_the_inputs_dtype() -> None:
    assert gk.load(with_weights())([[1, 0, 0]]).tolist() == [[2.5, -0.5]]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\x00garbage", r"damaged|not an ONNX|not a model"), (b"PK\x03\x04zip", "not an ONNX model")],
)
def test_files_that_are_no_models(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        gk.load(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ModelFileError, match=r"does not exist"):
        gk.load(tmp_path / "none.onnx")


def test_an_opset_that_is_too_new() -> None:
    with pytest.raises(ModelFileError, match=r"uses opset 29 of ai.onnx; graphkit reads up to 28"):
        gk.load(parse(BY_OPSET, 29, 13))


def test_an_operator_without_a_gradient_is_named() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { h = acme.Strange(x) y = Neg(h) }")
    with pytest.raises(GradientError, match=r"acme\.Strange"):
        gk.trace(gk.grad(lambda x: gk.load(model)(x).sum()), gk.spec("float32", [2, 3]))
