"""Softmax and LogSoftmax."""

from __future__ import annotations

from graphkit.core import Record, Tensor
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


def sum_over(x: Tensor, axis: int) -> Tensor:
    """The sum along one axis, which stays as extent 1."""
    return apply1("ReduceSum", x, constant_ints([axis]), keepdims=1)


@gradient("Softmax", mixes=True)
def softmax(r: Record, g: Tensor) -> Tensor:
    """y (g - sum(g y)). A row that is -inf throughout has the softmax NaN, and a NaN gradient."""
    (y,) = r.outputs
    axis = int(r.attribute("axis", -1))
    return apply1("Mul", apply1("Sub", g, sum_over(apply1("Mul", g, y), axis)), y)


@gradient("LogSoftmax", mixes=True)
def log_softmax(r: Record, g: Tensor) -> Tensor:
    """g - softmax sum(g), the softmax being exp(y)."""
    (y,) = r.outputs
    return log_softmax_cotangent(y, g, int(r.attribute("axis", -1)))


def log_softmax_cotangent(y: Tensor, g: Tensor, axis: int) -> Tensor:
    """The cotangent of the scores, from that of their log-softmax ``y``."""
    return apply1("Sub", g, apply1("Mul", apply1("Exp", y), sum_over(g, axis)))
