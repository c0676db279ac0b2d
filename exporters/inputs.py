"""Inputs made up for a model: to verify it, to time it, to see that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit.dims import is_anonymous
from graphkit.dtypes import STRING, is_float
from graphkit.errors import InputError, did_you_mean
from graphkit.modelfile import ModelLike, borrow_model
from graphkit.runtime import Port
from graphkit.runtime.feeds import port

__all__ = ["model_inputs", "random_inputs", "symbolic_dims"]

# Operators that hand integers on unchanged, between an input and the place where it is used as an index.
_PASSING = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand"})
_INDEXING = frozenset({"Gather", "GatherElements"})


def random_inputs(
    model: ModelLike, dims: Mapping[str, int] | None = None, seed: int = 0, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return arrays for every input that must be fed, drawn anew from ``seed``.

    Floats are standard normal, integers 0 or 1, or any valid index where they index a table of known size. ``dims``
    gives symbolic dimensions their sizes (``x.0`` is the first one of input x, where it has no name); the others are 1.
    What is in ``given`` is taken as it is, and its shapes settle the symbolic dimensions they have.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[batch, 3] x) => (float[batch, 3] y) {y = Neg(x)}'
    >>> random_inputs(onnx.parser.parse_model(text), {"batch": 2})["x"].shape
    (2, 3)
    """
    loaded = borrow_model(model)
    ports = model_inputs(loaded)
    sizes = dict(dims or {})
    check_dims(sizes, ports)
    feeds = dict(given or {})
    for one in ports:
        shape = _shape_of(feeds.get(one.name))
        if shape is not None and one.dims is not None and len(shape) == len(one.dims):
            named = {n: s for n, s in zip(one.dims, shape, strict=True) if isinstance(n, str) and not is_anonymous(n)}
            sizes = named | sizes
    bounds = _index_bounds(loaded)
    generator = np.random.default_rng(seed)
    for one in ports:
        if one.name not in feeds and one.required and not one.nullable:
            feeds[one.name] = _draw(one, sizes, generator, bounds.get(one.name, 2))
    return feeds


def _shape_of(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        shape: tuple[int, ...] = np.shape(value)
    except ValueError:  # ragged: the runtime says so when it is fed
        return None
    return shape


def model_inputs(model: ir.Model) -> list[Port]:
    """Return the inputs of a model, those with a default value among them."""
    given = model.graph.initializers
    return [port(value, required=value.name not in given) for value in model.graph.inputs]


def symbolic_dims(ports: list[Port]) -> list[str]:
    """Return the names of the symbolic dimensions of some inputs, in order; ``x.0`` for one that has no name."""
    return list(dict.fromkeys(name for one in ports for name in _names(one) if name is not None))


def static_shape(one: Port, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return an input's shape with its symbolic dimensions at their sizes, or 1."""
    pairs = zip(one.dims or (), _names(one), strict=True)
    return tuple(extent if isinstance(extent, int) else sizes.get(name or "", 1) for extent, name in pairs)


def _names(one: Port) -> list[str | None]:
    return [
        None if isinstance(extent, int) else f"{one.name}.{axis}" if is_anonymous(extent) else extent
        for axis, extent in enumerate(one.dims or ())
    ]


def check_dims(sizes: Mapping[str, int], ports: list[Port]) -> None:
    """Raise ``InputError`` for a size of a symbolic dimension that the inputs do not have."""
    known = symbolic_dims(ports)
    for name, size in sizes.items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(
                f"the model's inputs have no symbolic dimension '{name}', {has}.{did_you_mean(name, known)}"
            )
        if size < 0:
            raise InputError(f"dimension '{name}' cannot be {size}")


def _draw(one: Port, sizes: Mapping[str, int], generator: np.random.Generator, bound: int) -> Any:
    if one.dtype is None or one.kind == "other":
        raise InputError(f"input '{one.name}' ({one.type}) cannot be made up; give it")
    if one.kind == "sequence":
        return [_array(one, sizes, generator, bound) for _ in range(2)]
    if one.dims is None:
        raise InputError(f"input '{one.name}' has no declared rank, so it cannot be made up; give it")
    return _array(one, sizes, generator, bound)


def _array(one: Port, sizes: Mapping[str, int], generator: np.random.Generator, bound: int) -> Any:
    dtype = one.dtype
    assert dtype is not None
    shape = static_shape(one, sizes)
    if dtype == STRING:
        return np.array([f"text {n}" for n in range(int(np.prod(shape)))], object).reshape(shape)
    if dtype.kind in "iub" or dtype.name in ("int4", "uint4"):
        return generator.integers(0, max(bound, 1), shape).astype(dtype)
    drawn = generator.standard_normal(shape)
    if not (is_float(dtype) or dtype.kind == "c"):
        drawn = np.clip(drawn, -2, 2)
    return np.asarray(drawn).astype(dtype)


def _index_bounds(model: ir.Model) -> dict[str, int]:
    """Return, for each input that indexes a table of known size, that size."""
    bounds: dict[str, int] = {}
    for start in model.graph.inputs:
        pending, seen = [start], {start}
        while pending:
            for use in pending.pop().uses():
                node = use.node
                if node.op_type in _INDEXING and use.idx == 1:
                    extent = _extent(node)
                    if extent is not None:
                        bounds[start.name or ""] = min(extent, bounds.get(start.name or "", extent))
                elif node.op_type in _PASSING and use.idx == 0:
                    fresh = [value for value in node.outputs if value not in seen]
                    seen.update(fresh)
                    pending.extend(fresh)
    return bounds


def _extent(node: ir.Node) -> int | None:
    table = node.inputs[0]
    if table is None or table.shape is None:
        return None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    extent = table.shape[axis] if -len(table.shape) <= axis < len(table.shape) else None
    return extent if isinstance(extent, int) else None
