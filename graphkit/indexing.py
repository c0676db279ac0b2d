"""x[...] and x.reshape(...), as ONNX operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit import dims, dtypes
from graphkit.core import Dim, Tensor, as_tensor
from graphkit.errors import OperatorError
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints
from graphkit.source import here

_END = np.iinfo(np.int64).max


def reshape(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """Reshape to integers, Dims and scalar Tensors, without shape arithmetic where the input's own dims serve."""
    known = x.dims
    target: list[Any] = []
    dynamic = False
    for axis, extent in enumerate(shape):
        same_place = known is not None and axis < len(known)
        if isinstance(extent, Dim):
            # Reshape's 0 copies the input's extent at that place: the file then needs no Shape node.
            if same_place and known is not None and dims.same(known[axis], extent.extent):
                target.append(0)
                continue
            dynamic = True
        elif isinstance(extent, Tensor):
            dynamic = dynamic or extent.traced
            extent = extent if extent.traced else extent.item()
        target.append(extent if isinstance(extent, Dim | Tensor) else extent.__index__())
    if not dynamic:
        wanted = [int(t) for t in target]
        for axis, extent in enumerate(wanted):
            written = extent == 0 and isinstance(shape[axis], int)
            if written and (known is None or axis >= len(known) or known[axis] != 0):
                return apply1("Reshape", x, constant_ints(wanted), allowzero=1)
        if known is not None and all(isinstance(k, int) for k in known) and sum(w == -1 for w in wanted) <= 1:
            _check_size(x, wanted)
        return apply1("Reshape", x, constant_ints(wanted))
    return apply1("Reshape", x, as_tensor(target, "int64"))


def _check_size(x: Tensor, wanted: list[int]) -> None:
    known = [int(k) for k in x.dims or ()]
    total = int(np.prod(known, dtype=np.int64))
    filled = [known[i] if w == 0 and i < len(known) else w for i, w in enumerate(wanted)]
    rest = int(np.prod([w for w in filled if w != -1], dtype=np.int64))
    if (rest != total) if -1 not in filled else (total % rest if rest else total):
        raise OperatorError(f"cannot reshape {known} ({total} elements) to {wanted} at {here()}")


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index] for integers, slices, None, ``...``, integer tensors and boolean masks, as numpy reads them."""
    items = list(index) if isinstance(index, tuple) else [index]
    items = [as_tensor(np.asarray(i)) if isinstance(i, list | np.ndarray) else i for i in items]
    rank = x.ndim
    used = sum(_consumes(i) for i in items)
    if used > rank:
        raise IndexError(f"too many indices: {used} for a tensor of rank {rank} ({here()})")
    if not any(i is Ellipsis for i in items):
        items.append(Ellipsis)
    place = next(n for n, i in enumerate(items) if i is Ellipsis)
    items[place : place + 1] = [slice(None)] * (rank - used)

    x, items = _slices(x, items)
    advanced = [(axis, i) for axis, i in enumerate(j for j in items if j is not None) if isinstance(i, Tensor)]
    new_axes = [n for n, i in enumerate(items) if i is None]
    if not advanced:
        scalars = [a for a, i in enumerate(j for j in items if j is not None) if i == "drop"]
        if scalars:
            x = x.squeeze(scalars)
        if new_axes:
            kept = [i for i in items if i != "drop"]
            x = x.unsqueeze([n for n, i in enumerate(kept) if i is None])
        return x
    return _advanced(x, items, advanced, new_axes)


def _consumes(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype == dtypes.BOOL else 1


def _slices(x: Tensor, items: list[Any]) -> tuple[Tensor, list[Any]]:
    """Do every slice and integer in one Slice; integers are left as "drop", to be squeezed away."""
    starts: list[Any] = []
    ends: list[Any] = []
    axes: list[int] = []
    steps: list[int] = []
    rest: list[Any] = []
    axis = 0
    for item in items:
        if item is None:
            rest.append(None)
            continue
        if isinstance(item, slice):
            step = 1 if item.step is None else item.step.__index__()
            if item.start is not None or item.stop is not None or step != 1:
                starts.append((0 if step > 0 else _END) if item.start is None else item.start)
                ends.append((_END if step > 0 else -_END) if item.stop is None else item.stop)
                axes.append(axis)
                steps.append(step)
            rest.append(slice(None))
        elif isinstance(item, Tensor):
            rest.append(item)
            axis += _consumes(item) - 1
        else:
            number = item.__index__()
            extent = (x.dims or ())[axis]
            if isinstance(extent, int) and not -extent <= number < extent:
                raise IndexError(f"index {number} is out of bounds for axis {axis} of extent {extent} ({here()})")
            starts.append(number)
            ends.append(number + 1 if number != -1 else _END)
            axes.append(axis)
            steps.append(1)
            rest.append("drop")
        axis += 1
    if axes:
        bounds = [b if isinstance(b, Tensor | Dim) else b.__index__() for b in (*starts, *ends)]
        n = len(axes)
        x = apply1("Slice", x, _ints(bounds[:n]), _ints(bounds[n:]), constant_ints(axes), constant_ints(steps))
    return x, rest


def _ints(values: list[Any]) -> Tensor:
    if any(isinstance(v, Tensor | Dim) for v in values):
        return as_tensor(values, "int64")
    return constant_ints(values)


def _advanced(x: Tensor, items: list[Any], advanced: list[tuple[int, Tensor]], new_axes: list[int]) -> Tensor:
    if new_axes:
        raise OperatorError(f"None beside an integer tensor in one index is not supported ({here()}); index twice.")
    kept = [i for i in items if i is not None]
    dropped = [a for a, i in enumerate(kept) if isinstance(i, str)]
    if dropped:
        x = x.squeeze(dropped)
        kept = [i for i in kept if not isinstance(i, str)]
        advanced = [(a, i) for a, i in enumerate(kept) if isinstance(i, Tensor)]
    if len(advanced) == 1 and advanced[0][1].dtype != dtypes.BOOL:
        axis, indices = advanced[0]
        return apply1("Gather", x, indices if indices.dtype == dtypes.INT32 else indices.astype("int64"), axis=axis)
    if len(advanced) == 1 and advanced[0][1].ndim == 1:
        return apply1("Compress", x, advanced[0][1], axis=advanced[0][0])
    places: list[Tensor] = []
    axes: list[int] = []
    axis = 0
    for item in kept:
        if isinstance(item, Tensor) and item.dtype == dtypes.BOOL:
            found = apply1("NonZero", item)
            for n in range(item.ndim):
                places.append(found[n])
                axes.append(axis + n)
            axis += item.ndim
            continue
        if isinstance(item, Tensor):
            places.append(item.astype("int64"))
            axes.append(axis)
        axis += 1
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise OperatorError(f"index tensors with a slice between them are not supported ({here()}); index twice.")
    order = [*axes, *(a for a in range(x.ndim) if a not in axes)]
    moved = x if order == sorted(order) else x.transpose(*order)
    total = places[0]
    for place in places[1:]:
        total = total + place * 0  # broadcast the index tensors together
    zero = total * 0
    indices = apply1("Concat", *[(p + zero).unsqueeze(-1) for p in places], axis=-1)
    result = apply1("GatherND", moved, indices)
    if axes[0] == 0:
        return result
    width = zero.ndim  # numpy puts the indexed dimensions where the index tensors stood
    back = [*range(width, width + axes[0]), *range(width), *range(width + axes[0], result.ndim)]
    return result.transpose(*back)
