"""Softmax and LogSoftmax: every axis, masked rows, large scores, half precision."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
X = np.random.default_rng(0).normal(size=(2, 3, 2))


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [-1, 0, 1, -3])
def test_axes(name, axis):
    check_gradients(lambda x: getattr(op, name)(x, axis=axis), [X], order=2)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 1)])
def test_shapes(name, shape):
    check_gradients(lambda x: getattr(op, name)(x), [np.random.default_rng(1).normal(size=shape)], order=2)


def test_masked_scores_get_exactly_nothing():
    mask = gk.tensor([[0.0, -np.inf, 0.0], [0.0, 0.0, -np.inf]])
    c = gk.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    x = gk.tensor([[1.0, 2.0, 3.0], [5.0, 1.0, 0.0]])
    got = gk.grad(lambda t: (op.Softmax(t + mask) * c).sum())(x).numpy()
    assert np.isfinite(got).all() and got[0, 1] == 0 and got[1, 2] == 0
    safe = op.Greater(mask, gk.tensor(-1.0))
    logs = gk.grad(lambda t: op.Where(safe, op.LogSoftmax(t + mask), 0.0).sum())(x).numpy()
    assert np.isfinite(logs).all() and logs[0, 1] == 0 and logs[1, 2] == 0


def test_a_row_without_scores_is_nan_as_its_result_is():
    x = gk.tensor([[-np.inf, -np.inf], [0.0, 1.0]])
    got = gk.grad(lambda t: (op.Softmax(t) ** 2).sum())(x).numpy()
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_stay(name, dtype):
    model = gk.trace(gk.grad(lambda t: (getattr(op, name)(t) ** 2).sum()), gk.spec(dtype, ["n", 3]))
    assert model.graph.outputs[0].dtype.name == dtype.upper()
    if dtype == "float16":
        got = gk.grad(lambda t: (getattr(op, name)(t) ** 2).sum())(gk.tensor(X).astype(dtype)).numpy()
        exact = gk.grad(lambda t: (getattr(op, name)(t) ** 2).sum())(gk.tensor(X).astype("float64")).numpy()
        np.testing.assert_allclose(got, exact, rtol=2e-2, atol=1e-2)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "theirs"), [("Softmax", "softmax"), ("LogSoftmax", "log_softmax")])
@pytest.mark.parametrize("scale", [1, 100])
def test_as_pytorch(name, theirs, scale):
    torch = pytest.importorskip("torch")
    x = (X * scale).astype(np.float32)
    t = torch.tensor(x, requires_grad=True)
    (getattr(torch, theirs)(t, dim=-1) ** 2).sum().backward()
    ours = gk.grad(lambda v: (getattr(op, name)(v) ** 2).sum())(gk.tensor(x)).numpy()
    np.testing.assert_allclose(ours, t.grad.numpy(), rtol=1e-4, atol=1e-4)
