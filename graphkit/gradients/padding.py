"""Pad, in its four modes."""

from __future__ import annotations

from graphkit.core import Record, Tensor
from graphkit.dims import is_static
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.shapes import shape_tensor, static_ints
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


def pad_gradient(r: Record, g: Tensor) -> Entries:
    """The cotangents of Pad's data and constant value."""
    x = r.inputs[0]
    assert x is not None and x.rank is not None
    mode = r.attribute("mode", "constant")
    pads = _full_pads(r, x.rank)
    if mode == "constant":
        middle = _crop(x, g, pads)
        if r.input(2) is None:
            return (middle,)
        return middle, None, lambda: apply1("Sub", apply1("ReduceSum", g, keepdims=0), apply1("ReduceSum", middle, keepdims=0))
    known = static_ints(pads)
    if known is None or x.dims is None:
        raise GradientError(f"the gradient of {r.describe()} in mode '{mode}' needs pads that are known before it runs")
    result = g
    for axis in range(x.rank):
        before, after = known[axis], known[x.rank + axis]
        if before or after:
            result = _fold_axis(r, result, axis, before, after, str(mode), x)
    return (result,)


def _full_pads(r: Record, rank: int) -> Tensor:
    """Pads for every axis, begins then ends, whichever axes the operator was given."""
    pads, axes = r.inputs[1], r.input(3)
    assert pads is not None
    if axes is None:
        return pads
    known_pads, known_axes = static_ints(pads), static_ints(axes)
    if known_axes is None:
        raise GradientError(f"the gradient of {r.describe()} needs axes that are known before it runs")
    n = len(known_axes)
    places = [a % rank for a in known_axes] + [rank + a % rank for a in known_axes]
    if known_pads is not None:
        full = [0] * (2 * rank)
        for place, value in zip(places, known_pads, strict=True):
            full[place] = value
        return constant_ints(full)
    source = [2 * n] * (2 * rank)  # one element behind the pads: zero
    for position, place in enumerate(places):
        source[place] = position
    return apply1("Gather", apply1("Concat", pads, constant_ints([0]), axis=0), constant_ints(source))


def _crop(x: Tensor, g: Tensor, pads: Tensor) -> Tensor:
    """Pad by the opposite amounts: a negative pad crops, and what was cropped comes back as zeros."""
    known = static_ints(pads)
    if known is not None and not any(known):
        return g
    if known is not None and all(k >= 0 for k in known) and x.dims is not None and x.rank is not None:
        axes = [a for a in range(x.rank) if known[a] or known[x.rank + a]]
        if all(isinstance(x.dims[a], int) for a in axes):
            starts = [known[a] for a in axes]
            ends = [known[a] + int(x.dims[a]) for a in axes]
            return apply1("Slice", g, constant_ints(starts), constant_ints(ends), constant_ints(axes))
    opposite = constant_ints([-k for k in known]) if known is not None else apply1("Neg", pads)
    return apply1("Pad", g, opposite)


def _fold_axis(r: Record, g: Tensor, axis: int, before: int, after: int, mode: str, x: Tensor) -> Tensor:
    """Add what the borders of one axis copied back to where it was copied from.

    The positions that were read are found by padding 0..n-1 in the same mode; a product with their one-hot matrix
    then adds up every copy, in any order of threads.
    """
    assert x.rank is not None
    extent = apply1("Shape", x, start=axis, end=axis + 1)
    from graphkit.gradients.shaping import number_int

    positions = apply1("Range", number_int(0), apply1("Squeeze", extent), number_int(1))
    read = apply1("Pad", positions, constant_ints([before, after]), mode=mode)
    columns = apply1("Unsqueeze", positions, constant_ints([0]))
    matrix = apply1("Equal", apply1("Unsqueeze", read, constant_ints([1])), columns).astype(g.dtype)
    last = x.rank - 1
    if axis == last:
        return apply1("MatMul", g, matrix)
    perm = [n for n in range(x.rank) if n != axis] + [axis]
    folded = apply1("MatMul", apply1("Transpose", g, perm=perm), matrix)
    back = [perm.index(n) for n in range(x.rank)]
    return apply1("Transpose", folded, perm=back)


__all__ = ["is_static", "pad_gradient", "shape_tensor"]
