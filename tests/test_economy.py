"""How many nodes gradients add: to a perceptron, a convolutional network, a transformer, and single operators.

The limits are promises about the size of what is written, after the passes of the preset "training"; the benchmark
``benchmarks.gradient_peers`` sets them beside other tools'.
"""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphkit as gk
from graphkit import nn
from graphkit.optimizers import add_gradients, optimize
from models import gpt, mlp


class Loss:
    """A network with its loss, as one function to trace."""

    def __init__(self, model):
        self.model, self.named_tensors = model, model.named_tensors

    def __call__(self, x, labels):
        return nn.cross_entropy(self.model(x), labels)


def convolutions(*, pools):
    pool, strides = ([nn.MaxPool(2)], 1) if pools else ([], 2)
    return nn.Sequential(
        nn.Conv(3, 16, 3, padding=1), nn.relu, *pool, nn.Conv(16, 32, 3, padding=1, stride=strides), nn.relu, *pool,
        nn.Conv(32, 64, 3, padding=1, stride=strides), nn.relu, nn.flatten, nn.Linear(64 * 64, 10),
    )  # fmt: skip


IMAGE = gk.spec("float32", ["batch", 3, 32, 32])
# name: network, its input, the labels' dims, and how many nodes the gradients of all parameters may add
NETWORKS = {
    "mlp 256-512-512-10": (
        lambda: mlp.MLP((256, 512, 512, 10)), gk.spec("float32", ["batch", 256]), ["batch"], 24,
    ),
    "three strided convolutions": (lambda: convolutions(pools=False), IMAGE, ["batch"], 60),
    "three convolutions and pools": (lambda: convolutions(pools=True), IMAGE, ["batch"], 67),
    "transformer of two layers": (
        lambda: gpt.GPT(256, 128, 2, 4, 64), gk.spec("int64", ["batch", 64]), ["batch", 64], 250,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "x", "labels", "limit"), NETWORKS.values(), ids=NETWORKS.keys())
def test_networks(make, x, labels, limit):
    model = make()
    traced = gk.trace(Loss(model), x, gk.spec("int64", labels), output_names=["loss"])
    names = [name for name, _ in model.named_parameters()]
    before = optimize(traced, "training", verify=False)
    after = optimize(add_gradients(traced, "loss", names), "training", verify=False)
    assert len(after.graph) - len(before.graph) <= limit


# A weighted sum of one operator's result: the weights' product and the sum have to be gone through too.
OPERATORS = {
    "Mul": (lambda a, b: a * b, [(3, 4), (3, 4)], 2),
    "Mul of a row": (lambda a, b: a * b, [(3, 4), (4,)], 3),
    "MatMul": (lambda a, b: a @ b, [(3, 4), (4, 5)], 2),
    "Tanh": (gk.op.Tanh, [(3, 4)], 4),
    "Sigmoid": (gk.op.Sigmoid, [(3, 4)], 4),
    "Relu": (gk.op.Relu, [(3, 4)], 3),
    "Softmax": (gk.op.Softmax, [(3, 4)], 4),
    "LayerNormalization": (lambda x, w, b: gk.op.LayerNormalization(x, w, b), [(3, 8), (8,), (8,)], 14),
    "Transpose": (gk.op.Transpose, [(3, 4)], 1),
    "Concat": (lambda a, b: gk.op.Concat(a, b, axis=0), [(3, 4), (2, 4)], 2),
    "Gather": (lambda x: gk.op.Gather(x, np.array([0, 2, 0])), [(5, 4)], 6),
    "Conv": (lambda x, w: gk.op.Conv(x, w, pads=[1, 1, 1, 1]), [(2, 4, 6, 6), (3, 4, 3, 3)], 8),
    "depthwise Conv": (lambda x, w: gk.op.Conv(x, w, group=4), [(2, 4, 6, 6), (4, 1, 3, 3)], 6),
}  # fmt: skip


@pytest.mark.parametrize(("f", "shapes", "limit"), OPERATORS.values(), ids=OPERATORS.keys())
def test_operators(f, shapes, limit):
    result = f(*(gk.tensor(np.ones(s, np.float32)) for s in shapes))
    weights = np.cos(np.arange(result.numpy().size, dtype=np.float32)).reshape(result.shape)
    names = [f"x{n}" for n in range(len(shapes))]
    model = gk.trace(
        lambda *xs: (f(*xs) * gk.tensor(weights)).sum(), *(gk.spec("float32", list(s)) for s in shapes),
        input_names=names, output_names=["loss"],
    )  # fmt: skip
    before = optimize(model, "training", verify=False)
    after = optimize(add_gradients(model, "loss", names), "training", verify=False)
    assert len(after.graph) - len(before.graph) <= limit


def chain(links):
    """MatMul, Add, Tanh and a residual Add, over and over."""
    nodes, last = [], "x"
    for n in range(links):
        nodes += [
            helper.make_node("MatMul", [last, "w"], [f"m{n}"]),
            helper.make_node("Add", [f"m{n}", "b"], [f"a{n}"]),
            helper.make_node("Tanh", [f"a{n}"], [f"t{n}"]),
            helper.make_node("Add", [f"t{n}", last], [f"r{n}"]),
        ]
        last = f"r{n}"
    nodes.append(helper.make_node("ReduceMean", [last], ["loss"], keepdims=0))
    weights = [
        numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
        numpy_helper.from_array(np.zeros(4, np.float32), "b"),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    loss = helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "chain", [x], [loss], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_time_grows_with_the_number_of_nodes_and_no_faster():
    times = []
    for links in (250, 2000):
        model = chain(links)
        rounds = []
        for _ in range(2):
            started = time.process_time()
            made = add_gradients(model, "loss", ["w", "b"])
            rounds.append(time.process_time() - started)
        times.append(min(rounds) / links)
        assert len(made.graph.node) < 15 * links
    assert times[1] < 3 * times[0]
