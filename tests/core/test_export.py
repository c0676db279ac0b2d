"""gk.export: proved before it is written, whole or not at all, with the dims, names, opset and vectors asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit import modelfile
from graphkit.errors import ModelFileError, OperatorError, TraceError, VerificationError
from graphkit.exporters import check_test_vectors, read_test_vectors
from graphkit.modelfile import read_model, write_model
from graphkit.optimizers import add_gradients
from graphkit.runtime import run

F = np.float32
X = np.arange(6, dtype=F).reshape(2, 3)


class Affine:
    """What a module looks like to an export."""

    def __init__(self, width: int = 4) -> None:
        rng = np.random.default_rng(0)
        self.weight = gk.tensor(rng.normal(size=(3, width)).astype(F), requires_grad=True)
        self.bias = gk.tensor(rng.normal(size=width).astype(F), requires_grad=True)
        self.training = True

    def named_tensors(self) -> Any:
        return [("affine.weight", self.weight), ("affine.bias", self.bias)]

    def eval(self) -> None:
        self.training = False

    def train(self) -> None:
        self.training = True

    def __call__(self, x: Any) -> Any:
        return gk.op.Tanh(x @ self.weight + self.bias) * (2.0 if self.training else 1.0)


def test_a_module_is_written_for_inference_under_its_own_names(tmp_path: Path) -> None:
    module = Affine()
    path = tmp_path / "affine.onnx"
    returned = gk.export(module, X, path, dynamic={"x": {0: "batch"}}, input_names=["x"])
    assert module.training
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert {"affine.bias", "affine.weight"} < {i.name for i in proto.graph.initializer}
    assert [i.name for i in proto.graph.input] == ["x"]
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert (proto.opset_import[0].version, proto.ir_version) == (21, 10)
    module.eval()
    for batch in (1, 2, 7):
        x = np.linspace(-1, 1, batch * 3, dtype=F).reshape(batch, 3)
        for model in (path, returned):
            (got,) = run(model, {"x": x}).values()
            np.testing.assert_allclose(got, module(gk.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["affine.onnx"]


DYNAMIC: list[tuple[Any, list[Any]]] = [
    (None, [2, 3]), ({"x": {0: "n"}}, ["n", 3]), ({"x": {-1: "m"}}, [2, "m"]), ({"x": ["n", "m"]}, ["n", "m"]),
    ({"x": [None, "m"]}, [2, "m"]), ({}, [2, 3]),
]  # fmt: skip


@pytest.mark.parametrize(("dynamic", "expected"), DYNAMIC)
def test_dynamic_axes(dynamic: Any, expected: list[Any], tmp_path: Path) -> None:
    model = gk.export(lambda x: x * 2.0, X, tmp_path / "m.onnx", dynamic=dynamic)
    assert [d if isinstance(d, int) else d.value for d in model.graph.inputs[0].shape or ()] == expected
    assert [d if isinstance(d, int) else d.value for d in model.graph.outputs[0].shape or ()] == expected


@pytest.mark.parametrize(
    "args",
    [X, (X,), {"x": X}, gk.tensor(X), gk.spec("float32", [2, 3])],
    ids=["array", "tuple", "dict", "tensor", "spec"],
)
def test_ways_to_give_the_example(args: Any, tmp_path: Path) -> None:
    gk.export(lambda x: x + 1.0, args, tmp_path / "m.onnx")
    (got,) = run(tmp_path / "m.onnx", {"x": X}).values()
    np.testing.assert_array_equal(got, X + 1)


def test_names_of_inputs_and_outputs(tmp_path: Path) -> None:
    gk.export(
        lambda a, b: (a + b, a * b),
        (X, X),
        tmp_path / "m.onnx",
        input_names=["left", "right"],
        output_names=["sum", "product"],
    )
    got = run(tmp_path / "m.onnx", {"left": X, "right": X})
    assert list(got) == ["sum", "product"]


@pytest.mark.parametrize("opset", [7, 12, 17, 21, 23, 26])
def test_the_opset_is_kept(opset: int, tmp_path: Path) -> None:
    gk.export(lambda x: gk.op.Relu(x), X, tmp_path / "m.onnx", opset=opset)
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == opset


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda p: gk.export(lambda x: gk.op.BitwiseNot(gk.op.Cast(x, to="int32")), X, p, opset=17), OperatorError,
        "BitwiseNot at .*needs opset 18"),
    (lambda p: gk.export(lambda x: x if x.sum() > 0 else -x, X, p), TraceError, "a truth test"),
    (lambda p: gk.export(lambda x: x.reshape(2, 3), X, p, dynamic={"x": {0: "n"}}), VerificationError,
     "fails for n = 3.*Reshape"),
    (lambda p: gk.export(lambda x: x, X, p, dynamic={"y": {0: "n"}}), TraceError,
        "dynamic names 'y', no input; the inputs are x"),
    (lambda p: gk.export(lambda x: x, X, p, dynamic={"x": {2: "n"}}), TraceError,
        "dynamic names axis 2 of 'x', which has rank 2"),
    (lambda p: gk.export(lambda x: x, X, p, dynamic={"x": ["n"]}), TraceError, "dynamic names 1 axes of 'x'"),
    (lambda p: gk.export(lambda x: x, X, p, output_names=["x"]), TraceError, "names an output and an input"),
    (lambda p: gk.export(lambda x: x, {"x": X}, p, input_names=["y"]), TraceError, "its keys are the input names"),
    (lambda p: gk.export(lambda x: None, X, p), TraceError, "returned nothing"),
    (lambda p: gk.export(lambda x: x @ np.ones((4, 2), F), X, p), OperatorError, "MatMul.*inner dimensions"),
    (lambda p: gk.export(lambda x: x * 2.0, X, p.parent / "no" / "m.onnx"), ModelFileError, "folder .* does not exist"),
    (lambda p: gk.export(lambda x: x * 2.0, X, p.parent), ModelFileError, "is a folder; name a file in it"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "kind", "message"), REFUSED)
def test_a_failed_export_keeps_the_old_file(attempt: Any, kind: type[Exception], message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"the old file")
    with pytest.raises(kind, match=message):
        attempt(path)
    assert path.read_bytes() == b"the old file"
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_verification_catches_a_function_that_does_not_repeat_itself(tmp_path: Path) -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return x * float(len(calls))

    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    with pytest.raises(VerificationError, match="does not compute what the function does"):
        gk.export(f, X, path)
    assert path.read_bytes() == b"old"
    gk.export(f, X, path, verify=False)
    assert path.read_bytes() != b"old"


def test_verification_tries_other_sizes_of_dynamic_axes(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        return x * (2.0 if x.traced or x.shape[0] == 2 else 3.0)

    gk.export(f, X, tmp_path / "fixed.onnx")  # right for the one size there is
    with pytest.raises(VerificationError):
        gk.export(f, X, tmp_path / "m.onnx", dynamic={"x": {0: "n"}})


def test_a_write_that_dies_half_way_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    gk.export(lambda x: x + 1.0, X, path)
    before = path.read_bytes()

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ModelFileError, match=r"No space left on device.*the file that was there is unchanged"):
        gk.export(lambda x: x + 2.0, X, path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_large_weights_go_beside_the_file_and_come_back(tmp_path: Path) -> None:
    module = Affine(400)
    model = gk.trace(module, gk.spec("float32", ["n", 3]), input_names=["x"])
    path = tmp_path / "m.onnx"
    write_model(model, path, external_above=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert path.stat().st_size < 1500
    expected = next(iter(run(model, {"x": X}).values()))
    np.testing.assert_array_equal(next(iter(run(path, {"x": X}).values())), expected)
    np.testing.assert_allclose(gk.load(path)(X).numpy(), expected, rtol=1e-6)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(ModelFileError, match=r"m\.onnx\.data"):
        gk.load(path)


def test_weights_below_the_threshold_stay_inside(tmp_path: Path) -> None:
    write_model(gk.trace(Affine(), gk.spec("float32", ["n", 3])), tmp_path / "m.onnx", external_above=1000)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert modelfile.lowest_ir_version(read_model(tmp_path / "m.onnx")) == 10


# Test vectors


def test_vectors_with_gradients_round_trip(tmp_path: Path) -> None:
    module = Affine()
    module.weight.grad = gk.tensor(np.ones((3, 4), F))
    model = gk.export(module, X, tmp_path / "m.onnx", input_names=["x"], output_names=["y"], test_vectors=True)
    assert module.weight.grad.tolist() == np.ones((3, 4)).tolist()  # the user's gradients are left alone
    vectors = read_test_vectors(tmp_path / "test_data_set_0")
    assert (list(vectors.inputs), list(vectors.outputs)) == (["x"], ["y"])
    assert sorted(vectors.gradients) == ["affine.bias_grad", "affine.weight_grad", "x_grad"]
    np.testing.assert_array_equal(vectors.inputs["x"], X)
    module.eval()
    module.weight.grad = None
    x = gk.tensor(X, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(vectors.gradients["x_grad"], x.grad.numpy(), rtol=1e-6)
    np.testing.assert_allclose(vectors.gradients["affine.weight_grad"], module.weight.grad.numpy(), rtol=1e-6)
    check_test_vectors(tmp_path / "m.onnx", tmp_path / "test_data_set_0")
    total = gk.trace(lambda x: gk.load(model)(x).sum(), gk.spec("float32", [2, 3]), output_names=["total"])
    (_, gradient) = run(add_gradients(total, of="total", wrt=["x"]), {"x": X}).values()
    np.testing.assert_allclose(gradient, vectors.gradients["x_grad"], rtol=1e-6)


def test_vectors_that_a_model_does_not_reproduce(tmp_path: Path) -> None:
    gk.export(lambda x: x * 2.0, X, tmp_path / "m.onnx", test_vectors=True)
    gk.export(lambda x: x * 3.0, X, tmp_path / "other.onnx")
    with pytest.raises(VerificationError, match="does not give the outputs in"):
        check_test_vectors(tmp_path / "other.onnx", tmp_path / "test_data_set_0")


def test_a_function_of_integers_exports_and_is_verified(tmp_path: Path) -> None:
    table = np.arange(12, dtype=F).reshape(4, 3)
    gk.export(
        lambda ids: gk.op.Gather(table, ids),
        np.array([[0, 3]]),
        tmp_path / "m.onnx",
        dynamic={"ids": {1: "time"}},
        test_vectors=True,
    )
    (got,) = run(tmp_path / "m.onnx", {"ids": np.array([[1, 1, 2]])}).values()
    np.testing.assert_array_equal(got, table[[[1, 1, 2]]])
