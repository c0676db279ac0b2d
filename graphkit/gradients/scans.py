"""CumProd. (CumSum is among the operators that only move and add elements, in ``shaping``.)"""

from __future__ import annotations

from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.products import running_product
from graphkit.gradients.shapes import static_ints
from graphkit.gradients.table import gradient, vjp


@gradient("CumProd", mixes=True)
def cum_prod(r: Record, g: Tensor) -> Entries:
    """The reverse pass over the products as they are made, since y / x is not to be had where a factor is 0."""
    x, axis = r.inputs
    assert x is not None and axis is not None
    exclusive, reverse = bool(r.attribute("exclusive", 0)), bool(r.attribute("reverse", 0))
    place = static_ints(axis)
    along: int | Tensor = axis
    extent = None
    if place is not None and x.rank is not None and x.dims is not None:
        along = place[0] % x.rank
        extent = x.dims[along]
    known = extent if isinstance(extent, int) else None
    _, pull = vjp(lambda t: running_product(t, along, known, exclusive=exclusive, reverse=reverse), x)
    return (pull(g)[0],)
