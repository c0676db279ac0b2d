"""The normalizations, over their attributes, and beside PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

RANDOM = np.random.default_rng(1)


def draw(*shape):
    return RANDOM.standard_normal(shape)


def positive(*shape):
    return RANDOM.uniform(0.5, 1.5, shape)


OP = gk.op
BATCH = [draw(3, 2, 4), draw(2), draw(2), draw(2), positive(2)]
PICTURE = [draw(2, 3, 2, 3), draw(3), draw(3), draw(3), positive(3)]
# name: function, inputs, order
CASES = {
    "layer": (lambda *a: OP.LayerNormalization(*a), [draw(3, 4), draw(4), draw(4)], 2),
    "layer, no bias": (lambda *a: OP.LayerNormalization(*a, epsilon=0.1), [draw(2, 3, 4), draw(4)], 1),
    "layer, two axes": (lambda *a: OP.LayerNormalization(*a, axis=1), [draw(3, 2, 4), draw(2, 4), draw(2, 4)], 2),
    "layer, axis 0": (lambda *a: OP.LayerNormalization(*a, axis=0), [draw(3, 2), draw(3, 2)], 1),
    "layer, negative axis": (lambda *a: OP.LayerNormalization(*a, axis=-2), [draw(3, 2, 4), draw(2, 4)], 1),
    "layer, all outputs": (lambda *a: OP.LayerNormalization(*a, outputs=3), [draw(3, 4), draw(4), draw(4)], 1),
    "layer, mean only": (lambda *a: OP.LayerNormalization(*a, outputs=3)[1], [draw(3, 4), draw(4)], 1),
    "layer, deviation only": (lambda *a: OP.LayerNormalization(*a, outputs=3)[2], [draw(3, 4), draw(4)], 1),
    "rms": (lambda *a: OP.RMSNormalization(*a), [draw(3, 4), draw(4)], 2),
    "rms, two axes": (lambda *a: OP.RMSNormalization(*a, axis=1, epsilon=0.1), [draw(3, 2, 4), draw(2, 4)], 1),
    "rms, negative axis": (lambda *a: OP.RMSNormalization(*a, axis=-2), [draw(3, 2, 4), draw(2, 4)], 1),
    "batch, frozen": (lambda *a: OP.BatchNormalization(*a), BATCH, 2),
    "batch, frozen, 2-d": (lambda *a: OP.BatchNormalization(*a, epsilon=0.1), PICTURE, 1),
    "batch, frozen, rank 2": (lambda *a: OP.BatchNormalization(*a), [draw(4, 3), *PICTURE[1:]], 1),
    "batch, training": (lambda *a: OP.BatchNormalization(*a, training_mode=1, outputs=3)[0], BATCH, 2),
    "batch, training, 2-d": (lambda *a: OP.BatchNormalization(*a, training_mode=1, outputs=3), PICTURE, 1),
    "batch, training, momentum": (
        lambda *a: OP.BatchNormalization(*a, training_mode=1, momentum=0.3, outputs=3), BATCH, 1,
    ),
    "batch, running mean only": (lambda *a: OP.BatchNormalization(*a, training_mode=1, outputs=3)[1], BATCH, 1),
    "batch, running variance only": (lambda *a: OP.BatchNormalization(*a, training_mode=1, outputs=3)[2], BATCH, 1),
    "instance": (lambda *a: OP.InstanceNormalization(*a), PICTURE[:3], 2),
    "instance, 1-d": (lambda *a: OP.InstanceNormalization(*a, epsilon=0.1), BATCH[:3], 1),
    "instance, 3-d": (lambda *a: OP.InstanceNormalization(*a), [draw(1, 2, 2, 2, 2), draw(2), draw(2)], 1),
    "group": (lambda *a: OP.GroupNormalization(*a, num_groups=2), [draw(2, 4, 2, 3), draw(4), draw(4)], 2),
    "group, one": (lambda *a: OP.GroupNormalization(*a, num_groups=1), PICTURE[:3], 1),
    "group of one channel each": (lambda *a: OP.GroupNormalization(*a, num_groups=2, epsilon=0.1), BATCH[:3], 1),
    "mean and variance": (lambda x: OP.MeanVarianceNormalization(x), [draw(2, 3, 2, 3)], 2),
    "mean and variance, one axis": (lambda x: OP.MeanVarianceNormalization(x, axes=[1]), [draw(2, 4, 3)], 1),
    "mean and variance, all axes": (lambda x: OP.MeanVarianceNormalization(x, axes=[0, 1]), [draw(4, 3)], 1),
    "L2": (lambda x: OP.LpNormalization(x), [draw(3, 4)], 2),
    "L2 over the first": (lambda x: OP.LpNormalization(x, axis=0, p=2), [draw(3, 4)], 1),
    "L1": (lambda x: OP.LpNormalization(x, axis=1, p=1), [draw(3, 4, 2)], 1),
    "local response": (lambda x: OP.LRN(x, size=3, alpha=0.5, beta=0.6, bias=1.5), [draw(1, 5, 2, 2)], 1),
    "local response, even": (lambda x: OP.LRN(x, size=4, alpha=0.5), [draw(2, 5, 1, 3)], 1),
    "local response, wide": (lambda x: OP.LRN(x, size=9, alpha=0.3, bias=2.0), [draw(1, 4, 2, 1)], 1),
    "local response, one": (lambda x: OP.LRN(x, size=1, alpha=0.3), [draw(1, 4, 2, 1)], 1),
}  # fmt: skip
# The channels of a vector are those of x: one name.
CHANNELS = {"batch", "instance", "group"}
# ONNX Runtime computes these, or some outputs of them, in float32 whatever the input
ROUGH = {"layer, all outputs", "layer, mean only", "layer, deviation only", "group", "group, one"}
ROUGH |= {"group of one channel each"}
WRT = {"layer, mean only": [0], "layer, deviation only": [0]}
WRT |= {"batch, training": [0, 1, 2], "batch, running mean only": [0, 3], "batch, running variance only": [0, 4]}


def layout(name, inputs):
    if name.split()[0].strip(",") not in CHANNELS:
        return [[f"d{n}_{axis}" for axis in range(a.ndim)] for n, a in enumerate(inputs)]
    channels = inputs[1].shape[0] if name.startswith("group") else "c"
    first = [channels if axis == 1 else f"d{axis}" for axis in range(inputs[0].ndim)]
    return [first, *([channels] for _ in inputs[1:])]


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    f, inputs, order = CASES[name]
    for n in range(1, order + 1):
        check_gradients(
            f, inputs, wrt=WRT.get(name), symbolic=layout(name, inputs), order=n, numeric=name not in ROUGH,
            tolerance=(1e-3, 1e-5), float32=name != "local response, even",  # which ONNX Runtime refuses
        )  # fmt: skip


def torch_batch(training):
    def f(torch, x, scale, bias, mean, var):
        return torch.nn.functional.batch_norm(x, mean.detach(), var.detach(), scale, bias, training)

    return f


def torch_layer_statistics(torch, x, scale, bias):
    m = x.mean(-1, keepdim=True)
    inv = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
    return (x - m) * inv * scale + bias, m, inv


# PyTorch's function, and which inputs to compare
TORCH = {
    "layer": (lambda torch, x, s, b: torch.nn.functional.layer_norm(x, x.shape[1:], s, b), 3),
    "layer, two axes": (lambda torch, x, s, b: torch.nn.functional.layer_norm(x, x.shape[1:], s, b), 3),
    "layer, all outputs": (torch_layer_statistics, 3),
    "layer, mean only": (lambda torch, x, s: x.mean(-1, keepdim=True), 1),
    "layer, deviation only": (
        lambda torch, x, s: (x.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt(), 1,
    ),
    "rms": (lambda torch, x, s: torch.nn.functional.rms_norm(x, x.shape[1:], s, eps=1e-5), 2),
    "batch, frozen": (torch_batch(False), 3),
    "batch, training": (torch_batch(True), 3),
    "instance": (lambda torch, x, s, b: torch.nn.functional.instance_norm(x, weight=s, bias=b), 3),
    "group": (lambda torch, x, s, b: torch.nn.functional.group_norm(x, 2, s, b), 3),
    "group, one": (lambda torch, x, s, b: torch.nn.functional.group_norm(x, 1, s, b), 3),
    "group of one channel each": (lambda torch, x, s, b: torch.nn.functional.group_norm(x, 2, s, b, eps=0.1), 3),
    "L2": (lambda torch, x: torch.nn.functional.normalize(x, dim=-1), 1),
    "local response": (lambda torch, x: torch.nn.functional.local_response_norm(x, 3, 0.5, 0.6, 1.5), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.torch
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    f, inputs, _ = CASES[name]
    theirs, count = TORCH[name]
    leaves = [torch.tensor(a, requires_grad=True) for a in inputs]
    results = theirs(torch, *leaves)
    results = results if isinstance(results, tuple) else (results,)
    weights = [draw(*y.shape) for y in results]
    torch.stack([(y * torch.tensor(w)).sum() for y, w in zip(results, weights, strict=True)]).sum().backward()

    def loss(*arrays):
        made = f(*arrays)
        made = made if isinstance(made, tuple | list) else (made,)
        total = 0
        for y, w in zip(made, weights, strict=True):
            total = total + (y * w.astype(y.dtype)).astype(inputs[0].dtype).sum()
        return total

    found = gk.grad(loss, range(count))(*map(gk.tensor, inputs))
    for ours, other in zip(found, leaves, strict=False):
        np.testing.assert_allclose(ours.numpy(), other.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_half_precision_keeps_its_type_and_does_not_overflow():
    x, scale = (np.array([[300.0, -300.0, 150.0, 0.0]]).astype(np.float16), np.ones(4, np.float16))
    for op in (OP.RMSNormalization, OP.LayerNormalization):
        exact = gk.grad(lambda x, s, op=op: (op(x, s) * WEIGHTS.astype(x.dtype)).sum(), (0, 1))
        half = exact(gk.tensor(x), gk.tensor(scale))
        full = exact(gk.tensor(x.astype(np.float32)), gk.tensor(scale.astype(np.float32)))
        for a, b in zip(half, full, strict=True):
            assert a.dtype == np.float16
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-2, atol=2e-4)


WEIGHTS = np.array([1.0, 2.0, -1.0, 0.5])


def test_a_vector_of_zeros_has_no_direction():
    x = gk.tensor(np.array([[0.0, 0.0], [3.0, 4.0]], np.float32))
    for p in (1, 2):
        g = gk.grad(lambda x, p=p: (OP.LpNormalization(x, p=p) * WEIGHTS[:2].astype("f")).sum())(x).numpy()
        assert (g[0] == 0).all()
        assert np.isfinite(g).all()


def test_layer_normalization_reads_what_the_forward_computed():
    """No second mean or variance, the rule asks for the operator's own: ten nodes for x, two for scale, one bias."""
    f = lambda x, s, b: OP.LayerNormalization(x, s, b).sum()
    specs = [gk.spec("float32", d) for d in (["n", 8], [8], [8])]
    model = gk.trace(gk.grad(f, (0, 1, 2)), *specs)
    assert [len(n.outputs) for n in model.graph if n.op_type == "LayerNormalization"] == [3]
    assert len(model.graph) <= 20
