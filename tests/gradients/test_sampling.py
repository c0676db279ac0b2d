"""GridSample, AffineGrid and DeformConv, over their attributes and beside PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

RANDOM = np.random.default_rng(4)
OP = gk.op
BATCH = {2: ["n", 3, "h", "w"], 3: ["n", "c", "d", "h", "w"]}
GRID = {2: ["n", "p", "q", 2], 3: ["n", "o", "p", "q", 3]}


def grids(n, low=-1.6, high=1.6):
    """Places in and out of the picture, none at a kink of the weights."""
    return RANDOM.uniform(low, high, (2, *(3, 2, 2)[:n], n)) + 1e-3


CASES = [
    (n, mode, padding, aligned)
    for n in (2, 3) for mode in ("linear", "nearest", "cubic") for padding in ("zeros", "border", "reflection")
    for aligned in (0, 1) if not (n == 3 and mode == "cubic")
]  # fmt: skip


@pytest.mark.parametrize(("n", "mode", "padding", "aligned"), CASES)
@pytest.mark.torch
def test_grid_sample(n, mode, padding, aligned):
    torch = pytest.importorskip("torch")
    x, grid = (a.astype(np.float32) for a in (RANDOM.standard_normal((2, 3, *(4, 5, 3)[:n])), grids(n)))
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, grid)]
    names = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    y = torch.nn.functional.grid_sample(*leaves, names[mode], padding, bool(aligned))
    weights = RANDOM.standard_normal(y.shape).astype(np.float32)
    (y * torch.tensor(weights)).sum().backward()

    def loss(x, grid):
        return (OP.GridSample(x, grid, mode=mode, padding_mode=padding, align_corners=aligned) * weights).sum()

    eager = [t.numpy() for t in gk.grad(loss, (0, 1))(gk.tensor(x), gk.tensor(grid))]
    for a, b in zip(eager, leaves, strict=True):
        np.testing.assert_allclose(a, b.grad.numpy(), rtol=1e-4, atol=1e-5)
    for layout in ((x.shape, grid.shape), (BATCH[n], GRID[n])):
        specs = [gk.spec("float32", dims) for dims in layout]
        model = gk.trace(gk.grad(loss, (0, 1)), *specs, input_names=["x", "grid"])
        found = gk.run(model, {"x": x, "grid": grid}, optimizations=False)
        for a, b in zip(found.values(), eager, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mode", "padding"), [("linear", "zeros"), ("linear", "reflection"), ("cubic", "border")])
def test_grid_sample_differences(mode, padding):
    f = lambda x, grid: OP.GridSample(x, grid, mode=mode, padding_mode=padding)
    inputs = [RANDOM.standard_normal((1, 2, 4, 5)), grids(2)[:1]]
    layout = [["n", 2, "h", "w"], GRID[2]]
    for order in (1, 2) if padding == "zeros" else (1,):
        check_gradients(f, inputs, symbolic=layout, order=order, tolerance=(1e-3, 1e-4))


AFFINE = {
    "2d": ((2, 2, 3), (2, 1, 3, 4), 0),
    "2d, aligned": ((2, 2, 3), (2, 1, 3, 4), 1),
    "3d": ((1, 3, 4), (1, 2, 2, 3, 4), 0),
    "3d, aligned": ((1, 3, 4), (1, 2, 2, 3, 4), 1),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_grid(name):
    theta, size, aligned = AFFINE[name]
    f = lambda theta: OP.AffineGrid(theta, np.array(size, np.int64), align_corners=aligned)
    check_gradients(f, [RANDOM.standard_normal(theta)], symbolic=[["n", *theta[1:]]], order=2)


def test_affine_grid_of_a_size_known_at_run_time():
    inputs = [RANDOM.standard_normal((2, 2, 3)), np.array((2, 1, 3, 4), np.int64)]
    check_gradients(lambda theta, size: OP.AffineGrid(theta, size), inputs, symbolic=[["n", 2, 3], [4]])


# x, weight, attributes, offset groups, mask
DEFORM = {
    "plain": ((1, 2, 4, 5), (3, 2, 2, 2), {}, 1, False),
    "padded, strided": ((2, 2, 5, 4), (2, 2, 3, 2), {"pads": [1, 0, 1, 1], "strides": [2, 1]}, 1, True),
    "dilated, offset groups": ((1, 4, 5, 5), (2, 4, 2, 2), {"dilations": [2, 1]}, 2, True),
    "groups": ((1, 4, 3, 3), (4, 2, 2, 2), {"group": 2}, 2, False),
}


@pytest.mark.parametrize("name", DEFORM)
def test_deform_conv(name):
    x, w, attributes, groups, masked = DEFORM[name]
    stand_in = [np.zeros(s, np.float32) for s in (x, w)]
    out = OP.Conv(*stand_in, **attributes).shape[2:]
    size = groups * w[2] * w[3]
    inputs = [RANDOM.standard_normal(x), RANDOM.standard_normal(w), RANDOM.uniform(-1.2, 1.2, (x[0], 2 * size, *out))]
    inputs.append(RANDOM.standard_normal(w[0]))
    layout = [["n", x[1], "h", "w"], w, ["n", 2 * size, "p", "q"], [w[0]]]
    if masked:
        inputs.append(RANDOM.uniform(0.5, 1.5, (x[0], size, *out)))
        layout.append(["n", size, "p", "q"])
    f = lambda *a: OP.DeformConv(*a, offset_group=groups, **attributes)
    check_gradients(f, inputs, symbolic=layout, tolerance=(1e-3, 1e-4))


def test_deform_conv_twice():
    inputs = [RANDOM.standard_normal(s) for s in ((1, 1, 3, 3), (1, 1, 2, 2))]
    inputs.append(RANDOM.uniform(-0.4, 0.4, (1, 8, 2, 2)))
    check_gradients(lambda *a: OP.DeformConv(*a), inputs, order=2, symbolic=False, tolerance=(1e-3, 1e-4))


def test_deform_conv_without_offsets_is_conv():
    x, w = (RANDOM.standard_normal(s).astype(np.float32) for s in ((2, 3, 5, 5), (4, 3, 3, 3)))
    offset = np.zeros((2, 18, 3, 3), np.float32)
    a = gk.grad(lambda x, w: (OP.DeformConv(x, w, offset) * 0.5).sum(), (0, 1))(gk.tensor(x), gk.tensor(w))
    b = gk.grad(lambda x, w: (OP.Conv(x, w) * 0.5).sum(), (0, 1))(gk.tensor(x), gk.tensor(w))
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
