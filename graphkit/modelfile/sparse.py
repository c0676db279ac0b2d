"""Sparse initializers: the graph library holds none, so each is an initializer whose tensor remembers its sparse form.

Read, it has its dense type and shape and computes its dense numbers when they are asked for; written, it is the sparse
tensor that it was. No pass works on its numbers, because what came out would be dense.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from graphkit.errors import ModelFileError

__all__ = ["SparseTensor", "dense_of", "lend", "proto_graphs", "put_back", "take_in"]

_BODY_OPERATORS = ("If", "Loop", "Scan", "SequenceMap")


class SparseTensor(ir.LazyTensor):
    """A tensor that is dense to read and sparse to write; ``nbytes`` is what it holds in the file."""

    __slots__ = ("sparse",)

    def __init__(self, sparse: onnx.SparseTensorProto, name: str) -> None:
        dtype = ir.DataType(sparse.values.data_type)
        super().__init__(lambda: ir.tensor(dense_of(sparse)), dtype, ir.Shape(list(sparse.dims)), name=name)
        self.sparse = sparse

    @property
    def nbytes(self) -> int:
        """The bytes of the elements that are stored and of their indices."""
        return int(self.sparse.ByteSize())


def dense_of(sparse: onnx.SparseTensorProto) -> np.ndarray[Any, Any]:
    """The dense array: ``values`` at ``indices`` (linear, or one row a coordinate), zeros elsewhere."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all bodies in it, outer ones first."""
    yield graph
    for node in graph.node:
        if node.op_type in _BODY_OPERATORS or node.domain:
            for attribute in node.attribute:
                for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                    yield from proto_graphs(body)


def lend(model: onnx.ModelProto, where: str) -> tuple[onnx.ModelProto, dict[str, onnx.SparseTensorProto]]:
    """The model with an empty dense initializer in the place of each sparse one, and the sparse ones by name.

    A model without any is returned as it is, else a copy. Raises ``ModelFileError`` for one that is damaged.
    """
    for function in model.functions:
        if any(map(_is_sparse, function.node)):
            raise ModelFileError(
                f"{where} has a sparse constant in its function {function.domain}::{function.name}, where there are no "
                "initializers to hold it; inline the function first (onnx.inliner)"
            )
    if not any(graph.sparse_initializer or any(map(_is_sparse, graph.node)) for graph in proto_graphs(model.graph)):
        return model, {}
    lent = onnx.ModelProto()
    lent.CopyFrom(model)
    for graph in proto_graphs(lent.graph):
        _lift_constants(graph)
    found: dict[str, onnx.SparseTensorProto] = {}
    for number, graph in enumerate(proto_graphs(lent.graph)):
        for sparse in graph.sparse_initializer:
            _check(sparse, where)
            kept = onnx.SparseTensorProto()
            kept.CopyFrom(sparse)
            mark = f"graphkit sparse {number} {sparse.values.name}"
            found[mark] = kept
            graph.initializer.append(
                onnx.TensorProto(
                    name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims, doc_string=mark
                )
            )
        del graph.sparse_initializer[:]
    return lent, found


def _is_sparse(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and not node.domain and any(a.name == "sparse_value" for a in node.attribute)


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Make the sparse Constant nodes of a graph sparse initializers, which say the same."""
    for node in [node for node in graph.node if _is_sparse(node)]:
        made = graph.sparse_initializer.add()
        made.CopyFrom(node.attribute[0].sparse_tensor)
        made.values.name = node.output[0]
        graph.node.remove(node)


def take_in(graphs: Iterator[ir.Graph], found: dict[str, onnx.SparseTensorProto]) -> None:
    """Give the initializers that ``lend`` left empty their sparse tensors."""
    if not found:
        return
    for graph in graphs:
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is not None and tensor.doc_string in found:
                value.const_value = SparseTensor(found[tensor.doc_string], name)


def put_back(graph: onnx.GraphProto, found: dict[str, onnx.SparseTensorProto]) -> None:
    """Write sparse tensors in the place of the empty initializers that carry their marks."""
    for each in proto_graphs(graph) if found else ():
        sparse = [tensor for tensor in each.initializer if tensor.doc_string in found]
        if not sparse:
            continue
        for tensor in sparse:
            made = each.sparse_initializer.add()
            made.CopyFrom(found[tensor.doc_string])
            made.values.name = tensor.name
        dense = [tensor for tensor in each.initializer if tensor.doc_string not in found]
        del each.initializer[:]
        each.initializer.extend(dense)


def _check(sparse: onnx.SparseTensorProto, where: str) -> None:
    damaged = f"{where} is damaged: the sparse initializer '{sparse.values.name}'"
    if not sparse.values.name:
        raise ModelFileError(f"{where} is damaged: a sparse initializer has no name")
    if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise ModelFileError(
            f"{where} keeps the sparse initializer '{sparse.values.name}' in another file, which ONNX Runtime cannot "
            "load; save it inside the model"
        )
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    except Exception as error:  # what numpy and onnx raise for a damaged tensor has no common class
        raise ModelFileError(f"{damaged} cannot be read: {error}") from error
    rows = indices.shape[:1]
    if values.ndim != 1 or rows != values.shape or indices.shape not in (rows, (*rows, len(sparse.dims))):
        raise ModelFileError(
            f"{damaged} has values of shape {list(values.shape)} and indices of shape {list(indices.shape)}"
        )
    limits = np.asarray(sparse.dims) if indices.ndim == 2 else np.prod(np.asarray(sparse.dims, np.int64))
    if indices.dtype != np.int64 or ((indices < 0) | (indices >= limits)).any():
        raise ModelFileError(f"{damaged} has indices outside its shape {list(sparse.dims)}")
