"""``graphkit export``: a Python function or module as an ONNX file."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from graphkit.cli import options, output


@click.command("export")
@click.argument("what", metavar="PKG.MODULE:NAME")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:DTYPE[DIMS]",
    help="One input in order, such as x:float32[batch,784]; a name among the dims is a dimension that may vary.",
)
@click.option("-o", "--output", "target", required=True, metavar="FILE", help="Where the model goes.")
@click.option("--opset", type=click.IntRange(min=7, max=26), help="The opset to write; 21, or newer where needed.")
@click.option("--verify/--no-verify", default=True, show_default=True, help="Run the model beside the function.")
@click.option("--test-vectors", is_flag=True, help="Also write test_data_set_0 beside it, gradients included.")
@options.as_json
def command(
    what: str, inputs: tuple[str, ...], target: str, opset: int | None, verify: bool, test_vectors: bool, as_json: bool
) -> None:
    """Record a function, a module, or a class that makes one without arguments, and write it as an ONNX file.

    \b
    graphkit export my_package.net:forward --input x:float32[batch,784] -o m.onnx
    """  # noqa: D301  # \b tells click to leave the line as it is
    from graphkit.errors import GraphkitError
    from graphkit.exporters import export

    output.check_writable(target)
    specs = {spec.name: spec for spec in map(_spec, inputs)}
    subject = _subject(what)
    try:
        model = export(subject, specs, target, opset=opset, verify=verify, test_vectors=test_vectors)
    except (GraphkitError, OSError):
        raise
    except Exception as error:  # what the user's own function raises, told with its place
        raise GraphkitError(f"{what} raised {type(error).__name__}: {error} ({_place(error)})") from error
    graph = model.graph
    if as_json:
        names = {"inputs": [v.name for v in graph.inputs], "outputs": [v.name for v in graph.outputs]}
        output.emit_json({"output": target, "nodes": len(graph), "verified": verify} | names)
    else:
        agree = ", and the model agrees with the function" if verify else ""
        click.echo(f"{len(graph):,} nodes written to {target}{agree}")


def _place(error: Exception) -> str:
    """Return the innermost line that is not graphkit's own."""
    import graphkit

    own = str(Path(str(graphkit.__file__)).parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(own)] or frames
    return f"{theirs[-1].filename}:{theirs[-1].lineno}"


def _spec(text: str) -> Any:
    import graphkit

    found = re.fullmatch(r"([^:\[\]]+):(\w+)\[([^\[\]]*)\]", text)
    if found is None and re.fullmatch(r"[^:\[\]]+:\w+", text):
        raise click.UsageError(f"{text!r} does not say its dims; write {text}[] for a scalar, or {text}[batch,784]")
    if found is None:
        raise click.UsageError(f"{text!r} is not NAME:DTYPE[DIMS], such as x:float32[batch,784] or lr:float32[]")
    name, dtype, dims = found.groups()
    shape = [int(d) if d.isdecimal() else d for d in (part.strip() for part in dims.split(",")) if d]
    try:
        return graphkit.spec(dtype, shape, name)
    except TypeError as error:
        raise click.UsageError(f"{text!r}: {error}") from error


def _subject(what: str) -> Any:
    """Import what PKG.MODULE:NAME names, looking in the current folder as Python itself would."""
    from graphkit.errors import GraphkitError, did_you_mean

    module_name, colon, path = what.partition(":")
    if not colon or not module_name or not path:
        raise click.UsageError(f"{what!r} is not PKG.MODULE:NAME, such as my_package.net:forward")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise GraphkitError(f"{module_name} cannot be imported: {error}") from error
    except Exception as error:
        raise GraphkitError(f"{module_name} cannot be imported, it raises {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise GraphkitError(f"{module_name} has no '{part}'.{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if isinstance(found, type):
        try:
            return found()
        except TypeError as error:
            raise GraphkitError(f"{what} is a class that cannot be made without arguments: {error}") from error
    if not callable(found):
        raise GraphkitError(f"{what} is a {type(found).__name__}, not a function or module")
    return found
