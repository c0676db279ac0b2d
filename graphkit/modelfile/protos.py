"""Models as protos, and walks over their nodes, at a cost that a graph of a hundred thousand nodes can bear.

``onnx_ir`` writes what is known of a value through a dozen guarded calls, and descends into every attribute of every
node with a generator of its own; both took longer than making the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx_ir as ir

from graphkit.modelfile.sparse import SparseTensor, proto_graphs, put_back

__all__ = ["every_graph", "every_node", "to_proto"]

_SPARSE = "graphkit sparse initializer "
_Described = tuple[ir.Value, ir.TensorType, "ir.Shape | None"]


def every_node(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """The nodes of a graph and of all bodies in it, each before those of its bodies."""
    for node in graph:
        yield node
        for attribute in node.attributes.values():
            for body in _bodies(attribute):
                yield from every_node(body)


def every_graph(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph:
        for attribute in node.attributes.values():
            for body in _bodies(attribute):
                yield from every_graph(body)


def _bodies(attribute: ir.Attr) -> Iterable[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
        return (attribute.as_graph(),)
    if attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
        return attribute.as_graphs()
    return ()


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """What ``onnx_ir.to_proto`` says, several times as fast on large graphs; the order of ``value_info`` is its own.

    The types of initializers are not written a second time, as ``value_info``, and sparse ones stay sparse.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {a = Abs(x) y = Neg(a)}'
    >>> model = ir.from_proto(onnx.parser.parse_model(text))
    >>> to_proto(model) == ir.to_proto(model)
    True
    """
    described = [found for node in model.graph for value in node.outputs if (found := _description(value))]
    constants = [v for graph in every_graph(model.graph) for v in graph.initializers.values() if not v.is_graph_input()]
    unsaid = [found for value in constants if (found := _description(value))]
    sparse = _hide_sparse(model)
    for value, _, _ in (*described, *unsaid):
        value.type = value.shape = None  # so that onnx_ir leaves them out
    try:
        proto = ir.to_proto(model)
    finally:
        for value, type_, shape in (*described, *unsaid):
            value.type, value.shape = type_, shape
        for value, tensor in sparse:
            value.const_value = tensor
    if any(value.is_graph_output() for value in constants):
        for each in proto_graphs(proto.graph):
            given_out = {info.name for info in each.output} & {tensor.name for tensor in each.initializer}
            kept = [i for i in each.value_info if i.name not in given_out or i.metadata_props or i.doc_string]
            del each.value_info[:]
            each.value_info.extend(kept)
    put_back(proto.graph, {f"{_SPARSE}{number}": tensor.sparse for number, (_, tensor) in enumerate(sparse)})
    written: dict[tuple[int, object], onnx.TypeProto] = {}
    for value, type_, shape in described:
        dims = None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape)
        key = int(type_.dtype), dims
        info = proto.graph.value_info.add()
        info.name = value.name or ""
        known = written.get(key)
        if known is None:
            known = written[key] = _type_proto(type_, dims)
        info.type.CopyFrom(known)
    return proto


def _hide_sparse(model: ir.Model) -> list[tuple[ir.Value, SparseTensor]]:
    """Put empty tensors in the place of sparse ones, each with a mark by which its proto is found."""
    hidden: list[tuple[ir.Value, SparseTensor]] = []
    for graph in every_graph(model.graph):
        for value in graph.initializers.values():
            if isinstance(tensor := value.const_value, SparseTensor):
                mark = f"{_SPARSE}{len(hidden)}"
                value.const_value = ir.Tensor(np.zeros(0, np.uint8), name=value.name, doc_string=mark)
                hidden.append((value, tensor))
    return hidden


def _description(value: ir.Value) -> _Described | None:
    """What is to be written of a value, where that is a plain tensor's type and shape."""
    type_, shape = value.type, value.shape
    if type(type_) is not ir.TensorType or type_.denotation or not value.name:
        return None
    if value.is_graph_output() or value.metadata_props or value.doc_string:
        return None
    if shape is not None:
        for axis in range(len(shape)):
            if shape.get_denotation(axis):
                return None
    return value, type_, shape


def _type_proto(type_: ir.TensorType, dims: tuple[int | str | None, ...] | None) -> onnx.TypeProto:
    made = onnx.TypeProto()
    made.tensor_type.elem_type = int(type_.dtype)
    if dims is not None:
        made.tensor_type.shape.ClearField("dim")  # which makes it known, with or without dims
        for extent in dims:
            dim = made.tensor_type.shape.dim.add()
            if isinstance(extent, int):
                dim.dim_value = extent
            elif extent is not None:
                dim.dim_param = extent
    return made
