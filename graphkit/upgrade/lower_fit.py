"""Whether a node fits what the standard says of its operator at an opset: attributes, inputs, outputs, types.

This is what makes lowering safe: whatever an entry of the table left undone, or a newer version only added (a type, an
attribute), is found here, by the schema of the opset that was asked for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir

from graphkit import dtypes
from graphkit.inference import Type
from graphkit.schemas import READABLE_OPSET, Schema, plain, schema_at
from graphkit.upgrade.adapters import is_used
from graphkit.upgrade.lower_table import Cannot, Lowering

_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


@cache
def versions(operator: str) -> tuple[int, ...]:
    """The versions at which an operator changed up to the newest that is read, newest first; the last introduced it."""
    return tuple(sorted((s for s in _history().get(operator, ()) if s <= READABLE_OPSET), reverse=True))


@cache
def _history() -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {name: tuple(sorted(since)) for name, since in found.items()}


@cache
def schema_of(operator: str, opset: int) -> Schema | None:
    """What the standard says of an operator at an opset, None where it has none."""
    if opset < min(versions(operator), default=opset + 1):
        return None
    return schema_at(operator, "", opset)


def fit(node: ir.Node, lowering: Lowering) -> None:
    """Make a node fit the schema of the opset to reach; ``Cannot`` where it says what that schema has no words for."""
    schema = schema_of(node.op_type, lowering.target)
    if schema is None:
        raise Cannot("it does not exist there")
    _fit_attributes(node, schema, schema_of(node.op_type, lowering.source))
    _fit_counts(node, schema)
    _fit_types(node, schema, lowering)


def _fit_attributes(node: ir.Node, schema: Schema, newest: Schema | None) -> None:
    for name, attribute in list(node.attributes.items()):
        if name in schema.attributes:
            continue
        default = _default(newest, name)
        if default is None or plain(attribute.value) != default:
            raise Cannot(f"its attribute '{name}' does not exist there")
        node.attributes.pop(name)
    for name, formal in schema.attributes.items():
        if name in node.attributes:
            continue
        if formal.required:
            raise Cannot(f"its attribute '{name}' is required there and not known")
        implied = _default(newest, name)
        if implied is not None and implied != _default(schema, name):
            node.attributes.add(ir.convenience.convert_attribute(name, implied))


def _default(schema: Schema | None, name: str) -> Any:
    if schema is None or name not in schema.attributes:
        return None
    proto = schema.attributes[name].default_value
    return plain(onnx.helper.get_attribute_value(proto)) if proto.type else None


def _fit_counts(node: ir.Node, schema: Schema) -> None:
    while len(node.inputs) and node.inputs[-1] is None:
        node.resize_inputs(len(node.inputs) - 1)
    variadic = bool(schema.inputs) and schema.inputs[-1].option == _VARIADIC
    if len(node.inputs) > len(schema.inputs) and not variadic:
        raise Cannot(f"it takes at most {len(schema.inputs)} inputs there")
    for index, formal in enumerate(schema.inputs):
        given = index < len(node.inputs) and node.inputs[index] is not None
        if formal.option == _SINGLE and not given:
            raise Cannot(f"its input '{formal.name}' is required there")
    if variadic and len(node.inputs) < schema.min_input:
        raise Cannot(f"it takes at least {schema.min_input} inputs there")
    most = len(schema.outputs)
    if len(node.outputs) > most and not (schema.outputs and schema.outputs[-1].option == _VARIADIC):
        if any(is_used(node, index) for index in range(most, len(node.outputs))):
            raise Cannot(f"it has at most {most} outputs there")
        node.resize_outputs(most)


def _fit_types(node: ir.Node, schema: Schema, lowering: Lowering) -> None:
    bound: dict[str, str] = {}
    for formals, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for index, value in enumerate(values):
            if value is None or not formals:
                continue
            formal = formals[min(index, len(formals) - 1)]
            written = type_text(lowering.types.get(value))
            if written is None:
                continue
            if written not in formal.types:
                raise Cannot(f"it takes no {written} there")
            if formal.option == _VARIADIC and not formal.is_homogeneous:
                continue
            if bound.setdefault(formal.type_str, written) != written:
                raise Cannot(f"{bound[formal.type_str]} and {written} cannot go together there")


def type_text(t: Type | None) -> str | None:
    """A type as schemas write it, such as ``tensor(float)``."""
    if t is None:
        return None
    if t.proto is not None:
        return _proto_text(t.proto)
    return _tensor_text(dtypes.to_onnx(t.dtype))


def _proto_text(proto: onnx.TypeProto) -> str | None:
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({_proto_text(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_proto_text(proto.optional_type.elem_type)})"
    return _tensor_text(proto.tensor_type.elem_type) if kind == "tensor_type" else None


def _tensor_text(number: int) -> str:
    return f"tensor({ir.DataType(number).name.lower()})"


# Operators whose result on small integers (and on truth values, for the greatest and least) is that on wider ones, cut
# back: sums, differences and products wrap around alike, the others do not leave the range.
_WIDENED = frozenset(
    """Add Sub Mul Div Mod Max Min Relu Clip ReduceMax ReduceMin Equal Greater Less GreaterOrEqual
    LessOrEqual""".split()
)
_NARROW = frozenset("tensor(int8) tensor(uint8) tensor(int16) tensor(uint16) tensor(bool)".split())


def widen(node: ir.Node, lowering: Lowering) -> bool:
    """Compute in a wider type what the older opset has no such type for; whether the node was replaced by that."""
    wide = _wider(node, lowering)
    if wide is None:
        return False
    newest = schema_of(node.op_type, lowering.source)
    assert newest is not None
    narrow, variable = lowering.dtype(_data(node)), newest.inputs[_first(node)].type_str
    last = len(newest.inputs) - 1
    inputs = [
        lowering.apply1("Cast", [value], to=dtypes.to_onnx(wide))
        if value is not None and newest.inputs[min(index, last)].type_str == variable
        else value
        for index, value in enumerate(node.inputs)
    ]
    result = lowering.apply1(node.op_type, inputs, **dict(node.attributes))
    if newest.outputs[0].type_str == variable:
        result = lowering.apply1("Cast", [result], to=dtypes.to_onnx(narrow))
    lowering.replace([result])
    return True


def _first(node: ir.Node) -> int:
    return next(index for index, value in enumerate(node.inputs) if value is not None)


def _data(node: ir.Node) -> ir.Value:
    value = node.inputs[_first(node)]
    assert value is not None
    return value


def _wider(node: ir.Node, lowering: Lowering) -> dtypes.DType | None:
    operator = node.op_type
    if operator not in _WIDENED and operator not in ("IsInf", "IsNaN"):
        return None
    if not any(value is not None for value in node.inputs):
        return None
    written = type_text(lowering.types.get(_data(node)))
    then = schema_of(operator, lowering.target)
    if then is None or written is None or written in then.inputs[0].types:
        return None
    if operator in ("IsInf", "IsNaN"):
        half = written == "tensor(float16)" and "tensor(float)" in then.inputs[0].types
        return dtypes.FLOAT32 if half else None
    if written not in _NARROW or (written == "tensor(bool)" and operator not in ("ReduceMax", "ReduceMin")):
        return None
    for text, wide in (("tensor(int32)", np.int32), ("tensor(int64)", np.int64)):
        if text in then.inputs[0].types:
            return np.dtype(wide)
    return None
