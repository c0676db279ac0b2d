"""Running statistics that ONNX Runtime's BatchNormalization would write over are copied first."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.optimizers import add_gradients, optimize

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[N,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float loss, float[2] dm, float[2] dv) {
  y, nm, nv = BatchNormalization<training_mode=1>(x, s, b, m, v)
  dm = Sub(nm, m) dv = Sub(nv, v)
  q = Mul(y, y) w = Mul(q, y) loss = ReduceSum<keepdims=0>(w)
}"""


def _feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ones, zeros = np.ones(2, "f"), np.zeros(2, "f")
    x = rng.normal(size=(4, 2, 3)).astype("f") * 3
    return {"x": x, "s": ones, "b": zeros, "m": zeros.copy(), "v": ones.copy()}


@pytest.mark.parametrize("optimizations", [False, True])
@pytest.mark.parametrize("how", ["as it is", "optimized", "with gradients", "both"])
def test_inputs_stay_and_differences_are_right(how: str, optimizations: bool) -> None:
    model = onnx.parser.parse_model(TEXT)
    if how in ("with gradients", "both"):
        model = add_gradients(model, of="loss", wrt=["s", "x"])
    if how in ("optimized", "both"):
        model = optimize(model, preset="training", verify=False)
    feeds = _feeds()
    x = feeds["x"].astype("d")
    for _ in range(3):
        got = gk.run(model, feeds, optimizations=optimizations)
        np.testing.assert_array_equal(feeds["m"], 0)
        np.testing.assert_array_equal(feeds["v"], 1)
        np.testing.assert_allclose(got["dm"], 0.1 * x.mean((0, 2)), rtol=1e-5)
        np.testing.assert_allclose(got["dv"], 0.1 * (x.var((0, 2)) - 1), rtol=1e-5)


def test_a_module_s_running_variance_is_unbiased_as_a_graph_too() -> None:
    norm = gk.nn.BatchNorm(2)
    graph = gk.training.build(
        norm, lambda y, t: ((y - t) * (y - t)).mean(), gk.optim.SGD(0.0),
        inputs={"x": gk.spec("float32", ["n", 2, 3])}, labels=gk.spec("float32", ["n", 2, 3]),
    )  # fmt: skip
    trainer = gk.Trainer(graph)
    x = _feeds()["x"]
    expected = np.ones(2)
    for _ in range(3):
        trainer.step({"x": x, "labels": x})
        expected = 0.9 * expected + 0.1 * x.astype("d").var((0, 2), ddof=1)
    state = {n: a for n, a in trainer.state().items() if n.endswith("running_var")} if hasattr(trainer, "state") else {}
    assert state
    np.testing.assert_allclose(next(iter(state.values())), expected, rtol=1e-5)
