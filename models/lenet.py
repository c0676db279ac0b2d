"""LeNet-5 with batch normalization on Fashion-MNIST: two convolutions, three affine maps.

It learns about 85% in three epochs of the sample::

    python -m models.lenet
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import graphkit as gk
from graphkit import nn
from models import program


class LeNet(nn.Module):
    """28 x 28 pixels to logits of 10 classes."""

    def __init__(self, classes: int = 10) -> None:
        self.conv1 = nn.Conv(1, 6, 5, padding=2)
        self.norm1 = nn.BatchNorm(6)
        self.conv2 = nn.Conv(6, 16, 5)
        self.norm2 = nn.BatchNorm(16)
        self.pool = nn.MaxPool(2)
        self.head = nn.Sequential(nn.Linear(400, 120), nn.relu, nn.Linear(120, 84), nn.relu, nn.Linear(84, classes))

    def forward(self, x: Any) -> Any:
        """[batch, 784] to [batch, classes]."""
        x = x.reshape(x.shape[0], 1, 28, 28)
        x = self.pool(nn.relu(self.norm1(self.conv1(x))))
        x = self.pool(nn.relu(self.norm2(self.conv2(x))))
        return self.head(nn.flatten(x))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one on Fashion-MNIST."""
    options = program.parser(__doc__, epochs=3, rate=2e-3).parse_args(arguments)
    gk.random.seed(options.seed)
    program.train_classifier(LeNet(), options)


if __name__ == "__main__":
    main()
