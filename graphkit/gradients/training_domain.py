"""The update rules of ai.onnx.preview.training, in ai.onnx operators: Adagrad, Adam and Momentum.

No stock runtime has kernels for them. Each takes a learning rate R, an update count T, and groups of tensors: all the
parameters, all their gradients, and then the moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphkit import dtypes
from graphkit.core import Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import number
from graphkit.gradients.lowered import Call, lowering
from graphkit.gradients.shapes import constant
from graphkit.interpreter import apply1

DOMAIN: Final = "ai.onnx.preview.training"


def _groups(c: Call, count: int) -> list[Sequence[Tensor]]:
    """The variadic inputs, group by group."""
    given = [t for t in c.inputs[2:] if t is not None]
    if len(given) % count:
        raise GradientError(f"{c.op} takes {count} tensors for each parameter, got {len(given)} in all")
    size = len(given) // count
    return [given[n * size : (n + 1) * size] for n in range(count)]


def _times(a: Tensor, b: Tensor | float) -> Tensor:
    return apply1("Mul", a, b if isinstance(b, Tensor) else number(b, a))


def _plus(a: Tensor, b: Tensor | float) -> Tensor:
    return apply1("Add", a, b if isinstance(b, Tensor) else number(b, a))


def _regularized(c: Call, x: Tensor, g: Tensor) -> Tensor:
    """The gradient, with that of half the squared norm of the parameter."""
    factor = float(c.attribute("norm_coefficient", 0.0))
    return _plus(_times(x, factor), g) if factor else g


@lowering("Adagrad", domain=DOMAIN)
def adagrad(c: Call) -> Sequence[Tensor]:
    """x - r g / (sqrt(sum of g^2) + epsilon), with r falling as the count of updates grows."""
    rate, steps = c.needed(0), c.needed(1)
    decay, epsilon = float(c.attribute("decay_factor", 0.0)), float(c.attribute("epsilon", 1e-6))
    if decay:
        rate = apply1("Div", rate, _plus(_times(steps.astype(rate.dtype), decay), 1.0))
    new_x, new_h = [], []
    for x, gradient, h in zip(*_groups(c, 3), strict=True):
        g = _regularized(c, x, gradient)
        after = _plus(h, _times(g, g))
        step = apply1("Div", _times(g, rate.astype(x.dtype)), _plus(apply1("Sqrt", after), epsilon))
        new_x.append(apply1("Sub", x, step))
        new_h.append(after)
    return [*new_x, *new_h]


@lowering("Adam", domain=DOMAIN)
def adam(c: Call) -> Sequence[Tensor]:
    """x - r v / (sqrt(h) + epsilon), v and h being running means of g and g^2; r is corrected for their start at 0."""
    rate, steps = c.needed(0), c.needed(1)
    alpha, beta = float(c.attribute("alpha", 0.9)), float(c.attribute("beta", 0.999))
    epsilon, shrink = float(c.attribute("epsilon", 1e-6)), float(c.attribute("norm_coefficient_post", 0.0))
    count = steps.astype(rate.dtype)
    corrected = [apply1("Sub", number(1, rate), apply1("Pow", number(b, rate), count)) for b in (alpha, beta)]
    adjusted = apply1("Div", _times(rate, apply1("Sqrt", corrected[1])), corrected[0])
    rate = apply1("Where", apply1("Greater", steps, constant(0, dtypes.INT64)), adjusted, rate)
    new_x, new_v, new_h = [], [], []
    for x, gradient, v, h in zip(*_groups(c, 4), strict=True):
        g = _regularized(c, x, gradient)
        first = _plus(_times(v, alpha), _times(g, 1 - alpha))
        second = _plus(_times(h, beta), _times(_times(g, g), 1 - beta))
        step = apply1("Div", _times(first, rate.astype(x.dtype)), _plus(apply1("Sqrt", second), epsilon))
        after = apply1("Sub", x, step)
        new_x.append(_times(after, 1 - shrink) if shrink else after)
        new_v.append(first)
        new_h.append(second)
    return [*new_x, *new_v, *new_h]


@lowering("Momentum", domain=DOMAIN)
def momentum(c: Call) -> Sequence[Tensor]:
    """v' = alpha v + beta g, and x - r v' or, with Nesterov's, x - r (g + alpha v'); beta is 1 at the first update."""
    rate, steps = c.needed(0), c.needed(1)
    alpha, beta = float(c.attribute("alpha")), float(c.attribute("beta"))
    nesterov = str(c.attribute("mode", "standard")) == "nesterov"
    started = apply1("Greater", steps, constant(0, dtypes.INT64))
    scale = apply1("Where", started, number(beta, rate), number(1, rate))
    new_x, new_v = [], []
    for x, gradient, v in zip(*_groups(c, 3), strict=True):
        g = _regularized(c, x, gradient)
        after = _plus(_times(v, alpha), g if beta == 1 else _times(g, scale.astype(x.dtype)))
        step = _plus(g, _times(after, alpha)) if nesterov else after
        new_x.append(apply1("Sub", x, _times(step, rate.astype(x.dtype))))
        new_v.append(after)
    return [*new_x, *new_v]
