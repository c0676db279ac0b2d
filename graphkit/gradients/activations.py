"""Activation functions."""

from __future__ import annotations

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries, as_mask, number, selected
from graphkit.gradients.shapes import compare
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1


@gradient("Relu", selects=True)
def relu(r: Record, g: Tensor) -> Tensor:
    """The slope at 0 is 0."""
    (y,) = r.outputs
    return selected(r, g, as_mask(compare("Greater", y, number(0, g)), g))


@gradient("LeakyRelu")
def leaky_relu(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    alpha = float(r.attribute("alpha", 0.01))
    positive = as_mask(compare("Greater", x, number(0, g)), g)
    if 0 <= alpha <= 1:
        return apply1("Mul", g, apply1("Max", positive, number(alpha, g)))
    slope = apply1("Add", apply1("Mul", positive, number(1 - alpha, g)), number(alpha, g))
    return apply1("Mul", g, slope)


@gradient("PRelu")
def prelu(r: Record, g: Tensor) -> Entries:
    x, slope = r.inputs
    positive = as_mask(compare("Greater", x, number(0, g)), g)
    negative = apply1("Sub", number(1, g), positive)
    return (
        lambda: apply1("Mul", g, apply1("Add", positive, apply1("Mul", negative, slope))),
        lambda: apply1("Mul", g, apply1("Mul", negative, x)),
    )


@gradient("ThresholdedRelu", selects=True)
def thresholded_relu(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    alpha = float(r.attribute("alpha", 1.0))
    return selected(r, g, as_mask(compare("Greater", x, number(alpha, g)), g))


@gradient("Elu")
def elu(r: Record, g: Tensor) -> Tensor:
    """alpha e^x below 0, which is y + alpha; y and not e^x, which overflows above 0."""
    alpha = float(r.attribute("alpha", 1.0))
    if alpha == 1:
        return apply1("Mul", g, apply1("Add", apply1("Min", r.outputs[0], number(0, g)), number(1, g)))
    return apply1("Mul", g, _bent(r, alpha, 1.0, g))


@gradient("Selu")
def selu(r: Record, g: Tensor) -> Tensor:
    alpha = float(r.attribute("alpha", 1.67326319217681884765625))
    gamma = float(r.attribute("gamma", 1.05070102214813232421875))
    return apply1("Mul", g, _bent(r, alpha * gamma, gamma, g))


def _bent(r: Record, below_zero: float, above: float, like: Tensor) -> Tensor:
    """y + ``below_zero`` where x < 0, ``above`` elsewhere (there y is cut off first: 0 * inf would be NaN)."""
    (x,) = r.inputs
    cut = apply1("Min" if below_zero >= 0 else "Max", r.outputs[0], number(0, like))
    below = as_mask(compare("Less", x, number(0, like)), like)
    bent = apply1("Mul", below, apply1("Add", cut, number(below_zero - above, like)))
    return apply1("Add", bent, number(above, like))


@gradient("Celu")
def celu(r: Record, g: Tensor) -> Tensor:
    """e^(x/alpha) below 0, which is y/alpha + 1."""
    alpha = float(r.attribute("alpha", 1.0))
    cut = apply1("Min" if alpha > 0 else "Max", r.outputs[0], number(0, g))
    return apply1("Mul", g, apply1("Add", apply1("Mul", cut, number(1 / alpha, g)), number(1, g)))


@gradient("Softplus")
def softplus(r: Record, g: Tensor) -> Tensor:
    return apply1("Mul", g, apply1("Sigmoid", r.inputs[0]))


@gradient("Softsign")
def softsign(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    width = apply1("Add", apply1("Abs", x), number(1, g))
    return apply1("Div", apply1("Div", g, width), width)


@gradient("HardSigmoid")
def hard_sigmoid(r: Record, g: Tensor) -> Tensor:
    (y,) = r.outputs
    alpha = float(r.attribute("alpha", 0.2))
    inside = apply1("And", compare("Greater", y, number(0, g)), compare("Less", y, number(1, g)))
    return apply1("Mul", g, apply1("Mul", as_mask(inside, g), number(alpha, g)))


@gradient("HardSwish")
def hard_swish(r: Record, g: Tensor) -> Tensor:
    """(2 x + 3) / 6 between -3 and 3, 0 below, 1 above."""
    (x,) = r.inputs
    inside = apply1("And", compare("Greater", x, number(-3, g)), compare("Less", x, number(3, g)))
    line = apply1("Add", apply1("Mul", x, number(1 / 3, g)), number(0.5, g))
    above = as_mask(compare("GreaterOrEqual", x, number(3, g)), g)
    # x is clipped first: an infinity times the zero of the mask would be NaN
    line = apply1("Clip", line, number(-0.5, g), number(1.5, g))
    slope = apply1("Add", apply1("Mul", as_mask(inside, g), line), above)
    return apply1("Mul", g, slope)


@gradient("Swish")
def swish(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    (y,) = r.outputs
    alpha = float(r.attribute("alpha", 1.0))
    s = apply1("Sigmoid", x if alpha == 1 else apply1("Mul", x, number(alpha, g)))
    bent = apply1("Mul", y, apply1("Sub", number(1, g), s))
    return apply1("Mul", g, apply1("Add", s, bent if alpha == 1 else apply1("Mul", bent, number(alpha, g))))


@gradient("Mish")
def mish(r: Record, g: Tensor) -> Tensor:
    """t + x s (1 - t^2), with t = tanh(softplus(x)) and s = sigmoid(x)."""
    (x,) = r.inputs
    t = apply1("Tanh", apply1("Softplus", x))
    s = apply1("Sigmoid", x)
    bent = apply1("Mul", apply1("Mul", x, s), apply1("Sub", number(1, g), apply1("Mul", t, t)))
    return apply1("Mul", g, apply1("Add", t, bent))


@gradient("Gelu")
def gelu(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    assert x is not None
    if r.attribute("approximate", "none") == "tanh":
        return apply1("Mul", g, _gelu_tanh_slope(x))
    # Phi(x) + x phi(x), the normal distribution and its density; twice that is 1 + erf(u) + 2 u e^(-u^2) / sqrt(pi)
    # with u = x / sqrt(2). The factor goes into the exponent, the half to g, where a product may take it in.
    u = apply1("Mul", x, number(np.sqrt(0.5), g))
    density = apply1("Exp", apply1("Sub", number(np.log(2 / np.sqrt(np.pi)), g), apply1("Mul", u, u)))
    twice = apply1("Add", apply1("Add", apply1("Erf", u), number(1, g)), apply1("Mul", u, density))
    return apply1("Mul", apply1("Mul", g, number(0.5, g)), twice)


def _gelu_tanh_slope(x: Tensor) -> Tensor:
    """The slope of x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    scale, cubic = np.sqrt(2 / np.pi), 0.044715
    if x.dtype == dtypes.FLOAT16:  # whose x^3 is infinite beyond 40, where the slope is long 0 or 1
        x = apply1("Min", apply1("Max", x, number(-10, x)), number(10, x))
    square = apply1("Mul", x, x)
    u = apply1("Mul", x, apply1("Add", apply1("Mul", square, number(scale * cubic, x)), number(scale, x)))
    t = apply1("Tanh", u)
    half = apply1("Add", apply1("Mul", t, number(0.5, x)), number(0.5, x))
    inner = apply1("Mul", x, apply1("Add", apply1("Mul", square, number(1.5 * scale * cubic, x)),
                                    number(0.5 * scale, x)))  # fmt: skip
    return apply1("Add", half, apply1("Mul", inner, apply1("Sub", number(1, x), apply1("Mul", t, t))))


@gradient("Shrink", selects=True)
def shrink(r: Record, g: Tensor) -> Tensor:
    (x,) = r.inputs
    lambd = float(r.attribute("lambd", 0.5))
    return selected(r, g, as_mask(compare("Greater", apply1("Abs", x), number(lambd, g)), g))


@gradient("Clip", selects=True)
def clip(r: Record, g: Tensor) -> Entries:
    """1 strictly inside and at the bounds, as PyTorch has it; a bound that is reached takes the rest."""
    x, low, high = r.input(0), r.input(1), r.input(2)
    assert x is not None
    tests = []
    if low is not None:
        tests.append(compare("GreaterOrEqual", x, low))
    if high is not None:
        tests.append(compare("LessOrEqual", x, high))
    if not tests:
        return (g,)
    inside = tests[0] if len(tests) == 1 else apply1("And", *tests)
    to_x = selected(r, g, as_mask(inside, g))
    if not (r.wanted(1) or r.wanted(2)):
        return (to_x,)
    entries: list[Tensor | None] = [to_x, None, None]
    if high is not None:
        raised = x if low is None else apply1("Max", x, low)  # where low > high the result is high
        entries[2] = apply1("ReduceSum", selected(r, g, as_mask(compare("Greater", raised, high), g)), keepdims=0)
    if low is not None:
        below = compare("Less", x, low)
        if high is not None:
            below = apply1("And", below, compare("LessOrEqual", low, high))
        entries[1] = apply1("ReduceSum", selected(r, g, as_mask(below, g)), keepdims=0)
    return tuple(entries)
