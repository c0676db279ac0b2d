"""Linear algebra functions of the Array API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.array.elementwise import pair
from graphkit.core import Tensor, as_tensor
from graphkit.interpreter import apply1
from graphkit.methods import binary


def matmul(a: Any, b: Any, /) -> Tensor:
    """Matrix product over the last two dimensions."""
    return binary("MatMul", *pair(a, b))


def matrix_transpose(x: Any, /) -> Tensor:
    """The last two dimensions exchanged."""
    return as_tensor(x).mT


def vecdot(a: Any, b: Any, /, *, axis: int = -1) -> Tensor:
    """Sum of products along one axis."""
    left, right = pair(a, b)
    return (left * right).sum(axis=axis)


def tensordot(a: Any, b: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Sum of products over several axes of both."""
    left, right = pair(a, b)
    if isinstance(axes, int):
        over_left, over_right = list(range(left.ndim - axes, left.ndim)), list(range(axes))
    else:
        over_left, over_right = [x % left.ndim for x in axes[0]], [x % right.ndim for x in axes[1]]
    letters = "abcdefghijklmnopqrstuvwxyz"
    first = letters[: left.ndim]
    rest = iter(letters[left.ndim :])
    second = "".join(
        first[over_left[over_right.index(n)]] if n in over_right else next(rest) for n in range(right.ndim)
    )
    result = "".join(c for n, c in enumerate(first) if n not in over_left) + "".join(
        c for n, c in enumerate(second) if n not in over_right
    )
    return apply1("Einsum", left, right, equation=f"{first},{second}->{result}")
