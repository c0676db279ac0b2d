"""The functions of ``gk.op``, made from onnx's own schemas: arguments told apart, checked, and made Tensors of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx

import graphkit.newer  # noqa: F401 (fills the table of what is written out)
from graphkit import dtypes, schemas
from graphkit.core import Dim, Tensor, as_tensor, holds_tensors
from graphkit.errors import OperatorError, did_you_mean
from graphkit.interpreter import apply
from graphkit.methods import scalar
from graphkit.source import here

Operator = Callable[..., Any]

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
_KINDS = {
    onnx.defs.OpSchema.AttrType.INT: (int, np.integer),
    onnx.defs.OpSchema.AttrType.FLOAT: (float, int, np.floating, np.integer),
    onnx.defs.OpSchema.AttrType.STRING: (str, bytes),
    onnx.defs.OpSchema.AttrType.INTS: (list, tuple, range, np.ndarray),
    onnx.defs.OpSchema.AttrType.FLOATS: (list, tuple, np.ndarray),
    onnx.defs.OpSchema.AttrType.STRINGS: (list, tuple),
}
DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type"})
_ITEMS = {
    onnx.defs.OpSchema.AttrType.INTS: (int, np.integer),
    onnx.defs.OpSchema.AttrType.FLOATS: (float, int, np.floating, np.integer),
    onnx.defs.OpSchema.AttrType.STRINGS: (str, bytes),
}
_KIND_NAMES = {
    onnx.defs.OpSchema.AttrType.INT: "an integer",
    onnx.defs.OpSchema.AttrType.FLOAT: "a float",
    onnx.defs.OpSchema.AttrType.STRING: "a string",
    onnx.defs.OpSchema.AttrType.INTS: "a list of integers",
    onnx.defs.OpSchema.AttrType.FLOATS: "a list of floats",
    onnx.defs.OpSchema.AttrType.STRINGS: "a list of strings",
}
_made: dict[tuple[str, str], Operator] = {}


def operator(name: str, domain: str = "") -> Operator:
    """The function of one operator.

    >>> operator("Relu")([-1.0, 2.0]).tolist()
    [0.0, 2.0]
    """
    found = _made.get((name, domain))
    if found is None:
        found = _made[name, domain] = _make(name, domain)
    return found


def _make(name: str, domain: str) -> Operator:
    first = schemas.schema(name, domain)
    many = returns_many(first)

    def function(*inputs: Any, outputs: int | None = None, **named: Any) -> Any:
        given = frozenset(k for k in named if k in _newer_attributes(name))
        schema = schemas.schema(name, domain, given, max(len(inputs), _last_named(name, named)))
        attributes, tensors = _sort(name, schema, inputs, named)
        count = _output_count(name, schema, outputs, attributes, tensors)
        results = apply(name, tensors, attributes, count, domain)
        return results[0] if count == 1 and outputs is None and not many else results

    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature_of(first)  # type: ignore[attr-defined]  # what inspect and editors look at
    function.__doc__ = f"ONNX {name} (opset {first.since_version}): {_signature(first)}\n\n{first.doc or ''}"
    return function


def _newer_attributes(name: str) -> frozenset[str]:
    newest = schemas.newest_schema(name)
    return frozenset(newest.attributes) if newest is not None else frozenset()


def _last_named(name: str, named: Mapping[str, Any]) -> int:
    """How many inputs the newest form of an operator must have, for those that are given by name to be among them."""
    if not named:
        return 0
    places = _input_places(name)
    return max((places.get(key, 0) for key in named), default=0)


@cache
def _input_places(name: str) -> dict[str, int]:
    """The place of each input of an operator's newest form, counted from 1."""
    newest = schemas.newest_schema(name)
    return {} if newest is None else {i.name: n for n, i in enumerate(newest.inputs, 1)}


def returns_many(schema: schemas.Schema) -> bool:
    """Whether how many outputs there are is up to the call (Split, If, Loop, Scan): they always come as a tuple."""
    return bool(schema.outputs) and schema.outputs[-1].option == _VARIADIC


def signature_of(schema: schemas.Schema) -> inspect.Signature:
    """An operator as Python sees it: its inputs, then its attributes by name, then how many outputs are wanted."""
    parameters: list[inspect.Parameter] = []
    optional = False
    for i in schema.inputs:
        if i.option == _VARIADIC:
            parameters.append(inspect.Parameter(i.name, inspect.Parameter.VAR_POSITIONAL))
            break
        optional = optional or i.option == _OPTIONAL
        default = None if optional else inspect.Parameter.empty
        parameters.append(inspect.Parameter(i.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
    for a in sorted(schema.attributes.values(), key=lambda a: (not a.required, a.name)):
        default = inspect.Parameter.empty if a.required else schemas.default_of(schema.name, schema.domain, a.name)
        parameters.append(inspect.Parameter(a.name, inspect.Parameter.KEYWORD_ONLY, default=default))
    parameters.append(inspect.Parameter("outputs", inspect.Parameter.KEYWORD_ONLY, default=None))
    return inspect.Signature(parameters)


def _signature(schema: schemas.Schema) -> str:
    inputs = ", ".join(i.name for i in schema.inputs)
    attributes = ", ".join(sorted(schema.attributes))
    return f"({inputs}{'; ' + attributes if attributes else ''}) -> {', '.join(o.name for o in schema.outputs)}"


def _sort(
    name: str, schema: schemas.Schema, inputs: Sequence[Any], named: dict[str, Any]
) -> tuple[dict[str, Any], list[Tensor | None]]:
    """Tell inputs from attributes and make Tensors of the inputs."""
    formal = schema.inputs
    variadic = bool(formal) and formal[-1].option == _VARIADIC
    given = list(inputs)
    if variadic and len(given) == len(formal) and isinstance(given[-1], list | tuple) and _holds_tensors(given[-1]):
        given[-1:] = given[-1]  # Concat([a, b], axis=0) reads as Concat(a, b, axis=0)
    if len(given) > len(formal) and not variadic:
        raise OperatorError(
            f"{name} at {here()} takes at most {len(formal)} inputs, got {len(given)}: {_signature(schema)}"
        )
    positions = {f.name: n for n, f in enumerate(formal)}
    attributes: dict[str, Any] = {}
    for key, value in named.items():
        if key in schema.attributes:
            if value is not None:
                attributes[key] = _attribute(name, schema, key, value)
        elif key in positions:
            place = positions[key]
            given.extend([None] * (place + 1 - len(given)))
            if given[place] is not None:
                raise OperatorError(f"{name} at {here()} got input {key} twice")
            given[place] = value
        else:
            raise OperatorError(
                f"{name} at {here()} has no attribute or input '{key}': {_signature(schema)}."
                f"{did_you_mean(key, [*schema.attributes, *positions])}"
            )
    while given and given[-1] is None:
        given.pop()
    for key, spec in schema.attributes.items():
        if spec.required and key not in attributes:
            raise OperatorError(f"{name} at {here()} needs the attribute '{key}': {_signature(schema)}")
    for n, f in enumerate(formal):
        if f.option not in (_OPTIONAL, _VARIADIC) and (n >= len(given) or given[n] is None):
            raise OperatorError(f"{name} at {here()} needs the input '{f.name}': {_signature(schema)}")
    if len(given) < schema.min_input:
        raise OperatorError(f"{name} at {here()} needs {schema.min_input} inputs or more, got {len(given)}")
    return attributes, _tensors(name, schema, given)


def _holds_tensors(items: Sequence[Any]) -> bool:
    return any(isinstance(i, Tensor | np.ndarray) for i in items)


def _attribute(name: str, schema: schemas.Schema, key: str, value: Any) -> Any:
    kind = schema.attributes[key].type
    if key in DTYPE_ATTRIBUTES and not isinstance(value, int | np.integer | Dim | Tensor):
        return dtypes.to_onnx(dtypes.as_dtype(value))
    if kind == onnx.defs.OpSchema.AttrType.TENSOR:
        if isinstance(value, Tensor):
            value = value.numpy()
        return value if isinstance(value, np.ndarray | onnx.TensorProto) else np.asarray(as_tensor(value).numpy())
    wanted = _KINDS.get(kind)
    if isinstance(value, bool) and kind == onnx.defs.OpSchema.AttrType.INT:
        return int(value)
    if kind == onnx.defs.OpSchema.AttrType.INT and isinstance(value, Dim | Tensor):
        return value.__index__()  # a traced one refuses, with the user's line
    if wanted is not None and not isinstance(value, wanted):
        raise OperatorError(
            f"{name} at {here()}: attribute '{key}' is {_KIND_NAMES[kind]}, got {type(value).__name__} {value!r}"
        )
    if kind == onnx.defs.OpSchema.AttrType.FLOAT:
        return float(value)
    if kind in _ITEMS:
        items: Any = value
        return [_item(name, key, kind, v) for v in items]
    return value.item() if isinstance(value, np.generic) else value


def _item(name: str, key: str, kind: Any, value: Any) -> Any:
    """One element of a list attribute."""
    if kind == onnx.defs.OpSchema.AttrType.INTS and isinstance(value, Dim | Tensor):
        return value.__index__()
    if not isinstance(value, _ITEMS[kind]):
        raise OperatorError(
            f"{name} at {here()}: attribute '{key}' is {_KIND_NAMES[kind]}, but holds {type(value).__name__} {value!r}"
        )
    if kind == onnx.defs.OpSchema.AttrType.STRINGS:
        return value
    return float(value) if kind == onnx.defs.OpSchema.AttrType.FLOATS else int(value)


def _tensors(name: str, schema: schemas.Schema, given: list[Any]) -> list[Tensor | None]:
    formal = schema.inputs
    met: dict[str, dtypes.DType] = {}
    for n, value in enumerate(given):
        variable = formal[min(n, len(formal) - 1)].type_str
        if isinstance(value, Tensor):
            met.setdefault(variable, value.dtype)
        elif isinstance(value, np.ndarray | np.generic) and not isinstance(value, float) and variable not in met:
            met[variable] = value.dtype
    result: list[Tensor | None] = []
    for n, value in enumerate(given):
        f = formal[min(n, len(formal) - 1)]
        if value is None or isinstance(value, Tensor):
            result.append(value)
            continue
        dtype = met.get(f.type_str)
        if isinstance(value, bool | int | float) and dtype is not None:
            result.append(scalar(value, dtypes.weak(value, dtype)))
        elif isinstance(value, list | tuple) and not holds_tensors(value):
            wanted = dtypes.INT64 if f.type_str == "tensor(int64)" else dtype
            result.append(_listed(value, wanted))
        else:
            result.append(as_tensor(value))
    _check_types(name, schema, result)
    return result


def _listed(value: Sequence[Any], wanted: dtypes.DType | None) -> Tensor:
    """A list as a Tensor, of the dtype it meets unless that would lose its fractions."""
    t = as_tensor(value)
    kind = "f" if wanted is not None and dtypes.is_float(wanted) else wanted.kind if wanted is not None else ""
    if wanted is None or (t._array.size and "biufc".find(t.dtype.kind) > "biufc".find(kind)):
        return t
    array = t._array.astype(wanted) if t.dtype.kind != "f" else np.asarray(value).astype(wanted)
    array.flags.writeable = False
    return Tensor(array, literal=True)


_ALLOWED: dict[tuple[str, int, str], frozenset[str]] = {}
_TYPE_NAMES = {
    1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "double", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2", 27: "float6e2m3", 28: "float6e3m2",
}  # fmt: skip


def _check_types(name: str, schema: schemas.Schema, tensors: Sequence[Tensor | None]) -> None:
    """One dtype for each of the schema's type variables, and one that the operator takes."""
    formal = schema.inputs
    met: dict[str, tuple[str, dtypes.DType]] = {}
    for n, t in enumerate(tensors):
        if t is None or (not t.traced and not isinstance(t._array, np.ndarray)):
            continue
        f = formal[min(n, len(formal) - 1)]
        key = (name, schema.since_version, f.name)
        allowed = _ALLOWED.get(key)
        if allowed is None:
            allowed = _ALLOWED[key] = frozenset(f.types)
        written = f"tensor({_TYPE_NAMES[dtypes.to_onnx(t.dtype)]})"
        if written not in allowed and not any(a.startswith(("seq", "optional")) for a in allowed):
            newest = schemas.newest_schema(name, schema.domain)
            if newest is not None and written in newest.inputs[min(n, len(newest.inputs) - 1)].types:
                continue
            raise OperatorError(
                f"{name} at {here()}: input '{f.name}' is {dtypes.name(t.dtype)}; it takes "
                f"{', '.join(sorted(a[7:-1] for a in allowed if a.startswith('tensor(')))}. Cast it with "
                "x.astype(...)."
            )
        homogeneous = f.option != _VARIADIC or f.is_homogeneous
        if homogeneous:
            other = met.setdefault(f.type_str, (f.name, t.dtype))
            if other[1] != t.dtype and not f.type_str.startswith(("tensor", "seq", "optional")):
                raise OperatorError(
                    f"{name} at {here()}: inputs '{other[0]}' ({dtypes.name(other[1])}) and '{f.name}' "
                    f"({dtypes.name(t.dtype)}) must have one dtype. Cast one with x.astype(...)."
                )


def _output_count(
    name: str, schema: schemas.Schema, outputs: int | None, attributes: dict[str, Any], inputs: Sequence[Tensor | None]
) -> int:
    if outputs is None:
        if name == "Split":
            if "num_outputs" in attributes:
                return int(attributes["num_outputs"])
            sizes = inputs[1].dims if len(inputs) > 1 and inputs[1] is not None else None
            if sizes and isinstance(sizes[0], int):
                return sizes[0]
            raise OperatorError(f"Split at {here()}: say how many outputs, with num_outputs= or outputs=")
        required = [o for o in schema.outputs if o.option not in (_OPTIONAL, _VARIADIC)]
        return max(len(required), schema.min_output, 1)
    if not max(1, schema.min_output) <= outputs <= schema.max_output:
        raise OperatorError(f"{name} at {here()} has {schema.min_output} to {schema.max_output} outputs, not {outputs}")
    return outputs
