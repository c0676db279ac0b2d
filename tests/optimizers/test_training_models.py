"""Whole training graphs through the preset "training": the same losses, fewer nodes, and all that training needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit.optimizers import Report, optimize
from models import gpt, lenet, lstm, mlp, resnet

IMAGES = lambda rng: rng.uniform(size=(4, 784)).astype("f")
MODELS = {
    "mlp": (lambda: mlp.MLP((784, 16, 10)), IMAGES, 10),
    "lenet": (lenet.LeNet, IMAGES, 10),
    "resnet": (lambda: resnet.ResNet((4, 8)), IMAGES, 10),
    "gpt": (lambda: gpt.GPT(64, 32, 2, 4, 16), lambda rng: rng.integers(0, 64, (4, 16)), 64),
    "lstm": (lambda: lstm.Rows(8), IMAGES, 10),
    "dropout": (
        lambda: gk.nn.Sequential(gk.nn.Linear(784, 16), gk.nn.relu, gk.nn.Dropout(0.5), gk.nn.Linear(16, 10)),
        IMAGES,
        10,
    ),
}
STEPS = 50


def built(name: str) -> tuple[gk.training.TrainingGraph, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    make, data, classes = MODELS[name]
    gk.random.seed(0)
    rng = np.random.default_rng(0)
    x = data(rng)
    labels = rng.integers(0, classes, x.shape if x.dtype.kind == "i" else x.shape[:1])
    inputs = {"x": gk.spec(x.dtype, ["batch", *x.shape[1:]])}
    rule = gk.optim.AdamW(1e-3)
    return gk.training.build(make(), "cross_entropy", rule, inputs=inputs, optimize=False), x, labels


def losses(model: ir.Model, graph: gk.training.TrainingGraph, batch: Mapping[str, Any]) -> list[float]:
    session = gk.runtime.Session(model, threads=1)
    state = dict(graph.state)
    found = []
    for _ in range(STEPS):
        outputs = session.run(state | batch)
        found.append(float(outputs["loss"]))
        state = {name: outputs[graph.pairs[name]] for name in state}
    return found


@pytest.mark.parametrize("name", MODELS)
def test_fifty_steps(name):
    graph, x, labels = built(name)
    report = Report()
    smaller = optimize(graph.train, "training", verify=False, report=report)
    assert len(list(smaller.graph.all_nodes())) < len(list(graph.train.graph.all_nodes()))
    assert [v.name for v in smaller.graph.inputs] == [v.name for v in graph.train.graph.inputs]
    assert [v.name for v in smaller.graph.outputs] == [v.name for v in graph.train.graph.outputs]
    assert set(graph.pairs.values()) <= {v.name for v in smaller.graph.outputs}
    drawn = [node.op_type for node in graph.train.graph.all_nodes() if node.op_type in ("Dropout", "RandomUniformLike")]
    assert sorted(drawn) == sorted(n.op_type for n in smaller.graph.all_nodes() if n.op_type in set(drawn))
    batch = {"x": x, "labels": labels}
    before, after = losses(graph.train, graph, batch), losses(smaller, graph, batch)
    np.testing.assert_allclose(after, before, rtol=1e-5)
    assert before[-1] < before[0]


def test_the_names_and_first_values_of_the_state_stay():
    graph, _, _ = built("mlp")
    smaller = optimize(graph.train, "training", verify=False)
    weights = {name for name in graph.state if "weight" in name or "bias" in name}
    assert len(weights) == 12  # each with two moments
    assert weights <= {value.name for value in smaller.graph.inputs}
