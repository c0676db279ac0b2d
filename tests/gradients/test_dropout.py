"""Dropout: the reverse pass uses the forward's own mask, however the operator was asked for."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.optimizers.add_gradients import add_gradients

X = np.arange(1, 41, dtype=np.float32).reshape(5, 8)

# ratio, training_mode, whether elements are dropped, the factor of those that are kept
SETTINGS = {
    "inference by default": ((), False, 1),
    "inference": ((0.5, False), False, 1),
    "training": ((0.25, True), True, 4 / 3),
    "training, half": ((0.5, True), True, 2),
    "training, nothing dropped": ((0.0, True), False, 1),
}


def arguments(given, dtype=np.float32):
    return [np.array(v, dtype if n == 0 else np.bool_) for n, v in enumerate(given)]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_eager(name, dtype):
    given, drops, factor = SETTINGS[name]
    x = gk.tensor(X.astype(dtype), requires_grad=True)
    y = gk.op.Dropout(x, *arguments(given), seed=3)
    y.sum().backward()
    assert x.grad.dtype == dtype
    kept = y.numpy() != 0
    assert kept.all() != drops
    np.testing.assert_allclose(x.grad.numpy(), kept * factor, rtol=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("dims", [(5, 8), ("n", "m")])
@pytest.mark.parametrize("outputs", [1, 2])
def test_graph(name, dims, outputs):
    given, drops, factor = SETTINGS[name]

    def both(x):
        def loss(x):
            y = gk.op.Dropout(x, *arguments(given), outputs=outputs)[0]
            return y.sum(), y

        return gk.grad(loss, has_aux=True)(x)

    model = gk.trace(both, gk.spec("float32", dims), input_names=["x"])
    g, y = gk.run(model, {"x": X}, optimizations=False).values()
    assert (y != 0).all() != drops
    np.testing.assert_allclose(g, (y != 0) * factor, rtol=1e-6)
    if drops:
        assert sum(n.op_type == "Dropout" for n in model.graph) == 1


MODEL = """<ir_version: 8, opset_import: ["": {opset}]>
g (float[N, M] x, float ratio, bool training) => (float loss, float[N, M] y) {{
  y = Dropout(x, {inputs})
  loss = ReduceSum<keepdims=0>(y)
}}"""


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("ratio", [0.0, 0.75])
def test_ratio_and_mode_known_only_at_run_time(opset, training, ratio):
    model = onnx.parser.parse_model(MODEL.format(opset=opset, inputs="ratio, training"))
    found = gk.run(
        add_gradients(model, "loss", ["x"]),
        {"x": X, "ratio": np.float32(ratio), "training": np.bool_(training)}, optimizations=False,
    )  # fmt: skip
    factor = 1 / (1 - ratio) if training else 1
    np.testing.assert_allclose(found["x_grad"], (found["y"] != 0) * factor, rtol=1e-6)


def test_two_dropouts_keep_their_own_masks():
    def f(x):
        a, b = gk.op.Dropout(x, 0.5, np.array(True), seed=1), gk.op.Dropout(x, 0.5, np.array(True), seed=2)
        return (a + 10 * b).sum(), (a, b)

    x = gk.tensor(X)
    g, (a, b) = gk.grad(f, has_aux=True)(x)
    np.testing.assert_allclose(g.numpy(), ((a.numpy() != 0) + 10 * (b.numpy() != 0)) * 2.0)


def test_second_order_goes_through_the_same_mask():
    x = gk.tensor(X)

    def f(x):
        y = gk.op.Dropout(x, 0.5, np.array(True), seed=1)
        return (y * y * y).sum()

    h = gk.grad(lambda x: gk.grad(f)(x).sum())(x)
    y = gk.op.Dropout(x, 0.5, np.array(True), seed=1).numpy()
    kept = np.unique(np.sign(h.numpy()))
    assert set(kept) <= {0, 1}
    assert h.shape == y.shape
    np.testing.assert_allclose(h.numpy()[h.numpy() != 0], (6 * 8 * X)[h.numpy() != 0], rtol=1e-5)


def test_eager_keeps_no_mask_where_nothing_is_recorded():
    with gk.no_grad():
        y = gk.op.Dropout(gk.tensor(X, requires_grad=True), 0.5, np.array(True))
    assert y.record is None
