"""What a function changes outside of itself, put back while the function runs a second time.

A function that is computed again must do what it did: draw the same random numbers, and neither advance a random state
nor update running statistics twice. Whoever changes something that outlives a function call notes it here first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

__all__ = ["Journal", "journal", "note", "rewound"]

# By the identity of what changes: it itself (which so lives on), how to read and write its state, and the state first.
Journal: TypeAlias = "dict[int, tuple[object, Callable[[], Any], Callable[[Any], None], Any]]"
_open: ContextVar[tuple[Journal, ...]] = ContextVar("graphkit_journals", default=())


def note(owner: object, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
    """Say that ``owner`` is about to change, and how its state is read and written."""
    for each in _open.get():
        if id(owner) not in each:
            each[id(owner)] = (owner, read, write, read())


@contextmanager
def journal() -> Iterator[Journal]:
    """Collect what changes in the block, as it is before."""
    found: Journal = {}
    token = _open.set((*_open.get(), found))
    try:
        yield found
    finally:
        _open.reset(token)


@contextmanager
def rewound(found: Journal) -> Iterator[None]:
    """In the block, everything that was noted is as it was first; afterwards as it is now."""
    now = [(write, read()) for _, read, write, _ in found.values()]
    for _, _, write, first in found.values():
        write(first)
    try:
        yield
    finally:
        for write, state in now:
            write(state)
