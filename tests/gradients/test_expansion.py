"""Operators without a rule, by their function bodies: the rules' own numbers, eagerly and in a graph."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GradientError
from graphkit.gradients import rule_for
from graphkit.gradients.expansion import by_function_body, expands
from graphkit.gradients.table import RULES

op = gk.op
X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
IMAGE = np.random.default_rng(1).normal(size=(2, 4, 3, 3)).astype(np.float32)

CASES = {
    "Gelu": lambda x: op.Gelu(x),
    "Gelu tanh": lambda x: op.Gelu(x, approximate="tanh"),
    "HardSwish": lambda x: op.HardSwish(x),
    "Mish": lambda x: op.Mish(x),
    "Softplus": lambda x: op.Softplus(x),
    "Elu": lambda x: op.Elu(x, alpha=0.7),
    "LeakyRelu": lambda x: op.LeakyRelu(x, alpha=0.3),
    "Shrink": lambda x: op.Shrink(x, lambd=0.4, bias=0.1),
    "ReduceSumSquare": lambda x: op.ReduceSumSquare(x, np.array([1])),
    "ReduceL2": lambda x: op.ReduceL2(x, np.array([0]), keepdims=0),
    "Softmax": lambda x: op.Softmax(x, axis=0),
    "LogSoftmax": lambda x: op.LogSoftmax(x),
    "Swish": lambda x: op.Swish(x),
    "SoftmaxCrossEntropyLoss": lambda x: op.SoftmaxCrossEntropyLoss(x, np.array([1, 3])),
    "NegativeLogLikelihoodLoss": lambda x: op.NegativeLogLikelihoodLoss(x, np.array([1, 3]), reduction="sum"),
    "CenterCropPad": lambda x: op.CenterCropPad(x, np.array([3, 3])),
    "MeanVarianceNormalization": lambda x: op.MeanVarianceNormalization(op.Reshape(x, [2, 4, 1, 1]), axes=[0, 2, 3]),
    "GroupNormalization": lambda x: op.GroupNormalization(
        op.Reshape(x, [2, 4, 1]), x[0] * 0 + 1.5, x[0] * 0, num_groups=2),
}  # fmt: skip


def _differentiate(f, traced):
    loss = gk.grad(lambda x: (f(x) ** 2).sum())
    if not traced:
        return loss(gk.tensor(X)).numpy()
    model = gk.trace(loss, gk.spec("float32", ["n", 4] if "Cross" not in str(f) else [2, 4]), input_names=["x"])
    return next(iter(gk.run(model, {"x": X}, optimizations=False).values()))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_the_rule(name, traced, monkeypatch):
    by_rule = _differentiate(CASES[name], traced=False)
    operator = name.split()[0]
    monkeypatch.delitem(RULES, (operator, ""), raising=False)
    assert expands(operator) and rule_for(operator) is by_function_body
    np.testing.assert_allclose(_differentiate(CASES[name], traced), by_rule, rtol=1e-3, atol=1e-4)


def test_to_second_order(monkeypatch):
    f = lambda x: (gk.grad(lambda t: (op.Swish(t) ** 2).sum())(x) ** 2).sum()
    by_rule = gk.grad(f)(gk.tensor(X)).numpy()
    monkeypatch.delitem(RULES, ("Swish", ""))
    np.testing.assert_allclose(gk.grad(f)(gk.tensor(X)).numpy(), by_rule, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_expanded_is_named(monkeypatch):
    monkeypatch.delitem(RULES, ("Tanh", ""))
    with pytest.raises(GradientError, match=r"no gradient rule for Tanh"):
        gk.grad(lambda x: op.Tanh(x).sum())(gk.tensor(X))
