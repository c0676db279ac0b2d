"""The measurement that benchmarks.real_gradients makes of every file: of a right and of a wrong gradient."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from benchmarks import real_gradients

NET = """<ir_version: 7, opset_import: ["": 11]> g (float[N,3] x, bool p) => (float[N,2] y, int64[2] s)
<float[3,2] w = {1, -2, 0.5, 1, 3, -1}> {
    h = MatMul(x, w)
    b = Constant<value = float[2] {0.5, -0.25}>()
    a = Add(h, b)
    y = If<then_branch = t () => (float[N,2] t) {k = Constant<value = float[2] {2, 3}>() m = Mul(a, k) t = Tanh(m)},
           else_branch = f () => (float[N,2] f) {f = Relu(a)}>(p)
    s = Shape(y)
}"""
FEEDS = {"x": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)}


@pytest.fixture
def path(tmp_path, monkeypatch):
    file = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), file)
    monkeypatch.setitem(real_gradients.FILES, file.name, {**FEEDS, "p": np.array(True)})
    return file


def test_measure(path):
    row = real_gradients.measure(path, rounds=1, threads=1)
    assert (row.weights, row.elements) == (3, 6 + 2 + 2)
    assert row.predicted > 0
    assert row.error < 1e-3
    assert str(row).endswith("ok")
    assert list(real_gradients.files(path.parent)) == [path]


def test_a_wrong_gradient_is_seen(path, monkeypatch):
    right = real_gradients.add_gradients

    def doubled(model, of, wrt):
        made = right(model, of, wrt)
        for node in made.graph.node:
            node.output[:] = ["half" if name == "w_grad" else name for name in node.output]
        made.graph.node.append(onnx.helper.make_node("Add", ["half", "half"], ["w_grad"]))
        return made

    monkeypatch.setattr(real_gradients, "add_gradients", lambda m, of, wrt: doubled(ir.to_proto(m), of, wrt))
    assert real_gradients.measure(path, rounds=1, threads=1).error > 0.1
