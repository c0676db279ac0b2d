"""Elementwise functions of the Array API."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit import dtypes
from graphkit.core import Tensor, as_tensor
from graphkit.interpreter import apply1
from graphkit.methods import binary, together


def _float(x: Any) -> Tensor:
    t = as_tensor(x)
    return t if dtypes.is_float(t.dtype) else t.astype("float32")


def pair(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands as Tensors of one dtype; a Python number takes the other's, whichever comes first."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return together(a, b)
    if isinstance(a, bool | int | float):
        right, left = together(as_tensor(b), a)
        return left, right
    return together(as_tensor(a), b)


def _floats(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    left, right = pair(a, b)
    return _float(left), _float(right)


def _unary(op: str, doc: str) -> Any:
    def function(x: Any, /) -> Tensor:
        return apply1(op, _float(x))

    function.__doc__ = doc
    return function


def _named(name: str, op: str, doc: str) -> Any:
    function = _unary(op, doc)
    function.__name__ = function.__qualname__ = name
    return function


acos = _named("acos", "Acos", "Inverse cosine.")
acosh = _named("acosh", "Acosh", "Inverse hyperbolic cosine.")
asin = _named("asin", "Asin", "Inverse sine.")
asinh = _named("asinh", "Asinh", "Inverse hyperbolic sine.")
atan = _named("atan", "Atan", "Inverse tangent.")
atanh = _named("atanh", "Atanh", "Inverse hyperbolic tangent.")
cos = _named("cos", "Cos", "Cosine.")
cosh = _named("cosh", "Cosh", "Hyperbolic cosine.")
exp = _named("exp", "Exp", "Exponential.")
log = _named("log", "Log", "Natural logarithm.")
sin = _named("sin", "Sin", "Sine.")
sinh = _named("sinh", "Sinh", "Hyperbolic sine.")
sqrt = _named("sqrt", "Sqrt", "Square root.")
tan = _named("tan", "Tan", "Tangent.")
tanh = _named("tanh", "Tanh", "Hyperbolic tangent.")
reciprocal = _named("reciprocal", "Reciprocal", "1 / x.")


def abs(x: Any, /) -> Tensor:
    """Absolute value."""
    return apply1("Abs", as_tensor(x))


def add(a: Any, b: Any, /) -> Tensor:
    """a + b."""
    return binary("Add", *pair(a, b))


def subtract(a: Any, b: Any, /) -> Tensor:
    """a - b."""
    return binary("Sub", *pair(a, b))


def multiply(a: Any, b: Any, /) -> Tensor:
    """a * b."""
    return binary("Mul", *pair(a, b))


def divide(a: Any, b: Any, /) -> Tensor:
    """a / b; integers are divided in float32."""
    left, right = pair(a, b)
    return left / right


def floor_divide(a: Any, b: Any, /) -> Tensor:
    """The largest integer not above a / b."""
    left, right = pair(a, b)
    return left // right


def remainder(a: Any, b: Any, /) -> Tensor:
    """What floor_divide leaves; it has the sign of b."""
    left, right = pair(a, b)
    return left % right


def pow(a: Any, b: Any, /) -> Tensor:
    """a to the power b."""
    return a.__pow__(b) if isinstance(a, Tensor) else binary("Pow", *pair(a, b))


def maximum(a: Any, b: Any, /) -> Tensor:
    """The larger of the two."""
    return binary("Max", *pair(a, b))


def minimum(a: Any, b: Any, /) -> Tensor:
    """The smaller of the two."""
    return binary("Min", *pair(a, b))


def negative(x: Any, /) -> Tensor:
    """-x."""
    return apply1("Neg", as_tensor(x))


def positive(x: Any, /) -> Tensor:
    """x."""
    return as_tensor(x)


def square(x: Any, /) -> Tensor:
    """x * x."""
    t = as_tensor(x)
    return apply1("Mul", t, t)


def equal(a: Any, b: Any, /) -> Tensor:
    """a == b."""
    return binary("Equal", *pair(a, b))


def not_equal(a: Any, b: Any, /) -> Tensor:
    """a != b."""
    return apply1("Not", equal(a, b))


def less(a: Any, b: Any, /) -> Tensor:
    """a < b."""
    return binary("Less", *pair(a, b))


def less_equal(a: Any, b: Any, /) -> Tensor:
    """a <= b."""
    return binary("LessOrEqual", *pair(a, b))


def greater(a: Any, b: Any, /) -> Tensor:
    """a > b."""
    return binary("Greater", *pair(a, b))


def greater_equal(a: Any, b: Any, /) -> Tensor:
    """a >= b."""
    return binary("GreaterOrEqual", *pair(a, b))


def _rounding(op: str, x: Any) -> Tensor:
    t = as_tensor(x)
    return apply1(op, t) if dtypes.is_float(t.dtype) else t


def ceil(x: Any, /) -> Tensor:
    """The smallest integer not below x."""
    return _rounding("Ceil", x)


def floor(x: Any, /) -> Tensor:
    """The largest integer not above x."""
    return _rounding("Floor", x)


def round(x: Any, /) -> Tensor:
    """The nearest integer, halves to even."""
    return _rounding("Round", x)


def trunc(x: Any, /) -> Tensor:
    """x without its fraction."""
    t = as_tensor(x)
    if not dtypes.is_float(t.dtype):
        return t
    return copysign(apply1("Floor", apply1("Abs", t)), t)


def sign(x: Any, /) -> Tensor:
    """-1, 0 or 1."""
    return apply1("Sign", as_tensor(x))


def signbit(x: Any, /) -> Tensor:
    """Whether the sign bit is set, which it is in -0.0 too."""
    t = as_tensor(x)
    return (t < 0) | ((t == 0) & (apply1("Reciprocal", t) < 0))


def copysign(a: Any, b: Any, /) -> Tensor:
    """The magnitude of a with the sign of b."""
    left, right = pair(a, b)
    magnitude = apply1("Abs", left)
    return apply1("Where", signbit(right), apply1("Neg", magnitude), magnitude)


def isnan(x: Any, /) -> Tensor:
    """Whether an element is not a number."""
    t = as_tensor(x)
    return apply1("IsNaN", t) if dtypes.is_float(t.dtype) else t != t  # noqa: PLR0124  # False, in x's shape


def isinf(x: Any, /) -> Tensor:
    """Whether an element is infinite."""
    t = as_tensor(x)
    return apply1("IsInf", t) if dtypes.is_float(t.dtype) else t != t  # noqa: PLR0124  # False, in x's shape


def isfinite(x: Any, /) -> Tensor:
    """Whether an element is neither infinite nor NaN."""
    return ~(isnan(x) | isinf(x))


def expm1(x: Any, /) -> Tensor:
    """e^x - 1, exact near 0: there by 2 t / (1 - t) with t = tanh(x / 2)."""
    t = _float(x)
    half = apply1("Tanh", t * 0.5)
    near = apply1("Abs", t) < 0.5
    safe = apply1("Where", near, half, as_tensor(np.zeros((), t.dtype)))
    return apply1("Where", near, 2.0 * safe / (1.0 - safe), apply1("Exp", t) - 1.0)


def log1p(x: Any, /) -> Tensor:
    """log(1 + x), exact near 0: log(u) x / (u - 1) with u = 1 + x (Kahan)."""
    t = _float(x)
    u = t + 1.0
    flat = (u == 1.0) | isinf(u)
    one = as_tensor(np.ones((), t.dtype))
    safe = apply1("Where", flat, one + one, u)
    by_ratio = apply1("Log", safe) * (apply1("Where", flat, one, t) / (safe - 1.0))
    return apply1("Where", flat, t, by_ratio)


def log2(x: Any, /) -> Tensor:
    """Logarithm to base 2."""
    return log(x) * (1 / math.log(2))  # type: ignore[no-any-return]  # of a Tensor


def log10(x: Any, /) -> Tensor:
    """Logarithm to base 10."""
    return log(x) * (1 / math.log(10))  # type: ignore[no-any-return]  # of a Tensor


def logaddexp(a: Any, b: Any, /) -> Tensor:
    """log(e^a + e^b), without overflow."""
    left, right = _floats(a, b)
    high = apply1("Max", left, right)
    gap = apply1("Neg", apply1("Abs", left - right))
    return high + log1p(apply1("Exp", apply1("Where", isnan(gap), as_tensor(np.full((), -np.inf, gap.dtype)), gap)))


def hypot(a: Any, b: Any, /) -> Tensor:
    """sqrt(a^2 + b^2), without overflow."""
    left, right = _floats(a, b)
    left, right = apply1("Abs", left), apply1("Abs", right)
    high, low = apply1("Max", left, right), apply1("Min", left, right)
    safe = apply1("Where", high == 0, as_tensor(np.ones((), high.dtype)), high)
    ratio = low / safe
    return high * apply1("Sqrt", ratio * ratio + 1.0)


def atan2(y: Any, x: Any, /) -> Tensor:
    """The angle of the point (x, y), between -pi and pi.

    By the arc tangent of y / x or of x / y, whichever is at most 1, so that both axes are points like any other.
    """
    up, right = _floats(y, x)
    far = isinf(up) & isinf(right)  # on a diagonal
    up, right = (apply1("Where", far, apply1("Sign", t), t) for t in (up, right))
    steep = apply1("Greater", apply1("Abs", up), apply1("Abs", right))
    short, long = apply1("Where", steep, right, up), apply1("Where", steep, up, right)
    angle = apply1("Atan", short / apply1("Where", long == 0, as_tensor(np.ones((), up.dtype)), long))
    half_turn = copysign(as_tensor(np.full((), math.pi, up.dtype)), up)
    turned = apply1("Where", signbit(right), angle + half_turn, angle)
    return apply1("Where", steep, half_turn * 0.5 - angle, turned)


def _logical(method: str, a: Any, b: Any) -> Tensor:
    left, right = as_tensor(a).astype("bool"), as_tensor(b).astype("bool")
    return apply1(method, left, right)


def logical_and(a: Any, b: Any, /) -> Tensor:
    """Both."""
    return _logical("And", a, b)


def logical_or(a: Any, b: Any, /) -> Tensor:
    """Either."""
    return _logical("Or", a, b)


def logical_xor(a: Any, b: Any, /) -> Tensor:
    """One, not both."""
    return _logical("Xor", a, b)


def logical_not(x: Any, /) -> Tensor:
    """Not."""
    return apply1("Not", as_tensor(x).astype("bool"))


def bitwise_and(a: Any, b: Any, /) -> Tensor:
    """a & b."""
    left, right = pair(a, b)
    return left.__and__(right)


def bitwise_or(a: Any, b: Any, /) -> Tensor:
    """a | b."""
    left, right = pair(a, b)
    return left.__or__(right)


def bitwise_xor(a: Any, b: Any, /) -> Tensor:
    """a ^ b."""
    left, right = pair(a, b)
    return left.__xor__(right)


def bitwise_invert(x: Any, /) -> Tensor:
    """~x."""
    return ~as_tensor(x)


def bitwise_left_shift(a: Any, b: Any, /) -> Tensor:
    """a * 2^b, for integers."""
    left, right = pair(a, b)
    return left * binary("Pow", as_tensor(np.asarray(2, left.dtype)), right)


def bitwise_right_shift(a: Any, b: Any, /) -> Tensor:
    """a // 2^b, for integers."""
    left, right = pair(a, b)
    return left // binary("Pow", as_tensor(np.asarray(2, left.dtype)), right)


def clip(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """x kept between two bounds, either of which may be left out."""
    t = as_tensor(x)
    if min is not None:
        t = apply1("Max", *together(t, min))
    return t if max is None else apply1("Min", *together(t, max))


def where(condition: Any, a: Any, b: Any, /) -> Tensor:
    """Elements of a where the condition holds, of b elsewhere."""
    left, right = pair(a, b)
    return apply1("Where", as_tensor(condition).astype("bool"), left, right)
