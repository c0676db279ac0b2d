"""Dimensions as the graph knows them: an integer, or a name.

Two different names may or may not be equal at run time, so every question here has three answers and the callers must
fail closed. A dimension that nobody named gets a name of its own, beginning with ``?``, which no other dimension
shares: it equals itself, and is unknown against everything else. Such names never reach a file.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

Extent = int | str
Dims = tuple[Extent, ...]

_counter = itertools.count()


def anonymous() -> str:
    """A name for a dimension of which nothing is known."""
    return f"?{next(_counter)}"


def is_anonymous(extent: Extent) -> bool:
    return isinstance(extent, str) and extent.startswith("?")


def same(a: Extent, b: Extent) -> bool | None:
    """Whether two extents are equal at every run: True, False, or None for unknown.

    >>> same(3, 3), same(3, 4), same("batch", "batch"), same("batch", 3)
    (True, False, True, None)
    """
    if a == b:
        return True
    return False if isinstance(a, int) and isinstance(b, int) else None


def same_dims(a: Dims | None, b: Dims | None) -> bool | None:
    """Whether two shapes are equal at every run; None (unknown) if either rank is unknown."""
    if a is None or b is None:
        return None
    if len(a) != len(b):
        return False
    answers = [same(x, y) for x, y in zip(a, b, strict=True)]
    if any(x is False for x in answers):
        return False
    return True if all(answers) else None


def is_static(dims: Dims | None) -> bool:
    return dims is not None and all(isinstance(d, int) for d in dims)


def size(dims: Dims) -> int | None:
    """The number of elements, or None if a dimension is not an integer."""
    total = 1
    for extent in dims:
        if not isinstance(extent, int):
            return None
        total *= extent
    return total


def broadcast_one(a: Extent, b: Extent) -> Extent:
    """The extent two broadcast extents give; anonymous where it cannot be known."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int):
        return a  # b is a name (or an error that the runtime reports): either 1 or equal to a
    if isinstance(b, int):
        return b
    return anonymous()


def broadcast(a: Dims, b: Dims) -> Dims:
    """The shape that two shapes broadcast to, numpy's rule, anonymous where it cannot be known.

    >>> broadcast(("n", 1, 3), (4, 3))
    ('n', 4, 3)
    """
    length = max(len(a), len(b))
    left = (1,) * (length - len(a)) + a
    right = (1,) * (length - len(b)) + b
    return tuple(broadcast_one(x, y) for x, y in zip(left, right, strict=True))


def quotient(whole: Iterable[Extent], parts: Iterable[Extent]) -> Extent | None:
    """The one extent missing from ``parts`` so that both products agree, as for the -1 of a reshape; None if unknown.

    >>> quotient(("batch", 2, 3), ("batch",))
    6
    >>> quotient(("batch", 4), (4,))
    'batch'
    """
    numerator, names = _factors(whole)
    denominator, others = _factors(parts)
    names.subtract(others)
    if any(c < 0 for c in names.values()) or denominator == 0 or numerator % denominator:
        return None
    return _product(numerator // denominator, names)


def product(extents: Iterable[Extent]) -> Extent:
    """The product of extents. What is no integer and no name alone gets a name by its factors.

    >>> product((4, 3)), product(("batch", 1))
    (12, 'batch')
    >>> rows = product(("batch", 16))  # of a reshape, and back
    >>> is_anonymous(rows), quotient((rows, 32), (16, 32))
    (True, 'batch')
    """
    return _product(*_factors(extents))


_TIMES = "\u00b7"


def _factors(extents: Iterable[Extent]) -> tuple[int, Counter[str]]:
    """The integers' product, and how often each name is a factor."""
    number, names = 1, Counter[str]()
    for extent in extents:
        if isinstance(extent, int):
            number *= extent
        elif extent.startswith("?" + _TIMES):
            _, written, *rest = extent.split(_TIMES)
            number *= int(written)
            names.update(rest)
        else:
            names[extent] += 1
    return number, names


def _product(number: int, names: Counter[str]) -> Extent:
    """A name that equal products share; it begins with ``?``, since no file may have it."""
    factors = sorted(names.elements())
    if not factors or number == 0:
        return number
    if number == 1 and len(factors) == 1:
        return factors[0]
    if any(_TIMES in name for name in factors):
        return anonymous()
    return _TIMES.join(("?", str(number), *factors))


def text(dims: Sequence[Extent] | None) -> str:
    """``[batch, 784]``; an anonymous dimension reads ``?``, an unknown rank ``[...]``."""
    if dims is None:
        return "[...]"
    return "[" + ", ".join("?" if is_anonymous(d) else str(d) for d in dims) + "]"
