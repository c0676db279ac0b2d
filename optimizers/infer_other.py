"""Facts of the operators without a rule of their own, by the inference that comes with the operator's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from graphkit.optimizers.facts import Fact
from graphkit.optimizers.symbolic import Dim, Symbol, fresh

if TYPE_CHECKING:
    from graphkit.optimizers.facts import Facts

__all__ = ["infer_by_schema"]

# Constants up to this size are shown to the inference: sizes, axes and scales, not weights.
_MAX_SHOWN = 1024


def infer_by_schema(facts: Facts, node: ir.Node) -> list[Fact] | None:
    """The facts of a node's outputs, or None where the schema cannot tell."""
    opset = facts.opset_of(node)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    names: dict[str, Symbol] = {}
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        fact = facts(value)
        if fact.dtype is None or (value.type is not None and not isinstance(value.type, ir.TensorType)):
            return None
        name = value.name or f"input {index}"
        types[name] = _type_of(fact, names)
        tensor = facts.tensor(value)
        if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes <= _MAX_SHOWN:
            data[name] = ir.to_proto(tensor)
        elif (known := facts.ints(value)) is not None and fact.dtype == ir.DataType.INT64 and fact.shape is not None:
            dims = [len(known)] if fact.shape else []
            data[name] = onnx.helper.make_tensor(name, onnx.TensorProto.INT64, dims, list(known))
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, ir.to_proto(node), types, data, opset_imports=[onnx.helper.make_opsetid("", opset)]
        )
    except Exception:  # noqa: BLE001 - the C++ inference raises several kinds; all of them mean "cannot tell"
        return None
    return [_fact_from(found.get(value.name or ""), names) for value in node.outputs]


def _type_of(fact: Fact, names: dict[str, Symbol]) -> onnx.TypeProto:
    made = onnx.TypeProto()
    assert fact.dtype is not None
    made.tensor_type.elem_type = int(fact.dtype)
    if fact.shape is not None:
        shape = made.tensor_type.shape
        for dim in fact.shape:
            entry = shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            else:
                # A name by which the symbol is found again; equal symbols share it, different ones do not.
                text = f"graphkit {dim!r}"
                names[text] = dim
                entry.dim_param = text
        shape.SetInParent()
    return made


def _fact_from(found: onnx.TypeProto | None, names: dict[str, Symbol]) -> Fact:
    if found is None or not found.HasField("tensor_type"):
        return Fact()
    tensor = found.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Fact(dtype)
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        else:
            dims.append(names.get(dim.dim_param) or fresh())
    return Fact(dtype, tuple(dims))
