"""The masks of Relu and MaxPool on a gradient's way back: moved where they are small, and only where that is exact."""

from __future__ import annotations

import numpy as np
import onnx_ir
import pytest

import graphkit as gk
from graphkit.optimizers import add_gradients
from tests.optimizers.conftest import operators


def pooled(activate, *, kernel=2, stride=2, pads=0, dtype="float32", extent=8):
    """The gradient graph of a weighted sum over MaxPool(activate(x))."""
    sizes = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [pads] * 4}
    loss = lambda x, w: (gk.op.MaxPool(activate(x), **sizes) * w).sum()
    specs = (gk.spec(dtype, ["n", 3, extent, extent]), gk.spec(dtype, ["n", 3, "h", "w"]))
    graph = gk.trace(loss, *specs, input_names=["x", "w"], output_names=["loss"])
    return onnx_ir.to_proto(add_gradients(graph, "loss", ["x"]))


def values(*, extent=8, out=4, special=()):
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (2, 3, extent, extent)).astype("f")  # many ties, many windows without a positive element
    for index, value in enumerate(special):
        x[0, index % 3, 0, index] = value
    return {"x": x, "w": rng.standard_normal((2, 3, out, out)).astype("f")}


EXACT = {
    "relu": (gk.op.Relu, (), 3),
    "relu, infinities and negative zero": (gk.op.Relu, (np.inf, -np.inf, -0.0), 3),
    "relu, a NaN": (gk.op.Relu, (np.nan,), 3),
}


@pytest.mark.parametrize(("activate", "special", "products"), EXACT.values(), ids=EXACT.keys())
def test_mask_is_applied_to_the_pooled_gradient(prove, activate, special, products):
    report = gk.optimizers.Report()
    result = prove(pooled(activate), values(special=special), preset="training", report=report, grow=400)
    assert report.passes["mask_pooled"].rewrites == 1
    assert operators(result)["Sign"] == 1 and operators(result)["Greater"] == 0


LEFT = {
    "windows overlap": (gk.op.Relu, 1, 7),
    "no relu": (gk.op.Neg, 2, 4),
    "another slope": (lambda x: gk.op.LeakyRelu(x, alpha=0.1), 2, 4),
    "something else between": (lambda x: gk.op.Relu(x) * 2, 2, 4),
}


@pytest.mark.parametrize(("activate", "stride", "out"), LEFT.values(), ids=LEFT.keys())
def test_other_masks_stay(prove, activate, stride, out):
    report = gk.optimizers.Report()
    model = pooled(activate, stride=stride)
    prove(model, values(out=out), preset="training", report=report, grow=400, tolerance=1e-6)
    assert report.passes["mask_pooled"].rewrites == 0


QUOTIENTS = {
    "a number": ("float[N,3] x, float s", "r = Div(one, s) y = Mul(x, r)", {"Div": 1}),
    "the other way round": ("float[N,3] x, float s", "r = Div(one, s) y = Mul(r, x)", {"Div": 1}),
    "a row": ("float[N,3] x, float[3] s", "r = Div(one, s) y = Mul(x, r)", {"Div": 1, "Mul": 1}),
    "another number above": ("float[N,3] x, float s", "r = Div(two, s) y = Mul(x, r)", {"Div": 1, "Mul": 1}),
    "read twice": ("float[N,3] x, float s", "r = Div(one, s) z = Mul(x, r) y = Mul(z, r)", {"Div": 1, "Mul": 2}),
}


@pytest.mark.parametrize(("inputs", "nodes", "expected"), QUOTIENTS.values(), ids=QUOTIENTS.keys())
def test_products_with_a_reciprocal(prove, inputs, nodes, expected):
    text = f"g ({inputs}) => (float[N,3] y) <float one = {{1.0}}, float two = {{2.0}}> {{ {nodes} }}"
    prove(text, expected=expected, tolerance=1e-6)
