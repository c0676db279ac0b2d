"""Col2Im and CenterCropPad."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

RANDOM = np.random.default_rng(5)
OP = gk.op
# image, block, attributes, columns
COLUMNS = {
    "side by side": ((4, 6), (2, 3), {"strides": [2, 3]}, 4),
    "overlapping": ((4, 5), (2, 3), {}, 9),
    "padded, dilated": ((5, 5), (2, 2), {"pads": [1, 0, 1, 1], "dilations": [2, 1]}, 25),
    "unread rows": ((6, 5), (2, 2), {"strides": [3, 2]}, 4),
    "1d": ((6,), (3,), {}, 4),
    "3d": ((3, 3, 4), (2, 2, 2), {}, 12),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("at_run", [[], ["image"], ["block"], ["image", "block"]], ids=str)
def test_col2im(name, at_run):
    image, block, attributes, columns = COLUMNS[name]
    x = RANDOM.standard_normal((2, 2 * int(np.prod(block)), columns))
    block = np.array(block, np.int64)
    image = np.array(image, np.int64)
    given = {"image": image, "block": block}

    def f(x, *later):
        settings = {**given, **dict(zip(at_run, later, strict=True))}
        return OP.Col2Im(x, settings["image"], settings["block"], **attributes)

    inputs = [x, *(given[name] for name in at_run)]
    layout = [["n", "c" if at_run else x.shape[1], "l"], *([len(image)] for _ in at_run)]
    check_gradients(f, inputs, symbolic=layout, order=1 if at_run else 2, step=1e-3)


CENTER = {
    "crop": ((5, 6), (3, 3), None),
    "pad": ((3, 4), (6, 5), None),
    "crop odd, pad odd": ((6, 3), (3, 6), None),
    "axes": ((2, 5, 4), (3, 7), [1, 2]),
    "negative axes, other order": ((2, 5, 4), (7, 2), [-1, 1]),
}


@pytest.mark.parametrize("name", CENTER)
def test_center_crop_pad(name):
    shape, target, axes = CENTER[name]
    more = {} if axes is None else {"axes": axes}
    f = lambda x: OP.CenterCropPad(x, np.array(target, np.int64), **more)
    check_gradients(f, [RANDOM.standard_normal(shape)], order=2)


def test_center_crop_pad_to_a_shape_known_at_run_time():
    f = lambda x, shape: OP.CenterCropPad(x, shape, axes=[0, 1])
    check_gradients(f, [RANDOM.standard_normal((5, 2)), np.array([2, 5], np.int64)], symbolic=[["n", "m"], [2]])
