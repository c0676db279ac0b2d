"""Weights inside bodies, as initializers and as Constant nodes, get gradients by their names."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
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


TWICE = """g (double[3] x, bool p) => (double loss) {
  [choice] y = If<then_branch = a () => (double[3] t) { w = Constant<value = double[3] {1, 2, 3}>() t = Mul(x, w) },
                  else_branch = b () => (double[3] e) <double[3] w = {4, 5, 6}> { e = Mul(x, w) }>(p)
  z = If<then_branch = c () => (double[3] u) { u = Identity(y) },
         else_branch = d () => (double[3] f) {
           f = If<then_branch = dt () => (double[3] v) { v = Identity(y) }, else_branch = de () => (double[3] g) {
             w = Constant<value = double[3] {7, 8, 9}>() g = Add(y, w) }>(p) }>(p)
  loss = ReduceSumSquare<keepdims = 0>(z)
}"""
NAMES = ["choice/then_branch/w", "choice/else_branch/w", "z/else_branch/f/else_branch/w"]


@pytest.mark.parametrize("taken", [True, False])
def test_one_name_in_several_bodies(taken):
    found = gradient_model(model_of(TWICE), "all", unreached="error")
    got = run(found, {"x": X, "p": np.array(taken)}, optimizations=False)
    assert list(got) == ["loss", *(f"{n}_grad" for n in NAMES)]
    first, second, third = (np.arange(3.0) + n for n in (1, 4, 7))
    z = X * first if taken else X * second + third
    for name, want in zip(NAMES, (2 * z * X * taken, 2 * z * X * (not taken), 2 * z * (not taken)), strict=True):
        np.testing.assert_allclose(got[f"{name}_grad"], want, err_msg=name)


def test_a_name_that_is_several_constants_is_no_ones():
    with pytest.raises(GradientError, match=r"'w' is the name of 3 .* choice/then_branch/w, choice/else_branch/w"):
        gradient_model(model_of(TWICE), ["w"])


TRAINED = """g (float[n, 3] x, bool p) => (float loss) {
  c = Constant<value = float[3] {1, 1, 1}>()
  s = Mul(x, c)
  y = If<then_branch = a () => (float[n, 3] t) { w = Constant<value = float[3] {1, 2, 3}>() t = Mul(s, w) },
         else_branch = b () => (float[n, 3] t) <HELD> {
           w = Constant<value = float[3] {4, 5, 6}>() t = Mul(s, HERE) }>(p)
  loss = ReduceSumSquare<keepdims = 0>(y)
}"""


@pytest.mark.parametrize(
    ("held", "here", "trainable", "expected"),
    [
        ("", "w", None, ["c", "y/then_branch/w", "y/else_branch/w"]),
        ("", "w", ["y/else_branch/w"], ["y/else_branch/w"]),
        ("float[3] h = {7, 8, 9}", "h", None, ["h"]),
        ("float[3] h = {7, 8, 9}", "h", ["c", "h"], ["c", "h"]),
        ("float[3] h = {7, 8, 9}", "h", ["y/then_branch/w"], ["y/then_branch/w"]),
    ],
)
def test_what_is_trained(held, here, trainable, expected, tmp_path):
    model = model_of(TRAINED.replace("<HELD>", f"<{held}>" if held else "").replace("HERE", here))
    graph = gk.training.build(model, loss="loss", optimizer=gk.optim.SGD(1e-4), trainable=trainable)
    assert graph.trainable == expected
    trainer = gk.Trainer(graph)
    x = np.ones((2, 3), np.float32)
    losses = [float(trainer.step({"x": x, "p": np.array(p)})["loss"]) for p in (True, False, True, False)]
    moved = {"then": losses[2] < losses[0], "else": losses[3] < losses[1]}
    assert moved == {
        "then": any(n in expected for n in ("c", "y/then_branch/w")),
        "else": any(n in expected for n in ("c", "h", "y/else_branch/w")),
    }
    path = tmp_path / "inference.onnx"
    trainer.export_inference(path)
