"""Records keep the values that their rules read, and no others; reading one that was not kept is an error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphkit as gk
from graphkit import absent, eager
from graphkit.absent import UNREAD_INPUTS, UNREAD_OUTPUTS, Absent
from graphkit.errors import GradientError

RNG = np.random.default_rng(0)
X = RNG.uniform(0.2, 0.9, size=(6, 6)).astype("f")

# A value with a history goes through the operator; both orders of gradient must come out as when all is kept.
CASES: dict[str, Callable[[gk.Tensor], gk.Tensor]] = {
    "Add": lambda x: x + x * 2.0, "Sub": lambda x: x - x * x, "Neg": lambda x: -x, "Mul": lambda x: x * (x + 1.0),
    "Identity": gk.op.Identity, "Relu": gk.op.Relu, "Sigmoid": gk.op.Sigmoid, "Tanh": gk.op.Tanh, "Exp": gk.op.Exp,
    "Softmax": gk.op.Softmax, "LogSoftmax": gk.op.LogSoftmax, "Reshape": lambda x: x.reshape(9, 4),
    "Flatten": gk.op.Flatten, "Squeeze": lambda x: x.unsqueeze(0).squeeze(0), "Unsqueeze": lambda x: x.unsqueeze(1),
    "Transpose": lambda x: x.T, "Expand": lambda x: gk.op.Expand(x, [2, 6, 6]), "ReduceSum": lambda x: x.sum(axis=0),
    "ReduceMean": lambda x: x.mean(axis=1), "MatMul": lambda x: x @ (x * 0.5),
    "Gemm": lambda x: gk.op.Gemm(x, x, x, transB=1), "Gelu": gk.op.Gelu,
    "Conv": lambda x: gk.op.Conv(x.reshape(1, 1, 6, 6), x[:2, :2].reshape(1, 1, 2, 2)),
}  # fmt: skip


def test_every_operator_that_lets_go_has_a_case() -> None:
    assert set(UNREAD_INPUTS) | UNREAD_OUTPUTS <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_what_was_kept_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(x: gk.Tensor) -> gk.Tensor:
        y = CASES[name](x * 1.5)
        return (y * y * y).sum()

    def both() -> list[np.ndarray]:
        x = gk.tensor(X, requires_grad=True)
        loss(x).backward()
        assert x.grad is not None
        second = gk.grad(lambda x: (gk.grad(loss)(x) * 0.1).sum())(gk.tensor(X))
        return [x.grad.numpy(), second.numpy()]

    monkeypatch.setattr(eager, "WORTH", 10**9)
    whole = both()
    monkeypatch.setattr(eager, "WORTH", 0)
    for got, expected in zip(both(), whole, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_rule_that_reads_what_was_not_kept_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "WORTH", 0)
    monkeypatch.setitem(absent.UNREAD_INPUTS, "Sin", (0,))
    x = gk.tensor(X, requires_grad=True)
    with pytest.raises(GradientError, match="only the shape was kept"):
        gk.op.Sin(x * 2.0).sum().backward()


def test_a_deep_network_keeps_one_activation_a_layer() -> None:
    weights = [gk.tensor(RNG.normal(size=(64, 64)).astype("f"), requires_grad=True) for _ in range(4)]
    h = gk.tensor(np.ones((128, 64), "f"))
    for w in weights:
        h = gk.op.Relu(h @ w)
    kept = 0
    seen: set[int] = set()
    record = h.record
    while record is not None:
        for array in [*record.made, *(t._array for t in record.inputs if t is not None and t.record is not None)]:
            if not isinstance(array, Absent) and id(array) not in seen:
                seen.add(id(array))
                kept += array.nbytes
        record = next((t.record for t in record.inputs if t is not None and t.record is not None), None)
    assert kept == 4 * 128 * 64 * 4
