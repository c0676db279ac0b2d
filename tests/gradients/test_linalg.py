"""Det: sizes, batches, singular matrices."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [(), (2,), (2, 1)])
def test_det(n, batch):
    symbolic = [[*(f"b{i}" for i in range(len(batch))), n, n]]
    check_gradients(op.Det, [rng.normal(size=(*batch, n, n))], order=2 if n <= 3 else 1, symbolic=symbolic)


@pytest.mark.parametrize(
    "x", [np.zeros((2, 2)), np.ones((3, 3)), np.diag([1.0, 2.0, 0.0]), np.diag([0.0, 1.0, 0.0, 2.0])]
)
def test_singular(x):
    check_gradients(op.Det, [x], symbolic=False)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_of_a_size_that_only_the_run_knows(n):
    x = rng.normal(size=(2, n, n))
    x[0, 0] = 0
    check_gradients(op.Det, [x], order=2, symbolic=[["b", "n", "n"]])
