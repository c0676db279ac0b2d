"""``graphkit train``: train a model's parameters, the whole step on ONNX Runtime."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from graphkit.cli import options, output

_OPTIMIZERS = ("sgd", "adam", "adamw")


@click.command("train")
@click.argument("model")
@click.option("--data", required=True, metavar="FILE", help="A .npz of arrays by input name, one row an example.")
@click.option("--test", metavar="FILE", help="A .npz like --data, evaluated after every epoch.")
@click.option(
    "--loss", required=True, metavar="NAME", help="A scalar output, or cross_entropy, mse, ... of the first output."
)
@click.option("-o", "--output", "folder", required=True, metavar="FOLDER", help="Where the trained files go.")
@click.option(
    "--optimizer", type=click.Choice(_OPTIMIZERS), default="adamw", show_default=True, help="The update rule."
)
@click.option("--lr", type=float, default=1e-3, show_default=True, help="The learning rate.")
@click.option("--momentum", type=float, help="Momentum, for sgd.")
@click.option("--weight-decay", type=float, help="Weight decay; the rule's own by default.")
@click.option("--trainable", metavar="A,B", help="Train these initializers only.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Passes over the data.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Examples of one step.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="What the order of the examples is drawn from, with the number of the epoch.",
)
@click.option(
    "--resume",
    metavar="FILE",
    help="Go on from a checkpoint that an earlier run wrote; with the same data, --batch and --seed exactly as one "
    "run would have gone on.",
)
@click.option(
    "--recompute",
    is_flag=False,
    flag_value="auto",
    metavar="[SEGMENTS|BYTES]",
    help="Keep fewer activations and compute the others again: less memory for more time; in so many segments, or so "
    "that activations take no more than e.g. 512MB.",
)
@click.option("--curve", metavar="FILE", help="Draw the losses to a .svg or .png file.")
@options.device
@options.threads
@options.as_json
def command(
    model: str,
    data: str,
    test: str | None,
    loss: str,
    folder: str,
    optimizer: str,
    lr: float,
    momentum: float | None,
    weight_decay: float | None,
    trainable: str | None,
    epochs: int,
    batch: int,
    seed: int,
    resume: str | None,
    recompute: str | None,
    curve: str | None,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Train MODEL on arrays and write the training files, a checkpoint and the trained model into a folder.

    \b
    graphkit train m.onnx --data train.npz --loss cross_entropy --epochs 5 -o trained
    """  # noqa: D301  # \\b tells click to leave the line as it is
    from graphkit import training
    from graphkit.training.folders import check_folder, replacing_files

    target = Path(folder)
    check_folder(target)
    if curve is not None:
        from graphkit.exporters.scene import check_picture

        check_picture(curve)
    examples = _read("--data", data)
    tests = None if test is None else _read("--test", test)
    rule = _rule(optimizer, lr, momentum, weight_decay)
    names = None if trainable is None else [name.strip() for name in trainable.split(",") if name.strip()]
    again = _recompute(recompute, model, examples, batch)
    graph = training.build(model, loss=loss, optimizer=rule, trainable=names, recompute=again)
    trainer = training.Trainer(graph, device=device, threads=threads)
    if resume is not None:
        trainer.load(resume)
    started = time.perf_counter()
    history = _epochs(trainer, examples, tests, epochs, batch, seed, quiet=as_json)
    seconds = time.perf_counter() - started
    with replacing_files(target) as new:
        graph.save(new)
        trainer.save(new / "checkpoint.safetensors")
        trainer.export_inference(new / "infer.onnx")
    if curve is not None:
        from graphkit.exporters.curve import draw_curve

        draw_curve(history["losses"], curve, title="training loss")
    if as_json:
        output.emit_json({"output": folder, "seconds": seconds} | history)
    else:
        click.echo(f"{len(history['losses']):,} steps in {seconds:.1f} s; written to {folder}")


def _read(option: str, path: str) -> dict[str, Any]:
    """Read examples by input name; all arrays have the same number of rows."""
    from graphkit.errors import InputError

    if Path(path).suffix.lower() != ".npz" and not Path(path).is_dir():
        raise click.UsageError(f"{option} takes a .npz file of arrays by input name, not {Path(path).name}")
    arrays: dict[str, Any] = options.read_file(Path(path))
    rows = {name: len(value) if getattr(value, "ndim", 1) else 0 for name, value in arrays.items()}
    if not rows or min(rows.values()) == 0 or len(set(rows.values())) > 1:
        found = ", ".join(f"{name}: {count}" for name, count in rows.items()) or "no arrays"
        raise InputError(f"{path}: every array needs one row an example, the same number in each, but it holds {found}")
    return arrays


def _rule(name: str, lr: float, momentum: float | None, weight_decay: float | None) -> Any:
    from graphkit import optim

    for option, value in (("--lr", lr), ("--momentum", momentum), ("--weight-decay", weight_decay)):
        limit = 1.0 if option == "--momentum" else math.inf
        if value is not None and not 0 <= value < limit:
            below = "" if limit == math.inf else " to below 1"
            raise click.UsageError(f"{option} is a number from 0{below or ' up'}, not {value}")
    settings: dict[str, Any] = {} if weight_decay is None else {"weight_decay": weight_decay}
    if name == "sgd":
        return optim.SGD(lr, momentum=momentum or 0.0, **settings)
    if momentum is not None:
        raise click.UsageError(f"--momentum goes with --optimizer sgd, not {name}")
    return optim.Adam(lr, **settings) if name == "adam" else optim.AdamW(lr, **settings)


def _recompute(asked: str | None, model: str, examples: dict[str, Any], batch: int) -> bool | dict[str, Any]:
    """What ``build`` takes, with the sizes that the inputs' dims have in a batch."""
    if asked is None:
        return False
    from graphkit.modelfile import borrow_model

    sizes: dict[str, int] = {}
    for value in borrow_model(model).graph.inputs:
        if value.name in examples and value.shape is not None:
            found = (min(batch, len(examples[value.name])), *examples[value.name].shape[1:])
            sizes |= {
                d.value: n for d, n in zip(value.shape, found, strict=False) if not isinstance(d, int) and d.value
            }
    if asked == "auto":
        return {"dims": sizes}
    return {"dims": sizes, "segments" if asked.isdigit() else "memory": int(asked) if asked.isdigit() else asked}


def _epochs(
    trainer: Any,
    examples: dict[str, Any],
    tests: dict[str, Any] | None,
    epochs: int,
    batch: int,
    seed: int,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Train, with a line that tells how it goes, and return the losses of all steps and the evaluations."""
    import numpy as np
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from graphkit.errors import GraphkitError, InputError

    rows = len(next(iter(examples.values())))
    length = -(-rows // batch)
    began = trainer.steps
    end = began + epochs * length
    losses: list[float] = []
    evaluations: list[dict[str, float]] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        # Counted from the first step of all, so that a resumed run draws the batches that one run would have drawn, be
        # it from within an epoch.
        for epoch in range(began // length, -(-end // length)):
            first, last = max(began, epoch * length), min(end, (epoch + 1) * length)
            task = progress.add_task(f"epoch {epoch + 1}", total=length, completed=first % length, loss="")
            order = np.random.default_rng([seed, epoch]).permutation(rows)
            for part in _batches(examples, order, batch, first % length, first % length + last - first):
                try:
                    value = float(trainer.step(part)["loss"])
                except InputError:
                    raise
                except GraphkitError as error:
                    if not losses or "the loss is" not in str(error):
                        raise
                    raise GraphkitError(f"the model diverged. Nothing was written. {error}") from error
                losses.append(value)
                progress.update(task, advance=1, loss=f"loss {value:.4f}")
            if tests is not None:
                evaluations.append(_evaluate(trainer, tests, batch))
                shown = ", ".join(f"test {name} {value:.4f}" for name, value in evaluations[-1].items())
                progress.update(task, loss=f"loss {losses[-1]:.4f}, {shown}")
    return {"losses": losses, "evaluations": evaluations}


def _batches(
    examples: dict[str, Any], order: Any, batch: int, first: int = 0, end: int | None = None
) -> Iterator[dict[str, Any]]:
    """The batches of an epoch from number ``first`` to before ``end``."""
    for start in range(first * batch, len(order) if end is None else min(end * batch, len(order)), batch):
        chosen = order[start : start + batch]
        yield {name: value[chosen] for name, value in examples.items()}


def _evaluate(trainer: Any, tests: dict[str, Any], batch: int) -> dict[str, float]:
    """Return the mean of every scalar that an evaluation gives, each batch weighed by its rows, and the accuracy.

    The accuracy is there where the labels are integers and the first other output has a score for each class.
    """
    import numpy as np

    rows = len(next(iter(tests.values())))
    totals: dict[str, float] = {}
    for part in _batches(tests, np.arange(rows), batch):
        size = len(next(iter(part.values())))
        results = trainer.evaluate(part)
        labels = part.get("labels")
        scores = next((value for value in results.values() if np.ndim(value) == 2 and len(value) == size), None)
        if scores is not None and labels is not None and labels.dtype.kind in "iu" and labels.ndim == 1:
            results["accuracy"] = (scores.argmax(axis=1) == labels).mean()
        for name, value in results.items():
            if np.ndim(value) == 0:
                totals[name] = totals.get(name, 0.0) + float(value) * size
    return {name: total / rows for name, total in totals.items()}
