"""The graph interpreter: nodes, captures, records of graphs that exist, and types that are never guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit import dims, interpreter
from graphkit.dtypes import FLOAT32, INT64
from graphkit.errors import TraceError
from graphkit.graph import STOP, Graph
from graphkit.inference import Misfit, Type, infer
from graphkit.runtime import run

F = np.float32


def fresh() -> tuple[Graph, Any]:
    graph = Graph()
    return graph, graph.input("x", "float32", ["n", 3])


# Nodes and records


def test_an_applied_operator_is_a_node_a_record_and_its_line() -> None:
    graph, x = fresh()
    with interpreter.using(graph):
        y = gk.op.LeakyRelu(x, alpha=0.5)
    (node,) = graph.graph
    assert (node.op_type, node.attributes["alpha"].value) == ("LeakyRelu", 0.5)
    assert y.value is node.outputs[0]
    record = y.record
    assert record is not None
    assert (record.op, record.inputs, record.outputs) == ("LeakyRelu", (x,), (y,))
    assert record.attribute("alpha") == 0.5
    assert record.describe().startswith("LeakyRelu (")
    assert "test_graph.py:" in record.describe()
    assert repr(record).startswith("<Record LeakyRelu")
    assert (y.dtype, y.dims) == (FLOAT32, ("n", 3))


def test_records_fall_back_on_the_schemas_defaults() -> None:
    graph, x = fresh()
    with interpreter.using(graph):
        record = gk.op.Elu(x).record
    assert record.attribute("alpha") == 1.0
    assert record.attribute("nothing", 7) == 7
    assert record.input(0) is x
    assert record.input(5) is None


def test_names_are_unique_and_say_what_made_them() -> None:
    graph, x = fresh()
    with interpreter.using(graph):
        for _ in range(3):
            x = gk.op.Relu(x)
    assert [n.outputs[0].name for n in graph.graph] == ["relu", "relu_1", "relu_2"]
    assert len({n.name for n in graph.graph}) == 3


def test_stop_gradient_is_marked_in_the_file() -> None:
    model = gk.trace(lambda x: gk.stop_gradient(x) * x, gk.spec("float32", [2]))
    again = ir.from_proto(ir.to_proto(model))
    assert [STOP in n.metadata_props for n in again.graph] == [True, False]


def test_a_misfit_leaves_no_node_behind() -> None:
    graph, x = fresh()
    with interpreter.using(graph), pytest.raises(ValueError, match="do not broadcast"):
        x + np.ones(4, F)
    assert len(graph.graph) == 0


# Captures


def test_eager_tensors_become_initializers_once_each_by_identity() -> None:
    graph, x = fresh()
    a, b = gk.tensor(np.ones(3, F)), gk.tensor(np.ones(3, F))
    with interpreter.using(graph):
        x * a + x * b + x * a
    assert list(graph.graph.initializers) == ["weight", "weight_1"]


def test_literals_are_shared_by_value_and_by_identity_when_large() -> None:
    graph, x = fresh()
    large = gk.array.asarray([1.0] * 300)
    with interpreter.using(graph):
        x * 2.0 + 2.0 + gk.op.Reshape(large, [100, 3])[:1] + gk.op.Reshape(large, [100, 3])[1:2]
    sizes = sorted(v.const_value.size for v in graph.graph.initializers.values() if v.const_value is not None)
    assert sizes.count(300) == 1
    assert [v.name for v in graph.graph.initializers.values()].count("constant") == 1


def test_parameters_are_what_requires_a_gradient_or_has_a_path() -> None:
    w, c = gk.tensor(np.ones(3, F), requires_grad=True, name="w"), gk.tensor(np.ones(3, F), name="c")
    graph = Graph(names={id(c): "layer.c"})
    x = graph.input("x", "float32", [3])
    with interpreter.using(graph):
        x * w + c + np.ones(3, F)
    assert list(graph.parameters) == ["w", "layer.c"]
    assert {n for n, _ in graph.parameters_and_buffers()} == {"w", "layer.c", "weight"}


def test_a_nested_graph_reads_outer_values_and_keeps_constants_outside() -> None:
    graph, x = fresh()
    with interpreter.using(graph):
        y = gk.cond(x.sum() > 0, lambda: x * 2.0, lambda: x - 1.0)
    assert y.record is not None
    assert y.record.captured == 1 + 2  # x, and the two constants
    assert y.record.inputs[1] is x
    assert len(graph.graph.initializers) == 3


def test_assigning_in_a_trace_gives_the_next_state_and_later_reads_see_it() -> None:
    counter = gk.tensor(0.0, name="counter")
    graph, x = fresh()
    with interpreter.using(graph):
        counter.assign(counter + 1.0)
        y = x * counter
    ((target, new),) = graph.updates.values()
    assert target is counter
    assert y.record is not None
    assert y.record.inputs[1] is new
    assert counter.item() == 0.0


# Graphs that exist

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[batch,3] x) => (float[batch,2] y)
  <float[3,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> { h = MatMul(x, w) y = Tanh(h) }"""


def test_adopting_a_graph_makes_a_record_of_every_node() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    graph = Graph.adopt(model)
    records = [graph.tensor(n.outputs[0]).record for n in model.graph]
    assert [r.op for r in records if r is not None] == ["MatMul", "Tanh"]
    y = graph.tensor(model.graph.outputs[0])
    assert y.dims == ("batch", 2)
    assert graph.unique("h") == "h_1"
    with interpreter.using(graph):
        z = gk.op.Neg(y)
    assert z.dims == ("batch", 2)
    assert len(model.graph) == 3


def test_what_a_file_declares_is_believed_only_where_nothing_else_is_known() -> None:
    text = TEXT.replace("float[batch,2] y", "float[7,9] y")
    graph = Graph.adopt(ir.from_proto(onnx.parser.parse_model(text)))
    assert graph.tensor(graph.graph.outputs[0]).dims == ("batch", 2)
    text = '<ir_version: 10, opset_import: ["": 21, "acme": 1]> g (float[n] x) => (float[n,5] y) { y = acme.Odd(x) }'
    graph = Graph.adopt(ir.from_proto(onnx.parser.parse_model(text)))
    assert graph.tensor(graph.graph.outputs[0]).dims == ("n", 5)


def test_unnamed_dims_of_a_file_are_different_unknowns() -> None:
    text = TEXT.split(" g ", maxsplit=1)[0] + " g (float[?] b, float[?] c) => (float[?] y) { y = Concat<axis=0>(b, c) }"
    graph = Graph.adopt(ir.from_proto(onnx.parser.parse_model(text)))
    b, c = (graph.tensor(v) for v in graph.graph.inputs)
    assert dims.same_dims(b.dims, c.dims) is None


def test_a_tensor_of_unknown_rank_says_so() -> None:
    text = '<ir_version: 10, opset_import: ["": 21, "acme": 1]> g (float[n] x) => (float y) { y = acme.Odd(x) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.outputs[0].shape = None
    y = Graph.adopt(model).tensor(model.graph.outputs[0])
    assert y.dims is None
    with pytest.raises(TraceError, match=r"x\.ndim needs the rank of y, which is unknown"):
        _ = y.ndim


# Types, node by node


def t(dtype: Any, *shape: Any, contents: Any = None) -> Type:
    return Type(gk.dtypes.as_dtype(dtype), None if shape == (None,) else shape, contents)


def ints(*values: Any) -> Type:
    return Type(INT64, (len(values),), tuple(values))


INFERRED: list[tuple[str, dict[str, Any], list[Type | None], Any, Any]] = [
    # operator, attributes, inputs -> dims ("?" for unknown), contents
    ("Relu", {}, [t("float32", "n", 3)], ("n", 3), None),
    ("Add", {}, [t("float32", "n", 1), t("float32", 3)], ("n", 3), None),
    ("Add", {}, [t("float32", "n"), t("float32", "m")], ("?",), None),
    ("Add", {}, [t("float32", None), t("float32", "m")], None, None),
    ("Shape", {}, [t("float32", "n", 3)], (2,), ("n", 3)),
    ("Shape", {"start": 1}, [t("float32", "n", 3)], (1,), (3,)),
    ("Shape", {"start": -1, "end": 2}, [t("float32", "n", 3)], (1,), (3,)),
    ("Size", {}, [t("float32", "n")], (), "n"),
    ("Gather", {}, [ints("n", 3), t("int64", contents=0)], (), "n"),
    ("Gather", {}, [ints("n", 3), t("int64", contents=-1)], (), 3),
    ("Unsqueeze", {}, [t("int64", contents="n"), ints(0)], (1,), ("n",)),
    ("Concat", {"axis": 0}, [ints("n"), ints(-1)], (2,), ("n", -1)),
    ("Slice", {}, [ints("n", 3, 5), ints(1), ints(3)], (2,), (3, 5)),
    ("Slice", {}, [ints("n", 3, 5), ints(-1), ints(9223372036854775807)], (1,), (5,)),
    ("Mul", {}, [ints("n"), ints(1)], (1,), ("n",)),
    ("Mul", {}, [ints(2, 3), ints(4)], (2,), (8, 12)),
    ("Div", {}, [ints(-7), ints(2)], (1,), (-3,)),
    ("Mod", {}, [ints(-1, 7), ints(3)], (2,), (2, 1)),
    ("Mod", {"fmod": 1}, [ints(-1), ints(3)], (1,), None),
    ("Reshape", {}, [t("float32", "n", 2, 3), ints("n", -1)], ("n", 6), None),
    ("Reshape", {}, [t("float32", "n", 2, 3), ints(0, -1)], ("n", 6), None),
    ("Reshape", {}, [t("float32", "n", 2, 3), ints(-1, 2)], ("?", 2), None),
    ("Reshape", {"allowzero": 1}, [t("float32", 0, 3), ints(3, 0)], (3, 0), None),
    ("Reshape", {}, [t("float32", "n", 3), t("int64", 2)], ("?", "?"), None),
    ("Reshape", {}, [t("float32", "n", 3), t("int64", "k")], None, None),
    ("Expand", {}, [t("float32", 1, 3), ints("n", 1)], ("n", 3), None),
    ("ConstantOfShape", {}, [ints("n", 4)], ("n", 4), None),
    ("MatMul", {}, [t("float32", "n", 3), t("float32", 3, 5)], ("n", 5), None),
    ("MatMul", {}, [t("float32", "b", 1, "n", 3), t("float32", 4, 3, 5)], ("b", 4, "n", 5), None),
    ("MatMul", {}, [t("float32", 3), t("float32", 3)], (), None),
    ("Gemm", {"transA": 1}, [t("float32", 3, "n"), t("float32", 3, 5)], ("n", 5), None),
    ("Transpose", {"perm": [1, 0]}, [t("float32", "n", "m")], ("m", "n"), None),
    ("Transpose", {}, [t("float32", "n", "m", 2)], (2, "m", "n"), None),
    ("Cast", {"to": 7}, [t("float32", "n")], ("n",), None),
    ("ReduceSum", {"keepdims": 0}, [t("float32", "n", 3), ints(1)], ("n",), None),
    ("Conv", {"kernel_shape": [3, 3]}, [t("float32", "n", 3, 8, 8), t("float32", 4, 3, 3, 3)], ("n", 4, 6, 6), None),
    ("NonZero", {}, [t("bool", "n")], (1, "?"), None),
    ("Equal", {}, [t("float32", "n"), t("float32", 1)], ("n",), None),
    ("Where", {}, [t("bool", 3), t("float32", "n", 1), t("float32", 1)], ("n", 3), None),
    ("Split", {"num_outputs": 2, "axis": 1}, [t("float32", "n", 4)], ("n", 2), None),
    ("Concat", {"axis": 1}, [t("float32", "n", 2), t("float32", "n", 3)], ("n", 5), None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "expected", "contents"),
    INFERRED,
    ids=[f"{n}-{i[0]}" for n, i in enumerate(INFERRED)],
)
def test_types_are_inferred_and_never_guessed(
    op: str, attributes: dict[str, Any], inputs: list[Type | None], expected: Any, contents: Any
) -> None:
    found = infer(op, "", 21, attributes, inputs, 2 if op == "Split" else 1, strict=True)[0]
    assert found is not None
    shown = found.dims if found.dims is None else tuple("?" if dims.is_anonymous(d) else d for d in found.dims)
    assert shown == expected
    assert found.contents == contents
    booleans, integers = {"Equal"}, {"Cast", "NonZero", "Mod"}
    assert found.dtype == (
        gk.dtypes.BOOL if op in booleans else INT64 if contents is not None or op in integers else FLOAT32
    )


MISFITS: list[tuple[str, dict[str, Any], list[Type | None], str]] = [
    ("Add", {}, [t("float32", 2), t("float32", 3)], "do not broadcast"),
    ("Where", {}, [t("bool", 2), t("float32", "n", 1), t("float32", 3)], "do not broadcast"),
    ("MatMul", {}, [t("float32", "n", 3), t("float32", 4, 5)], "inner dimensions"),
    ("MatMul", {}, [t("float32", 3), t("float32", 4)], "inner dimensions"),
    ("Gemm", {"transB": 1}, [t("float32", "n", 3), t("float32", 5, 4)], "inner dimensions"),
    ("Transpose", {"perm": [0, 0]}, [t("float32", 2, 3)], "is no order of 2 axes"),
    ("Softmax", {"axis": -3}, [t("float32", 2, 3)], "axis -3 is not one of a tensor of rank 2"),
    ("Conv", {}, [t("float32", 1, 3), t("float32", 1, 3, 3, 3)], "at least 3 dimensions|dimensions"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "inputs", "message"), MISFITS)
def test_misfits_are_errors_only_when_asked_for(
    op: str, attributes: dict[str, Any], inputs: list[Type | None], message: str
) -> None:
    with pytest.raises(Misfit, match=message):
        infer(op, "", 21, attributes, inputs, 1, strict=True)
    infer(op, "", 21, attributes, inputs, 1)


def test_an_operator_that_nobody_knows_has_no_known_type() -> None:
    assert infer("Odd", "acme", 1, {}, [t("float32", "n")], 2) == [None, None]


def test_a_dimension_is_read_once_however_often_it_is_used() -> None:
    model = gk.trace(lambda x: x.reshape(-1) * x.shape[0] + x.shape[0] * 2, gk.spec("float32", ["n", 1]))
    assert [n.op_type for n in model.graph].count("Shape") == 1
    (got,) = run(model, {"x": np.ones((3, 1), F)}).values()
    assert got.tolist() == [9.0] * 3


def test_a_batch_that_stays_in_place_costs_no_shape_arithmetic() -> None:
    model = gk.trace(lambda x: x.reshape(x.shape[0], -1), gk.spec("float32", ["n", 2, 3]))
    assert [n.op_type for n in model.graph] == ["Reshape"]
