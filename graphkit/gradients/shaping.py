"""Operators that move elements without changing them."""

from __future__ import annotations

import numpy as np

from graphkit.core import Record, Tensor
from graphkit.dims import is_static
from graphkit.gradients.elementwise import Entries, number
from graphkit.gradients.shapes import (
    normalized_axes,
    reshape_to,
    shape_tensor,
    static_ints,
    sum_to,
    zeros_like,
)
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(r: Record, g: Tensor) -> Tensor:
    assert r.inputs[0] is not None
    return reshape_to(g, r.inputs[0])


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
    lengths = []
    for t in r.inputs:
        assert t is not None
        lengths.append(t.dims[axis] if t.dims is not None else None)
    if len(lengths) == 1:
        return (g,)
    if all(isinstance(n, int) for n in lengths):
        sizes = constant_ints([int(n) for n in lengths if isinstance(n, int)])
    else:
        sizes = apply1(
            "Concat", *(apply1("Gather", apply1("Shape", t), constant_ints([axis])) for t in r.inputs), axis=0
        )
    return apply("Split", (g, sizes), {"axis": axis}, outputs=len(r.inputs))


@gradient("Split", selects=True)
def split(r: Record, *gs: Tensor | None) -> Tensor:
    axis = int(r.attribute("axis", 0))
    outputs = r.outputs
    parts = [g if g is not None else zeros_like(y) for g, y in zip(gs, outputs, strict=True)]
    return parts[0] if len(parts) == 1 else apply1("Concat", *parts, axis=axis)


@gradient("Slice", selects=True)
def slice_(r: Record, g: Tensor) -> Tensor:
    """The cotangent put back where it came from, zeros elsewhere."""
    x = r.inputs[0]
    assert x is not None and x.rank is not None
    starts, ends = static_ints(r.input(1)), static_ints(r.input(2))
    steps = static_ints(r.input(4)) if r.input(4) is not None else None
    known = static_ints(r.input(3)) if r.input(3) is not None else list(range(len(starts or [])))
    if starts is not None and ends is not None and known is not None and (r.input(4) is None or steps is not None):
        axes = [a % x.rank for a in known]
        plan = _padding(x, g, starts, ends, axes, steps or [1] * len(axes))
        if plan is not None:
            return plan
    return _scatter_slices(r, x, g)


def _padding(
    x: Tensor, g: Tensor, starts: list[int], ends: list[int], axes: list[int], steps: list[int]
) -> Tensor | None:
    """Pad with zeros before and behind, where the extents are known and the steps are 1."""
    assert x.dims is not None and x.rank is not None
    before, after = [0] * x.rank, [0] * x.rank
    unknown: list[int] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step != 1:
            return None
        extent = x.dims[axis]
        if isinstance(extent, int):
            first = max(0, min(extent, start + extent if start < 0 else start))
            last = max(first, min(extent, end + extent if end < 0 else end))
            before[axis], after[axis] = first, extent - last
        elif start >= 0 and end < 0:
            return None  # what is cut off in front depends on the extent
        elif start >= 0:
            before[axis] = start
            unknown.append(axis)
        else:
            return None
    if not unknown:
        if not any(before) and not any(after):
            return g
        return apply1("Pad", g, constant_ints(before + after))
    # behind: whatever is missing to the input's extent. Slicing may have met the end before `start`.
    if any(before[a] for a in unknown):
        return None
    rest = apply1("Sub", shape_tensor(x), apply1("Add", shape_tensor(g), constant_ints(before)))
    return apply1("Pad", g, apply1("Concat", constant_ints(before), rest, axis=0))


def _scatter_slices(r: Record, x: Tensor, g: Tensor) -> Tensor:
    """The general form: slice the positions themselves the same way, and scatter by them, one axis at a time."""
    assert x.rank is not None
    starts, ends = r.inputs[1], r.inputs[2]
    axes = static_ints(r.input(3))
    count = None
    if axes is None:
        assert starts is not None
        count = starts.dims[0] if starts.dims is not None else None
        from graphkit.errors import GradientError

        if r.input(3) is not None or not isinstance(count, int):
            raise GradientError(f"the gradient of {r.describe()} needs to know which axes it slices")
        axes = list(range(count))
    result = g
    for n, axis in enumerate(a % x.rank for a in axes):
        one = constant_ints([n])
        bounds = [apply1("Gather", t, one) for t in (starts, ends)]
        step = apply1("Gather", r.inputs[4], one) if r.input(4) is not None else constant_ints([1])
        extent = apply1("Shape", x, start=axis, end=axis + 1)
        positions = apply1("Range", number_int(0), apply1("Squeeze", extent), number_int(1))
        chosen = apply1("Slice", positions, *bounds, constant_ints([0]), step)
        result = _put_back(result, chosen, extent, axis, x.rank)
    return result


def number_int(value: int) -> Tensor:
    array = np.array(value, dtype=np.int64)
    array.flags.writeable = False
    return Tensor(array, literal=True)


def _put_back(g: Tensor, chosen: Tensor, extent: Tensor, axis: int, rank: int) -> Tensor:
    """Rows of ``g`` at the (distinct) positions ``chosen`` of an axis, zeros at the others, by gathering.

    Every position reads its row of ``g``, with a row of zeros behind for those that were not chosen: a Gather is many
    times cheaper than a scatter, and two threads cannot race in it.
    """
    width = apply1("Shape", g, start=axis, end=axis + 1)
    table = apply1("Expand", width, extent)  # every position first points at the row of zeros
    count = apply1("Range", number_int(0), apply1("Squeeze", width), number_int(1))
    table = apply1("ScatterElements", table, chosen, count, axis=0)
    pads = apply1("Pad", g, constant_ints([0] * rank + [int(n == axis) for n in range(rank)]))
    return apply1("Gather", pads, table, axis=axis)


@gradient("Pad")
def pad(r: Record, g: Tensor) -> Entries:
    """mode=constant: the middle goes to the input, the rest to the constant. Other modes are in ``padding``."""
    from graphkit.gradients.padding import pad_gradient

    return pad_gradient(r, g)


@gradient("Tile")
def tile(r: Record, g: Tensor) -> Tensor:
    """Fold every repeated axis into (repeats, extent) and sum over the repeats."""
    x, repeats = r.inputs
    assert x is not None and repeats is not None and x.rank is not None
    if x.rank == 0:
        return g
    known = static_ints(repeats)
    axes = constant_ints([2 * n for n in range(x.rank)])
    if known is not None and x.dims is not None and is_static(x.dims):
        target = [v for n in range(x.rank) for v in (known[n], int(x.dims[n]))]
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
    steps = apply1(
        "Range", number(0, g), apply1("Cast", apply1("Squeeze", apply1("Shape", g)), to=_onnx(g)), number(1, g)
    )
    return (
        lambda: apply1("ReduceSum", g, keepdims=0),
        None,
        lambda: apply1("ReduceSum", apply1("Mul", g, steps), keepdims=0),
    )


def _onnx(t: Tensor) -> int:
    from graphkit import dtypes

    return dtypes.to_onnx(t.dtype)


__all__ = ["normalized_axes", "number_int"]
