"""Operators that only move elements, of types and forms that opset 28 added."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit import dtypes
from graphkit.core import Tensor
from graphkit.interpreter import apply, apply1
from graphkit.newer.table import Call, newer
from graphkit.operands import extents, joined_shape


@newer(28, "Compress", "Einsum", "OneHot", "ReverseSequence", "Unique")
def by_float32(c: Call) -> Sequence[Tensor] | None:
    """bfloat16 by float32 and back, which keeps what is moved bit for bit."""
    if all(t is None or t.dtype != dtypes.BFLOAT16 for t in c.inputs):
        return None
    wide = [t.astype("float32") if t is not None and t.dtype == dtypes.BFLOAT16 else t for t in c.inputs]
    made = apply(c.op, wide, c.attributes, c.count)
    return [t.astype(dtypes.BFLOAT16) if t.dtype == dtypes.FLOAT32 else t for t in made]


@newer(28, "SpaceToDepth")
def space_to_depth(c: Call) -> Sequence[Tensor] | None:
    """Column first: [B, size size, C, H, W] with its second and third axes exchanged."""
    mode = str(c.attributes.get("mode", "DCR"))
    if mode == "DCR":
        if "mode" not in c.attributes:
            return None
        return (apply1("SpaceToDepth", c.needed(0), blocksize=int(c.attribute("blocksize"))),)
    if mode != "CRD":
        raise c.refused(f"its mode is DCR or CRD, not {mode}")
    size = int(c.attribute("blocksize"))
    y = apply1("SpaceToDepth", c.needed(0), blocksize=size)
    batch, rest = extents(y, 0, 1), extents(y, 2, 4)
    apart = apply1("Reshape", y, joined_shape(batch, [size * size, -1], rest))
    turned = apply1("Transpose", apart, perm=[0, 2, 1, 3, 4])
    return (apply1("Reshape", turned, joined_shape(batch, [-1], rest)),)
