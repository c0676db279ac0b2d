"""Attention and RotaryEmbedding of ai.onnx."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.attention_parts import (
    INT64,
    attend,
    bias_where_not,
    causal_bias,
    heads_first,
    heads_last,
    lowest,
    padded_to,
    positions,
    rotate,
    total,
)
from graphkit.gradients.elementwise import number
from graphkit.gradients.lowered import Call, by_lowering, lowering
from graphkit.gradients.shapes import constant
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints
from graphkit.operands import extent, length


@lowering("Attention")
def attention(c: Call) -> Sequence[Tensor | None]:
    """softmax(scale Q K^T + masks) V, with the keys and values of earlier steps before the given ones."""
    q, k, v = c.needed(0), c.needed(1), c.needed(2)
    flat = q.rank == 3 or (q.rank is None and bool(c.attribute("q_num_heads", 0)))
    if flat:
        q, heads = heads_first(q, int(c.attribute("q_num_heads"))), int(c.attribute("kv_num_heads"))
        k, v = heads_first(k, heads), heads_first(v, heads)
    mask, past_key, past_value, counts = c.input(3), c.input(4), c.input(5), c.input(6)
    if past_key is not None:
        k = apply1("Concat", past_key, k, axis=2)
    if past_value is not None:
        v = apply1("Concat", past_value, v, axis=2)
    bias, alive = _bias(c, q, k, mask, past_key, counts)
    precision = int(c.attribute("softmax_precision", 0) or 0)
    found = attend(
        q, k, v, bias, c.attribute("scale"), softcap=float(c.attribute("softcap", 0.0) or 0.0),
        precision=dtypes.as_dtype(precision) if precision else None, alive=alive,
    )  # fmt: skip
    shown = [found.scores, found.capped, found.biased, found.weights][int(c.attribute("qk_matmul_output_mode", 0) or 0)]
    return heads_last(found.result) if flat else found.result, k, v, shown


def _bias(
    c: Call, q: Tensor, k: Tensor, mask: Tensor | None, past: Tensor | None, counts: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores; and, where a query may have no key at all, 1 for those that have one."""
    queries, keys = length(q, 2), length(k, 2)
    left, right = int(c.attribute("left_window_size", -1)), int(c.attribute("right_window_size", -1))
    causal = bool(c.attribute("is_causal", 0))
    parts: list[Tensor | None] = []
    may_be_dead = False
    if mask is not None:
        if mask.dtype == dtypes.BOOL:
            mask = bias_where_not(mask, q)
            may_be_dead = True
        parts.append(padded_to(mask, keys, extent(k, 2)))
    if counts is None:
        offset = None if past is None else length(past, 2)
        if causal:
            parts.append(causal_bias(queries, keys, offset, q))
        if left >= 0 or right >= 0:
            parts.append(_windows(queries, keys, offset, left, right, q))
            may_be_dead = True
    else:
        may_be_dead = True
        columns = apply1("Reshape", counts, constant_ints([-1, 1, 1, 1]))
        places = positions(keys)
        parts.append(bias_where_not(apply1("Less", places, columns), q))
        offset = apply1("Sub", columns, queries)
        if causal:
            own = apply1("Add", apply1("Unsqueeze", positions(queries), constant_ints([1])), offset)
            parts.append(bias_where_not(apply1("LessOrEqual", places, own), q))
        if left >= 0 or right >= 0:
            parts.append(_windows(queries, keys, offset, left, right, q))
    bias = total(parts)
    if bias is None or not may_be_dead:
        return bias, None
    wide = bias.astype("float32") if bias.dtype == dtypes.BFLOAT16 else bias  # CUDA takes no maximum of bfloat16
    highest = apply1("ReduceMax", wide, constant_ints([-1]), keepdims=1)
    return bias, apply1("Greater", highest, number(lowest(q) / 2, wide)).astype(q.dtype)


def _windows(queries: Tensor, keys: Tensor, offset: Tensor | None, left: int, right: int, like: Tensor) -> Tensor:
    own = apply1("Unsqueeze", positions(queries), constant_ints([1]))
    if offset is not None:
        own = apply1("Add", own, offset)
    behind = apply1("Sub", own, positions(keys))
    tests = []
    if left >= 0:
        tests.append(apply1("LessOrEqual", behind, constant(left, INT64)))
    if right >= 0:
        tests.append(apply1("GreaterOrEqual", behind, constant(-right, INT64)))
    return bias_where_not(tests[0] if len(tests) == 1 else apply1("And", *tests), like)


@lowering("RotaryEmbedding", rule=False)
def rotary_embedding(c: Call) -> Sequence[Tensor | None]:
    """Each pair turned by the angle of its position."""
    x, cos, sin, places = c.needed(0), c.needed(1), c.needed(2), c.input(3)
    if places is not None:
        cos, sin = (apply1("Gather", t, places, axis=0) for t in (cos, sin))
    width, interleaved = int(c.attribute("rotary_embedding_dim", 0) or 0), bool(c.attribute("interleaved", 0))
    if x.rank == 3:
        wide = apply1("Reshape", x, constant_ints([0, 0, int(c.attribute("num_heads")), -1]))
        turned = rotate(wide, cos, sin, 2, width=width, interleaved=interleaved)
        return (apply1("Reshape", turned, constant_ints([0, 0, -1])),)
    return (rotate(x, cos, sin, 1, width=width, interleaved=interleaved),)


@gradient("RotaryEmbedding")
def rotary_gradient(r: Record, g: Tensor) -> list[Tensor | None]:
    """The cotangent turned back by the same angles."""
    if r.wanted(1) or r.wanted(2):
        return by_lowering(r, g)
    inputs = [g, r.inputs[1], apply1("Neg", r.inputs[2]), *r.inputs[3:]]
    return [apply1("RotaryEmbedding", *inputs, **r.attributes)]
