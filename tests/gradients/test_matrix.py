"""Matrix products of every rank."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit.errors import GradientError
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)

MATMULS = [
    ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((2, 1, 2, 3), (5, 3, 4)),
    ((2, 5, 2, 3), (2, 1, 3, 4)), ((0, 3), (3, 4)), ((2, 0), (0, 4)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", MATMULS, ids=str)
def test_matmul(shapes):
    a, b = (rng.normal(size=s) for s in shapes)
    symbolic = [[f"a{n}" for n in range(a.ndim - 1)] + ["k"], ["k"] + [f"b{n}" for n in range(b.ndim - 1)]]
    if b.ndim > 1:
        symbolic[1] = [f"b{n}" for n in range(b.ndim - 2)] + ["k", "m"]
    check_gradients(lambda x, y: op.MatMul(x, y), [a, b], order=2, symbolic=symbolic)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (4,), (1, 4), (2, 1), (2, 4)])
def test_gemm(trans_a, trans_b, c):
    a = rng.normal(size=(3, 2) if trans_a else (2, 3))
    b = rng.normal(size=(4, 3) if trans_b else (3, 4))
    attributes = {"transA": trans_a, "transB": trans_b}
    if c:
        attributes |= {"alpha": 0.5, "beta": -1.5}
    inputs = [a, b] if c is None else [a, b, rng.normal(size=c)]
    check_gradients(lambda *x: op.Gemm(*x, **attributes), inputs, order=2 if c in (None, (4,)) else 1,
                    symbolic=c in (None, (4,), (2, 4)))  # fmt: skip


def test_the_same_matrix_twice():
    check_gradients(lambda x: op.MatMul(x, x), [rng.normal(size=(3, 3))], order=2, symbolic=[["n", "n"]])


def test_half_precision():
    a, b = (gk.tensor(rng.normal(size=s)).astype("float16") for s in ((2, 3), (3, 4)))
    for got in gk.grad(lambda x, y: op.MatMul(x, y).sum(), (0, 1))(a, b):
        assert gk.dtypes.name(got.dtype) == "float16"


def test_an_unknown_rank_is_named():
    node = onnx.helper.make_node("MatMul", ["x", "x"], ["y"], name="product")
    total = onnx.helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)
    x, loss = (onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", None), ("loss", [])))
    model = onnx.helper.make_model(onnx.helper.make_graph([node, total], "g", [x], [loss]),
                                   opset_imports=[onnx.helper.make_opsetid("", 21)])  # fmt: skip
    with pytest.raises(GradientError, match=r"MatMul .*product.* rank"):
        add_gradients(model, "loss", ["x"])


def test_an_unknown_rank_times_a_matrix():
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    total = onnx.helper.make_node("ReduceSumSquare", ["y"], ["loss"], keepdims=0)
    infos = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", None), ("w", [3, 4]), ("loss", []))]
    graph = onnx.helper.make_graph([node, total], "g", infos[:2], infos[2:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    w = rng.normal(size=(3, 4)).astype(np.float32)
    for shape in ((2, 3), (2, 5, 3)):
        x = rng.normal(size=shape).astype(np.float32)
        got = gk.run(add_gradients(model, "loss", ["x", "w"]), {"x": x, "w": w})
        np.testing.assert_allclose(got["x_grad"], 2 * (x @ w) @ w.T, rtol=1e-4, atol=1e-4)
        flat = x.reshape(-1, 3)
        np.testing.assert_allclose(got["w_grad"], 2 * flat.T @ (flat @ w), rtol=1e-4, atol=1e-4)


def test_few_nodes():
    """x w + b: one product for each gradient, and one sum; nothing for the shapes, though the batch is unknown."""

    def loss(x, w, b):
        return op.Add(op.MatMul(x, w), b).sum()

    model = gk.trace(
        gk.grad(loss, (0, 1, 2)), gk.spec("float32", ["batch", 3]), gk.spec("float32", [3, 4]), gk.spec("float32", [4])
    )
    ops = sorted(n.op_type for n in model.graph)
    assert ops.count("Gemm") == 2 and ops.count("ReduceSum") <= 2 and "Transpose" not in ops
