"""Fully connected networks on Fashion-MNIST: 784-256-10 (203,530 parameters), or six hidden layers of 128.

As a training graph on the sample, or eagerly on the full data::

    python -m models.mlp                    # as a training graph, on the sample
    python -m models.mlp --eager --deep --activation sigmoid --data /usr/share/datasets/fashion-mnist
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import graphkit as gk
from graphkit import nn
from models import program

ACTIVATIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "relu": nn.relu,
    "sigmoid": nn.sigmoid,
    "tanh": nn.tanh,
    "gelu": nn.gelu,
}
WIDE: Final = (784, 256, 10)
DEEP: Final = (784, 128, 128, 128, 128, 128, 128, 10)


class MLP(nn.Module):
    """Affine maps with an activation between them; logits at the end."""

    def __init__(self, sizes: Sequence[int] = WIDE, activation: str = "relu") -> None:
        self.layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Any) -> Any:
        """[batch, inputs] to [batch, classes]."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one on Fashion-MNIST."""
    parser = program.parser(__doc__, epochs=5, rate=1e-3)
    parser.add_argument("--deep", action="store_true", help="six hidden layers of 128 instead of one of 256")
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="relu")
    options = parser.parse_args(arguments)
    gk.random.seed(options.seed)
    program.train_classifier(MLP(DEEP if options.deep else WIDE, options.activation), options)


if __name__ == "__main__":
    main()
