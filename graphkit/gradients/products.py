"""Products of all factors but one, without a division: right where factors are 0, and to any order of derivative.

How many factors there are may be known to the run alone. Then a Loop doubles how far the products reach until they
cover the axis, so that the cost stays n log n, as where the doubling is written out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphkit import dims, dtypes
from graphkit.bodies import make_loop
from graphkit.core import Tensor
from graphkit.gradients.elementwise import number
from graphkit.gradients.shapes import constant, ones_like, shape_tensor, shaped_like
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints

FEW_FACTORS = 16
Axes = list[int] | Tensor | None


def products_of_others(x: Tensor, axes: Axes, *, noop: bool = False) -> Tensor:
    """For every element the product of all the others along ``axes``, whatever is known of x before the run.

    Args:
        x: the factors.
        axes: None for all; a Tensor where only the run knows them.
        noop: whether such axes mean none where there is none of them, and not all.
    """
    if x.rank is None or x.dims is None:
        return _of_unknown_rank(x, axes, noop=noop)
    if axes is None:
        axes = list(range(x.rank))
    if isinstance(axes, Tensor):
        return _axis_by_axis(x, axes, noop=noop)
    extents = [x.dims[a] for a in axes]
    numbers = [e for e in extents if isinstance(e, int)]
    if not axes or 0 in numbers:
        return ones_like(x)  # there is no other, or no element at all
    if len(axes) == 1:
        return _along(x, axes[0], numbers[0] if numbers else None)
    if len(numbers) < len(axes):
        return _axis_by_axis(x, axes)
    kept = [a for a in range(x.rank) if a not in axes]
    order = [*kept, *axes]
    # Reshape's 0 copies the extent at its place, so the kept dims need not be known
    count = int(np.prod(numbers))
    last = apply1("Reshape", apply1("Transpose", x, perm=order), constant_ints([0] * len(kept) + [count]))
    others = _along(last, len(kept), count)
    back = apply1("Reshape", others, constant_ints([0] * len(kept) + numbers))
    return apply1("Transpose", back, perm=[order.index(a) for a in range(x.rank)])


def _axis_by_axis(x: Tensor, axes: list[int] | Tensor, *, noop: bool = False) -> Tensor:
    """The others on the line along each axis in turn, the lines of the axes before it multiplied up."""
    assert x.rank is not None and x.dims is not None
    result: Tensor | None = None
    lines = x
    for axis in axes if isinstance(axes, list) else range(x.rank):
        extent = x.dims[axis]
        others = _along(lines, axis, extent if isinstance(extent, int) else None)
        if isinstance(axes, list):
            reduced = constant_ints([axis])
        else:  # whether this is one of the axes only the run knows
            wrapped = apply1("Mod", axes, constant(x.rank, axes.dtype))
            one_of = apply1("Equal", wrapped, constant(axis, axes.dtype))
            chosen = apply1("ReduceSum", one_of.astype(dtypes.INT64), keepdims=1).astype(dtypes.BOOL)
            if not noop:
                chosen = apply1("Or", chosen, apply1("Equal", apply1("Shape", axes), constant_ints([0])))
            others = apply1("Where", chosen, others, number(1, x))
            reduced = apply1("Compress", constant_ints([axis]), chosen, axis=0)
        result = others if result is None else apply1("Mul", result, others)
        lines = apply1("ReduceProd", lines, reduced, keepdims=1, noop_with_empty_axes=1)
        if lines.graph is not None:  # which sees no rank where it sees no axes
            lines.graph.declare(lines, tuple(dims.anonymous() for _ in x.dims))
    return ones_like(x) if result is None else result


def _of_unknown_rank(x: Tensor, axes: Axes, *, noop: bool) -> Tensor:
    if axes is None:
        return apply1("Reshape", _along(apply1("Reshape", x, constant_ints([-1])), 0, None), shape_tensor(x))
    # Nothing turns axes that have no number. Each element sees those of its own line in a table of all.
    given = constant_ints(axes) if isinstance(axes, list) else axes
    line = apply1("ReduceMax", ones_like(x), given, keepdims=1, noop_with_empty_axes=int(noop))
    lines = apply1("Shape", line)
    numbers = apply1("Range", constant(0, dtypes.INT64), apply1("ReduceProd", lines, keepdims=0),
                     constant(1, dtypes.INT64))  # fmt: skip
    keys = apply1("Expand", apply1("Reshape", numbers, lines), shape_tensor(x))
    flat, keys = (apply1("Reshape", t, constant_ints([-1])) for t in (x, keys))
    return apply1("Reshape", _in_table(flat, keys, 0, apply1("Size", x)), shape_tensor(x))


def _along(x: Tensor, axis: int, extent: int | None) -> Tensor:
    assert x.rank is not None
    if extent is not None and extent <= FEW_FACTORS:
        # Row i of a table of the factors has 1 in place of factor i.
        own = np.eye(extent, dtype=bool).reshape([extent, extent] + [1] * (x.rank - 1 - axis))
        table = apply1("Where", constant(own, dtypes.BOOL), number(1, x), apply1("Unsqueeze", x, constant_ints([axis])))
        return apply1("ReduceProd", table, constant_ints([axis + 1]), keepdims=0)
    before = running_product(x, axis, extent, exclusive=True, reverse=False)
    return apply1("Mul", before, running_product(x, axis, extent, exclusive=True, reverse=True))


def running_product(
    x: Tensor, axis: int | Tensor, extent: int | None, *, exclusive: bool, reverse: bool
) -> Tensor:  # fmt: skip
    """CumProd as shifted products, each reaching twice as far as the one before (Hillis and Steele, 1986).

    Args:
        x: the factors.
        axis: along which; a Tensor where only the run knows it.
        extent: of the axis, None where only the run knows it.
        exclusive, reverse: as those of CumProd.
    """
    moves = _moves(x, axis, reverse=reverse)
    product = _moved(x, moves, 1, number(1, x)) if exclusive else x
    return _doubled(product, _extent(x, axis, extent), lambda part, reach: _moved(part, moves, reach, number(1, part)))


def products_of_same(x: Tensor, keys: Tensor, axis: int) -> Tensor:
    """For every element the product of all others on its line along ``axis`` that have the same key.

    Args:
        x: the factors.
        keys: int64, of x's shape, none negative.
        axis: of the lines.
    """
    assert x.dims is not None
    extent = x.dims[axis]
    if isinstance(extent, int) and extent <= FEW_FACTORS:
        return _in_table(x, keys, axis, extent)
    count = apply1("Shape", x, start=axis, end=axis + 1)
    ordered, order = apply("TopK", (keys, count), {"axis": axis, "largest": 0, "sorted": 1}, outputs=2)
    _, back = apply("TopK", (order, count), {"axis": axis, "largest": 0, "sorted": 1}, outputs=2)
    # in order of the keys the others are neighbours: those before, and those behind
    factors = apply1("GatherElements", x, order, axis=axis)
    sides = []
    for reverse in (False, True):
        moves = _moves(x, axis, reverse=reverse)

        def nearer(part: Tensor, reach: int | Tensor, moves: Tensor = moves) -> Tensor:
            same = apply1("Equal", _moved(ordered, moves, reach, constant(-1, keys.dtype)), ordered)
            return apply1("Where", same, _moved(part, moves, reach, number(1, part)), number(1, part))

        first = nearer(factors, 1)
        sides.append(_doubled(first, _extent(x, axis, extent if isinstance(extent, int) else None), nearer))
    return apply1("GatherElements", apply1("Mul", *sides), back, axis=axis)


def _in_table(x: Tensor, keys: Tensor, axis: int, extent: int | Tensor) -> Tensor:
    """The same by a table of every element against every other."""
    assert x.rank is not None
    column, row = constant_ints([axis + 1]), constant_ints([axis])
    same = apply1("Equal", apply1("Unsqueeze", keys, column), apply1("Unsqueeze", keys, row))
    if isinstance(extent, int):
        places = constant_ints(list(range(extent)))
    else:
        places = apply1("Range", constant(0, dtypes.INT64), extent, constant(1, dtypes.INT64))
    behind = [1] * (x.rank - 1 - axis)
    own = apply1("Equal", apply1("Reshape", places, constant_ints([-1, 1, *behind])),
                 apply1("Reshape", places, constant_ints([-1, *behind])))  # fmt: skip
    other = apply1("And", same, apply1("Not", own))
    table = apply1("Where", other, apply1("Unsqueeze", x, row), number(1, x))
    return apply1("ReduceProd", table, column, keepdims=0)


def _extent(x: Tensor, axis: int | Tensor, extent: int | None) -> int | Tensor:
    if extent is not None:
        return extent
    if isinstance(axis, int):
        return apply1("Shape", x, start=axis, end=axis + 1)
    return apply1("Gather", apply1("Shape", x), apply1("Reshape", axis.astype(dtypes.INT64), constant_ints([1])))


def _doubled(
    product: Tensor, extent: int | Tensor, further: Callable[[Tensor, int | Tensor], Tensor]
) -> Tensor:  # fmt: skip
    """Multiply by what lies further on, from 1 to 2, 4, 8... elements away, until the whole extent is covered."""
    if isinstance(extent, int):
        reach = 1
        while reach < extent:
            product = apply1("Mul", product, further(product, reach))
            reach *= 2
        return product
    powers = constant_ints([1 << n for n in range(62)])
    rounds = apply1("ReduceSum", apply1("Less", powers, extent).astype(dtypes.INT64), keepdims=0)

    def step(i: Tensor, _: Tensor, state: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        reach = apply1("Gather", powers, i)
        return None, [shaped_like(apply1("Mul", state, further(state, reach)), state)], []

    return shaped_like(make_loop(rounds, None, [product], step)[0], product)


def _moves(x: Tensor, axis: int | Tensor, *, reverse: bool) -> Tensor:
    """What Pad takes to move the elements by one along the axis: as much more in front as it cuts off behind."""
    by = -1 if reverse else 1
    if isinstance(axis, int):
        assert x.rank is not None
        pads = [0] * (2 * x.rank)
        pads[axis], pads[x.rank + axis] = by, -by
        return constant_ints(pads)
    rank = apply1("Size", apply1("Shape", x))
    wrapped = apply1("Mod", axis.astype(dtypes.INT64), rank)
    axes = apply1("Range", constant(0, dtypes.INT64), rank, constant(1, dtypes.INT64))
    one = apply1("Equal", axes, wrapped).astype(dtypes.INT64)
    one = one if by == 1 else apply1("Neg", one)
    return apply1("Concat", one, apply1("Neg", one), axis=0)


def _moved(x: Tensor, moves: Tensor, reach: int | Tensor, fill: Tensor) -> Tensor:
    """Elements moved along an axis, ``fill`` where nothing moved in."""
    if isinstance(reach, int) and moves.literal and not moves.traced:
        pads = constant_ints([int(m) * reach for m in moves.numpy()])
    else:
        pads = apply1("Mul", moves, constant_ints([reach]) if isinstance(reach, int) else reach)
    return shaped_like(apply1("Pad", x, pads, fill), x)
