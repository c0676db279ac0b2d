"""gk.export and gk.trace at older opsets: functions, gradients and the models of this repository, each file run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphkit as gk
from graphkit import nn
from models.gpt import GPT
from models.lenet import LeNet
from models.mlp import MLP
from models.resnet import ResNet

rng = np.random.default_rng(0)
X = rng.standard_normal((3, 4)).astype(np.float32)
WEIGHT = gk.tensor(rng.standard_normal((4, 4)).astype(np.float32), requires_grad=True)


def masked(x: Any) -> Any:
    return nn.softmax(gk.op.Where(gk.op.Trilu(x @ gk.op.Transpose(x)) == 0, -1e9, x @ gk.op.Transpose(x)))


def chosen(x: Any) -> Any:
    return gk.cond(x.sum() > 0, lambda y: gk.op.Clip(y, 0.0, 1.0), lambda y: y * 2.0, x)


def counted(x: Any) -> Any:
    return gk.scan(lambda s, row: (s + row, s * row), x[0] * 0.0, x)[1]


def loss(w: Any, x: Any) -> Any:
    return gk.op.ReduceMean(gk.op.Mish(x @ w) ** 2, keepdims=0)


FUNCTIONS: dict[str, tuple[Any, int]] = {
    "elementwise": (lambda x: gk.op.Clip(x * 2.0 + 1.0, -1.0, 1.0), 8),
    "reductions": (lambda x: x.sum(axis=1) + x.mean(axis=-1) + gk.op.ReduceL2(x, [1], keepdims=0), 7),
    "shapes": (lambda x: x.reshape(x.shape[0], 2, 2)[:, 0].sum(), 10),
    "activations": (lambda x: gk.op.Gelu(x) + gk.op.HardSwish(x) + gk.op.Mish(x) + gk.op.Celu(x), 9),
    "norms": (lambda x: gk.op.LayerNormalization(x, np.ones(4, np.float32)), 7),
    "splits": (lambda x: gk.op.Concat(*gk.op.Split(x, axis=1, num_outputs=2, outputs=2)[::-1], axis=1), 7),
    "masked": (masked, 11),
    "chosen": (chosen, 8),
    "counted": (counted, 10),
    "gradient": (lambda x: gk.grad(loss)(WEIGHT, x), 13),
}


def run(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def check(f: Any, x: Any, name: str, opsets: list[int], tmp_path: Path) -> None:
    dynamic = {name: {0: "batch"}}
    gk.export(f, {name: x}, tmp_path / "today.onnx", dynamic=dynamic, verify=False)
    larger = np.concatenate([x, x[:1]])
    for opset in opsets:
        path = tmp_path / f"{opset}.onnx"
        model = gk.export(f, {name: x}, path, dynamic=dynamic, opset=opset)
        proto = onnx.load(path)
        onnx.checker.check_model(proto, full_check=True)
        assert {entry.domain: entry.version for entry in proto.opset_import} == {"": opset}
        assert str(model.graph.inputs[0].shape).startswith("[batch")
        for feeds in ({name: x}, {name: larger}):
            for key, want in run(tmp_path / "today.onnx", feeds).items():
                np.testing.assert_allclose(run(path, feeds)[key], want, 2e-5, 2e-5, err_msg=f"opset {opset}")


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions(name: str, tmp_path: Path) -> None:
    f, since = FUNCTIONS[name]
    check(lambda x: f(x), X, "x", list(range(since, 27)), tmp_path)


@pytest.mark.parametrize("opset", [*range(13, 22), 26])
def test_models(opset: int, tmp_path: Path) -> None:
    nets: list[tuple[nn.Module, str, Any]] = [
        (MLP((16, 8, 4)), "x", rng.standard_normal((2, 16)).astype(np.float32)),
        (LeNet(), "x", rng.standard_normal((2, 784)).astype(np.float32)),
        (ResNet((4, 8)), "x", rng.standard_normal((2, 64)).astype(np.float32)),
        (GPT(vocabulary=11, width=16, layers=1, heads=2, context=8), "tokens", rng.integers(0, 11, (2, 8))),
    ]
    for net, name, x in nets:
        check(net, x, name, [opset], tmp_path)


@pytest.mark.parametrize(("make", "opset"), [(lambda: MLP((16, 8, 4)), 7), (lambda: ResNet((4, 8)), 10)])
def test_models_at_opsets_of_long_ago(make: Any, opset: int, tmp_path: Path) -> None:
    x = rng.standard_normal((2, 16 if opset == 7 else 64)).astype(np.float32)
    check(make(), x, "x", [opset], tmp_path)
