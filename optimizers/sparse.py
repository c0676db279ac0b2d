"""Sparse initializers, which the graph library does not hold: they are lent to the pipeline as inputs and put back."""

from __future__ import annotations

import onnx

__all__ = ["lend", "put_back"]


def lend(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model in which every sparse initializer is an input of its dense type.

    As inputs they are never folded, merged or dropped, and a comparison feeds both models the same numbers.
    """
    lent = onnx.ModelProto()
    lent.CopyFrom(model)
    del lent.graph.sparse_initializer[:]
    known = {value.name for value in model.graph.input}
    for sparse in model.graph.sparse_initializer:
        if sparse.values.name not in known:
            lent.graph.input.append(
                onnx.helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, list(sparse.dims))
            )
    return lent


def put_back(result: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Undo ``lend`` in what became of its result."""
    known = {value.name for value in model.graph.input}
    lent = {sparse.values.name for sparse in model.graph.sparse_initializer} - known
    kept = [value for value in result.graph.input if value.name not in lent]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.sparse_initializer.extend(model.graph.sparse_initializer)
