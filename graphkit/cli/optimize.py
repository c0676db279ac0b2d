"""``graphkit optimize``: a smaller, faster model that computes the same."""

from __future__ import annotations

from pathlib import Path

import click

from graphkit.cli import options, output


@click.command("optimize")
@click.argument("model")
@click.option("-o", "--output", "target", required=True, metavar="FILE", help="Where the result goes.")
@click.option("--preset", default="inference", show_default=True, help="inference, training, web, cuda or none.")
@click.option("--passes", metavar="A,B", help="Run exactly these passes instead of the preset's.")
@click.option("--skip", metavar="A,B", help="Leave these passes out.")
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Run the result beside the original; the default for models below 200 MB.",
)
@click.option("--opset", type=click.IntRange(min=7, max=26), help="The opset to write; MODEL's own by default.")
@click.option("--strict", is_flag=True, help="Fail where a pass changes the result, instead of taking it back.")
@click.option("--report", metavar="FILE", help="Write the report as JSON.")
@options.as_json
def command(
    model: str,
    target: str,
    preset: str,
    passes: str | None,
    skip: str | None,
    verify: bool | None,
    opset: int | None,
    strict: bool,
    report: str | None,
    as_json: bool,
) -> None:
    """Make MODEL smaller and faster, and check that it still computes the same."""
    from graphkit.modelfile import write_model
    from graphkit.modelfile.files import replacing
    from graphkit.optimizers import Report, optimize

    if report is not None and Path(report).resolve() == Path(target).resolve():
        raise click.UsageError("--report and -o name the same file")
    output.check_writable(target, report)
    account = Report()
    chosen = None if passes is None else _names(passes)
    left_out = () if skip is None else _names(skip)
    result = optimize(
        model, preset, passes=chosen, skip=left_out, verify=verify, strict=strict, report=account, opset=opset
    )
    if report is None:
        write_model(result, target)
    else:
        with replacing(report) as file:  # which takes its place when the model is written, and only then
            file.write((account.to_json() + "\n").encode())
            file.flush()
            write_model(result, target)
    if as_json:
        output.emit_json(account.to_dict() | {"output": target})
    else:
        screen = output.console()
        screen.print(account.table())
        screen.print(f"written to {target}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
