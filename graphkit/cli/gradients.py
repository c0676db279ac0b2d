"""The table that ``graphkit inspect --gradients`` shows."""

from __future__ import annotations

from typing import Any

from graphkit.cli import output


def show_gradients(
    model: str, of: str, inputs: dict[str, Any], dims: dict[str, int], seed: int, *, as_json: bool
) -> None:
    """Print the gradient norm of every parameter, and how the last weight's compares with the first's."""
    from rich.table import Table

    from graphkit.exporters.gradient_flow import gradient_norms

    norms = gradient_norms(model, of, inputs, dims=dims, seed=seed)
    weights = [one for one in norms if len(one.shape) > 1]
    ratio = weights[-1].gradient / weights[0].gradient if len(weights) > 1 and weights[0].gradient else None
    if as_json:
        rows = [{"name": n.name, "shape": n.shape, "norm": n.parameter, "gradient_norm": n.gradient} for n in norms]
        output.emit_json({"of": of, "parameters": rows, "last_over_first": ratio})
        return
    table = Table("parameter", "shape")
    for heading in ("norm", "gradient norm"):
        table.add_column(heading, justify="right")
    for one in norms:
        table.add_row(one.name, str(list(one.shape)), f"{one.parameter:.4g}", f"{one.gradient:.4g}")
    screen = output.console()
    screen.print(table)
    if ratio is not None:
        screen.print(f"gradient norm of {weights[-1].name} over that of {weights[0].name}: {ratio:,.4g}", markup=False)
