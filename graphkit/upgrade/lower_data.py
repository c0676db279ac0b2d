"""Downward: Reshape with zeros, triangles, ranges, constants of a shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit import dims, dtypes
from graphkit.upgrade.adapters import only_input
from graphkit.upgrade.lower_table import Cannot, Lowering, lowers, optional_input


@lowers(14, "Reshape")
def reshape_zeros(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """``allowzero``: a zero is a dim of zero, where an older Reshape copies the input's dim at that place."""
    allowed = node.attributes.get_int("allowzero", 0)
    node.attributes.pop("allowzero", None)
    if not allowed or _zeros_mean_the_same(node, lowering):
        return node
    x, target = only_input(node), only_input(node, 1)
    if not _never_negative(target, lowering):
        raise Cannot("its allowzero does not exist there, and its shape is computed by the graph")
    # Where the tensor is empty, one of the right shape is made of ones, then everything is cut off again.
    at_least_one = lowering.apply1("Max", [target, lowering.constant([1])])
    flat = lowering.apply1("Reshape", [x, lowering.constant([-1])])
    missing = lowering.apply1(
        "Sub", [lowering.apply1("ReduceProd", [at_least_one], keepdims=1), lowering.apply1("Shape", [flat])]
    )
    if lowering.dtype(x) == dtypes.STRING:
        raise Cannot("its allowzero does not exist there, and its shape is computed by the graph")
    filler = lowering.apply1("Expand", [lowering.scalar_like(0, x), missing])
    filled = lowering.apply1("Reshape", [lowering.apply1("Concat", [flat, filler], axis=0), at_least_one])
    known = lowering.dims(target)
    if known is not None and isinstance(known[0], int):
        starts = lowering.constant([0] * known[0])
    else:
        shape = lowering.apply1("Shape", [target])
        starts = lowering.apply1("ConstantOfShape", [shape], value=np.zeros(1, np.int64))
    lowering.replace([lowering.apply1("Slice", [filled, starts, target])])
    return None


_FROM_FIRST = frozenset("Gather Slice Squeeze Unsqueeze Identity Cast Reshape Expand ReduceProd ReduceSum".split())
_FROM_ALL = frozenset("Concat Mul Add Max Min Div".split())


def _never_negative(value: ir.Value, lowering: Lowering, depth: int = 12) -> bool:
    """Whether integers are dims, or made of dims, so that no -1 is among them."""
    array = lowering.array(value)
    if array is not None:
        return bool((array >= 0).all())
    node = value.producer()
    if node is None or not depth or node.domain != "":
        return False
    if node.op_type in ("Shape", "Size"):
        return True
    given = node.inputs[:1] if node.op_type in _FROM_FIRST else node.inputs if node.op_type in _FROM_ALL else ()
    return bool(given) and all(one is not None and _never_negative(one, lowering, depth - 1) for one in given)


def _zeros_mean_the_same(node: ir.Node, lowering: Lowering) -> bool:
    """Whether no dim of the target is ever a zero that an older Reshape would fill in from the input."""
    target = only_input(node, 1)
    array = lowering.array(target)
    contents = tuple(array.tolist()) if array is not None else None
    if contents is None and target in lowering.types:
        found = lowering.types[target].contents
        contents = found if isinstance(found, tuple) else None
    if contents is None:
        return False
    known = lowering.dims(only_input(node)) or ()
    for axis, extent in enumerate(contents):
        if isinstance(extent, int) and extent != 0:
            continue
        if axis >= len(known) or not dims.same(known[axis], extent):
            return False
    return True


@lowers(14, "Trilu")
def trilu(node: ir.Node, lowering: Lowering) -> None:
    """A choice by row and column numbers."""
    x = only_input(node)
    known = lowering.dims(x)
    upper = node.attributes.get_int("upper", 1)
    offset = optional_input(node, 1)
    moved = None if offset is None else lowering.array(offset)
    rows, columns = (None, None) if known is None else known[-2:]
    mask: ir.Value
    if isinstance(rows, int) and isinstance(columns, int) and (offset is None or moved is not None):
        diagonal = 0 if moved is None else int(moved.item())
        ones = np.ones((rows, columns), bool)
        mask = lowering.constant(np.triu(ones, diagonal) if upper else np.tril(ones, diagonal), np.bool_)
    else:
        if offset is None:
            offset = lowering.constant(0)
        numbers = [_numbers(x, axis, lowering) for axis in (-2, -1)]
        row = lowering.apply1("Add", [lowering.apply1("Unsqueeze", [numbers[0], lowering.constant([1])]), offset])
        column = lowering.apply1("Unsqueeze", [numbers[1], lowering.constant([0])])
        outside = lowering.apply1("Less", [column, row] if upper else [row, column])
        mask = lowering.apply1("Not", [outside])
    lowering.replace([lowering.apply1("Where", [mask, x, lowering.scalar_like(0, x)])])


def _numbers(x: ir.Value, axis: int, lowering: Lowering) -> ir.Value:
    shape = lowering.apply1("Shape", [x])
    length = lowering.apply1("Gather", [shape, lowering.constant(axis + lowering.rank(x))], axis=0)
    return lowering.apply1("Range", [lowering.constant(0), length, lowering.constant(1)])


@lowers(11, "Range")
def range_of_constants(node: ir.Node, lowering: Lowering) -> None:
    found = [lowering.array(only_input(node, index)) for index in range(3)]
    if any(array is None for array in found):
        raise Cannot("it does not exist there")
    start, limit, delta = (array.item() for array in found if array is not None)
    lowering.replace([lowering.constant(np.arange(start, limit, delta), lowering.dtype(only_input(node)))])


@lowers(9, "ConstantOfShape")
def constant_of_shape(node: ir.Node, lowering: Lowering) -> None:
    attribute = node.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
    shape = lowering.array(only_input(node))
    if shape is not None:
        lowering.replace([lowering.constant(np.full(shape.tolist(), value.item(), value.dtype), value.dtype)])
    else:
        lowering.replace([lowering.apply1("Expand", [lowering.constant(value, value.dtype), only_input(node)])])


@lowers(9, "EyeLike")
def eye_like(node: ir.Node, lowering: Lowering) -> None:
    rows, columns = lowering.static_dims(only_input(node))
    dtype = lowering.dtype(node.outputs[0])
    lowering.replace([lowering.constant(np.eye(rows, columns, node.attributes.get_int("k", 0)), dtype)])


@lowers(8, "Expand")
def expand_by_tile(node: ir.Node, lowering: Lowering) -> None:
    """Every axis of known extents is repeated or left alone."""
    x = only_input(node)
    given = lowering.static_dims(x)
    shape = lowering.ints(node, 1, "dims") or []
    rank = max(len(given), len(shape))
    padded = [1] * (rank - len(given)) + list(given)
    wanted = [1] * (rank - len(shape)) + shape
    aligned = lowering.apply1("Reshape", [x, lowering.constant(padded)]) if rank > len(given) else x
    repeats = [to if of == 1 else 1 for of, to in zip(padded, wanted, strict=True)]
    lowering.replace([lowering.apply1("Tile", [aligned, lowering.constant(repeats)])])
