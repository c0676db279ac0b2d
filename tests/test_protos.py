"""Models as protos: the same as onnx_ir writes, and walks that reach every body."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from graphkit.modelfile.protos import every_graph, every_node, to_proto

MODELS = {
    "named, unnamed and no dims": (
        '<ir_version: 8, opset_import: ["": 17]> g (float[N,?,3] x, float u) => (float[] y) '
        "<float[2] w = {1, 2}, int64[1] k, float[N,3,?] a, float[] b, float[2,2] c> "
        "{a = Abs(x) b = Neg(a) c = MatMul(b, b) y = ReduceSum<keepdims=0>(b)}"
    ),
    "sequences": (
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) <seq(float[N]) s, int64 i> '
        "{s = SequenceConstruct(x, x) i = Constant<value = int64 {0}>() y = SequenceAt(s, i)}"
    ),
    "bodies": (
        '<ir_version: 8, opset_import: ["": 17]> g (bool p, float[N] x) => (float[N] y) <float[N] m> {m = Abs(x) '
        "y = If<then_branch = a () => (float[N] t) <float[N] q> {q = Neg(m) t = Neg(q)}, else_branch = b () => "
        "(float[N] e) {e = If<then_branch = c () => (float[N] u) {u = Exp(x)}, "
        "else_branch = d () => (float[N] v) {v = Log(x)}>(p)}>(p)}"
    ),
}


def sorted_infos(proto: onnx.ModelProto) -> onnx.ModelProto:
    constants = {tensor.name for tensor in proto.graph.initializer}  # which say their type themselves
    infos = sorted((i for i in proto.graph.value_info if i.name not in constants), key=lambda info: info.name)
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(infos)
    return proto


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS.keys())
def test_as_onnx_ir_writes_it(text):
    model = ir.from_proto(onnx.parser.parse_model(text))
    first = next(iter(model.graph))
    first.outputs[0].doc_string = "kept"
    before = [(v.type, v.shape) for n in model.graph for v in n.outputs]
    assert sorted_infos(to_proto(model)) == sorted_infos(ir.to_proto(model))
    assert [(v.type, v.shape) for n in model.graph for v in n.outputs] == before


def test_every_body_is_reached():
    model = ir.from_proto(onnx.parser.parse_model(MODELS["bodies"]))
    assert [node.op_type for node in every_node(model.graph)] == ["Abs", "If", "Neg", "Neg", "If", "Exp", "Log"]
    assert sorted(str(graph.name) for graph in every_graph(model.graph)) == ["a", "b", "c", "d", "g"]
