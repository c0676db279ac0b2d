"""Pad in its four modes: negative amounts, axes, a constant that wants a gradient, run-time amounts."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.gradients import padding
from graphkit.testing import check_gradients

op = gk.op
X = np.random.default_rng(0).normal(size=(3, 4))
IMAGE = np.random.default_rng(1).normal(size=(1, 2, 3, 4))
MODES = ["constant", "reflect", "edge", "wrap"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pads", [[1, 0, 0, 2], [2, 1, 1, 3], [0, 0, 0, 0], [-1, 1, 0, -2]])
def test_modes(mode, pads):
    if mode != "constant" and min(pads) < 0:
        pytest.skip("what negative amounts mean in this mode is left open, and runtimes differ")
    check_gradients(lambda x: op.Pad(x, np.array(pads), mode=mode), [X], order=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axes", [[1], [-1, 1], [2, 3]])
def test_axes(mode, axes):
    pads = np.array([1] * len(axes) + [0] * len(axes))
    check_gradients(lambda x: op.Pad(x, pads, None, np.array(axes), mode=mode), [IMAGE])


@pytest.mark.parametrize("mode", MODES)
def test_amounts_that_only_the_run_knows(mode):
    layout = [["a", "b"], [4]]
    check_gradients(lambda x, p: op.Pad(x, p, mode=mode), [X, np.array([1, 2, 0, 1])], symbolic=layout)
    check_gradients(lambda x, p: op.Pad(x, p, None, np.array([-1]), mode=mode), [X, np.array([1, 2])],
                    symbolic=[["a", "b"], [2]])  # fmt: skip


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("pads", [(3, 0), (0, 2), (2, 3), (5, 5)])
@pytest.mark.parametrize("axis", [0, 1])
def test_long_axes(mode, pads, axis, monkeypatch):
    monkeypatch.setattr(padding, "LITERAL_EXTENT", 2)
    x = np.random.default_rng(2).normal(size=(2, 6) if axis else (6, 2))
    check_gradients(lambda x: op.Pad(x, np.array(pads), None, np.array([axis]), mode=mode), [x], order=2)
    one = np.random.default_rng(2).normal(size=(1, 3))
    if mode == "edge":  # of an axis that may have one element
        check_gradients(lambda x: op.Pad(x, np.array(pads), None, np.array([0]), mode=mode), [one])


def test_a_long_axis_makes_no_matrix():
    f = gk.grad(lambda x: (op.Pad(x, np.array([0, 128, 0, 64]), mode="reflect") ** 2).sum())
    for length in (44100, "n"):
        model = gk.trace(f, gk.spec("float32", ["batch", length]))
        assert not {"MatMul", "Equal", "Range"} & {node.op_type for node in model.graph}


@pytest.mark.parametrize("pads", [[1, 0, 0, 2], [0, 0, 0, 0], [-1, 1, 1, -1]])
def test_the_constant_has_a_gradient(pads):
    check_gradients(lambda x, c: op.Pad(x, np.array(pads), c), [X, np.array(0.7)], order=2)


@pytest.mark.torch
@pytest.mark.parametrize(("mode", "theirs"), [("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")])
def test_as_pytorch(mode, theirs):
    torch = pytest.importorskip("torch")
    x = IMAGE.astype(np.float32)
    t = torch.tensor(x, requires_grad=True)
    (torch.nn.functional.pad(t, (2, 1, 1, 2), mode=theirs) ** 2).sum().backward()
    pads = np.array([0, 0, 1, 2, 0, 0, 2, 1])
    ours = gk.grad(lambda v: (op.Pad(v, pads, mode=mode) ** 2).sum())(gk.tensor(x)).numpy()
    np.testing.assert_allclose(ours, t.grad.numpy(), rtol=1e-5, atol=1e-6)
