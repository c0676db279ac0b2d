"""Optimizer: an update rule, with its settings, and the eager state of the parameters it is applied to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit import autograd, dtypes, op
from graphkit.core import Tensor, as_tensor
from graphkit.errors import GradientError, GraphkitError, InputError
from graphkit.methods import scalar
from graphkit.optim.clipping import clip_by_global_norm
from graphkit.optim.schedules import Schedule, check_number
from graphkit.source import here

__all__ = ["Common", "Optimizer"]

State = dict[str, Tensor]


class Common:
    """What one update has in common for all parameters: scalars, made once, in each dtype that is asked for.

    ``step`` counts the updates, this one included: 1 at the first. Scalars are worked out in float64 (1 - 0.999 has no
    digits to spare in float32) and rounded once.
    """

    def __init__(self, rate: float | Tensor, step: Tensor | None) -> None:
        self.rate = rate
        self.step = step
        self.made: dict[str, float | Tensor] = {}

    def power(self, base: float) -> Tensor:
        """base to the power of the step, float64."""
        assert self.step is not None
        return op.Pow(as_tensor(np.float64(base)), self.step.astype("float64"))

    def cast(self, value: float | Tensor, like: Tensor) -> Tensor:
        """A scalar in the dtype of ``like``."""
        if isinstance(value, Tensor):
            key = f"{id(value)}:{dtypes.name(like.dtype)}"
            if key not in self.made:
                self.made[key] = value.astype(like.dtype)
            found = self.made[key]
            assert isinstance(found, Tensor)
            return found
        return scalar(float(value), like.dtype)


class Optimizer:
    """Base of the update rules.

    A rule is ``update(parameter, gradient, state, common)``, a pure function on Tensors that returns the parameter's
    next value and its next state. ``slots`` names its state, of the parameter's shape and zero at first; ``counts``
    says whether it needs the number of the step.

    Args:
        learning_rate: a number, or a schedule (see ``graphkit.optim.schedules``).
        clip_norm: scale the gradients down so that their common norm is at most this.
    """

    slots: Sequence[str] = ()
    _settings: ClassVar[Sequence[str]] = ()

    def __init__(self, learning_rate: float | Schedule, clip_norm: float | None = None) -> None:
        if not callable(learning_rate):
            check_number("learning_rate", learning_rate)
        if clip_norm is not None and clip_norm <= 0:
            raise GraphkitError(f"clip_norm is above 0, or None for no clipping, not {clip_norm} ({here()})")
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self._state: dict[int, tuple[Tensor, State]] = {}
        self._step = 0

    # The rule

    @property
    def counts(self) -> bool:
        """Whether the rule needs the number of the step."""
        return callable(self.learning_rate)

    def prepare(self, step: Tensor | None) -> Common:
        """The scalars of one update; ``step`` is int64 [], 1 at the first update."""
        rate = self.learning_rate
        if callable(rate):
            assert step is not None
            return Common(rate((step - 1).astype("float32")), step)
        return Common(float(rate), step)

    def update(
        self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Tensor], common: Common
    ) -> tuple[Tensor, State]:
        """The next value of one parameter, and of its state."""
        raise NotImplementedError

    def update_all(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]],
        step: Tensor | None,
    ) -> list[tuple[Tensor, State]]:  # fmt: skip
        """One update of all parameters: clipping, the common scalars, then the rule for each."""
        if self.clip_norm is not None and gradients:
            gradients = clip_by_global_norm(gradients, self.clip_norm)
        common = self.prepare(step)
        return [self.update(p, g, s, common) for p, g, s in zip(parameters, gradients, states, strict=True)]

    def settings(self) -> dict[str, Any]:
        """The rule's name and settings, as a manifest writes them down."""
        rate = self.learning_rate
        shown: dict[str, Any] = {
            "rule": type(self).__name__, "learning_rate": rate if not callable(rate) else "schedule",
            "clip_norm": self.clip_norm,
        }  # fmt: skip
        return shown | {name: getattr(self, name) for name in self._settings}

    # Eagerly

    def step(self, parameters: Iterable[Tensor]) -> None:
        """Update every parameter that has a gradient, in place.

        The state (momentum and the like) is kept here, by parameter; one that has no gradient is left as it is.

        Raises:
            GradientError: if no parameter has a gradient.
        """
        chosen = [p for p in parameters if p.grad is not None]
        if not chosen:
            raise GradientError(
                f"no parameter has a gradient at {here()}; call loss.backward() before optimizer.step(parameters)"
            )
        with autograd.no_grad():
            self._step += 1
            states = [self._state_of(p) for p in chosen]
            step = as_tensor(np.int64(self._step)) if self.counts else None
            gradients = [p.grad.detach() for p in chosen if p.grad is not None]
            updates = self.update_all([p.detach() for p in chosen], gradients, states, step)
            for p, state, (value, following) in zip(chosen, states, updates, strict=True):
                p.assign(value)
                state.update(following)

    def _state_of(self, parameter: Tensor) -> State:
        found = self._state.get(id(parameter))
        if found is None:
            zeros = {slot: as_tensor(np.zeros(parameter.shape, parameter.dtype)) for slot in self.slots}
            found = self._state[id(parameter)] = (parameter, zeros)  # the tensor is kept, so that its id stays its own
        return found[1]

    def state_dict(self, named_parameters: Iterable[tuple[str, Tensor]]) -> dict[str, np.ndarray[Any, Any]]:
        """The state as arrays, ``<parameter>.<slot>`` and ``step``."""
        saved: dict[str, np.ndarray[Any, Any]] = {"step": np.array(self._step, dtype=np.int64)}
        for name, p in named_parameters:
            saved.update({f"{name}.{slot}": t.numpy().copy() for slot, t in self._state_of(p).items()})
        return saved

    def load_state_dict(
        self, named_parameters: Iterable[tuple[str, Tensor]], saved: Mapping[str, np.ndarray[Any, Any]]
    ) -> None:
        """Take up a state that ``state_dict`` returned."""
        loaded: dict[int, tuple[Tensor, State]] = {}
        for name, p in named_parameters:
            names = {slot: f"{name}.{slot}" for slot in self.slots}
            missing = [n for n in (*names.values(), "step") if n not in saved]
            if missing:
                raise InputError(f"the optimizer's state lacks {', '.join(missing)} ({here()})")
            loaded[id(p)] = (p, {slot: as_tensor(saved[n], p.dtype) for slot, n in names.items()})
        self._state.update(loaded)
        self._step = int(saved["step"])

    def __repr__(self) -> str:
        shown = self.settings()
        rule = shown.pop("rule")
        return f"{rule}({', '.join(f'{k}={v}' for k, v in shown.items() if v is not None)})"


def check_settings(**values: float) -> None:
    """Raise for a negative or infinite setting; names that begin with ``beta`` or ``momentum`` must be below 1."""
    for name, value in values.items():
        check_number(name, value)
        if name.startswith(("beta", "momentum")) and value >= 1:
            raise GraphkitError(f"{name} is from 0 to below 1, not {value} ({here()})")
