"""Which values cannot vanish, as far as the operators that made them tell.

A quotient or a root may have an infinite slope, which the reverse pass must then guard against. Where the divisor is
``sqrt(mean(x * x) + 1e-5)`` it cannot be zero, and the guards (each as dear as twenty products) are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graphkit.core import Array, Record, Tensor
from graphkit.gradients.shapes import static_value
from graphkit.gradients.table import may_be_singular

DEPTH: Final = 8
_MOVED: Final = frozenset(
    """Identity Reshape Unsqueeze Squeeze Transpose Flatten Expand Tile Slice Gather ReduceMax ReduceMin
    ReduceMean""".split()
)
_NEVER_NEGATIVE: Final = frozenset(
    "Abs Relu Sqrt Exp Sigmoid Softplus Softmax ReduceSumSquare ReduceL1 ReduceL2 HardSigmoid".split()
)


def positive(t: Tensor | None, depth: int = DEPTH) -> bool:
    """Whether every element is certainly above 0 (and not merely by an exponential, which underflows)."""
    known = _constant(t)
    if known is not None:
        return bool((known > 0).all())
    r = None if t is None else t.record
    if r is None or r.domain or not depth or r.freed():
        return False
    if r.op in _MOVED or r.op in {"Sqrt", "ReduceSum"}:
        return positive(r.inputs[0], depth - 1)
    if r.op in {"Add", "Sum"}:
        return all(never_negative(i, depth - 1) for i in r.inputs) and any(positive(i, depth - 1) for i in r.inputs)
    if r.op == "Max":
        return any(positive(i, depth - 1) for i in r.inputs)
    return r.op == "Clip" and positive(r.input(1), depth - 1) and r.input(2) is None


def never_negative(t: Tensor | None, depth: int = DEPTH) -> bool:
    """Whether no element is below 0."""
    known = _constant(t)
    if known is not None:
        return bool((known >= 0).all())
    r = None if t is None else t.record
    if r is None or r.domain or not depth or r.freed():
        return False
    if r.op in _NEVER_NEGATIVE:
        return True
    if r.op == "Mul":
        a, b = r.inputs
        assert a is not None and b is not None
        return a.key == b.key or (never_negative(a, depth - 1) and never_negative(b, depth - 1))
    if r.op == "Pow":
        exponent = _constant(r.inputs[1])
        return exponent is not None and bool((exponent % 2 == 0).all())
    if r.op in _MOVED or r.op == "ReduceSum":
        return never_negative(r.inputs[0], depth - 1)
    if r.op in {"Add", "Sum"}:
        return all(never_negative(i, depth - 1) for i in r.inputs)
    return positive(t, 1)


def _constant(t: Tensor | None) -> Array | None:
    # an eager tensor always has values, but a rule must not look at them: another run has others
    if t is None or not (t.traced or t.literal):
        return None
    found: Array | None = static_value(t)
    return found


def first_may_vanish(r: Record) -> bool:
    return not positive(r.inputs[0])


def second_may_vanish(r: Record) -> bool:
    return not positive(r.inputs[1]) and not _nowhere_zero(r.inputs[1])


def _nowhere_zero(t: Tensor | None) -> bool:
    known = _constant(t)
    return known is not None and bool((known != 0).all())


def power_may_break(r: Record) -> bool:
    """x ** p has an infinite slope at 0 for p < 1, and log(x) in that of the exponent."""
    if positive(r.inputs[0]):
        return False
    exponent = _constant(r.inputs[1])
    return r.wanted(1) or exponent is None or bool(((exponent < 1) & (exponent != 0)).any())


_OVERFLOWING: Final = frozenset("Exp Sinh Cosh Tan".split())
_PASSED_ON: Final = frozenset("Neg Add Sub Mul Abs Relu Clip Max Min Sum Where Cast".split()) | _MOVED


def may_be_infinite(t: Tensor | None, depth: int = 4) -> bool:
    """Whether a value may be infinite or NaN where what it was made of is not, as far as its operators tell."""
    known = _constant(t)
    if known is not None:
        return known.dtype.kind == "f" and not np.isfinite(known).all()
    r = None if t is None else t.record
    if r is None or r.domain or not depth or r.freed():
        return False
    if r.op in _OVERFLOWING or may_be_singular(r):
        return True
    return r.op in _PASSED_ON and any(may_be_infinite(i, depth - 1) for i in r.inputs)


def a_factor_may_be_infinite(r: Record) -> bool:
    return any(may_be_infinite(t) for t in r.inputs)
