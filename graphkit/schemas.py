"""What onnx says of each operator: inputs, attributes, types, since when; read once and kept.

graphkit writes opset 21 by default. An operator, or an attribute of one, that is newer takes the first opset that has
it, up to 26, the newest that ONNX Runtime loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import onnx.defs

from graphkit.dtypes import DType
from graphkit.errors import OperatorError, did_you_mean
from graphkit.interpreter import WRITTEN_OUT
from graphkit.source import here

WORKING_OPSET: Final = 21
NEWEST_OPSET: Final = 26
# What files may be of: what opsets 27 and 28 added is written in older operators, see graphkit.newer.
READABLE_OPSET: Final = 28
# Operators of the default domain that ONNX Runtime has and ONNX does not: files that it optimized hold them.
WITHOUT_SCHEMA: Final = frozenset({"SimplifiedLayerNormalization"})

# Element types that came after opset 21, or that many operators take from a later one on, by numpy's names and ONNX's
# numbers, as schemas write them.
LATE: Final = {
    "float4_e2m1fn": "tensor(float4e2m1)", "float8_e8m0fnu": "tensor(float8e8m0)", "uint2": "tensor(uint2)",
    "int2": "tensor(int2)", "bfloat16": "tensor(bfloat16)",
}  # fmt: skip
_LATE_NUMBERS: Final = dict(zip(range(23, 27), LATE.values(), strict=False))
_NAMING_TYPES: Final = frozenset({"to", "dtype", "output_dtype"})

if TYPE_CHECKING:
    from onnx.onnx_cpp2py_export.defs import OpSchema  # onnx.defs.OpSchema is a variable to type checkers

    Schema: TypeAlias = OpSchema
else:
    Schema = onnx.defs.OpSchema


@cache
def schema_at(op: str, domain: str, opset: int) -> Schema | None:
    """The schema of an operator at an opset, None where it does not exist (yet, or any more)."""
    if not onnx.defs.has(op, domain):
        return None
    try:
        found = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


def late_types(kinds: Iterable[DType], attributes: Mapping[str, Any]) -> frozenset[str]:
    """The element types, of tensors and in attributes, that not every opset from 21 on has, as schemas write them."""
    numbers = [int(n) for name, n in attributes.items() if name in _NAMING_TYPES and isinstance(n, int)]
    found = {LATE[kind.name] for kind in kinds if kind.name in LATE}
    return frozenset(found.union(_LATE_NUMBERS[n] for n in numbers if n in _LATE_NUMBERS))


@cache
def _types_of(schema: Schema) -> frozenset[str]:
    return frozenset(text for formal in (*schema.inputs, *schema.outputs) for text in formal.types)


@cache
def opset_for(
    op: str, domain: str = "", attributes: frozenset[str] = frozenset(), inputs: int = 0,
    kinds: frozenset[str] = frozenset(),
) -> int:  # fmt: skip
    """The opset at which graphkit writes an operator used with these attributes, this many inputs, and late types."""
    if domain:
        return 1
    if op in WITHOUT_SCHEMA:
        return WORKING_OPSET
    for opset in range(WORKING_OPSET, NEWEST_OPSET + 1):
        found = schema_at(op, domain, opset)
        if found is None or not attributes <= found.attributes.keys() or inputs > found.max_input:
            continue
        if not kinds or kinds <= _types_of(found):
            return opset
    for opset in range(WORKING_OPSET, NEWEST_OPSET + 1):
        found = schema_at(op, domain, opset)
        if found is not None:
            return opset
    known = names()
    if op in known:
        raise OperatorError(
            f"{op} first appears after opset {NEWEST_OPSET}, the newest that ONNX Runtime loads ({here()})."
        )
    raise OperatorError(f"ONNX has no operator {op} ({here()}).{did_you_mean(op, known)}")


@cache
def schema(op: str, domain: str = "", attributes: frozenset[str] = frozenset(), inputs: int = 0) -> Schema:
    """The schema that graphkit uses for an operator; OperatorError for a name that ONNX does not have."""
    if not domain and op in WRITTEN_OUT:
        forms = [schema_at(op, "", opset) for opset in (*range(WORKING_OPSET, NEWEST_OPSET + 1), READABLE_OPSET)]
        fits = (s for s in forms if s is not None and attributes <= s.attributes.keys() and inputs <= s.max_input)
        found = next(fits, forms[-1])
    else:
        found = schema_at(op, domain, opset_for(op, domain, attributes, inputs))
    if found is None:
        raise OperatorError(f"no operator {domain or 'ai.onnx'}.{op} is known ({here()})")
    return found


@cache
def newest_schema(op: str, domain: str = "") -> Schema | None:
    """The newest form of an operator that graphkit takes: of opset 26, or a newer one that it writes out."""
    return schema_at(op, domain, READABLE_OPSET if op in WRITTEN_OUT else NEWEST_OPSET)


@cache
def names() -> tuple[str, ...]:
    """Every operator of the default domain, sorted."""
    return tuple(sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}))


@cache
def default_of(op: str, domain: str, name: str) -> Any:
    """An attribute's default value in the newest schema that has it, None where there is none."""
    if not onnx.defs.has(op, domain):
        return None
    for opset in (NEWEST_OPSET, WORKING_OPSET, READABLE_OPSET) if not domain else (1,):
        found = schema_at(op, domain, opset)
        if found is not None and name in found.attributes:
            proto = found.attributes[name].default_value
            return plain(onnx.helper.get_attribute_value(proto)) if proto.type else None
    return None


def plain(value: Any) -> Any:
    """An attribute value as Python's own types: bytes become str, repeated fields lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Iterable) and not isinstance(value, str | onnx.TensorProto | onnx.GraphProto):
        return [plain(v) for v in value]
    return value
