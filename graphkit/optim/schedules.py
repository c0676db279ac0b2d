"""Learning rates that depend on the step.

A schedule is any function that takes the number of updates made before this one (a float32 scalar Tensor: 0 at the
first) and returns the learning rate as a scalar Tensor. It is made of operators, so a training graph follows it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from graphkit import op
from graphkit.core import Tensor, as_tensor
from graphkit.errors import GraphkitError
from graphkit.source import here

__all__ = ["Schedule", "check_number", "constant", "cosine", "exponential", "step_decay", "warm_up"]

Schedule: TypeAlias = Callable[[Tensor], Tensor]


def constant(rate: float) -> Schedule:
    """``rate`` at every step."""
    check_number("rate", rate)
    return lambda step: as_tensor(float(rate))


def cosine(rate: float, steps: int, final: float = 0.0) -> Schedule:
    """From ``rate`` down to ``final`` in ``steps`` steps along half a cosine, and ``final`` from then on.

    >>> import graphkit as gk
    >>> [round(gk.optim.cosine(1.0, 4)(gk.tensor(float(n))).item(), 3) for n in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    check_number("rate", rate)
    _positive("steps", steps)
    check_number("final", final)

    def schedule(step: Tensor) -> Tensor:
        reached = op.Min(step * (1.0 / steps), as_tensor(1.0))
        return (op.Cos(reached * math.pi) + 1.0) * (0.5 * (rate - final)) + final

    return schedule


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """``rate`` times ``factor`` once more after every ``every`` steps.

    >>> import graphkit as gk
    >>> [round(gk.optim.step_decay(1.0, 2)(gk.tensor(float(n))).item(), 3) for n in range(5)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    check_number("rate", rate)
    _positive("every", every)
    check_number("factor", factor)
    # Not step * (1 / every), which is a hair below the integer at some multiples.
    return lambda step: op.Pow(as_tensor(float(factor)), op.Floor(step / float(every))) * rate


def exponential(rate: float, factor: float) -> Schedule:
    """``rate`` times ``factor`` to the power of the step."""
    check_number("rate", rate)
    check_number("factor", factor)
    return lambda step: op.Pow(as_tensor(float(factor)), step) * rate


def warm_up(steps: int, then: float | Schedule) -> Schedule:
    """Rise in a straight line to ``then``'s first rate, reached at the ``steps``-th update, and go on with ``then``.

    >>> import graphkit as gk
    >>> [round(gk.optim.warm_up(2, 1.0)(gk.tensor(float(n))).item(), 3) for n in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """
    _positive("steps", steps)
    if not callable(then):
        check_number("then", then)
    after = then if callable(then) else constant(then)

    def schedule(step: Tensor) -> Tensor:
        started = op.Max(step - float(steps), as_tensor(0.0))
        return op.Min((step + 1.0) * (1.0 / steps), as_tensor(1.0)) * after(started)

    return schedule


def check_number(name: str, value: object) -> None:
    """Raise for what is no number, and for a negative, infinite or NaN one."""
    if not 0 <= _number(value) < math.inf:
        raise GraphkitError(f"{name} is a number from 0 up, not {value!r} ({here()})")


def _positive(name: str, value: object) -> None:
    if not 1 <= _number(value) < math.inf:
        raise GraphkitError(f"{name} is a number of steps, 1 or more, not {value!r} ({here()})")


def _number(value: object) -> float:
    """The number, or NaN, which fits nowhere."""
    if isinstance(value, (str, bytes)):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]  # what has no float() is what the except is for
    except (TypeError, ValueError):
        return math.nan
