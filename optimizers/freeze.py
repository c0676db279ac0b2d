"""Give symbolic dimensions a fixed size, for a model that will only ever be run at one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from graphkit.errors import PassError, did_you_mean
from graphkit.modelfile import ModelLike, give_back, read_model

__all__ = ["freeze"]


def freeze(model: ModelLike, dims: Mapping[str, Any]) -> ir.Model | onnx.ModelProto:
    """Return the model with the named dimensions of its inputs and outputs fixed, e.g. ``{"batch": 1}``.

    Only names that inputs have can be fixed; the runtime then refuses inputs of other sizes. ``optimize`` afterwards
    works out what follows from the sizes. The kind given comes back; ``model`` is not changed.

    Raises ``PassError`` for a name that no input has, and for a size that is not a whole number of at least 1.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[batch,3] x) => (float[batch,3] y) {y = Abs(x)}'
    >>> freeze(onnx.parser.parse_model(text), {"batch": 2}).graph.input[0].type.tensor_type.shape.dim[0].dim_value
    2
    """
    result = read_model(model)
    known = {
        dim.value
        for value in result.graph.inputs
        for dim in value.shape or ()
        if not isinstance(dim, int) and dim.value is not None
    }
    sizes: dict[str | None, int] = {}
    for name, size in dims.items():
        if name not in known:
            names = ", ".join(sorted(known)) or "none at all"
            raise PassError(f"no input has a dimension '{name}'.{did_you_mean(name, known)} The inputs have {names}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise PassError(f"the dimension '{name}' needs a whole number of at least 1, not {size!r}")
        sizes[name] = size
    for graph in (result.graph, *result.graph.subgraphs()):
        produced = [value for node in graph for value in node.outputs]
        for value in (*graph.inputs, *graph.outputs, *produced):
            if value.shape is not None:
                _fix(value, sizes)
    return give_back(model, result)


def _fix(value: ir.Value, sizes: Mapping[str | None, int]) -> None:
    assert value.shape is not None
    fixed = [sizes[dim.value] if not isinstance(dim, int) and dim.value in sizes else dim for dim in value.shape]
    if fixed != list(value.shape):
        denotations = [value.shape.get_denotation(axis) for axis in range(len(value.shape))]
        value.shape = ir.Shape(fixed, denotations=denotations)
