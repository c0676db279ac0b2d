"""How shapes and integer contents pass through operators that move, build or contract data."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.facts import Fact, Facts, broadcast, fact_of, infers
from graphkit.optimizers.infer_elementwise import axes_of
from graphkit.optimizers.symbolic import (
    Dim,
    Symbol,
    add,
    derived,
    divide,
    fresh,
    multiply,
    negate,
    never_negative,
    product,
    unknown_number,
)

_INT64: Final = ir.DataType.INT64
_LARGE: Final = 2**31 - 1
_MAX_CONTENT: Final = 64


def as_dim(value: Dim) -> Dim:
    """A content element where it becomes a dimension: what is unknown is at least not negative there."""
    return value if not isinstance(value, Symbol) or never_negative(value) else fresh()


@infers("Constant")
def constant(facts: Facts, node: ir.Node) -> list[Fact]:
    tensor = facts.tensor(node.outputs[0])
    return [fact_of(tensor) if tensor is not None else Fact()]


@infers("Shape")
def shape_of(facts: Facts, node: ir.Node) -> list[Fact]:
    shape = facts(node.inputs[0]).shape
    if shape is None:
        return [Fact(_INT64, (fresh(),))]
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", len(shape))
    part = shape[slice(start, end)]
    return [Fact(_INT64, (len(part),), part)]


@infers("Size")
def size(facts: Facts, node: ir.Node) -> list[Fact]:
    shape = facts(node.inputs[0]).shape
    return [Fact(_INT64, (), None if shape is None else (product(shape),))]


@infers("Gather")
def gather(facts: Facts, node: ir.Node) -> list[Fact]:
    data, indices = facts(node.inputs[0]), facts(node.inputs[1])
    if data.shape is None or indices.shape is None or not data.shape:
        return [Fact(data.dtype)]
    axis = node.attributes.get_int("axis", 0) % len(data.shape)
    shape = data.shape[:axis] + indices.shape + data.shape[axis + 1 :]
    content = None
    wanted = facts.ints(node.inputs[1])
    if data.content is not None and wanted is not None and len(data.shape) == 1 and len(shape) <= 1:
        length = len(data.content)
        if all(-length <= index < length for index in wanted):
            content = tuple(data.content[index] for index in wanted)
    return [Fact(data.dtype, shape, content)]


@infers("Concat")
def concat(facts: Facts, node: ir.Node) -> list[Fact]:
    parts = [facts(value) for value in node.inputs]
    dtype = parts[0].dtype
    shapes = [part.shape for part in parts if part.shape is not None]
    if len(shapes) < len(parts) or not shapes[0]:
        return [Fact(dtype)]
    rank = len(shapes[0])
    axis = node.attributes.get_int("axis", 0) % rank
    dims: list[Dim] = []
    for position in range(rank):
        column = [shape[position] for shape in shapes if len(shape) == rank]
        if position == axis:
            total: Dim = 0
            for dim in column:
                total = add(total, dim)
            dims.append(total)
        else:
            dims.append(next((dim for dim in column if isinstance(dim, int)), column[0]))
    content: tuple[Dim, ...] | None = None
    if rank == 1 and all(part.content is not None for part in parts):
        content = tuple(item for part in parts for item in part.content or ())
        content = content if len(content) <= _MAX_CONTENT else None
    return [Fact(dtype, tuple(dims), content)]


@infers("Slice")
def slice_(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if first.shape is None:
        return [Fact(first.dtype)]
    rank = len(first.shape)
    bounds = slice_bounds(facts, node, rank)
    if bounds is None:
        return [Fact(first.dtype, tuple(fresh() for _ in range(rank)))]
    starts, ends, axes, steps = bounds
    dims = list(first.shape)
    content = first.content
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dims[axis] = _sliced(dims[axis], start, end, step)
        if content is not None and isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
            content = content[slice(start, None if step < 0 and end < -len(content) else end, step)]
        else:
            content = None
    return [Fact(first.dtype, tuple(dims), content if rank == 1 else None)]


def slice_bounds(facts: Facts, node: ir.Node, rank: int) -> tuple[list[Dim], list[Dim], list[int], list[Dim]] | None:
    """The starts, ends, axes and steps of a Slice of any opset; None where the axes are not known."""
    if "starts" in node.attributes:
        starts: list[Dim] = list(node.attributes.get_ints("starts", ()))
        ends: list[Dim] = list(node.attributes.get_ints("ends", ()))
        axes = list(node.attributes.get_ints("axes", tuple(range(len(starts)))))
        steps: list[Dim] = [1] * len(starts)
    else:
        inputs = [*node.inputs[1:], None, None]
        first, last = facts(inputs[0]), facts(inputs[1])
        count = len(first.content or last.content or ())
        starts = list(first.content or [unknown_number()] * count)
        ends = list(last.content or [unknown_number()] * count)
        known_axes = facts.ints(inputs[2]) if inputs[2] is not None else tuple(range(count))
        known_steps = facts(inputs[3]).content if inputs[3] is not None else (1,) * count
        if not count or known_axes is None or known_steps is None:
            return None
        axes, steps = list(known_axes), list(known_steps)
    if not len(starts) == len(ends) == len(axes) == len(steps) or any(not -rank <= axis < rank for axis in axes):
        return None
    return starts, ends, [axis % rank for axis in axes], steps


def _sliced(dim: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int) and step:
        low, high, by = slice(start, None if step < 0 and end < -dim else end, step).indices(dim)
        return len(range(low, high, by))
    if step == 1 and start == 0 and (end == dim or (isinstance(end, int) and end >= _LARGE)):
        return dim
    if step == 1 and start == 0 and never_negative(end) and never_negative(add(dim, negate(end))):
        return end  # the axis is known to be at least as long
    # Whatever it is, the same cut of the same length gives the same length.
    return derived(f"slice({dim!r}, {start!r}, {end!r}, {step!r})")


@infers("Reshape")
def reshape(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    target = facts(node.inputs[1])
    if target.content is None:
        rank = target.shape[0] if target.shape else None
        return [Fact(first.dtype, tuple(fresh() for _ in range(rank)) if isinstance(rank, int) else None)]
    allow_zero = node.attributes.get_int("allowzero", 0)
    dims: list[Dim] = []
    for index, item in enumerate(target.content):
        if item == 0 and not allow_zero:
            known = first.shape is not None and index < len(first.shape)
            dims.append(first.shape[index] if first.shape is not None and known else fresh())
        else:
            dims.append(item if item == -1 else as_dim(item))
    if -1 in dims:
        place = dims.index(-1)
        rest = [dim for index, dim in enumerate(dims) if index != place]
        dims[place] = _remaining(first.shape, rest)
    content = first.content if len(dims) <= 1 else None
    return [Fact(first.dtype, tuple(dims), content)]


def _remaining(shape: tuple[Dim, ...] | None, rest: list[Dim]) -> Dim:
    if shape is None:
        return fresh()
    # Cancel equal dims first, so that unknown ones on both sides do not stand in the way.
    left = list(shape)
    divisors = []
    for dim in rest:
        if dim in left and dim != 0:
            left.remove(dim)
        else:
            divisors.append(dim)
    found = divide(product(left), product(divisors))
    return fresh() if found is None else as_dim(found)


@infers("Flatten")
def flatten(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if first.shape is None:
        return [Fact(first.dtype, (fresh(), fresh()))]
    axis = node.attributes.get_int("axis", 1)
    axis = axis + len(first.shape) if axis < 0 else axis
    return [Fact(first.dtype, (product(first.shape[:axis]), product(first.shape[axis:])))]


@infers("Unsqueeze")
def unsqueeze(facts: Facts, node: ir.Node) -> list[Fact]:
    first, axes = facts(node.inputs[0]), axes_of(facts, node)
    if first.shape is None or not isinstance(axes, tuple):
        return [Fact(first.dtype)]
    rank = len(first.shape) + len(axes)
    places = {axis % rank for axis in axes}
    rest = iter(first.shape)
    dims = tuple(1 if index in places else next(rest) for index in range(rank)) if len(places) == len(axes) else None
    return [Fact(first.dtype, dims, first.content if rank <= 1 else None)]


@infers("Squeeze")
def squeeze(facts: Facts, node: ir.Node) -> list[Fact]:
    first, axes = facts(node.inputs[0]), axes_of(facts, node)
    if first.shape is None or isinstance(axes, str):
        return [Fact(first.dtype)]
    rank = len(first.shape)
    if axes is None:
        if any(not isinstance(dim, int) for dim in first.shape):
            return [Fact(first.dtype)]
        dims = tuple(dim for dim in first.shape if dim != 1)
    else:
        gone = {axis % rank for axis in axes} if rank else set()
        dims = tuple(dim for index, dim in enumerate(first.shape) if index not in gone)
    return [Fact(first.dtype, dims, first.content if len(dims) <= 1 else None)]


@infers("Transpose")
def transpose(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if first.shape is None:
        return [Fact(first.dtype)]
    order = node.attributes.get_ints("perm", tuple(reversed(range(len(first.shape)))))
    if len(order) != len(first.shape):
        return [Fact(first.dtype)]
    return [Fact(first.dtype, tuple(first.shape[axis] for axis in order), first.content)]


@infers("Expand")
def expand(facts: Facts, node: ir.Node) -> list[Fact]:
    first, target = facts(node.inputs[0]), facts(node.inputs[1])
    if target.content is None:
        return [Fact(first.dtype)]
    shape = broadcast(first.shape, tuple(as_dim(item) for item in target.content))
    content = None
    if first.content is not None and shape is not None and len(shape) <= 1:
        length = shape[0] if shape else 1
        if isinstance(length, int) and length <= _MAX_CONTENT and len(first.content) in (1, length):
            content = first.content if len(first.content) == length else first.content * length
    return [Fact(first.dtype, shape, content)]


@infers("Tile")
def tile(facts: Facts, node: ir.Node) -> list[Fact]:
    first, repeats = facts(node.inputs[0]), facts(node.inputs[1]).content
    if first.shape is None or repeats is None or len(repeats) != len(first.shape):
        return [Fact(first.dtype, None if first.shape is None else tuple(fresh() for _ in first.shape))]
    return [Fact(first.dtype, tuple(as_dim(multiply(a, b)) for a, b in zip(first.shape, repeats, strict=True)))]


@infers("ConstantOfShape")
def constant_of_shape(facts: Facts, node: ir.Node) -> list[Fact]:
    value = node.attributes.get_tensor("value", None)
    dtype = ir.DataType.FLOAT if value is None else value.dtype
    wanted = facts(node.inputs[0])
    if wanted.content is None:
        rank = wanted.shape[0] if wanted.shape else None
        return [Fact(dtype, tuple(fresh() for _ in range(rank)) if isinstance(rank, int) else None)]
    shape = tuple(as_dim(item) for item in wanted.content)
    content = None
    length = shape[0] if len(shape) == 1 else 1
    if len(shape) <= 1 and dtype in (_INT64, ir.DataType.INT32, ir.DataType.BOOL) and isinstance(length, int):
        item = 0 if value is None else int(np.asarray(value.numpy()).reshape(-1)[0])
        content = (item,) * length if length <= _MAX_CONTENT else None
    return [Fact(dtype, shape, content)]


@infers("Range")
def range_(facts: Facts, node: ir.Node) -> list[Fact]:
    dtype = facts(node.inputs[0]).dtype
    bounds = [facts(value).content for value in node.inputs]
    start, limit, delta = (bound[0] if bound else None for bound in bounds)
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int) and delta:
        items = range(start, limit, delta)
        content = tuple(items) if len(items) <= _MAX_CONTENT else None
        return [Fact(dtype, (len(items),), content)]
    length = _whole_steps(facts, node)
    if length is not None:
        return [Fact(dtype, (length,))]
    if start == 0 and delta == 1 and limit is not None and never_negative(limit):
        return [Fact(dtype, (limit,))]
    if start is None or limit is None or delta is None:
        return [Fact(dtype, (fresh(),))]
    return [Fact(dtype, (derived(f"range({start!r}, {limit!r}, {delta!r})"),))]


def _whole_steps(facts: Facts, node: ir.Node) -> int | None:
    """The length of a Range of constant floating-point numbers that are whole, so that nothing is rounded."""
    tensors = [facts.tensor(value) for value in node.inputs]
    if any(tensor is None or tensor.size != 1 or not tensor.dtype.is_floating_point() for tensor in tensors):
        return None
    numbers = [float(tensor.numpy().reshape(-1)[0]) for tensor in tensors if tensor is not None]
    if any(number != int(number) or abs(number) > 2048 for number in numbers if np.isfinite(number)):
        return None
    if not np.isfinite(numbers).all() or not numbers[2]:
        return None
    return len(range(*map(int, numbers)))


@infers("Pad")
def pad(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if first.shape is None:
        return [Fact(first.dtype)]
    rank = len(first.shape)
    if "pads" in node.attributes:
        amounts: tuple[Dim, ...] | None = tuple(node.attributes.get_ints("pads", ()))
    else:
        amounts = facts(node.inputs[1]).content
    if amounts is None or len(amounts) != 2 * rank or len(node.inputs) > 3:
        return [Fact(first.dtype, tuple(fresh() for _ in range(rank)))]
    dims = tuple(as_dim(add(add(d, amounts[i]), amounts[i + rank])) for i, d in enumerate(first.shape))
    return [Fact(first.dtype, dims)]


@infers("Split")
def split(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if not first.shape:
        return [Fact(first.dtype) for _ in node.outputs]
    axis = node.attributes.get_int("axis", 0) % len(first.shape)
    sizes: tuple[Dim, ...] | None = None
    if "split" in node.attributes:
        sizes = tuple(node.attributes.get_ints("split", ()))
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        sizes = facts(node.inputs[1]).content
    elif isinstance(first.shape[axis], int):
        total, count = first.shape[axis], len(node.outputs)
        assert isinstance(total, int)
        part = -(-total // count)
        sizes = tuple(min(part, max(0, total - part * i)) for i in range(count))
    elif len(node.outputs) == 1:
        sizes = (first.shape[axis],)
    found = []
    for index in range(len(node.outputs)):
        dim = as_dim(sizes[index]) if sizes is not None and index < len(sizes) else fresh()
        shape = (*first.shape[:axis], dim, *first.shape[axis + 1 :])
        part_content = None
        if first.content is not None and len(shape) == 1 and sizes and all(isinstance(s, int) for s in sizes):
            lengths = [s for s in sizes if isinstance(s, int)]
            part_content = first.content[sum(lengths[:index]) : sum(lengths[: index + 1])]
        found.append(Fact(first.dtype, shape, part_content))
    return found


@infers("NonZero")
def non_zero(facts: Facts, node: ir.Node) -> list[Fact]:
    shape = facts(node.inputs[0]).shape
    return [Fact(_INT64, (fresh() if shape is None else len(shape), fresh()))]


@infers("GatherElements")
def gather_elements(facts: Facts, node: ir.Node) -> list[Fact]:
    return [Fact(facts(node.inputs[0]).dtype, facts(node.inputs[1]).shape)]
