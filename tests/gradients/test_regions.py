"""RoiAlign and MaxRoiPool. RoiAlign's mean is linear: setting one element at a time says what its gradient must be."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import differences

RANDOM = np.random.default_rng(6)
OP = gk.op
BOXES = np.array(
    [[0.3, 0.6, 4.2, 5.1], [1.0, 1.0, 2.5, 6.7], [-2.0, 3.0, 9.0, 7.5], [2.0, 2.0, 2.2, 2.1], [0.0, 0.0, 9.5, 9.5]],
    np.float32,
)
PICTURES = np.array([0, 1, 1, 0, 1], np.int64)
ALIGN = {
    "default": {},
    "bins": {"output_height": 2, "output_width": 3},
    "two samples": {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
    "scaled": {"output_height": 3, "output_width": 2, "spatial_scale": 0.5},
    "old coordinates": {"output_height": 2, "output_width": 2, "coordinate_transformation_mode": "output_half_pixel"},
    "largest": {"output_height": 2, "output_width": 2, "mode": "max", "sampling_ratio": 2},
    "largest, adaptive": {"output_height": 2, "output_width": 3, "mode": "max"},
}


def pictures():
    """Distinct values, some negative."""
    return (RANDOM.permutation(2 * 3 * 8 * 7).reshape(2, 3, 8, 7) / 20 - 3).astype(np.float32)


def agree(f, x, step, *dims):
    """The gradient of sum(c * f(x)), eager and traced, against float32 differences of that step."""
    weights = (1 + np.arange(f(x).numpy().size) % 7).astype(np.float32).reshape(f(x).shape)
    loss = lambda x: (f(x) * weights).sum()
    expected = np.zeros(x.shape, np.float32)
    for place in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append(f(moved).numpy().astype(np.float64))
        expected[place] = ((ends[0] - ends[1]) * weights).sum() / (2 * step)
    np.testing.assert_allclose(gk.grad(loss)(gk.tensor(x)).numpy(), expected, rtol=1e-3, atol=2e-3)
    for layout in dims:
        model = gk.trace(gk.grad(loss), gk.spec("float32", layout), input_names=["x"])
        (found,) = gk.run(model, {"x": x}, optimizations=False).values()
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", ALIGN)
def test_roi_align(name):
    attributes = ALIGN[name]
    f = lambda x: OP.RoiAlign(x, BOXES, PICTURES, **attributes)
    agree(f, pictures(), 0.01 if "largest" in name else 1.0, [2, 3, 8, 7], ["n", "c", "h", "w"])


def test_roi_align_of_boxes_known_at_run_time():
    x = pictures()
    f = lambda x, boxes, batch: OP.RoiAlign(x, boxes, batch, output_height=2, output_width=2).sum()
    expected = gk.grad(f)(gk.tensor(x), gk.tensor(BOXES), gk.tensor(PICTURES)).numpy()
    specs = [gk.spec("float32", ["n", 3, "h", "w"]), gk.spec("float32", ["k", 4]), gk.spec("int64", ["k"])]
    model = gk.trace(gk.grad(f), *specs, input_names=["x", "boxes", "batch"])
    (found,) = gk.run(model, {"x": x, "boxes": BOXES, "batch": PICTURES}, optimizations=False).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_roi_align_in_float64():
    x = pictures().astype(np.float64)
    f = lambda x: (OP.RoiAlign(x, BOXES.astype(np.float64), PICTURES, output_height=2, output_width=2) * x.mean()).sum()
    found = gk.grad(f)(gk.tensor(x))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.numpy(), differences(f, [x], 0), rtol=1e-6, atol=1e-8)


POOL = {
    "one bin": {"pooled_shape": [1, 1]},
    "bins": {"pooled_shape": [2, 3]},
    "scaled": {"pooled_shape": [3, 2], "spatial_scale": 0.5},
    "more bins than elements": {"pooled_shape": [4, 4], "spatial_scale": 0.4},
}


@pytest.mark.parametrize("name", POOL)
def test_max_roi_pool(name):
    rois = np.concatenate([PICTURES[:, None], np.abs(BOXES)], 1).astype(np.float32)
    f = lambda x: OP.MaxRoiPool(x, rois, **POOL[name])
    agree(f, pictures(), 0.01, [2, 3, 8, 7], ["n", "c", "h", "w"])
