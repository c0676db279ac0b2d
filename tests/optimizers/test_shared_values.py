"""A value that very many nodes read costs no more for each of them than one that few do."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import graphkit.optimizers


def shared(count, operator):
    """A chain whose every link also reads the result of one node."""
    operators = ["Add", "Mul", "Tanh", "Sub", "Max"]
    nodes, last = [helper.make_node(operator, ["s0"], ["s"])], "x"
    for n in range(count):
        kind = operators[n % len(operators)]
        nodes.append(helper.make_node(kind, [last] if kind == "Tanh" else [last, "s"], [f"v{n}"]))
        last = f"v{n}"
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in ("x", "s0", last)]
    graph = helper.make_graph(nodes, "shared", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("operator", ["Sigmoid", "Transpose", "Relu"])
def test_readers_of_one_value_are_looked_at_a_few_times_each(monkeypatch, operator):
    count, seen = 2000, 0
    uses = ir.Value.uses

    def counted(self):
        nonlocal seen
        found = uses(self)
        seen += len(found)
        return found

    monkeypatch.setattr(ir.Value, "uses", counted)
    graphkit.optimizers.optimize(shared(count, operator), verify=False)
    assert seen < 50 * count
