"""Operators that move elements without changing them."""

from __future__ import annotations

import numpy as np

from graphkit.core import Record, Tensor
from graphkit.dims import is_static
from graphkit.gradients.elementwise import Entries, number
from graphkit.gradients.shapes import (
    rank_of,
    reshape_to,
    shape_tensor,
    static_ints,
    sum_to,
    zeros_like,
)
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints


@gradient("Reshape", "Flatten")
def reshape(r: Record, g: Tensor) -> Tensor:
    assert r.inputs[0] is not None
    return reshape_to(g, r.inputs[0])


@gradient("Squeeze")
def squeeze(r: Record, g: Tensor) -> Tensor:
    x, axes = r.inputs[0], r.input(1)
    assert x is not None
    if axes is None or (x.dims is not None and is_static(x.dims)):
        return reshape_to(g, x)
    return apply1("Unsqueeze", g, axes)


@gradient("Unsqueeze")
def unsqueeze(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    if x.dims is not None and is_static(x.dims):
        return reshape_to(g, x)
    return apply1("Squeeze", g, r.inputs[1])


@gradient("Transpose")
def transpose(r: Record, g: Tensor) -> Tensor:
    perm = r.attribute("perm")
    if perm is None:
        return apply1("Transpose", g)
    return apply1("Transpose", g, perm=[int(i) for i in np.argsort(perm)])


@gradient("Expand")
def expand(r: Record, g: Tensor) -> Tensor:
    assert r.inputs[0] is not None
    return sum_to(g, r.inputs[0])


@gradient("Concat")
def concat(r: Record, g: Tensor) -> Entries:
    axis = int(r.attribute("axis"))
    if len(r.inputs) == 1:
        return (g,)
    lengths = [t.dims[axis] if t is not None and t.dims is not None else None for t in r.inputs]
    if all(isinstance(n, int) for n in lengths):
        sizes = constant_ints([int(n) for n in lengths if isinstance(n, int)])
    else:
        sizes = apply1("Concat", *(_extent(t, axis) for t in r.inputs), axis=0)
    return apply("Split", (g, sizes), {"axis": axis}, outputs=len(r.inputs))


def _extent(t: Tensor | None, axis: int) -> Tensor:
    """The extent of one axis, int64 [1]."""
    assert t is not None
    if t.dims is not None and isinstance(t.dims[axis], int):
        return constant_ints([int(t.dims[axis])])
    ends = {} if axis == -1 else {"end": axis + 1}
    return apply1("Shape", t, start=axis, **ends)


@gradient("Split", selects=True)
def split(r: Record, *gs: Tensor | None) -> Tensor:
    axis = int(r.attribute("axis", 0))
    outputs = r.outputs
    parts = [g if g is not None else zeros_like(y) for g, y in zip(gs, outputs, strict=True)]
    return parts[0] if len(parts) == 1 else apply1("Concat", *parts, axis=axis)


@gradient("Pad")
def pad(r: Record, g: Tensor) -> Entries:
    """mode=constant: the middle goes to the input, the rest to the constant. Other modes are in ``padding``."""
    from graphkit.gradients.padding import pad_gradient

    return pad_gradient(r, g)


@gradient("Tile")
def tile(r: Record, g: Tensor) -> Tensor:
    """Fold every repeated axis into (repeats, extent) and sum over the repeats."""
    x, repeats = r.inputs
    assert x is not None and repeats is not None
    rank = rank_of(r, x)
    if rank == 0:
        return g
    known = static_ints(repeats)
    axes = constant_ints([2 * n for n in range(rank)])
    if known is not None and x.dims is not None and is_static(x.dims):
        target = [v for n in range(rank) for v in (known[n], int(x.dims[n]))]
        return apply1("ReduceSum", apply1("Reshape", g, constant_ints(target), allowzero=1), axes, keepdims=0)
    pairs = apply1("Concat", apply1("Unsqueeze", repeats, constant_ints([1])),
                   apply1("Unsqueeze", shape_tensor(x), constant_ints([1])), axis=1)  # fmt: skip
    folded = apply1("Reshape", g, apply1("Reshape", pairs, constant_ints([-1])), allowzero=1)
    return apply1("ReduceSum", folded, axes, keepdims=0)


@gradient("Trilu")
def trilu(r: Record, g: Tensor) -> Tensor:
    return apply1("Trilu", g, r.input(1), upper=int(r.attribute("upper", 1)))


@gradient("DepthToSpace")
def depth_to_space(r: Record, g: Tensor) -> Tensor:
    block = int(r.attribute("blocksize"))
    if r.attribute("mode", "DCR") == "DCR":
        return apply1("SpaceToDepth", g, blocksize=block)
    x = r.inputs[0]
    assert x is not None
    # CRD: [n, c, h, b1, w, b2] back to [n, c, b1, b2, h, w]
    split_shape = _block_shape(x, block)
    cells = apply1("Reshape", g, split_shape)
    return reshape_to(apply1("Transpose", cells, perm=[0, 1, 3, 5, 2, 4]), x)


def _block_shape(x: Tensor, block: int) -> Tensor:
    """[n, c / b^2, h, b, w, b] of an input [n, c, h, w]."""
    if x.dims is not None and is_static(x.dims):
        n, c, h, w = (int(d) for d in x.dims)
        return constant_ints([n, c // block**2, h, block, w, block])
    shape = apply1("Shape", x)
    batch, channels, height, width = (apply1("Gather", shape, constant_ints([i])) for i in range(4))
    b = constant_ints([block])
    return apply1("Concat", batch, apply1("Div", channels, constant_ints([block**2])), height, b, width, b, axis=0)


@gradient("SpaceToDepth")
def space_to_depth(r: Record, g: Tensor) -> Tensor:
    block = int(r.attribute("blocksize"))
    return apply1("DepthToSpace", g, blocksize=block, mode="DCR")


@gradient("CumSum")
def cum_sum(r: Record, g: Tensor) -> Entries:
    """Summed from the other end; an exclusive sum stays exclusive."""
    exclusive, reverse = int(r.attribute("exclusive", 0)), int(r.attribute("reverse", 0))
    return (apply1("CumSum", g, r.inputs[1], exclusive=exclusive, reverse=1 - reverse),)


@gradient("ReverseSequence")
def reverse_sequence(r: Record, g: Tensor) -> Tensor:
    return apply1("ReverseSequence", g, r.inputs[1], batch_axis=int(r.attribute("batch_axis", 1)),
                  time_axis=int(r.attribute("time_axis", 0)))  # fmt: skip


@gradient("Range")
def range_(r: Record, g: Tensor) -> Entries:
    """start + i * step: the start moves all elements, the step moves element i by i."""
    start, _, step = r.inputs
    assert start is not None and step is not None
    count = apply1("Size", g).astype(g.dtype)
    steps = apply1("Range", number(0, g), count, number(1, g))
    return (
        lambda: apply1("ReduceSum", g, keepdims=0),
        None,
        lambda: apply1("ReduceSum", apply1("Mul", g, steps), keepdims=0),
    )
