"""Modules: names, modes, states; layers and losses against formulas, and against PyTorch where it is there."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit import nn
from graphkit.errors import InputError, OperatorError
from graphkit.testing import check_gradients

RNG = np.random.default_rng(0)


class Net(nn.Module):
    def __init__(self):
        self.first = nn.Linear(4, 3)
        self.blocks = [nn.Sequential(nn.Linear(3, 3), nn.relu), nn.BatchNorm(3)]
        self.table = {"scale": gk.tensor([1.0, 2.0, 3.0], requires_grad=True)}
        self.tied = self.first
        self.offset = gk.tensor([0.5])

    def forward(self, x):
        x = self.blocks[1](self.blocks[0](self.first(x)))
        return x * self.table["scale"] + self.offset


def test_names_are_paths_of_attributes_and_each_tensor_comes_once():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == [
        "first.weight", "first.bias", "blocks.0.0.weight", "blocks.0.0.bias", "blocks.1.weight", "blocks.1.bias",
        "table.scale",
    ]  # fmt: skip
    assert [n for n, _ in net.named_buffers()] == ["blocks.1.running_mean", "blocks.1.running_var", "offset"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "blocks.0", "blocks.0.0", "blocks.1"]


def test_names_become_initializers():
    model = gk.trace(Net().eval(), gk.spec("float32", ["batch", 4]))
    assert set(dict(Net().named_tensors())) <= set(model.graph.initializers)
    assert str(model.graph.outputs[0].shape) == "[batch,3]"


def test_modes_reach_everything_inside():
    net = Net().eval()
    assert not any(m.training for _, m in net.named_modules())
    assert all(m.training for _, m in net.train().named_modules())


def test_the_state_goes_out_and_in():
    one, two = Net(), Net()
    x = RNG.normal(size=(5, 4)).astype("f")
    one(x)  # moves the running statistics
    two.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.eval()(x).numpy(), two.eval()(x).numpy())


def test_a_state_that_does_not_fit_names_everything_and_changes_nothing():
    net = Net()
    before = net.state_dict()
    state = net.state_dict()
    state["frist.weight"] = state.pop("first.weight")
    state["first.bias"] = np.zeros(7, "f")
    state["offset"] = np.zeros(1, "float64")
    with pytest.raises(InputError) as caught:
        net.load_state_dict(state)
    for part in ("'first.weight' is missing", "'frist.weight' is unknown. Did you mean 'first.weight'?",
                 "'first.bias' is float32[3], got float32[7]", "'offset' is float32[1], got float64[1]"):  # fmt: skip
        assert part in str(caught.value)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_zero_grad_and_freeze():
    net = Net()
    net(RNG.normal(size=(5, 4)).astype("f")).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.first.freeze()
    assert "first.weight" not in dict(net.named_parameters())


def test_nothing_becomes_float64():
    net = nn.Sequential(nn.Linear(4, 8), nn.gelu, nn.LayerNorm(8), nn.Dropout(0.5), nn.BatchNorm(8), nn.Linear(8, 2))
    loss = nn.cross_entropy(net(np.ones((3, 4), "f")), np.array([0, 1, 1]))
    loss.backward()
    assert {t.dtype.name for _, t in net.named_tensors()} == {"float32", "int32"}
    assert {p.grad.dtype.name for p in net.parameters()} == {"float32"}


def test_half_precision_stays():
    layer = nn.Linear(4, 2, dtype="float16")
    assert layer(np.ones((1, 4), "float16")).dtype == np.float16


# Layers

WRONG = {
    "Linear": (
        lambda: nn.Linear(4, 2)(np.ones((3, 5), "f")),
        r"Linear\(4, 2\) at .*test_nn.py:\d+ takes \[\.\.\., 4\], got \[3, 5\]",
    ),
    "BatchNorm": (lambda: nn.BatchNorm(4)(np.ones((3, 5), "f")), r"BatchNorm\(4\) at .* takes \[batch, 4"),
    "Embedding": (lambda: nn.Embedding(4, 2)(np.ones(3, "f")), "takes int32 or int64 indices, got float32"),
    "Dropout": (lambda: nn.Dropout(1.0), "from 0 to below 1, got 1.0"),
    "groups": (lambda: nn.Conv(3, 4, 3, groups=2), "do not divide into 2 groups"),
    "kernel": (lambda: nn.Conv(3, 4, [3, 3], stride=[1, 2, 3]), "2 spatial axes need 2 numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_clear_error(case):
    call, message = WRONG[case]
    with pytest.raises(OperatorError, match=message):
        call()


@pytest.mark.parametrize("dims", [["b", 4], ["b", 5, 4], ["b", "t", 4], [2, 5, 4]])
def test_linear_keeps_the_dims_that_it_does_not_touch(dims):
    layer = nn.Linear(4, 3)
    model = gk.trace(layer, gk.spec("float32", dims))
    assert list(model.graph.outputs[0].shape) == [
        *gk.trace(lambda x: x + 0.0, gk.spec("float32", dims)).graph.outputs[0].shape[:-1],
        3,
    ]
    x = RNG.normal(size=[d if isinstance(d, int) else 2 for d in dims]).astype("f")
    expected = x @ layer.weight.numpy().T + layer.bias.numpy()
    np.testing.assert_allclose(gk.run(model, {"x": x})["output"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_mean_and_stops_at_inference():
    layer = nn.Dropout(0.25)
    x = np.ones((100, 100), "f")
    first, second = layer(x).numpy(), layer(x).numpy()
    assert set(np.unique(first)) <= {np.float32(0), np.float32(4 / 3)}
    assert abs(first.mean() - 1) < 0.03
    assert (first != second).any()
    np.testing.assert_array_equal(layer.eval()(x).numpy(), x)


def test_dropout_uses_one_mask_forwards_and_backwards():
    x = gk.tensor(np.ones(64, "f"), requires_grad=True)
    y = nn.Dropout(0.25)(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())


# Losses

LABELS = np.array([2, 0, 1])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("shape", "labels", "settings"),
    [
        ((3, 4), LABELS, {}),
        ((3, 4), LABELS, {"ignore_index": 0}),
        ((3, 4), LABELS, {"weight": np.array([1, 2, 3, 4], "f")}),
        ((2, 3, 4), np.array([[2, 0, 1], [3, 3, 0]]), {}),
        ((2, 4, 3), np.array([[2, 0, 1], [3, 3, 0]]), {"axis": 1}),
        ((2, 3, 2, 4), RNG.integers(0, 4, (2, 3, 2)), {}),
    ],
)
def test_cross_entropy(shape, labels, settings, reduction):
    x = RNG.normal(size=shape)
    axis = settings.get("axis", -1)
    logs = np.moveaxis(x - np.log(np.exp(x).sum(axis, keepdims=True)), axis, -1)
    each = -np.take_along_axis(logs, labels[..., None], -1)[..., 0]
    weight = np.ones(labels.shape)
    if "ignore_index" in settings:
        weight = (labels != 0).astype("d")
    if "weight" in settings:
        weight = settings["weight"][labels].astype("d")
    expected = (each * weight).sum() / (weight.sum() if reduction == "mean" else 1)
    got = nn.cross_entropy(gk.tensor(x.astype("f")), labels, reduction=reduction, **settings)
    assert got.dims == ()
    np.testing.assert_allclose(got.item(), expected, rtol=1e-5)
    check_gradients(lambda t: nn.cross_entropy(t, labels, reduction=reduction, **settings), [x], numeric=False)


ELEMENTWISE = {
    "mse": (nn.mse, lambda x, y: (x - y) ** 2),
    "l1": (nn.l1, lambda x, y: abs(x - y)),
    "huber": (nn.huber, lambda x, y: np.where(abs(x - y) < 1, (x - y) ** 2 / 2, abs(x - y) - 0.5)),
    "bce_logits": (
        nn.binary_cross_entropy_with_logits,
        lambda x, y: np.log1p(np.exp(-x)) * y + np.log1p(np.exp(x)) * (1 - y),
    ),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses(name):
    loss, formula = ELEMENTWISE[name]
    x, y = RNG.normal(size=(4, 3)) * 2, RNG.uniform(size=(4, 3))
    expected = formula(x, y)
    np.testing.assert_allclose(loss(x.astype("f"), y.astype("f")).item(), expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(
        loss(x.astype("f"), y.astype("f"), reduction="none").numpy(), expected, rtol=1e-4, atol=1e-6
    )
    check_gradients(lambda t: loss(t, y.astype(t.dtype)), [x], symbolic=False)


def test_a_logit_far_out_stays_finite():
    far = np.array([[1e4, -1e4]], "f")
    assert nn.binary_cross_entropy_with_logits(far, np.array([[0.0, 1.0]], "f")).item() == 1e4
    assert nn.cross_entropy(far, np.array([1])).item() == 2e4
    assert nn.binary_cross_entropy(np.array([0.0], "f"), np.array([1.0], "f")).item() == 100


BAD_LABELS = {
    "out of range": (
        lambda: nn.cross_entropy(np.zeros((2, 3), "f"), np.array([0, 3])),
        "label 3 is not one of the 3 classes",
    ),
    "negative": (lambda: nn.cross_entropy(np.zeros((2, 3), "f"), np.array([0, -1])), "label -1 is not one of the 3"),
    "floats": (lambda: nn.cross_entropy(np.zeros((2, 3), "f"), np.zeros(2, "f")), "int64 labels"),
    "shape": (lambda: nn.cross_entropy(np.zeros((2, 3), "f"), np.zeros((3,), int)), r"take labels \[2\], got \[3\]"),
    "broadcast": (lambda: nn.mse(np.zeros((2, 1), "f"), np.zeros(2, "f")), r"one shape, got \[2, 1\] and \[2\]"),
    "dtype": (lambda: nn.mse(np.zeros(2, "f"), np.zeros(2)), "one dtype, got float32 and float64"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_labels_that_do_not_fit(case):
    call, message = BAD_LABELS[case]
    with pytest.raises(InputError, match=message):
        call()


# Against PyTorch


@pytest.mark.torch
def test_batch_norm_is_pytorchs():
    torch = pytest.importorskip("torch")
    mine, theirs = nn.BatchNorm(3), torch.nn.BatchNorm2d(3)
    for n in range(3):
        x = RNG.normal(size=(4, 3, 5, 5)).astype("f") * (n + 1) + n
        np.testing.assert_allclose(mine(x).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
    for name, value in theirs.state_dict().items():
        if name != "num_batches_tracked":
            np.testing.assert_allclose(mine.state_dict()[name], value.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        mine.eval()(x).numpy(), theirs.eval()(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    ("mine", "theirs", "shape"),
    [
        (lambda: nn.Linear(4, 3), lambda t: t.nn.Linear(4, 3), (2, 5, 4)),
        (
            lambda: nn.Conv(4, 6, 3, stride=2, padding=1, groups=2),
            lambda t: t.nn.Conv2d(4, 6, 3, 2, 1, groups=2),
            (2, 4, 7, 7),
        ),
        (lambda: nn.LayerNorm([3, 4]), lambda t: t.nn.LayerNorm([3, 4]), (2, 3, 4)),
        (lambda: nn.MaxPool(3, 2, 1), lambda t: t.nn.MaxPool2d(3, 2, 1), (2, 4, 7, 7)),
        (lambda: nn.AvgPool(3, 2, 1), lambda t: t.nn.AvgPool2d(3, 2, 1), (2, 4, 7, 7)),
    ],
)
def test_layers_are_pytorchs(mine, theirs, shape):
    torch = pytest.importorskip("torch")
    ours, other = mine(), theirs(torch)
    ours.load_state_dict({n: v.numpy() for n, v in other.state_dict().items()})
    x = RNG.normal(size=shape).astype("f")
    a, b = gk.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = ours(a), other(b)
    (y * y).sum().backward()
    (z * z).sum().backward()
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-4)
    for name, p in ours.named_parameters():
        np.testing.assert_allclose(
            p.grad.numpy(), dict(other.named_parameters())[name].grad.numpy(), rtol=1e-3, atol=1e-3
        )
