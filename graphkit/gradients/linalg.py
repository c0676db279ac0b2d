"""Det."""

from __future__ import annotations

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.shapes import constant, ones_like, rank_of
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@gradient("Det", mixes=True)
def det(r: Record, g: Tensor) -> Tensor:
    """The matrix of cofactors, each the determinant of a minor: right for singular matrices too, and to any order."""
    x = r.inputs[0]
    rank = rank_of(r, x)
    assert x is not None and x.dims is not None
    sizes = [d for d in x.dims[-2:] if isinstance(d, int)]
    if not sizes:
        raise GradientError(f"the gradient of {r.describe()} needs the size of its matrices, which is unknown")
    n = sizes[0]
    outer = apply1("Unsqueeze", g, constant_ints([-2, -1]))
    if n == 1:
        return apply1("Mul", outer, ones_like(x))
    rest = constant([[k for k in range(n) if k != i] for i in range(n)], dtypes.INT64)
    minors = apply1("Gather", apply1("Gather", x, rest, axis=rank - 2), rest, axis=rank)  # [..., i, n-1, j, n-1]
    leading = list(range(rank - 2))
    minors = apply1("Transpose", minors, perm=[*leading, rank - 2, rank, rank - 1, rank + 1])
    signs = constant([[(-1) ** (i + j) for j in range(n)] for i in range(n)], x.dtype)
    return apply1("Mul", outer, apply1("Mul", apply1("Det", minors), signs))
