"""Options that give a model other inputs or other numbers, before and after it is optimized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphkit.cli import options, output

if TYPE_CHECKING:
    import onnx_ir as ir

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Conversions:
    """What was asked for; ``reports`` fills with what was done."""

    dims: dict[str, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    precision: str | None = None
    bits: str | None = None
    block: int | None = None
    keep: list[str] = field(default_factory=list)
    keep_io: bool = True
    tolerance: float | None = None
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)

    def before(self, model: str) -> str | ir.Model:
        """The model with the dims and inputs fixed that were asked for."""
        if (self.keep or self.tolerance is not None) and self.precision is None and self.bits is None:
            raise click.UsageError("--keep and --tolerance go with --precision or --quantize")
        if not self.keep_io and self.precision is None:
            raise click.UsageError("--no-keep-io goes with --precision")
        if self.block is not None and self.bits is None:
            raise click.UsageError("--block goes with --quantize")
        if not self.dims and not self.values:
            return model
        from graphkit.exporters.inputs import model_inputs
        from graphkit.modelfile import read_model
        from graphkit.optimizers import freeze

        loaded = read_model(model)
        values = options.read_feeds(model_inputs(loaded), self.values, None, cast=False)  # freeze converts, and checks
        frozen = freeze(loaded, self.dims, values)
        return read_model(frozen)

    def after(self, model: ir.Model, *, check: bool, inputs: dict[str, Any] | None) -> ir.Model:
        """The model in the precision that was asked for."""
        from graphkit.modelfile import read_model
        from graphkit.optimizers import PrecisionReport, QuantizationReport, quantize_weights, to_precision

        if self.bits is not None:
            of = QuantizationReport()
            # What keeps a node in float32 may name nothing that has large weights, and the other way round.
            model = read_model(
                quantize_weights(
                    model, int(self.bits), block=self.block, keep=self.keep, check=check,
                    tolerance=self.tolerance, inputs=inputs, report=of,
                )
            )  # fmt: skip
            self.reports["quantization"] = of.to_dict()
        if self.precision is not None:
            done = PrecisionReport()
            model = read_model(
                to_precision(
                    model, self.precision, self.keep, keep_io=self.keep_io, check=check, tolerance=self.tolerance,
                    inputs=inputs, report=done,
                )
            )  # fmt: skip
            self.reports["precision"] = done.to_dict()
        return model

    def show(self) -> list[str]:
        """One line and more for each conversion, for people."""
        lines = []
        for name, report in self.reports.items():
            before, after = (output.size_text(report[f"bytes_{when}"]) for when in ("before", "after"))
            sizes = f"{before} of constants, now {after}"
            if name == "precision":
                what = f"{report['converted']:,} nodes in {report['dtype']}, {len(report['kept']):,} in float32, "
                what += f"{report['casts']:,} casts"
            else:
                in_bits = Counter(report["in_bits"].values())
                shares = [f"{in_bits[bits]:,} weights in {bits} bits" for bits in (4, 8) if in_bits[bits]]
                what = ", ".join([*(shares or ["no weights"]), f"{len(report['kept']):,} left"])
            error = report["error"]
            loss = "" if error is None else f"; largest relative error {error:.2g} ('{report['worst_output']}')"
            lines.append(f"{what}; {sizes}{loss}")
            lines.append(f"  checked: {report['checked']}" if error is not None else f"  {report['checked']}")
            if report["by_check"]:
                found = report["by_check"]
                shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
                lines.append(f"  kept by the loss check ({len(found)}): {shown}")
        return lines


def conversions(function: F) -> F:
    """Add the options, and hand them over as one ``Conversions``."""

    def collected(
        dims: dict[str, int], values: dict[str, str], precision: str | None, bits: str | None, block: int | None,
        keep: str | None, keep_io: bool, tolerance: float | None, **rest: Any,
    ) -> Any:  # fmt: skip
        kept = [] if keep is None else [name.strip() for name in keep.split(",") if name.strip()]
        asked = Conversions(dims, values, precision, bits, block, kept, keep_io, tolerance)
        return function(conversion=asked, **rest)

    collected.__doc__ = function.__doc__
    made: Any = collected
    for option in reversed(_OPTIONS):
        made = option(made)
    made.__click_params__ += getattr(function, "__click_params__", [])
    result: F = made
    return result


_OPTIONS = (
    click.option(
        "--dim", "dims", multiple=True, metavar="NAME=SIZE", callback=options.sizes,
        help="Fix a dimension of the inputs (x.0: the first of x) for good.",
    ),
    click.option(
        "--set", "values", multiple=True, metavar="NAME=VALUE", callback=options.pairs,
        help="Fix an input for good: a .npy or .pb file, or the value itself.",
    ),
    click.option(
        "--precision", type=click.Choice(["float16", "bfloat16"]), help="Then write weights and arithmetic in this."
    ),
    click.option("--quantize", "bits", type=click.Choice(["8", "4"]), help="Then write large weights in so many bits."),
    click.option(
        "--block", type=click.IntRange(min=2), metavar="N", help="One scale for N neighbours, not for a channel."
    ),
    click.option(
        "--keep", metavar="A,B", help="Nodes, operators, values (of the result) or patterns to leave as they are."
    ),
    click.option(
        "--keep-io/--no-keep-io", default=True, show_default=True,
        help="With --precision: inputs and outputs keep their types.",
    ),
    click.option(
        "--tolerance", type=click.FloatRange(min=0, min_open=True), metavar="E",
        help="The relative error of an output from which on nodes or weights are left as they were.",
    ),
)  # fmt: skip
