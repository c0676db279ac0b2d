"""Manipulation and indexing functions of the Array API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit import dtypes
from graphkit.core import Dim, Tensor, as_tensor
from graphkit.gradients import shapes
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints


def _same_dtype(arrays: Sequence[Any]) -> list[Tensor]:
    tensors = [as_tensor(a) for a in arrays]
    dtype = tensors[0].dtype
    for t in tensors[1:]:
        dtype = dtypes.promote(dtype, t.dtype)
    return [t.astype(dtype) for t in tensors]


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Tensor:
    """Arrays one behind the other along an axis (all flattened, for None)."""
    tensors = _same_dtype(arrays)
    if axis is None:
        tensors, axis = [t.reshape(-1) for t in tensors], 0
    return apply1("Concat", *tensors, axis=axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Tensor:
    """Arrays of one shape along a new axis."""
    return apply1("Concat", *[t.unsqueeze(axis) for t in _same_dtype(arrays)], axis=axis)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis."""
    t = as_tensor(x)
    count = t.shape[axis].__index__()
    parts = apply("Split", (t,), {"axis": axis, "num_outputs": count}, count) if count else ()
    return tuple(p.squeeze(axis) for p in parts)


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape."""
    return as_tensor(x).reshape(*shape) if isinstance(shape, Sequence) else as_tensor(x).reshape(shape)


def permute_dims(x: Any, /, axes: Sequence[int] | None = None) -> Tensor:
    """Dimensions in another order."""
    return as_tensor(x).transpose(*(axes or ()))


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
    """Some dimensions at other places, the rest in order."""
    t = as_tensor(x)
    sources = [s % t.ndim for s in ([source] if isinstance(source, int) else source)]
    targets = [d % t.ndim for d in ([destination] if isinstance(destination, int) else destination)]
    order = [n for n in range(t.ndim) if n not in sources]
    for target, place in sorted(zip(targets, sources, strict=True)):
        order.insert(target, place)
    return t.transpose(*order)


def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Tensor:
    """With dimensions of extent 1 put in."""
    return as_tensor(x).unsqueeze(axis)


def squeeze(x: Any, /, axis: int | Sequence[int] | None = None) -> Tensor:
    """Without the dimensions of extent 1 at ``axis``."""
    return as_tensor(x).squeeze(axis)


def broadcast_to(x: Any, /, shape: Sequence[Any]) -> Tensor:
    """x repeated to a shape."""
    t = as_tensor(x)
    if any(isinstance(s, Dim | Tensor) for s in shape):
        return apply1("Expand", t, as_tensor(list(shape), "int64"))
    return apply1("Expand", t, constant_ints([int(s) for s in shape]))


def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """All arrays in the shape that they broadcast to together."""
    tensors = [as_tensor(a) for a in arrays]
    shape = apply1("Shape", sum((apply1("ConstantOfShape", shapes.shape_tensor(t)) for t in tensors), as_tensor(0.0)))
    return [apply1("Expand", t, shape) for t in tensors]


def flip(x: Any, /, *, axis: int | Sequence[int] | None = None) -> Tensor:
    """Reversed along axes (all of them, for None)."""
    t = as_tensor(x)
    axes = list(range(t.ndim)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    chosen = {a % t.ndim for a in axes}
    return t[tuple(slice(None, None, -1) if n in chosen else slice(None) for n in range(t.ndim))] if axes else t


def roll(x: Any, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Tensor:
    """Shifted along axes, what falls off coming back in front."""
    t = as_tensor(x)
    if axis is None:
        return roll(t.reshape(-1), shift, axis=0).reshape(*t.shape)
    shifts = [shift] if isinstance(shift, int) else list(shift)
    axes = [axis] if isinstance(axis, int) else list(axis)
    if len(shifts) == 1:
        shifts *= len(axes)
    for by, place in zip(shifts, axes, strict=True):
        extent = t.shape[place]
        if isinstance(extent, Dim):
            cut: Any = -by % extent.as_tensor()
        else:
            cut = -by % extent if extent else 0
        if isinstance(cut, int) and not cut:
            continue
        every = [slice(None)] * t.ndim
        front, back = list(every), list(every)
        front[place], back[place] = slice(cut, None), slice(None, cut)
        t = apply1("Concat", t[tuple(front)], t[tuple(back)], axis=place)
    return t


def repeat(x: Any, repeats: int, /, *, axis: int | None = None) -> Tensor:
    """Every element several times."""
    t = as_tensor(x)
    if axis is None:
        t, axis = t.reshape(-1), 0
    place = axis % t.ndim
    wide = t.unsqueeze(place + 1)
    spread = apply1("Tile", wide, constant_ints([repeats if n == place + 1 else 1 for n in range(wide.ndim)]))
    shape = [s * repeats if n == place and isinstance(s, int) else s for n, s in enumerate(t.shape)]
    shape[place] = -1 if not isinstance(t.shape[place], int) else shape[place]
    return spread.reshape(*shape)


def tile(x: Any, repetitions: Sequence[int], /) -> Tensor:
    """The whole array several times along each axis."""
    t = as_tensor(x)
    times = list(repetitions)
    if len(times) > t.ndim:
        t = t.reshape(*[1] * (len(times) - t.ndim), *t.shape)
    times = [1] * (t.ndim - len(times)) + times
    return apply1("Tile", t, constant_ints(times)) if times else t


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """Elements along an axis by their indices."""
    t = as_tensor(x)
    if axis is None:
        t, axis = t.reshape(-1), 0
    return apply1("Gather", t, as_tensor(indices, "int64"), axis=axis)


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Tensor:
    """Elements along an axis, with indices of their own for every position."""
    return apply1("GatherElements", as_tensor(x), as_tensor(indices, "int64"), axis=axis)
