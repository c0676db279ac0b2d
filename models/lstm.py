"""An LSTM (Hochreiter and Schmidhuber, 1997) that reads the images of Fashion-MNIST row by row.

Each image is a sequence of 28 rows of 28 pixels; the state after the last row tells the class. About 74% after three
epochs of the sample::

    python -m models.lstm
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import graphkit as gk
from graphkit import nn
from models import program


class LSTM(nn.Module):
    """One layer over a sequence: the operator LSTM with parameters, its gates in ONNX's order (i, o, f, c)."""

    def __init__(self, inputs: int, width: int) -> None:
        bound = 1 / math.sqrt(width)
        self.width = width
        self.weight = nn.initializers.uniform([1, 4 * width, inputs], bound)
        self.recurrent = nn.initializers.uniform([1, 4 * width, width], bound)
        self.bias = nn.initializers.uniform([1, 8 * width], bound)

    def forward(self, x: Any) -> Any:
        """[time, batch, inputs] to the state after each step, [time, batch, width]."""
        states = gk.op.LSTM(x, self.weight, self.recurrent, self.bias, hidden_size=self.width)
        return states.squeeze(1)


class Rows(nn.Module):
    """Images as sequences of rows: layers of LSTM, and logits from the last state."""

    def __init__(self, width: int = 64, layers: int = 1, side: int = 28, classes: int = 10) -> None:
        self.side = side
        self.layers = [LSTM(width if n else side, width) for n in range(layers)]
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        """[batch, side * side] to [batch, classes]."""
        x = x.reshape(x.shape[0], self.side, self.side).transpose(1, 0, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one on Fashion-MNIST."""
    parser = program.parser(__doc__, epochs=3, rate=2e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    options = parser.parse_args(arguments)
    gk.random.seed(options.seed)
    program.train_classifier(Rows(options.width, options.layers), options)


if __name__ == "__main__":
    main()
