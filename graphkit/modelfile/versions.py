"""Which IR version and opsets a model needs, and which the runtime loads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx_ir as ir
from onnx import helper

from graphkit.modelfile.protos import every_graph, every_node
from graphkit.schemas import READABLE_OPSET

# What ONNX Runtime 1.31 loads. The onnx package is ahead of it (opset 28, IR 14), so its own limits will not do.
MAX_IR_VERSION = 13
MAX_OPSETS = {"": 26, "ai.onnx": 26, "ai.onnx.ml": 5}
# What files may be of: newer ai.onnx is written in the words of opset 26 as it is read.
READABLE_OPSETS = {"": READABLE_OPSET, "ai.onnx": READABLE_OPSET, "ai.onnx.ml": 5}

# The first IR version with each data type that was not there from the start.
_DTYPE_IR_VERSIONS = {
    ir.DataType.BFLOAT16: 4,
    ir.DataType.FLOAT8E4M3FN: 9,
    ir.DataType.FLOAT8E4M3FNUZ: 9,
    ir.DataType.FLOAT8E5M2: 9,
    ir.DataType.FLOAT8E5M2FNUZ: 9,
    ir.DataType.INT4: 10,
    ir.DataType.UINT4: 10,
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.INT2: 13,
    ir.DataType.UINT2: 13,
    ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}
# Attributes that name a data type, so that a type may appear in a graph which no value is declared to have.
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type")


def lowest_ir_version(model: ir.Model) -> int:
    """Return the lowest IR version whose readers can read ``model``.

    It follows from the opsets (21 needs IR 10), the data types (int4 needs 10, bfloat16 only 4), model-local functions
    (8; with overloads 10) and initializers that are not also inputs (4).

    >>> import onnx.parser
    >>> text = '<ir_version: 14, opset_import: ["": 21]> g (float[N] x) => (float[N] y) {y = Abs(x)}'
    >>> lowest_ir_version(ir.from_proto(onnx.parser.parse_model(text)))
    10
    """
    return max(_needs(model))


def _needs(model: ir.Model) -> Iterator[int]:
    # An IR 3 model lists its initializers among its inputs as constants; at IR 4 they turn into defaults that may be
    # overridden, and a runtime no longer folds them. So such a model stays what it was, and others do not become one.
    yield 3 if 0 < model.ir_version < 4 else 4
    imports = dict(model.graph.opset_imports)
    for function in model.functions.values():
        yield 10 if function.overload else 9 if any(a.value is not None for a in function.attributes.values()) else 8
        for domain, version in function.opset_imports.items():
            imports[domain] = max(version, imports.get(domain, 0))
    for domain, version in imports.items():
        yield helper.OP_SET_ID_VERSION_MAP.get((domain or "ai.onnx", version), 3)
    for graph in every_graph(model.graph):
        inputs = set(graph.inputs)
        yield from (4 for value in graph.initializers.values() if value not in inputs)
    for dtype in _dtypes(model):
        yield _DTYPE_IR_VERSIONS.get(dtype, 3)


def _dtypes(model: ir.Model) -> set[ir.DataType]:
    found: set[ir.DataType] = set()
    nodes = itertools.chain(every_node(model.graph), *map(every_node, model.functions.values()))
    for graph in every_graph(model.graph):
        for value in graph.initializers.values():
            if value.const_value is not None:
                found.add(value.const_value.dtype)
        for value in graph.inputs:
            found.update(_dtype_of(value))
    for node in nodes:
        for value in node.outputs:
            found.update(_dtype_of(value))
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
                found.add(attribute.value.dtype)
            elif name in _DTYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT:
                number = attribute.as_int()
                found.update(dtype for dtype in _DTYPE_IR_VERSIONS if int(dtype) == number)
    return found


def _dtype_of(value: ir.Value) -> tuple[ir.DataType, ...]:
    if value.const_value is not None:
        return (value.const_value.dtype,)
    type_ = value.type
    return () if type_ is None else (type_.dtype,)
