"""CumProd, at zeros and away from them."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
X = np.array([[0.5, -1.2, 2.0, 0.7], [1.5, 0.3, -0.4, 1.1]])


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cum_prod(axis, reverse, exclusive):
    f = lambda x: op.CumProd(x, np.array(axis), exclusive=exclusive, reverse=reverse)
    check_gradients(f, [X], order=2)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize(
    "row", [[0.5, 0.0, 2.0, 3.0], [0.0, 2.0, 0.0, 4.0], [1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
)
def test_zeros_among_factors(row, reverse, exclusive):
    check_gradients(lambda x: op.CumProd(x, np.array(0), exclusive=exclusive, reverse=reverse), [np.array(row)])
