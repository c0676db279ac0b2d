"""The standard's nine tests of its training operators, and Gradients of Gradients and at other values."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from graphkit.errors import GradientError
from graphkit.gradients.training_domain import DOMAIN
from graphkit.optimizers.lower_training import lower_training
from graphkit.runtime import run
from tests.conformance.onnx_backend import as_array, check, node_cases

NAMES = [
    "test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple", "test_momentum",
    "test_momentum_multiple", "test_nesterov_momentum", "test_gradient_of_add", "test_gradient_of_add_and_mul",
]  # fmt: skip
HEADER = f'<ir_version: 10, opset_import: ["": 21, "{DOMAIN}": 1]>\n'


def every_case():
    from onnx.backend.test.case.model import collect_testcases

    return node_cases() | {c.name: c for c in collect_testcases()}


@pytest.mark.parametrize("name", NAMES)
def test_conformance(name):
    case = every_case()[name]
    lowered = lower_training(case.model)
    assert not any(n.domain for n in lowered.graph.node)
    assert [o.name for o in lowered.graph.output] == [o.name for o in case.model.graph.output]
    for inputs, outputs in case.data_sets:
        names = [i.name for i in lowered.graph.input]
        got = run(lowered, dict(zip(names, [as_array(i) for i in inputs], strict=True)), optimizations=False)
        for mine, theirs in zip(got.values(), outputs, strict=True):
            check(mine, as_array(theirs), case.rtol, case.atol)


def lowered(text):
    return lower_training(onnx.parser.parse_model(HEADER + text))


X, W = np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, -0.5])


def test_second_derivatives():
    """d/dw of d/dw of sum(sin(x w))"""
    model = lowered(f"""g (double[3] x, double[3] w) => (double[3] second) {{
        p = Mul(x, w) s = Sin(p) o = ReduceSum<keepdims = 0>(s)
        first, dx = {DOMAIN}.Gradient<xs = ["w", "x"], y = "o">(w, x)
        second = {DOMAIN}.Gradient<xs = ["w"], zs = ["x"], y = "first">(w, x)
    }}""")
    got = run(model, {"x": X, "w": W}, optimizations=False)["second"]
    np.testing.assert_allclose(got, -X * X * np.sin(X * W))


def test_of_an_inner_tensor_at_another_value():
    model = lowered(f"""g (double[3] x, double[3] h1) => (double[3] y, double[3] d) {{
        h = Exp(x) y = Mul(h, h)
        d = {DOMAIN}.Gradient<xs = ["h"], y = "y">(h1)
    }}""")
    got = run(model, {"x": X, "h1": W}, optimizations=False)
    np.testing.assert_allclose(got["d"], 2 * W)
    np.testing.assert_allclose(got["y"], np.exp(2 * X))


def test_an_output_left_out_and_one_not_reached():
    model = lowered(f"""g (double[3] x, double[3] w) => (double[3] dw) {{
        y = Mul(x, x)
        "", dw = {DOMAIN}.Gradient<xs = ["x", "w"], y = "y">(x, w)
    }}""")
    np.testing.assert_array_equal(run(model, {"x": X, "w": W}, optimizations=False)["dw"], np.zeros(3))


def test_a_training_step_in_one_file():
    model = lowered(f"""g (float[3] w, float[3] x, float r, int64 t, float[3] v, float[3] h)
        => (float[3] w1, float[3] v1, float[3] h1, float o) {{
        p = Mul(x, w) s = Mul(p, p) o = ReduceSum<keepdims = 0>(s)
        dw = {DOMAIN}.Gradient<xs = ["w"], zs = ["x"], y = "o">(w, x)
        w1, v1, h1 = {DOMAIN}.Adam(r, t, w, dw, v, h)
    }}""")
    state = {"w": W.astype("f"), "v": np.zeros(3, "f"), "h": np.zeros(3, "f")}
    losses = []
    for step in range(60):
        got = run(model, {**state, "x": X.astype("f"), "r": np.float32(0.1), "t": np.array(step)})
        losses.append(float(got["o"]))
        state = {k: got[f"{k}1"] for k in state}
    assert losses[-1] < losses[0] / 100


def test_an_unknown_name():
    with pytest.raises(GradientError, match=r"'wight'.*Did you mean 'weight'"):
        lowered(f"""g (double[3] weight) => (double[3] d) {{
            y = Mul(weight, weight) d = {DOMAIN}.Gradient<xs = ["wight"], y = "y">(weight)
        }}""")
