"""The whole way in one program: train on Fashion-MNIST, export, optimize, run, and show what was made.

    make demo                                       # on the sample in the repository
    python -m models.demo --data /usr/share/datasets/fashion-mnist

A 784-256-10 network is trained as one ONNX graph on stock ONNX Runtime, its inference model is exported and optimized,
and the accuracy is that of the optimized file. Files go to ``demo-output``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import graphkit as gk
from graphkit.exporters.curve import draw_curve
from graphkit.exporters.picture import draw
from graphkit.modelfile import write_model
from models import fashion_mnist, program
from models.mlp import MLP


def main(arguments: Sequence[str] | None = None) -> float:
    """Run the demo and return the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with the full Fashion-MNIST; the sample in the repository by default")
    parser.add_argument("--epochs", type=int, default=None, help="10 on the sample, 5 on the full data by default")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for what is made")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    console = Console()
    began = time.perf_counter()
    data = fashion_mnist.load(options.data) if options.data else fashion_mnist.load()
    epochs = options.epochs or (5 if options.data else 10)
    gk.random.seed(options.seed)
    model = MLP()
    steps = epochs * -(-len(data.train_labels) // options.batch)
    optimizer = gk.optim.AdamW(gk.optim.warm_up(100, gk.optim.cosine(2e-3, steps)))
    graph = gk.training.build(
        model, "cross_entropy", optimizer, inputs={"x": gk.spec("float32", ["batch", fashion_mnist.PIXELS])}
    )
    trainer = gk.Trainer(graph)
    console.print(f"{model!r}: forward, loss, gradients and AdamW are one ONNX graph of {len(graph.train.graph)} nodes")
    losses, scores = _train(trainer, data, epochs, options.batch, options.seed, console)

    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    graph.save(folder / "training")
    exported = trainer.export_inference(folder / "model.onnx")
    account = gk.optimizers.Report()
    optimized = gk.optimize(exported, report=account)
    write_model(optimized, folder / "model.optimized.onnx")
    logits = gk.run(folder / "model.optimized.onnx", {"x": data.test_images})["output"]
    score = program.accuracy(logits, data.test_labels)
    pictures = [
        draw_curve(losses, folder / "loss.svg", title="training loss", x_label="step"),
        draw_curve(
            [100 * s for s in scores], folder / "accuracy.svg", title="test accuracy, %", x_label="epoch", first=1
        ),
        draw(optimized, folder / "model.svg"),
        draw(graph.train, folder / "training.svg"),
    ]
    console.print(
        f"\nThe optimized file ({_nodes(len(exported.graph), len(optimized.graph))}"
        f"{'; checked against the exported one' if account.verified else ''}) names "
        f"[bold]{score:.1%}[/bold] of the {len(data.test_labels):,} test images rightly.\n"
        f"All of it took {time.perf_counter() - began:.1f} seconds. What was made:"
    )
    for path, what in (
        (folder / "model.optimized.onnx", "the model, for any ONNX Runtime"),
        (folder / "training", "the training graph, to go on with: three ONNX files, a checkpoint, a manifest"),
        (pictures[0], "the loss curve"), (pictures[1], "the accuracy by epoch"),
        (pictures[2], "a picture of the model"), (pictures[3], "a picture of the training graph"),
    ):  # fmt: skip
        console.print(f"  {path}  [dim]{what}[/dim]", soft_wrap=True)
    return score


def _nodes(before: int, after: int) -> str:
    if after < before:
        return f"{after} nodes instead of {before}"
    return f"{after} nodes, as exported: there was nothing left to fuse"


def _train(
    trainer: gk.Trainer, data: fashion_mnist.FashionMNIST, epochs: int, rows: int, seed: int, console: Console
) -> tuple[list[float], list[float]]:
    """All losses by step and the test accuracy by epoch, with a live line."""
    rng = np.random.default_rng(seed)
    losses: list[float] = []
    scores: list[float] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    per_epoch = -(-len(data.train_labels) // rows)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=epochs * per_epoch)
        for epoch in range(epochs):
            for x, labels in program.batches(data.train_images, data.train_labels, rows, rng):
                losses.append(float(trainer.step({"x": x, "labels": labels})["loss"]))
                if len(losses) % 20 == 0:
                    shown = f"epoch {epoch + 1}/{epochs}  loss {np.mean(losses[-50:]):.3f}"
                    shown += f"  test accuracy {scores[-1]:.1%}" if scores else ""
                    progress.update(task, completed=len(losses), description=shown)
            logits = trainer.evaluate({"x": data.test_images, "labels": data.test_labels})["output"]
            scores.append(program.accuracy(logits, data.test_labels))
        final = f"epoch {epochs}/{epochs}  loss {np.mean(losses[-50:]):.3f}  test accuracy {scores[-1]:.1%}"
        progress.update(task, completed=len(losses), description=final)
    return losses, scores


if __name__ == "__main__":
    main()
