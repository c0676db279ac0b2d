"""``graphkit view``: a model's graph to look at."""

from __future__ import annotations

import click


@click.command("view")
@click.argument("model")
@click.option("-o", "target", metavar="FILE", help="Draw the graph to a .svg file, or .png (needs matplotlib).")
def command(model: str, target: str | None) -> None:
    """Draw MODEL's graph to a file, or open it in a browser with Netron.

    As text, the graph is listed by graphkit inspect --text.
    """
    if target is not None:
        from graphkit.exporters.picture import draw

        click.echo(f"written to {draw(model, target)}")
        return
    from graphkit.errors import GraphkitError
    from graphkit.modelfile import read_model

    read_model(model)  # a clear error here, where Netron would show an empty page
    try:
        import netron
    except ImportError:
        raise GraphkitError(
            "opening a model in the browser needs Netron: install onnx-graphkit[view], or draw it with -o graph.svg"
        ) from None
    netron.start(model)
    netron.wait()
