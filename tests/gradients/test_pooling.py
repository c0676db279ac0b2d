"""The pools, over their attributes, with ties, and beside PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

RANDOM = np.random.default_rng(2)
OP = gk.op


def apart(*shape):
    """Distinct values, negative ones too, far enough apart for differences."""
    return (RANDOM.permutation(int(np.prod(shape))).reshape(shape) - np.prod(shape) / 2) / 7.0


def settings(**attributes):
    return attributes


# name: input shape, attributes
MAX = {
    "1d": ((2, 2, 7), settings(kernel_shape=[3])),
    "1d side by side": ((2, 2, 6), settings(kernel_shape=[3], strides=[3])),
    "2d side by side": ((2, 2, 4, 6), settings(kernel_shape=[2, 3], strides=[2, 3])),
    "2d side by side, a rest": ((2, 2, 5, 8), settings(kernel_shape=[2, 3], strides=[2, 3])),
    "2d overlapping": ((2, 2, 5, 6), settings(kernel_shape=[3, 3], strides=[1, 2])),
    "2d padded": ((2, 2, 4, 4), settings(kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])),
    "2d padded, side by side": ((1, 2, 4, 4), settings(kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1])),
    "2d gaps": ((2, 2, 6, 7), settings(kernel_shape=[2, 2], strides=[3, 3])),
    "2d dilated": ((1, 2, 6, 7), settings(kernel_shape=[2, 3], dilations=[2, 2])),
    "2d ceil": ((1, 2, 6, 5), settings(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    "2d ceil, side by side": ((1, 2, 5, 5), settings(kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)),
    "2d ceil, no window begins in the pads": (
        (1, 2, 3, 5), settings(kernel_shape=[1, 2], strides=[3, 2], pads=[0, 1, 0, 1], ceil_mode=1),
    ),
    "2d same upper": ((1, 2, 5, 6), settings(kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_UPPER")),
    "2d same lower": ((1, 2, 5, 6), settings(kernel_shape=[2, 2], strides=[2, 1], auto_pad="SAME_LOWER")),
    "2d valid": ((1, 2, 5, 6), settings(kernel_shape=[2, 2], auto_pad="VALID")),
    "2d column major": ((1, 2, 5, 6), settings(kernel_shape=[3, 3], storage_order=1)),
    "3d": ((1, 2, 3, 4, 4), settings(kernel_shape=[2, 2, 3])),
    "3d side by side": ((1, 2, 2, 4, 6), settings(kernel_shape=[1, 2, 3], strides=[1, 2, 3])),
}  # fmt: skip
TWICE = {"1d", "2d side by side", "2d overlapping", "2d side by side, a rest"}
LAYOUTS = {"batch": lambda shape: ["n", *shape[1:]], "all": lambda shape: [f"d{n}" for n in range(len(shape))]}


@pytest.mark.parametrize("name", MAX)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_max_pool(name, layout):
    shape, attributes = MAX[name]
    for order in (1, 2) if name in TWICE else (1,):
        check_gradients(
            lambda x: OP.MaxPool(x, **attributes), [apart(*shape)], symbolic=[LAYOUTS[layout](shape)], order=order,
            numeric=layout == "batch", step=1e-3,
        )  # fmt: skip


@pytest.mark.parametrize("name", MAX)
def test_max_pool_with_indices(name):
    shape, attributes = MAX[name]
    check_gradients(
        lambda x: OP.MaxPool(x, **attributes, outputs=2)[0], [apart(*shape)], symbolic=[LAYOUTS["all"](shape)],
        numeric=False,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("strides", [[2, 2], [1, 1]])
@pytest.mark.parametrize("dims", [(1, 1, 4, 4), ("n", "c", "h", "w")])
def test_ties_keep_the_total(dtype, strides, dims):
    """Side by side the ties share; where windows overlap the first gets all, eagerly and in a graph alike."""
    x = np.zeros((1, 1, 4, 4), dtype)
    f = lambda x: OP.MaxPool(x, kernel_shape=[2, 2], strides=strides).sum()
    eager = gk.grad(f)(gk.tensor(x)).numpy()
    model = gk.trace(gk.grad(f), gk.spec(dtype, dims), input_names=["x"])
    (graph,) = gk.run(model, {"x": x}, optimizations=False).values()
    expected = np.full((4, 4), 0.25) if strides == [2, 2] else np.pad(np.ones((3, 3)), (0, 1))
    np.testing.assert_array_equal(eager[0, 0], expected)
    np.testing.assert_array_equal(graph[0, 0], expected)


def test_padding_never_wins():
    x = np.full((1, 1, 2, 2), -5.0, np.float32)
    g = gk.grad(lambda x: OP.MaxPool(x, kernel_shape=[2, 2], pads=[1, 1, 1, 1]).sum())(gk.tensor(x)).numpy()
    assert g.sum() == 9


AVERAGE = {
    "1d": ((2, 2, 7), settings(kernel_shape=[3], strides=[2])),
    "2d side by side": ((2, 2, 4, 6), settings(kernel_shape=[2, 3], strides=[2, 3])),
    "2d side by side, a rest": ((2, 2, 5, 7), settings(kernel_shape=[2, 3], strides=[2, 3])),
    "2d overlapping": ((2, 2, 5, 6), settings(kernel_shape=[3, 3], strides=[1, 2])),
    "2d gaps": ((2, 2, 6, 7), settings(kernel_shape=[2, 2], strides=[3, 3])),
    "2d padded": ((2, 2, 4, 4), settings(kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])),
    "2d pads counted": (
        (2, 2, 4, 4), settings(kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    ),
    "2d ceil": ((1, 2, 6, 5), settings(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    "2d ceil, padded": (
        (1, 2, 6, 5), settings(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1, 0, 0, 1]),
    ),
    "2d ceil, pads counted": (
        (1, 2, 6, 6),
        settings(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1, 0, 0, 1], count_include_pad=1),
    ),
    "2d ceil, no window begins in the pads": (
        (1, 2, 3, 5), settings(kernel_shape=[1, 2], strides=[3, 2], pads=[0, 1, 0, 1], ceil_mode=1),
    ),
    "2d dilated": ((1, 2, 6, 7), settings(kernel_shape=[2, 3], dilations=[2, 2])),
    "2d dilated, padded": (
        (1, 2, 6, 7), settings(kernel_shape=[2, 3], dilations=[2, 2], pads=[1, 1, 1, 1], strides=[1, 2]),
    ),
    "2d same upper": ((1, 2, 5, 6), settings(kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_UPPER")),
    "2d same lower, counted": (
        (1, 2, 5, 6), settings(kernel_shape=[2, 2], strides=[2, 1], auto_pad="SAME_LOWER", count_include_pad=1),
    ),
    "2d valid": ((1, 2, 5, 6), settings(kernel_shape=[2, 2], auto_pad="VALID")),
    "3d": ((1, 2, 3, 4, 4), settings(kernel_shape=[2, 2, 3], pads=[1, 0, 1, 0, 1, 1])),
}  # fmt: skip


def exact_gradient(f, x, y_shape):
    """Of sum(c * f(x)) for a linear f in float32, by setting one element of x at a time."""
    weights = RANDOM.standard_normal(y_shape).astype(np.float32)
    result = np.zeros(x.shape, np.float32)
    for place in np.ndindex(*x.shape):
        unit = np.zeros(x.shape, np.float32)
        unit[place] = 1
        result[place] = (f(unit).numpy() * weights).sum()
    return weights, result


@pytest.mark.parametrize("name", AVERAGE)
def test_average_pool(name):
    shape, attributes = AVERAGE[name]
    f = lambda x: OP.AveragePool(x, **attributes)
    x = apart(*shape).astype(np.float32)
    weights, expected = exact_gradient(f, x, f(x).shape)
    loss = lambda x: (f(x) * weights).sum()
    np.testing.assert_allclose(gk.grad(loss)(gk.tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
    for layout in (list(shape), *(make(shape) for make in LAYOUTS.values())):
        model = gk.trace(gk.grad(loss), gk.spec("float32", layout), input_names=["x"])
        (found,) = gk.run(model, {"x": x}, optimizations=False).values()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["1d", "2d side by side", "2d padded", "2d pads counted"])
def test_average_pool_twice(name):
    shape, attributes = AVERAGE[name]
    f = lambda x: OP.AveragePool(x * x, **attributes)
    check_gradients(f, [apart(*shape)], order=2, symbolic=[LAYOUTS["all"](shape)], step=1e-3, numeric=name == "1d")


LP = {
    "1d": ((2, 2, 7), settings(kernel_shape=[3], strides=[2])),
    "2d side by side": ((2, 2, 4, 6), settings(kernel_shape=[2, 3], strides=[2, 3])),
    "2d p=1": ((1, 2, 4, 5), settings(kernel_shape=[2, 3], p=1)),
    "2d p=3, padded": ((1, 2, 4, 4), settings(kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], p=3)),
    "2d dilated": ((1, 2, 6, 5), settings(kernel_shape=[2, 2], dilations=[2, 1])),
    "2d same lower": ((1, 2, 5, 6), settings(kernel_shape=[2, 2], strides=[2, 1], auto_pad="SAME_LOWER")),
    "3d": ((1, 1, 3, 3, 4), settings(kernel_shape=[2, 2, 3])),
}


@pytest.mark.parametrize("name", LP)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lp_pool(name, layout):
    shape, attributes = LP[name]
    x = apart(*shape)
    x[x == 0] = 0.5
    check_gradients(
        lambda x: OP.LpPool(x, **attributes), [x], symbolic=[LAYOUTS[layout](shape)], numeric=layout == "batch",
        tolerance=(1e-3, 1e-5), step=1e-4,
    )  # fmt: skip


GLOBAL = {
    "average": (lambda x: OP.GlobalAveragePool(x), (2, 3, 4, 3), 2),
    "average, 1d": (lambda x: OP.GlobalAveragePool(x), (2, 3, 4), 1),
    "average, 3d": (lambda x: OP.GlobalAveragePool(x), (1, 2, 2, 3, 2), 1),
    "max": (lambda x: OP.GlobalMaxPool(x), (2, 3, 4, 3), 2),
    "max, 1d": (lambda x: OP.GlobalMaxPool(x), (2, 3, 4), 1),
    "max, 3d": (lambda x: OP.GlobalMaxPool(x), (1, 2, 2, 3, 2), 1),
    "lp": (lambda x: OP.GlobalLpPool(x), (2, 3, 4, 3), 1),
    "lp, p=1": (lambda x: OP.GlobalLpPool(x, p=1), (2, 3, 4), 1),
    "lp, p=3": (lambda x: OP.GlobalLpPool(x, p=3), (1, 2, 2, 3, 2), 1),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_global_pools(name):
    f, shape, order = GLOBAL[name]
    x = apart(*shape)
    x[x == 0] = 0.05
    for n in range(1, order + 1):
        check_gradients(f, [x], order=n, step=1e-4)


def test_a_window_of_zeros_gives_zero():
    x = gk.tensor(np.zeros((1, 1, 4), np.float32))
    for p in (1, 2, 3):
        for f in (lambda x, p=p: OP.LpPool(x, kernel_shape=[2], p=p), lambda x, p=p: OP.GlobalLpPool(x, p=p)):
            assert gk.grad(lambda x, f=f: f(x).sum())(x).tolist() == [[[0, 0, 0, 0]]]
    assert gk.grad(lambda x: OP.GlobalMaxPool(x).sum())(x).tolist() == [[[0.25] * 4]]


UNPOOL = {"plain": None, "larger": [1, 1, 5, 5]}


@pytest.mark.parametrize("name", UNPOOL)
def test_max_unpool(name):
    x = apart(1, 1, 2, 2).astype(np.float32)
    indices = np.array([[[[5, 7], [13, 15]]]], np.int64)
    shape = UNPOOL[name]
    extra = [] if shape is None else [np.array(shape, np.int64)]
    f = lambda x: OP.MaxUnpool(x, indices, *extra, kernel_shape=[2, 2], strides=[2, 2])
    weights, expected = exact_gradient(f, x, f(x).shape)
    loss = lambda x: (f(x) * weights).sum()
    np.testing.assert_allclose(gk.grad(loss)(gk.tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
    model = gk.trace(gk.grad(loss), gk.spec("float32", ["n", "c", "h", "w"]), input_names=["x"])
    (found,) = gk.run(model, {"x": x}, optimizations=False).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


TORCH = {
    "max": (
        lambda x: OP.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
        lambda F, x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 8, 7),
    ),
    "max, ties": (
        lambda x: OP.MaxPool(OP.Relu(x), kernel_shape=[3, 3], strides=[2, 2]),
        lambda F, x: F.max_pool2d(F.relu(x), 3, 2), (2, 3, 7, 7),
    ),
    "max, dilated": (
        lambda x: OP.MaxPool(x, kernel_shape=[2, 2], dilations=[2, 2]),
        lambda F, x: F.max_pool2d(x, 2, 1, dilation=2), (2, 3, 7, 7),
    ),
    "average": (
        lambda x: OP.AveragePool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        lambda F, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 8, 7),
    ),
    "average, ceil, pads counted": (
        lambda x: OP.AveragePool(
            x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1),
        lambda F, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 8, 7),
    ),
    "lp": (
        lambda x: OP.LpPool(x, kernel_shape=[2, 2], strides=[2, 2], p=2),
        lambda F, x: F.lp_pool2d(x, 2.0, 2), (2, 3, 8, 6),
    ),
    "global max": (lambda x: OP.GlobalMaxPool(x), lambda F, x: F.adaptive_max_pool2d(x, 1), (2, 3, 4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.torch
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    f, theirs, shape = TORCH[name]
    x = apart(*shape).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    y = theirs(torch.nn.functional, leaf)
    weights = RANDOM.standard_normal(y.shape).astype(np.float32)
    (y * torch.tensor(weights)).sum().backward()
    found = gk.grad(lambda x: (f(x) * weights).sum())(gk.tensor(x)).numpy()
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_few_nodes():
    def nodes(f):
        return len(gk.trace(gk.grad(lambda x: f(x).sum()), gk.spec("float32", ["n", 3, 8, 8])).graph)

    common = 5  # the forward, its sum, and what makes the cotangent
    assert nodes(lambda x: OP.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2])) <= common + 8
    assert nodes(lambda x: OP.MaxPool(x, kernel_shape=[3, 3])) <= common + 8
    assert nodes(lambda x: OP.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2])) <= common + 2
    assert nodes(lambda x: OP.AveragePool(x, kernel_shape=[3, 3])) <= common + 4


@pytest.mark.parametrize("name", ["2d overlapping", "2d side by side"])
def test_threads_do_not_change_the_sums(name):
    shape, attributes = MAX[name]
    shape = (8, 16, *(8 * n for n in shape[2:]))
    x = RANDOM.standard_normal(shape).astype(np.float32)
    f = lambda x: OP.MaxPool(x, **attributes)
    model = gk.trace(gk.grad(lambda x: (f(x) * f(x)).sum()), gk.spec("float32", ["n", *shape[1:]]), input_names=["x"])
    (one,) = gk.run(model, {"x": x}, threads=1).values()
    for _ in range(20):
        (four,) = gk.run(model, {"x": x}, threads=4).values()
        np.testing.assert_array_equal(four, one)
