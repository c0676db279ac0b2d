"""Inputs made from a model's declared types and dims, good enough to compare two models on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import at_sizes, name_of
from graphkit.optimizers.symbolic import Dim

__all__ = ["Feeds", "candidates"]

Feeds = dict[str, np.ndarray[Any, Any]]

# Pairs of sizes for the symbolic dims, tried in turn until the model accepts one: small first, then images.
_SIZES: Final = ((2, 3), (6, 8), (32, 48), (64, 96), (224, 256), (1, 1))
# An input larger than this is not made up: nobody wants to wait for it, and it may not fit into memory.
_MOST_ELEMENTS: Final = 2**28
# What hands indices on unchanged.
_CARRIERS: Final = (
    *("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Slice", "Concat", "Expand"),
)
_INDEXED: Final = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Scatter": 0}


def candidates(model: ir.Model, ctx: Context, seed: int) -> Iterator[Feeds]:
    """Yield inputs for one run, for ever larger symbolic dims; the first that the model accepts is the one to take.

    ``seed`` 0 and 1 give different numbers (of both signs, and positive) and different sizes. Raises ``ValueError``
    where an input has no declared rank, or is no tensor.
    """
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    names: dict[str, int] = {}
    for value in inputs:
        if not isinstance(value.type, ir.TensorType) or value.shape is None or value.dtype is None:
            raise ValueError(f"the input '{value.name}' is no tensor of declared rank")
        for axis, dim in enumerate(value.shape):
            if not isinstance(dim, int) or dim < 0:
                names.setdefault(_dim_name(value, axis), len(names))
    bounds = {value: _bounds(ctx, value) for value in inputs if value.dtype is not None and value.dtype.is_integer()}
    for pair in _SIZES if names else ((1, 1),):
        # First every name a size of its own, so that two are not confused; then all alike, should some have to agree.
        for spread in (1, 0) if len(names) > 1 else (0,):
            _check_size(inputs, names, pair[seed % 2], spread)
            rng = np.random.default_rng(seed)
            sizes = {name: pair[seed % 2] + spread * place for name, place in names.items()}
            yield {
                value.name or "": _array(value, _smallest(bounds.get(value, ()), sizes), sizes, rng, seed)
                for value in inputs
            }


def _check_size(inputs: Sequence[ir.Value], names: Mapping[str, int], size: int, spread: int) -> None:
    for value in inputs:
        dims = [
            dim if isinstance(dim, int) and dim >= 0 else size + spread * names[_dim_name(value, axis)]
            for axis, dim in enumerate(value.shape or ())
        ]
        if (count := math.prod(dims)) > _MOST_ELEMENTS:
            raise ValueError(f"the input '{value.name}' would have {count:,} elements")


def _dim_name(value: ir.Value, axis: int) -> str:
    assert value.shape is not None
    dim = value.shape[axis]
    return f"{value.name}[{axis}]" if isinstance(dim, int) or dim.value is None else dim.value


def _array(
    value: ir.Value,
    bound: int | None,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    seed: int,
) -> np.ndarray[Any, Any]:
    assert value.shape is not None
    assert value.dtype is not None
    shape = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int) and dim >= 0:
            shape.append(dim)
        else:
            shape.append(sizes[_dim_name(value, axis)])
    if value.dtype == ir.DataType.STRING:
        return rng.choice(np.array(["a", "b", "graph"], dtype=object), size=shape)
    dtype = value.dtype.numpy()
    if value.dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, size=shape).astype(dtype)
    if value.dtype.is_integer():
        if bound is None and int(np.prod(shape)) == 1:
            return np.full(shape, 1 + seed, dtype)
        return rng.integers(0, 2 if bound is None else max(1, bound), size=shape).astype(dtype)
    drawn = rng.standard_normal(size=shape)
    if seed % 2:
        drawn = np.abs(drawn) + 0.01  # where a logarithm or root stands in the way, the first set says little
    return np.asarray(drawn).astype(dtype)


def _smallest(bounds: Sequence[Dim], sizes: Mapping[str, int]) -> int | None:
    """The smallest of the dims that a value indexes, of those that the inputs' sizes settle."""
    settled = (
        at_sizes(dim, sizes)
        for dim in bounds
        if isinstance(dim, int) or all(name_of(atom) in sizes for monomial, _ in dim.terms for atom in monomial)
    )
    return min(settled, default=None)


def _bounds(ctx: Context, value: ir.Value) -> list[Dim]:
    """The sizes of what a value indexes, as far as the graph shows it."""
    found: list[Dim] = []
    stack, seen = [value], {value}
    while stack and len(seen) < 256:
        for node, index in stack.pop().uses():
            limit = _limit(ctx, node, index)
            if limit:
                found += limit
            elif node.op_type in _CARRIERS and index == 0:
                for output in node.outputs:
                    if output not in seen:
                        seen.add(output)
                        stack.append(output)
    return found


def _limit(ctx: Context, node: ir.Node, index: int) -> list[Dim]:
    if node.op_type in _INDEXED and index == 1:
        shape = ctx.shape(node.inputs[0])
        axis = node.attributes.get_int("axis", 0)
        return [shape[axis]] if shape and -len(shape) <= axis < len(shape) else []
    if node.op_type in ("GatherND", "ScatterND") and index == 1:
        return list(ctx.shape(node.inputs[0]) or ())
    if node.op_type == "OneHot" and index == 0:
        depth = ctx.scalar(node.inputs[1])
        return [int(depth)] if depth is not None else []
    if node.op_type in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") and index == 1:
        shape = ctx.shape(node.inputs[0])
        return [shape[1]] if shape and len(shape) > 1 else []
    return []
