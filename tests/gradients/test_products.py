"""Products at zeros: every derivative is a product of other factors, and none of it goes through a division."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import graphkit as gk

VALUES = {
    "one zero": [0.0, 2.0, 3.0],
    "two zeros": [0.0, 0.0, 3.0],
    "three zeros": [0.0, 0.0, 0.0],
    "none": [1.5, -2.0, 3.0],
    "twenty factors, two zeros": [0.0, *np.linspace(0.5, 1.5, 18), 0.0],
}


def _second(values: np.ndarray) -> np.ndarray:
    n = len(values)
    expected = np.zeros((n, n))
    for i, j in itertools.permutations(range(n), 2):
        expected[i, j] = math.prod(values[k] for k in range(n) if k not in (i, j))
    return expected


@pytest.mark.parametrize("name", VALUES)
def test_the_second_derivative_of_a_product(name: str) -> None:
    values = np.array(VALUES[name])
    found = gk.hessian(lambda x: gk.op.ReduceProd(x, keepdims=0))(gk.tensor(values)).numpy()
    np.testing.assert_allclose(found, _second(values), atol=1e-12)


@pytest.mark.parametrize("axes", [[0, 1], [2, 0], [0, 1, 2], None])
def test_a_product_over_several_axes(axes: list[int] | None) -> None:
    values = np.linspace(0.6, 1.4, 24).reshape(2, 3, 4)
    values[0, 1, 2] = values[1, 0, 0] = 0
    taken = [axes] if axes is not None else []
    f = lambda x: (gk.op.ReduceProd(x, *taken, keepdims=1) ** 2 + gk.op.ReduceProd(x, *taken, keepdims=1)).sum()
    found = gk.hessian(f)(gk.tensor(values)).numpy().reshape(24, 24)
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    step = 1e-5
    for place in (6, 12, 5):
        ends = []
        for sign in (1, -1):
            moved = values.copy().ravel()
            moved[place] += sign * step
            ends.append(gk.grad(f)(gk.tensor(moved.reshape(2, 3, 4))).numpy().ravel())
        np.testing.assert_allclose(found[place], (ends[0] - ends[1]) / (2 * step), atol=1e-8)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_the_second_derivative_of_running_products(exclusive: int, reverse: int) -> None:
    values = [0.0, 0.5, 0.0, -0.3]

    def by_hand(x: gk.Tensor) -> gk.Tensor:
        total, product = None, None
        for i in reversed(range(4)) if reverse else range(4):
            before = product
            product = x[i] if product is None else product * x[i]
            term = before if exclusive else product
            if term is not None:
                total = term if total is None else total + term
        assert total is not None
        return total

    f = lambda x: gk.op.CumProd(x, 0, exclusive=exclusive, reverse=reverse).sum()
    np.testing.assert_allclose(
        gk.hessian(f)(gk.tensor(values)).numpy(), gk.hessian(by_hand)(gk.tensor(values)).numpy(), atol=1e-6
    )
