"""What gradient rules do with shapes: sum a cotangent down, spread it out, make zeros, count elements.

Each function uses the dims when they are known and writes shape arithmetic into the graph only when they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit import dims, dtypes
from graphkit.core import Record, Tensor
from graphkit.dims import Dims, is_static, same, same_dims
from graphkit.eager import EAGER
from graphkit.errors import GradientError
from graphkit.interpreter import apply1, current
from graphkit.methods import constant_ints

SMALL = 1024
_SETTINGS = frozenset("Add Cast Ceil Concat Div Floor Gather Identity Mul Reshape Slice Squeeze Sub Unsqueeze".split())


def constant(value: Any, dtype: dtypes.DType) -> Tensor:
    """A literal of a given dtype."""
    array = np.asarray(value).astype(dtype)
    array.flags.writeable = False
    return Tensor(array, literal=True)


def static_value(t: Tensor | None) -> Any:
    """The values of a tensor if every run gives the same, else None: for axes, shapes, pads and other settings."""
    if t is None:
        return None
    if t.graph is not None and t.value is not None:
        found = t.graph.array_of(t)
        return _folded(t) if found is None else found
    return t._array


def _folded(t: Tensor, depth: int = 8) -> Any:
    """The values of a small tensor made of constants alone, as exporters write axes, sizes and scales."""
    r = t.record
    if r is None or r.domain or r.op not in _SETTINGS or not depth or t.graph is None or t.rank not in (0, 1):
        return None
    values = []
    for i in r.inputs:
        known = None if i is None else t.graph.array_of(i)
        if known is None and i is not None:
            known = _folded(i, depth - 1)
        if known is None or known.size > SMALL:
            return None
        values.append(Tensor(known))
    return EAGER.apply(r.op, values, r.attributes, 1, "")[t.index]._array


def static_ints(t: Tensor | None) -> list[int] | None:
    """A settings input as Python integers, None if it is absent or only known at run time."""
    found = static_value(t)
    return None if found is None else [int(v) for v in np.asarray(found).ravel()]


def rank_of(r: Record, t: Tensor | None) -> int:
    """The rank of an input; GradientError, naming the operator, where it is unknown."""
    assert t is not None
    if t.rank is None:
        name = f"'{t.name}'" if t.name else "an input"
        raise GradientError(
            f"the gradient of {r.describe()} needs the rank of {name}, which is unknown. Declare the shape of the "
            "model's inputs, with names for the dims that vary."
        )
    return t.rank


def shape_tensor(t: Tensor) -> Tensor:
    """The shape as int64 [rank]: a constant where every dim is known."""
    known = t.dims
    if known is not None and is_static(known):
        return constant_ints([int(d) for d in known])
    return apply1("Shape", t)


def sum_to(cotangent: Tensor, t: Tensor) -> Tensor:
    """A cotangent of something that ``t`` was broadcast to, summed to the shape of ``t``."""
    have, want = cotangent.dims, t.dims
    if same_dims(have, want):
        return cotangent
    if have is None or want is None or len(have) < len(want):
        return _sum_to_unknown(cotangent, t)
    extra = len(have) - len(want)
    axes: list[int] = list(range(extra))
    doubtful = False
    for n, extent in enumerate(want):
        other = have[extra + n]
        if same(other, extent):
            continue
        if extent == 1:
            axes.append(extra + n)
        elif not isinstance(extent, int):  # an extent beyond 1 was not broadcast, whatever the other is called
            doubtful = True
    if doubtful:
        return _sum_to_unknown(cotangent, t)
    if not axes:
        return cotangent
    if axes == list(range(extra)):
        return apply1("ReduceSum", cotangent, constant_ints(axes), keepdims=0)
    summed = apply1("ReduceSum", cotangent, constant_ints(axes), keepdims=1)
    return apply1("Squeeze", summed, constant_ints(list(range(extra)))) if extra else summed


def _sum_to_unknown(cotangent: Tensor, t: Tensor) -> Tensor:
    """The same when the graph must find out: sum over every axis where ``t`` has extent 1, or no axis at all."""
    shape = apply1("Shape", t)
    padded = shape
    have, want = cotangent.dims, t.dims
    if have is None or want is None:
        rank = apply1("Size", apply1("Shape", cotangent))
        missing = apply1("Unsqueeze", apply1("Sub", rank, apply1("Size", shape)), constant_ints([0]))
        padded = apply1("Concat", apply1("Expand", constant_ints([1]), missing), shape, axis=0)
    elif len(have) > len(want):
        padded = apply1("Concat", constant_ints([1] * (len(have) - len(want))), shape, axis=0)
    axes = apply1("Reshape", apply1("NonZero", apply1("Equal", padded, constant_ints([1]))), constant_ints([-1]))
    summed = apply1("ReduceSum", cotangent, axes, keepdims=1, noop_with_empty_axes=1)
    if have is not None and want is not None and len(have) == len(want):
        return summed
    return apply1("Reshape", summed, shape)


def shaped_like(x: Tensor, t: Tensor) -> Tensor:
    """``x`` itself, which has the shape of ``t`` by construction, as inference may not see."""
    if x.graph is not None and x.graph is current():  # what holds in a branch need not hold around it
        x.graph.declare(x, t.dims)
    return x


def zeros_like(t: Tensor) -> Tensor:
    """Zeros of the tensor's shape and dtype."""
    return full_like(t, 0)


def ones_like(t: Tensor) -> Tensor:
    """Ones of the tensor's shape and dtype."""
    return full_like(t, 1)


def full_like(t: Tensor, value: float) -> Tensor:
    """One value in the tensor's shape and dtype."""
    known = t.dims
    if known is not None and is_static(known) and (not t.traced or (dims.size(known) or 0) <= 16):
        return constant(np.full([int(d) for d in known], value), t.dtype)
    return apply1("ConstantOfShape", shape_tensor(t), value=np.array([value]).astype(t.dtype))


def expand_to(x: Tensor, t: Tensor) -> Tensor:
    """``x`` broadcast to the shape of ``t``."""
    if same_dims(x.dims, t.dims):
        return x
    return apply1("Expand", x, shape_tensor(t))


def reshape_to(x: Tensor, t: Tensor) -> Tensor:
    """``x`` in the shape of ``t``, which has as many elements."""
    known = t.dims
    if same_dims(x.dims, known):
        return x
    if known is not None and x.dims is not None:
        target = _reshape_target(x.dims, known)
        if target is not None:
            return shaped_like(apply1("Reshape", x, constant_ints(target)), t)
    return shaped_like(apply1("Reshape", x, shape_tensor(t)), t)


def _reshape_target(have: Dims, want: Dims) -> list[int] | None:
    """A constant Reshape target: at most one unknown extent becomes -1, one at its old place becomes 0."""
    target: list[int] = []
    free = 0
    for axis, extent in enumerate(want):
        if isinstance(extent, int):
            if extent == 0:
                return None
            target.append(extent)
        elif axis < len(have) and same(have[axis], extent):
            target.append(0)
        else:
            target.append(-1)
            free += 1
    return target if free <= 1 else None


def shaped_as(x: Tensor, t: Tensor) -> Tensor:
    """``x``, which has the shape of ``t`` by construction, though its node's inference cannot see that."""
    if x.graph is not None and x.graph is current():  # what holds in a branch need not hold around it
        x.graph.declare(x, t.dims)
    return x


def compare(op: str, a: Tensor | None, b: Tensor | None) -> Tensor:
    """Equal, Greater and so on; of bfloat16 as float32, since CUDA compares no bfloat16."""
    assert a is not None and b is not None
    if a.dtype == dtypes.BFLOAT16:
        a, b = a.astype(dtypes.FLOAT32), b.astype(dtypes.FLOAT32)
    return apply1(op, a, b)


def pad_zeros(x: Tensor, pads: Tensor, axes: Tensor | None = None) -> Tensor:
    """Pad with zeros; bfloat16 as float32, for which alone there are kernels."""
    given = (pads,) if axes is None else (pads, None, axes)
    if x.dtype == dtypes.BFLOAT16:
        return apply1("Pad", x.astype(dtypes.FLOAT32), *given).astype(dtypes.BFLOAT16)
    return apply1("Pad", x, *given)


def element_count(t: Tensor, axes: Sequence[int] | None = None) -> int | Tensor:
    """How many elements there are along ``axes`` (in all, for None): a number, or a traced int64 scalar."""
    known = t.dims
    if known is not None:
        chosen = known if axes is None else tuple(known[a] for a in axes)
        total = dims.size(chosen)
        if total is not None:
            return total
    if axes is None:
        return apply1("Size", t)
    picked = apply1("Gather", apply1("Shape", t), constant_ints(list(axes)))
    return apply1("ReduceProd", picked, keepdims=0)


def divide_by_count(x: Tensor, count: int | Tensor) -> Tensor:
    """x / count, with the count never rounded to half precision (70,000 is infinite in float16)."""
    if isinstance(count, int):
        reciprocal = np.float64(1.0) / count if count else np.float64(np.nan)
        return apply1("Mul", x, constant(reciprocal, x.dtype))
    wide = dtypes.FLOAT64 if x.dtype == dtypes.FLOAT64 else dtypes.FLOAT32
    if x.dtype == wide:
        return apply1("Div", x, count.astype(wide))
    fraction = apply1("Reciprocal", count.astype(wide))
    return apply1("Mul", x, fraction.astype(x.dtype))


def normalized_axes(axes: Sequence[int] | None, rank: int) -> list[int]:
    """Axes as sorted non-negative integers; all of them for None."""
    return list(range(rank)) if axes is None else sorted({a % rank if rank else 0 for a in axes})


def keep_axes(g: Tensor, axes: Tensor | Sequence[int] | None, keepdims: bool, x: Tensor) -> Tensor:
    """A reduction's cotangent with its reduced axes put back as extent 1, ready to broadcast against ``x``."""
    if keepdims:
        return g
    if axes is None:
        rank = x.rank
        if rank is None:
            return apply1("Reshape", g, apply1("Expand", constant_ints([1]), apply1("Shape", apply1("Shape", x))))
        return g if rank == 0 or g.dims == () else apply1("Reshape", g, constant_ints([1] * rank))
    if isinstance(axes, Tensor):
        return apply1("Unsqueeze", g, axes)
    return apply1("Unsqueeze", g, constant_ints(list(axes))) if axes else g
