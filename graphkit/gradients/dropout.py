"""Dropout, in training and out of it."""

from __future__ import annotations

import numpy as np

from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import as_mask, number
from graphkit.gradients.kept import kept_output
from graphkit.gradients.shapes import constant, static_value
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1


@gradient("Dropout", keeps=2)
def dropout(r: Record, g: Tensor | None, _mask: Tensor | None = None) -> Tensor | None:
    """The forward's own mask, never another draw, times 1 / (1 - ratio)."""
    if g is None:
        return None
    ratio, training = r.input(1), r.input(2)
    known_training = False if training is None else static_value(training)
    if known_training is not None and not bool(np.asarray(known_training)):
        return g
    known_ratio = 0.5 if ratio is None else static_value(ratio)
    if known_ratio is not None and float(np.asarray(known_ratio)) == 0:
        return g
    mask = as_mask(kept_output(r, 1), g)
    if known_training is not None and known_ratio is not None:
        factor = number(1 / (1 - float(np.asarray(known_ratio))), g)
    else:
        factor = _factor(ratio, training, known_training is not None).astype(g.dtype)
    return apply1("Mul", apply1("Mul", g, factor), mask)


def _factor(ratio: Tensor | None, training: Tensor | None, certain: bool) -> Tensor:
    """1 / (1 - ratio) in training, else 1, known only when the graph runs."""
    part = constant(0.5, np.dtype(np.float32)) if ratio is None else ratio
    if not certain:
        assert training is not None
        part = apply1("Mul", part, training.astype(part.dtype))
    return apply1("Reciprocal", apply1("Sub", number(1, part), part))
