"""Sums, means, extremes and norms over axes."""

from __future__ import annotations

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import as_mask, number, selected
from graphkit.gradients.products import products_of_others
from graphkit.gradients.shapes import (
    compare,
    constant,
    divide_by_count,
    element_count,
    expand_to,
    keep_axes,
    normalized_axes,
    ones_like,
    shape_tensor,
    static_ints,
)
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

Axes = list[int] | Tensor | None


def reduced(r: Record) -> tuple[Tensor, Axes, bool]:
    """A reduction's input, the axes it reduces (numbers if they are known, None for all), and whether it reduces."""
    x = r.inputs[0]
    assert x is not None
    axes = r.input(1)
    if axes is None:
        noop = bool(r.attribute("noop_with_empty_axes", 0))
        return x, None if not noop else [], not noop
    known = static_ints(axes)
    if known is None:
        return x, axes, True
    if not known:
        noop = bool(r.attribute("noop_with_empty_axes", 0))
        return x, [] if noop else None, not noop
    return x, known if x.rank is None else normalized_axes(known, x.rank), True


def spread(r: Record, g: Tensor) -> Tensor:
    """The cotangent with its reduced axes put back as extent 1."""
    x, axes, reduces = reduced(r)
    return keep_axes(g, axes, bool(r.attribute("keepdims", 1)), x) if reduces else g


def kept_output(r: Record) -> Tensor:
    """The reduction's own result, likewise."""
    return spread(r, r.outputs[0])


def count(r: Record) -> int | Tensor:
    """How many elements each result was made of."""
    x, axes, reduces = reduced(r)
    if not reduces:
        return 1
    if axes is None:
        return element_count(x)
    if isinstance(axes, list) and x.rank is not None:
        return element_count(x, axes)
    # axes that only the run knows: all elements shared out among the results, of which there is one at least
    results = apply1("Max", apply1("Size", r.outputs[0]), constant(1, dtypes.INT64))
    return apply1("Div", apply1("Size", x), results)


def _total(r: Record, x: Tensor, axes: Axes) -> Tensor:
    """The sum over the axes that r reduces, kept as extent 1."""
    if axes is None:
        return apply1("ReduceSum", x, keepdims=1)
    if isinstance(axes, list):
        return apply1("ReduceSum", x, constant_ints(axes), keepdims=1)
    noop = int(bool(r.attribute("noop_with_empty_axes", 0)))  # the run may find no axes
    return apply1("ReduceSum", x, axes, keepdims=1, noop_with_empty_axes=noop)


@gradient("ReduceSum")
def reduce_sum(r: Record, g: Tensor) -> Tensor:
    return expand_to(spread(r, g), r.inputs[0])  # type: ignore[arg-type]  # the data input is always given


@gradient("ReduceMean")
def reduce_mean(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    return expand_to(divide_by_count(spread(r, g), count(r)), x)


@gradient("ReduceMax", "ReduceMin", selects=True)
def reduce_extreme(r: Record, g: Tensor) -> Tensor:
    """Ties share the cotangent evenly."""
    x, axes, reduces = reduced(r)
    if not reduces:
        return g
    mask = as_mask(compare("Equal", x, kept_output(r)), g)
    ties = _total(r, mask, axes)
    share = apply1("Div", spread(r, g), apply1("Max", ties, number(1, g)))  # a NaN equals nothing: no ties
    return selected(r, share, mask)


@gradient("ReduceProd")
def reduce_prod(r: Record, g: Tensor) -> Tensor:
    """The product of all the others, which is right where factors are 0."""
    x, axes, reduces = reduced(r)
    if not reduces or (isinstance(axes, list) and not axes):
        return g
    others = products_of_others(x, axes, noop=bool(r.attribute("noop_with_empty_axes", 0)))
    return apply1("Mul", spread(r, g), others)


@gradient("ReduceSumSquare")
def reduce_sum_square(r: Record, g: Tensor) -> Tensor:
    return apply1("Mul", apply1("Mul", spread(r, g), number(2, g)), r.inputs[0])


@gradient("ReduceL1")
def reduce_l1(r: Record, g: Tensor) -> Tensor:
    return apply1("Mul", spread(r, g), apply1("Sign", r.inputs[0]))


@gradient("ReduceL2")
def reduce_l2(r: Record, g: Tensor) -> Tensor:
    """x / |x|, and 0 at the origin, where the norm has no derivative."""
    norm = kept_output(r)
    safe = apply1("Add", norm, as_mask(compare("Equal", norm, number(0, norm)), norm))
    return apply1("Mul", apply1("Div", spread(r, g), safe), r.inputs[0])


@gradient("ReduceLogSum")
def reduce_log_sum(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    _, axes, reduces = reduced(r)
    total = _total(r, x, axes) if reduces else x
    return expand_to(apply1("Div", spread(r, g), total), x)


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(r: Record, g: Tensor) -> Tensor:
    """The softmax: e^(x - y). A row that is -inf throughout has none, and gets 0."""
    x, _, reduces = reduced(r)
    y = kept_output(r) if reduces else r.outputs[0]
    lowest = number(-3.0e38 if x.dtype != dtypes.FLOAT16 else -65504, y)
    if x.dtype == dtypes.FLOAT64:
        lowest = number(-1.7e308, y)
    return apply1("Mul", spread(r, g), apply1("Exp", apply1("Sub", x, apply1("Max", y, lowest))))


__all__ = ["kept_output", "ones_like", "reduced", "shape_tensor", "spread"]
