"""FlexAttention of the domain of previews: attention with graphs that change its scores and its probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from graphkit import dtypes
from graphkit.bodies import Environment, run_body
from graphkit.conversion import captured_by
from graphkit.core import Tensor
from graphkit.interpreter import apply1
from graphkit.newer.elementwise import HALF, widened
from graphkit.newer.table import PREVIEW, Call, newer
from graphkit.operands import constant_ints, extent, extents, joined_shape, length, scalar


@newer(1, "FlexAttention", domain=PREVIEW)
def flex_attention(c: Call) -> Sequence[Tensor]:
    """prob_mod(softmax(score_mod(scale Q K^T))) V; what the two graphs capture follows the three inputs."""
    q, k, v = (c.needed(n) for n in range(3))
    precision = int(c.attribute("softmax_precision", 0) or 0)
    kind = dtypes.as_dtype(precision) if precision else dtypes.FLOAT32 if q.dtype in HALF else q.dtype
    scaled = widened(apply1("Mul", widened(q), _scale(c, widened(q))))
    scores = _product(scaled, apply1("Transpose", widened(k), perm=[0, 1, 3, 2]), q, k).astype(kind)
    scores = _changed(c, "score_mod", scores)
    weights = _changed(c, "prob_mod", _softmax(scores))
    wide = dtypes.FLOAT32 if kind == dtypes.BFLOAT16 else kind
    return (_product(weights.astype(wide), v.astype(wide), q, k).astype(kind).astype(v.dtype),)


def _softmax(scores: Tensor) -> Tensor:
    return apply1("Softmax", widened(scores), axis=-1).astype(scores.dtype)


def _scale(c: Call, q: Tensor) -> Tensor:
    given, size = c.attribute("scale"), extent(q, 3)
    if given is not None:
        return scalar(float(given), q.dtype)
    if isinstance(size, int):
        return scalar(1 / math.sqrt(size), q.dtype)
    return apply1("Reciprocal", apply1("Sqrt", length(q, 3).astype("float32"))).astype(q.dtype)


def _product(a: Tensor, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """a b by heads, of which several of a's share one of b's: they stand below each other."""
    heads, groups = extent(q, 1), extent(k, 1)
    if isinstance(heads, int) and heads == groups:
        return apply1("MatMul", a, b)
    batch = extents(a, 0, 1)
    apart = apply1("Reshape", a, joined_shape(batch, extents(k, 1, 2), [-1], extents(a, 2, 4)))
    product = apply1("MatMul", apart, apply1("Unsqueeze", b, constant_ints([2])))
    return apply1("Reshape", product, joined_shape(batch, extents(a, 1, 3), [-1]))


def _changed(c: Call, name: str, x: Tensor) -> Tensor:
    body = c.attributes.get(name)
    if not isinstance(body, ir.Graph):
        return x
    bodies = [a for a in c.attributes.values() if isinstance(a, ir.Graph)]
    env: Environment = dict(zip(captured_by(bodies), c.inputs[3:], strict=True))
    (y,) = run_body(body, [x], env)
    return y
