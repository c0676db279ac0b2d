"""Products of all factors but one, without a division: right where factors are 0, and to any order of derivative."""

from __future__ import annotations

import numpy as np

from graphkit import dtypes
from graphkit.core import Tensor
from graphkit.gradients.elementwise import number
from graphkit.gradients.shapes import constant
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

FEW_FACTORS = 16


def products_of_others(x: Tensor, axes: list[int]) -> Tensor | None:
    """For every element the product of all the others along ``axes``; None where their extents are not known."""
    if x.dims is None or x.rank is None:
        return None
    extents = [x.dims[a] for a in axes]
    numbers = [e for e in extents if isinstance(e, int)]
    if len(numbers) < len(axes) or 0 in numbers:
        return None
    if len(axes) == 1:
        return _along(x, axes[0], numbers[0])
    kept = [a for a in range(x.rank) if a not in axes]
    order = [*kept, *axes]
    # Reshape's 0 copies the extent at its place, so the kept dims need not be known
    count = int(np.prod(numbers))
    last = apply1("Reshape", apply1("Transpose", x, perm=order), constant_ints([0] * len(kept) + [count]))
    others = _along(last, len(kept), count)
    back = apply1("Reshape", others, constant_ints([0] * len(kept) + numbers))
    return apply1("Transpose", back, perm=[order.index(a) for a in range(x.rank)])


def _along(x: Tensor, axis: int, extent: int) -> Tensor:
    assert x.rank is not None
    if extent <= FEW_FACTORS:
        # Row i of a table of the factors has 1 in place of factor i.
        own = np.eye(extent, dtype=bool).reshape([extent, extent] + [1] * (x.rank - 1 - axis))
        table = apply1("Where", constant(own, dtypes.BOOL), number(1, x), apply1("Unsqueeze", x, constant_ints([axis])))
        return apply1("ReduceProd", table, constant_ints([axis + 1]), keepdims=0)
    before = running_product(x, axis, extent, exclusive=True, reverse=False)
    return apply1("Mul", before, running_product(x, axis, extent, exclusive=True, reverse=True))


def running_product(x: Tensor, axis: int, extent: int, *, exclusive: bool, reverse: bool) -> Tensor:
    """CumProd as shifted products, each reaching twice as far as the one before (Hillis and Steele, 1986)."""
    product = _shift(x, axis, -1 if reverse else 1) if exclusive else x
    reach = 1
    while reach < extent:
        product = apply1("Mul", product, _shift(product, axis, -reach if reverse else reach))
        reach *= 2
    return product


def _shift(x: Tensor, axis: int, by: int) -> Tensor:
    """Elements moved along an axis, ones where nothing moved in: a Pad by as much as it cuts off behind."""
    assert x.rank is not None
    pads = [0] * (2 * x.rank)
    pads[axis], pads[x.rank + axis] = by, -by
    return apply1("Pad", x, constant_ints(pads), number(1, x))
