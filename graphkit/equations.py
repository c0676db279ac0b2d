"""The equations of Einsum: what stands for which axis, and the dims of the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from graphkit import dims
from graphkit.dims import Dims, Extent

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


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


def result_dims(equation: str, operands: Sequence[Dims]) -> Dims:
    """The dims of an Einsum's result; a letter of extent 1 in one operand broadcasts, as onnx's inference does not say.

    >>> result_dims("ij,ij->ij", [(1, "n"), (2, "n")])
    (2, 'n')
    """
    terms, result = explicit(equation, [len(x) for x in operands])
    found: dict[str, Extent] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, extent in zip(term, x, strict=True):
            found[letter] = dims.broadcast_one(found.get(letter, 1), extent)
    return tuple(found[letter] for letter in result)
