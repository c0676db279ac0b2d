"""The sizes of a model, and how they change as one pass after another joins in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx_ir as ir

from graphkit.errors import PassError
from graphkit.modelfile import write_model
from graphkit.optimizers.base import Pass, passes
from graphkit.optimizers.flops import count_flops, declared_shape
from graphkit.optimizers.liveness import ValueBytes, peak_in_graph
from graphkit.optimizers.report import Report, Size, Step, measure

__all__ = ["check_folder", "size_up", "take_steps"]


def size_up(model: ir.Model) -> Size:
    """Count nodes and bytes, and estimate operations and the peak of activations with every symbolic dim at 1."""
    size, bytes_of = measure(model), ValueBytes(model)

    def shape_of(value: ir.Value) -> tuple[int, ...] | None:
        shape = bytes_of.facts(value).shape
        if shape is None:
            return declared_shape(value)
        dims = tuple(dim for dim in shape if isinstance(dim, int))
        return dims if len(dims) == len(shape) else declared_shape(value)

    flops = count_flops(model.graph.all_nodes(), shape_of)
    size.flops, size.uncounted = flops.count, flops.unknown
    size.peak_activation_bytes, _ = peak_in_graph(model.graph, bytes_of)
    return size


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Make the folder that the steps go to, before any work is done."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PassError(f"the steps cannot be written to {os.fspath(folder)}: {error.strerror or error}") from error


def _clear(folder: Path) -> None:
    """Remove the steps of an earlier model, which would stand between the new ones; nothing else."""
    for file in folder.iterdir():
        number, _, name = file.name.partition("_")
        known = name.removesuffix(".data").removesuffix(".onnx") in {"original", *passes()}
        if number.isdecimal() and known and ".onnx" in name and file.is_file():
            file.unlink()


def take_steps(
    original: ir.Model,
    active: Sequence[Pass],
    run: Callable[[ir.Model, Sequence[Pass]], None],
    report: Report,
    folder: str | os.PathLike[str] | None,
) -> None:
    """Run the first pass alone, then the first two, and so on; note the sizes, and keep the models in ``folder``.

    The passes work hand in hand, each waking the others, so what they are together has no steps. What the first few
    make by themselves has: each step is a whole model that computes the same, and the last one is the result.
    """
    if folder is not None:
        _clear(Path(folder))
        write_model(original, Path(folder) / "00_original.onnx")
    for number in range(1, len(active) + 1):
        model = original.clone()
        run(model, active[:number])
        name = active[number - 1].name
        file = None if folder is None else f"{number:02}_{name}.onnx"
        if folder is not None and file is not None:
            write_model(model, Path(folder) / file)
        report.steps.append(Step(name, size_up(model), file))
