"""Scaled dot product attention in plain operators, as the attention operators of all domains share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit import dims, dtypes
from graphkit.core import Tensor
from graphkit.dims import Extent
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import number
from graphkit.gradients.shapes import constant
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints
from graphkit.operands import extent, extents, joined_shape, length

INT64 = dtypes.INT64


def static(t: Tensor, axis: int, what: str) -> int:
    found = extent(t, axis)
    if not isinstance(found, int):
        raise GradientError(f"the gradient needs {what} to be known")
    return found


def heads_first(x: Tensor, heads: int) -> Tensor:
    """[B, S, heads D] as [B, heads, S, D]."""
    wide = apply1("Reshape", x, constant_ints([0, 0, heads, -1]))
    return apply1("Transpose", wide, perm=[0, 2, 1, 3])


def heads_last(x: Tensor) -> Tensor:
    """[B, heads, S, D] as [B, S, heads D]."""
    return apply1("Reshape", apply1("Transpose", x, perm=[0, 2, 1, 3]), constant_ints([0, 0, -1]))


def lowest(like: Tensor) -> float:
    """A number so low that its exponential is 0 next to any score, and that stays finite with a score added."""
    return {dtypes.FLOAT16: -3e4, dtypes.FLOAT64: -1e300}.get(like.dtype, -1e30)


def bias_where_not(allowed: Tensor, like: Tensor, low: float | None = None) -> Tensor:
    """0 where allowed, and a very low number elsewhere."""
    barred = apply1("Not", allowed).astype(like.dtype)
    return apply1("Mul", barred, number(lowest(like) if low is None else low, like))


def total(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of those that are there."""
    given = [p for p in parts if p is not None]
    if not given:
        return None
    result = given[0]
    for p in given[1:]:
        result = apply1("Add", result, p)
    return result


def positions(count: Tensor) -> Tensor:
    """0, 1, 2... as int64 [count]"""
    return apply1("Range", constant(0, INT64), count, constant(1, INT64))


def causal_bias(queries: Tensor, keys: Tensor, offset: Tensor | None, like: Tensor, low: float | None = None) -> Tensor:
    """[S, T]: 0 up to each query's own place, which is ``offset`` places further among the keys; very low behind it."""
    shape = apply1("Concat", *(apply1("Unsqueeze", t, constant_ints([0])) for t in (queries, keys)), axis=0)
    fill = np.array([lowest(like) if low is None else low]).astype(like.dtype)
    full = apply1("ConstantOfShape", shape, value=fill)
    one = constant(1, INT64)
    first = one if offset is None else apply1("Add", offset, one)
    if like.dtype in (dtypes.FLOAT32, dtypes.FLOAT64):
        return apply1("Trilu", full, first, upper=1)
    return apply1("Trilu", full.astype("float32"), first, upper=1).astype(like.dtype)


def gathered_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of [B, heads, L, D] by their places among all B L rows, [B, P]: [B, heads, P, D]."""
    turned = apply1("Transpose", x, perm=[0, 2, 1, 3])
    flat = apply1("Reshape", turned, joined_shape([-1], extents(x, 1, 2), extents(x, 3, 4)))
    return apply1("Transpose", apply1("Gather", flat, index, axis=0), perm=[0, 2, 1, 3])


@dataclass
class Attended:
    """What attention gives: the result [B, H, S, D], and the scores at each stage [B, H, S, T]."""

    result: Tensor
    scores: Tensor
    capped: Tensor
    biased: Tensor
    weights: Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float | None,
    *,
    softcap: float = 0.0,
    precision: dtypes.DType | None = None,
    alive: Tensor | None = None,
    sink: Tensor | None = None,
) -> Attended:
    """softmax(scale q k^T + bias) v, for q [B, H, S, D], k [B, K, T, D] and v [B, K, T, E], K dividing H.

    Args:
        q, k, v: queries, keys and values.
        bias: added to the scores; broadcasts to [B, H, S, T].
        scale: of the scores, 1/sqrt(D) for None.
        softcap: limits the scores to this by a tanh; 0 for no limit.
        precision: the dtype of the softmax, if it is not that of the scores.
        alive: 1 where a query attends to any key, 0 elsewhere; broadcasts to [B, H, S, 1].
        sink: the score of a key more, whose value is 0: it takes weight from the others; broadcasts to [B, H, S, 1].
    """
    queries, groups = extent(q, 1), extent(k, 1)
    if queries != groups and not (isinstance(queries, int) and isinstance(groups, int)):
        raise GradientError("the gradient of attention needs the numbers of heads to be known")
    grouped = queries != groups
    if scale is None:
        width = extent(q, 3)
        if isinstance(width, int):
            factor = number(1 / np.sqrt(width), q)
        else:
            factor = apply1("Reciprocal", apply1("Sqrt", length(q, 3).astype("float32"))).astype(q.dtype)
    else:
        factor = number(scale, q)
    scaled = apply1("Mul", q, factor)
    if grouped:  # the queries that share a key stand below each other, so that there is one product for each key
        scaled = apply1("Reshape", scaled, constant_ints([0, int(groups or 0), -1, 0]))
    scores = apply1("MatMul", scaled, apply1("Transpose", k, perm=[0, 1, 3, 2]))
    if grouped:
        scores = apply1("Reshape", scores, constant_ints([0, int(queries or 0), -1, 0]))
    capped = scores
    if softcap:
        limit = number(softcap, q)
        capped = apply1("Mul", apply1("Tanh", apply1("Div", scores, limit)), limit)
    biased = capped if bias is None else apply1("Add", capped, bias)
    wide = biased if precision is None else biased.astype(precision)
    weights = apply1("Softmax", wide, axis=-1).astype(q.dtype)
    if sink is not None:  # exp(x) / (sum exp + exp(s)) is the softmax times sigmoid(log sum exp - s)
        exact = biased.astype("float32") if biased.dtype in (dtypes.FLOAT16, dtypes.BFLOAT16) else biased
        together = apply1("ReduceLogSumExp", exact, constant_ints([-1]), keepdims=1)
        share = apply1("Sigmoid", apply1("Sub", together, sink.astype(exact.dtype)))
        weights = apply1("Mul", weights, share.astype(q.dtype))
    if alive is not None:
        weights = apply1("Mul", weights, alive)
    held = apply1("Reshape", weights, constant_ints([0, int(groups or 0), -1, 0])) if grouped else weights
    result = apply1("MatMul", held, v)
    if grouped:
        result = apply1("Reshape", result, constant_ints([0, int(queries or 0), -1, 0]))
    return Attended(result, scores, capped, biased, weights)


def padded_to(mask: Tensor, keys: Tensor, want: Extent | None) -> Tensor:
    """A mask whose last axis may be shorter than the keys: what is missing is not attended to."""
    have = extent(mask, -1)
    if have is not None and want is not None and dims.same(have, want):
        return mask
    rank = mask.rank
    if rank is None:
        return mask
    missing = apply1("Sub", keys, length(mask, -1))
    pads = apply1(
        "Concat", constant_ints([0] * (2 * rank - 1)), apply1("Unsqueeze", missing, constant_ints([0])), axis=0
    )
    return apply1("Pad", mask, pads, number(lowest(mask), mask))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, axis: int, *, width: int = 0, interleaved: bool = False) -> Tensor:
    """Pairs of the last axis rotated by angles of the given cosines and sines [B, S, n].

    Args:
        x: [B, heads, S, D] with ``axis`` 1, or [B, S, heads, D] with ``axis`` 2.
        cos, sin: one for each pair.
        axis: the axis of the heads.
        width: how many of the last axis are rotated, 0 for all.
        interleaved: whether pairs are neighbours instead of halves apart.
    """
    where = constant_ints([axis])
    c, s = apply1("Unsqueeze", cos, where), apply1("Unsqueeze", sin, where)
    rest: Tensor | None = None
    if width and extent(x, 3) != width:
        size = static(x, 3, "the size of a head")
        x, rest = apply("Split", (x, constant_ints([width, size - width])), {"axis": 3}, 2)
    if interleaved:
        pairs = apply1("Reshape", x, constant_ints([0, 0, 0, -1, 2]))
        first, second = (
            apply1("Squeeze", p, constant_ints([4]))
            for p in apply("Split", (pairs, constant_ints([1, 1])), {"axis": 4}, 2)
        )
    else:
        first, second = apply("Split", (x,), {"axis": 3, "num_outputs": 2}, 2)
    real = apply1("Sub", apply1("Mul", first, c), apply1("Mul", second, s))
    imaginary = apply1("Add", apply1("Mul", first, s), apply1("Mul", second, c))
    if interleaved:
        both = [apply1("Unsqueeze", t, constant_ints([4])) for t in (real, imaginary)]
        turned = apply1("Reshape", apply1("Concat", *both, axis=4), constant_ints([0, 0, 0, -1]))
        return turned if rest is None else apply1("Concat", turned, rest, axis=3)
    return apply1("Concat", *((real, imaginary) if rest is None else (real, imaginary, rest)), axis=3)
