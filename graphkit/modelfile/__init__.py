"""Reading and writing model files.

``read_model`` takes whatever a user has (a path, an ``onnx.ModelProto``, an ``onnx_ir.Model``), checks it and returns
an ``onnx_ir.Model`` of its own; ``write_model`` writes one whole or not at all. Every problem is one ``ModelFileError``
that names the file and says what to do, because the libraries underneath answer a zero-byte file with an empty model,
a half-downloaded one with "Error parsing message", and a path that leaves the model's folder with someone else's data.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir

from graphkit.errors import ModelFileError, did_you_mean

from .external import check_tensors, embedded, move_out, tensors_of
from .files import check_readable, replacing, target_of
from .order import is_sorted, put_in_order
from .protos import every_graph, to_proto
from .sparse import lend, take_in
from .versions import MAX_IR_VERSION, READABLE_OPSETS, lowest_ir_version
from .wellformed import check_well_formed, quiet_reading

__all__ = [
    "REWRITTEN",
    "ModelLike",
    "borrow_model",
    "give_back",
    "lowest_ir_version",
    "read_model",
    "tensors_of",
    "write_model",
]

ModelLike: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"

# Set in a model's ``meta`` where it is not what the file holds, so that the file itself will not do for the runtime.
REWRITTEN = "graphkit.rewritten"

# protobuf holds no message of 2 GiB or more.
_PROTOBUF_LIMIT = 2**31 - 1

# What other programs' files begin with: people do rename a checkpoint to .onnx, or download a page in its place.
_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself; fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint; export the model to ONNX first"),
    (b"\x80\x02", "a pickle, perhaps a PyTorch checkpoint; export the model to ONNX first"),
    (b"\x89HDF", "an HDF5 file, perhaps a Keras model; convert it to ONNX first"),
    (b"GGUF", "a GGUF file, which is not ONNX"),
    (b"\x93NUMPY", "a numpy array, not a model"),
    (b"<!DOCTYPE", "a web page, perhaps saved in place of the download"),
    (b"<html", "a web page, perhaps saved in place of the download"),
    (b"{", "a JSON file, not a model"),
)


def read_model(source: ModelLike) -> ir.Model:
    """Return ``source`` as a checked ``onnx_ir.Model`` that the caller may change.

    ``source`` itself is never changed: an ``onnx_ir.Model`` is cloned (its tensors, which are immutable, are shared).
    The weights a file keeps in other files beside it are memory mapped, not read.

    A model of opset 27 or 28 is read as one of opset 26, the newest that the runtime loads, its newer operators written
    out in older ones; recurrent layers with the batch first are read with time first. A model whose IR version is newer
    than the runtime's, but whose content does not need it, is read as the lowest IR version that serves. Raises
    ``ModelFileError`` for everything else that the runtime could not load.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Abs(x)}'
    >>> proto = onnx.parser.parse_model(text)
    >>> [value.name for value in read_model(proto).graph.inputs]
    ['x']
    """
    if isinstance(source, ir.Model):
        _check_versions(source.ir_version, source.graph.opset_imports, "the model")
        check_well_formed(source, "the model")
        source = _copy(source)
    return borrow_model(source)


def _copy(model: ir.Model) -> ir.Model:
    """A model of one's own, its nodes in order."""
    try:
        copy = model.clone() if is_sorted(model.graph) else _from_proto(to_proto(model), "the model")
        put_in_order(copy, "the model")
    except (ValueError, RuntimeError) as error:
        raise ModelFileError(f"the model is not well formed: {_root_cause(error)}") from error
    return copy


def borrow_model(source: ModelLike) -> ir.Model:
    """Return ``source`` as ``read_model`` does, for a caller who only reads it: an ``onnx_ir.Model`` is not cloned."""
    if isinstance(source, ir.Model):
        _check_versions(source.ir_version, source.graph.opset_imports, "the model")
        model, where, folder, real = source, "the model", None, None
    elif isinstance(source, onnx.ModelProto):
        where, folder, real = "the model", None, None
        model = _from_proto(source, where)
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        where, folder, real = str(path), path.parent, path.resolve().parent
        model = _from_proto(_parse(path), where)
    else:
        raise ModelFileError(
            f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not {type(source).__module__}."
            f"{type(source).__qualname__}"
        )
    check_well_formed(model, where)
    if model is not source:  # what a caller only lends stays as it is; the runtime takes any order
        put_in_order(model, where)
    check_tensors(model, where, folder, real)
    model = _runnable(model, where, model is source)
    if model.ir_version > MAX_IR_VERSION:
        needed = lowest_ir_version(model)
        if needed > MAX_IR_VERSION:
            raise _ir_too_new(needed, where)
        model = model.clone() if model is source else model
        model.ir_version = needed
        model.meta[REWRITTEN] = True
    return model


def _runnable(model: ir.Model, where: str, lent: bool) -> ir.Model:
    """The model in words that the runtime has kernels for; itself where it is."""
    from graphkit.upgrade import batchwise, has_no_kernel, make_runnable, time_major

    newer, turned = has_no_kernel(model), bool(batchwise(model))
    if not newer and not turned:
        return model
    model = _copy(model) if lent else model
    if turned:
        time_major(model)
    if newer:
        make_runnable(model, where)
    model.meta[REWRITTEN] = True
    return model


def give_back(source: ModelLike, model: ir.Model) -> ir.Model | onnx.ModelProto:
    """Return ``model`` in the kind ``source`` was: a ``ModelProto`` for a ``ModelProto``, else the model itself."""
    if not isinstance(source, onnx.ModelProto):
        return model
    proto = to_proto(model)
    proto.ir_version = lowest_ir_version(model)
    return proto


def write_model(
    model: ir.Model | onnx.ModelProto, path: str | os.PathLike[str], external_above: int = 100_000_000
) -> None:
    """Write ``model`` to ``path`` at the lowest IR version that serves, whole or not at all.

    When the weights hold more than ``external_above`` bytes they go to one file beside it, ``<name>.data``. (When the
    model that is there uses that file, to ``<name>.data2``, and back the next time: the old model must stay whole until
    the new one has taken its place.) Weights that were in other files come along either way. ``model`` is not changed.
    A symbolic link is followed: the file at its end is replaced, such weights go beside that, and a link to them beside
    the link, which is where readers look.
    """
    target = Path(path)
    if isinstance(model, onnx.ModelProto):
        model = _from_proto(model, "the model")
        check_tensors(model, "the model", None)
    if not target.parent.is_dir():
        raise ModelFileError(f"{target}: the folder {target.parent} does not exist; make it first")
    if target.is_dir():
        raise ModelFileError(f"{target} is a folder; name a file in it, for example {target / 'model.onnx'}")
    try:
        real = target_of(path)
    except OSError as error:
        raise ModelFileError(f"{os.fspath(path)} could not be written: {error.strerror or error}") from error
    total = sum(tensor.nbytes for tensor in tensors_of(model) if tensor.dtype != ir.DataType.STRING)
    try:
        if total <= external_above:
            _replace(target, real, embedded(model), keep=None)
        else:
            data = _free_data_name(real)
            outside = model.clone()
            with replacing(real.parent / data, follow=False) as file:
                move_out(outside, file, data)
            links: list[Path] = []
            try:
                links += _link_beside(target, real, data)
                _replace(target, real, outside, keep=data)
            except BaseException:
                for made in (real.parent / data, *links):
                    made.unlink(missing_ok=True)
                raise
    except OSError as error:
        was = "; the file that was there is unchanged" if target.exists() else ""
        raise ModelFileError(f"{target} could not be written: {error.strerror or error}{was}") from error


# Reading


def _parse(path: Path) -> onnx.ModelProto:
    try:
        check_readable(path)
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelFileError(_not_found(path)) from None
    except IsADirectoryError:
        raise ModelFileError(_is_folder(path)) from None
    except OSError as error:
        hint = _is_folder(path) if path.is_dir() else f"{path} cannot be read: {error.strerror or error}"
        raise ModelFileError(hint) from error
    if not content:
        raise ModelFileError(f"{path} is empty (0 bytes), not a model; an interrupted save or download leaves that")
    for start, what in _FOREIGN:
        if content.startswith(start):
            raise ModelFileError(f"{path} is not an ONNX model: it is {what}")
    if len(content) > _PROTOBUF_LIMIT:
        raise ModelFileError(
            f"{path} has {len(content):,} bytes; an ONNX file holds less than 2 GiB. "
            "Save it with its weights as external data"
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # protobuf's DecodeError, which the onnx package does not export
        raise ModelFileError(
            f"{path} ({len(content):,} bytes) is damaged, cut short or not an ONNX model: protobuf cannot parse it "
            "(as it cannot parse bodies more than thirty deep). Fetch or export it again"
        ) from error
    return proto


def _not_found(path: Path) -> str:
    if not path.parent.is_dir():
        return f"{path} does not exist: there is no folder {path.parent}"
    return f"{path} does not exist.{did_you_mean(path.name, (p.name for p in path.parent.iterdir() if p.is_file()))}"


def _is_folder(path: Path) -> str:
    inside = sorted(p.name for p in path.glob("*.onnx"))
    found = f"; it holds {', '.join(inside[:5])}" if inside else " and holds no .onnx file"
    return f"{path} is a folder, not a model file{found}"


def _from_proto(proto: onnx.ModelProto, where: str) -> ir.Model:
    again = "" if where == "the model" else ". The file may be damaged, cut short or not ONNX; fetch or export it again"
    if not proto.HasField("graph"):
        raise ModelFileError(f"{where} is not a model: it holds no graph{again}")
    if not proto.ir_version:
        raise ModelFileError(f"{where} is not a model: it states no IR version{again}")
    imports = {entry.domain: entry.version for entry in proto.opset_import}
    _check_versions(proto.ir_version, imports, where)
    try:
        proto, sparse = lend(proto, where)
        with quiet_reading():
            model = ir.from_proto(proto)
        take_in(every_graph(model.graph), sparse)
    except ModelFileError:
        raise
    except Exception as error:  # onnx_ir wraps most of what can go wrong in errors of its own, and lets some through
        raise ModelFileError(f"{where} is damaged: {_root_cause(error)}{again}") from error
    return model


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _check_versions(ir_version: int, imports: dict[str, int], where: str) -> None:
    if not imports:
        raise ModelFileError(f"{where} imports no opset, so its operators have no meaning; was the file cut short?")
    if ir_version > onnx.IR_VERSION:
        raise _ir_too_new(ir_version, where)
    for domain, version in imports.items():
        limit = READABLE_OPSETS.get(domain)
        if limit is not None and version > limit:
            raise ModelFileError(
                f"{where} uses opset {version} of {domain or 'ai.onnx'}; graphkit reads up to {limit}. "
                f"Export it again at opset {limit} or lower, or convert it with onnx.version_converter"
            )


def _ir_too_new(version: int, where: str) -> ModelFileError:
    return ModelFileError(
        f"{where} has IR version {version}; ONNX Runtime loads up to IR version {MAX_IR_VERSION}. "
        "Export it again with an older version of its tool, or at a lower opset"
    )


# Writing


def _replace(target: Path, real: Path, model: ir.Model, keep: str | None) -> None:
    """Put ``model`` in the place of ``real``, where ``target`` leads, and drop the old model's own data."""
    try:
        proto = to_proto(model)
    except Exception as error:  # as in reading: errors of onnx_ir's own, and others
        raise ModelFileError(f"{target} could not be written: {_root_cause(error)}") from error
    proto.ir_version = lowest_ir_version(model)
    try:
        content = proto.SerializeToString()
    except Exception as error:  # protobuf's EncodeError or a ValueError, by its version
        raise ModelFileError(f"{target} could not be written: the model does not fit into 2 GiB ({error})") from error
    old = _content_of(real)
    with replacing(real) as file:
        file.write(content)
    for name in _data_names(real):
        if name != keep and name.encode() in old:
            (real.parent / name).unlink(missing_ok=True)
            if (beside := target.parent / name).is_symlink() and not beside.exists():
                beside.unlink(missing_ok=True)


def _link_beside(target: Path, real: Path, data: str) -> list[Path]:
    """Link to the data beside ``target``, a link to ``real`` in another folder: readers look there. The links made."""
    link = target.parent / data
    if real == target or target.parent.resolve() == real.parent.resolve():
        return []
    if link.exists() and not link.is_symlink():
        raise ModelFileError(
            f"{target} could not be written: it is a symbolic link to {real}, so a link to the weights goes beside it, "
            f"and {link} is in the way; move that, or write to {real} itself"
        )
    temporary = link.with_name(f".{data}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(os.path.relpath(real.parent.resolve() / data, target.parent.resolve()))
    temporary.replace(link)
    return [link]


def _data_names(target: Path) -> tuple[str, str]:
    return f"{target.name}.data", f"{target.name}.data2"


def _free_data_name(target: Path) -> str:
    """Return the name that the model which is there does not use, so that it stays whole until it is replaced."""
    first, second = _data_names(target)
    return second if first.encode() in _content_of(target).replace(second.encode(), b"") else first


def _content_of(target: Path) -> bytes:
    return target.read_bytes() if target.is_file() and target.stat().st_size <= _PROTOBUF_LIMIT else b""
