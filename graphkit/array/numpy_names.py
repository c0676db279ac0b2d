"""Functions that numpy has and the Array API has not, for code written with numpy's own names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.array.elementwise import pair
from graphkit.array.manipulation import concat
from graphkit.core import Tensor, as_tensor
from graphkit.errors import OperatorError
from graphkit.interpreter import apply, apply1
from graphkit.methods import binary, constant_ints
from graphkit.source import here


def dot(a: Any, b: Any) -> Tensor:
    """Sum of products over the last axis of a and the last but one of b."""
    left, right = pair(a, b)
    if left.ndim == 0 or right.ndim == 0:
        return left * right
    if right.ndim <= 2:
        return binary("MatMul", left, right)
    raise OperatorError(f"numpy.dot with a second operand of rank {right.ndim} is not supported ({here()}); use matmul")


def outer(a: Any, b: Any) -> Tensor:
    """Every product of an element of a with one of b."""
    left, right = pair(a, b)
    return left.reshape(-1, 1) * right.reshape(1, -1)


def einsum(equation: str, *operands: Any) -> Tensor:
    """Sums of products in index notation."""
    tensors = [as_tensor(o) for o in operands]
    return apply1("Einsum", *tensors, equation=equation)


def swapaxes(x: Any, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""
    t = as_tensor(x)
    order = list(range(t.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return t.transpose(*order)


def ravel(x: Any) -> Tensor:
    """All elements in one dimension."""
    return as_tensor(x).reshape(-1)


def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Equal parts along an axis, or the parts between the places that are given."""
    t = as_tensor(x)
    extent = t.shape[axis]
    if isinstance(sections, int):
        if isinstance(extent, int) and extent % sections:
            raise OperatorError(f"numpy.split of an extent of {extent} into {sections} is not even ({here()})")
        return list(apply("Split", (t,), {"axis": axis, "num_outputs": sections}, sections))
    every = [slice(None)] * t.ndim
    parts = []
    for start, stop in itertools.pairwise([0, *sections, None]):
        every[axis] = slice(start, stop)
        parts.append(t[tuple(every)])
    return parts


def hstack(arrays: Sequence[Any]) -> Tensor:
    """Arrays side by side: along the second axis, or the only one."""
    tensors = [as_tensor(a) for a in arrays]
    return concat(tensors, axis=0 if tensors[0].ndim == 1 else 1)


def vstack(arrays: Sequence[Any]) -> Tensor:
    """Arrays (or rows) on top of each other."""
    tensors = [as_tensor(a) for a in arrays]
    return concat([t.unsqueeze(0) if t.ndim == 1 else t for t in tensors], axis=0)


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: float = 0) -> Tensor:
    """More elements at both ends of every axis: of one value, or what "edge", "reflect" and "wrap" say."""
    t = as_tensor(x)
    names = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}
    if mode not in names:
        raise OperatorError(f"numpy.pad with mode {mode!r} is not supported ({here()}); it may be {', '.join(names)}")
    widths = np.broadcast_to(np.asarray(pad_width), (t.ndim, 2))
    value = as_tensor(np.asarray(constant_values, t.dtype)) if mode == "constant" else None
    return apply1("Pad", t, constant_ints([*widths[:, 0].tolist(), *widths[:, 1].tolist()]), value, mode=names[mode])


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The Euclidean norm (numpy.linalg.norm), or with ``ord=1`` the sum of magnitudes."""
    t = as_tensor(x)
    if ord not in (None, 1, 2) or (ord is not None and axis is None and t.ndim != 1):
        raise OperatorError(f"numpy.linalg.norm with ord={ord!r} and axis={axis!r} is not supported ({here()})")
    return abs(t).sum(axis, keepdims) if ord == 1 else apply1("Sqrt", (t * t).sum(axis, keepdims))


def exp2(x: Any) -> Tensor:
    """2 to the power x."""
    return 2.0 ** as_tensor(x)


def shape(x: Any) -> tuple[Any, ...]:
    """The shape."""
    return as_tensor(x).shape


def ndim(x: Any) -> int:
    """The number of dimensions."""
    return as_tensor(x).ndim


ALL = {
    f.__name__: f for f in (dot, outer, einsum, swapaxes, ravel, split, hstack, vstack, pad, norm, exp2, shape, ndim)
}
