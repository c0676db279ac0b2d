"""Operators that an older opset lacks, by what the standard says they mean: their function bodies."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from graphkit.inference import type_proto
from graphkit.schemas import Schema
from graphkit.upgrade.lower_fit import schema_of
from graphkit.upgrade.lower_table import Cannot, Lowering


def expand(node: ir.Node, lowering: Lowering) -> None:
    """Put the nodes of the operator's function body in its place; ``Cannot`` where it has none."""
    schema = schema_of(node.op_type, lowering.source)
    body = None if schema is None else _body(node, schema, lowering)
    if schema is None or body is None:
        raise Cannot("it does not exist there")
    values: dict[str, ir.Value | None] = {"": None}
    for index, name in enumerate(body.input):
        values[name] = node.inputs[index] if index < len(node.inputs) else None
    for inner in body.node:
        attributes = _attributes(inner, node, schema)
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in attributes.values()):
            raise Cannot("it does not exist there")
        given = [values[name] for name in inner.input]
        folded = _folded(inner.op_type, given, lowering)
        if folded is not None:
            values[inner.output[0]] = folded
            continue
        made = lowering.apply(inner.op_type, given, len(inner.output), **attributes)
        values.update(zip(inner.output, made, strict=True))
    lowering.replace([values.get(name) for name in body.output][: len(node.outputs)])


def _folded(operator: str, given: list[ir.Value | None], lowering: Lowering) -> ir.Value | None:
    """A number of the body in the type of the data, where that is known, instead of a cast."""
    if operator != "CastLike" or given[0] is None or given[1] is None:
        return None
    array = lowering.array(given[0])
    return None if array is None or array.size != 1 else lowering.constant(array, lowering.dtype(given[1]))


def _body(node: ir.Node, schema: Any, lowering: Lowering) -> onnx.FunctionProto | None:
    """The body in the forms of the source opset. (onnx's stubs leave out what a schema says of it.)"""
    found: bytes | None = None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= lowering.source]
        if versions:
            found = schema.get_function_with_opset_version(max(versions))
    elif schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= lowering.source]
        if versions:
            proto = ir.serde.serialize_node(node)
            types = [_type_bytes(value, lowering) for value in node.inputs]
            found = schema.get_context_dependent_function_with_opset_version(
                max(versions), proto.SerializeToString(), types
            )
    if not found:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(found)
    return function


def _type_bytes(value: ir.Value | None, lowering: Lowering) -> bytes:
    if value is None:
        return b""
    known = lowering.types.get(value)
    if known is None:
        raise Cannot(f"it is written out there, and the type of its input '{value.name}' is not known")
    return bytes(type_proto(known).SerializeToString())


def _attributes(inner: onnx.NodeProto, node: ir.Node, schema: Schema) -> dict[str, ir.Attr]:
    found = {}
    for proto in inner.attribute:
        if not proto.ref_attr_name:
            found[proto.name] = ir.serde.deserialize_attribute(proto)
            continue
        given = node.attributes.get(proto.ref_attr_name)
        if given is not None:
            found[proto.name] = ir.Attr(proto.name, given.type, given.value)
            continue
        formal = schema.attributes.get(proto.ref_attr_name)
        if formal is not None and formal.default_value.type:
            default = ir.serde.deserialize_attribute(formal.default_value)
            found[proto.name] = ir.Attr(proto.name, default.type, default.value)
    return found
