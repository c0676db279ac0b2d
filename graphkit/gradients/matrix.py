"""Matrix products."""

from __future__ import annotations

from graphkit.core import Record, Tensor
from graphkit.dims import is_static
from graphkit.gradients.elementwise import Entries, number
from graphkit.gradients.shapes import rank_of, reshape_to, sum_to
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


def transpose_last(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    rank = x.rank
    assert rank is not None and rank >= 2
    return apply1("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


@gradient("MatMul", mixes=True)
def matmul(r: Record, g: Tensor) -> Entries:
    a, b = r.inputs
    assert a is not None and b is not None
    if b.rank is None or (a.rank is None and b.rank != 2):
        rank_of(r, b)
        rank_of(r, a)
    return lambda: _left(a, b, g), lambda: _right(a, b, g)


def _left(a: Tensor, b: Tensor, g: Tensor) -> Tensor:
    """g b^T"""
    if b.rank == 1:
        if a.rank == 1:
            return apply1("Mul", g, b)
        return apply1("Mul", apply1("Unsqueeze", g, constant_ints([-1])), b)
    if a.rank == 1:
        row = apply1("Unsqueeze", g, constant_ints([-2]))
        return apply1("Squeeze", sum_leading(apply1("MatMul", row, transpose_last(b)), 2), constant_ints([0]))
    if b.rank == 2 and a.rank == 2:
        return apply1("Gemm", g, b, transB=1)  # transB is free
    return apply1("MatMul", g, transpose_last(b))


def _right(a: Tensor, b: Tensor, g: Tensor) -> Tensor:
    """a^T g"""
    if a.rank == 1:
        if b.rank == 1:
            return apply1("Mul", g, a)
        return apply1("Mul", apply1("Unsqueeze", a, constant_ints([-1])), apply1("Unsqueeze", g, constant_ints([-2])))
    if b.rank == 1:
        column = apply1("Unsqueeze", g, constant_ints([-1]))
        product = apply1("MatMul", transpose_last(a), column)
        return apply1("Squeeze", sum_leading(product, 2), constant_ints([-1]))
    if b.rank == 2:
        # one matrix product over all leading axes at once, instead of a batch of products and a sum over it
        left, right = flat_rows(a), flat_rows(g)
        return apply1("Gemm", left, right, transA=1)
    return apply1("MatMul", transpose_last(a), g)


def flat_rows(x: Tensor) -> Tensor:
    """All axes but the last as one: [rows, last]."""
    if x.rank == 2:
        return x
    last = x.dims[-1] if x.dims is not None else None
    if isinstance(last, int) and last > 0:
        return apply1("Reshape", x, constant_ints([-1, last]))
    if is_static(x.dims):
        return reshape_static(x)
    last_axis = apply1("Shape", x, start=-1)
    return apply1("Reshape", x, apply1("Concat", constant_ints([-1]), last_axis, axis=0))


def reshape_static(x: Tensor) -> Tensor:
    """[rows, last] for static dims, one of which may be 0."""
    assert x.dims is not None
    rows = 1
    for extent in x.dims[:-1]:
        assert isinstance(extent, int)
        rows *= extent
    assert isinstance(x.dims[-1], int)
    return apply1("Reshape", x, constant_ints([rows, x.dims[-1]]), allowzero=1)


def sum_leading(x: Tensor, keep: int) -> Tensor:
    """The sum over all axes but the last ``keep``."""
    rank = x.rank
    assert rank is not None
    if rank == keep:
        return x
    return apply1("ReduceSum", x, constant_ints(list(range(rank - keep))), keepdims=0)


@gradient("Gemm", mixes=True)
def gemm(r: Record, g: Tensor) -> Entries:
    """y = alpha op(a) op(b) + beta c"""
    a, b = r.inputs[0], r.inputs[1]
    c = r.input(2)
    alpha, beta = float(r.attribute("alpha", 1.0)), float(r.attribute("beta", 1.0))
    transposed_a, transposed_b = bool(r.attribute("transA", 0)), bool(r.attribute("transB", 0))

    def product(x: Tensor | None, y: Tensor | None, trans_x: bool, trans_y: bool) -> Tensor:
        attributes = {}
        if alpha != 1:
            attributes["alpha"] = alpha
        return apply1("Gemm", x, y, **attributes, **({"transA": 1} if trans_x else {}),
                      **({"transB": 1} if trans_y else {}))  # fmt: skip

    def to_a() -> Tensor:
        return product(b, g, transposed_b, True) if transposed_a else product(g, b, False, not transposed_b)

    def to_b() -> Tensor:
        return product(g, a, True, transposed_a) if transposed_b else product(a, g, not transposed_a, False)

    def to_c() -> Tensor:
        assert c is not None
        summed = sum_to(g, c)
        return summed if beta == 1 else apply1("Mul", summed, number(beta, g))

    return (to_a, to_b, to_c) if c is not None else (to_a, to_b)


__all__ = ["flat_rows", "reshape_to", "sum_leading", "transpose_last"]
