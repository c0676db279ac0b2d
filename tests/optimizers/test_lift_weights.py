"""Weights inside bodies, as initializers and as Constant nodes, get gradients by their names."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.errors import GradientError
from graphkit.runtime import run
from tests.gradients.models import gradient_model, model_of

TEXT = """g (double[3] x, bool p) => (double loss) {
  y = If<then_branch = a () => (double[3] t) {
      t = If<then_branch = aa () => (double[3] u) { w = Constant<value = double[3] {1, 2, 3}>() u = Mul(x, w) },
             else_branch = ab () => (double[3] v) { v = Constant<value = double[3] {4, 5, 6}>() }>(p)
    }, else_branch = b () => (double[3] e) <double[3] held = {7, 8, 9}> { e = Mul(x, held) }>(p)
  loss = ReduceSumSquare<keepdims = 0>(y)
}"""
X = np.array([0.5, -1.0, 2.0])


@pytest.mark.parametrize("taken", [True, False])
def test_weights_in_bodies(taken):
    found = gradient_model(model_of(TEXT), ["w", "held", "x", "v"])
    got = run(found, {"x": X, "p": np.array(taken)}, optimizations=False)
    w, held = np.array([1.0, 2, 3]), np.array([7.0, 8, 9])
    np.testing.assert_allclose(got["w_grad"], 2 * w * X * X if taken else 0 * w)
    np.testing.assert_allclose(got["held_grad"], 0 * w if taken else 2 * held * X * X)
    np.testing.assert_allclose(got["x_grad"], 2 * w * w * X if taken else 2 * held * held * X)
    np.testing.assert_allclose(got["v_grad"], 0 * w)


def test_an_unknown_name_is_still_an_error():
    with pytest.raises(GradientError, match="no value 'nothing'"):
        gradient_model(model_of(TEXT), ["nothing"])
