"""Dtypes and dims of an operator's outputs, node by node, never guessed.

onnx's own inference does most of it, one node at a time. What it cannot do is follow the *contents* of small integer
tensors that hold dimensions (Shape, Gather, Concat, then Reshape): ``graphkit.contents`` does that, with names as well
as numbers, so that "batch" survives a reshape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphkit import ceilings, dims, dtypes, equations
from graphkit.contents import Misfit, Type, check_fit, quick_type, second
from graphkit.dims import Extent
from graphkit.schemas import schema_at

__all__ = ["WITHOUT_SCHEMA", "Misfit", "Type", "from_proto", "infer", "type_proto"]

# Asked for the types of operators that onnx has no schema for; what lowers those operators puts itself here.
WITHOUT_SCHEMA: list[Callable[..., list[Type | None] | None]] = []


def infer(
    op: str, domain: str, opset: int, attributes: Mapping[str, Any], inputs: Sequence[Type | None], outputs: int,
    node: onnx.NodeProto | None = None, outer: Mapping[str, onnx.TypeProto] | None = None,
    imports: Mapping[str, int] | None = None, *, strict: bool = False,
) -> list[Type | None]:  # fmt: skip
    """The types of a node's outputs; None for one of which nothing is known.

    With ``strict``, inputs that cannot go together at any run raise ``Misfit``; a graph that exists already may have
    been declared carelessly and is taken as it is.

    ``node`` and ``outer`` are needed for operators with subgraphs only: the node as a proto (its inputs named i0, i1,
    ...) and the types of the outer values that the subgraphs capture.
    """
    if not domain:
        quick = quick_type(op, attributes, inputs)
        if quick is not None:
            if strict:
                check_fit(op, attributes, inputs)
            return [quick, *(second(op, quick) for _ in range(outputs - 1))]
    found = _by_schema(op, domain, opset, attributes, inputs, outputs, node, outer or {}, imports, strict)
    if not domain and op in ceilings.POOLS and attributes.get("ceil_mode"):
        _count_windows(attributes, inputs, found)
    if not domain and op == "Einsum" and found[0] is not None and found[0].dims is not None:
        known = [t.dims for t in inputs if t is not None and t.dims is not None]
        if len(known) == len(inputs):
            found[0].dims = equations.result_dims(str(attributes["equation"]), known)
    if not domain and op in ceilings.WINDOWED and found[0] is not None and found[0].dims is None:
        found[0].dims = ceilings.dims_by_kernel(op, attributes, [t.dims if t is not None else None for t in inputs])
    return found


def _count_windows(attributes: Mapping[str, Any], inputs: Sequence[Type | None], found: Sequence[Type | None]) -> None:
    first = inputs[0]
    if first is None or first.dims is None or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return
    for t in found:
        if t is not None and t.dims is not None:
            t.dims = ceilings.pooled_dims(attributes, first.dims)


def type_proto(t: Type) -> onnx.TypeProto:
    """A Type as onnx writes it, names and all."""
    if t.proto is not None:
        return t.proto
    return helper.make_tensor_type_proto(dtypes.to_onnx(t.dtype), None if t.dims is None else list(t.dims))


def from_proto(proto: onnx.TypeProto) -> Type | None:
    """An onnx type as a Type; a dimension without a name gets one of its own."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        if not tensor.elem_type:
            return None
        if not tensor.HasField("shape"):
            return Type(dtypes.as_dtype(tensor.elem_type), None)
        found: list[Extent] = []
        for d in tensor.shape.dim:
            which = d.WhichOneof("value")
            found.append(
                d.dim_value if which == "dim_value" and d.dim_value >= 0
                else d.dim_param if which == "dim_param" and d.dim_param else dims.anonymous()
            )  # fmt: skip
        return Type(dtypes.as_dtype(tensor.elem_type), tuple(found))
    if kind is None:
        return None
    element = proto
    while True:
        which = element.WhichOneof("value")
        if which == "sequence_type":
            element = element.sequence_type.elem_type
        elif which == "optional_type":
            element = element.optional_type.elem_type
        else:
            break
    number = element.tensor_type.elem_type if element.WhichOneof("value") == "tensor_type" else 1
    return Type(dtypes.as_dtype(number or 1), None, proto=proto)


def _by_schema(
    op: str, domain: str, opset: int, attributes: Mapping[str, Any], inputs: Sequence[Type | None], outputs: int,
    node: onnx.NodeProto | None, outer: Mapping[str, onnx.TypeProto], imports: Mapping[str, int] | None,
    strict: bool,
) -> list[Type | None]:  # fmt: skip
    schema = schema_at(op, domain, opset)
    if schema is None:
        for hook in WITHOUT_SCHEMA:
            told = hook(op, domain, opset, attributes, inputs, outputs)
            if told is not None:
                return told
        return [None] * outputs
    names = [f"i{n}" if t is not None else "" for n, t in enumerate(inputs)]
    if op == "STFT":  # onnx's inference reads a missing onesided as 0, the standard as 1
        attributes = {"onesided": 1, **attributes}
    proto = node if node is not None else _proto(op, domain, attributes, names, outputs)
    types = {n: type_proto(t) for n, t in zip(names, inputs, strict=True) if t is not None}
    types.update(outer)
    data = {n: p for n, t in zip(names, inputs, strict=True) if t is not None and (p := _data(n, t)) is not None}
    opsets = dict(imports) if imports else {"": opset}
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data,
            opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001  # inference that fails says nothing of the outputs
        if strict and isinstance(error, onnx.shape_inference.InferenceError):
            raise Misfit(str(error).split("] ", 1)[-1]) from None
        found = {}
    results: list[Type | None] = [from_proto(found[o]) if o in found else None for o in proto.output]
    for n, result in enumerate(results):
        if result is None:
            results[n] = _by_type_variable(schema, n, inputs)
    return results


def _proto(op: str, domain: str, attributes: Mapping[str, Any], names: Sequence[str], outputs: int) -> onnx.NodeProto:
    from graphkit.eager import attribute_protos

    node = helper.make_node(op, names, [f"o{n}" for n in range(outputs)], domain=domain)
    node.attribute.extend(attribute_protos(attributes))
    return node


def _data(name: str, t: Type) -> onnx.TensorProto | None:
    if t.array is not None:
        if t.array.dtype.kind in "SUO":  # text, of which no shape follows
            return None
        return numpy_helper.from_array(t.array, name) if t.array.size <= 1024 else None
    contents = t.contents
    if isinstance(contents, tuple) and all(isinstance(c, int) for c in contents):
        return numpy_helper.from_array(np.array(contents, dtype=t.dtype), name)
    if isinstance(contents, int):
        return numpy_helper.from_array(np.array(contents, dtype=t.dtype), name)
    return None


def _by_type_variable(schema: Any, index: int, inputs: Sequence[Type | None]) -> Type | None:
    """The dtype alone, where the schema says that an output has the type of an input."""
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    for n, t in enumerate(inputs):
        given = schema.inputs[min(n, len(schema.inputs) - 1)] if schema.inputs else None
        if given is not None and t is not None and t.proto is None and given.type_str == formal.type_str:
            return Type(t.dtype, None)
    return None
