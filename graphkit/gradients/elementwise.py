"""Arithmetic and the functions of one variable."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.shapes import compare, full_like, static_value, sum_to
from graphkit.gradients.signs import a_factor_may_be_infinite, first_may_vanish, power_may_break, second_may_vanish
from graphkit.gradients.table import Entry, gradient
from graphkit.interpreter import apply1
from graphkit.operands import scalar

Entries = tuple[Entry, ...]


def number(value: float, like: Tensor) -> Tensor:
    """A scalar constant of another tensor's dtype."""
    return scalar(value, like.dtype)


def as_mask(condition: Tensor, like: Tensor) -> Tensor:
    """A boolean tensor as zeros and ones: multiplying by it costs a twentieth of a Where."""
    return condition.astype(like.dtype)


def selected(r: Record, g: Tensor, mask: Tensor) -> Tensor:
    """g where the mask is 1, and 0 where it is 0, even if g is infinite there."""
    if r.wild and g.dtype == dtypes.BFLOAT16:  # its Clip has no kernel on CUDA
        return apply1("Where", mask.astype(dtypes.BOOL), g, number(0, g))
    if r.wild:
        largest = float(np.finfo(g.dtype).max)
        g = apply1("Clip", g, number(-largest, g), number(largest, g))
    return apply1("Mul", g, mask)


@gradient("Add")
def add(r: Record, g: Tensor) -> Entries:
    return g, g


@gradient("Sub")
def sub(r: Record, g: Tensor) -> Entries:
    b = r.inputs[1]
    assert b is not None
    return g, lambda: apply1("Neg", sum_to(g, b))


@gradient("Mul", overflows=a_factor_may_be_infinite)
def mul(r: Record, g: Tensor) -> Entries:
    a, b = r.inputs
    assert a is not None and b is not None
    if a.key == b.key:
        return None, lambda: apply1("Mul", g, apply1("Add", a, a))
    return lambda: apply1("Mul", g, b), lambda: apply1("Mul", g, a)


@gradient("Div", singular=second_may_vanish)
def div(r: Record, g: Tensor) -> Entries:
    b = r.inputs[1]
    (y,) = r.outputs
    return lambda: apply1("Div", g, b), lambda: apply1("Neg", apply1("Div", apply1("Mul", g, y), b))


@gradient("Neg")
def neg(r: Record, g: Tensor) -> Tensor:
    return apply1("Neg", g)


@gradient("Identity")
def identity(r: Record, g: Tensor) -> Tensor:
    return g


@gradient("Cast", "CastLike")
def cast(r: Record, g: Tensor) -> Entry:
    return g  # the reverse pass casts a cotangent to its input's dtype


@gradient("Sum")
def sum_of_several(r: Record, g: Tensor) -> Entries:
    return tuple(g for _ in r.inputs)


@gradient("Mean")
def mean_of_several(r: Record, g: Tensor) -> Entries:
    part = apply1("Mul", g, number(1 / len(r.inputs), g))
    return tuple(part for _ in r.inputs)


@gradient("Abs")
def abs_(r: Record, g: Tensor) -> Tensor:
    return apply1("Mul", g, apply1("Sign", r.inputs[0]))


@gradient("Reciprocal", singular=first_may_vanish)
def reciprocal(r: Record, g: Tensor) -> Tensor:
    (y,) = r.outputs
    return apply1("Neg", apply1("Mul", g, apply1("Mul", y, y)))


@gradient("Sqrt", singular=first_may_vanish)
def sqrt(r: Record, g: Tensor) -> Tensor:
    (y,) = r.outputs
    return apply1("Div", apply1("Mul", g, number(0.5, g)), y)


@gradient("Exp", overflows=True)
def exp(r: Record, g: Tensor) -> Tensor:
    return apply1("Mul", g, r.outputs[0])


@gradient("Log", singular=first_may_vanish)
def log(r: Record, g: Tensor) -> Tensor:
    return apply1("Div", g, r.inputs[0])


@gradient("Sin")
def sin(r: Record, g: Tensor) -> Tensor:
    return apply1("Mul", g, apply1("Cos", r.inputs[0]))


@gradient("Cos")
def cos(r: Record, g: Tensor) -> Tensor:
    return apply1("Neg", apply1("Mul", g, apply1("Sin", r.inputs[0])))


@gradient("Tan", overflows=True)
def tan(r: Record, g: Tensor) -> Tensor:
    (y,) = r.outputs
    return apply1("Mul", g, apply1("Add", apply1("Mul", y, y), number(1, g)))


def _one_minus_square(x: Tensor) -> Tensor:
    # (1 - x)(1 + x) keeps its precision where x is near 1, which 1 - x*x does not.
    return apply1("Mul", apply1("Sub", number(1, x), x), apply1("Add", number(1, x), x))


@gradient("Asin", singular=True)
def asin(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    assert x is not None
    return apply1("Div", g, apply1("Sqrt", _one_minus_square(x)))


@gradient("Acos", singular=True)
def acos(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    assert x is not None
    return apply1("Neg", apply1("Div", g, apply1("Sqrt", _one_minus_square(x))))


@gradient("Atan")
def atan(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    return apply1("Div", g, apply1("Add", apply1("Mul", x, x), number(1, g)))


@gradient("Sinh", overflows=True)
def sinh(r: Record, g: Tensor) -> Tensor:
    return apply1("Mul", g, _cosh(r.inputs[0]))


@gradient("Cosh", overflows=True)
def cosh(r: Record, g: Tensor) -> Tensor:
    """sinh = tanh cosh, which keeps its precision near 0, where e^x - e^-x does not."""
    (y,) = r.outputs
    return apply1("Mul", g, apply1("Mul", apply1("Tanh", r.inputs[0]), y))


def _cosh(x: Tensor | None) -> Tensor:
    # by exponentials: CUDA has no kernel for Cosh
    assert x is not None
    e = apply1("Add", apply1("Exp", x), apply1("Exp", apply1("Neg", x)))
    return apply1("Mul", e, number(0.5, x))


@gradient("Asinh")
def asinh(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    return apply1("Div", g, apply1("Sqrt", apply1("Add", apply1("Mul", x, x), number(1, g))))


@gradient("Acosh", singular=True)
def acosh(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    assert x is not None
    square = apply1("Mul", apply1("Sub", x, number(1, x)), apply1("Add", x, number(1, x)))
    return apply1("Div", g, apply1("Sqrt", square))


@gradient("Atanh", singular=True)
def atanh(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    assert x is not None
    return apply1("Div", g, _one_minus_square(x))


@gradient("Tanh")
def tanh(r: Record, g: Tensor) -> Tensor:
    (y,) = r.outputs
    return apply1("Mul", g, apply1("Sub", number(1, g), apply1("Mul", y, y)))


@gradient("Sigmoid")
def sigmoid(r: Record, g: Tensor) -> Tensor:
    (y,) = r.outputs
    return apply1("Mul", g, apply1("Mul", y, apply1("Sub", number(1, g), y)))


@gradient("Erf")
def erf(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    bell = apply1("Exp", apply1("Neg", apply1("Mul", x, x)))
    return apply1("Mul", apply1("Mul", g, number(2 / np.sqrt(np.pi), g)), bell)


@gradient("Where", selects=True)
def where(r: Record, g: Tensor) -> Entries:
    condition, a, b = r.inputs
    assert condition is not None and a is not None and b is not None
    # A product with the mask would do, but a cotangent may be infinite where the other branch was taken.
    zero = number(0, g)
    return None, lambda: apply1("Where", condition, g, zero), lambda: apply1("Where", condition, zero, g)


@gradient("Max", "Min", selects=True)
def extreme(r: Record, g: Tensor) -> Entries:
    """Ties share the cotangent evenly, so that the total stays one."""
    if len(r.inputs) == 1:
        return (g,)
    (y,) = r.outputs
    masks = [as_mask(compare("Equal", t, y), g) for t in r.inputs]
    count = masks[0]
    for mask in masks[1:]:
        count = apply1("Add", count, mask)
    share = apply1("Div", g, apply1("Max", count, number(1, g)))  # no input equals a NaN: the count is then zero
    return tuple(selected(r, share, mask) for mask in masks)


@gradient("Mod")
def mod(r: Record, g: Tensor) -> Entries:
    """a mod b = a - b n for a whole number n, constant almost everywhere: of fmod and of the other alike."""
    a, b = r.inputs
    (y,) = r.outputs

    def to_b() -> Tensor:
        whole = apply1("Round", apply1("Div", apply1("Sub", y, a), b))
        return apply1("Mul", g, whole)

    return g, to_b


@gradient("Pow", singular=power_may_break)
def pow_(r: Record, g: Tensor) -> Entries:
    x, p = r.inputs
    assert x is not None and p is not None
    exponent = None if r.wanted(1) else static_value(p)
    fixed = float(exponent.reshape(-1)[0]) if exponent is not None and exponent.size == 1 else None
    (y,) = r.outputs
    return lambda: _pow_base(x, y, p, g, fixed), lambda: _pow_exponent(r, x, p, g)


def _pow_base(x: Tensor, y: Tensor, p: Tensor, g: Tensor, fixed: float | None) -> Tensor:
    """p * x ** (p - 1), and 0 for p = 0 wherever x is."""
    if fixed is None:
        exponent = p.astype(x.dtype)
        # x ** -1 is infinite at 0, and 0 * inf is NaN: where the exponent is 0 use x ** 0 instead.
        zero = as_mask(compare("Equal", exponent, number(0, x)), x)
        less = apply1("Add", apply1("Sub", exponent, number(1, x)), zero)
        return apply1("Mul", g, apply1("Mul", exponent, apply1("Pow", x, less)))
    if fixed == 0:
        return full_like(x, 0)
    if fixed == 1:
        return g
    scaled = apply1("Mul", g, number(fixed, g))
    if fixed < 0:
        return apply1("Div", apply1("Mul", scaled, y), x)
    if fixed == 0.5:
        return apply1("Div", scaled, y)
    if fixed == 1.5:
        return apply1("Mul", scaled, apply1("Sqrt", x))
    if fixed in _PRODUCTS:  # a Pow costs thirty products
        power = x
        for _ in range(int(fixed) - 2):
            power = apply1("Mul", power, x)
        return apply1("Mul", scaled, power)
    return apply1("Mul", scaled, apply1("Pow", x, number(fixed - 1, x)))


_PRODUCTS = frozenset({2.0, 3.0, 4.0, 5.0})


def _pow_exponent(r: Record, x: Tensor, p: Tensor, g: Tensor) -> Tensor:
    """x ** p * log(x), and 0 where x is 0 and p is not negative."""
    (y,) = r.outputs
    exponent = p.astype(x.dtype)
    flat = apply1("And", compare("Equal", x, number(0, x)), compare("GreaterOrEqual", exponent, number(0, x)))
    safe = apply1("Where", flat, number(1, x), x)
    if x.dtype == dtypes.BFLOAT16:  # its Log has no kernel on CUDA
        logarithm = apply1("Log", safe.astype(dtypes.FLOAT32)).astype(x.dtype)
    else:
        logarithm = apply1("Log", safe)
    return apply1("Mul", g, apply1("Mul", y, logarithm)).astype(p.dtype)


def is_wide(t: Tensor) -> bool:
    """Whether sums and counts of the dtype's own values are safe in it."""
    return t.dtype in (dtypes.FLOAT32, dtypes.FLOAT64)


def attribute_number(r: Record, name: str, default: float) -> float:
    value: Any = r.attribute(name, default)
    return float(value)
