"""GroupQueryAttention of com.microsoft: queries that share keys, positions that rotate, and a cache of its own kind.

The cache is a buffer [B, heads, L, D] of which sequence b has filled as many rows as it had tokens before, so the rows
that are valid, and the places of new ones, differ from sequence to sequence: ``seqlens_k`` says how long each is with
the new tokens. Where all are known to be as long as the buffer, new rows simply follow the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.core import Tensor
from graphkit.errors import GradientError
from graphkit.gradients.attention_parts import (
    INT64,
    attend,
    bias_where_not,
    causal_bias,
    gathered_rows,
    heads_first,
    heads_last,
    padded_to,
    positions,
    rotate,
    static,
    total,
)
from graphkit.gradients.elementwise import as_mask, number
from graphkit.gradients.lowered import Call, lowering
from graphkit.gradients.shapes import constant, static_value
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints
from graphkit.operands import extent, extents, joined_shape, length

ZERO = constant(0, INT64)


@dataclass
class Cache:
    """Where new tokens go.

    Attributes:
        key, value: the rows of before, [B, heads, L, D].
        prompt: whether nothing was before, whatever the buffer holds; a boolean scalar.
        start: how many tokens each sequence had before, [B, 1].
        filled: how many of them the buffer still holds, in its first rows, [B, 1].
        rows: how many rows there are with the new ones, a scalar.
        simple: whether every sequence had filled the whole buffer, so that the new rows follow it.
        kept: where the buffer is a window, how many rows are kept for the next step, [B, 1]: the last ones.
    """

    key: Tensor
    value: Tensor
    prompt: Tensor
    start: Tensor
    filled: Tensor
    rows: Tensor
    simple: bool = False
    kept: Tensor | None = None

    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        """Past rows, the new ones behind those that are filled, and zeros: [B, heads, rows, D]."""
        both = apply1("Concat", past, new, axis=2)
        if self.simple:
            return both
        places = positions(self.rows)
        before, count = length(past, 2), length(new, 2)
        behind = apply1("Sub", places, self.filled)  # [B, rows]: which of the new rows it is
        of_past = apply1("Less", behind, ZERO)
        source = apply1("Where", of_past, places, apply1("Add", behind, before))
        return _rows(both, source, apply1("Less", behind, count), apply1("Add", before, count))

    def present(self, joined: Tensor, new: Tensor) -> Tensor:
        """The rows that the buffer holds afterwards: all, or the last ones and zeros."""
        if self.kept is None:
            return joined
        places = positions(length(self.key, 2))
        first = apply1("Sub", apply1("Add", self.filled, length(new, 2)), self.kept)
        return _rows(joined, apply1("Add", places, first), apply1("Less", places, self.kept), self.rows)

    def places(self) -> Tensor:
        """The position in its sequence of what is in each row, [rows] or [B, rows]."""
        rows = positions(self.rows)
        return rows if self.kept is None else apply1("Add", rows, apply1("Sub", self.start, self.filled))


def _rows(x: Tensor, source: Tensor, valid: Tensor, every: Tensor) -> Tensor:
    """Rows [B, P] of each sequence of x [B, heads, every, D], zeros where they are not valid."""
    batch = apply1("Unsqueeze", positions(length(x, 0)), constant_ints([1]))
    inside = apply1("Add", apply1("Where", valid, source, ZERO), apply1("Mul", batch, every))
    chosen = gathered_rows(x, inside)
    return apply1("Mul", chosen, apply1("Unsqueeze", as_mask(valid, chosen), constant_ints([1, 3])))


@lowering("GroupQueryAttention", domain="com.microsoft")
def group_query_attention(c: Call) -> Sequence[Tensor | None]:
    """Attention where several queries share a key, with rotary positions, a window, sinks, and a cache before it."""
    _refuse(c)
    heads, groups = int(c.attribute("num_heads")), int(c.attribute("kv_num_heads"))
    q, k, v = _heads(c, heads, groups)
    cache = _cache(c, k)
    if c.attribute("do_rotary", 0):
        places = _places(c, q, cache)
        cos, sin = (apply1("Gather", c.needed(n), places, axis=0) for n in (7, 8))
        interleaved = bool(c.attribute("rotary_interleaved", 0))
        width = 2 * static(cos, 2, "the width of GroupQueryAttention's cos_cache")
        q, k = (rotate(t, cos, sin, 1, width=width, interleaved=interleaved) for t in (q, k))
    present = k, v
    if cache is not None:
        new = k
        k, v = cache.joined(cache.key, k), cache.joined(cache.value, v)
        present = cache.present(k, new), cache.present(v, new)
    added = c.input(10)
    if added is not None:
        added = _by_place(added, q, cache) if cache is not None and cache.kept is not None else added
        added = padded_to(added, length(k, 2), extent(k, 2))
    barred, allowed = _barred(c, q, k, cache)
    sink = c.input(11)
    if sink is None and int(c.attribute("smooth_softmax", 0)) > 0:
        sink = number(0, q)
    elif sink is not None:
        sink = apply1("Reshape", sink, constant_ints([1, -1, 1, 1]))
    softcap = float(c.attribute("softcap", 0.0) or 0.0)
    scale = float(c.attribute("scale", 0.0) or 0.0) or None
    found = attend(q, k, v, total([barred, added]), scale, softcap=softcap, sink=sink)
    shown: Tensor | None = None
    if c.count > 3:
        shown = found.weights
        if int(c.attribute("qk_output", 0)) == 1:
            scores = found.capped if added is None else apply1("Add", found.capped, added)
            shown = scores if allowed is None else apply1("Mul", scores, as_mask(allowed(), scores))
    return heads_last(found.result), *present, shown


def _refuse(c: Call) -> None:
    quantized = [c.attribute(n, "NONE") for n in ("k_quant_type", "v_quant_type")]
    if c.input(12) is not None or c.input(13) is not None or any(str(q) not in ("NONE", "") for q in quantized):
        raise GradientError(f"the gradient of {c.op} is not written for a quantized cache: its rows are rounded")
    if int(c.attribute("sliding_window_cache", 0)) and c.count > 3:
        raise GradientError(f"the gradient of {c.op} is not written for the scores of a cache that evicts")


def _heads(c: Call, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [B, heads, S, D], the first two normalized where weights for that are given."""
    q, key, value = c.needed(0), c.input(1), c.input(2)
    if key is None or value is None:
        size = static(q, 2, "the width of GroupQueryAttention's packed input") // (heads + 2 * groups)
        sizes = constant_ints([heads * size, groups * size, groups * size])
        q, key, value = apply("Split", (q, sizes), {"axis": 2}, 3)
    found = [heads_first(q, heads), heads_first(key, groups), heads_first(value, groups)]
    epsilon = float(c.attribute("qk_norm_epsilon", 1e-6))
    for n, weight in enumerate((c.input(14), c.input(15))):
        if weight is not None:
            found[n] = _normalized(found[n], weight, epsilon)
    return found[0], found[1], found[2]


def _normalized(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    from graphkit.gradients.microsoft import root_mean_square

    return root_mean_square(x, weight, epsilon)[0]


def _cache(c: Call, k: Tensor) -> Cache | None:
    key, value, counts = c.input(3), c.input(4), c.input(5)
    if key is None or value is None:
        return None
    new, capacity = length(k, 2), length(key, 2)
    if counts is None:  # the runtime needs them
        start = apply1("Reshape", capacity, constant_ints([1, 1]))
        rows = apply1("Add", new, capacity)
        return Cache(key, value, constant(False, np.dtype(bool)), start, start, rows, simple=True)
    whole = apply1("Reshape", c.needed(6).astype("int64"), constant_ints([]))
    prompt = apply1("Equal", whole, new)
    totals = apply1("Reshape", apply1("Add", counts.astype("int64"), constant(1, INT64)), constant_ints([-1, 1]))
    start = apply1("Where", prompt, ZERO, apply1("Sub", totals, new))
    if int(c.attribute("sliding_window_cache", 0)):
        window = constant(int(c.attribute("local_window_size", -1)), INT64)
        filled, kept = (_resident(t, capacity, window) for t in (start, totals))
        return Cache(key, value, prompt, start, filled, apply1("Add", new, capacity), kept=kept)
    if _fills(counts, extent(k, 2), extent(key, 2)):
        return Cache(key, value, prompt, start, start, apply1("Add", new, capacity), simple=True)
    return Cache(key, value, prompt, start, start, apply1("Max", whole, capacity))


def _resident(tokens: Tensor, capacity: Tensor, window: Tensor) -> Tensor:
    """How many rows a buffer that evicts holds after so many tokens: when it is full it drops all but the window - 1.

    T - G ceil((T - C) / G) for T tokens, a capacity of C and G = C - window + 1; T while that is no more than C.
    """
    step = apply1("Add", apply1("Sub", capacity, window), constant(1, INT64))
    over = apply1("Max", apply1("Sub", tokens, capacity), ZERO)
    times = apply1("Div", apply1("Add", over, apply1("Sub", step, constant(1, INT64))), step)
    return apply1("Sub", tokens, apply1("Mul", times, step))


def _by_place(bias: Tensor, q: Tensor, cache: Cache) -> Tensor:
    """A bias [B or 1, heads or 1, S, T] by the positions of keys as one by the rows that hold them."""
    whole = length(bias, 3)
    batch = extents(q, 0, 1)
    wide = apply1("Expand", apply1("Transpose", bias, perm=[0, 1, 3, 2]), joined_shape(batch, [1, 1, 1]))
    last = apply1("Sub", whole, constant(1, INT64))
    place = apply1("Min", apply1("Max", cache.places(), ZERO), last)
    every = apply1("Unsqueeze", positions(length(q, 0)), constant_ints([1]))
    chosen = gathered_rows(wide, apply1("Add", place, apply1("Mul", every, whole)))
    return apply1("Transpose", chosen, perm=[0, 1, 3, 2])


def _fills(counts: Tensor, new: object, capacity: object) -> bool:
    """Whether every sequence is known to have filled the whole buffer."""
    known = static_value(counts)
    if known is None or not isinstance(new, int) or not isinstance(capacity, int) or not capacity:
        return False
    return bool((known + 1 - new == capacity).all())


def _places(c: Call, q: Tensor, cache: Cache | None) -> Tensor:
    """The position of each query, [B or 1, S]; of a prompt, those from the first one that is given on."""
    own = apply1("Unsqueeze", positions(length(q, 2)), constant_ints([0]))
    given = c.input(9)
    if given is None:
        return own if cache is None else apply1("Add", own, cache.start)
    first = apply1("Gather", apply1("Reshape", given, constant_ints([-1])), ZERO, axis=0)
    from_first = apply1("Add", own, first)
    return from_first if cache is None else apply1("Where", cache.prompt, from_first, given)


def _barred(c: Call, q: Tensor, k: Tensor, cache: Cache | None) -> tuple[Tensor | None, Callable[[], Tensor] | None]:
    """A bias that bars keys behind the query, outside the window, or behind the sequence's end; and what is allowed."""
    causal, window, counts = bool(c.attribute("causal", 1)), int(c.attribute("local_window_size", -1)), c.input(5)
    queries, keys = length(q, 2), length(k, 2)

    def allowed() -> Tensor:
        places = positions(keys)
        own = apply1("Unsqueeze", positions(queries), constant_ints([1]))  # [S, 1]
        if cache is not None:
            own = apply1("Add", own, apply1("Unsqueeze", cache.start, constant_ints([1, 2])))  # [B, 1, S, 1]
            if cache.kept is not None:
                places = apply1("Unsqueeze", cache.places(), constant_ints([1, 2]))  # [B, 1, 1, rows]
        behind = apply1("Sub", own, places)
        tests = []
        if causal:
            tests.append(apply1("GreaterOrEqual", behind, ZERO))
        if window > 0:
            tests.append(apply1("Less", behind, constant(window, INT64)))
        if counts is not None:
            last = apply1("Reshape", counts.astype("int64"), constant_ints([-1, 1, 1, 1]))
            tests.append(apply1("LessOrEqual", places, last))
        result = tests[0]
        for test in tests[1:]:
            result = apply1("And", result, test)
        return result

    if cache is not None or window > 0 or not causal:
        if not causal and window <= 0 and counts is None:
            return None, None
        made = allowed()
        return bias_where_not(made, q), lambda: made
    parts: list[Tensor | None] = [causal_bias(queries, keys, None, q)]
    if counts is not None:  # the padding stands behind the sequence
        last = apply1("Reshape", counts.astype("int64"), constant_ints([-1, 1, 1, 1]))
        parts.append(bias_where_not(apply1("LessOrEqual", positions(keys), last), q))
    return total(parts), allowed
