"""LinearAttention: attention by a state that every token reads and writes, in a loop over the tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit import dtypes
from graphkit.bodies import over_time
from graphkit.core import Tensor
from graphkit.interpreter import apply1
from graphkit.newer.table import Call, newer
from graphkit.operands import constant_ints, extent, extents, joined_shape, length, scalar

RULES = ("linear", "gated", "delta", "gated_delta")


def _by_time(x: Tensor, shape: Sequence[int], dtype: dtypes.DType) -> Tensor:
    """[B, T, n] as [T, B, *shape], in the precision to compute in."""
    wide = apply1("Reshape", x.astype(dtype), constant_ints([0, 0, *shape]))
    return apply1("Transpose", wide, perm=[1, 0, *range(2, 2 + len(shape))])


@newer(27, "LinearAttention")
def linear_attention(c: Call) -> Sequence[Tensor]:
    """S = exp(g) S + k (b (v - k^T S))^T and o = scale q^T S, for each token; without g or b where the rule says so.

    The state S [B, heads, dk, dv] is kept in float32 (float64 for float64), whatever the types of the rest. Query heads
    that share a head of keys and values are rows of one product with its state.
    """
    heads, groups = int(c.attribute("q_num_heads")), int(c.attribute("kv_num_heads"))
    rule = str(c.attribute("update_rule", "gated_delta"))
    _check(c, rule, heads, groups)
    q, k, v, past = c.needed(0), c.needed(1), c.needed(2), c.input(3)
    decay, beta = c.input(4), c.input(5)
    kind = dtypes.FLOAT64 if q.dtype == dtypes.FLOAT64 else dtypes.FLOAT32
    queries = _by_time(q, [groups, heads // groups, -1], kind)
    queries = apply1("Mul", queries, _scale(c, queries, kind))
    keys, values = _by_time(k, [groups, 1, -1], kind), _by_time(v, [groups, 1, -1], kind)
    state = _empty(keys, values, kind) if past is None else past.astype(kind)
    xs = [queries, keys, values]
    if decay is not None:
        xs.append(apply1("Exp", _by_time(decay, [groups, -1, 1], kind)))
    if beta is not None:
        xs.append(_by_time(beta, [-1, 1, 1], kind))

    def step(s: Tensor, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        rest = list(more)
        if decay is not None:
            s = apply1("Mul", s, rest.pop(0))
        if beta is not None:
            v = apply1("Mul", rest.pop(0), apply1("Sub", v, apply1("MatMul", k, s)))
        s = apply1("Add", s, apply1("MatMul", apply1("Transpose", k, perm=[0, 1, 3, 2]), v))
        return [s], [apply1("MatMul", q, s)]

    (state,), (rows,) = over_time([state], xs, step)
    flat = apply1("Reshape", apply1("Transpose", rows, perm=[1, 0, 2, 3, 4]), constant_ints([0, 0, -1]))
    return flat.astype(q.dtype), state.astype(q.dtype if past is None else past.dtype)


def _check(c: Call, rule: str, heads: int, groups: int) -> None:
    if rule not in RULES:
        raise c.refused(f"its update_rule is one of {', '.join(RULES)}, not {rule}")
    if groups <= 0 or heads <= 0 or heads % groups:
        raise c.refused(f"its q_num_heads must be a multiple of its kv_num_heads, got {heads} and {groups}")
    for name, place, used in (("decay", 4, "gated" in rule), ("beta", 5, "delta" in rule)):
        if used != (c.input(place) is not None):
            raise c.refused(f"with the update_rule {rule} it {'needs' if used else 'takes no'} {name}")


def _scale(c: Call, queries: Tensor, kind: dtypes.DType) -> Tensor:
    given, size = float(c.attribute("scale", 0.0) or 0.0), extent(queries, 4)
    if given:
        return scalar(given, kind)
    if isinstance(size, int):
        return scalar(1 / math.sqrt(size), kind)
    return apply1("Reciprocal", apply1("Sqrt", length(queries, 4).astype(kind)))


def _empty(keys: Tensor, values: Tensor, kind: dtypes.DType) -> Tensor:
    """[B, heads, dk, dv] of zeros, from [T, B, heads, 1, dk] and [T, B, heads, 1, dv]."""
    shape = joined_shape(extents(keys, 1, 3), extents(keys, 4, 5), extents(values, 4, 5))
    return apply1("ConstantOfShape", shape, value=np.zeros(1, dtype=kind))
