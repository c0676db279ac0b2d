"""``graphkit compare``: two models on the same inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphkit.cli import options, output

if TYPE_CHECKING:
    from graphkit.exporters.summary import Summary
    from graphkit.exporters.verify import Difference


@click.command("compare")
@click.argument("first")
@click.argument("second")
@options.feeding
@options.running
@click.option("--rtol", type=float, help="Relative tolerance; by default it follows the dtype (float32: 1e-4).")
@click.option("--atol", type=float, help="Absolute tolerance; by default it follows the dtype (float32: 1e-5).")
@options.as_json
def command(
    first: str,
    second: str,
    single: dict[str, str],
    file: str | None,
    random: bool,
    cast: bool,
    dims: dict[str, int],
    seed: int,
    device: str,
    threads: int | None,
    no_optimizations: bool,
    rtol: float | None,
    atol: float | None,
    as_json: bool,
) -> None:
    """Run FIRST and SECOND on the same inputs and show how far their outputs differ.

    Inputs that are not given are made up. The exit code is 1 where an output disagrees.
    """
    del random  # what is not given is made up here in any case
    from graphkit.errors import VerificationError
    from graphkit.exporters.inputs import random_inputs
    from graphkit.exporters.summary import summarize
    from graphkit.exporters.verify import compare_outputs
    from graphkit.runtime import Session

    sessions = [Session(path, device, threads, not no_optimizations) for path in (first, second)]
    feeds = random_inputs(first, dims, seed, options.read_feeds(sessions[0].inputs, single, file, cast))
    expected, got = (session.run(feeds) for session in sessions)
    differences = compare_outputs(expected, got, rtol=rtol, atol=atol)
    summaries = [summarize(path, options.dims_of(path, dims)) for path in (first, second)]
    wrong = [difference.name for difference in differences if not difference.agrees]
    if as_json:
        output.emit_json(
            {
                "agree": not wrong,
                "outputs": [
                    {
                        "name": d.name,
                        "type": d.type,
                        "absolute": d.absolute,
                        "relative": d.relative,
                        "agrees": d.agrees,
                        "note": d.note,
                    }
                    for d in differences
                ],
                "models": [
                    {"path": path, "nodes": s.nodes, "parameters": s.parameters, "flops": s.flops}
                    for path, s in zip((first, second), summaries, strict=True)
                ],
            }
        )
    else:
        _show(differences, (first, second), summaries)
    if wrong:
        raise VerificationError(f"the models disagree in {', '.join(wrong)}")


def _show(differences: list[Difference], paths: tuple[str, str], summaries: list[Summary]) -> None:
    from rich.table import Table

    screen = output.console()
    table = Table("output", "type", "largest difference", "relative", "")
    for one in differences:
        verdict = "agrees" if one.agrees else "DIFFERS"
        table.add_row(one.name, one.type, f"{one.absolute:.3g}", f"{one.relative:.3g}", f"{verdict} {one.note}".strip())
    screen.print(table)
    counts = [{operator.name: operator.count for operator in summary.operators} for summary in summaries]
    table = Table("operator", *paths)
    for name in sorted(counts[0] | counts[1]):
        before, after = counts[0].get(name, 0), counts[1].get(name, 0)
        if before != after:
            table.add_row(name, str(before), str(after))
    table.add_section()
    table.add_row("nodes", *(f"{summary.nodes:,}" for summary in summaries))
    table.add_row("parameters", *(f"{summary.parameters:,}" for summary in summaries))
    table.add_row("FLOPs", *(f"{summary.flops:,}" for summary in summaries))
    screen.print(table)
