"""Integers that are only known when the model runs, as polynomials over named dimensions.

A dimension is an ``int`` or a ``Symbol``: a polynomial with integer coefficients over atoms. An atom is the name of a
dimension, or an operation that polynomials cannot express (a quotient that leaves a rest). Two symbols are equal only
when their polynomials are; everything else is unknown, so a rewrite that asks ``a == b`` fails closed.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Final, TypeAlias

__all__ = [
    "Dim",
    "Symbol",
    "add",
    "derived",
    "divide",
    "fresh",
    "multiply",
    "named",
    "negate",
    "never_negative",
    "product",
    "size_of",
    "truncated_quotient",
    "unknown_number",
    "value_at",
]

# A monomial is a sorted tuple of atoms, the empty one being the constant term.
Monomial: TypeAlias = tuple[str, ...]

_LIMIT: Final = 2**31
_MAX_TERMS: Final = 8
_LONGEST_TEXT: Final = 160
_counter = itertools.count()


class Symbol:
    """A polynomial over the names of dimensions; compare with ``==``.

    >>> add(named("N"), named("N")) == multiply(2, named("N"))
    True
    >>> named("N") == named("M")
    False
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: frozenset[tuple[Monomial, int]]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Symbol) and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = []
        for monomial, coefficient in sorted(self.terms):
            factors = list(monomial)
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts)


Dim: TypeAlias = int | Symbol


def named(name: str) -> Symbol:
    """The dimension called ``name``."""
    return Symbol(frozenset({((name,), 1)}))


def derived(text: str) -> Symbol:
    """The dimension that an expression of others gives, equal to itself wherever the expression comes up again.

    Expressions of expressions may double in length at each step: long ones go by their digest.
    """
    if len(text) > _LONGEST_TEXT:
        text = f"(#{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()})"
    return named(text)


def fresh() -> Symbol:
    """A dimension of which nothing is known: equal to itself only."""
    return named(f"?{next(_counter)}")


def unknown_number() -> Symbol:
    """A number of which nothing is known, not even its sign: equal to itself only."""
    return named(f"!{next(_counter)}")


def _terms(value: Dim) -> dict[Monomial, int]:
    if isinstance(value, Symbol):
        return dict(value.terms)
    return {(): value} if value else {}


def _make(terms: dict[Monomial, int]) -> Dim:
    kept = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    # Numbers this large, or sums this long, stand for no dimension: what is not tracked is unknown.
    if len(kept) > _MAX_TERMS or any(abs(c) >= _LIMIT for c in kept.values()):
        return unknown_number()
    return Symbol(frozenset(kept.items()))


def add(a: Dim, b: Dim) -> Dim:
    """The sum of two dimensions."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    terms = _terms(a)
    for monomial, coefficient in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _make(terms)


def negate(a: Dim) -> Dim:
    """Minus a dimension."""
    return -a if isinstance(a, int) else multiply(-1, a)


def multiply(a: Dim, b: Dim) -> Dim:
    """The product of two dimensions."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    terms: dict[Monomial, int] = {}
    for left, m in _terms(a).items():
        for right, n in _terms(b).items():
            monomial = tuple(sorted(left + right))
            terms[monomial] = terms.get(monomial, 0) + m * n
    return _make(terms)


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """The product of dimensions; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = multiply(total, dim)
    return total


def divide(a: Dim, b: Dim) -> Dim | None:
    """The quotient where it is exact for every value of the names, else None.

    Dividing by a symbol supposes that it is not zero, as the runtime's division does.

    >>> divide(multiply(12, named("N")), 4)
    3*N
    >>> divide(named("N"), 2) is None
    True
    """
    if isinstance(b, int):
        if b == 0:
            return None
        if isinstance(a, int):
            return a // b if a % b == 0 else None
        if any(coefficient % b for _, coefficient in a.terms):
            return None
        return _make({monomial: coefficient // b for monomial, coefficient in a.terms})
    if a == b:
        return 1
    if not isinstance(a, Symbol) or len(b.terms) != 1:
        return None
    ((divisor, scale),) = b.terms
    quotient: dict[Monomial, int] = {}
    for monomial, coefficient in a.terms:
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % scale:
            return None
        quotient[tuple(rest)] = coefficient // scale
    return _make(quotient)


def truncated_quotient(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded toward zero, as the operator Div does on integers.

    A quotient that is not exact becomes an atom of its own, so that the same one met twice is known to be the same.
    """
    exact = divide(a, b)
    if exact is not None:
        return exact
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else unknown_number()
    if never_negative(a) and never_negative(b):
        return derived(f"({a!r})/({b!r})")
    return unknown_number()


def never_negative(a: Dim) -> bool:
    """Whether a value is known to be 0 or more: dimensions are, and what grows with them."""
    if isinstance(a, int):
        return a >= 0
    return all(
        coefficient > 0 and not any(atom.startswith("!") for atom in monomial) for monomial, coefficient in a.terms
    )


def size_of(dims: tuple[Dim, ...] | None) -> int | None:
    """The number of elements of a shape, or None where it is not static."""
    if dims is None:
        return None
    total = product(dims)
    return total if isinstance(total, int) and all(isinstance(d, int) for d in dims) else None


def value_at(dim: Dim, size: int) -> int | None:
    """The number that a dimension is where every name stands for ``size``; None where it holds more than names.

    >>> value_at(add(multiply(3, named("N")), 2), 4)
    14
    """
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        if any(not atom or atom[0] in "?!(" for atom in monomial):
            return None
        total += coefficient * size ** len(monomial)
    return total
