"""Arithmetic and functions of one variable: gradients to second order, edges, and types."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)
WIDE = rng.uniform(-2, 2, size=(2, 3))
INSIDE = rng.uniform(-0.8, 0.8, size=(2, 3))
POSITIVE = rng.uniform(0.4, 2.5, size=(2, 3))

UNARY = {
    "Abs": WIDE, "Neg": WIDE, "Identity": WIDE, "Exp": WIDE, "Sin": WIDE, "Cos": WIDE, "Tan": INSIDE, "Asin": INSIDE,
    "Acos": INSIDE, "Atan": WIDE, "Sinh": WIDE, "Cosh": WIDE, "Asinh": WIDE, "Acosh": POSITIVE + 1, "Atanh": INSIDE,
    "Tanh": WIDE, "Sigmoid": WIDE, "Erf": WIDE, "Log": POSITIVE, "Sqrt": POSITIVE, "Reciprocal": POSITIVE,
}  # fmt: skip


@pytest.mark.parametrize("form", ["matrix", "scalar", "empty"])
@pytest.mark.parametrize("name", UNARY)
def test_of_one_variable(name, form):
    x = {"matrix": UNARY[name], "scalar": UNARY[name][0, 0], "empty": np.zeros((0, 2))}[form]
    check_gradients(lambda t: getattr(op, name)(t), [x], order=1 if form == "empty" else 2)


SHAPES = {"same": ((2, 3), (2, 3)), "rows": ((2, 3), (3,)), "both": ((2, 1), (1, 3)), "scalar": ((), (2, 3))}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum"])
def test_of_two_variables(name, shapes):
    if name == "Mean" and shapes in {"both", "scalar"}:
        pytest.skip("onnx's reference, which computes Mean in float64, does not broadcast its first input")
    values = np.random.default_rng(1)
    a, b = (values.uniform(0.5, 2, size=s) for s in SHAPES[shapes])
    check_gradients(lambda a, b: getattr(op, name)(a, b), [a, b], order=2, symbolic=shapes != "both")


@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 3])
def test_of_many(name, count):
    inputs = [np.random.default_rng(n).normal(size=(3,) if n else (2, 3)) for n in range(count)]
    check_gradients(lambda *x: getattr(op, name)(*x), inputs, order=2)


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize(("a", "b"), [((5.3, -5.3), (2.0, 2.0)), ((7.1,), (-2.5,)), ((0.3, 8.2, -1.0), (0.4,))])
def test_mod(fmod, a, b):
    # fmod=0 is for integers by the standard; the reference and CUDA kernels take floats, the CPU kernel does not
    if fmod:
        check_gradients(lambda x, y: op.Mod(x, y, fmod=1), [np.array(a), np.array(b)])


@pytest.mark.parametrize(
    ("x", "p"),
    [(POSITIVE, 2.5), (WIDE, 2.0), (WIDE, 3.0), (WIDE, 4.0), (WIDE, 6.0), (POSITIVE, 0.5), (POSITIVE, 1.5),
     (WIDE, -1.0), (POSITIVE, -0.5), (WIDE, -2.0), (WIDE, 1.0), (WIDE, 0.0)],
)  # fmt: skip
def test_pow_of_a_fixed_exponent(x, p):
    check_gradients(lambda t: op.Pow(t, p), [x], order=2)


def test_pow_of_whole_exponents():
    check_gradients(lambda t, p: op.Pow(t, p), [WIDE, np.array([3, 2, 1])], order=2)
    check_gradients(lambda t: op.Pow(t, np.array([[3], [0]])), [WIDE])


@pytest.mark.parametrize(
    ("x", "p", "dx", "dp"),
    [
        (0.0, 0.0, 0.0, 0.0), (0.0, 1.0, 1.0, 0.0), (0.0, 2.0, 0.0, 0.0), (0.0, 0.5, np.inf, 0.0),
        (-2.0, 3.0, 12.0, np.nan), (0.0, -1.0, -np.inf, -np.inf), (np.inf, 2.0, np.inf, np.inf),
        (np.nan, 2.0, np.nan, np.nan), (4.0, 0.0, 0.0, np.log(4.0)), (np.inf, 0.0, 0.0, np.inf),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fixed", [True, False])
def test_pow_at_its_edges(x, p, dx, dp, fixed):
    if fixed:
        got = gk.grad(lambda t: op.Pow(t, p))(gk.tensor(x)).item()
    else:
        got, other = (t.item() for t in gk.grad(lambda a, b: op.Pow(a, b), (0, 1))(gk.tensor(x), gk.tensor(p)))
        np.testing.assert_allclose(other, dp, rtol=1e-6)
    np.testing.assert_allclose(got, dx, rtol=1e-6)


@pytest.mark.parametrize(
    ("condition", "shape"), [([True, False, True], (3,)), ([[True], [False]], (2, 3)), (True, (2,))]
)
def test_where(condition, shape):
    values = np.random.default_rng(2)
    inputs = [values.normal(size=shape), values.normal(size=())]
    check_gradients(lambda a, b: op.Where(np.array(condition), a, b), inputs, order=2)


@pytest.mark.parametrize("name", ["Sqrt", "Log", "Reciprocal", "Acosh", "Div", "Pow", "Asin"])
def test_where_hides_an_invalid_branch(name):
    """The slope of the branch that was not taken is infinite or NaN; what was taken is unaffected."""
    functions = {"Div": lambda x: op.Div(1.0, x), "Pow": lambda x: op.Pow(x, 0.5)}
    f = functions.get(name, lambda x: getattr(op, name)(x))
    x = gk.tensor([0.0, 1.5, -3.0] if name != "Asin" else [1.0, 0.5, 2.0])
    safe = op.Greater(x, gk.tensor(0.1)) if name != "Asin" else op.Less(x, gk.tensor(0.9))
    got = gk.grad(lambda t: op.Where(safe, f(t), t).sum())(x).numpy()
    alone = gk.grad(lambda t: f(t).sum())(x).numpy()[1]
    np.testing.assert_allclose(got, [1.0, alone, 1.0])


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        # the exponential that was not taken overflows
        (lambda x: op.Where(op.Greater(x, 0.0), x, op.Exp(x) - 1.0), [200.0, -1.0], [1, np.exp(-1)]),
        # 0 * log(0): a factor is infinite
        (lambda x: op.Where(op.Greater(x, 0.0), x * op.Log(x), 0.0), [0.0, 2.0], [0, np.log(2) + 1]),
        (
            lambda x: op.Where(op.Greater(x, 0.0), op.Cosh(x), op.Cosh(-x) * 2.0),
            [1.0, -1.0],
            [np.sinh(1), -2 * np.sinh(1)],
        ),
        (lambda x: op.Where(op.Less(x, 50.0), op.Exp(x * x), 0.0), [100.0, 1.0], [0, 2 * np.e]),
    ],
)
def test_where_hides_what_overflows(f, x, expected):
    np.testing.assert_allclose(gk.grad(lambda t: f(t).sum())(gk.tensor(x)).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("clamp", ["Relu", "Clip", "Max", "ReduceMax", "Where"])
@pytest.mark.parametrize("name", ["Sqrt", "Log", "Reciprocal"])
def test_an_infinite_slope_behind_a_constant_part_is_nothing(clamp, name):
    """sqrt(max(x, 0)) is constant below 0: its slope there is 0, though the square root's is infinite."""
    clamps = {
        "Relu": op.Relu, "Clip": lambda t: op.Clip(t, 0.0), "Max": lambda t: op.Max(t, 0.0),
        "Where": lambda t: op.Where(op.Greater(t, 0.0), t, 0.0),
        "ReduceMax": lambda t: op.ReduceMax(op.Concat(op.Unsqueeze(t, [0]), np.zeros((1, 3), np.float32), axis=0), [0]),
    }  # fmt: skip
    got = gk.grad(lambda t: getattr(op, name)(clamps[clamp](t)).sum())(gk.tensor([-1.0, 4.0, -2.0])).numpy()
    slope = {"Sqrt": 0.25, "Log": 0.25, "Reciprocal": -1 / 16}[name]
    np.testing.assert_allclose(got, [0, slope, 0])


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (lambda x: op.Abs(x), [0.0, -0.0, -2.0], [0, 0, -1]),
        (lambda x: op.Sqrt(x), [0.0, 4.0], [np.inf, 0.25]),
        (lambda x: op.Max(x, 1.0), [1.0, 2.0, 0.0], [0.5, 1, 0]),
        (lambda x: op.Min(x, x), [1.0, 2.0], [1, 1]),
        (lambda x: op.Mul(x, x), [0.0, 3.0], [0, 6]),
        (lambda x: op.Mul(x, gk.tensor([0.0, np.inf])), [1.0, 1.0], [0, np.inf]),
        (lambda x: op.Exp(x), [np.nan, 0.0], [np.nan, 1]),
        (lambda x: op.Cosh(x), [1e-4, 0.0], [1e-4, 0]),
        (lambda x: op.Sub(2.0, x), [1.0, 2.0], [-1, -1]),
        (lambda x: op.Cast(op.Cast(x, to="float16"), to="float32"), [1.0, 2.0], [1, 1]),
        (lambda x: op.CastLike(x, np.zeros(1)).astype("float32"), [1.0, 2.0], [1, 1]),
    ],
)
def test_values_at_edges(f, x, expected):
    np.testing.assert_allclose(gk.grad(lambda t: f(t).sum())(gk.tensor(x)).numpy(), expected, rtol=1e-5)


TYPED = {
    **{name: getattr(op, name) for name in UNARY},
    "Mul": lambda x: op.Mul(x, x + 1), "Div": lambda x: op.Div(x, x + 3), "Pow": lambda x: op.Pow(x, 2.0),
    "PowOfMany": lambda x: op.Pow(x, x), "Max": lambda x: op.Max(x, x * 2), "Mean": lambda x: op.Mean(x, x * x),
    "Where": lambda x: op.Where(np.array([True, False, True]), x, op.Sqrt(x)), "Sub": lambda x: op.Sub(1.0, x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", TYPED)
def test_types_stay(name, dtype):
    f, x = TYPED[name], gk.tensor(UNARY.get(name, POSITIVE)).astype(dtype)
    got = gk.grad(lambda t: f(t).sum())(x)
    assert gk.dtypes.name(got.dtype) == dtype
    exact = gk.grad(lambda t: f(t).sum())(x.astype("float64")).numpy()
    tolerance = 1e-2 if dtype == "float16" else 1e-12
    np.testing.assert_allclose(got.astype("float64").numpy(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", TYPED)
def test_types_stay_in_a_graph(name, dtype):
    """The CPU computes few operators in bfloat16, so that its graphs are checked for their types alone."""
    model = gk.trace(gk.grad(lambda t: TYPED[name](t).sum()), gk.spec(dtype, ["n", 3]))
    assert model.graph.outputs[0].dtype.name == dtype.upper()
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
