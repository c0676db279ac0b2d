"""Module: a function with named tensors of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

import numpy as np

from graphkit import dtypes
from graphkit.core import Tensor, as_tensor
from graphkit.errors import InputError, did_you_mean
from graphkit.source import here

Array = np.ndarray[Any, Any]
_M = TypeVar("_M")


class Module:
    """A part of a network: its tensors and its smaller modules are its attributes, ``forward`` is what it computes.

    Attributes that are Tensors are its *parameters* if they require a gradient, else its *buffers*; modules and
    tensors may also stand in lists, tuples and dicts. The path of attributes is a tensor's name (``blocks.0.weight``),
    in ``state_dict`` and in every exported file.

    >>> import graphkit as gk
    >>> class Line(gk.nn.Module):
    ...     def __init__(self):
    ...         self.slope = gk.tensor([2.0], requires_grad=True)
    ...     def forward(self, x):
    ...         return x * self.slope
    >>> line = Line()
    >>> line(gk.tensor([3.0])).tolist(), [name for name, _ in line.named_parameters()]
    ([6.0], ['slope'])
    """

    training: bool = True

    def forward(self, *args: Any, **named: Any) -> Any:
        """Compute the result; every module defines its own."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def __call__(self, *args: Any, **named: Any) -> Any:
        """``forward``."""
        return self.forward(*args, **named)

    # What it holds

    def children(self) -> Iterable[tuple[Any, Any]]:
        """What ``named_modules`` and ``named_tensors`` walk: the attributes."""
        return vars(self).items()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Itself and every module inside, each once, with the path of attributes that leads there."""
        yield from _walk(self, prefix, Module)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers, each once under the first path that leads to it."""
        for path, found in _walk(self, "", Tensor):
            if not found.traced and found.record is None:  # a result that was kept as an attribute is no state
                yield path, found

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that require a gradient, by name."""
        return ((name, t) for name, t in self.named_tensors() if t.requires_grad)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that do not: running statistics, tables, random states."""
        return ((name, t) for name, t in self.named_tensors() if not t.requires_grad)

    def parameters(self) -> list[Tensor]:
        """The tensors that require a gradient."""
        return [t for _, t in self.named_parameters()]

    # What is done with all of it

    def train(self, mode: bool = True) -> Self:
        """Behave as while training (dropout drops, statistics of the batch are used and kept), here and inside."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Behave as at inference."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget the accumulated gradient of every parameter."""
        for t in self.parameters():
            t.grad = None

    def freeze(self) -> Self:
        """Make every parameter a constant that no gradient reaches."""
        for t in self.parameters():
            t._needs = 0
            t.grad = None
        return self

    def state_dict(self) -> dict[str, Array]:
        """A copy of every parameter and buffer, by name."""
        return {name: t.numpy().copy() for name, t in self.named_tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Assign every parameter and buffer; names, dtypes and shapes must be the module's own, or nothing is changed.

        Raises ``InputError`` that names everything that does not fit.
        """
        mine = dict(self.named_tensors())
        problems = [f"'{name}' is missing" for name in mine if name not in state]
        problems += [f"'{name}' is unknown.{did_you_mean(name, mine)}" for name in state if name not in mine]
        fitting: dict[str, Tensor] = {}
        for name, t in mine.items():
            if name not in state:
                continue
            value = fitting[name] = as_tensor(np.asarray(state[name]))
            if value.dtype != t.dtype or value.dims != t.dims:
                problems.append(
                    f"'{name}' is {dtypes.name(t.dtype)}{list(t.shape)}, got "
                    f"{dtypes.name(value.dtype)}{list(value.shape)}"
                )
        if problems:
            raise InputError(f"the state does not fit {type(self).__name__} ({here()}): {'; '.join(problems)}")
        for name, value in fitting.items():
            mine[name].assign(value)

    def __repr__(self) -> str:
        count = sum(t.size for t in self.parameters())
        return f"<{type(self).__name__} of {count:,} parameters>"


def _walk(root: Module, prefix: str, kind: type[_M]) -> Iterator[tuple[str, _M]]:
    seen: set[int] = set()

    def visit(value: Any, path: str) -> Iterator[tuple[str, _M]]:
        if isinstance(value, Module | Tensor):
            if id(value) in seen:
                return
            seen.add(id(value))
            if isinstance(value, kind):
                yield path, value
        if isinstance(value, Module):
            items: Any = value.children()
        elif isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list | tuple):
            items = enumerate(value)
        else:
            return
        for key, inner in items:
            if isinstance(inner, Module | Tensor | dict | list | tuple):
                yield from visit(inner, f"{path}.{key}" if path else str(key))

    yield from visit(root, prefix)


class Sequential(Module):
    """Modules, or functions on Tensors, one after the other.

    >>> import graphkit as gk
    >>> gk.nn.Sequential(gk.nn.Linear(4, 3), gk.nn.relu, gk.nn.Linear(3, 2))(gk.tensor([[0.0] * 4])).shape
    (1, 2)
    """

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)

    def forward(self, x: Any) -> Any:
        """Each part's result goes to the next."""
        for part in self.parts:
            x = part(x)
        return x

    def children(self) -> Iterable[tuple[Any, Any]]:
        """The parts by number, so that names are ``0.weight``."""
        return enumerate(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Any:
        return self.parts[index]
