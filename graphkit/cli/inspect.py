"""``graphkit inspect``: what is in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphkit.cli import options, output

if TYPE_CHECKING:
    from graphkit.exporters.summary import Summary


@click.command("inspect")
@click.argument("model")
@options.feeding
@click.option("--text", is_flag=True, help="List the graph instead, one line an operator.")
@click.option(
    "--gradients", metavar="NAME", help="Show the gradient of this scalar output for every parameter instead."
)
@options.as_json
def command(
    model: str,
    single: dict[str, str],
    file: str | None,
    random: bool,
    cast: bool,
    dims: dict[str, int],
    seed: int,
    text: bool,
    gradients: str | None,
    as_json: bool,
) -> None:
    """Show MODEL's operators with counts and FLOPs, its parameters, opset, inputs and outputs.

    A multiplication and an addition count as two operations; symbolic dimensions count as 1 or as --dim says. With
    --gradients the model is run on the inputs given, or on made-up ones.
    """
    del random  # what is not given is made up here in any case
    if gradients is not None:
        from graphkit.cli.gradients import show_gradients
        from graphkit.exporters.inputs import model_inputs
        from graphkit.modelfile import read_model

        feeds = options.read_feeds(model_inputs(read_model(model)), single, file, cast)
        show_gradients(model, gradients, feeds, dims, seed, as_json=as_json)
        return
    if single or file:
        raise click.UsageError("--input and --inputs go with --gradients")
    if text:
        from graphkit.exporters.picture import listing

        click.echo(listing(model))
        return
    from graphkit.exporters.summary import summarize

    summary = summarize(model, dims)
    if as_json:
        output.emit_json(summary.as_dict())
    else:
        _show(model, summary)


def _show(model: str, summary: Summary) -> None:
    from rich.markup import escape
    from rich.table import Table

    screen = output.console()
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    opsets = ", ".join(f"{domain} {version}" for domain, version in summary.opsets.items())
    facts.add_row("model", escape(model))
    if summary.producer:
        facts.add_row("made by", escape(summary.producer))
    facts.add_row("opset", opsets)
    facts.add_row("IR version", _ir_text(summary))
    for label, ports in (("inputs", summary.inputs), ("outputs", summary.outputs)):
        for number, one in enumerate(ports):
            default = "" if one.required else "  (has a default)"
            facts.add_row("" if number else label, escape(f"{one}{default}"))
    kinds = ", ".join(f"{count:,} {name}" for name, count in summary.parameter_dtypes.items())
    facts.add_row(
        "parameters",
        f"{summary.parameters:,} ({output.size_text(summary.parameter_bytes)}{f'; {kinds}' if kinds else ''})",
    )
    facts.add_row("nodes", f"{summary.nodes:,}")
    sizes = ", ".join(f"{name}={size}" for name, size in summary.dims.items())
    least = "at least " if summary.unknown else ""
    where = f" at {sizes}" if sizes else ""
    facts.add_row("FLOPs", f"{least}{summary.flops:,} ({output.size_text(summary.flops, 'FLOP')}){where}")
    peak = output.size_text(summary.peak_activation_bytes)
    facts.add_row("activations", f"{peak} at the peak, by estimate{where}")
    for key, value in summary.metadata.items():
        facts.add_row("metadata", escape(f"{key} = {value if len(value) <= 80 else value[:77] + '...'}"))
    screen.print(facts)
    table = Table("operator")
    for heading in ("count", "FLOPs", "share"):
        table.add_column(heading, justify="right")
    for operator in summary.operators:
        share = f"{operator.flops / summary.flops:.1%}" if summary.flops else ""
        missing = f" + {operator.unknown} unknown" if operator.unknown else ""
        table.add_row(operator.name, f"{operator.count:,}", f"{operator.flops:,}{missing}", share)
    screen.print(table)
    if summary.unknown:
        screen.print(
            f"{summary.unknown} nodes have shapes or operators that are not known, so their operations are not counted."
        )


def _ir_text(summary: Summary) -> str:
    if summary.lowest_ir_version < summary.ir_version:
        return f"{summary.ir_version} ({summary.lowest_ir_version} would do)"
    return str(summary.ir_version)
