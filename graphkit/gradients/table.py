"""The table of gradient rules: one an operator, written in the same operators.

A rule gets the Record of an applied operator and the cotangent of each of its outputs (None where nothing flows back),
and returns one entry for each input: a Tensor, None for no gradient, or a function of no arguments that makes the
Tensor, called only if that input's gradient is wanted::

    @gradient("Mul")
    def mul(r, g):
        a, b = r.inputs
        return lambda: g * b, lambda: g * a

The reverse pass sums a cotangent down to its input's shape where the operator broadcast, so rules need not. Rules look
at attributes, dtypes and dims, never at values; so one rule serves Eager and Graph, and being made of traced operators
it can be differentiated again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from graphkit.core import Record, Tensor
from graphkit.dtypes import is_float
from graphkit.eager import KEPT_OUTPUTS

Entry = Tensor | None | Callable[[], Tensor]
Rule = Callable[..., "Sequence[Entry] | Entry"]
Predicate = Callable[[Record], bool]
Key = tuple[str, str]

RULES: Final[dict[Key, Rule]] = {}
# Elementwise operators whose slope is infinite or NaN somewhere; the predicate says whether this record's may be.
SINGULAR: Final[dict[Key, Callable[[Record], bool]]] = {}
# Elementwise operators whose slope is a value that may have overflowed, or be infinite for its own reasons.
OVERFLOWING: Final[dict[Key, Callable[[Record], bool]]] = {}
# Operators whose gradient is exactly zero for elements that they did not select.
SELECTING: Final[set[Key]] = set()
# Operators that add up over many elements, after which a zero cotangent no longer says "not selected".
MIXING: Final[set[Key]] = set()
NOT_DIFFERENTIABLE: Final[dict[Key, str]] = {}
# The reverse pass, put here by graphkit.autograd, which stands above: the rules of If, Loop and Scan run it on bodies.
PULLBACK: Final[list[Callable[..., dict[Any, Tensor]]]] = []
# gk.vjp, put here by graphkit.transforms: an operator without a rule is differentiated by its function body.
VJP: Final[list[Callable[..., tuple[Any, Callable[[Any], Sequence[Tensor]]]]]] = []
# Whether gradients pass through an operator all the same, just now: see gradients.quantize.
STRAIGHT_THROUGH: Final[list[Callable[[str], bool]]] = []
# What finds a rule for an operator that is not in the table.
FALLBACK: Final[list[Callable[[str, str], Rule | None]]] = []


def _always(record: Record) -> bool:
    del record
    return True


def gradient(
    *ops: str,
    domain: str = "",
    singular: bool | Predicate = False,
    overflows: bool | Predicate = False,
    selects: bool = False,
    mixes: bool = False,
    keeps: int = 0,
) -> Callable[[Rule], Rule]:
    """Register a gradient rule for one or several operators.

    Args:
        ops: the operators' names.
        domain: their domain.
        singular: whether the (elementwise) slope may be infinite or NaN somewhere, as that of Sqrt at 0. Where a Where,
            a Slice or the like did not select such an element, its cotangent is 0, and the reverse pass keeps it 0
            instead of making NaN of it. Where the slope is finite the product stays as it is, so that it can be
            differentiated in a cotangent of 0 too.
        overflows: whether the slope may be infinite because the operator's operands or results are, as that of Exp.
            It is kept from making NaN of a cotangent of 0 likewise.
        selects: whether the operator passes on some elements and not others, as Where, Slice and Max do.
        mixes: whether each result is a sum over many elements, as a matrix product's.
        keeps: how many outputs the rule reads, where that is more than callers ask for; see ``kept.kept_output``.

    >>> @gradient("Twice", domain="acme")
    ... def twice(r, g):
    ...     return g + g
    >>> rule_for("Twice", "acme") is twice
    True
    """

    def register(rule: Rule) -> Rule:
        for op in ops:
            RULES[op, domain] = rule
            if singular:
                SINGULAR[op, domain] = _always if singular is True else singular
            if overflows:
                OVERFLOWING[op, domain] = _always if overflows is True else overflows
            if selects:
                SELECTING.add((op, domain))
            if mixes:
                MIXING.add((op, domain))
            if keeps:
                KEPT_OUTPUTS[op, domain] = keeps
        return rule

    return register


def not_differentiable(reason: str, *ops: str, domain: str = "") -> None:
    """Declare that gradients stop at these operators, and why."""
    for op in ops:
        NOT_DIFFERENTIABLE[op, domain] = reason


def rule_for(op: str, domain: str = "") -> Rule | None:
    key = (op, "" if domain == "ai.onnx" else domain)
    found = RULES.get(key)
    if found is None:
        found = next((rule for search in FALLBACK if (rule := search(*key)) is not None), None)
    return found


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], Sequence[Tensor]]]:
    """``gk.vjp``, whose module stands above this one and may not be imported yet."""
    if not VJP:
        importlib.import_module("graphkit.transforms")
    return VJP[0](f, *primals)


def reason_against(op: str, domain: str = "") -> str | None:
    """Why no gradient flows through the operator, None if one may."""
    if any(passes(op) for passes in STRAIGHT_THROUGH):
        return None
    return NOT_DIFFERENTIABLE.get((op, "" if domain == "ai.onnx" else domain))


class Pieces(Tensor):
    """The cotangent of a sequence, element by element; None where nothing has come back yet."""

    __slots__ = ("items", "sequence")

    def __init__(self, items: Sequence[Tensor | None], sequence: Tensor) -> None:
        super().__init__(None)
        self.items = list(items)
        self.sequence = sequence


def carries_gradient(t: Tensor) -> bool:
    """Whether a cotangent can belong to the value: a floating one, or a quantized one while gradients pass through."""
    if is_float(t.dtype):
        return True
    r = t.record
    return r is not None and r.op == "QuantizeLinear" and reason_against(r.op, r.domain) is None


def entries(result: Any) -> tuple[Entry, ...]:
    """What a rule returned, as a tuple."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def may_be_singular(record: Record) -> bool:
    """Whether the slope of this record may be infinite or NaN somewhere."""
    test = SINGULAR.get((record.op, record.domain))
    return test is not None and test(record)


def may_overflow(record: Record) -> bool:
    """Whether the slope of this record may be infinite where its operands or results are."""
    test = OVERFLOWING.get((record.op, record.domain))
    return test is not None and test(record)
