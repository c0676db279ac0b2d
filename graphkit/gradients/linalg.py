"""Det."""

from __future__ import annotations

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
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
    outer = apply1("Unsqueeze", g, constant_ints([-2, -1]))
    if not sizes:
        return apply1("Mul", outer, _cofactors(x))
    n = sizes[0]
    if n == 1:
        return apply1("Mul", outer, ones_like(x))
    rest = constant([[k for k in range(n) if k != i] for i in range(n)], dtypes.INT64)
    minors = apply1("Gather", apply1("Gather", x, rest, axis=rank - 2), rest, axis=rank)  # [..., i, n-1, j, n-1]
    leading = list(range(rank - 2))
    minors = apply1("Transpose", minors, perm=[*leading, rank - 2, rank, rank - 1, rank + 1])
    signs = constant([[(-1) ** (i + j) for j in range(n)] for i in range(n)], x.dtype)
    return apply1("Mul", outer, apply1("Mul", apply1("Det", minors), signs))


def _cofactors(x: Tensor) -> Tensor:
    """Of matrices whose size only the run knows: the determinants of x with row i made the j-th of the identity's."""
    size = apply1("Shape", x, start=-1)
    square = apply1("Concat", size, size, axis=0)
    identity = apply1("EyeLike", apply1("ConstantOfShape", square, value=np.zeros(1, x.dtype)))
    rows = apply1("Unsqueeze", identity, constant_ints([1, 3]))  # [i, 1, row, 1]
    units = apply1("Unsqueeze", identity, constant_ints([0, 2]))  # [1, j, 1, column]
    each = apply1("Unsqueeze", x, constant_ints([-4, -3]))
    return apply1("Det", apply1("Where", rows.astype(dtypes.BOOL), units, each))
