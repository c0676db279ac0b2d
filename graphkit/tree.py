"""Nested lists, tuples, named tuples and dicts of values, as flat lists and back.

Dicts are walked in their own order, so that what a user wrote first comes out first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Structure = tuple[Any, ...]


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree, and what it takes to put them back.

    >>> flatten({"a": 1, "b": [2, 3]})[0]
    [1, 2, 3]
    """
    leaves: list[Any] = []
    return leaves, _walk(value, leaves)


def _walk(value: Any, leaves: list[Any]) -> Structure:
    if isinstance(value, dict):
        return ("dict", type(value), tuple((k, _walk(v, leaves)) for k, v in value.items()))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ("named", type(value), tuple(_walk(v, leaves) for v in value))
    if isinstance(value, list | tuple):
        return ("list", type(value), tuple(_walk(v, leaves) for v in value))
    if value is None:
        return ("none",)
    leaves.append(value)
    return ("leaf",)


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    """The inverse of ``flatten``."""
    remaining = iter(leaves)
    return _build(structure, remaining)


def _build(structure: Structure, leaves: Any) -> Any:
    kind = structure[0]
    if kind == "leaf":
        return next(leaves)
    if kind == "none":
        return None
    if kind == "dict":
        return structure[1]((k, _build(s, leaves)) for k, s in structure[2])
    parts = [_build(s, leaves) for s in structure[2]]
    return structure[1](*parts) if kind == "named" else structure[1](parts)


def map(function: Callable[[Any], Any], value: Any) -> Any:
    """The tree with every leaf replaced by ``function(leaf)``."""
    leaves, structure = flatten(value)
    return unflatten(structure, [function(leaf) for leaf in leaves])
