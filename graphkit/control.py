"""cond, while_loop and scan: branches and loops that are plain Python eagerly and If, Loop and Scan in a trace.

Values go in and come out as trees of Tensors. All three are differentiable, eagerly because every operator inside is
recorded, and in a graph by the rules of If, Loop and Scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit import dtypes, tree
from graphkit.bodies import make_if, make_loop, make_scan
from graphkit.core import Tensor, as_tensor
from graphkit.errors import OperatorError
from graphkit.graph import Graph
from graphkit.interpreter import apply, apply1, current
from graphkit.methods import constant_ints
from graphkit.source import here

Function = Callable[..., Any]


def cond(predicate: Any, true: Function, false: Function, *operands: Any) -> Any:
    """``true(*operands)`` where the predicate holds, else ``false(*operands)``.

    In a trace both functions are recorded, as the branches of an If, and only one of them runs; their results must
    have one structure and the same dtypes, while their shapes may differ.

    Args:
        predicate: a bool, or a bool Tensor of one element.
        true, false: functions of the operands, which may use outer tensors too.
        operands: Tensors, or trees of them.

    >>> import graphkit as gk
    >>> gk.cond(gk.tensor(True), lambda x: x * 2, lambda x: x - 1, gk.tensor([3.0])).tolist()
    [6.0]
    """
    if isinstance(predicate, bool | np.bool_):
        return true(*operands) if predicate else false(*operands)
    p = _truth(as_tensor(predicate), "gk.cond")
    if not isinstance(current(), Graph):
        return true(*operands) if p else false(*operands)
    found: list[tuple[tree.Structure, list[Tensor]]] = []

    def branch(function: Function) -> Callable[[], list[Tensor]]:
        def traced() -> list[Tensor]:
            leaves, structure = _leaves(function(*operands))
            if found:
                _same(
                    found[0], (structure, leaves), "the branches of gk.cond return", "the true branch", "the false one"
                )
            found.append((structure, leaves))
            return leaves

        return traced

    results = make_if(p, branch(true), branch(false))
    return tree.unflatten(found[0][0], list(results))


def while_loop(condition: Function, body: Function, initial: Any) -> Any:
    """``state = body(state)`` for as long as ``condition(state)`` holds; returns the last state.

    Args:
        condition: a function of the state that gives a bool Tensor of one element.
        body: a function of the state that gives the next, of the same structure and dtypes.
        initial: the first state, a Tensor or a tree of them.

    >>> import graphkit as gk
    >>> gk.while_loop(lambda x: x < 100, lambda x: x * x, gk.tensor(3.0)).item()
    6561.0
    """
    leaves, structure = _leaves(initial)
    if not isinstance(current(), Graph):
        state = tree.unflatten(structure, leaves)
        while _truth(as_tensor(condition(state)), "gk.while_loop"):
            new, new_structure = _leaves(body(state))
            _same((structure, leaves), (new_structure, new), "gk.while_loop", "the state", "what the body returns")
            state = tree.unflatten(structure, new)
        return state

    def step(i: Tensor, going: Tensor, *given: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        new, new_structure = _leaves(body(tree.unflatten(structure, list(given))))
        _same((structure, leaves), (new_structure, new), "gk.while_loop", "the state", "what the body returns")
        again = _truth(as_tensor(condition(tree.unflatten(structure, list(new)))), "gk.while_loop")
        return again, new, []

    first = _truth(as_tensor(condition(tree.unflatten(structure, leaves))), "gk.while_loop")
    return tree.unflatten(structure, list(make_loop(None, first, leaves, step)))


def scan(f: Function, initial: Any, xs: Any, *, length: int | None = None, reverse: bool = False) -> tuple[Any, Any]:
    """``carry, y = f(carry, x)`` for every x along the first axis of ``xs``; the last carry, and all y stacked.

    Args:
        f: takes the carry and one element, and returns the next carry and a result (None, or a tree).
        initial: the first carry, a Tensor or a tree of them; every carry has its structure, dtypes and shapes.
        xs: a Tensor or a tree of them, with one extent along the first axis; None to repeat ``length`` times.
        length: how many times, where there are no ``xs``.
        reverse: from the last element to the first; results stand where their elements stood.

    >>> import graphkit as gk
    >>> total, sums = gk.scan(lambda t, x: (t + x, t + x), gk.tensor(0.0), gk.tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    carry, carry_structure = _leaves(initial)
    elements, structure = _leaves(xs)
    extents = [x.shape[0] for x in elements]
    if not elements and length is None:
        raise OperatorError(f"gk.scan at {here()} has no xs; say length=n")
    fixed = [n for n in extents if isinstance(n, int)] + ([length] if length is not None else [])
    if len(set(fixed)) > 1:
        raise OperatorError(f"gk.scan at {here()}: the first axes of xs differ, {sorted(set(fixed))}")
    results: list[tree.Structure] = []

    def step(*given: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        before = tree.unflatten(carry_structure, list(given[: len(carry)]))
        pair = f(before, tree.unflatten(structure, list(given[len(carry) :])))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise OperatorError(f"gk.scan at {here()}: the function returns a pair, the next carry and a result")
        after, after_structure = _leaves(pair[0])
        _same((carry_structure, carry), (after_structure, after), "gk.scan", "the carry", "the next carry")
        ys, y_structure = _leaves(pair[1])
        results[:] = [y_structure]
        return after, ys

    if not isinstance(current(), Graph):
        made = _unrolled(carry, elements, fixed[0], reverse, step)
    elif elements and not (fixed and fixed[0] == 0):
        way = [int(reverse)]
        made = make_scan(carry, elements, step, directions=way * len(elements), output_directions=way * 64)
    else:
        made = _counted(carry, elements, fixed[0], step)
    return (
        tree.unflatten(carry_structure, list(made[: len(carry)])),
        tree.unflatten(results[0], list(made[len(carry) :])) if results else None,
    )


def _counted(carry: Sequence[Tensor], elements: Sequence[Tensor], length: int, step: Function) -> Sequence[Tensor]:
    """The scan as a Loop: ONNX Runtime's Scan refuses to run no iteration, and has to have something to scan."""

    def one(i: Tensor, going: Tensor, *given: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        after, ys = step(*given, *(apply1("Gather", x, i, axis=0) for x in elements))
        return None, after, ys

    return make_loop(as_tensor(np.int64(length)), None, carry, one)


def _unrolled(
    carry: Sequence[Tensor], elements: Sequence[Tensor], length: int, reverse: bool, step: Function
) -> Sequence[Tensor]:
    if length == 0:
        raise OperatorError(f"gk.scan at {here()} over no elements: eagerly there is no result to tell the shapes from")
    parts = [unstack(x, length) for x in elements]
    order = range(length - 1, -1, -1) if reverse else range(length)
    rows: list[list[Tensor]] = [[] for _ in range(length)]
    state = list(carry)
    for i in order:
        state, rows[i] = step(*state, *(p[i] for p in parts))
    return [*state, *(stack([row[k] for row in rows]) for k in range(len(rows[0])))]


def unstack(x: Tensor, length: int, axis: int = 0) -> list[Tensor]:
    """The parts of ``x`` along an axis, without it."""
    if length == 0:
        return []
    where = constant_ints([axis])
    parts = (x,) if length == 1 else apply("Split", (x, constant_ints([1] * length)), {"axis": axis}, length)
    return [apply1("Squeeze", p, where) for p in parts]


def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors side by side along a new axis."""
    where = constant_ints([axis])
    return apply1("Concat", *(apply1("Unsqueeze", p, where) for p in parts), axis=axis)


def _truth(p: Tensor, what: str) -> Tensor:
    if p.dtype != dtypes.BOOL:
        raise OperatorError(f"{what} at {here()}: the condition is {dtypes.name(p.dtype)}; give a bool, such as x > 0")
    if p.dims is not None and any(isinstance(d, int) and d != 1 for d in p.dims):
        raise OperatorError(f"{what} at {here()}: the condition has shape {list(p.shape)}; reduce it to one element")
    return p


def _leaves(value: Any) -> tuple[list[Tensor], tree.Structure]:
    leaves, structure = tree.flatten(value)
    return [as_tensor(leaf) for leaf in leaves], structure


def _same(
    a: tuple[tree.Structure, Sequence[Tensor]],
    b: tuple[tree.Structure, Sequence[Tensor]],
    what: str,
    first: str,
    second: str,
) -> None:
    if a[0] != b[0]:
        raise OperatorError(
            f"{what} different structures at {here()}: {first} is {_shown(a)}, {second} is {_shown(b)}. Return "
            "the same tuples, lists and dicts."
        )
    for n, (x, y) in enumerate(zip(a[1], b[1], strict=True)):
        if x.dtype != y.dtype:
            place = f"leaf {n} of " if len(a[1]) > 1 else ""
            raise OperatorError(
                f"{what} different dtypes at {here()}: {place}{first} is {dtypes.name(x.dtype)}, {second} "
                f"{dtypes.name(y.dtype)}. Cast one with x.astype(...)."
            )


def _shown(found: tuple[tree.Structure, Sequence[Tensor]]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {text(v)}" for k, v in value.items()) + "}"
        if isinstance(value, tuple | list):
            return "(" + ", ".join(text(v) for v in value) + ")"
        return "None" if value is None else dtypes.name(value.dtype)

    return text(tree.unflatten(found[0], list(found[1])))
