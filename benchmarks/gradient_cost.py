"""What all gradients together cost: (forward + backward) / forward of the compiled graph, and of training's whole step.

    python -m benchmarks.gradient_cost [--threads 2]

Reverse mode computes every parameter's gradient in a few times the cost of the loss, however many parameters there are.
Parameters are inputs of both graphs, as in training, so that ONNX Runtime prepares no weights ahead for either.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import onnx_ir as ir

import graphkit as gk
from graphkit import interpreter
from graphkit.optimizers.add_updates import make_input, make_output
from graphkit.training.build import _finish, _gradients, _loss
from graphkit.training.sources import ModuleSource
from models import gpt, lenet, mlp, resnet

GOAL = 3.0


def networks() -> dict[str, tuple[gk.nn.Module, Any, int]]:
    """Each with a batch, and its number of classes."""
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(64, 784)).astype("float32")
    return {
        "mlp 784-256-10, batch 64": (mlp.MLP(), images, 10),
        "mlp 784-512-512-10, batch 1024": (mlp.MLP((784, 512, 512, 10)), np.tile(images, (16, 1)), 10),
        "lenet, batch 64": (lenet.LeNet(), images, 10),
        "resnet, batch 64": (resnet.ResNet(), images, 10),
        "gpt, 4 layers of 256, 8 x 128": (gpt.GPT(256, 256, 4, 8, 128), rng.integers(0, 256, (8, 128)), 256),
    }


def graphs(model: gk.nn.Module, x: Any) -> dict[str, ir.Model]:
    """The loss, and the loss with the gradient of every parameter, made as ``build`` makes a training graph."""
    made = {}
    for kind in ("forward", "both"):
        opened = ModuleSource(model, {"x": gk.spec(x.dtype, ["batch", *x.shape[1:]])}, "cross_entropy").open(True)
        graph = opened.graph
        with interpreter.using(graph):
            loss = _loss(opened, "cross_entropy", None)[0]
            for t in opened.candidates.values():
                make_input(graph, t)
            found = _gradients(loss, opened.candidates, True) if kind == "both" else {}
            make_output(graph, loss, "the_loss")
            for name, gradient in found.items():
                make_output(graph, gradient, f"{name}_grad")
        made[kind] = _finish(graph, True)
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu with one thread: on a busy machine"
    )
    options = parser.parse_args()
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    for what, (model, x, classes) in networks().items():
        labels = np.random.default_rng(1).integers(0, classes, x.shape if x.dtype.kind == "i" else x.shape[:1])
        names = [name for name, _ in model.named_parameters()]
        feeds = {name: t.numpy() for name, t in model.named_parameters()} | {"x": x, "labels": labels}
        sessions = {kind: gk.runtime.Session(made, threads=options.threads) for kind, made in graphs(model, x).items()}
        times: dict[str, list[float]] = {kind: [] for kind in sessions}
        for turn in range(options.rounds + 2):
            for kind, session in sessions.items():
                session.run(feeds)
                each = 20 if len(x) == 64 and "mlp" in what else 2
                started = clock()
                for _ in range(each):
                    session.run(feeds)
                if turn >= 2:
                    times[kind].append((clock() - started) / each)
        forward, both = (1e3 * statistics.median(times[kind]) for kind in ("forward", "both"))
        print(
            f"{what}: forward {forward:.2f} ms, with all {len(names)} gradients {both:.2f} ms, "
            f"ratio {both / forward:.2f} (goal {GOAL:g})", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
