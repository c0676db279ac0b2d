"""The gradient of an operator that has no rule but whose meaning ONNX writes down as a function of other operators.

The function's body is applied again, and the reverse pass runs over what it did. A rule is leaner, since it can use the
operator's own result; but this is right wherever the body is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from graphkit import dtypes, schemas
from graphkit.core import Record, Tensor
from graphkit.eager import attribute_protos
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.shapes import constant
from graphkit.gradients.table import FALLBACK, NOT_DIFFERENTIABLE, Rule, vjp
from graphkit.inference import Type, type_proto
from graphkit.interpreter import apply

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


@cache
def expands(op: str, domain: str = "") -> bool:
    """Whether the operator has no rule of its own and a function body that the reverse pass can go through."""
    if (op, domain) in NOT_DIFFERENTIABLE or domain:
        return False
    opsets = range(schemas.WORKING_OPSET, schemas.NEWEST_OPSET + 1)
    # onnx's stubs leave out what a schema says of its function body
    schema: Any = next((s for v in opsets if (s := schemas.schema_at(op, domain, v)) is not None), None)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def expand(r: Record, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """The outputs of a record's operator, by its function body, from other inputs."""
    body = function_body(r, inputs)
    if body is None:
        raise GradientError(f"the function body of {r.describe()} cannot be made for these inputs")
    values: dict[str, Tensor | None] = {"": None}
    values.update({name: inputs[n] if n < len(inputs) else None for n, name in enumerate(body.input)})
    for node in body.node:
        if any(a.type in _GRAPHS for a in node.attribute):
            raise GradientError(f"the function body of {r.describe()} has a subgraph, which is not gone through")
        attributes = _attributes(r, node)
        given = [values[name] for name in node.input]
        if node.op_type == "Constant":
            made: Sequence[Tensor] = [_constant(attributes)]
        elif node.op_type == "Identity" and given[0] is not None:
            made = [given[0]]
        else:
            made = apply(node.op_type, given, attributes, len(node.output), node.domain)
        values.update(zip(node.output, made, strict=True))
    # an output that was not asked for may not be made
    return [t for name in list(body.output)[: len(r.made)] if (t := values[name]) is not None]


def function_body(r: Record, inputs: Sequence[Tensor | None]) -> onnx.FunctionProto | None:
    """What ONNX says the operator means at graphkit's opset, for a node of these attributes and input types."""
    schema: Any = schemas.schema(r.op, r.domain, frozenset(r.attributes))
    opset = schemas.opset_for(r.op, r.domain, frozenset(r.attributes))
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        if versions:
            found: bytes = schema.get_function_with_opset_version(max(versions))
            return _parsed(found)
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        if versions:
            node = helper.make_node(r.op, [f"i{n}" if t is not None else "" for n, t in enumerate(inputs)],
                                    [f"o{n}" for n in range(len(r.made))], domain=r.domain)  # fmt: skip
            node.attribute.extend(attribute_protos(r.attributes))
            types = [b"" if t is None else type_proto(Type(t.dtype, t.dims)).SerializeToString() for t in inputs]
            found = schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), types
            )
            return _parsed(found)
    return None


def _parsed(found: bytes) -> onnx.FunctionProto:
    function = onnx.FunctionProto()
    function.ParseFromString(found)
    return function


def _attributes(r: Record, node: onnx.NodeProto) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for a in node.attribute:
        value = r.attribute(a.ref_attr_name) if a.ref_attr_name else schemas.plain(helper.get_attribute_value(a))
        if isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        if value is not None:
            found[a.name] = value
    return found


def _constant(attributes: dict[str, Any]) -> Tensor:
    kinds = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32"}
    for name, value in attributes.items():
        if name in kinds:
            return constant(np.asarray(value), dtypes.as_dtype(kinds[name]))
    value = np.asarray(attributes["value"])
    return constant(value, value.dtype)


def by_function_body(r: Record, *gs: Tensor | None) -> Entries:
    wanted = [n for n, want in enumerate(r.wants) if want]

    def outputs(*changed: Tensor) -> list[Tensor]:
        inputs = list(r.inputs)
        for n, t in zip(wanted, changed, strict=True):
            inputs[n] = t
        return [y for y, g in zip(expand(r, inputs), gs, strict=False) if g is not None]

    _, pull = vjp(outputs, *[r.inputs[n] for n in wanted])
    found = pull([g for g in gs if g is not None])
    entries: list[Tensor | None] = [None] * len(r.inputs)
    for n, t in zip(wanted, found, strict=True):
        entries[n] = t
    return tuple(entries)


def _fallback(op: str, domain: str) -> Rule | None:
    return by_function_body if expands(op, domain) else None


FALLBACK.append(_fallback)
