"""A cotangent of 0 before an operator whose slope may be infinite: the product is 0 there, and still has a derivative.

A selecting operator gives back zeros for what it did not select, which an infinite slope must not make NaN of. jvp and
second derivatives ask what the product would do at other cotangents: where the slope is finite, that is the slope.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import graphkit as gk
from graphkit import array, op
from graphkit.optimizers import add_gradients
from graphkit.runtime import run
from graphkit.testing import check_gradients

X = np.array([1.25, 2.0, 4.0, 3.0])
# name: the operator, where to ask, its slope there, and a point where the slope is infinite or NaN
SINGULAR: dict[str, Any] = {
    "Log": (op.Log, X, 1 / X, 0.0),
    "Sqrt": (op.Sqrt, X, 0.5 / np.sqrt(X), 0.0),
    "Reciprocal": (op.Reciprocal, X, -1 / X**2, 0.0),
    "Div": (lambda x: (x - x + 2.0) / x, X, -2 / X**2, 0.0),
    "Exp": (op.Exp, X, np.exp(X), 200.0),
    "Sinh": (op.Sinh, X, np.cosh(X), 200.0),
    "Cosh": (op.Cosh, X, np.sinh(X), -200.0),
    "Tan": (op.Tan, X / 8, 1 / np.cos(X / 8) ** 2, np.inf),
    "Pow": (lambda x: op.Pow(x, 0.5), X, 0.5 / np.sqrt(X), 0.0),
    "Pow of x to x": (lambda x: op.Pow(x, x), X, X**X * (np.log(X) + 1), -1.0),
    "Asin": (op.Asin, X / 8, 1 / np.sqrt(1 - (X / 8) ** 2), 1.0),
    "Acos": (op.Acos, X / 8, -1 / np.sqrt(1 - (X / 8) ** 2), -1.0),
    "Acosh": (op.Acosh, X, 1 / np.sqrt(X**2 - 1), 1.0),
    "Atanh": (op.Atanh, X / 8, 1 / (1 - (X / 8) ** 2), 1.0),
    "x log x": (lambda x: x * op.Log(x), X, np.log(X) + 1, 0.0),
}
# name: the operator, and the places of what it selects, in its result's order, None where it gives a constant
SELECTING: dict[str, Any] = {
    "Slice": (lambda y: y[1:3], [1, 2]),
    "Gather": (lambda y: op.Gather(y, np.array([3, 1])), [3, 1]),
    "GatherElements": (lambda y: op.GatherElements(y, np.array([2, 2])), [2, 2]),
    "GatherND": (lambda y: op.GatherND(y, np.array([[3], [2]])), [3, 2]),
    "Split": (lambda y: op.Split(y, np.array([1, 3]))[1], [1, 2, 3]),
    "Compress": (lambda y: op.Compress(y, np.array([False, True, False, True])), [1, 3]),
    "Where": (lambda y: op.Where(np.array([False, True, True, False]), y, y.dtype.type(0)), [None, 1, 2, None]),
    "Pad": (lambda y: op.Pad(y, np.array([-1, 1])), [1, 2, 3, None]),
    "ScatterElements": (lambda y: op.ScatterElements(y, np.array([0]), np.zeros(1)), [None, 1, 2, 3]),
    "Concat, Slice": (lambda y: op.Concat(y, y, axis=0)[3:6], [3, 0, 1]),
    "Relu": (op.Relu, "greatest"),
    "Max": (lambda y: op.Max(y, -1e9), "greatest"),
    "Clip": (lambda y: op.Clip(y, -1e9, 1e9), "greatest"),
    "ReduceMax": (lambda y: op.ReduceMax(y, keepdims=0), "greatest"),
    "TopK": (lambda y: op.TopK(y, np.array([2]))[0], "greatest"),
    "MaxPool": (lambda y: op.MaxPool(op.Reshape(y, np.array([1, 1, 4])), kernel_shape=[2])[0], "greatest"),
}


@pytest.mark.parametrize("select", SELECTING)
@pytest.mark.parametrize("name", SINGULAR)
def test_jvp(name, select):
    (f, x, slope, _), (g, places) = SINGULAR[name], SELECTING[select]
    v = gk.tensor(np.array([1.0, -2.0, 3.0, 0.5]))
    _, got = gk.jvp(lambda t: g(f(t)), [gk.tensor(x)], [v])
    if places == "greatest":  # which elements those are depends on the values
        step = 1e-6 * v.numpy()
        ends = [g(f(gk.tensor(x + step))).numpy(), g(f(gk.tensor(x - step))).numpy()]
        np.testing.assert_allclose(got.numpy(), (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-8)
    else:
        expected = [0.0 if p is None else slope[p] * v.numpy()[p] for p in places]
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", SINGULAR)
def test_to_second_order(name):
    f, x, _, _ = SINGULAR[name]
    check_gradients(lambda t: f(t)[1:3], [x], order=2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SINGULAR)
def test_the_hessian_at_an_exact_fit(name, dtype):
    """Of sum((f(x) - target)^2) / 2 where f(x) is the target: the square of the slope, and every cotangent is 0."""
    f, x, slope, _ = SINGULAR[name]
    x = gk.tensor(x.astype(dtype))
    target = f(x)[1:3].numpy()
    got = gk.hessian(lambda t: ((f(t)[1:3] - target) ** 2).sum() * 0.5)(x).numpy()
    np.testing.assert_allclose(got, np.diag([0, *slope[1:3] ** 2, 0]), rtol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", SINGULAR)
def test_the_mixed_derivative_at_weights_of_zero(name, traced):
    """d/dw of sum(v d/dx (w f(x)))."""
    f, x, slope, _ = SINGULAR[name]
    v = np.array([1.0, -2.0, 3.0, 0.5])

    def mixed(x: Any, w: Any) -> Any:
        inner = gk.grad(lambda t, u: (u * f(t)[1:3]).sum())
        return gk.grad(lambda u: (inner(x, u) * v).sum())(w)

    w = np.zeros(2)
    if traced:
        model = gk.trace(mixed, gk.spec("float32", ["n"]), gk.spec("float32", ["m"]), input_names=["x", "w"])
        (got,) = run(model, {"x": x.astype(np.float32), "w": w.astype(np.float32)}).values()
    else:
        got = mixed(gk.tensor(x), gk.tensor(w)).numpy()
    np.testing.assert_allclose(got, (slope * v)[1:3], rtol=1e-5 if traced else 1e-12)


def test_vjp_of_an_explicit_zero():
    def slope(c: Any) -> Any:
        return gk.vjp(lambda x: op.Log(x)[1:3], gk.tensor(X))[1](c)[0].sum()

    np.testing.assert_array_equal(gk.vjp(lambda x: op.Log(x)[1:3], gk.tensor(X))[1](gk.tensor(np.zeros(2)))[0], 0)
    np.testing.assert_allclose(gk.grad(slope)(gk.tensor(np.zeros(2))).numpy(), 1 / X[1:3])


FILE = """<ir_version: 8, opset_import: ["": 17]> g (double[4] x, double[2] t) => (double loss) {
    a = Log(x) s = Constant<value = int64[1] {1}>() e = Constant<value = int64[1] {3}>()
    y = Slice(a, s, e) d = Sub(y, t) loss = ReduceSumSquare<keepdims = 0>(d)
}"""


def test_add_gradients_twice():
    """d/dx of sum(d loss / dx) at an exact fit."""
    once = add_gradients(onnx.parser.parse_model(FILE), "loss", ["x"])
    once.graph.node.append(helper.make_node("ReduceSum", ["x_grad"], ["total"], keepdims=0))
    once.graph.output.append(helper.make_tensor_value_info("total", onnx.TensorProto.DOUBLE, []))
    twice = add_gradients(once, "total", ["x"], suffix="_second")
    got = run(twice, {"x": X, "t": np.log(X[1:3])})["x_second"]
    np.testing.assert_allclose(got, [0, *(2 / X[1:3] ** 2), 0], rtol=1e-12)


def test_a_loaded_file():
    f, target = gk.load(onnx.parser.parse_model(FILE)), np.log(X[1:3])
    got = gk.hvp(lambda x: f(x, gk.tensor(target)), [gk.tensor(X)], [gk.tensor(np.ones(4))])
    np.testing.assert_allclose(got.numpy(), [0, *(2 / X[1:3] ** 2), 0], rtol=1e-12)


@pytest.mark.parametrize("select", ["Slice", "Where", "Split", "GatherElements"])
@pytest.mark.parametrize("name", SINGULAR)
def test_what_was_not_selected_stays_out(name, select):
    """However infinite its slope: of the first order, of the second, and forwards."""
    (f, x, _, edge), (g, _) = SINGULAR[name], SELECTING[select]
    smooth, v = x.astype(np.float32), gk.tensor(np.array([1.0, -2.0, 3.0, 0.5], np.float32))
    x = smooth.copy()
    x[0] = edge

    def first(t: Any) -> Any:
        return gk.grad(lambda u: (g(f(u)) * g(f(u))).sum())(t)

    for derivative in (
        first,
        gk.grad(lambda t: (first(t) * v).sum()),
        lambda t: gk.jvp(lambda u: g(f(u)), [t], [v])[1],
    ):
        expected = derivative(gk.tensor(smooth)).numpy()
        got = derivative(gk.tensor(x)).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert first(gk.tensor(x)).numpy()[0] == 0


@pytest.mark.parametrize(
    ("name", "edge", "expected"), [("Sqrt", 0.0, np.inf), ("Log", 0.0, np.inf), ("Reciprocal", 0.0, -np.inf)]
)
def test_jvp_of_an_infinite_slope_that_was_selected(name, edge, expected):
    f, x = SINGULAR[name][0], X.copy()
    x[1] = edge
    _, got = gk.jvp(lambda t: f(t)[1:3], [gk.tensor(x)], [gk.tensor(np.ones(4))])
    np.testing.assert_allclose(got.numpy(), [expected, SINGULAR[name][2][2]])


ARRAY = {
    "log1p": (array.log1p, [np.array([0.5, 2.0, -0.3, 1e-3])]),
    "expm1": (array.expm1, [np.array([0.25, 2.0, -0.4, -3.0])]),
    "atan2": (array.atan2, [np.array([0.5, -2.0, 1.0, -0.1]), np.array([1.0, 0.5, -3.0, -1.0])]),
    "atan2 on an axis": (array.atan2, [np.array([1.0, -1.0, 0.0, 2.0]), np.array([0.0, 0.0, 2.0, -0.0])]),
    "hypot": (array.hypot, [np.array([0.5, -2.0, 1.0]), np.array([1.0, 0.5, -3.0])]),
    "logaddexp": (array.logaddexp, [np.array([0.5, -2.0, 1.0]), np.array([1.0, 0.5, -3.0])]),
    "Celu": (lambda x: op.Celu(x, alpha=0.5), [np.array([-1.0, -0.2, 0.3, 2.0])]),
    "Softplus": (op.Softplus, [np.array([-1.0, -0.2, 0.3, 2.0])]),
}


@pytest.mark.parametrize("name", ARRAY)
def test_functions_made_of_selections(name):
    f, inputs = ARRAY[name]
    check_gradients(f, inputs, order=2)


def test_the_angle_of_a_point_on_the_vertical_axis():
    y, x = gk.tensor(np.array([1.0, -1.0, 2.0])), gk.tensor(np.zeros(3))
    for f in (array.atan2, np.arctan2):
        to_y, to_x = gk.grad(lambda a, b, f=f: f(a, b).sum(), (0, 1))(y, x)
        np.testing.assert_allclose(to_x.numpy(), [-1, 1, -0.5])
        np.testing.assert_array_equal(to_y.numpy(), 0)
