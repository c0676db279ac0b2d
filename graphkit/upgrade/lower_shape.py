"""Downward: axes, splits, pads, slices and counts, inputs that were attributes; shapes; data moved about."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphkit import dims, dtypes
from graphkit.upgrade.adapters import only_input, set_attributes, set_input, take_ints
from graphkit.upgrade.lower_table import Cannot, Lowering, counted_from_front, drop_inputs, lowers, optional_input
from graphkit.upgrade.shape import REDUCTIONS

# What a reduction over no axes at all leaves as it is; the others still apply their function to each element.
_IDENTITY_OVER_NOTHING = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})


@lowers(13, "ReduceSum")
@lowers(18, *REDUCTIONS)
def reduction_axes(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    axes = lowering.ints(node, 1, "axes")
    over_nothing = node.attributes.get_int("noop_with_empty_axes", 0) != 0
    node.attributes.pop("noop_with_empty_axes", None)
    drop_inputs(node, 1)
    if axes:
        set_attributes(node, axes=axes)
    elif over_nothing:
        if node.op_type not in _IDENTITY_OVER_NOTHING:
            raise Cannot("it reduces over no axes, which means all of them there")
        lowering.replace([only_input(node)])
        return None
    return node


@lowers(13, "Squeeze", "Unsqueeze")
def squeeze_axes(node: ir.Node, lowering: Lowering) -> ir.Node:
    axes = lowering.ints(node, 1, "axes")
    drop_inputs(node, 1)
    if axes is not None:
        set_attributes(node, axes=axes)
    return node


@lowers(18, "Split")
def split_count(node: ir.Node, lowering: Lowering) -> ir.Node:
    """``num_outputs`` may leave a smaller last part, where an older Split insists on equal ones."""
    count = len(node.outputs)
    given = optional_input(node, 1)
    node.attributes.pop("num_outputs", None)
    if given is not None:
        return node
    x = only_input(node)
    axis = node.attributes.get_int("axis", 0)
    known = lowering.dims(x)
    extent = None if known is None else known[axis]
    if isinstance(extent, int):
        if extent % count:
            part = -(-extent // count)
            lengths = [min(part, max(0, extent - part * n)) for n in range(count)]
            set_input(node, 1, lowering.constant(lengths))
        return node
    end = {} if axis == -1 else {"end": axis + 1}
    length = lowering.apply1("Shape", [x], start=axis, **end)
    rounded = lowering.apply1("Add", [length, lowering.constant([count - 1])])
    size = lowering.apply1("Div", [rounded, lowering.constant([count])])
    before = lowering.apply1("Mul", [size, lowering.constant(list(range(count)))])
    left = lowering.apply1("Max", [lowering.apply1("Sub", [length, before]), lowering.constant([0])])
    set_input(node, 1, lowering.apply1("Min", [size, left]))
    return node


@lowers(13, "Split")
def split_lengths(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """``split`` becomes an attribute; lengths that the graph computes become slices."""
    lengths = optional_input(node, 1)
    if lengths is None:
        return node
    if lowering.array(lengths) is not None:
        set_attributes(node, split=lowering.ints(node, 1, "lengths") or [])
        drop_inputs(node, 1)
        return node
    x, axis = only_input(node), lowering.constant([node.attributes.get_int("axis", 0)])
    start, parts = lowering.constant([0]), []
    for index in range(len(node.outputs)):
        length = lowering.apply1("Gather", [lengths, lowering.constant([index])], axis=0)
        end = lowering.apply1("Add", [start, length])
        parts.append(lowering.apply1("Slice", [x, start, end, axis]))
        start = end
    lowering.replace(parts)
    return None


@lowers(19, "Pad")
def pad_mode(node: ir.Node, lowering: Lowering) -> ir.Node:
    if node.attributes.get_string("mode", "constant") == "wrap":
        raise Cannot("its mode 'wrap' does not exist there")
    return node


@lowers(18, "Pad")
def pad_axes(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Without ``axes`` the amounts are those of all axes: zeros are put in between."""
    axes = lowering.ints(node, 3, "axes")
    if axes is None:
        return node
    drop_inputs(node, 3)
    rank = lowering.rank(only_input(node))
    axes = counted_from_front(axes, rank)
    set_input(node, 1, spread(only_input(node, 1), axes, rank, lowering, sides=2))
    return node


def spread(given: ir.Value, axes: list[int], rank: int, lowering: Lowering, *, sides: int, fill: float = 0) -> ir.Value:
    """One value (or ``sides``, one side after the other) for every axis, from those of some axes and ``fill``."""
    known = lowering.array(given)
    dtype = lowering.dtype(given)
    if known is not None:
        full = np.full((sides, rank), fill, dtype)
        full[:, axes] = known.reshape(sides, len(axes))
        return lowering.constant(full.ravel(), dtype)
    filled = lowering.apply1("Concat", [given, lowering.constant([fill], dtype)], axis=0)
    places = np.full((sides, rank), sides * len(axes))
    places[:, axes] = np.arange(sides * len(axes)).reshape(sides, len(axes))
    return lowering.apply1("Gather", [filled, lowering.constant(places.ravel())], axis=0)


@lowers(11, "Pad")
def pad_amounts(node: ir.Node, lowering: Lowering) -> ir.Node:
    pads = lowering.ints(node, 1, "pads")
    value = optional_input(node, 2)
    if value is not None and node.attributes.get_string("mode", "constant") == "constant":
        filling = lowering.array(value)
        if filling is None:
            raise Cannot("the value it fills in is computed by the graph, and is an attribute there")
        set_attributes(node, value=as_float(filling))
    drop_inputs(node, 1)
    set_attributes(node, pads=pads or [])
    return node


def as_float(array: np.ndarray) -> float:
    """A number as a float attribute holds it; ``Cannot`` where that is another number."""
    number = array.astype(np.float64).item()
    with np.errstate(over="ignore"):
        if number == number and float(np.float32(number)) != number:  # noqa: PLR0124  # NaN is the one that differs
            raise Cannot(f"its {number!r} has more digits than an attribute holds there")
    return number


@lowers(11, "Slice")
def slice_axes(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Axes counted from the back."""
    axes = optional_input(node, 3)
    if axes is None:
        return node
    known = lowering.array(axes)
    if known is None:
        raise Cannot("its axes are computed by the graph, and may count from the back, which they may not there")
    if (known < 0).any():
        front = counted_from_front(known.tolist(), lowering.rank(only_input(node)))
        set_input(node, 3, lowering.constant(front, known.dtype))
    return node


@lowers(10, "Slice")
def slice_bounds(node: ir.Node, lowering: Lowering) -> ir.Node:
    steps = lowering.ints(node, 4, "steps")
    if any(step != 1 for step in steps or ()):
        raise Cannot("its steps are not 1, and an older Slice has none")
    found = {name: lowering.ints(node, index, name) for index, name in ((1, "starts"), (2, "ends"), (3, "axes"))}
    drop_inputs(node, 1)
    set_attributes(node, **{name: values for name, values in found.items() if values is not None})
    return node


@lowers(11, "TopK")
def top_k_order(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """An older TopK finds the largest only: the smallest are the largest of what has the other sign."""
    largest = node.attributes.get_int("largest", 1)
    for name in ("largest", "sorted"):  # in no order is any order
        node.attributes.pop(name, None)
    _front_axis(node, lowering, -1)
    if largest:
        return node
    x, k = only_input(node), only_input(node, 1)
    negative = lowering.apply1("Neg", [x])
    values, indices = lowering.apply("TopK", [negative, k], 2, axis=node.attributes.get_int("axis", -1))
    lowering.replace([lowering.apply1("Neg", [values]), indices])
    return None


@lowers(10, "TopK")
def top_k_count(node: ir.Node, lowering: Lowering) -> ir.Node:
    count = lowering.ints(node, 1, "k") or [0]
    drop_inputs(node, 1)
    set_attributes(node, k=count[0])
    return node


def _front_axis(node: ir.Node, lowering: Lowering, default: int) -> None:
    axis = node.attributes.get_int("axis", default)
    if axis < 0:
        set_attributes(node, axis=axis + lowering.rank(only_input(node)))


@lowers(11, "ArgMax", "ArgMin", "Concat", "Flatten", "Gather", "Split", "Compress")
def axis_from_back(node: ir.Node, lowering: Lowering) -> ir.Node:
    """``axis`` may not be negative yet."""
    if "axis" in node.attributes:
        _front_axis(node, lowering, 0)
    return node


@lowers(11, "ReduceSum", *REDUCTIONS, "Squeeze", "Unsqueeze")
def axes_from_back(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Nor may one of ``axes``."""
    axes = take_ints(node, "axes")
    if axes is not None:
        if any(axis < 0 for axis in axes):
            rank = lowering.rank(only_input(node)) + (len(axes) if node.op_type == "Unsqueeze" else 0)
            axes = counted_from_front(axes, rank)
        set_attributes(node, axes=axes)
    return node


@lowers(11, "ScatterElements")
def scatter_name(node: ir.Node, lowering: Lowering) -> ir.Node:
    """The operator had another name, and took no negative axis."""
    _front_axis(node, lowering, 0)
    if node.attributes.get_string("reduction", "none") != "none":
        raise Cannot("its reduction does not exist there")
    node.attributes.pop("reduction", None)
    node.op_type = "Scatter"
    return node


@lowers(18, "ScatterElements", "ScatterND")
def scatter_reduction(node: ir.Node, lowering: Lowering) -> ir.Node:
    reduction = node.attributes.get_string("reduction", "none")
    if reduction in ("max", "min"):
        raise Cannot(f"its reduction '{reduction}' does not exist there")
    return node


@lowers(15, "Shape")
def shape_part(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """``start`` and ``end`` are a slice of the whole shape."""
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", None)
    node.attributes.pop("start", None)
    node.attributes.pop("end", None)
    if start == 0 and end is None:
        return node
    # A start before the first dim is the first, as in Slice; one past the last is where the last ends.
    whole = lowering.apply1("Shape", [only_input(node)])
    ends = np.iinfo(np.int64).max if end is None else end
    bounds = [lowering.constant([start]), lowering.constant([ends]), lowering.constant([0])]
    lowering.replace([lowering.apply1("Slice", [whole, *bounds])])
    return None


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
