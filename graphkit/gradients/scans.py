"""CumProd. (CumSum is among the operators that only move and add elements, in ``shaping``.)"""

from __future__ import annotations

from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries, as_mask, number
from graphkit.gradients.products import running_product
from graphkit.gradients.shapes import compare, static_ints
from graphkit.gradients.table import gradient, vjp
from graphkit.interpreter import apply1


@gradient("CumProd", mixes=True)
def cum_prod(r: Record, g: Tensor) -> Entries:
    """sum(g y) over the products that an element is part of, over the element; also where one is 0.

    Behind a zero every product is 0, so nothing but the first zero itself has a slope there: its own is the products
    as they would be with a 1 in its place.
    """
    x, axis = r.inputs
    (y,) = r.outputs
    assert x is not None
    exclusive, reverse = int(r.attribute("exclusive", 0)), int(r.attribute("reverse", 0))
    place = static_ints(axis)
    if place is not None and x.rank is not None and x.dims is not None:
        along = place[0] % x.rank
        extent = x.dims[along]
        if isinstance(extent, int):
            _, pull = vjp(
                lambda t: running_product(t, along, extent, exclusive=bool(exclusive), reverse=bool(reverse)), x
            )
            return (pull(g)[0],)
    # An extent that only the run knows; from here the second derivative is not right at zeros.

    def sums(t: Tensor) -> Tensor:
        return apply1("CumSum", t, axis, exclusive=exclusive, reverse=1 - reverse)

    zero = as_mask(compare("Equal", x, number(0, x)), x)
    earlier = apply1("CumSum", zero, axis, exclusive=1, reverse=reverse)
    first = apply1("Mul", zero, as_mask(compare("Equal", earlier, number(0, x)), x))
    filled = apply1("CumProd", apply1("Add", x, first), axis, exclusive=exclusive, reverse=reverse)
    plain = apply1("Div", sums(apply1("Mul", g, y)), apply1("Add", x, zero))
    at_first = apply1("Mul", sums(apply1("Mul", g, filled)), first)
    return (apply1("Add", apply1("Mul", plain, apply1("Sub", number(1, x), zero)), at_first),)
