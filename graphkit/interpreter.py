"""apply(): the only way anything happens, and the interpreter it asks.

``Eager`` runs an operator now; ``Graph`` writes it down as a node. Which one is current is a property of the context,
not of the data, so that constants, shapes and random draws inside a trace are traced too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from graphkit.core import Tensor

Attributes = Mapping[str, Any]


class Interpreter(Protocol):
    """What gives an operator its meaning."""

    def apply(
        self, op: str, inputs: Sequence[Tensor | None], attributes: Attributes | None, outputs: int, domain: str
    ) -> tuple[Tensor, ...]:
        """Apply an operator."""
        ...

    def assign(self, target: Tensor, value: Any) -> None:
        """Give a leaf tensor another value (Eager), or another next state (Graph)."""
        ...

    def state_of(self, target: Tensor) -> Any:
        """What ``assign`` changes of a leaf tensor."""
        ...

    def put_back(self, target: Tensor, state: Any) -> None:
        """Make a leaf tensor what it was when ``state_of`` gave this."""
        ...

    def stop_gradient(self, x: Tensor) -> Tensor:
        """The same value, through which no gradient flows."""
        ...


_current: ContextVar[Interpreter | None] = ContextVar("graphkit_interpreter", default=None)


class _NotYet:
    """Stands for Eager until something is applied, since importing it costs what a trace alone need not pay."""

    def _load(self) -> Interpreter:
        importlib.import_module("graphkit.eager")  # which names itself the default
        return _default[0]

    def apply(
        self, op: str, inputs: Sequence[Tensor | None], attributes: Attributes | None, outputs: int, domain: str
    ) -> tuple[Tensor, ...]:
        return self._load().apply(op, inputs, attributes, outputs, domain)

    def assign(self, target: Tensor, value: Any) -> None:
        self._load().assign(target, value)

    def state_of(self, target: Tensor) -> Any:
        return self._load().state_of(target)

    def put_back(self, target: Tensor, state: Any) -> None:
        self._load().put_back(target, state)

    def stop_gradient(self, x: Tensor) -> Tensor:
        return self._load().stop_gradient(x)


_default: list[Interpreter] = [_NotYet()]


def set_default(interpreter: Interpreter) -> None:
    """Name the interpreter that is current where no other was chosen (Eager does so when it is imported)."""
    _default[:] = [interpreter]


def current() -> Interpreter:
    """The interpreter that apply() asks."""
    return _current.get() or _default[0]


@contextmanager
def using(interpreter: Interpreter) -> Iterator[None]:
    """Make ``interpreter`` the current one inside a ``with`` block."""
    token = _current.set(interpreter)
    try:
        yield
    finally:
        _current.reset(token)


# Operators with forms that are newer than what the runtime loads -> what applies such a form in other operators (None:
# it is an older one). Filled by graphkit.newer.
WRITTEN_OUT: dict[str, Callable[..., tuple[Tensor, ...] | None]] = {}


def apply(
    op: str,
    inputs: Sequence[Tensor | None],
    attributes: Attributes | None = None,
    outputs: int = 1,
    domain: str = "",
) -> tuple[Tensor, ...]:
    """Apply one ONNX operator under the current interpreter and return its outputs.

    ``inputs`` are Tensors, with None for an optional input that is left out; ``outputs`` is how many leading outputs
    are wanted. Most code calls ``gk.op.Add(a, b)`` instead, which checks its arguments first.
    """
    if op in WRITTEN_OUT and not domain:
        made = WRITTEN_OUT[op](op, inputs, attributes, outputs)
        if made is not None:
            return made
    return (_current.get() or _default[0]).apply(op, inputs, attributes, outputs, domain)


def apply1(op: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
    """apply() for the common case of one output of the default domain."""
    if op in WRITTEN_OUT:
        return apply(op, inputs, attributes)[0]
    return (_current.get() or _default[0]).apply(op, inputs, attributes, 1, "")[0]
