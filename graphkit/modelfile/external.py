"""Weights that lie in files beside the model: checked before anything reads them, taken in, and written out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import onnx
import onnx_ir as ir

from graphkit.errors import ModelFileError
from graphkit.modelfile.protos import every_graph, every_node
from graphkit.modelfile.sparse import SparseTensor

# Below this a tensor stays in the model file even when the others go beside it: shapes and axes must stay readable.
_SMALL_TENSOR = 1024


def tensors_of(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield every constant tensor of a model: initializers and node attributes, subgraphs and functions included."""
    for graph in every_graph(model.graph):
        yield from (value.const_value for value in graph.initializers.values() if value.const_value is not None)
    for node in _nodes(model):
        for attribute in node.attributes.values():
            yield from _attribute_tensors(attribute)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from every_node(model.graph)
    for function in model.functions.values():
        yield from every_node(function)


def _attribute_tensors(attribute: ir.Attr) -> list[ir.TensorProtocol]:
    if attribute.is_ref() or attribute.value is None:
        return []
    # Not as_tensor(): it looks at every property of the tensor, which takes its time and fails on a damaged one.
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return [value]
    return list(value) if attribute.type == ir.AttributeType.TENSORS else []


def check_tensors(model: ir.Model, where: str, folder: Path | None, real: Path | None = None) -> None:
    """Check the files that a model's tensors lie in, before anything reads them; ``folder`` is set on each tensor.

    ``real`` is the folder of the file itself where ``folder`` is that of a symbolic link to it. As in ONNX Runtime,
    data is looked for in ``folder``, and may be a link from there into ``real``.
    """
    followed = set() if folder is None or real in (None, folder.resolve()) else _follow_links(model, folder, real)
    for tensor in tensors_of(model):
        if tensor.dtype == ir.DataType.UNDEFINED:
            raise ModelFileError(f"{where} is damaged: '{tensor.name}' has no element type")
        if isinstance(tensor, ir.ExternalTensor):
            if folder is not None and tensor not in followed:
                tensor.base_dir = str(folder) or "."
            elif not str(tensor.base_dir):
                raise ModelFileError(
                    f"{where} keeps '{tensor.name}' in the file {tensor.location!s}, and a model in memory has no "
                    "folder to look in. Give the path of its .onnx file instead, or load the external data first"
                )
            _check_one_external(tensor, where)
        elif tensor.dtype != ir.DataType.STRING:
            _check_embedded(tensor, where)


def _follow_links(model: ir.Model, folder: Path, real: Path) -> set[ir.TensorProtocol]:
    """Let initializers whose data is a link out of ``folder`` into ``real`` lie there; those for which it was so."""
    made: set[ir.TensorProtocol] = set()
    for graph in every_graph(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor) or Path(tensor.location).is_absolute():
                continue
            path = (folder / tensor.location).resolve()
            if path.is_relative_to(real) and not path.is_relative_to(folder.resolve()):
                value.const_value = ir.ExternalTensor(
                    path.relative_to(real), tensor.offset, tensor.length, tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()), name=tensor.name or "", base_dir=real,
                    doc_string=tensor.doc_string,
                )  # fmt: skip
                made.add(value.const_value)
    return made


def _check_one_external(tensor: ir.ExternalTensor, where: str) -> None:
    folder, location = Path(tensor.base_dir), str(tensor.location)
    path = folder / location
    holds = f"{where}: the external data of '{tensor.name}'"
    if not location or not path.resolve().is_relative_to(folder.resolve()) or Path(location).is_absolute():
        raise ModelFileError(
            f"{holds} is at {location!r}, outside the model's folder {folder.resolve()}; "
            "a model may only read files beside it. Move the data there, or save the model again where it was made"
        )
    if not path.is_file():
        raise ModelFileError(f"{holds} is missing: there is no {location} in {folder.resolve()}. Put it there")
    status = path.stat()
    if status.st_nlink > 1:
        raise ModelFileError(
            f"{holds}, {path}, has several hard links, so it may belong to another folder; make it a file of its own "
            f"(copy it, and move the copy over it)"
        )
    start, needed = tensor.offset or 0, tensor.nbytes
    declared = needed if tensor.length is None else tensor.length
    if start < 0 or declared != needed:
        shape = list(tensor.shape)
        raise ModelFileError(f"{holds} is damaged: {declared:,} bytes at {start:,}; its shape {shape} needs {needed:,}")
    if start + needed > status.st_size:
        raise ModelFileError(
            f"{holds} is cut short: {path} has {status.st_size:,} bytes and the model needs {start + needed:,}. "
            "Fetch or copy it again"
        )


_SMALL: Final = 65_536


def _check_embedded(tensor: ir.TensorProtocol, where: str) -> None:
    """Refuse a tensor that holds fewer bytes than its shape needs: reading it later would fail far from the file."""
    raw: Any = getattr(tensor, "raw", None)
    if not isinstance(raw, onnx.TensorProto):
        return
    needed, shape = tensor.nbytes, list(raw.dims)
    if any(extent < 0 for extent in shape):
        raise ModelFileError(f"{where} is damaged: '{tensor.name}' has the shape {shape}")
    if not raw.HasField("raw_data"):
        return
    # Asking for the bytes copies them, so large ones are measured with what the message holds besides.
    if raw.ByteSize() < needed or (needed <= _SMALL and len(raw.raw_data) != needed):
        fewer = "fewer" if len(raw.raw_data) < needed else "more"
        raise ModelFileError(f"{where} is damaged: '{tensor.name}' has {fewer} bytes than its shape {shape} needs")


def embedded(model: ir.Model) -> ir.Model:
    """Return the model with every tensor in memory: itself when they are already."""
    if not any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors_of(model)):
        return model
    model = model.clone()
    for graph in every_graph(model.graph):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _in_memory(value.const_value)
    _attributes_in_memory(model)
    return model


def _attributes_in_memory(model: ir.Model) -> None:
    for node in _nodes(model):
        for name, attribute in list(node.attributes.items()):
            tensors = _attribute_tensors(attribute)
            if any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors):
                loaded = [_in_memory(tensor) for tensor in tensors]
                single = attribute.type == ir.AttributeType.TENSOR
                node.attributes[name] = ir.AttrTensor(name, loaded[0]) if single else ir.AttrTensors(name, loaded)


def _in_memory(tensor: ir.TensorProtocol) -> ir.Tensor[Any]:
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)


def move_out(model: ir.Model, file: BinaryIO, data: str) -> None:
    """Write the initializers of ``model``, a clone, to ``file`` and make it refer to them there."""
    _attributes_in_memory(model)
    offset = 0
    for graph in every_graph(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING or isinstance(tensor, SparseTensor):
                continue
            if tensor.nbytes < _SMALL_TENSOR:
                value.const_value = _in_memory(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor
                continue
            file.write(b"\0" * (-offset % 64))  # aligned, so that a reader can use the mapped bytes where they are
            offset += -offset % 64
            content = tensor.tobytes()
            file.write(content)
            value.const_value = ir.ExternalTensor(
                data, offset, len(content), tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
            )
            offset += len(content)
