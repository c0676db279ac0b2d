"""``graphkit grad``: a model with its gradients as outputs."""

from __future__ import annotations

import click

from graphkit.cli import options, output


@click.command("grad")
@click.argument("model")
@click.option("--of", default="loss", show_default=True, metavar="NAME", help="The scalar to differentiate.")
@click.option(
    "--wrt", required=True, metavar="A,B",
    help="Inputs or weights by name; all: every floating weight, wherever the file keeps it; *: every initializer.",
)
@click.option("--loss", metavar="NAME", help="First add this loss of the outputs, called as --of says: mean_square.")
@click.option("-o", "--output", "target", required=True, metavar="FILE", help="Where the result goes.")
@click.option("--zeros", is_flag=True, help="Zeros for what the scalar does not depend on, instead of an error.")
@click.option(
    "--optimize/--no-optimize", default=True, show_default=True, help="Run the training passes over the result."
)
@options.as_json
def command(
    model: str, of: str, wrt: str, loss: str | None, target: str, zeros: bool, optimize: bool, as_json: bool
) -> None:
    """Add outputs NAME_grad to MODEL: the gradient of a scalar, made of ordinary operators.

    \b
    graphkit grad m.onnx --of loss --wrt w,x -o g.onnx
    graphkit grad m.onnx --loss mean_square --wrt all -o g.onnx
    """  # noqa: D301  # \\b tells click to leave the line as it is
    from graphkit.modelfile import read_model, write_model
    from graphkit.optimizers import add_gradients, add_loss
    from graphkit.optimizers import optimize as run_passes

    names = [name.strip() for name in wrt.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--wrt names nothing; write --wrt w,x, or --wrt '*' for every trainable initializer")
    loaded = read_model(model)
    if names == ["*"]:
        names = [
            v.name or ""
            for v in loaded.graph.initializers.values()
            if v.dtype is not None and v.dtype.is_floating_point()
        ]
    nodes = len(loaded.graph)
    if loss is not None:
        loaded = read_model(add_loss(loaded, loss, of))
    before = {value.name for value in loaded.graph.outputs}
    result = add_gradients(loaded, of, "all" if names == ["all"] else names, unreached="zeros" if zeros else "error")
    if optimize:
        result = run_passes(result, "training")
    write_model(result, target)
    graph = read_model(target).graph
    added = [value.name for value in graph.outputs if value.name not in before]
    if as_json:
        output.emit_json({"output": target, "gradients": added, "nodes_before": nodes, "nodes_after": len(graph)})
    else:
        click.echo(f"{', '.join(map(str, added))} added ({nodes:,} nodes, now {len(graph):,}); written to {target}")
