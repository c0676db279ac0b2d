"""``graphkit bench``: how long a run takes."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import options, output

if TYPE_CHECKING:
    from graphkit.runtime import Session


@click.command("bench")
@click.argument("models", nargs=-1, required=True)
@options.feeding
@options.running
@click.option("--repeat", type=click.IntRange(min=1), default=50, show_default=True, help="Timed runs of each model.")
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True, help="Runs before timing.")
@options.as_json
def command(
    models: tuple[str, ...],
    single: dict[str, str],
    file: str | None,
    random: bool,
    cast: bool,
    dims: dict[str, int],
    seed: int,
    device: str,
    threads: int | None,
    no_optimizations: bool,
    repeat: int,
    warmup: int,
    as_json: bool,
) -> None:
    """Time MODELS, each run of one followed by a run of the next, so that they share the machine's moods.

    Inputs that are not given are made up, alike for all models.
    """
    del random  # what is not given is made up here in any case
    from graphkit.exporters.inputs import random_inputs
    from graphkit.runtime import Session

    sessions, feeds, loading = [], [], []
    for path in models:
        started = time.perf_counter()
        session = Session(path, device, threads, not no_optimizations)
        loading.append(time.perf_counter() - started)
        sessions.append(session)
        sizes = dims if path == models[0] else options.dims_of(path, dims)
        feeds.append(random_inputs(path, sizes, seed, options.read_feeds(session.inputs, single, file, cast)))
    times = _times(sessions, feeds, repeat, warmup)
    rows = [_row(*one) for one in zip(models, loading, times, strict=True)]
    if as_json:
        output.emit_json({"device": sessions[0].device, "threads": threads, "repeat": repeat, "models": rows})
    else:
        _show(rows, sessions[0].device)


def _times(sessions: list[Session], feeds: list[dict[str, Any]], repeat: int, warmup: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in sessions]
    for turn in range(warmup + repeat):
        for session, fed, kept in zip(sessions, feeds, times, strict=True):
            started = time.perf_counter()
            session.run(fed)
            if turn >= warmup:
                kept.append(time.perf_counter() - started)
    return times


def _row(path: str, loading: float, times: list[float]) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "model": path,
        "load_ms": loading * 1e3,
        "median_ms": statistics.median(ordered) * 1e3,
        "least_ms": ordered[0] * 1e3,
        "p90_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))] * 1e3,
    }


def _show(rows: list[dict[str, Any]], device: str) -> None:
    from rich.table import Table

    table = Table("model", title=f"milliseconds on {device}")
    for heading in ("load", "median", "least", "90%", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        ratio = f"{row['median_ms'] / rows[0]['median_ms']:.2f}"
        table.add_row(
            row["model"], *(f"{row[key]:.3f}" for key in ("load_ms", "median_ms", "least_ms", "p90_ms")), ratio
        )
    output.console().print(table)
