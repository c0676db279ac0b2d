"""``graphkit optimize``: a smaller, faster model that computes the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import options, output
from graphkit.cli.conversions import Conversions, conversions

if TYPE_CHECKING:
    import onnx_ir as ir

    from graphkit.optimizers.report import Explanation


@click.command("optimize")
@click.argument("model", required=False)
@click.option("-o", "--output", "target", metavar="FILE", help="Where the result goes.")
@click.option("--preset", default="inference", show_default=True, help="inference, training, web, cuda or none.")
@click.option("--passes", metavar="A,B", help="Run exactly these passes instead of the preset's.")
@click.option("--skip", metavar="A,B", help="Leave these passes out.")
@click.option("--list", "listing", is_flag=True, help="List the passes, and what each asks for, instead.")
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Run the result beside the original; the default for models below 200 MB.",
)
@click.option(
    "--inputs", "file", metavar="FILE", help="Verify with these: a .npz or .json file, or a test_data_set folder."
)
@click.option("--strict", is_flag=True, help="Fail where a pass changes the result, instead of taking it back.")
@click.option("--opset", type=click.IntRange(min=7, max=26), help="The opset to write; MODEL's own by default.")
@click.option("--report", metavar="FILE", help="Write the report as JSON.")
@click.option("--explain", metavar="NODE", multiple=True, help="Say why each pass leaves this node alone.")
@click.option("--log-steps", metavar="FOLDER", help="Keep the model with one pass, with two, and so on.")
@conversions
@options.as_json
def command(
    conversion: Conversions,
    model: str | None,
    target: str | None,
    preset: str,
    passes: str | None,
    skip: str | None,
    listing: bool,
    verify: bool | None,
    file: str | None,
    strict: bool,
    opset: int | None,
    report: str | None,
    explain: tuple[str, ...],
    log_steps: str | None,
    as_json: bool,
) -> None:
    """Make MODEL smaller and faster, and check that it still computes the same.

    A pass that changes what the model computes is found, taken back and named. The exit code is 1 where that happens
    with --strict, and where a MODEL that does not run itself is to be verified all the same (--verify, --strict).
    """
    if listing:
        _list(as_json)
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    if target is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if file is not None and verify is False:
        raise click.UsageError("--inputs are to verify with; leave out --no-verify")
    if strict and verify is False:
        raise click.UsageError("--strict fails where verification finds a difference; leave out --no-verify")
    from graphkit.errors import PassError
    from graphkit.modelfile import write_model
    from graphkit.modelfile.files import replacing
    from graphkit.optimizers import Report, optimize
    from graphkit.optimizers.report import measure
    from graphkit.optimizers.web import check_for_web

    if report is not None and Path(report).resolve() == Path(target).resolve():
        raise click.UsageError("--report and -o name the same file")
    output.check_writable(target, report)
    account = Report(by_step=report is not None)
    given = conversion.before(model)
    inputs = None if file is None else _feeds(given, file)
    result = optimize(
        given,
        preset,
        passes=None if passes is None else _names(passes),
        skip=() if skip is None else _names(skip),
        verify=verify,
        inputs=inputs,
        strict=strict,
        report=account,
        explain=explain,
        log_steps=log_steps,
        opset=opset,
    )
    result = conversion.after(result, check=verify is not False, inputs=inputs)
    # A page fetches one file; 2 GiB are what a file without external data can hold.
    external_above = 2**31 - 1 if preset == "web" else 100_000_000
    if preset == "web":
        check_for_web(result)  # again: a precision may have changed the types of inputs and outputs
    if preset == "web" and (size := measure(result).bytes) > external_above:
        raise PassError(f"{size:,} bytes of weights are more than one file for the web can hold")
    if report is None:
        write_model(result, target, external_above)
    else:
        with replacing(report) as written:  # which takes its place when the model is written, and only then
            written.write(f"{json.dumps(account.to_dict() | conversion.reports, indent=2)}\n".encode())
            written.flush()
            write_model(result, target, external_above)
    if as_json:
        output.emit_json(account.to_dict() | conversion.reports | {"output": target})
        return
    screen = output.console()
    screen.print(account.table())
    for remark in account.remarks():
        screen.print(remark, markup=False, soft_wrap=True)
    for line in conversion.show():
        screen.print(line, markup=False, soft_wrap=True)
    if account.explanations:
        _show_explanations(account.explanations)
    if log_steps is not None:
        screen.print(f"{len(account.steps)} steps kept in {log_steps}", markup=False)
    screen.print(f"written to {target}", markup=False)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _feeds(model: str | ir.Model, file: str) -> dict[str, Any]:
    from graphkit.exporters.inputs import model_inputs
    from graphkit.modelfile import read_model

    return options.read_feeds(model_inputs(read_model(model)), {}, file, cast=False)


def _show_explanations(explanations: list[Explanation]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("node", "operator", "pass", "why it leaves the node alone")
    looking = [one for one in explanations if not one.elsewhere]
    for one in looking:
        table.add_row(escape(one.node), one.operator, one.by_pass, escape(one.reason))
    screen = output.console()
    screen.print(table)
    if len(looking) < len(explanations):
        screen.print("The other passes look at other operators; --json and --report list them too.")


def _list(as_json: bool) -> None:
    from graphkit.optimizers import passes

    if as_json:
        output.emit_json([made.to_dict() for made in passes().values()])
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("pass", "what it does, and when", "tolerance", "presets", show_lines=True)
    for made in passes().values():
        texts = escape(f"{made.summary}\n{made.precondition}")
        table.add_row(made.name, texts, f"{made.tolerance:g}" if made.tolerance else "exact", ", ".join(made.presets))
    output.console().print(table)
