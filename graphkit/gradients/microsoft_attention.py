"""com.microsoft's attention operators, in ai.onnx operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphkit import dims
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
    positions,
    rotate,
    static,
    total,
)
from graphkit.gradients.lowered import Call, lowering
from graphkit.gradients.shapes import constant
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints
from graphkit.operands import extent, extents, joined_shape, length

DOMAIN: Final = "com.microsoft"


def _scale(c: Call) -> float | None:
    found = float(c.attribute("scale", 0.0) or 0.0)
    return found or None


def _index(x: Tensor, axis: int, place: int) -> Tensor:
    return apply1("Gather", x, constant(place, INT64), axis=axis)


def _padding(c: Call, mask: Tensor | None, keys: Tensor, like: Tensor, past: Tensor | None = None) -> Tensor | None:
    """A bias for the padding: int32 lengths or ends and starts, or 0 and 1 as [B, T], [B, S, T] or [B, 1, M, M]."""
    if mask is None:
        return None
    low = float(c.attribute("mask_filter_value", -10000.0))
    if mask.rank == 1:
        return bias_where_not(apply1("Unsqueeze", _between(mask, keys, like), constant_ints([1, 2])), like, low)
    valid = mask.astype("bool")
    if mask.rank == 2:
        valid = apply1("Unsqueeze", valid, constant_ints([1, 2]))
    elif mask.rank == 3:
        valid = apply1("Unsqueeze", valid, constant_ints([1]))
    elif mask.rank != 4:
        raise GradientError(f"the gradient of {c.op} needs the rank of its mask")
    else:  # of the longest sequence there may be: the rows of these queries, the columns of these keys
        first = constant(0, INT64) if past is None else past
        last = apply1("Add", first, length(like, 2))
        begins, ends = ([apply1("Unsqueeze", t, constant_ints([0])) for t in pair]
                        for pair in ((first, constant(0, INT64)), (last, keys)))  # fmt: skip
        valid = apply1("Slice", valid, joined_shape(*begins), joined_shape(*ends), constant_ints([2, 3]))
    return bias_where_not(valid, like, low)


def _between(mask: Tensor, keys: Tensor, like: Tensor) -> Tensor:
    """Which keys belong to a sequence, [B, T]: of B ends; of B ends and B starts; of B ends, and sums that follow."""
    count, batch = extent(mask, 0), extent(like, 0)
    wide, places = mask.astype("int64"), positions(keys)
    sizes = extents(like, 0, 1)
    ends, starts = wide, None
    if count is None or batch is None or not dims.same(count, batch):
        ends = apply1("Slice", wide, constant_ints([0]), sizes)
        if not isinstance(count, int) or not isinstance(batch, int):
            twice = apply1("Add", sizes, sizes)
            both = apply1("Equal", extents(wide, 0, 1), twice).astype("int64")
            whole = apply1("Concat", wide, apply1("Sub", ends, ends), axis=0)
            starts = apply1("Mul", apply1("Slice", whole, sizes, twice), both)
        elif count == 2 * batch:
            starts = apply1("Slice", wide, constant_ints([batch]), constant_ints([count]))
        elif count != 3 * batch + 2:
            raise GradientError(f"a mask of {count} numbers is none of a batch of {batch} sequences")
    valid = apply1("Less", places, apply1("Unsqueeze", ends, constant_ints([1])))
    if starts is None:
        return valid
    return apply1("And", valid, apply1("GreaterOrEqual", places, apply1("Unsqueeze", starts, constant_ints([1]))))


@lowering("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(c: Call) -> Sequence[Tensor | None]:
    """Attention of queries, keys and values that are given apart or packed, with biases, masks and a cache."""
    q, k, v = _query_key_value(c, int(c.attribute("num_heads")))
    past_key, past_value, filled = c.input(6), c.input(7), c.input(8)
    past = None
    present = k, v
    if past_key is not None and past_value is not None:
        if filled is None:
            past = length(past_key, 2)
            k, v = apply1("Concat", past_key, k, axis=2), apply1("Concat", past_value, v, axis=2)
            present = k, v
        else:
            past = apply1("Reshape", filled.astype("int64"), constant_ints([]))
            pairs = ((past_key, k), (past_value, v))
            present = _written(past_key, k, past), _written(past_value, v, past)
            k, v = (apply1("Concat", _first(_by_beam(c, old), past), new, axis=2) for old, new in pairs)
    queries, keys = length(q, 2), length(k, 2)
    causal = None
    if c.attribute("unidirectional", 0):
        causal = causal_bias(queries, keys, past, q)
    bias = total([_padding(c, c.input(4), keys, q), c.input(5), causal])
    found = attend(q, k, v, bias, _scale(c))
    return heads_last(found.result), *present, found.biased


def _first(x: Tensor, count: Tensor) -> Tensor:
    """The first rows of a buffer [B, heads, M, D]."""
    return apply1("Slice", x, constant_ints([0]), apply1("Unsqueeze", count, constant_ints([0])), constant_ints([2]))


def _written(buffer: Tensor, new: Tensor, place: Tensor) -> Tensor:
    """A buffer [B, heads, M, D] with new rows in it."""
    after = apply1("Unsqueeze", apply1("Add", place, length(new, 2)), constant_ints([0]))
    rest = apply1("Slice", buffer, after, constant_ints([np.iinfo(np.int64).max]), constant_ints([2]))
    return apply1("Concat", _first(buffer, place), new, rest, axis=2)


def _by_beam(c: Call, buffer: Tensor) -> Tensor:
    """A buffer [batch beams, heads, M, D] of which each row is that of the beam it came from: [batch, beams, M]."""
    beam = c.input(9)
    if beam is None:
        return buffer
    batch, beams, rows = (length(beam, n) for n in range(3))
    first = apply1("Mul", apply1("Unsqueeze", positions(batch), constant_ints([1, 2])), beams)
    source = apply1("Mul", apply1("Add", beam.astype("int64"), first), length(buffer, 2))
    source = apply1("Add", source, positions(rows))
    return gathered_rows(buffer, apply1("Reshape", source, joined_shape([-1], extents(beam, 2, 3))))


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
    if key.rank is None:
        raise GradientError("the gradient of MultiHeadAttention needs the rank of its key")
    if key.rank == 4:  # of another sequence, by heads already
        return q, key, value
    return q, heads_first(with_bias(key, split[1]), heads), heads_first(with_bias(value, split[2]), heads)


@lowering("Attention", domain=DOMAIN)
def attention(c: Call) -> Sequence[Tensor | None]:
    """Attention with the projections to queries, keys and values in it."""
    x, w, b = c.needed(0), c.needed(1), c.input(2)
    heads = int(c.attribute("num_heads"))
    if c.attribute("do_rotary", 0):
        raise GradientError(
            "the gradient of com.microsoft.Attention is not written for do_rotary: no CPU kernel runs it. Fuse the "
            "model with RotaryEmbedding and MultiHeadAttention instead"
        )
    if c.attribute("past_present_share_buffer", 0):
        raise GradientError(
            "the gradient of com.microsoft.Attention is not written for past_present_share_buffer: no CPU kernel runs "
            "it. Use MultiHeadAttention instead"
        )
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
    bias = total([_padding(c, c.input(3), keys, q, past), c.input(5), causal])
    result = heads_last(attend(q, k, v, bias, _scale(c)).result)
    if c.count == 1:
        return (result,)
    both = [apply1("Unsqueeze", t, constant_ints([0])) for t in (k, v)]
    return result, apply1("Concat", *both, axis=0)


@lowering("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(c: Call) -> Sequence[Tensor | None]:
    """Each pair turned by the angle of its position; positions are given, or the first of them is.

    Of packed batches too: the kernels take the positions as they stand.
    """
    x, places = c.needed(0), c.needed(1)
    cos, sin = c.needed(2), c.needed(3)
    if x.rank is None or places.rank is None:
        raise GradientError("the gradient of com.microsoft.RotaryEmbedding needs the ranks of its input and positions")
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
