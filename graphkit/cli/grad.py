"""``graphkit grad``: a model with its gradients as outputs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from graphkit.cli import options, output

if TYPE_CHECKING:
    import onnx_ir as ir

_CHECK_BELOW = 200_000_000
# Operators of other domains come from libraries that are not loaded here.
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


@click.command("grad")
@click.argument("model")
@click.option("--of", default="loss", show_default=True, metavar="NAME", help="The scalar to differentiate.")
@click.option(
    "--wrt",
    required=True,
    metavar="A,B",
    help="Inputs or weights by name; all: every floating weight of rank 1 or more that the scalar depends on, wherever "
    "the file keeps it (scalars by name only); *: every floating initializer.",
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
    from graphkit.optimizers.lift_weights import float_weights

    names = [name.strip() for name in wrt.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--wrt names nothing; write --wrt w,x, or --wrt '*' for every trainable initializer")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.UsageError(f"--wrt names '{twice}' twice")
    output.check_writable(target)
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
    weights = float_weights(_inlined(loaded)) if names == ["all"] else []
    scalars = _scalars(loaded) if names == ["all"] else []
    before = {value.name for value in loaded.graph.outputs}
    result = add_gradients(loaded, of, "all" if names == ["all"] else names, unreached="zeros" if zeros else "error")
    if optimize:
        result = run_passes(result, "training")
    made = read_model(result)
    _check_loads(made, model)
    write_model(made, target)
    graph = made.graph
    added = [value.name for value in graph.outputs if value.name not in before]
    left = [name for name in weights if f"{name}_grad" not in added]
    if as_json:
        report = {"output": target, "gradients": added, "nodes_before": nodes, "nodes_after": len(graph)}
        output.emit_json(report | ({"left_out": left, "scalars": scalars} if names == ["all"] else {}))
    else:
        if left:
            click.echo(f"left out, because '{of}' does not depend on them: {', '.join(left)}", err=True)
        if scalars:
            shown = ", ".join(scalars[:5]) + (", ..." if len(scalars) > 5 else "")
            click.echo(f"all means rank 1 or more; of rank 0, to be had by name: {len(scalars)} ({shown})", err=True)
        click.echo(f"{', '.join(map(str, added))} added ({nodes:,} nodes, now {len(graph):,}); written to {target}")


def _inlined(model: ir.Model) -> ir.Model:
    """The model with its functions inlined, in place, since the weights of ``all`` are those that it then has."""
    from onnx_ir.passes import common

    if model.functions:
        common.InlinePass()(model)
    return model


def _scalars(model: ir.Model) -> list[str]:
    """The floating initializers of rank 0, which ``all`` does not mean."""
    return [
        name
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
        and value.const_value.dtype.is_floating_point()
        and not len(value.const_value.shape)
    ]


def _check_loads(made: ir.Model, given: str) -> None:
    """Refuse to write what ONNX Runtime does not load, and say whether the file that was given is the cause.

    What it has no kernel for on a CPU may have one elsewhere, and libraries of custom operators are not loaded here.
    """
    from graphkit.errors import GraphkitError, ModelFileError
    from graphkit.modelfile import tensors_of
    from graphkit.modelfile.protos import every_node
    from graphkit.runtime import Session

    functions = {identifier[0] for identifier in made.functions}
    if any(node.domain not in _DOMAINS and node.domain not in functions for node in every_node(made.graph)):
        return
    if sum(tensor.nbytes for tensor in tensors_of(made) if tensor.dtype.name != "STRING") >= _CHECK_BELOW:
        return
    try:
        Session(made, optimizations=False)
    except ModelFileError as error:
        if type(error.__cause__).__name__ == "NotImplemented":
            return
        try:
            Session(given, optimizations=False)
        except ModelFileError as cause:
            reason = re.sub(r"Load model from \S+ failed: ?", "", str(cause))
            raise ModelFileError(f"{reason}. Its gradients would not load either, so nothing was written") from error
        raise GraphkitError(
            f"the gradients of {given} make a model that does not load, which is a fault in graphkit; nothing was "
            f"written. {error}"
        ) from error
