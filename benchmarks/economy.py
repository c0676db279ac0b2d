"""How many nodes gradients add to a graph, and how long a training graph takes to build.

    python -m benchmarks.economy

Nodes are counted after the passes of the preset "training", before and after ``add_gradients``.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import graphkit as gk
from graphkit.optimizers import add_gradients, optimize
from models import gpt, lenet, mlp, resnet

# goal, and what others need: the training packages that ONNX Runtime had until 2024, and onnx-ad 0.3
KNOWN = {"mlp 256-512-512-10": (24, 20, 110), "gpt of 2 layers": (250, 154, 494)}


class _Loss:
    """A network with its loss, as one function to trace."""

    def __init__(self, model: gk.nn.Module) -> None:
        self.model, self.named_tensors = model, model.named_tensors

    def __call__(self, x: Any, labels: Any) -> Any:
        return gk.nn.cross_entropy(self.model(x), labels)

    forward = __call__


def added(model: gk.nn.Module, x: Any, labels: list[Any]) -> tuple[int, int]:
    """Nodes of the loss, and nodes that the gradients add."""
    traced = gk.trace(_Loss(model), x, gk.spec("int64", labels), output_names=["loss"])
    before = len(optimize(traced, "training", verify=False).graph)
    names = [name for name, _ in model.named_parameters()]
    return before, len(optimize(add_gradients(traced, "loss", names), "training", verify=False).graph) - before


def main() -> None:
    """Count and print."""
    image = gk.spec("float32", ["batch", 784])
    for what, model, x, labels in (
        ("mlp 256-512-512-10", mlp.MLP((256, 512, 512, 10)), gk.spec("float32", ["batch", 256]), ["batch"]),
        ("gpt of 2 layers", gpt.GPT(256, 128, 2, 4, 64), gk.spec("int64", ["batch", 64]), ["batch", 64]),
        ("lenet", lenet.LeNet(), image, ["batch"]),
        ("resnet", resnet.ResNet(), image, ["batch"]),
    ):
        before, more = added(model, x, labels)
        known = "; goal {}, ONNX Runtime's own {}, onnx-ad {}".format(*KNOWN[what]) if what in KNOWN else ""
        print(f"{what}: {before} nodes, gradients add {more}{known}")
    model = gpt.GPT(256, 256, 4, 8, 128)
    inputs = {"x": gk.spec("int64", ["batch", 128])}
    for rule in (gk.optim.SGD(0.1), gk.optim.AdamW(1e-3)):
        times = []
        for _ in range(5):
            started = time.perf_counter()
            graph = gk.training.build(model, "cross_entropy", rule, inputs=inputs)
            times.append(time.perf_counter() - started)
        print(
            f"gpt of 4 layers, training graph with {graph.optimizer['rule']}: {len(graph.train.graph)} nodes, built in "
            f"{statistics.median(times):.2f} s (goal 0.5)"
        )


if __name__ == "__main__":
    main()
