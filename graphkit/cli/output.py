"""What verbs print: tables for people, JSON for scripts, arrays into files."""

from __future__ import annotations

import json
import math
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Return the console that tables go to: as wide as the terminal, and wide enough for any line in a file or pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def emit_json(value: Any) -> None:
    """Print ``value`` as JSON that every reader takes: numbers that JSON lacks are text ("NaN", "Infinity")."""
    click.echo(json.dumps(plain(value), ensure_ascii=False, indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value made of what JSON holds."""
    if isinstance(value, Mapping):
        return {str(key): plain(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return {"real": plain(value.real), "imag": plain(value.imag)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return float(value)  # a scalar of ml_dtypes


def check_writable(*paths: str | None) -> None:
    """Raise, before any work is done, where files of these names could not be written; None is for none."""
    from graphkit.errors import GraphkitError
    from graphkit.modelfile.files import target_of

    for path in paths:
        try:
            if path is not None:
                target_of(path)
        except OSError as error:
            raise GraphkitError(f"{path} could not be written: {error.strerror or error}") from error


def write_arrays(path: str, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to ``.npz``, ``.json``, or one to ``.npy``, whole or not at all, without pickling."""
    from graphkit.errors import GraphkitError
    from graphkit.modelfile.files import replacing, write_text

    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in (".npz", ".npy", ".json"):
        raise click.UsageError(f"-o takes a .npz, .npy or .json file, not {target.name}")
    if suffix == ".npy" and len(arrays) != 1:
        raise GraphkitError(f"{path}: a .npy file holds one array and the model made {len(arrays)}; write a .npz file")
    lists = [name for name, value in arrays.items() if value is None or isinstance(value, (list, tuple))]
    if lists and suffix != ".json":
        raise GraphkitError(f"{path}: output '{lists[0]}' is a list, not an array; write a .json file")
    try:
        if suffix == ".json":
            write_text(path, json.dumps(plain(arrays), ensure_ascii=False, allow_nan=False))
        elif suffix == ".npy":
            with replacing(path) as file:
                _write_array(file, next(iter(arrays.values())))
        else:
            with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
                for name, value in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        _write_array(member, value)
    except OSError as error:
        raise GraphkitError(f"{path} could not be written: {error.strerror or error}") from error


def _write_array(file: Any, value: Any) -> None:
    import numpy as np

    array = np.asarray(value)
    if array.dtype == object:
        array = array.astype(str)  # text of fixed width, which numpy reads back without pickle
    elif array.dtype.kind == "V" or array.dtype.isbuiltin != 1:
        # numpy files know no bfloat16, float8 or 4-bit types; float32 and int8 hold their values exactly.
        array = array.astype(np.int8 if "int" in array.dtype.name else np.float32)
    np.lib.format.write_array(file, array, allow_pickle=False)


def array_line(value: Any) -> tuple[str, str, str]:
    """Return a value's type, range and beginning, for a row of a table."""
    import numpy as np

    from graphkit.dtypes import name as dtype_name

    if value is None:
        return "none", "", ""
    if isinstance(value, (list, tuple, dict)):
        return f"{type(value).__name__} of {len(value)}", "", ""
    kind = f"{dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if value.size == 0:
        return kind, "", "(no elements)"
    beginning = ", ".join(_short(element) for element in value.ravel()[:4]) + (", ..." if value.size > 4 else "")
    if value.dtype == object or value.dtype.kind not in "biuf":
        return kind, "", beginning
    wide = value.astype(np.float64)
    nans = int(np.isnan(wide).sum())
    spread = (
        "all NaN"
        if nans == value.size
        else f"{np.nanmin(wide):.6g} to {np.nanmax(wide):.6g}, mean {np.nanmean(wide):.6g}"
    )
    return kind, spread + (f", {nans} NaN" if 0 < nans < value.size else ""), beginning


def _short(element: Any) -> str:
    if isinstance(element, str):
        return repr(element if len(element) < 30 else f"{element[:27]}...")
    return f"{float(element):.6g}" if hasattr(element, "dtype") and element.dtype.kind != "b" else str(element)


def size_text(count: float, unit: str = "B") -> str:
    """Return a number of bytes or operations with the prefix that keeps it short: ``1.24 MB``.

    >>> size_text(1_240_000), size_text(12, "FLOP")
    ('1.24 MB', '12 FLOP')
    """
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 1000 or prefix == "T":
            return f"{count:.3g} {prefix}{unit}" if prefix else f"{count:g} {unit}"
        count /= 1000
    raise AssertionError
