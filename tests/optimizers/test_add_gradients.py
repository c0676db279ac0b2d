"""What add_gradients gives for values of which one is computed from another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import graphkit as gk
from graphkit.cli import main
from graphkit.optimizers import add_gradients

X, W = np.array([0.5, 1.0, 2.0], "f4"), np.array([2.0, -1.0, 0.5], "f4")
# what is computed from x, the values asked for together, and the gradient of each by hand
TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("h = Exp(x) y = Mul(h, x)", {"x": (1 + X) * np.exp(X), "h": X}),
    ("h = Exp(x) y = Mul(h, x)", {"h": X, "x": (1 + X) * np.exp(X)}),
    ("h = Exp(x) y = Identity(h)", {"x": np.exp(X), "h": np.ones(3)}),
    ("h = Mul(x, w) k = Mul(h, h) y = Mul(k, x)",
     {"w": 2 * X**3 * W, "h": 2 * X**2 * W, "x": 3 * X**2 * W**2, "k": X}),
    ("h = Exp(x) y = Mul(h, w)", {"w": np.exp(X), "h": W, "y": np.ones(3), "loss": np.ones(()), "x": np.exp(X) * W}),
]  # fmt: skip


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float loss) <float[3] w = {{2, -1, 0.5}}>'
        f" {{ {text} loss = ReduceSum<keepdims=0>(y) }}"
    )


@pytest.mark.parametrize("unreached", ["error", "zeros"])
@pytest.mark.parametrize(("text", "expected"), TOGETHER)
def test_a_value_gets_what_flows_through_another(text: str, expected: dict[str, Any], unreached: Any) -> None:
    found = gk.run(add_gradients(_model(text), "loss", list(expected), unreached=unreached), {"x": X})
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[f"{name}_grad"], gradient, rtol=1e-5, err_msg=name)


def test_so_on_the_command_line(tmp_path: Path) -> None:
    onnx.save(_model(TOGETHER[0][0]), tmp_path / "m.onnx")
    made = tmp_path / "g.onnx"
    with pytest.raises(SystemExit) as stopped:
        main(["grad", str(tmp_path / "m.onnx"), "--wrt", "x,h,w", "--zeros", "-o", str(made)])
    assert stopped.value.code == 0
    found = gk.run(onnx.load(made), {"x": X})
    for name, gradient in {"x": (1 + X) * np.exp(X), "h": X, "w": np.zeros(3)}.items():
        np.testing.assert_allclose(found[f"{name}_grad"], gradient, rtol=1e-5, err_msg=name)
