"""Static shapes of every value of a model, for estimates: symbolic dims are taken to have stated sizes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphkit.optimizers.flops import ShapeOf, declared_shape
from graphkit.optimizers.context import Context

__all__ = ["static_shapes"]


def static_shapes(model: ir.Model, dims: Mapping[str, int] | None = None) -> ShapeOf:
    """A function that gives a value's shape where the symbolic dims of the inputs have these sizes.

    A dim that ``dims`` does not name is 1. What follows from the inputs is worked out, reshapes by computed
    shapes included; where nothing follows, a shape that the model declares and that is static is taken. The function
    returns None for all else. The model is not changed.
    """
    known = Context(model, training=False, slack=0)
    known.facts.sizes = dict(dims or {})
    known.facts.sweep(known.graphs())

    def shape_of(value: ir.Value) -> tuple[int, ...] | None:
        shape = known.facts(value).shape
        if shape is None:
            return declared_shape(value)
        found = tuple(dim for dim in shape if isinstance(dim, int))
        return found if len(found) == len(shape) else declared_shape(value)

    return shape_of
