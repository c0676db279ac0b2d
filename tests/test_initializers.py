"""Initializers of every kind, sparse, text, 4-bit and 8-bit, come through reading, optimizing and writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import ModelFileError
from graphkit.modelfile import read_model, write_model


def rich() -> onnx.ModelProto:
    """Sparse (linear and by coordinates, in a body too), text, 4-bit and 8-bit initializers, each read by a node."""
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", 1, [3])],
        sparse_initializer=[sparse("inner", [3.0], [1], [3])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, [3])]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "coordinates"], ["m"]),
        helper.make_node("Add", ["m", "linear"], ["y"]),
        helper.make_node("If", ["p"], ["z"], then_branch=body, else_branch=other),
        helper.make_node("Identity", ["words"], ["text"]),
        helper.make_node("DequantizeLinear", ["four", "scale"], ["f"]),
        helper.make_node("Cast", ["eight"], ["g"], to=1),
    ]
    declared = helper.make_tensor_value_info
    tensors = [
        helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"\xc3\xa4"]),
        helper.make_tensor("four", TensorProto.INT4, [3], [-8, 7, 1]),
        helper.make_tensor("eight", TensorProto.FLOAT8E4M3FN, [3], [1.0, -2.0, 0.5]),
        helper.make_tensor("scale", 1, [], [0.5]),
    ]
    outputs = [declared(name, 1, [3]) for name in "yzfg"] + [declared("text", TensorProto.STRING, [2])]
    coordinates = sparse("coordinates", [1.0, 2.0], [[0, 1], [2, 2]], [3, 3])
    inputs = [declared("x", 1, [3]), declared("p", TensorProto.BOOL, [])]
    graph = helper.make_graph(
        nodes, "rich", inputs, outputs, tensors, sparse_initializer=[coordinates, sparse("linear", [5.0], [2], [3])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def sparse(name: str, values: list[float], indices: Any, dims: list[int]) -> onnx.SparseTensorProto:
    places = numpy_helper.from_array(np.array(indices, np.int64), f"{name}_places")
    return helper.make_sparse_tensor(numpy_helper.from_array(np.array(values, "f"), name), places, dims)


@pytest.mark.parametrize("kind", ["path", "proto", "model"])
def test_initializers_of_every_kind_come_through(kind: str, tmp_path: Path) -> None:
    given = rich()
    onnx.save(given, tmp_path / "in.onnx")
    source = {"path": tmp_path / "in.onnx", "proto": given, "model": read_model(given)}[kind]
    model = read_model(source)
    expected = np.zeros((3, 3), "f")
    expected[[0, 2], [1, 2]] = [1, 2]
    tensor = model.graph.initializers["coordinates"].const_value
    assert tensor is not None and np.array_equal(tensor.numpy(), expected) and tensor.nbytes < 100
    for optimized in (False, True):
        made = gk.optimize(model, verify=True, strict=True) if optimized else model
        write_model(made, tmp_path / "out.onnx")
        back = onnx.load(tmp_path / "out.onnx")
        onnx.checker.check_model(back)
        assert list(back.graph.sparse_initializer) == list(given.graph.sparse_initializer)
        then = next(a.g for n in back.graph.node if n.op_type == "If" for a in n.attribute if a.name == "then_branch")
        assert list(then.sparse_initializer) == [sparse("inner", [3.0], [1], [3])]
        assert {t.name: t for t in back.graph.initializer} == {t.name: t for t in given.graph.initializer}
        feeds = {"x": np.array([1, 2, 3], "f"), "p": np.array(True)}
        sessions = [
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
            for m in (given, back)
        ]
        for right, got in zip(*(session.run(None, feeds) for session in sessions), strict=True):
            np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize(
    ("made", "words"),
    {
        "outside": (sparse("k", [1.0], [3], [3]), r"'k' has indices outside its shape \[3\]"),
        "negative": (sparse("k", [1.0], [-1], [3]), "outside its shape"),
        "column": (sparse("k", [1.0], [[0, 3]], [3, 3]), "outside its shape"),
        "count": (sparse("k", [1.0, 2.0], [0], [3]), r"values of shape \[2\] and indices of shape \[1\]"),
        "rank": (sparse("k", [1.0], [[0, 0]], [3]), r"indices of shape \[1, 2\]"),
        "nameless": (sparse("", [1.0], [0], [3]), "a sparse initializer has no name"),
    }.values(),
)
def test_damaged_sparse_initializers(made: onnx.SparseTensorProto, words: str) -> None:
    model = rich()
    model.graph.sparse_initializer.append(made)
    with pytest.raises(ModelFileError, match=words):
        read_model(model)


def test_the_types_of_initializers_are_written_once(tmp_path: Path) -> None:
    model = rich()
    write_model(model, tmp_path / "m.onnx")
    assert not onnx.load(tmp_path / "m.onnx").graph.value_info
    assert (tmp_path / "m.onnx").stat().st_size == len(model.SerializeToString())
