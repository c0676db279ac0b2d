"""``graphkit run``: run a model once."""

from __future__ import annotations

import time
from typing import Any

import click

from graphkit.cli import options, output


@click.command("run")
@click.argument("model")
@options.feeding
@options.running
@click.option("--output", "names", multiple=True, metavar="NAME", help="Only this output; may be repeated.")
@click.option("--check-finite", is_flag=True, help="Refuse inputs that hold NaN or infinite values.")
@click.option("-o", "target", metavar="FILE", help="Write the outputs to a .npz, .json or (one output) .npy file.")
@options.as_json
def command(
    model: str,
    single: dict[str, str],
    file: str | None,
    random: bool,
    cast: bool,
    dims: dict[str, int],
    seed: int,
    device: str,
    threads: int | None,
    no_optimizations: bool,
    names: tuple[str, ...],
    check_finite: bool,
    target: str | None,
    as_json: bool,
) -> None:
    """Run MODEL once and show, or write, its outputs.

    \b
    graphkit run m.onnx --input x=x.npy -o out.npz
    graphkit run m.onnx --inputs feeds.json --json
    graphkit run m.onnx --random --dim batch=4
    """  # noqa: D301  # \\b tells click to leave the lines as they are
    from graphkit.errors import InputError
    from graphkit.exporters.inputs import random_inputs
    from graphkit.modelfile import read_model
    from graphkit.runtime import Session

    output.check_writable(target)
    loaded = read_model(model)
    session = Session(model, device, threads, not no_optimizations)
    feeds = options.read_feeds(session.inputs, single, file, cast)
    if random:
        feeds = random_inputs(loaded, dims, seed, feeds)
    elif dims:
        raise click.UsageError("--dim sizes made-up inputs; it goes with --random")
    elif not feeds and any(one.required and not one.nullable for one in session.inputs):
        wanted = ", ".join(str(one) for one in session.inputs)
        raise InputError(f"{model} takes {wanted}: give them with --input or --inputs, or make them up with --random")
    started = time.perf_counter()
    results = session.run(feeds, names or None, check_finite=check_finite)
    seconds = time.perf_counter() - started
    if target is not None:
        output.write_arrays(target, results)
    if as_json:
        output.emit_json({"device": session.device, "seconds": seconds, "outputs": _described(results, target)})
    else:
        _show(results, target, seconds, session.device)


def _described(results: dict[str, Any], target: str | None) -> dict[str, Any]:
    """Return the outputs as JSON holds them; the values themselves unless they went to a file."""
    found = {}
    for name, value in results.items():
        one: dict[str, Any] = {"type": output.array_line(value)[0]}
        if hasattr(value, "shape"):
            one["shape"] = list(value.shape)
        found[name] = one | ({"file": target} if target is not None else {"data": value})
    return found


def _show(results: dict[str, Any], target: str | None, seconds: float, device: str) -> None:
    from rich.table import Table

    table = Table("output", "type", "range", "begins")
    for name, value in results.items():
        table.add_row(name, *output.array_line(value))
    screen = output.console()
    screen.print(table)
    screen.print(f"{seconds * 1e3:.3g} ms on {device}" + (f"; written to {target}" if target else ""))
