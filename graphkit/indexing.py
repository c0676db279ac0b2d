"""x[...] and x.reshape(...), as ONNX operators."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

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
        target.append(extent if isinstance(extent, Dim | Tensor) else whole(extent, "a dimension of reshape"))
    if not dynamic:
        wanted = [int(t) for t in target]
        if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
            raise OperatorError(f"reshape to {wanted} at {here()}: one dimension may be -1, the others are extents")
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
    items = [_item(i) for i in (index if isinstance(index, tuple) else (index,))]
    rank = x.ndim
    used = sum(_consumes(i) for i in items)
    if used > rank:
        raise IndexError(f"too many indices: {used} for a tensor of rank {rank} ({here()})")
    ellipses = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(f"an index can have one ellipsis ('...'), got {len(ellipses)} ({here()})")
    place = ellipses[0] if ellipses else len(items)
    items[place : place + 1] = [slice(None)] * (rank - used)

    x, items = _slices(x, items)
    advanced = [n for n, i in enumerate(items) if isinstance(i, Tensor)]
    if not advanced:
        dropped = [a for a, i in enumerate(j for j in items if j is not None) if i is _DROP]
        if dropped:
            x = x.squeeze(dropped)
        kept = [i for i in items if i is not _DROP]
        new = [n for n, i in enumerate(kept) if i is None]
        return x.unsqueeze(new) if new else x
    # numpy counts an integer beside an index array as one: what all of them make stands where they stood, if they stood
    # side by side, and in front otherwise.
    counted = [n for n, i in enumerate(items) if isinstance(i, Tensor) or i is _DROP]
    together = counted[-1] - counted[0] + 1 == len(counted)
    front = sum(1 for i in items[: counted[0]] if i is not _DROP) if together else 0
    dropped = [a for a, i in enumerate(_axes(i for i in items if i is not None)) if i is _DROP]
    if dropped:
        x = x.squeeze(dropped)
        items = [i for i in items if i is not _DROP]
    new = [a for a, i in enumerate(_axes(items)) if i is None]
    if new:
        x = x.unsqueeze(new)
        items = [slice(None) if i is None else i for i in items]
    return _advanced(x, items, front)


_DROP: Final = "drop"  # stands for an integer, once Slice has taken its element: the axis is to be squeezed away


def _item(item: Any) -> Any:
    """One item of an index, checked: an int, slice, None, Ellipsis, Dim, or a Tensor of integers or booleans."""
    if item is None or item is Ellipsis or isinstance(item, slice | Dim):
        return item
    if isinstance(item, bool | np.bool_):
        raise IndexError(f"True and False are no indices ({here()}); write None to put in a dimension")
    if isinstance(item, list | np.ndarray):
        array = np.asarray(item)
        item = as_tensor(array if array.size else array.astype(np.int64))
    if isinstance(item, Tensor):
        if item.dtype.kind not in "iub":
            raise IndexError(
                f"an index tensor holds integers or booleans, got {dtypes.name(item.dtype)} ({here()}); write "
                "i.astype('int64')"
            )
        return item
    return whole(item, "an index", IndexError)


def whole(value: Any, what: str, error: type[Exception] = OperatorError) -> int:
    """An integer, however it is spelt; refused with the user's line otherwise."""
    try:
        return operator.index(value)
    except TypeError:
        raise error(f"{what} is an integer, got {type(value).__name__} {value!r} ({here()})") from None


def _consumes(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype == dtypes.BOOL else 1


def _axes(items: Iterable[Any]) -> Iterator[Any]:
    """One item an axis: a mask stands for as many as it has."""
    for item in items:
        for _ in range(max(1, _consumes(item))):
            yield item


def _slices(x: Tensor, items: list[Any]) -> tuple[Tensor, list[Any]]:
    """Do every slice and integer in one Slice; integers are left as _DROP, to be squeezed away."""
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
            step = 1 if item.step is None else whole(item.step, "the step of a slice", IndexError)
            if step == 0:
                raise IndexError(f"the step of a slice cannot be 0 ({here()})")
            if item.start is not None or item.stop is not None or step != 1:
                starts.append((0 if step > 0 else _END) if item.start is None else item.start)
                ends.append((_END if step > 0 else -_END) if item.stop is None else item.stop)
                axes.append(axis)
                steps.append(step)
            rest.append(slice(None))
        elif isinstance(item, Tensor):
            _check_mask(x, item, axis)
            rest.append(item)
            axis += _consumes(item) - 1
        else:
            number = whole(item, "an index", IndexError)
            extent = (x.dims or ())[axis]
            if isinstance(extent, int) and not -extent <= number < extent:
                raise IndexError(f"index {number} is out of bounds for axis {axis} of extent {extent} ({here()})")
            starts.append(number)
            ends.append(number + 1 if number != -1 else _END)
            axes.append(axis)
            steps.append(1)
            rest.append(_DROP)
        axis += 1
    if axes:
        bounds = [
            b if isinstance(b, Tensor | Dim) else whole(b, "the bound of a slice", IndexError) for b in (*starts, *ends)
        ]
        n = len(axes)
        x = apply1("Slice", x, _ints(bounds[:n]), _ints(bounds[n:]), constant_ints(axes), constant_ints(steps))
    return x, rest


def _check_mask(x: Tensor, mask: Tensor, axis: int) -> None:
    """A mask has the extents of what it masks (ONNX's Compress would take a shorter one)."""
    if mask.dtype != dtypes.BOOL:
        return
    if not mask.ndim:
        raise IndexError(f"a mask of rank 0 is not supported ({here()}); write None to put in a dimension")
    for n, extent in enumerate(mask.dims or ()):
        masked = (x.dims or ())[axis + n]
        if dims.same(extent, masked) is False:
            raise IndexError(
                f"the mask's extent {extent} is not the tensor's {masked} along axis {axis + n} ({here()})"
            )


def _ints(values: list[Any]) -> Tensor:
    if any(isinstance(v, Tensor | Dim) for v in values):
        return as_tensor(values, "int64")
    return constant_ints(values)


def _advanced(x: Tensor, items: list[Any], front: int) -> Tensor:
    """Index tensors and masks, whose dimensions go to axis ``front`` of the result."""
    found = [(axis, i) for axis, i in _starts(items) if isinstance(i, Tensor)]
    axis, only = found[0]
    if len(found) == 1 and only.dtype != dtypes.BOOL:
        picked = apply1("Gather", x, only if only.dtype == dtypes.INT32 else only.astype("int64"), axis=axis)
        return _moved(picked, axis, only.ndim, front)
    if len(found) == 1 and only.ndim == 1:
        return _moved(apply1("Compress", x, only, axis=axis), axis, 1, front)
    places: list[Tensor] = []
    axes: list[int] = []
    for axis, item in found:
        if item.dtype == dtypes.BOOL:
            where = apply1("NonZero", item)
            places.extend(where[n] for n in range(item.ndim))
            axes.extend(range(axis, axis + item.ndim))
        else:
            places.append(item.astype("int64"))
            axes.append(axis)
    order = [*axes, *(a for a in range(x.ndim) if a not in axes)]
    moved = x if order == sorted(order) else x.transpose(*order)
    total = places[0]
    for place in places[1:]:
        total = total + place * 0  # broadcast the index tensors together
    zero = total * 0
    indices = apply1("Concat", *[(p + zero).unsqueeze(-1) for p in places], axis=-1)
    return _moved(apply1("GatherND", moved, indices), 0, zero.ndim, front)


def _starts(items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    axis = 0
    for item in items:
        yield axis, item
        axis += _consumes(item)


def _moved(x: Tensor, at: int, width: int, to: int) -> Tensor:
    """x with the ``width`` axes that begin at ``at`` where they begin at ``to``, the others in order."""
    if at == to or not width:
        return x
    block = list(range(at, at + width))
    others = [a for a in range(x.ndim) if a not in block]
    return x.transpose(*others[:to], *block, *others[to:])
