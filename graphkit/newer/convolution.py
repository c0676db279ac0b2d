"""CausalConvWithState: a depthwise convolution over what came before, with what it needs next time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.core import Tensor
from graphkit.interpreter import apply1
from graphkit.newer.elementwise import swish, widened
from graphkit.newer.table import Call, newer
from graphkit.operands import constant_ints, extent, extents, joined_shape, length, scalar

_END = np.iinfo(np.int64).max


@newer(27, "CausalConvWithState")
def causal_convolution(c: Call) -> Sequence[Tensor]:
    """x [B, C, L] behind k - 1 earlier columns, convolved channel by channel; and its last k - 1 columns.

    With a ``dilation``, which ONNX Runtime's own form of the operator has, (k - 1) dilation columns.
    """
    activation, dilation = str(c.attribute("activation", "none")), int(c.attribute("dilation", 1))
    if activation not in ("none", "silu", "swish"):
        raise c.refused(f"its activation is none, silu or swish, not {activation}")
    own = c.needed(0).dtype
    x, w = widened(c.needed(0)), widened(c.needed(1))
    bias, past = (None if t is None else widened(t) for t in (c.input(2), c.input(3)))
    width = extent(w, 2)
    if past is None and width != 1:
        past = _zeros(x, w, dilation)
    columns = x if past is None or width == 1 else apply1("Concat", past, x, axis=2)
    y = _convolved(columns, x, w, bias, dilation)
    if activation != "none":
        y = swish(y, 1)
    state = apply1("Slice", columns, extents(x, 2, 3), constant_ints([_END]), constant_ints([2]))
    return y.astype(own), state.astype(own)


def _zeros(x: Tensor, w: Tensor, dilation: int) -> Tensor:
    width = extent(w, 2)
    if isinstance(width, int):
        before = constant_ints([(width - 1) * dilation])
    else:
        less = apply1("Sub", extents(w, 2, 3), constant_ints([1]))
        before = less if dilation == 1 else apply1("Mul", less, constant_ints([dilation]))
    return apply1("ConstantOfShape", joined_shape(extents(x, 0, 2), before), value=np.zeros(1, dtype=x.dtype))


def _convolved(columns: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    """The channels must be known for a Conv to say that each is a group; else the windows are gathered."""
    channels = next((e for e in (extent(w, 0), extent(x, 1)) if isinstance(e, int)), None)
    if channels is not None:
        given = (columns, w) if bias is None else (columns, w, bias)
        spread = {"dilations": [dilation]} if dilation > 1 else {}
        return apply1("Conv", *given, group=channels, **spread)
    zero, one = (scalar(n, np.dtype(np.int64)) for n in (0, 1))
    starts = apply1("Unsqueeze", apply1("Range", zero, length(x, 2), one), constant_ints([1]))
    offsets = apply1("Range", zero, length(w, 2), one)
    if dilation > 1:
        offsets = apply1("Mul", offsets, scalar(dilation, np.dtype(np.int64)))
    windows = apply1("Gather", columns, apply1("Add", starts, offsets), axis=2)  # [B, C, L, k]
    y = apply1("ReduceSum", apply1("Mul", windows, w), constant_ints([3]), keepdims=0)
    return y if bias is None else apply1("Add", y, apply1("Unsqueeze", bias, constant_ints([1])))
