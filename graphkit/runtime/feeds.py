"""What a model takes, and whether what it is fed fits.

ONNX Runtime's own messages do not name the input of a wrong dtype, it reads big-endian arrays as garbage, and it takes
two sizes for one symbolic dimension wherever its kernels happen to broadcast. So every feed is checked here first, and
everything that is wrong with it is said in one ``InputError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from graphkit.dims import Dims, Extent, anonymous, is_anonymous, text
from graphkit.dtypes import STRING, is_float
from graphkit.dtypes import name as dtype_name
from graphkit.errors import InputError, did_you_mean

Kind = Literal["tensor", "sequence", "optional", "optional sequence", "other"]


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a model: its name, dtype and dims (names for symbolic ones; None for an unknown rank)."""

    name: str
    dtype: np.dtype[Any] | None
    dims: Dims | None
    kind: Kind = "tensor"
    required: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"

    @property
    def type(self) -> str:
        """The type as users write it, ``float32[batch, 784]``."""
        dtype = "unknown" if self.dtype is None else dtype_name(self.dtype)
        tensor = f"{dtype}{text(self.dims)}"
        return {
            "tensor": tensor,
            "sequence": f"a list of {tensor}",
            "optional": f"{tensor} or None",
            "optional sequence": f"a list of {tensor}, or None",
            "other": "a map",
        }[self.kind]

    @property
    def nullable(self) -> bool:
        """Whether None may be given."""
        return self.kind.startswith("optional")


def port(value: ir.Value, required: bool = True) -> Port:
    """Return the port that an ``onnx_ir`` input or output describes."""
    dims = None
    if value.shape is not None:
        dims = tuple(_extent(extent) for extent in value.shape)
    declared, kind = value.type, "tensor"
    if isinstance(declared, ir.OptionalType):
        declared, kind = declared.elem_type, "optional"
    if isinstance(declared, ir.SequenceType):
        kind = "sequence" if kind == "tensor" else "optional sequence"
    known = declared is None or isinstance(declared, (ir.TensorType, ir.SequenceType))
    dtype = value.dtype.numpy() if value.dtype not in (None, ir.DataType.UNDEFINED) else None
    return Port(value.name or "", dtype, dims, kind if known else "other", required)  # type: ignore[arg-type]  # a Kind


def _extent(extent: int | ir.SymbolicDim) -> Extent:
    if isinstance(extent, int):
        return extent if extent >= 0 else anonymous()  # some exporters write -1 for a dimension they do not know
    return str(extent.value) if extent.value is not None else anonymous()


def prepare(ports: Sequence[Port], feeds: Any, constants: Iterable[str] = ()) -> dict[str, Any]:
    """Return ``feeds`` by name, each value in the form the runtime takes, or raise one ``InputError``.

    ``feeds`` is a mapping by name, a list or tuple in the model's order, or the one input itself. Arrays must have the
    declared dtype; Python numbers and lists are converted where that keeps their value.

    >>> prepare([Port("x", np.dtype("float32"), (2,))], {"x": [1, 2]})["x"]
    array([1., 2.], dtype=float32)
    """
    named = by_name(ports, feeds)
    _check_names(ports, named, set(constants))
    problems: list[str] = []
    ready: dict[str, Any] = {}
    for one in ports:
        if one.name in named:
            try:
                ready[one.name] = _value(one, named[one.name])
            except _UnfitError as unfit:
                problems.append(f"input '{one.name}' takes {one.type}, but got {unfit}")
    problems.extend(_conflicts(ports, ready))
    if problems:
        raise InputError("\n".join(problems))
    return ready


class FeedCheck:
    """``prepare`` for one model again and again: feeds like the ones before them, which fitted, pass at once."""

    def __init__(self, ports: Sequence[Port], constants: Iterable[str] = ()) -> None:
        self._ports, self._constants = ports, frozenset(constants)
        self._last: list[tuple[str, np.dtype[Any], tuple[int, ...]]] | None = None

    def __call__(self, feeds: Any) -> dict[str, Any]:
        """Return ``feeds`` in the form the runtime takes, or raise ``InputError``."""
        if self._last is not None and type(feeds) is dict and len(feeds) == len(self._last):
            for name, dtype, shape in self._last:
                array = feeds.get(name)
                if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                    break
                if not array.flags.c_contiguous:
                    break
            else:
                return feeds
        ready = prepare(self._ports, feeds, self._constants)
        # Text is looked at every time: its dtype says only that it is made of objects.
        arrays = all(isinstance(array, np.ndarray) and array.dtype != STRING for array in ready.values())
        self._last = [(name, array.dtype, array.shape) for name, array in ready.items()] if arrays else None
        return ready


def by_name(ports: Sequence[Port], feeds: Any) -> dict[str, Any]:
    """Return positional feeds under the names of the inputs they are for."""
    if isinstance(feeds, Mapping):
        return {str(name): value for name, value in feeds.items()}
    if not isinstance(feeds, (list, tuple)):
        feeds = [feeds]
    if len(feeds) > len(ports):
        raise InputError(f"got {len(feeds)} inputs for a model that takes {_listing(ports)}")
    return {one.name: value for one, value in zip(ports, feeds, strict=False)}


def check_feeds_finite(feeds: Mapping[str, Any]) -> None:
    """Raise ``InputError`` naming the inputs that hold NaN or infinite values."""
    problems = []
    for name, value in feeds.items():
        for array in value if isinstance(value, list) else [value]:
            if array is None or not is_float(array.dtype):
                continue
            bad = ~np.isfinite(array)
            if bad.any():
                nans, first = int(np.isnan(array).sum()), np.argwhere(bad)[0].tolist()
                problems.append(
                    f"input '{name}' holds {nans} NaN and {int(bad.sum()) - nans} infinite values, the first at {first}"
                )
    if problems:
        raise InputError("\n".join(problems))


class _UnfitError(Exception):
    """Why one value does not fit its input; the text completes "but got ..."."""


def _check_names(ports: Sequence[Port], named: Mapping[str, Any], constants: set[str]) -> None:
    known = [one.name for one in ports]
    missing = [one.name for one in ports if one.required and not one.nullable and one.name not in named]
    unknown = [name for name in named if name not in known]
    if not missing and not unknown:
        return
    parts = []
    if missing:
        parts.append(f"missing input{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}")
    for name in unknown:
        if name in constants:
            parts.append(f"'{name}' is a constant of the model, not an input")
        else:
            hint = did_you_mean(name, missing or known).strip().rstrip("?")
            parts.append(f"unknown input '{name}'{f' ({hint[0].lower()}{hint[1:]}?)' if hint else ''}")
    raise InputError(f"{'; '.join(parts)}. The model takes {_listing(ports)}")


def _listing(ports: Sequence[Port]) -> str:
    if not ports:
        return "no inputs"
    return ", ".join(f"{one}{'' if one.required else ' (optional)'}" for one in ports)


def _value(one: Port, value: Any) -> Any:
    if one.kind == "other" or one.dtype is None:
        return value
    if value is None:
        if one.nullable:
            return None
        raise _UnfitError("None")
    if one.kind.endswith("sequence"):
        if not isinstance(value, (list, tuple)):
            raise _UnfitError(f"a {type(value).__name__}; give a list of arrays, one for each element")
        return [_array(one, element) for element in value]
    return _array(one, value)


def _array(one: Port, value: Any) -> np.ndarray[Any, Any]:
    wanted = one.dtype
    assert wanted is not None
    array = _typed(value, wanted) if _is_python(value) else _strict(value, wanted)
    if one.dims is not None and (one.kind == "tensor" or one.kind == "optional"):
        if array.ndim != len(one.dims):
            raise _UnfitError(f"rank {array.ndim} {_of(array)} where rank {len(one.dims)} is expected")
        for axis, (extent, got) in enumerate(zip(one.dims, array.shape, strict=True)):
            if isinstance(extent, int) and extent != got:
                raise _UnfitError(f"{_of(array)}: dimension {axis} is {got}, expected {extent}")
    # ascontiguousarray would turn a rank-0 array into rank 1; a rank-0 array is always contiguous.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _of(array: np.ndarray[Any, Any]) -> str:
    return f"{dtype_name(array.dtype)}{list(array.shape)}"


def _is_python(value: Any) -> bool:
    """Whether a value is made of Python numbers and lists alone, which have no dtype of their own."""
    while isinstance(value, (list, tuple)) and value:
        if any(hasattr(element, "dtype") or hasattr(element, "__array__") for element in value):
            return False
        value = value[0]
    return isinstance(value, (bool, int, float, complex, str, list, tuple)) and not isinstance(value, np.generic)


def _typed(value: Any, wanted: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert Python numbers, strings and lists of them to the declared dtype, if that keeps every value."""
    if wanted == STRING:
        return _strings(_as_array(value, np.dtype(object)))
    array = _as_array(value, None)
    if array.size == 0:
        return array.astype(wanted)
    if array.dtype.kind not in "biufc":
        raise _UnfitError(f"{'text' if array.dtype.kind in 'US' else 'Python values that are not all numbers'}")
    with np.errstate(all="ignore"):
        converted = array.astype(wanted)
        if array.dtype.kind == "f" and is_float(wanted):
            kept = bool((np.isfinite(converted) | ~np.isfinite(array)).all())  # rounding is what a weak float means
        else:
            kept = bool((converted.astype(array.dtype) == array).all())
    if not kept:
        lost = _first_lost(array, converted)
        raise _UnfitError(f"Python numbers that {dtype_name(wanted)} does not hold exactly, such as {lost}")
    return converted


def _first_lost(array: np.ndarray[Any, Any], converted: np.ndarray[Any, Any]) -> Any:
    with np.errstate(all="ignore"):
        lost = converted.astype(array.dtype) != array
    return array[lost].ravel()[0].item()


def _as_array(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value, dtype=dtype)
    except (
        ValueError,
        OverflowError,
        TypeError,
        RuntimeError,
    ) as error:  # the last is PyTorch for a leaf with a gradient
        raise _UnfitError(f"a value that numpy makes no array of: {error}") from error


def _strict(value: Any, wanted: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of the declared dtype without converting any value: only byte order and kinds of text differ."""
    array = _as_array(value, None)
    if wanted == STRING:
        return _strings(array)
    if array.dtype == wanted:
        return array
    if array.dtype.newbyteorder("=") == wanted:
        return array.astype(wanted)
    hint = f"; convert it with .astype('{dtype_name(wanted)}')" if array.dtype.kind in "biufc" else ""
    raise _UnfitError(f"{_of(array) if array.dtype.kind != 'O' else 'an array of Python objects'}{hint}")


def _strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8").astype(object)
        except UnicodeDecodeError as error:
            raise _UnfitError("bytes that are not UTF-8 text") from error
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype.kind != "O":
        raise _UnfitError(f"{_of(array)}; give an array of str")
    for element in array.flat:
        if not isinstance(element, str):
            raise _UnfitError(f"an array that holds {element!r} ({type(element).__name__}), not only str")
    return array


def _conflicts(ports: Sequence[Port], ready: Mapping[str, Any]) -> list[str]:
    """Say where one symbolic dimension was fed two sizes."""
    seen: dict[str, tuple[int, str]] = {}
    problems = []
    for one in ports:
        array = ready.get(one.name)
        if one.dims is None or not isinstance(array, np.ndarray):
            continue
        for extent, got in zip(one.dims, array.shape, strict=True):
            if not isinstance(extent, str) or is_anonymous(extent):
                continue
            size, name = seen.setdefault(extent, (got, one.name))
            if size != got:
                problems.append(f"dimension '{extent}' is {size} in input '{name}' but {got} in input '{one.name}'")
    return problems
