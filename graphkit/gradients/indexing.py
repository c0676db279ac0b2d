"""Gather, Scatter, TopK and their relatives."""

from __future__ import annotations

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.shapes import constant, shape_tensor, zeros_like
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

ONE_HOT_LIMIT = 1024


@gradient("Gather", selects=True)
def gather(r: Record, g: Tensor) -> Entries:
    """Every read of a row adds to it.

    ScatterND(add) loses updates when two threads meet at a row, so rows are added up by a product with the one-hot
    matrix of the indices while there are few of them, and by ScatterElements(add) beyond.
    """
    x, indices = r.inputs
    assert x is not None and indices is not None and x.rank is not None
    axis = int(r.attribute("axis", 0)) % x.rank
    return (_add_rows(x, indices, g, axis),)


def _add_rows(x: Tensor, indices: Tensor, g: Tensor, axis: int) -> Tensor:
    assert x.rank is not None and x.dims is not None
    rows = x.dims[axis]
    if axis == 0 and isinstance(rows, int) and 0 < rows <= ONE_HOT_LIMIT and x.rank <= 2:
        flat = apply1("Reshape", indices, constant_ints([-1]))
        picked = _one_hot_transposed(flat, rows, g)
        if x.rank == 1:
            return apply1("MatMul", picked, apply1("Reshape", g, constant_ints([-1])))
        width = shape_tensor(x)
        wide = apply1("Reshape", g, _rows_by(width, x))
        return apply1("MatMul", picked, wide)
    return _scatter_rows(x, indices, g, axis)


def _rows_by(width: Tensor, x: Tensor) -> Tensor:
    assert x.dims is not None
    if isinstance(x.dims[1], int) and x.dims[1] > 0:
        return constant_ints([-1, x.dims[1]])
    return apply1("Concat", constant_ints([-1]), apply1("Shape", x, start=1), axis=0)


def _one_hot_transposed(flat: Tensor, rows: int, g: Tensor) -> Tensor:
    """[rows, n]: 1 where index n reads the row."""
    wrapped = apply1("Where", apply1("Less", flat, constant(0, flat.dtype)),
                     apply1("Add", flat, constant(rows, flat.dtype)), flat)  # fmt: skip
    places = constant([[i] for i in range(rows)], flat.dtype)
    return apply1("Equal", places, apply1("Unsqueeze", wrapped, constant_ints([0]))).astype(g.dtype)


def _scatter_rows(x: Tensor, indices: Tensor, g: Tensor, axis: int) -> Tensor:
    assert x.rank is not None
    # g: [before, index dims, after]; as ScatterElements wants it: [before, n, after], the indices alike
    before = apply1("Shape", x, start=0, end=axis)
    after = apply1("Shape", x, start=axis + 1)
    n = apply1("Unsqueeze", apply1("Size", indices), constant_ints([0]))
    shape = apply1("Concat", before, n, after, axis=0) if x.rank > 1 else n
    updates = apply1("Reshape", g, shape, allowzero=1)
    column = apply1("Reshape", indices, constant_ints([1] * axis + [-1] + [1] * (x.rank - 1 - axis)))
    return scatter_add(zeros_like(x), apply1("Expand", column, shape), updates, axis)


def scatter_add(data: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """ScatterElements(add); half precision is added up in float32, since its kernel fails at run time."""
    if data.dtype in (dtypes.FLOAT16, dtypes.BFLOAT16):
        wide = apply1("ScatterElements", data.astype("float32"), indices, updates.astype("float32"), axis=axis,
                      reduction="add")  # fmt: skip
        return wide.astype(data.dtype)
    return apply1("ScatterElements", data, indices, updates, axis=axis, reduction="add")


@gradient("GatherElements", selects=True)
def gather_elements(r: Record, g: Tensor) -> Entries:
    x, indices = r.inputs
    assert x is not None and indices is not None
    return (scatter_add(zeros_like(x), indices, g, int(r.attribute("axis", 0))),)


@gradient("TopK", selects=True)
def top_k(r: Record, g: Tensor | None, *_: Tensor | None) -> Entries:
    """The picked places are distinct, so nothing needs adding up."""
    x = r.inputs[0]
    assert x is not None and g is not None
    axis = int(r.attribute("axis", -1))
    return (apply1("ScatterElements", zeros_like(x), r.outputs[1], g, axis=axis),)
