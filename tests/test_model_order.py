"""Nodes out of order are put in order; nodes that read one another in a circle are named."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import graphkit as gk
from graphkit.errors import ModelFileError
from graphkit.modelfile import read_model
from graphkit.optimizers import add_gradients, optimize


def _model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2]), ("y", None)))
    graph = helper.make_graph(list(nodes), "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


UNSORTED = _model(
    helper.make_node("Relu", ["p"], ["q"], name="b"),
    helper.make_node("ReduceSum", ["q"], ["y"], keepdims=0),
    helper.make_node("Add", ["x", "x"], ["p"], name="a"),
)
CYCLIC = _model(
    helper.make_node("Neg", ["x"], ["z"], name="before"),
    helper.make_node("Add", ["z", "q"], ["p"], name="a"),
    helper.make_node("Relu", ["p"], ["q"], name="b"),
    helper.make_node("Abs", ["q"], ["y"], name="behind"),
)


def test_nodes_out_of_order_are_put_in_order() -> None:
    before = UNSORTED.SerializeToString()
    with_gradient = add_gradients(UNSORTED, of="y", wrt=["x"])
    assert UNSORTED.SerializeToString() == before
    got = gk.run(with_gradient, {"x": np.array([1.0, -1.0], "f")})
    np.testing.assert_array_equal(got["x_grad"], [2, 0])
    assert optimize(UNSORTED).graph.node[0].op_type == "Add"
    assert [n.op_type for n in read_model(ir.from_proto(UNSORTED)).graph] == ["Add", "Relu", "ReduceSum"]


@pytest.mark.parametrize("kind", ["proto", "model", "file"])
def test_a_circle_is_named(kind: str, tmp_path) -> None:
    path = tmp_path / "circle.onnx"
    path.write_bytes(CYCLIC.SerializeToString())
    source = {"proto": CYCLIC, "model": ir.from_proto(CYCLIC), "file": path}[kind]
    with pytest.raises(ModelFileError, match="circle") as caught:
        read_model(source)
    message = str(caught.value)
    assert "a, b" in message or "b, a" in message
    assert "before" not in message
    assert "behind" not in message
    assert kind != "file" or "circle.onnx" in message
