"""A loss made of a model's outputs, and gradients with respect to every floating weight, wherever it is kept."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit.errors import GradientError
from graphkit.optimizers import add_gradients, add_loss

TWO = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y, int64[1] n, float16[N] h, double[N] d) '
    "{y = Abs(x) n = Shape(x) h = Cast<to = 10>(x) d = Cast<to = 11>(x)}"
)
ONE = '<ir_version: 8, opset_import: ["": 13]> g (float[N,2] x) => (float[N,2] y) {y = Mul(x, x)}'
X = np.array([[1, -2], [3, 0.5], [0, 1]], np.float32)


def parse(text):
    return onnx.parser.parse_model(text)


def test_mean_square_adds_up_floating_outputs():
    model = add_loss(parse(TWO))
    assert isinstance(model, onnx.ModelProto)
    assert model.graph.output[-1].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    x = np.array([1, -2, 4], np.float32)
    assert gk.run(model, {"x": x})["loss"] == pytest.approx(3 * 7.0)


def test_half_precision_is_squared_in_float32():
    text = '<ir_version: 8, opset_import: ["": 17]> g (float16[N] x) => (float16[N] y) {y = Abs(x)}'
    found = gk.run(add_loss(parse(text)), {"x": np.full(3, 1000, np.float16)})["loss"]
    assert (found.dtype, float(found)) == (np.float32, 1e6)


LOSSES = {
    "a function of the output": (ONE, lambda y: y.sum(), 15.25),
    "of several": (TWO, lambda outputs: outputs[0].mean(), 7 / 3),
    "one element becomes a scalar": (ONE, lambda y: gk.op.ReduceMax(y), 9.0),
    "an output itself": (
        '<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float y) {y = ReduceMax<keepdims=0>(x)}',
        lambda y: y,
        3.0,
    ),
}


@pytest.mark.parametrize(("text", "loss", "value"), LOSSES.values(), ids=LOSSES.keys())
def test_functions(text, loss, value):
    model = add_loss(ir.from_proto(parse(text)), loss, name="cost")
    assert isinstance(model, ir.Model)
    before = [o.name for o in parse(text).graph.output]
    assert [o.name for o in model.graph.outputs] == [*before, "cost"]
    x = np.array([1, -2, 4], np.float32) if text is TWO else X
    found = gk.run(model, {"x": x})["cost"]
    assert (found.shape, float(found)) == ((), pytest.approx(value))


WRONG = {
    "no such loss": (ONE, "mean_squares", "loss", "Did you mean 'mean_square'"),
    "not a scalar": (ONE, lambda y: y, "loss", "has shape"),
    "an integer": (TWO, lambda outputs: outputs[1].sum(), "loss", "int64"),
    "the name is taken": (ONE, "mean_square", "x", "already has a value called 'x'"),
    "no floating output": (
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (int64[1] n) {n = Shape(x)}',
        "mean_square", "loss", "none is one",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "loss", "name", "words"), WRONG.values(), ids=WRONG.keys())
def test_refusals(text, loss, name, words):
    with pytest.raises(GradientError, match=words):
        add_loss(parse(text), loss, name)


EVERYWHERE = """<ir_version: 10, opset_import: ["": 21]> g (bool p, float[2] x) => (float[2] y)
<float[2] a = {1, 2}, float[2] unused = {5, 6}, float half = {0.5}, int64[1] minus = {-1}> {
    flat = Reshape(x, minus)
    b = Constant<value = float[2] {3, 4}>()
    c = Mul(flat, a)
    d = Add(c, b)
    e = Mul(d, half)
    y = If<then_branch = t () => (float[2] t) {w = Constant<value = float[2] {2, 3}>() t = Mul(e, w)},
           else_branch = f () => (float[2] f) {v = Constant<value = float[2] {4, 5}>() f = Add(e, v)}>(p)
}"""


@pytest.mark.parametrize("p", [True, False])
def test_all_weights_wherever_they_are(p):
    model = add_gradients(add_loss(parse(EVERYWHERE)), "loss", "all")
    assert [o.name for o in model.graph.output[2:]] == ["a_grad", "b_grad", "w_grad", "v_grad"]
    x = np.array([1, -1], np.float32)
    found = gk.run(model, {"p": np.array(p), "x": x})
    e = (x * [1, 2] + [3, 4]) / 2
    y = e * [2, 3] if p else e + np.array([4, 5])
    inner = y * [2, 3] if p else y  # the mean of two squares: its slope is y
    for name, expected in {
        "a": inner * x / 2, "b": inner / 2, "w": y * e if p else [0, 0], "v": [0, 0] if p else y
    }.items():  # fmt: skip
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-6, err_msg=name)


def test_all_weights_with_zeros_and_without_any():
    loss = add_loss(parse(EVERYWHERE))
    model = add_gradients(loss, "loss", "all", unreached="zeros")
    assert "unused_grad" in [o.name for o in model.graph.output]
    with pytest.raises(GradientError, match="no floating weight"):
        add_gradients(add_loss(parse(ONE)), "loss", "all")
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) <float[2] w = {1, 2}> {y = Abs(x)}'
    with pytest.raises(GradientError, match="does not depend on 'w'"):
        add_gradients(add_loss(parse(text)), "loss", "all")


def test_a_value_called_all():
    text = ONE.replace("(float[N,2] x)", "(float[N,2] x, float[2] all)").replace("Mul(x, x)", "Mul(x, all)")
    model = add_gradients(add_loss(parse(text)), "loss", ["all"])
    assert [o.name for o in model.graph.output] == ["y", "loss", "all_grad"]
