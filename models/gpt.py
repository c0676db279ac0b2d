"""A small GPT (pre-norm transformer decoder) that learns to continue a text, byte by byte.

Any file will do as the text; this is small enough to read along::

    python -m models.gpt                        # on this repository's LICENSE
    python -m models.gpt --text FILE --layers 4 --width 256 --context 128
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import graphkit as gk
from graphkit import nn

TEXT = Path(__file__).parent.parent / "LICENSE"
BYTES = 256


class Attention(nn.Module):
    """Causal self-attention: each place looks at itself and the places before it."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        self.heads, self.context = heads, context
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Any) -> Any:
        """[batch, time, width] to the same."""
        batch, length, width = x.shape
        size = width // self.heads

        def split(y: Any) -> Any:
            return y.reshape(batch, length, self.heads, size)

        query = split(self.query(x) * (1 / math.sqrt(size))).transpose(0, 2, 1, 3)
        key = split(self.key(x)).transpose(0, 2, 3, 1)
        value = split(self.value(x)).transpose(0, 2, 1, 3)
        scores = query @ key + self.mask(length)
        mixed = nn.softmax(scores) @ value
        return self.out(mixed.transpose(0, 2, 1, 3).reshape(batch, length, width))

    def mask(self, length: Any) -> Any:
        """[time, time]: 0 up to the diagonal, so low above it that its softmax is 0."""
        whole = np.triu(np.full((self.context, self.context), -1e9, dtype=np.float32), 1)
        return gk.tensor(whole[:length, :length]) if isinstance(length, int) else gk.tensor(whole)[:length, :length]


class Layer(nn.Module):
    """Attention and a network of two affine maps, each beside a way straight through."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, context)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """[batch, time, width] to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(nn.gelu(self.wide(self.norm2(x))))


class GPT(nn.Module):
    """Tokens to logits of the next token; with ``tied``, the table of tokens is also the last map."""

    def __init__(
        self, vocabulary: int = BYTES, width: int = 128, layers: int = 2, heads: int = 4, context: int = 64,
        tied: bool = False,
    ) -> None:  # fmt: skip
        self.tokens = nn.Embedding(vocabulary, width, scale=0.02)
        self.places = nn.Embedding(context, width, scale=0.02)
        self.layers = [Layer(width, heads, context) for _ in range(layers)]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        """int64 [batch, time] to [batch, time, vocabulary]."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places.weight[:length]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def windows(
    text: npt.NDArray[Any], rows: int, context: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Random pieces of the text, and the same moved on by one."""
    starts = rng.integers(0, len(text) - context, rows)
    pieces = np.stack([text[n : n + context + 1] for n in starts]).astype(np.int64)
    return np.ascontiguousarray(pieces[:, :-1]), np.ascontiguousarray(pieces[:, 1:])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one on a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(TEXT), help="a file to learn from")
    parser.add_argument("--eager", action="store_true", help="train eagerly instead of as a training graph")
    parser.add_argument("--tied", action="store_true", help="one table for tokens and the last map")
    numbers = {"steps": 200, "batch": 8, "width": 128, "layers": 2, "heads": 4, "context": 64, "seed": 0}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (training graph only)")
    options = parser.parse_args(arguments)
    gk.random.seed(options.seed)
    rng = np.random.default_rng(options.seed)
    text = np.frombuffer(Path(options.text).read_bytes(), dtype=np.uint8)
    model = GPT(BYTES, options.width, options.layers, options.heads, options.context, options.tied)
    optimizer = gk.optim.AdamW(gk.optim.warm_up(20, gk.optim.cosine(options.rate, options.steps)), clip_norm=1.0)
    print(f"{model!r}, {len(text):,} bytes, {'eager' if options.eager else 'training graph'}")
    trainer = None
    if not options.eager:
        spec = gk.spec("int64", ["batch", options.context])
        graph = gk.training.build(model, "cross_entropy", optimizer, inputs={"tokens": spec})
        trainer = gk.Trainer(graph, options.device)
    started, losses = time.perf_counter(), []
    for step in range(options.steps):
        tokens, labels = windows(text, options.batch, options.context, rng)
        if trainer is not None:
            losses.append(float(trainer.step({"tokens": tokens, "labels": labels})["loss"]))
        else:
            model.zero_grad()
            loss = nn.cross_entropy(model(gk.tensor(tokens)), gk.tensor(labels))
            loss.backward()
            optimizer.step(model.parameters())
            losses.append(float(loss))
        if (step + 1) % 20 == 0:
            each = (time.perf_counter() - started) / (step + 1)
            print(f"step {step + 1}: loss {np.mean(losses[-20:]):.4f}, {1e3 * each:.1f} ms a step")


if __name__ == "__main__":
    main()
