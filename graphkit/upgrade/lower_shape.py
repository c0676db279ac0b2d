"""Downward: axes, splits, pads, slices and counts, inputs that were attributes; parts of shapes; scattering."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

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
