"""Options that several verbs share, and reading what they name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from graphkit.runtime import Port

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
F = TypeVar("F", bound=Callable[..., Any])


def as_json(function: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(function)


def device(function: F) -> F:
    """Add ``--device``."""
    text = "cpu, cuda, cuda:1, or auto (CUDA if it starts)."
    return click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help=text)(function)


def threads(function: F) -> F:
    """Add ``--threads``."""
    text = "Threads of one operator; all cores by default."
    return click.option("--threads", type=click.IntRange(min=1), help=text)(function)


def running(function: F) -> F:
    """Add the options that say how a model is run: device, threads, optimizations."""
    text = "Turn ONNX Runtime's own graph optimizations off."
    return device(threads(click.option("--no-optimizations", is_flag=True, help=text)(function)))


def made_up(function: F) -> F:
    """Add the options that say how inputs are made up: sizes of symbolic dimensions, seed."""
    function = click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="What random inputs are drawn from."
    )(function)
    return click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=SIZE",
        callback=sizes,
        help="The size of a symbolic dimension (x.0: the first of x, if it has no name); 1 if not given.",
    )(function)


def feeding(function: F) -> F:
    """Add the options that feed a model."""
    function = made_up(function)
    function = click.option("--cast", is_flag=True, help="Convert arrays to the dtypes that the model declares.")(
        function
    )
    function = click.option("--random", is_flag=True, help="Make up the inputs that are not given.")(function)
    function = click.option(
        "--inputs", "file", metavar="FILE", help="Inputs by name: a .npz or .json file, or a test_data_set folder."
    )(function)
    return click.option(
        "--input",
        "single",
        multiple=True,
        metavar="NAME=VALUE",
        callback=pairs,
        help="One input: a .npy or .pb file, or the value itself (lr=0.1, ids=[[1,2]]).",
    )(function)


def pairs(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUE``, several times."""
    del ctx
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param=parameter)
        if name in found:
            raise click.BadParameter(f"{name} is given twice, as {found[name]!r} and as {value!r}", param=parameter)
        found[name] = value
    return found


def sizes(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> dict[str, int]:
    """Read ``--dim NAME=SIZE``."""
    found = {}
    for name, value in pairs(ctx, parameter, given).items():
        if not value.isdecimal():
            raise click.BadParameter(f"the size of {name} is a whole number, not {value!r}", param=parameter)
        found[name] = int(value)
    return found


def dims_of(model: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Return those of ``dims`` that a model's inputs have: models beside each other may name them differently."""
    from graphkit.exporters.inputs import model_inputs, symbolic_dims
    from graphkit.modelfile import read_model

    known = symbolic_dims(model_inputs(read_model(model)))
    return {name: size for name, size in dims.items() if name in known}


def read_feeds(ports: Sequence[Port], single: Mapping[str, str], file: str | None, cast: bool) -> dict[str, Any]:
    """Return what ``--inputs`` and ``--input`` name, by input; the runtime checks that it fits."""
    from graphkit.errors import InputError
    from graphkit.runtime.feeds import by_name

    feeds: dict[str, Any] = {}
    if file is not None:
        feeds.update(by_name(ports, read_file(Path(file))))
    declared = {one.name: one for one in ports}
    for name, text in single.items():
        feeds[name] = _read_value(name, text, declared.get(name))
    for name, value in feeds.items():
        if name in declared and declared[name].dtype != object:
            feeds[name] = _numbers(value)
    if cast:
        for name, value in feeds.items():
            one = declared.get(name)
            if one is not None and one.dtype is not None and hasattr(value, "astype") and value.dtype != one.dtype:
                try:
                    feeds[name] = value.astype(one.dtype)
                except (TypeError, ValueError) as error:
                    raise InputError(f"input '{name}' cannot be converted to {one.type}: {error}") from error
    return feeds


def _numbers(value: Any) -> Any:
    """Return JSON with the numbers that it lacks, which ``--json`` writes as text, as numbers."""
    if isinstance(value, list):
        return [_numbers(element) for element in value]
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


def read_file(path: Path) -> Any:
    """Read inputs by name from a .npz or .json file or a test data set."""
    from graphkit.errors import InputError
    from graphkit.modelfile.files import check_readable

    if path.is_dir():
        from graphkit.exporters.test_vectors import read_test_vectors

        return read_test_vectors(path).inputs
    suffix = path.suffix.lower()
    if suffix == ".npz":
        loaded = _load_numpy(path)
        if not isinstance(loaded, dict):
            raise InputError(f"{path} holds one array, not arrays by name; feed it with --input NAME={path}")
        return loaded
    if suffix == ".json":
        try:
            check_readable(path)
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise InputError(f'{path} holds no inputs by name; write {{"name": value, ...}}')
        return content
    raise click.UsageError(f"--inputs takes a .npz or .json file or a test_data_set folder, not {path.name}")


def _read_value(name: str, text: str, one: Port | None) -> Any:
    from graphkit.errors import InputError

    path = Path(text)
    if path.suffix.lower() == ".npy":
        return _load_numpy(path)
    if path.suffix.lower() == ".pb":
        from graphkit.exporters.test_vectors import read_tensor

        return read_tensor(path)[1]
    try:
        return json.loads(text)
    except ValueError:
        if one is not None and one.dtype is not None and one.dtype == object:
            return text
        raise InputError(f"input '{name}': {text!r} is neither a .npy or .pb file nor a number or list") from None


def _load_numpy(path: Path) -> Any:
    """Read a numpy file, one array or arrays by name, without unpickling anything."""
    import numpy as np

    from graphkit.errors import InputError
    from graphkit.modelfile.files import check_readable

    name = ""
    try:
        check_readable(path)
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not hasattr(loaded, "files"):
                return loaded
            arrays = {}
            for name in loaded.files:  # an error below names the array it was at
                arrays[name] = loaded[name]
            return arrays
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
        raise InputError(f"{path}{f', {name!r}' if name else ''}: {_numpy_problem(error)}") from error


def _numpy_problem(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return (
            "it holds Python objects, or is no numpy file; objects would be unpickled, which can run any program. "
            "Save numbers with their dtype and text with a dtype such as 'U20', or use a .json file"
        )
    return f"the file is damaged or cut short: {error}"
