"""A small residual network (He et al., 2016) on Fashion-MNIST; images of any size and number of channels.

Blocks can be added; the batch is what decides the time::

    python -m models.resnet
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import graphkit as gk
from graphkit import nn
from models import program


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a way straight through, which is a 1 x 1 convolution where shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.conv1 = nn.Conv(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm(outputs)
        self.conv2 = nn.Conv(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm(outputs)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm(outputs))

    def forward(self, x: Any) -> Any:
        """[batch, inputs, h, w] to [batch, outputs, h / stride, w / stride]."""
        y = nn.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """A convolution, stages of blocks each half as large as the one before, the mean of every channel, logits."""

    def __init__(
        self, widths: Sequence[int] = (16, 32, 64), blocks: int = 1, channels: int = 1, classes: int = 10
    ) -> None:
        self.channels = channels
        self.stem = nn.Conv(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm(widths[0])
        stages: list[nn.Module] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for n in range(blocks):
                stages.append(Block(inputs, width, stride=2 if stage and not n else 1))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Any) -> Any:
        """[batch, pixels] (square images) or [batch, channels, h, w] to [batch, classes]."""
        if x.ndim == 2:
            side = round((x.shape[1] // self.channels) ** 0.5)
            x = x.reshape(x.shape[0], self.channels, side, side)
        x = nn.relu(self.norm(self.stem(x)))
        return self.head(nn.global_avg_pool(self.stages(x)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one on Fashion-MNIST."""
    parser = program.parser(__doc__, epochs=2, rate=2e-3)
    parser.add_argument("--blocks", type=int, default=1, help="blocks of a stage")
    options = parser.parse_args(arguments)
    gk.random.seed(options.seed)
    program.train_classifier(ResNet(blocks=options.blocks), options)


if __name__ == "__main__":
    main()
