"""com.microsoft's attention operators, in ai.onnx operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphkit.core import Tensor
from graphkit.errors import GradientError
from graphkit.gradients.attention_parts import (
    INT64,
    attend,
    bias_where_not,
    causal_bias,
    heads_first,
    heads_last,
    positions,
    rotate,
    static,
    total,
)
from graphkit.gradients.lowered import Call, lowering
from graphkit.gradients.shapes import constant
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints
from graphkit.operands import length

DOMAIN: Final = "com.microsoft"


def _scale(c: Call) -> float | None:
    found = float(c.attribute("scale", 0.0) or 0.0)
    return found or None


def _index(x: Tensor, axis: int, place: int) -> Tensor:
    return apply1("Gather", x, constant(place, INT64), axis=axis)


def _padding(c: Call, mask: Tensor | None, keys: Tensor, like: Tensor) -> Tensor | None:
    """A bias for the padding: int32 lengths [B], or 0 and 1 as [B, T], [B, S, T] or [B, 1, S, T]."""
    if mask is None:
        return None
    low = float(c.attribute("mask_filter_value", -10000.0))
    if mask.rank == 1:
        _check_lengths(c, mask, like)
        valid = apply1("Less", positions(keys), apply1("Unsqueeze", mask.astype("int64"), constant_ints([1])))
        return bias_where_not(apply1("Unsqueeze", valid, constant_ints([1, 2])), like, low)
    valid = mask.astype("bool")
    if mask.rank == 2:
        valid = apply1("Unsqueeze", valid, constant_ints([1, 2]))
    elif mask.rank == 3:
        valid = apply1("Unsqueeze", valid, constant_ints([1]))
    elif mask.rank != 4:
        raise GradientError(f"the gradient of {c.op} needs the rank of its mask")
    return bias_where_not(valid, like, low)


def _check_lengths(c: Call, mask: Tensor, like: Tensor) -> None:
    have, batch = (None if t.dims is None else t.dims[0] for t in (mask, like))
    if isinstance(have, int) and isinstance(batch, int) and have != batch:
        raise GradientError(f"the gradient of {c.op} is not written for a mask of starts and ends ({have} numbers)")


@lowering("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(c: Call) -> Sequence[Tensor | None]:
    """Attention of queries, keys and values that are given apart or packed, with biases, masks and a cache."""
    heads = int(c.attribute("num_heads"))
    q, k, v = _query_key_value(c, heads)
    if c.input(9) is not None:
        raise GradientError("the gradient of MultiHeadAttention is not written for beam search (cache_indirection)")
    past_key, past_value = c.input(6), c.input(7)
    past = None
    if past_key is not None and past_value is not None:
        past = length(past_key, 2)
        k, v = apply1("Concat", past_key, k, axis=2), apply1("Concat", past_value, v, axis=2)
    queries, keys = length(q, 2), length(k, 2)
    causal = None
    if c.attribute("unidirectional", 0):
        causal = causal_bias(queries, keys, past, q)
    bias = total([_padding(c, c.input(4), keys, q), c.input(5), causal])
    found = attend(q, k, v, bias, _scale(c))
    return heads_last(found.result), k, v, found.biased


def _query_key_value(c: Call, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each [B, heads, S, D]."""
    q, key, value, bias = c.needed(0), c.input(1), c.input(2), c.input(3)
    if q.rank == 5:  # [B, S, heads, 3, D]
        if bias is not None:
            wide = apply1("Reshape", bias, constant_ints([3, heads, -1]))
            q = apply1("Add", q, apply1("Transpose", wide, perm=[1, 0, 2]))
        parts = [apply1("Transpose", _index(q, 3, n), perm=[0, 2, 1, 3]) for n in range(3)]
        return parts[0], parts[1], parts[2]
    if key is None:
        raise GradientError("MultiHeadAttention needs a key, or queries, keys and values packed with five axes")
    split: Sequence[Tensor | None] = (None, None, None)
    if bias is not None:
        width = static(q, 2, "the hidden size of MultiHeadAttention's query")
        rest = static(bias, 0, "the size of MultiHeadAttention's bias") - 2 * width
        split = apply("Split", (bias, constant_ints([width, width, rest])), {"axis": 0}, 3)

    def with_bias(x: Tensor, b: Tensor | None) -> Tensor:
        return x if b is None else apply1("Add", x, b)

    q = heads_first(with_bias(q, split[0]), heads)
    if key.rank == 5:  # [B, T, heads, 2, D]
        k, v = (apply1("Transpose", _index(key, 3, n), perm=[0, 2, 1, 3]) for n in range(2))
        return q, k, v
    if value is None:
        raise GradientError("MultiHeadAttention needs a value, or keys and values packed with five axes")
    if key.rank == 4:  # of another sequence, by heads already
        return q, key, value
    return q, heads_first(with_bias(key, split[1]), heads), heads_first(with_bias(value, split[2]), heads)


@lowering("Attention", domain=DOMAIN)
def attention(c: Call) -> Sequence[Tensor | None]:
    """Attention with the projections to queries, keys and values in it."""
    x, w, b = c.needed(0), c.needed(1), c.input(2)
    heads = int(c.attribute("num_heads"))
    if c.attribute("do_rotary", 0):
        raise GradientError("the gradient of com.microsoft.Attention is not written for do_rotary")
    packed = apply1("MatMul", x, w)
    if b is not None:
        packed = apply1("Add", packed, b)
    sizes = [int(n) for n in (c.attribute("qkv_hidden_sizes") or [])]
    if not sizes:
        sizes = [static(w, 1, "the width of com.microsoft.Attention's weights") // 3] * 3
    parts = apply("Split", (packed, constant_ints(sizes)), {"axis": 2}, 3)
    q, k, v = (heads_first(p, heads) for p in parts)
    cache = c.input(4)
    past = None
    if cache is not None:
        past = length(cache, 3)
        k, v = apply1("Concat", _index(cache, 0, 0), k, axis=2), apply1("Concat", _index(cache, 0, 1), v, axis=2)
    queries, keys = length(q, 2), length(k, 2)
    causal = None
    if c.attribute("unidirectional", 0):
        causal = causal_bias(queries, keys, past, q)
    bias = total([_padding(c, c.input(3), keys, q), c.input(5), causal])
    result = heads_last(attend(q, k, v, bias, _scale(c)).result)
    if c.count == 1:
        return (result,)
    both = [apply1("Unsqueeze", t, constant_ints([0])) for t in (k, v)]
    return result, apply1("Concat", *both, axis=0)


@lowering("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(c: Call) -> Sequence[Tensor | None]:
    """Causal attention where several queries share a key, with rotary positions, a window, and a cache before it."""
    heads, groups = int(c.attribute("num_heads")), int(c.attribute("kv_num_heads"))
    if c.input(11) is not None or c.attribute("smooth_softmax", 0) not in (0, -1):
        raise GradientError("the gradient of GroupQueryAttention is not written for attention sinks")
    q, key, value = c.needed(0), c.input(1), c.input(2)
    if key is None or value is None:
        size = static(q, 2, "the width of GroupQueryAttention's packed input") // (heads + 2 * groups)
        sizes = constant_ints([heads * size, groups * size, groups * size])
        q, key, value = apply("Split", (q, sizes), {"axis": 2}, 3)
    q, k, v = heads_first(q, heads), heads_first(key, groups), heads_first(value, groups)
    past_key, past_value, counts = c.input(3), c.input(4), c.input(5)
    queries = length(q, 2)
    past = None if past_key is None else length(past_key, 2)
    if c.attribute("do_rotary", 0):
        places = c.input(9)
        if places is None:
            own = positions(queries)
            if past is not None:
                own = apply1("Add", own, past)
            places = apply1("Unsqueeze", own, constant_ints([0]))
        cos, sin = (apply1("Gather", c.needed(n), places, axis=0) for n in (7, 8))
        interleaved = bool(c.attribute("rotary_interleaved", 0))
        width = 2 * static(cos, 2, "the width of GroupQueryAttention's cos_cache")
        q, k = (rotate(t, cos, sin, 1, width=width, interleaved=interleaved) for t in (q, k))
    if past_key is not None and past_value is not None:
        k, v = apply1("Concat", past_key, k, axis=2), apply1("Concat", past_value, v, axis=2)
    keys = length(k, 2)
    parts: list[Tensor | None] = [causal_bias(queries, keys, past, q), c.input(10)]
    window = int(c.attribute("local_window_size", -1))
    if window > 0:
        own = apply1("Unsqueeze", positions(queries), constant_ints([1]))
        behind = apply1("Sub", own if past is None else apply1("Add", own, past), positions(keys))
        parts.append(bias_where_not(apply1("Less", behind, constant(window, INT64)), q))
    if counts is not None and past is None:  # the padding stands behind the sequence
        last = apply1("Reshape", counts.astype("int64"), constant_ints([-1, 1, 1, 1]))
        parts.append(bias_where_not(apply1("LessOrEqual", positions(keys), last), q))
    softcap = float(c.attribute("softcap", 0.0) or 0.0)
    found = attend(q, k, v, total(parts), _scale(c), softcap=softcap)
    return heads_last(found.result), k, v


@lowering("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(c: Call) -> Sequence[Tensor | None]:
    """Each pair turned by the angle of its position; positions are given, or the first of them is."""
    x, places = c.needed(0), c.needed(1)
    cos, sin = c.needed(2), c.needed(3)
    if c.attribute("is_packed_batching", 0):
        raise GradientError("the gradient of com.microsoft.RotaryEmbedding is not written for packed batches")
    by_head = x.rank == 4
    sequence = length(x, 2 if by_head else 1)
    if places.rank == 1:
        places = apply1("Unsqueeze", apply1("Add", positions(sequence), places), constant_ints([0]))
    cos, sin = (apply1("Gather", t, places, axis=0) for t in (cos, sin))
    interleaved = bool(c.attribute("interleaved", 0))
    scale = float(c.attribute("scale", 1.0))
    half = static(cos, 2, "the width of RotaryEmbedding's cos_cache")
    width = int(c.attribute("rotary_embedding_dim", 0) or 0)
    if by_head:
        turned = rotate(x, cos, sin, 1, width=width, interleaved=interleaved)
    else:
        heads = int(c.attribute("num_heads", 0) or 0)
        shape = [0, 0, heads, -1] if heads else [0, 0, -1, 2 * half]
        turned = rotate(apply1("Reshape", x, constant_ints(shape)), cos, sin, 2, width=width, interleaved=interleaved)
        turned = apply1("Reshape", turned, constant_ints([0, 0, -1]))
    if scale != 1:
        turned = apply1("Mul", turned, constant(scale, turned.dtype))
    return (turned,)
