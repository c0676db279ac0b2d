"""Between Python values and onnx_ir's: tensors, attributes, constants; and what a node's subgraphs capture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphkit import dtypes
from graphkit.errors import GradientError

# The doc string of a constant that folding computed from settings alone: training does not take it for a weight.
FROM_NO_WEIGHT = "from no weight"


def is_computed(tensor: ir.TensorProtocol | None) -> bool:
    """Whether a constant was folded from values none of which is a weight."""
    return tensor is not None and tensor.doc_string == FROM_NO_WEIGHT


def ir_tensor(array: Any, name: str) -> ir.TensorProtocol:
    """A numpy array as the constant of an onnx_ir value."""
    if array.dtype == dtypes.STRING:
        encoded = [s if isinstance(s, bytes) else str(s).encode() for s in array.ravel().tolist()]
        return ir.StringTensor(encoded, shape=ir.Shape(array.shape), name=name)
    return ir.Tensor(array, dtype=ir.DataType(dtypes.to_onnx(array.dtype)), name=name)


def ir_attribute(name: str, value: Any) -> ir.Attr:
    """A Python value as an onnx_ir attribute."""
    if isinstance(value, ir.Attr):
        return value
    if isinstance(value, ir.Graph):
        return ir.AttrGraph(name, value)
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, ir_tensor(value, name))
    if isinstance(value, onnx.TensorProto):
        return ir.AttrTensor(name, ir.serde.deserialize_tensor(value))
    if isinstance(value, onnx.TypeProto):
        return ir.serde.deserialize_attribute(onnx.helper.make_attribute(name, value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        items = [v.item() if isinstance(v, np.generic) else v for v in value]
        if not items:
            return ir.AttrInt64s(name, [])
        return ir.convenience.convert_attribute(name, items)
    return ir.convenience.convert_attribute(name, value)


def attribute_value(attribute: ir.Attr) -> Any:
    """An onnx_ir attribute as the Python value that gradient rules read: numbers, text, lists, arrays, graphs."""
    kind = attribute.type
    if kind == ir.AttributeType.TYPE_PROTO:
        return ir.serde.serialize_attribute(attribute).tp
    if kind == ir.AttributeType.TENSOR:
        return attribute.value.numpy()
    if kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return list(attribute.value)
    return attribute.value


def constant_array(value: ir.Value) -> Any:
    """The array of a constant initializer or Constant node, None for anything else (an overridable default too)."""
    if value.is_graph_input():
        return None
    if value.const_value is None and value.producer() is None:
        return None
    constant = ir.convenience.get_const_tensor(value)
    if constant is None:
        return None
    try:
        return constant.numpy()
    except FileNotFoundError as error:
        raise GradientError(f"the external data of {value.name} is missing: {error}") from None


def captured_values(node: ir.Node) -> list[ir.Value]:
    """The outer values that a node's subgraphs use, each once, in order of use."""
    return captured_by([a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH])


def captured_by(bodies: Iterable[ir.Graph]) -> list[ir.Value]:
    """The values from outside that graphs use, each once, in order of use."""
    inside: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}
    for body in bodies:
        inside.update(body.inputs)
        inside.update(body.initializers.values())
        for inner in ir.traversal.RecursiveGraphIterator(body):
            inside.update(inner.outputs)
            for a in inner.attributes.values():
                if a.type == ir.AttributeType.GRAPH:
                    inside.update(a.as_graph().inputs)
                    inside.update(a.as_graph().initializers.values())
        for inner in ir.traversal.RecursiveGraphIterator(body):
            for v in inner.inputs:
                if v is not None and v not in inside:
                    found[v] = None
        for v in body.outputs:
            if v not in inside:
                found[v] = None
    return [v for v in found if v not in inside]


def literal_key(t: Any) -> Any:
    """What makes two literals one constant: equal values while they are few, else being the same object."""
    array = t._array
    if array.size > 64:
        return id(t)
    return array.dtype.num, array.shape, tuple(array.flat) if array.dtype == dtypes.STRING else array.tobytes()
