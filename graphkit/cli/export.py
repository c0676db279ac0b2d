"""``graphkit export``: a Python function or module as an ONNX file."""

from __future__ import annotations

import importlib
import re
import sys
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
@click.option("--opset", type=click.IntRange(min=7, max=26), default=21, show_default=True, help="The opset to write.")
@click.option("--verify/--no-verify", default=True, show_default=True, help="Run the file beside the function.")
@options.as_json
def command(what: str, inputs: tuple[str, ...], target: str, opset: int, verify: bool, as_json: bool) -> None:
    """Record a function, a module, or a class that makes one without arguments, and write it as an ONNX file.

    \b
    graphkit export my_package.net:forward --input x:float32[batch,784] -o m.onnx
    """  # noqa: D301  # \\b tells click to leave the line as it is
    import graphkit
    from graphkit.modelfile import read_model

    specs = [_spec(text) for text in inputs]
    subject = _subject(what)
    graphkit.export(subject, specs, target, opset=opset, verify=verify)
    graph = read_model(target).graph
    if as_json:
        names = {"inputs": [v.name for v in graph.inputs], "outputs": [v.name for v in graph.outputs]}
        output.emit_json({"output": target, "nodes": len(graph), "verified": verify} | names)
    else:
        click.echo(f"{len(graph):,} nodes written to {target}{', and they agree with the function' if verify else ''}")


def _spec(text: str) -> Any:
    import graphkit

    found = re.fullmatch(r"([^:\[\]]+):(\w+)(?:\[([^\[\]]*)\])?", text)
    if found is None:
        raise click.UsageError(f"{text!r} is not NAME:DTYPE[DIMS], such as x:float32[batch,784] or lr:float32[]")
    name, dtype, dims = found.groups()
    shape = [int(d) if d.isdecimal() else d for d in (part.strip() for part in (dims or "").split(",")) if d]
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
