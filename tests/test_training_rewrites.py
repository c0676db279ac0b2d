"""What makes training graphs cheaper changes nothing that they compute."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit import nn, optim
from graphkit.errors import GraphkitError
from graphkit.training import build
from models import gpt, lenet, mlp, resnet

MODELS = {
    "mlp": (lambda: mlp.MLP((20, 16, 5)), lambda rng: rng.normal(size=(8, 20)).astype("f"), 5),
    "lenet": (lenet.LeNet, lambda rng: rng.uniform(size=(4, 784)).astype("f"), 10),
    "resnet": (lambda: resnet.ResNet((4, 8)), lambda rng: rng.uniform(size=(4, 784)).astype("f"), 10),
    "gpt": (lambda: gpt.GPT(64, 32, 2, 4, 16), lambda rng: rng.integers(0, 64, (4, 16)), 64),
}
RULES = {
    "sgd": lambda: optim.SGD(0.01),
    "decay": lambda: optim.SGD(0.01, weight_decay=0.3),
    "momentum": lambda: optim.SGD(0.01, 0.9),
    "nesterov": lambda: optim.SGD(0.01, 0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda: optim.Adam(0.001, weight_decay=0.1),
    "adamw": lambda: optim.AdamW(0.001, clip_norm=1.0),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_optimized_and_not(name, rule):
    make, data, classes = MODELS[name]
    gk.random.seed(0)
    model = make()
    rng = np.random.default_rng(0)
    x = data(rng)
    labels = rng.integers(0, classes, x.shape if x.dtype.kind == "i" else x.shape[:1])
    inputs = {"x": gk.spec(x.dtype, ["batch", *x.shape[1:]])}
    graphs = [build(model, "cross_entropy", RULES[rule](), inputs=inputs, optimize=o) for o in (True, False)]
    assert len(graphs[0].train.graph) < len(graphs[1].train.graph)
    trainers = [gk.Trainer(g, threads=1) for g in graphs]
    for _ in range(5):
        one, two = (t.step({"x": x, "labels": labels})["loss"] for t in trainers)
        np.testing.assert_allclose(one, two, rtol=1e-5)


def test_an_update_is_inside_the_product():
    graph = build(mlp.MLP((20, 16, 5)), "cross_entropy", optim.SGD(0.5), inputs={"x": gk.spec("float32", ["n", 20])})
    made = {str(v.name): v.producer() for v in graph.train.graph.outputs}
    for layer in (0, 1):
        gemm = made[f"layers.{layer}.weight.next"]
        assert (gemm.op_type, gemm.inputs[2].name) == ("Gemm", f"layers.{layer}.weight")
        assert gemm.attributes["alpha"].as_float() == -0.5


def test_a_gradient_that_is_read_twice_stays():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {p = MatMul(x, w) y = Tanh(p)}""")
    graph = build(model, "mse", optim.SGD(0.1, clip_norm=1.0))
    plain = build(model, "mse", optim.SGD(0.1, clip_norm=1.0), optimize=False)
    batch = {"x": np.ones((3, 2), "f"), "labels": np.zeros((3, 2), "f")}
    states = []
    for g in (graph, plain):
        trainer = gk.Trainer(g)
        for _ in range(3):
            trainer.step(batch)
        states.append(trainer.state()["w"])
    np.testing.assert_allclose(states[0], states[1], rtol=1e-6)


class Masked(nn.Module):
    """One row of scores by a parameter, with a mask that is added."""

    def __init__(self, mask):
        self.weight = gk.tensor(np.linspace(-3, 3, 16).reshape(4, 4).astype("f"), requires_grad=True)
        self.values = gk.tensor(np.arange(16, dtype="f").reshape(4, 4), requires_grad=True)
        self.mask = mask

    def forward(self, x):
        scores = x @ self.weight + gk.tensor(self.mask)
        return nn.softmax(scores) @ self.values


LOW = np.triu(np.ones((4, 4)), 1)
MASKS = {
    "-1e9": (LOW * -1e9).astype("f"),
    "-inf": np.where(LOW, -np.inf, 0).astype("f"),
    "-100": (LOW * -100).astype("f"),
    "small": (LOW * -3).astype("f"),
    "everything alike": np.full((4, 4), -1e4, "f"),
}


@pytest.mark.parametrize("scale", [1.0, 30.0, -30.0])
@pytest.mark.parametrize("name", MASKS)
def test_a_masked_softmax_is_what_it_was(name, scale):
    model = Masked(MASKS[name])
    x = (np.random.default_rng(0).normal(size=(2, 4, 4)) * scale).astype("f")
    inputs = {"x": gk.spec("float32", ["n", 4, 4])}
    graphs = [build(model, "mse", optim.SGD(1e-4), inputs=inputs, optimize=o) for o in (True, False)]
    raised = any(node.op_type == "Max" for node in graphs[0].train.graph)
    assert raised == (name in ("-1e9", "-inf", "-100"))
    labels = np.zeros((2, 4, 4), "f")
    trainers = [gk.Trainer(g, threads=1) for g in graphs]
    for _ in range(3):
        one, two = (t.step({"x": x, "labels": labels})["loss"] for t in trainers)
        np.testing.assert_allclose(one, two, rtol=1e-5)
    one, two = (t.state() for t in trainers)
    for key in one:
        np.testing.assert_allclose(one[key], two[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_operator_is_written_out(reduction):
    loss = lambda outputs, labels: nn.cross_entropy(outputs, labels, reduction=reduction)
    inputs = {"x": gk.spec("float32", ["n", 20])}
    labels = gk.spec("int64", ["n"])
    graph = build(mlp.MLP((20, 16, 5)), loss, optim.SGD(0.01), inputs=inputs, labels=labels)
    assert not any(node.op_type == "SoftmaxCrossEntropyLoss" for node in graph.train.graph)
    session = gk.runtime.Session(graph.train)
    x = np.zeros((2, 20), "f")
    with pytest.raises(GraphkitError, match="out of data bounds"):  # a label out of range
        session.run(graph.state | {"x": x, "labels": np.array([0, 5])})


def test_ignored_labels_keep_the_operator():
    loss = lambda outputs, labels: nn.cross_entropy(outputs, labels, ignore_index=-1)
    model = mlp.MLP((20, 16, 5))
    graph = build(
        model, loss, optim.SGD(0.1), inputs={"x": gk.spec("float32", ["n", 20])}, labels=gk.spec("int64", ["n"])
    )
    x = np.random.default_rng(0).normal(size=(4, 20)).astype("f")
    found = gk.Trainer(graph).step({"x": x, "labels": np.array([1, -1, 3, -1])})["loss"]
    expected = nn.cross_entropy(model(x[[0, 2]]), np.array([1, 3])).item()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
