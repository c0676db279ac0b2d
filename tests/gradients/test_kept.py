"""Outputs that only the reverse pass reads: given to nodes of a graph, of a body, and asked for eagerly."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.optimizers.add_gradients import add_gradients

X = np.random.default_rng(8).standard_normal((3, 2, 4)).astype(np.float32)
SCALE = np.array([1.0, 2.0, 0.5, -1.0], np.float32)
OP = gk.op


def step(state, x):
    new = OP.LayerNormalization(state + x, SCALE)
    return new, new


def looped(x):
    return gk.scan(step, np.zeros((2, 4), np.float32), x)[1]


def unrolled(x):
    state, found = gk.tensor(np.zeros((2, 4), np.float32)), []
    for n in range(3):
        state, _ = step(state, x[n])
        found.append(state)
    return OP.Concat(*[OP.Unsqueeze(f, np.array([0], np.int64)) for f in found], axis=0)


def weighted(f):
    weights = np.cos(np.arange(24, dtype=np.float32)).reshape(3, 2, 4)
    return lambda x: (f(x) * weights).sum()


@pytest.mark.parametrize("dims", [(3, 2, 4), ("n", 2, 4)])
def test_in_the_body_of_a_scan(dims):
    expected = gk.grad(weighted(unrolled))(gk.tensor(X)).numpy()
    model = gk.trace(gk.grad(weighted(looped)), gk.spec("float32", dims), input_names=["x"])
    (found,) = gk.run(model, {"x": X}, optimizations=False).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_in_the_branch_of_an_if():
    f = lambda x, p: gk.cond(p, lambda x: OP.LayerNormalization(x, SCALE), lambda x: x * 2.0, x)
    loss = lambda x, p: (f(x, p) * SCALE).sum()
    model = gk.trace(gk.grad(loss), gk.spec("float32", [2, 4]), gk.spec("bool", []), input_names=["x", "p"])
    for p in (True, False):
        (found,) = gk.run(model, {"x": X[0], "p": np.array(p)}, optimizations=False).values()
        expected = gk.grad(lambda x, p=p: (f(x, p) * SCALE).sum())(gk.tensor(X[0])).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[2, 4] x, float[4] s) => (float loss{more}) {{
  {outputs} = {op}
  loss = ReduceSumSquare<keepdims=0>(y)
}}"""


@pytest.mark.parametrize("outputs", ["y", "y, mean", "y, mean, inv", "y, , inv"])
def test_an_imported_node_with_some_of_its_outputs(outputs):
    text = TEXT.format(outputs=outputs, op="LayerNormalization<epsilon=0.1>(x, s)", more="")
    model = add_gradients(onnx.parser.parse_model(text), "loss", ["x", "s"])
    (node,) = (n for n in model.graph.node if n.op_type == "LayerNormalization")
    assert len(node.output) == 3
    assert all(node.output)
    found = gk.run(model, {"x": X[0], "s": SCALE}, optimizations=False)
    loss = lambda x, s: OP.ReduceSumSquare(OP.LayerNormalization(x, s, epsilon=0.1), keepdims=0)
    expected = gk.grad(loss, (0, 1))(gk.tensor(X[0]), gk.tensor(SCALE))
    for name, want in zip(("x_grad", "s_grad"), expected, strict=True):
        np.testing.assert_allclose(found[name], want.numpy(), rtol=1e-4, atol=1e-5)


def test_eager_asks_for_more_only_where_it_records():
    x = gk.tensor(X[0], requires_grad=True)
    y = OP.LayerNormalization(x, SCALE)
    assert len(y.record.made) == 3
    with gk.no_grad():
        assert OP.LayerNormalization(x, SCALE).record is None
