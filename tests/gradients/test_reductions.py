"""Reductions: axes as an attribute of no one and an input of all, keepdims, empty axes, ties, edges, half precision."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
X = np.random.default_rng(0).uniform(0.3, 2, size=(2, 3, 4)) * np.where(np.arange(24) % 3 == 1, -1, 1).reshape(2, 3, 4)
NAMES = [
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp",
]  # fmt: skip


def _input(name):
    return np.abs(X) if name == "ReduceLogSum" else X


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1, 0], [0, 1, 2], None, []])
@pytest.mark.parametrize("name", NAMES)
def test_axes(name, axes, keepdims):
    f = getattr(op, name)
    given = [] if axes is None else [np.array(axes, np.int64)]
    check_gradients(lambda x: f(x, *given, keepdims=keepdims), [_input(name)], order=2 if axes == [1] else 1)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_axes_that_only_the_run_knows(name, keepdims):
    f = getattr(op, name)
    for axes in ([1], [0, -1]):
        check_gradients(
            lambda x, a: f(x, a, keepdims=keepdims),
            [_input(name), np.array(axes)],
            symbolic=[["a", "b", 4], [len(axes)]],
        )


@pytest.mark.parametrize("axes", [None, []])
@pytest.mark.parametrize("name", NAMES)
def test_no_axes_and_nothing_to_do(name, axes):
    f = getattr(op, name)
    given = [] if axes is None else [np.zeros(0, np.int64)]
    if name in {"ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}:
        pytest.skip("whether the elementwise part is done with no axes is read differently by different runtimes")
    check_gradients(lambda x: f(x, *given, noop_with_empty_axes=1), [_input(name)])


@pytest.mark.parametrize("name", NAMES)
def test_of_a_scalar(name):
    check_gradients(lambda x: getattr(op, name)(x, keepdims=0), [np.array(1.7)], order=2)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("ReduceMax", [[2.0, 2.0, 1.0], [0.0, 3.0, 3.0]], [[0.5, 0.5, 0], [0, 0.5, 0.5]]),
        ("ReduceMin", [[1.0, 1.0, 1.0], [5.0, 3.0, 4.0]], [[1 / 3] * 3, [0, 1, 0]]),
        ("ReduceL2", [[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], [[0, 0, 0], [0.6, 0, 0.8]]),
        ("ReduceL1", [[0.0, -1.0, 2.0], [0.0, 0.0, 0.0]], [[0, -1, 1], [0, 0, 0]]),
        ("ReduceProd", [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]], [[6, 0, 0], [0, 0, 0]]),
        ("ReduceLogSumExp", [[-np.inf] * 3, [-np.inf, 0.0, 0.0]], [[0, 0, 0], [0, 0.5, 0.5]]),
        ("ReduceLogSumExp", [[1000.0, 1000.0, -1000.0], [0.0, 0.0, -np.inf]], [[0.5, 0.5, 0], [0.5, 0.5, 0]]),
        ("ReduceMax", [[-np.inf, -np.inf, 0.0], [np.inf, 0.0, 0.0]], [[0, 0, 1], [1, 0, 0]]),
        ("ReduceSumSquare", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [[0, 2, 4], [6, 8, 10]]),
    ],
)
def test_edges(name, x, expected):
    got = gk.grad(lambda t: getattr(op, name)(t, np.array([1])).sum())(gk.tensor(x)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4)


@pytest.mark.parametrize("row", [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.5, -2.0, 0.0], [0.0, 0.0, 0.0]])
def test_products_with_zeros_to_second_order(row):
    check_gradients(lambda x: op.ReduceProd(x, np.array([1])), [np.array([row, [1.0, 2.0, 3.0]])], order=2,
                    symbolic=[["n", 3]])  # fmt: skip


@pytest.mark.parametrize("count", [16, 17, 20])
def test_products_of_few_and_many_factors(count):
    x = np.random.default_rng(0).uniform(0.8, 1.2, size=(2, count))
    x[1, 3] = 0
    check_gradients(lambda t: op.ReduceProd(t, np.array([1])), [x], symbolic=[["n", count]])
    check_gradients(lambda t: op.ReduceProd(t, np.array([1])), [x], symbolic=[["n", "m"]])


@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name):
    x = gk.tensor(_input(name)).astype("float16")
    f = lambda t: getattr(op, name)(t, np.array([1])).sum()
    got = gk.grad(f)(x)
    assert gk.dtypes.name(got.dtype) == "float16"
    np.testing.assert_allclose(
        got.astype("float64").numpy(), gk.grad(f)(x.astype("float64")).numpy(), rtol=2e-2, atol=1e-2
    )


def test_a_mean_of_more_than_half_precision_can_count():
    x = gk.tensor(np.zeros((300, 300), np.float16))
    got = gk.grad(lambda t: op.ReduceMean(t * np.float16(1), keepdims=0) * np.float16(900))(x).numpy()
    np.testing.assert_allclose(got, 0.01, rtol=4e-3)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "theirs"),
    [("ReduceMax", "amax"), ("ReduceMin", "amin"), ("ReduceLogSumExp", "logsumexp"), ("ReduceProd", "prod"),
     ("ReduceL2", "norm")],
)  # fmt: skip
def test_as_pytorch(name, theirs):
    torch = pytest.importorskip("torch")
    x = np.array([[1.0, 1.0, -2.0, 0.0], [3.0, 0.5, 3.0, 2.0]], np.float32)
    t = torch.tensor(x, requires_grad=True)
    getattr(torch, theirs)(t, dim=1).sum().backward()
    ours = gk.grad(lambda v: getattr(op, name)(v, np.array([1])).sum())(gk.tensor(x)).numpy()
    np.testing.assert_allclose(ours, t.grad.numpy(), rtol=1e-5, atol=1e-6)


# axes that only the run knows, and finds none of
@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("count", ["0", "K"])
@pytest.mark.parametrize("name", NAMES)
def test_axes_that_come_empty(name, count, noop):
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[2,3,4] x, int64[{count}] axes, float[P,M,N] c) => (float loss) {{
      y = {name}<noop_with_empty_axes={noop}>(x, axes) z = Mul(y, c) loss = ReduceSum<keepdims=0>(z) }}"""
    x, c = _input(name).astype("f4"), np.arange(24, dtype="f4").reshape(2, 3, 4)
    feeds = {"x": x, "axes": np.zeros(0, np.int64), "c": c}
    found = gk.run(gk.optimizers.add_gradients(onnx.parser.parse_model(text), "loss", ["x"]), feeds)["x_grad"]
    given = [] if not noop else [np.zeros(0, np.int64)]
    f = lambda t: (getattr(op, name)(t, *given, noop_with_empty_axes=noop) * gk.tensor(c)).sum()
    np.testing.assert_allclose(found, gk.grad(f)(gk.tensor(x)).numpy(), rtol=1e-4, atol=1e-4)
