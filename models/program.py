"""What the model programs share: options, batches, and training a network either way from one definition.

Either way means eagerly (each operator runs as it is applied, ``loss.backward()``, ``optimizer.step``) or as a training
graph (one ONNX Runtime run a step). Both take the same batches and make the same losses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import graphkit as gk
from graphkit import nn
from models import fashion_mnist

Array = npt.NDArray[Any]
Batch = dict[str, Array]
Report = Callable[[int, int, float], None]


def parser(text: str | None, epochs: int, rate: float) -> argparse.ArgumentParser:
    """The options that every program has."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--eager", action="store_true", help="train eagerly instead of as a training graph")
    made.add_argument("--epochs", type=int, default=epochs)
    made.add_argument("--batch", type=int, default=64, help="rows of a batch")
    made.add_argument("--rate", type=float, default=rate, help="learning rate of AdamW")
    made.add_argument("--data", help="folder with the full Fashion-MNIST; the sample in the repository by default")
    made.add_argument("--device", default="cpu", help="cpu or cuda (training graph only)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--export", metavar="FILE", help="write the trained model for inference")
    return made


def batches(inputs: Array, labels: Array, rows: int, rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """One epoch of shuffled batches; the last may be smaller."""
    order = rng.permutation(len(inputs))
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        yield inputs[chosen], labels[chosen]


def eager_step(model: nn.Module, optimizer: gk.optim.Optimizer, x: Array, labels: Array) -> float:
    """One step, operator by operator."""
    model.zero_grad()
    loss = nn.cross_entropy(model(gk.tensor(x)), gk.tensor(labels))
    loss.backward()
    optimizer.step(model.parameters())
    return float(loss)


def accuracy(logits: Array, labels: Array) -> float:
    """The share of rows whose largest logit is at the label."""
    return float((logits.argmax(-1) == labels).mean())


def evaluate_eagerly(model: nn.Module, x: Array, labels: Array) -> float:
    """The accuracy of a module at inference, in pieces."""
    model.eval()
    with gk.no_grad():
        logits = [model(gk.tensor(x[n : n + 500])).numpy() for n in range(0, len(x), 500)]
    model.train()
    return accuracy(np.concatenate(logits), labels)


def train_classifier(model: nn.Module, options: argparse.Namespace) -> float:
    """Train on Fashion-MNIST, print a line an epoch, and return the accuracy on the test images."""
    data = fashion_mnist.load(options.data) if options.data else fashion_mnist.load()
    rng = np.random.default_rng(options.seed)
    optimizer = gk.optim.AdamW(options.rate)
    print(f"{model!r}, {len(data.train_labels):,} images, {'eager' if options.eager else 'training graph'}")
    trainer = None
    if not options.eager:
        spec = gk.spec("float32", ["batch", *data.train_images.shape[1:]])
        graph = gk.training.build(model, "cross_entropy", optimizer, inputs={"x": spec})
        print(f"{graph!r}")
        trainer = gk.Trainer(graph, options.device)
    score = 0.0
    for epoch in range(options.epochs):
        started, losses = time.perf_counter(), []
        for x, labels in batches(data.train_images, data.train_labels, options.batch, rng):
            if trainer is None:
                losses.append(eager_step(model, optimizer, x, labels))
            else:
                losses.append(float(trainer.step({"x": x, "labels": labels})["loss"]))
        seconds = time.perf_counter() - started
        if trainer is None:
            score = evaluate_eagerly(model, data.test_images, data.test_labels)
        else:
            logits = trainer.evaluate({"x": data.test_images, "labels": data.test_labels})["output"]
            score = accuracy(logits, data.test_labels)
        each = 1e3 * seconds / len(losses)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, test accuracy {score:.1%}, {each:.2f} ms a step")
    if options.export:
        if trainer is None:
            gk.export(model, gk.spec("float32", ["batch", *data.train_images.shape[1:]]), options.export)
        else:
            trainer.export_inference(options.export)
        print(f"wrote {options.export}")
    return score
