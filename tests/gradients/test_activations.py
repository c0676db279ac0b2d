"""Activation functions: every attribute, second order, kinks, infinities, PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
AWAY = np.array([[-2.3, -0.7, 0.4], [1.3, 3.4, -3.6]])  # clear of every kink below

CASES = {
    "Relu": lambda x: op.Relu(x),
    "LeakyRelu": lambda x: op.LeakyRelu(x),
    "LeakyRelu steep": lambda x: op.LeakyRelu(x, alpha=1.5),
    "LeakyRelu negative": lambda x: op.LeakyRelu(x, alpha=-0.3),
    "ThresholdedRelu": lambda x: op.ThresholdedRelu(x),
    "ThresholdedRelu low": lambda x: op.ThresholdedRelu(x, alpha=-1.0),
    "ThresholdedRelu zero": lambda x: op.ThresholdedRelu(x, alpha=0.0),
    "Elu": lambda x: op.Elu(x),
    "Elu 2": lambda x: op.Elu(x, alpha=2.0),
    "Elu 0.3": lambda x: op.Elu(x, alpha=0.3),
    "Elu negative": lambda x: op.Elu(x, alpha=-0.5),
    "Selu": lambda x: op.Selu(x),
    "Selu plain": lambda x: op.Selu(x, alpha=1.0, gamma=1.0),
    "Selu other": lambda x: op.Selu(x, alpha=0.5, gamma=2.0),
    "Celu": lambda x: op.Celu(x),
    "Celu 0.5": lambda x: op.Celu(x, alpha=0.5),
    "Celu 2": lambda x: op.Celu(x, alpha=2.0),
    "Softplus": lambda x: op.Softplus(x),
    "Softsign": lambda x: op.Softsign(x),
    "HardSigmoid": lambda x: op.HardSigmoid(x),
    "HardSigmoid steep": lambda x: op.HardSigmoid(x, alpha=0.5, beta=0.3),
    "HardSigmoid falling": lambda x: op.HardSigmoid(x, alpha=-0.2, beta=0.5),
    "HardSwish": lambda x: op.HardSwish(x),
    "Swish": lambda x: op.Swish(x),
    "Swish 1.7": lambda x: op.Swish(x, alpha=1.7),
    "Mish": lambda x: op.Mish(x),
    "Gelu": lambda x: op.Gelu(x),
    "Gelu tanh": lambda x: op.Gelu(x, approximate="tanh"),
    "Shrink": lambda x: op.Shrink(x),
    "Shrink wide": lambda x: op.Shrink(x, lambd=1.0, bias=0.3),
    "Shrink soft": lambda x: op.Shrink(x, lambd=0.6, bias=0.6),
    "Clip low": lambda x: op.Clip(x, -1.0),
    "Clip high": lambda x: op.Clip(x, None, 1.0),
    "Clip both": lambda x: op.Clip(x, -1.0, 2.0),
    "Clip none": lambda x: op.Clip(x),
}


# Operators that are not computed in float64 (by the standard, or not to its precision), and what they mean.
MEANING = {
    "Celu": lambda x: op.Elu(x), "Celu 0.5": lambda x: op.Elu(x * 2) * 0.5, "Celu 2": lambda x: op.Elu(x * 0.5) * 2,
    "Gelu": lambda x: x * 0.5 * (op.Erf(x * np.sqrt(0.5)) + 1),
    "Shrink": lambda x: _shrink(x, 0.5, 0), "Shrink wide": lambda x: _shrink(x, 1, 0.3),
    "Shrink soft": lambda x: _shrink(x, 0.6, 0.6),
}  # fmt: skip


def _shrink(x, lambd, bias):
    return op.Where(op.Greater(op.Abs(x), lambd), x - op.Sign(x) * bias, x * 0)


@pytest.mark.parametrize("name", MEANING)
def test_as_its_meaning(name):
    def twice(f):
        return gk.grad(lambda x: (gk.grad(lambda t: (f(t) * f(t)).sum())(x) * 0.5 + x * x).sum())

    for transform in (lambda f: gk.grad(lambda t: (f(t) * f(t)).sum()), twice):
        ours = transform(CASES[name])(gk.tensor(AWAY).astype("float32")).numpy()
        exact = transform(MEANING[name])(gk.tensor(AWAY)).numpy()
        np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", ["matrix", "vector", "scalar"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in MEANING])
def test_to_second_order(name, shape):
    if (name, shape) == ("Softsign", "scalar"):
        pytest.skip("onnx's reference, which computes it in float64, returns no array for a scalar")
    x = {"matrix": AWAY, "vector": AWAY.ravel()[:4], "scalar": AWAY[1, 0]}[shape]
    check_gradients(CASES[name], [x], order=2 if shape == "matrix" else 1)


@pytest.mark.parametrize(
    "slope", [np.array([0.25]), np.array([[0.1], [0.5]]), np.array(0.3), np.array([0.1, -0.2, 1.5])]
)
def test_prelu(slope):
    check_gradients(lambda x, s: op.PRelu(x, s), [AWAY, slope], order=2)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (-5.0, 5.0), (0.5, 0.6)])
def test_clip_to_its_bounds(low, high):
    check_gradients(lambda x, a, b: op.Clip(x, a, b), [AWAY, np.array(low), np.array(high)], order=2)


def test_clip_with_crossed_bounds_is_the_upper_one():
    got = gk.grad(lambda x, a, b: op.Clip(x, a, b).sum(), (0, 1, 2))(
        gk.tensor([0.0, 5.0]), gk.tensor(3.0), gk.tensor(1.0)
    )
    assert [t.tolist() for t in got] == [[0, 0], 0, 2]


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("Relu", 0.0, 0), ("LeakyRelu", 0.0, 0.01), ("Elu", 0.0, 1), ("Selu", 0.0, 1.0507009873554805),
        ("Celu", 0.0, 1), ("ThresholdedRelu", 1.0, 0), ("Clip both", -1.0, 1), ("Clip both", 2.0, 1),
        ("Shrink", 0.5, 0),
        ("HardSigmoid", 2.5, 0), ("HardSwish", 3.0, 1), ("HardSwish", -3.0, 0),
        ("Elu", np.inf, 1), ("Elu", -np.inf, 0), ("Elu 2", np.inf, 1), ("Selu", np.inf, 1.0507009873554805),
        ("Celu", np.inf, 1), ("HardSwish", np.inf, 1), ("HardSwish", -np.inf, 0), ("Softplus", np.inf, 1),
        ("Softplus", -np.inf, 0), ("Relu", np.inf, 1), ("Relu", -np.inf, 0), ("Clip both", np.inf, 0),
        ("Softplus", 100.0, 1), ("Gelu", 40.0, 1), ("Gelu tanh", 40.0, 1), ("Mish", 90.0, 1), ("Gelu", -40.0, 0),
    ],
)  # fmt: skip
def test_kinks_and_infinities(name, x, expected):
    got = gk.grad(lambda t: CASES[name](t))(gk.tensor(x)).item()
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["Elu", "Selu", "Celu", "Softplus", "Softsign", "Swish", "Mish", "Gelu", "Gelu tanh"])
def test_nan_stays_nan(name):
    assert np.isnan(gk.grad(lambda t: CASES[name](t))(gk.tensor(np.nan)).item())


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_types_stay(name, dtype):
    x = gk.tensor(AWAY).astype(dtype)
    if name.startswith("Celu"):
        pytest.skip("it is float32's alone")
    got = gk.grad(lambda t: CASES[name](t).sum())(x)
    assert gk.dtypes.name(got.dtype) == dtype
    exact = gk.grad(lambda t: CASES[name](t).sum())(x.astype("float64")).numpy()
    np.testing.assert_allclose(got.astype("float64").numpy(), exact, rtol=2e-2, atol=1e-2)


TORCH = {
    "Relu": "relu", "LeakyRelu": "leaky_relu", "Elu": "elu", "Selu": "selu", "Celu": "celu", "Softplus": "softplus",
    "Softsign": "softsign", "HardSwish": "hardswish", "Swish": "silu", "Mish": "mish", "Gelu": "gelu",
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("name", TORCH)
def test_as_pytorch(name):
    torch = pytest.importorskip("torch")
    x = np.linspace(-6, 6, 42 if name == "Selu" else 41).astype(np.float32)  # at 0 its slope is the left one there
    theirs = torch.tensor(x, requires_grad=True)
    getattr(torch.nn.functional, TORCH[name])(theirs).sum().backward()
    ours = gk.grad(lambda t: CASES[name](t).sum())(gk.tensor(x)).numpy()
    np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=1e-5, atol=2e-6)
