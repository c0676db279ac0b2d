"""Resize over its modes, coordinate modes and ways of giving sizes. It is linear, so setting one element at a time says
what its gradient must be."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

RANDOM = np.random.default_rng(3)
OP = gk.op
COORDINATES = [
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
]  # fmt: skip
ROI = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 1.3], np.float32)
PICTURE = (1, 2, 4, 5)


def floats(*values):
    return np.array(values, np.float32)


def ints(*values):
    return np.array(values, np.int64)


def probe(f, shape, dtype=np.float32):
    """Weights c, and the gradient of sum(c * f(x)) for an f that is affine in x."""
    base = f(np.zeros(shape, dtype)).numpy()
    weights = RANDOM.standard_normal(base.shape).astype(dtype)
    result = np.zeros(shape, dtype)
    for place in np.ndindex(*shape):
        unit = np.zeros(shape, dtype)
        unit[place] = 1
        result[place] = ((f(unit).numpy() - base) * weights).sum()
    return weights, result


def check(f, shape, *layouts):
    weights, expected = probe(f, shape)
    loss = lambda x: (f(x) * weights).sum()
    x = RANDOM.standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(gk.grad(loss)(gk.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    for layout in layouts:
        model = gk.trace(gk.grad(loss), gk.spec("float32", layout), input_names=["x"])
        (found,) = gk.run(model, {"x": x}, optimizations=False).values()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


SIZES = {
    "up": (floats(1, 1, 1.6, 2.3), None),
    "down": (floats(1, 1, 0.6, 0.7), None),
    "twice": (floats(1, 1, 2, 2), None),
    "sizes": (None, ints(1, 2, 6, 3)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_modes(mode, how, size):
    roi = ROI if how == "tf_crop_and_resize" else None
    more = {"extrapolation_value": 2.0} if roi is not None else {}
    f = lambda x: OP.Resize(x, roi, *SIZES[size], mode=mode, coordinate_transformation_mode=how, **more)
    check(f, PICTURE, PICTURE, ["n", 2, "h", "w"])


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("how", COORDINATES[:5])
@pytest.mark.parametrize("size", ["up", "twice"])
def test_nearest(size, how, rounding):
    attributes = {"coordinate_transformation_mode": how, "nearest_mode": rounding}
    check(lambda x: OP.Resize(x, None, *SIZES[size], **attributes), PICTURE)


@pytest.mark.parametrize("size", ["up", "down", "sizes"])
@pytest.mark.parametrize("how", COORDINATES[:5])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode, how, size):
    f = lambda x: OP.Resize(x, None, *SIZES[size], mode=mode, coordinate_transformation_mode=how, antialias=1)
    check(f, PICTURE, PICTURE)


# function, shape, layouts of symbolic dims
OTHER = {
    "1d": (lambda x: OP.Resize(x, None, floats(2.5)), (4,), [["n"]]),
    "2d": (lambda x: OP.Resize(x, None, floats(2, 0.5), mode="cubic"), (4, 6), [["n", "m"]]),
    "3d": (lambda x: OP.Resize(x, None, floats(1, 1, 1.5, 2, 0.7), mode="linear"), (1, 2, 2, 3, 4), [list("nctij")]),
    "3d nearest twice": (lambda x: OP.Resize(x, None, floats(1, 1, 2, 2, 3)), (1, 2, 2, 3, 2), [list("nctij")]),
    "1d of rows twice": (lambda x: OP.Resize(x, None, floats(1, 1, 2)), (2, 3, 4), [["n", "c", "w"]]),
    "nearest over all axes": (lambda x: OP.Resize(x, None, floats(2, 1.5, 1, 2)), (2, 2, 2, 2), [list("nchw")]),
    "nearest over the first": (lambda x: OP.Resize(x, None, floats(3, 1)), (2, 3), [["n", "c"]]),
    "nearest over channels": (lambda x: OP.Resize(x, None, None, ints(1, 6, 2, 2)), (1, 3, 2, 2), [["n", 3, "h", "w"]]),
    "channels last": (lambda x: OP.Resize(x, None, floats(1, 2.5, 2, 1), mode="linear"), (1, 3, 2, 4), [list("nhwc")]),
    "axes": (
        lambda x: OP.Resize(x, None, floats(2, 1.5), axes=[2, 3], mode="linear"), PICTURE, [["n", 2, "h", "w"]],
    ),
    "axes, the other way round": (
        lambda x: OP.Resize(x, None, None, ints(8, 6), axes=[3, 2], mode="linear"), PICTURE, [["n", 2, "h", "w"]],
    ),
    "axes, cropped": (
        lambda x: OP.Resize(x, floats(0.2, 0.1, 0.9, 0.7), None, ints(6, 3), axes=[-2, -1], mode="linear",
                            coordinate_transformation_mode="tf_crop_and_resize"), PICTURE, [["n", 2, "h", "w"]],
    ),
    "cubic weights": (
        lambda x: OP.Resize(x, None, floats(1, 1, 1.7, 2), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1),
        PICTURE, [["n", 2, "h", "w"]],
    ),
    "not larger": (
        lambda x: OP.Resize(x, None, None, ints(7, 8), axes=[2, 3], keep_aspect_ratio_policy="not_larger",
                            mode="linear"), PICTURE, [["n", 2, 4, 5]],
    ),
    "not smaller": (
        lambda x: OP.Resize(x, None, None, ints(6, 6), axes=[2, 3], keep_aspect_ratio_policy="not_smaller",
                            mode="linear"), PICTURE, [["n", 2, 4, 5]],
    ),
    "not smaller, nearest": (
        lambda x: OP.Resize(x, None, None, ints(7, 8), axes=[2, 3], keep_aspect_ratio_policy="not_smaller"),
        PICTURE, [["n", 2, 4, 5]],
    ),
    "not larger, corners": (
        lambda x: OP.Resize(x, None, None, ints(7, 9), axes=[2, 3], keep_aspect_ratio_policy="not_larger",
                            mode="linear", coordinate_transformation_mode="align_corners"), PICTURE, [["n", 2, 4, 5]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_other(name):
    f, shape, layouts = OTHER[name]
    check(f, shape, shape, *layouts)


@pytest.mark.parametrize("given", ["sizes", "scales", "roi"])
def test_settings_known_only_at_run_time(given):
    at_run = {"sizes": ints(1, 2, 6, 7), "scales": floats(1, 1, 1.5, 1.5), "roi": ROI}[given]

    def f(x, setting):
        if given == "sizes":
            return OP.Resize(x, None, None, setting, mode="linear")
        if given == "scales":
            return OP.Resize(x, None, setting, mode="cubic")
        return OP.Resize(x, setting, None, ints(1, 2, 6, 3), mode="linear",
                         coordinate_transformation_mode="tf_crop_and_resize")  # fmt: skip

    weights, expected = probe(lambda x: f(x, at_run), PICTURE)
    specs = [gk.spec("float32", ["n", 2, "h", "w"]), gk.spec(at_run.dtype, list(at_run.shape))]
    model = gk.trace(gk.grad(lambda x, s: (f(x, s) * weights).sum()), *specs, input_names=["x", "s"])
    (found,) = gk.run(model, {"x": np.ones(PICTURE, np.float32), "s": at_run}, optimizations=False).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("how", ["half_pixel", "align_corners"])
def test_kept_ratio_known_only_at_run_time(mode, policy, how):
    sizes = ints(7, 8)
    attributes = {"mode": mode, "keep_aspect_ratio_policy": policy, "coordinate_transformation_mode": how}
    f = lambda x, sizes: OP.Resize(x, None, None, sizes, axes=[2, 3], **attributes)
    weights, expected = probe(lambda x: f(x, sizes), PICTURE)
    specs = [gk.spec("float32", ["n", 2, "h", "w"]), gk.spec("int64", [2])]
    model = gk.trace(gk.grad(lambda x, s: (f(x, s) * weights).sum()), *specs, input_names=["x", "s"])
    (found,) = gk.run(model, {"x": np.ones(PICTURE, np.float32), "s": sizes}, optimizations=False).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


ENDS = {  # what an interpolation does where the picture ends
    "linear, antialias": {"mode": "linear", "antialias": 1},
    "cubic, antialias": {"mode": "cubic", "antialias": 1},
    "cubic, nothing outside": {"mode": "cubic", "exclude_outside": 1},
    "symmetric": {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
}


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(7, 8), (3, 3), (2, 4)])
@pytest.mark.parametrize("name", ENDS)
def test_kept_ratio_where_the_picture_ends(name, sizes, policy):
    """An extent that is rounded up after scaling, known and not."""
    f = lambda x, s: OP.Resize(x, None, None, s, axes=[2, 3], keep_aspect_ratio_policy=policy, **ENDS[name])
    weights, expected = probe(lambda x: f(x, ints(*sizes)), PICTURE)
    got = gk.grad(lambda x: (f(x, ints(*sizes)) * weights).sum())(gk.tensor(np.ones(PICTURE, np.float32))).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    specs = [gk.spec("float32", ["n", 2, "h", "w"]), gk.spec("int64", [2])]
    model = gk.trace(gk.grad(lambda x, s: (f(x, s) * weights).sum()), *specs, input_names=["x", "s"])
    (found,) = gk.run(model, {"x": np.ones(PICTURE, np.float32), "s": ints(*sizes)}, optimizations=False).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_twice(mode):
    f = lambda x: OP.Resize(x * x, None, floats(1, 1, 2, 2), mode=mode)
    check_gradients(f, [RANDOM.standard_normal((1, 1, 2, 3))], order=2, symbolic=[["n", 1, "h", "w"]], step=1e-3)


TORCH = {
    "nearest": (SIZES["twice"], {"mode": "nearest", "nearest_mode": "floor"}, "asymmetric", {"mode": "nearest"}),
    "linear": (SIZES["up"], {"mode": "linear"}, "half_pixel", {"mode": "bilinear"}),
    "corners": (SIZES["sizes"], {"mode": "linear"}, "align_corners", {"mode": "bilinear", "align_corners": True}),
    "cubic": (SIZES["twice"], {"mode": "cubic"}, "half_pixel", {"mode": "bicubic"}),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.torch
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    size, ours, how, theirs = TORCH[name]
    f = lambda x: OP.Resize(x, None, *size, coordinate_transformation_mode=how, **ours)
    x = RANDOM.standard_normal(PICTURE).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    extent = {"size": (6, 3)} if size[0] is None else {"scale_factor": [float(s) for s in size[0][2:]]}
    y = torch.nn.functional.interpolate(leaf, **extent, **theirs)
    weights = RANDOM.standard_normal(y.shape).astype(np.float32)
    (y * torch.tensor(weights)).sum().backward()
    found = gk.grad(lambda x: (f(x) * weights).sum())(gk.tensor(x))
    np.testing.assert_allclose(found.numpy(), leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_an_integer_upsampling_is_a_mean_and_a_product():
    f = lambda x: OP.Resize(x, None, floats(1, 1, 2, 2)).sum()
    ops = [n.op_type for n in gk.trace(gk.grad(f), gk.spec("float32", ["n", 3, "h", "w"])).graph]
    assert ops[-2:] == ["AveragePool", "Mul"]


# extents that are rounded, by one scale for both axes or by one for each: what they scale to is not what was written
ROUNDED = {
    "both up": ((4, 5), {"sizes": (6, 7), "keep_aspect_ratio_policy": "not_larger"}),
    "a pad too short would be copied": (
        (4, 7),
        {"sizes": (5, 8), "keep_aspect_ratio_policy": "not_larger", "coordinate_transformation_mode": "asymmetric"},
    ),
    "one stays": ((2, 6), {"sizes": (8, 7), "keep_aspect_ratio_policy": "not_larger"}),
    "not smaller": ((5, 8), {"sizes": (4, 9), "keep_aspect_ratio_policy": "not_smaller"}),
    "nearest, not quite twice": (
        (3, 10),
        {
            "sizes": (7, 21), "keep_aspect_ratio_policy": "not_larger", "mode": "nearest", "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        },
    ),
    "an axis of as many elements": ((4, 3), {"scales": (1.2, 2.0)}),
    "the same, cubic": ((4, 3), {"scales": (1.2, 2.0), "mode": "cubic", "exclude_outside": 1}),
    "copied as a whole": ((4, 3), {"scales": (1.2, 1.3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_extents_that_are_rounded(name):
    (h, w), attributes = ROUNDED[name]
    attributes = {"mode": "linear", **attributes}
    sizes, scales = attributes.pop("sizes", None), attributes.pop("scales", None)
    given = [None, None if scales is None else np.array(scales, "f4"), None if sizes is None else np.array(sizes)]
    x = RANDOM.normal(size=(1, 2, h, w))
    check_gradients(lambda x: OP.Resize(x, *given, axes=[2, 3], **attributes), [x])
    if name != "nearest, not quite twice":  # and where only the run knows by how much
        kind, value = ("int64", given[2]) if scales is None else ("float", given[1])
        place = "s" if scales is not None else ", s"
        listed = ", ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in attributes.items())
        text = f"""<ir_version: 9, opset_import: ["": 19]> g (float[A,B,C,D] x, {kind}[2] s) => (float loss)
        {{ y = Resize<axes=[2, 3], {listed}>(x, , {place}) loss = ReduceSumSquare<keepdims=0>(y) }}"""
        model = gk.optimizers.add_gradients(onnx.parser.parse_model(text), "loss", ["x"])
        found = gk.run(model, {"x": x.astype("f4"), "s": value})["x_grad"]
        f = lambda x: (OP.Resize(x, *given, axes=[2, 3], **attributes) ** 2).sum()
        np.testing.assert_allclose(found, gk.grad(f)(gk.tensor(x.astype("f4"))).numpy(), rtol=1e-4, atol=1e-5)
