"""SGD, Adam and AdamW, with PyTorch's formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from graphkit import op
from graphkit.core import Tensor
from graphkit.errors import GraphkitError
from graphkit.optim.optimizer import Common, Optimizer, State, check_settings
from graphkit.optim.schedules import Schedule
from graphkit.source import here

__all__ = ["SGD", "Adam", "AdamW"]


class SGD(Optimizer):
    """p <- p - rate * d, where d is the gradient, or with momentum its running sum.

    With weight decay, g <- g + weight_decay * p. With momentum m, b <- m b + (1 - dampening) g (b = g at the first
    step) and d = b, or with Nesterov's d = g + m b.

    >>> import graphkit as gk
    >>> gk.optim.SGD(0.1, momentum=0.9, nesterov=True)
    SGD(learning_rate=0.1, momentum=0.9, dampening=0.0, nesterov=True, weight_decay=0.0)
    """

    _settings: ClassVar[Sequence[str]] = ("momentum", "dampening", "nesterov", "weight_decay")

    def __init__(
        self, learning_rate: float | Schedule, momentum: float = 0.0, dampening: float = 0.0, nesterov: bool = False,
        weight_decay: float = 0.0, clip_norm: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, clip_norm)
        check_settings(momentum=momentum, dampening=dampening, weight_decay=weight_decay)
        if nesterov and (not momentum or dampening):
            raise GraphkitError(f"Nesterov's form needs momentum and no dampening ({here()})")
        self.momentum, self.dampening, self.nesterov = momentum, dampening, nesterov
        self.weight_decay = weight_decay
        self.slots = ("momentum",) if momentum else ()

    @property
    def counts(self) -> bool:
        """Dampening is left out at the first step, a schedule goes by the step."""
        return super().counts or bool(self.momentum and self.dampening)

    def prepare(self, step: Tensor | None) -> Common:
        """With the factor of the new gradient, where it depends on the step."""
        common = super().prepare(step)
        if self.momentum and self.dampening:
            assert step is not None
            common.made["fresh"] = 1.0 - (step > 1).astype("float64") * self.dampening
        return common

    def update(
        self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Tensor], common: Common
    ) -> tuple[Tensor, State]:
        """One parameter."""
        if self.weight_decay:
            gradient = gradient + parameter * self.weight_decay
        following: State = {}
        if self.momentum:
            fresh = common.made.get("fresh")
            added = gradient if fresh is None else gradient * common.cast(fresh, gradient)
            average = following["momentum"] = state["momentum"] * self.momentum + added
            gradient = gradient + average * self.momentum if self.nesterov else average
        return parameter - gradient * common.cast(common.rate, parameter), following


class Adam(Optimizer):
    """p <- p - rate * m' / (sqrt(v') + eps), with m' and v' the bias-corrected averages of g and g^2.

    m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, m' = m / (1 - b1^t), v' = v / (1 - b2^t), t = 1 at the first step
    (Kingma and Ba, 2015). Weight decay is added to the gradient.

    Args:
        learning_rate, clip_norm: see ``Optimizer``.
        betas: b1 and b2.
        eps: added after the bias correction.
        weight_decay: see above.
    """

    _settings: ClassVar[Sequence[str]] = ("betas", "eps", "weight_decay")
    slots = ("first_moment", "second_moment")
    decoupled: ClassVar[bool] = False

    def __init__(
        self, learning_rate: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, clip_norm: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, clip_norm)
        check_settings(beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        self.betas, self.eps, self.weight_decay = (float(betas[0]), float(betas[1])), eps, weight_decay

    @property
    def counts(self) -> bool:
        """The bias correction goes by the step."""
        return True

    def prepare(self, step: Tensor | None) -> Common:
        """The corrections drawn out of the elementwise part.

        rate * (m / c1) / (sqrt(v / c2) + eps) = (rate sqrt(c2) / c1) * m / (sqrt(v) + eps sqrt(c2)).
        """
        common = super().prepare(step)
        rate = common.rate if not isinstance(common.rate, Tensor) else common.rate.astype("float64")
        root = op.Sqrt(1.0 - common.power(self.betas[1]))
        common.made["size"] = root * rate / (1.0 - common.power(self.betas[0]))
        common.made["eps"] = root * self.eps
        if self.decoupled and self.weight_decay:
            common.made["kept"] = 1.0 - rate * self.weight_decay
        return common

    def update(
        self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Tensor], common: Common
    ) -> tuple[Tensor, State]:
        """One parameter."""
        first, second = self.betas
        kept = parameter
        if self.weight_decay and self.decoupled:
            kept = parameter * common.cast(common.made["kept"], parameter)
        elif self.weight_decay:
            gradient = gradient + parameter * self.weight_decay
        mean = state["first_moment"] * first + gradient * (1.0 - first)
        square = state["second_moment"] * second + gradient * gradient * (1.0 - second)
        width = op.Sqrt(square) + common.cast(common.made["eps"], parameter)
        moved = mean / width * common.cast(common.made["size"], parameter)
        return kept - moved, {"first_moment": mean, "second_moment": square}


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p <- (1 - rate * weight_decay) p before the step.

    >>> import graphkit as gk
    >>> gk.optim.AdamW(1e-3, weight_decay=0.1)
    AdamW(learning_rate=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1)
    """

    decoupled: ClassVar[bool] = True

    def __init__(
        self, learning_rate: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01, clip_norm: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, betas, eps, weight_decay, clip_norm)
