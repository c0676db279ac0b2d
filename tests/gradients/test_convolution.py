"""Conv and ConvTranspose: the cotangents of input, weight and bias, over every attribute."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

RANDOM = np.random.default_rng(0)


def draw(*shape):
    return RANDOM.standard_normal(shape)


def settings(**attributes):
    return attributes


# name: x, weight, attributes
CONV = {
    "1d": ((2, 3, 7), (4, 3, 3), settings()),
    "1d even kernel, same upper": ((2, 2, 7), (3, 2, 4), settings(auto_pad="SAME_UPPER")),
    "1d same lower, strided": ((2, 2, 8), (3, 2, 3), settings(auto_pad="SAME_LOWER", strides=[2])),
    "1d stride beyond kernel": ((1, 2, 9), (2, 2, 1), settings(strides=[4])),
    "1d same, stride beyond kernel": ((1, 2, 5), (2, 2, 1), settings(auto_pad="SAME_UPPER", strides=[3])),
    "2d": ((2, 2, 5, 4), (3, 2, 3, 2), settings()),
    "2d large": ((1, 2, 20, 21), (2, 2, 7, 7), settings()),
    "2d pointwise": ((2, 3, 3, 4), (2, 3, 1, 1), settings()),
    "2d pointwise, strided": ((2, 3, 5, 4), (2, 3, 1, 1), settings(strides=[2, 3])),
    "2d padded": ((2, 2, 4, 4), (3, 2, 3, 3), settings(pads=[1, 1, 1, 1])),
    "2d asymmetric pads": ((1, 2, 4, 5), (2, 2, 3, 3), settings(pads=[0, 2, 1, 1])),
    "2d unread rows": ((1, 2, 6, 8), (2, 2, 3, 3), settings(strides=[2, 3])),
    "2d unread rows and pads": ((1, 2, 6, 7), (2, 2, 2, 3), settings(strides=[3, 2], pads=[1, 0, 0, 1])),
    "2d dilated": ((1, 2, 7, 6), (2, 2, 3, 2), settings(dilations=[2, 3])),
    "2d dilated, strided, padded": (
        (2, 2, 7, 8), (2, 2, 3, 3), settings(dilations=[2, 1], strides=[2, 2], pads=[2, 1, 1, 0]),
    ),
    "2d same upper, strided": ((1, 2, 5, 6), (2, 2, 3, 2), settings(auto_pad="SAME_UPPER", strides=[2, 2])),
    "2d same lower, strided": ((1, 2, 6, 5), (2, 2, 2, 3), settings(auto_pad="SAME_LOWER", strides=[2, 3])),
    "2d valid": ((1, 2, 6, 5), (2, 2, 2, 3), settings(auto_pad="VALID", strides=[2, 1])),
    "2d kernel_shape said": ((1, 2, 4, 5), (2, 2, 2, 3), settings(kernel_shape=[2, 3])),
    "2d groups": ((2, 4, 4, 5), (6, 2, 2, 3), settings(group=2)),
    "2d groups, strided, padded": ((2, 6, 5, 4), (3, 2, 3, 3), settings(group=3, strides=[2, 2], pads=[1, 1, 1, 1])),
    "2d groups, pointwise": ((2, 4, 3, 3), (4, 2, 1, 1), settings(group=2)),
    "2d depthwise": ((2, 3, 5, 5), (3, 1, 3, 3), settings(group=3, pads=[1, 1, 1, 1])),
    "2d depthwise, strided, dilated": ((1, 3, 7, 8), (3, 1, 3, 2), settings(group=3, strides=[2, 2], dilations=[2, 1])),
    "2d depthwise, two a channel": ((2, 2, 4, 4), (4, 1, 2, 2), settings(group=2)),
    "2d many channels": ((1, 48, 4, 4), (2, 48, 2, 2), settings(pads=[0, 1, 1, 0])),
    "3d": ((1, 2, 4, 3, 4), (2, 2, 2, 2, 3), settings()),
    "3d strided, padded, groups": (
        (1, 2, 5, 4, 3), (2, 1, 2, 3, 2), settings(strides=[2, 2, 1], pads=[1, 1, 0, 0, 1, 1], group=2),
    ),
    "1d one channel": ((3, 1, 8), (2, 1, 3), settings(strides=[2], pads=[0, 1])),
    "2d one channel": ((2, 1, 5, 6), (3, 1, 3, 2), settings(pads=[1, 0, 1, 1])),
    "2d one channel, strided, dilated": ((2, 1, 8, 9), (3, 1, 2, 3), settings(strides=[3, 2], dilations=[2, 3])),
    "2d one channel, unread rows": ((2, 1, 8, 9), (3, 1, 2, 3), settings(strides=[3, 3])),
    "3d one channel": ((2, 1, 3, 4, 3), (2, 1, 2, 3, 2), settings()),
    "1d many offsets, strided": ((2, 2, 60), (3, 2, 36), settings(strides=[5])),
    "1d many offsets, groups": ((1, 4, 90), (4, 2, 40), settings(group=2, pads=[3, 2], dilations=[2], strides=[3])),
    "2d many offsets, same": ((1, 2, 9, 11), (3, 2, 6, 6), settings(auto_pad="SAME_UPPER", strides=[2, 3])),
    "2d many offsets, depthwise": ((2, 3, 8, 8), (3, 1, 6, 6), settings(group=3, pads=[2, 3, 3, 2])),
    "one window": ((2, 2, 3, 3), (2, 2, 3, 3), settings()),
}  # fmt: skip
SLOW = {"2d many channels", "2d large", *(name for name in CONV if "many offsets" in name)}


def layouts(x, w):
    """The dims of x, weight and bias: batch unknown, all but the weight's and the channels unknown."""
    spatial = [f"s{n}" for n in range(len(x) - 2)]
    return {"batch": [["n", *x[1:]], w, [w[0]]], "extents": [["n", x[1], *spatial], w, [w[0]]]}


@pytest.mark.parametrize("name", CONV)
@pytest.mark.parametrize("layout", ["batch", "extents"])
def test_conv(name, layout):
    x, w, attributes = CONV[name]
    check_gradients(
        lambda x, w, b: gk.op.Conv(x, w, b, **attributes), [draw(*x), draw(*w), draw(w[0])],
        symbolic=layouts(x, w)[layout], numeric=layout == "batch" and name not in SLOW, step=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["1d", "2d unread rows and pads", "2d depthwise", "2d groups", "2d same upper, strided"]
)
def test_conv_twice(name):
    x, w, attributes = CONV[name]
    check_gradients(
        lambda x, w: gk.op.Conv(x, w, **attributes), [draw(*x), draw(*w)],
        symbolic=[*layouts(x, w)["extents"][:1], w], order=2, numeric=name == "1d", step=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["1d many offsets, groups", "2d one channel", "2d depthwise, strided, dilated"])
@pytest.mark.parametrize("layout", ["batch", "extents"])
def test_conv_whose_weight_gradient_is_a_convolution_twice(name, layout):
    x, w, attributes = CONV[name]
    check_gradients(
        lambda x, w: gk.op.Conv(x, w, **attributes), [draw(*x), draw(*w)], symbolic=layouts(x, w)[layout][:2], order=2,
        numeric=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", [n for n in CONV if "auto_pad" not in CONV[n][2] and not n.startswith("one")])
@pytest.mark.torch
def test_conv_beside_torch(name):
    torch = pytest.importorskip("torch")
    x, w, attributes = CONV[name]
    pads = attributes.get("pads", [0] * (2 * (len(x) - 2)))
    n = len(x) - 2
    arrays = [draw(*s).astype(np.float32) for s in (x, w, (w[0],))]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    around = [p for axis in reversed(range(n)) for p in (pads[axis], pads[n + axis])]
    y = getattr(torch.nn.functional, f"conv{n}d")(
        torch.nn.functional.pad(theirs[0], around), *theirs[1:], stride=attributes.get("strides", 1),
        dilation=attributes.get("dilations", 1), groups=attributes.get("group", 1),
    )  # fmt: skip
    weights = draw(*y.shape).astype(np.float32)
    (y * torch.tensor(weights)).sum().backward()
    found = gk.grad(lambda *a: (gk.op.Conv(*a, **attributes) * weights).sum(), (0, 1, 2))(*map(gk.tensor, arrays))
    for ours, other in zip(found, theirs, strict=True):
        np.testing.assert_allclose(ours.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-5)


TRANSPOSED = {
    "1d": ((2, 3, 4), (3, 2, 3), settings()),
    "1d strided": ((2, 2, 4), (2, 3, 3), settings(strides=[2])),
    "1d stride beyond kernel": ((1, 2, 3), (2, 2, 2), settings(strides=[4])),
    "2d": ((2, 2, 3, 4), (2, 3, 3, 2), settings()),
    "2d pointwise": ((2, 2, 3, 4), (2, 3, 1, 1), settings()),
    "2d padded": ((2, 2, 3, 4), (2, 3, 3, 3), settings(pads=[1, 1, 1, 1])),
    "2d asymmetric pads": ((1, 2, 4, 4), (2, 2, 3, 3), settings(pads=[0, 2, 1, 1])),
    "2d strided, output padding": (
        (1, 2, 3, 3), (2, 2, 3, 3), settings(strides=[2, 3], output_padding=[1, 2], pads=[1, 1, 1, 1]),
    ),
    "2d dilated": ((1, 2, 3, 4), (2, 2, 2, 3), settings(dilations=[2, 1], strides=[1, 2])),
    "2d same upper": ((1, 2, 3, 4), (2, 2, 3, 4), settings(auto_pad="SAME_UPPER", strides=[2, 2])),
    "2d same lower": ((1, 2, 3, 4), (2, 2, 3, 3), settings(auto_pad="SAME_LOWER", strides=[2, 1])),
    "2d groups": ((2, 4, 3, 3), (4, 3, 2, 3), settings(group=2)),
    "2d groups, strided": ((2, 4, 3, 3), (4, 1, 3, 3), settings(group=2, strides=[2, 2], pads=[1, 0, 0, 1])),
    "2d depthwise": ((2, 3, 3, 4), (3, 1, 3, 3), settings(group=3, strides=[2, 2])),
    "2d many channels out": ((1, 2, 3, 3), (2, 48, 2, 2), settings(strides=[2, 2])),
    "3d": ((1, 2, 2, 3, 2), (2, 2, 2, 2, 2), settings(strides=[1, 2, 1])),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("layout", ["batch", "extents"])
def test_conv_transpose(name, layout):
    x, w, attributes = TRANSPOSED[name]
    outputs = w[1] * attributes.get("group", 1)
    dims = layouts(x, w)[layout]
    dims[2] = [outputs]
    check_gradients(
        lambda x, w, b: gk.op.ConvTranspose(x, w, b, **attributes), [draw(*x), draw(*w), draw(outputs)],
        symbolic=dims, numeric=False, tolerance=(1e-3, 1e-4),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["2d strided, output padding", "2d groups, strided", "2d same upper", "1d"])
def test_conv_transpose_differences(name):
    x, w, attributes = TRANSPOSED[name]
    f = lambda x, w: gk.op.ConvTranspose(x, w, **attributes)
    check_gradients(f, [draw(*x), draw(*w)], step=1e-2, float32=False)


@pytest.mark.parametrize("name", ["1d", "2d groups, strided"])
def test_conv_transpose_twice(name):
    x, w, attributes = TRANSPOSED[name]
    check_gradients(
        lambda x, w: gk.op.ConvTranspose(x, w, **attributes), [draw(*x), draw(*w)], order=2, numeric=False,
        symbolic=[*layouts(x, w)["extents"][:1], w],
    )  # fmt: skip


def gradients_by_graph(f, arrays, dims, weights):
    """Both gradients of sum(weights * f(x, w)) in float32, run as a graph."""
    specs = [gk.spec("float32", d) for d in dims]
    model = gk.trace(gk.grad(lambda x, w: (f(x, w) * weights).sum(), (0, 1)), *specs, input_names=["x", "w"])
    return list(gk.run(model, dict(zip(["x", "w"], arrays, strict=True)), optimizations=False).values())


# output_shape, and the pads and output_padding that mean the same
SHAPED = {
    "cropped": (settings(output_shape=[6, 8]), settings(pads=[2, 1, 1, 0])),
    "cropped, upper": (settings(output_shape=[6, 8], auto_pad="SAME_UPPER"), settings(pads=[1, 0, 2, 1])),
    "cropped, lower": (settings(output_shape=[6, 8], auto_pad="SAME_LOWER"), settings(pads=[2, 1, 1, 0])),
    "longer": (settings(output_shape=[10, 9]), settings(pads=[0, 0, 0, 0], output_padding=[1, 0])),
    "pads do not count": (settings(output_shape=[6, 8], pads=[5, 0, 0, 0]), settings(pads=[2, 1, 1, 0])),
}


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("x_dims", [(1, 2, 3, 4), ("n", 2, 3, 4), ("n", 2, "h", "w")])
def test_conv_transpose_output_shape(name, x_dims):
    shaped, plain = SHAPED[name]
    arrays = [draw(1, 2, 3, 4).astype(np.float32), draw(2, 2, 5, 3).astype(np.float32)]
    f, same = (
        lambda x, w, kw=kw: gk.op.ConvTranspose(x, w, strides=[2, 2], **kw) for kw in (shaped, plain)
    )  # fmt: skip
    y = f(*arrays).numpy()
    np.testing.assert_allclose(y, same(*arrays).numpy(), rtol=1e-5)
    weights = draw(*y.shape).astype(np.float32)
    expected = gradients_by_graph(same, arrays, [(1, 2, 3, 4), (2, 2, 5, 3)], weights)
    for got, want in zip(gradients_by_graph(f, arrays, [x_dims, (2, 2, 5, 3)], weights), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_no_window_reads_has_gradient_zero():
    x, w = np.ones((1, 1, 6), np.float32), np.ones((1, 1, 2), np.float32)
    g = gk.grad(lambda x: gk.op.Conv(x, w, strides=[4]).sum())(gk.tensor(x))
    assert g.tolist() == [[[1, 1, 0, 0, 1, 1]]]


def test_few_nodes():
    """An input gradient is one node, a bias's one, a weight's at most ten where channels are few."""

    def nodes(wrt):
        f = lambda x, w, b: gk.op.Conv(x, w, b, pads=[1, 1, 1, 1]).sum()
        specs = [gk.spec("float32", d) for d in (["n", 3, 8, 8], [4, 3, 3, 3], [4])]
        return len(gk.trace(gk.grad(f, wrt), *specs).graph)

    common = 5  # the forward, its sum, and what makes the cotangent
    assert nodes([0]) <= common + 1
    assert nodes([2]) <= common + 1
    assert nodes([1]) <= common + 10


def test_bfloat16_goes_back_by_kernels_that_exist():
    f = lambda x, w: gk.op.AveragePool(gk.op.Conv(x, w, strides=[2, 2]), kernel_shape=[3, 3]).astype("float32").sum()
    model = gk.trace(gk.grad(f, (0, 1)), gk.spec("bfloat16", ["n", 2, 9, 9]), gk.spec("bfloat16", [4, 2, 3, 3]))
    assert {o.dtype.name for o in model.graph.outputs} == {"BFLOAT16"}
    for node in model.graph:
        if node.op_type in {"ConvTranspose", "Resize", "Pad"}:
            assert node.inputs[0].dtype.name == "FLOAT"


@pytest.mark.parametrize("name", ["1d", "2d large", "2d unread rows and pads", "2d dilated, strided, padded"])
def test_a_kernel_known_only_at_run_time(name):
    x, w, attributes = CONV[name]
    spatial = [f"k{n}" for n in range(len(w) - 2)]
    check_gradients(
        lambda x, w: gk.op.Conv(x, w, **attributes), [draw(*x), draw(*w)], numeric=False,
        symbolic=[["n", x[1], *(f"s{n}" for n in range(len(x) - 2))], [*w[:2], *spatial]],
    )  # fmt: skip


def test_many_offsets_twice_with_unknown_extents():
    x, w, attributes = CONV["2d large"]
    check_gradients(
        lambda x, w: gk.op.Conv(x, w, **attributes), [draw(*x), draw(*w)], order=2, numeric=False,
        symbolic=[["n", 2, "h", "w"], w], tolerance=(1e-3, 1e-4),
    )  # fmt: skip
