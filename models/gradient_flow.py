"""Where gradients vanish: the norm of each layer's weight gradient in a deep network, by activation.

    python -m models.gradient_flow [--data DIR] [--plot gradients.svg]

Six hidden layers of 128 on one batch of Fashion-MNIST, at the first step. With ReLU the last layer's gradient is within
a factor of ten of the first's; with the sigmoid, whose slope is at most 1/4, it is tens of thousands of times as large.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import graphkit as gk
from graphkit import nn
from graphkit.exporters.curve import draw_curve
from models import fashion_mnist
from models.mlp import ACTIVATIONS, DEEP, MLP


def gradient_norms(
    activation: str, x: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], seed: int = 0
) -> dict[str, float]:
    """The Euclidean norm of each weight's gradient of the cross entropy, first layer first."""
    gk.random.seed(seed)
    model = MLP(DEEP, activation)
    nn.cross_entropy(model(gk.tensor(x)), gk.tensor(labels)).backward()
    return {
        name: float(np.linalg.norm(p.grad.numpy().astype(np.float64)))
        for name, p in model.named_parameters()
        if name.endswith("weight") and p.grad is not None
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Print the table, draw it, and return last over first for each activation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with the full Fashion-MNIST; the sample in the repository by default")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--activations", nargs="+", choices=sorted(ACTIVATIONS), default=["relu", "sigmoid"])
    parser.add_argument("--plot", type=Path, default=Path("gradient-flow.svg"), help="the picture, .svg or .png")
    options = parser.parse_args(arguments)
    data = fashion_mnist.load(options.data) if options.data else fashion_mnist.load()
    x, labels = data.train_images[: options.batch], data.train_labels[: options.batch]
    norms = {a: gradient_norms(a, x, labels, options.seed) for a in options.activations}
    table = Table("layer", *norms, title=f"norm of each weight's gradient, one batch of {len(x)}")
    for layer in next(iter(norms.values())):
        table.add_row(layer, *(f"{values[layer]:.3e}" for values in norms.values()))
    ratios = {a: list(values.values())[-1] / next(iter(values.values())) for a, values in norms.items()}
    table.add_section()
    table.add_row("last / first", *(f"{ratio:,.1f}" for ratio in ratios.values()))
    console = Console()
    console.print(table)
    series = {a: list(values.values()) for a, values in norms.items()}
    path = draw_curve(series, options.plot, title="gradient norm by layer", x_label="layer", logarithmic=True)
    console.print(f"drawn in {path}")
    return ratios


if __name__ == "__main__":
    main()
