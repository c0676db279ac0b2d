"""DequantizeLinear's scale, and the straight-through estimate."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
Q = np.random.default_rng(0).integers(-100, 100, size=(2, 3, 4)).astype(np.int8)


@pytest.mark.parametrize(
    ("scale", "zero", "attributes"),
    [
        (np.array(0.05), None, {}), (np.array(0.05), np.array(3, np.int8), {}),
        (np.array([0.1, 0.2, 0.3]), np.array([1, 2, 3], np.int8), {"axis": 1}),
        (np.array([0.1, 0.2, 0.3, 0.4]), None, {"axis": -1}),
        (np.full((2, 3, 2), 0.1), np.ones((2, 3, 2), np.int8), {"axis": 2, "block_size": 2}),
        (np.full((2, 2, 4), 0.1), None, {"axis": 1, "block_size": 2}),
    ],
)  # fmt: skip
def test_the_scale_has_a_gradient(scale, zero, attributes):
    """The standard has scales of at most float32, in which differences are exact enough: the operator is linear."""
    given = [] if zero is None else [gk.tensor(zero)]
    weights = np.cos(np.arange(Q.size)).reshape(Q.shape).astype(np.float32)
    f = lambda s: (op.DequantizeLinear(gk.tensor(Q), s, *given, **attributes) * gk.tensor(weights)).sum()
    got = gk.grad(f)(gk.tensor(scale.astype(np.float32))).numpy()
    expected = np.zeros(scale.shape)
    for place in np.ndindex(*scale.shape):
        unit = np.zeros(scale.shape, np.float32)
        unit[place] = 1
        expected[place] = f(gk.tensor(unit)).item()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_gradients_stop_at_rounding_unless_asked():
    f = lambda x: (op.Round(x) * x + op.Floor(x) + op.Ceil(x)).sum()
    x = gk.tensor([1.4, -0.6])
    np.testing.assert_allclose(gk.grad(f)(x).numpy(), [1.0, -1.0])
    with gk.gradients.straight_through():
        np.testing.assert_allclose(gk.grad(f)(x).numpy(), [1 + 1.4 + 2, -1 - 0.6 + 2], rtol=1e-6)
    np.testing.assert_allclose(gk.grad(f)(x).numpy(), [1.0, -1.0])


@pytest.mark.parametrize("traced", [False, True])
def test_fake_quantization(traced):
    """Within the range of int8 the pair is the identity; beyond it, a constant."""
    scale = np.float32(0.1)

    def f(x):
        units = op.QuantizeLinear(x, scale, np.array(0, np.int8))
        return (op.DequantizeLinear(units, scale, np.array(0, np.int8)) * gk.tensor([1.0, 2.0, 3.0])).sum()

    x = np.array([0.33, 50.0, -2.0], np.float32)
    with gk.gradients.straight_through():
        if traced:
            model = gk.trace(gk.grad(f), gk.spec("float32", ["n"]), input_names=["x"])
            got = next(iter(gk.run(model, {"x": x}).values()))
        else:
            got = gk.grad(f)(gk.tensor(x)).numpy()
    np.testing.assert_allclose(got, [1, 0, 3])


def test_quantization_stops_gradients_otherwise():
    with pytest.raises(gk.errors.GradientError):
        gk.grad(lambda x: op.DequantizeLinear(op.QuantizeLinear(x, 0.1), 0.1).sum())(gk.tensor([1.0]))


def test_steps_are_straight_to_second_order():
    with gk.gradients.straight_through():
        check_gradients(lambda x: op.Round(x) * x, [np.array([2.0, 3.0])], numeric=False, order=2)
