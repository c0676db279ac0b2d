"""Einsum: the gradient of an operand is an Einsum of the cotangent and the other operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.shapes import constant, rank_of
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@gradient("Einsum", mixes=True)
def einsum(r: Record, g: Tensor) -> Entries:
    terms, result = explicit(str(r.attribute("equation")), [rank_of(r, t) for t in r.inputs])
    return tuple(lambda n=n: _to_operand(r, n, terms, result, g) for n in range(len(terms)))


def explicit(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The equation's terms and result with a letter for every axis: no ellipsis, no implicit result.

    >>> explicit("...ij,jk", [3, 2])
    (['aij', 'jk'], 'aik')
    """
    text = equation.replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    widest = max(
        (rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t), default=0
    )
    spare = [c for c in LETTERS if c not in text][:widest]
    if not arrow:
        counts = Counter(left.replace("...", "").replace(",", ""))
        result = ("..." if "..." in left else "") + "".join(sorted(c for c, n in counts.items() if n == 1))
    spelled = []
    for t, rank in zip(terms, ranks, strict=True):
        own = rank - len(
            t.replace("...", "")
        )  # an ellipsis may stand for fewer axes here than elsewhere: the last ones
        spelled.append(t.replace("...", "".join(spare[len(spare) - own :]) if own else ""))
    return spelled, result.replace("...", "".join(spare))


def _to_operand(r: Record, n: int, terms: list[str], result: str, g: Tensor) -> Tensor:
    term = terms[n]
    x = r.inputs[n]
    assert x is not None
    others = [m for m in range(len(terms)) if m != n]
    letters = "".join(dict.fromkeys(term))  # each axis once: a repeated letter reads a diagonal
    reachable = set(result).union(*(set(terms[m]) for m in others))
    found = "".join(c for c in letters if c in reachable)
    inputs = [g, *(r.inputs[m] for m in others)]
    equation = ",".join([result, *(terms[m] for m in others)]) + "->" + found
    value = g if equation == f"{result}->{result}" and not others else apply1("Einsum", *inputs, equation=equation)
    # An axis that was summed away and stands nowhere else: every element along it gets the same.
    lost = [position for position, c in enumerate(letters) if c not in reachable]
    if lost:
        value = apply1("Unsqueeze", value, constant_ints(lost))
    if len(letters) == len(term):
        return apply1("Expand", value, apply1("Shape", x)) if lost else value
    return _on_diagonal(value, x, letters, term)


def _on_diagonal(value: Tensor, x: Tensor, letters: str, term: str) -> Tensor:
    """The value where the axes of a repeated letter agree, zeros elsewhere."""
    assert x.rank is not None
    # first every letter at its first axis, then a mask for each further axis of the same letter
    spread = [term.index(c) for c in letters]
    missing = [axis for axis in range(len(term)) if axis not in spread]
    value = apply1("Unsqueeze", value, constant_ints(missing))
    for axis in missing:
        first = term.index(term[axis])
        value = apply1("Mul", value, _eye(x, first, axis, value))
    return apply1("Expand", value, apply1("Shape", x))


def _eye(x: Tensor, a: int, b: int, like: Tensor) -> Tensor:
    """1 where the positions along axes a and b agree, extent 1 along all others."""
    assert x.rank is not None and x.dims is not None
    extent = x.dims[a]
    shape = [1] * x.rank
    if isinstance(extent, int):
        shape[a] = shape[b] = extent
        return constant(np.eye(extent).reshape(shape), like.dtype)
    size = apply1("Squeeze", apply1("Shape", x, start=a, end=a + 1))
    positions = apply1("Range", constant(0, dtypes.INT64), size, constant(1, dtypes.INT64))
    shapes = ([-1 if n == axis else 1 for n in range(x.rank)] for axis in (a, b))
    one, two = (apply1("Reshape", positions, constant_ints(shape)) for shape in shapes)
    return apply1("Equal", one, two).astype(like.dtype)
