"""Training graphs through the preset "training": nodes, losses of 50 steps and time of a step, before and after.

    python -m benchmarks.training_graphs [--rounds 40] [--models mlp,lenet,resnet,gpt,lstm] [--threads 1]

Both graphs take the same batches from the same first state, with AdamW. For the time they take a few steps in turn,
over and over, so that what else the machine does strikes both; what is printed is the median of the ratios, each under
ONNX Runtime's own default optimization. With ``--plain``, its optimizations are off for both, which shows what the
passes alone do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

import graphkit as gk
from graphkit.optimizers import optimize
from models import gpt, lenet, lstm, mlp, resnet

STEPS = 50


def images(rng: np.random.Generator) -> Any:
    return rng.uniform(size=(64, 784)).astype("float32")


MODELS: dict[str, tuple[Callable[[], gk.nn.Module], Callable[[Any], Any], int]] = {
    "mlp": (mlp.MLP, images, 10),
    "lenet": (lenet.LeNet, images, 10),
    "resnet": (resnet.ResNet, images, 10),
    "gpt": (lambda: gpt.GPT(256, 128, 2, 4, 64), lambda rng: rng.integers(0, 256, (8, 64)), 256),
    "lstm": (lstm.Rows, images, 10),
}


class Run:
    """One graph with its state, which goes on from step to step."""

    def __init__(self, model: ir.Model, graph: gk.training.TrainingGraph, threads: int, plain: bool) -> None:
        self.session = gk.runtime.Session(model, threads=threads, optimizations=not plain)
        self.pairs, self.state = graph.pairs, dict(graph.state)

    def step(self, batch: dict[str, Any]) -> float:
        outputs = self.session.run(self.state | batch)
        self.state = {name: outputs[self.pairs[name]] for name in self.state}
        return float(outputs["loss"])

    def time(self, batch: dict[str, Any], steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            self.step(batch)
        return time.perf_counter() - started


def measure(name: str, rounds: int, threads: int, plain: bool) -> str:
    make, data, classes = MODELS[name]
    gk.random.seed(0)
    rng = np.random.default_rng(0)
    x = data(rng)
    labels = rng.integers(0, classes, x.shape if x.dtype.kind == "i" else x.shape[:1])
    inputs = {"x": gk.spec(x.dtype, ["batch", *x.shape[1:]])}
    graph = gk.training.build(make(), "cross_entropy", gk.optim.AdamW(1e-3), inputs=inputs, optimize=False)
    started = time.perf_counter()
    smaller = optimize(graph.train, "training", verify=False)
    seconds = time.perf_counter() - started
    batch = {"x": x, "labels": labels}
    before, after = (Run(model, graph, threads, plain) for model in (graph.train, smaller))
    pairs = [(before.step(batch), after.step(batch)) for _ in range(STEPS)]
    largest = max(abs(b - a) / abs(a) for a, b in pairs)
    each = max(1, int(0.05 / max(before.time(batch, 3) / 3, 1e-5)))
    ratios = []
    for turn in range(rounds):
        order = (before, after) if turn % 2 else (after, before)
        times = {run: run.time(batch, each) for run in order}
        ratios.append(times[after] / times[before])
    nodes = [len(list(model.graph.all_nodes())) for model in (graph.train, smaller)]
    return (
        f"{name:8} {nodes[0]:6} {nodes[1]:6} {seconds:8.2f} {largest:12.1e} {statistics.median(ratios):8.3f}   "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--plain", action="store_true", help="without ONNX Runtime's own optimizations")
    options = parser.parse_args()
    print("model     nodes  after  seconds  losses apart    ratio of a step's time")
    for name in options.models.split(","):
        print(measure(name, options.rounds, options.threads, options.plain), flush=True)


if __name__ == "__main__":
    main()
