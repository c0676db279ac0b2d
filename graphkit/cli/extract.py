"""``graphkit extract``: the part of a model between some of its values."""

from __future__ import annotations

import click

from graphkit.cli import options, output


@click.command("extract")
@click.argument("model")
@click.option("--inputs", metavar="A,B", help="Where the part begins; the inputs of MODEL that it needs if not given.")
@click.option("--outputs", metavar="C,D", help="What the part gives out; the outputs of MODEL if not given.")
@click.option("-o", "--output", "target", required=True, metavar="FILE", help="Where the part goes.")
@options.as_json
def command(model: str, inputs: str | None, outputs: str | None, target: str, as_json: bool) -> None:
    """Write the part of MODEL that computes some of its values from others.

    \b
    graphkit extract m.onnx --inputs hidden --outputs logits -o head.onnx
    """  # noqa: D301  # \\b tells click to leave the line as it is
    from graphkit.modelfile import read_model, write_model
    from graphkit.optimizers import extract

    if inputs is None and outputs is None:
        raise click.UsageError("name where the part begins or ends: --inputs A,B, --outputs C,D")
    output.check_writable(target)
    given = read_model(model)
    part = read_model(extract(given, *(None if text is None else _names(text) for text in (inputs, outputs))))
    write_model(part, target)
    counts = {"nodes_before": len(given.graph), "nodes_after": len(part.graph)}
    names = {
        "inputs": [value.name for value in part.graph.inputs],
        "outputs": [value.name for value in part.graph.outputs],
    }
    if as_json:
        output.emit_json({"output": target, **names, **counts})
    else:
        between = f"{', '.join(map(str, names['inputs']))} to {', '.join(map(str, names['outputs']))}"
        click.echo(f"{between}: {len(part.graph):,} of {len(given.graph):,} nodes; written to {target}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
