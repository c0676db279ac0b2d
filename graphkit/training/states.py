"""A training state as one .safetensors file, which other programs can read too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphkit.core import Array
from graphkit.errors import ModelFileError
from graphkit.modelfile.files import check_readable, replacing

__all__ = ["read_state", "write_state"]

# safetensors keeps the metadata in a hash map, so several entries come out in another order every time; one does not.
_KEY = "graphkit"


def write_state(path: str | os.PathLike[str], state: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write named arrays, whole or not at all, the same bytes for the same content; raises ``ModelFileError``."""
    from safetensors.numpy import save

    target = Path(path)
    if not target.parent.is_dir():
        raise ModelFileError(f"{target}: the folder {target.parent} does not exist; make it first")
    packed = {_KEY: json.dumps(dict(metadata), sort_keys=True)}
    # safetensors writes the buffer as it lies in memory, so a transposed view must be laid out first.
    content = save({name: np.array(array, order="C") for name, array in state.items()}, packed)
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise ModelFileError(f"{os.fspath(path)} could not be written: {error.strerror or error}") from error


def read_state(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The named arrays and the metadata of a file; raises ``ModelFileError``."""
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    try:
        check_readable(source)
    except OSError as error:
        raise ModelFileError(f"{source} cannot be read: {error.strerror or error}") from error
    if not source.is_file():
        raise ModelFileError(f"{source} does not exist" if not source.exists() else f"{source} is a folder, not a file")
    try:
        with safe_open(source, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, _unpacked(file.metadata() or {})  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{source} is damaged, cut short or not a .safetensors file: {error}") from error


def _unpacked(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata as given to ``write_state``; files of earlier versions hold them one by one."""
    if _KEY not in metadata:
        return dict(metadata)
    found = json.loads(metadata[_KEY])
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
