"""Downward: elementwise operators, choices, and matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphkit import dims, dtypes
from graphkit.upgrade.adapters import is_used, only_input, set_attributes, set_input
from graphkit.upgrade.lower_shape import as_float
from graphkit.upgrade.lower_table import Cannot, Lowering, drop_inputs, lowers, optional_input


@lowers(12, "Clip")
def clip_integers(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """Integers are clipped by comparing and choosing."""
    x = only_input(node)
    if dtypes.is_float(lowering.dtype(x)):
        return node
    for index, operator in ((1, "Max"), (2, "Min")):
        bound = optional_input(node, index)
        if bound is not None:
            x = lowering.apply1(operator, [x, bound])
    lowering.replace([x])
    return None


@lowers(11, "Clip")
def clip_bounds(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """Bounds were attributes; those that the graph computes, or that have too many digits, are Max and Min."""
    x = only_input(node)
    bounds = [optional_input(node, index) for index in (1, 2)]
    try:
        found = {
            name: as_float(array)
            for name, bound in zip(("min", "max"), bounds, strict=True)
            if (array := lowering.array(bound)) is not None
        }
        computed = any(bound is not None and lowering.array(bound) is None for bound in bounds)
    except Cannot:
        computed, found = True, {}
    # Runtimes refuse attributes in the wrong order, of which every element becomes the greatest.
    if computed or found.get("min", -np.inf) > found.get("max", np.inf):
        for operator, bound in zip(("Max", "Min"), bounds, strict=True):
            if bound is not None:
                x = lowering.apply1(operator, [x, bound])
        lowering.replace([x])
        return None
    drop_inputs(node, 1)
    set_attributes(node, **found)
    return node


@lowers(12, "Celu")
def celu(node: ir.Node, lowering: Lowering) -> None:
    """a * Elu(x / a), of negative x alone where x / a may be infinite for positive x."""
    x = only_input(node)
    slope = node.attributes.get_float("alpha", 1.0)
    size = lowering.scalar_like(slope, x)
    above = lowering.apply1("Relu", [x]) if 0 < slope < 1 else None
    below = x
    if above is not None:
        for operator in ("Neg", "Relu", "Neg"):
            below = lowering.apply1(operator, [below])
    below = lowering.apply1("Elu", [lowering.apply1("Div", [below, size])])
    made = lowering.apply1("Mul", [below, size])
    lowering.replace([made if above is None else lowering.apply1("Add", [above, made])])


@lowers(12, "Max", "Min")
def extremes_of_integers(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """Integers are compared, and one is chosen."""
    first = only_input(node)
    if dtypes.is_float(lowering.dtype(first)):
        return node
    for value in node.inputs[1:]:
        assert value is not None
        other = [value, first] if node.op_type == "Max" else [first, value]
        first = lowering.apply1("Where", [lowering.apply1("Less", other), first, value])
    lowering.replace([first])
    return None


@lowers(8, "Max", "Min", "Sum", "Mean")
def no_broadcasting(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """All inputs had one shape. A sum can be of two at a time, which do broadcast."""
    shapes = [lowering.dims(only_input(node, index)) for index in range(len(node.inputs))]
    if all(dims.same_dims(shapes[0], shape) for shape in shapes[1:]):
        return node
    if node.op_type in ("Max", "Min"):
        raise Cannot("its inputs are broadcast, which they are not there")
    total = only_input(node)
    for value in node.inputs[1:]:
        total = lowering.apply1("Add", [total, value])
    if node.op_type == "Mean":
        total = lowering.apply1("Div", [total, lowering.scalar_like(len(node.inputs), total)])
    lowering.replace([total])
    return None


@lowers(14, "Relu")
def relu_of_integers(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    x = only_input(node)
    if dtypes.is_float(lowering.dtype(x)):
        return node
    lowering.replace([lowering.apply1("Max", [x, lowering.scalar_like(0, x)])])
    return None


@lowers(12, "Pow")
def power_of_one_type(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Base and exponent were of one type, a floating one."""
    base, exponent = only_input(node), only_input(node, 1)
    if not dtypes.is_float(lowering.dtype(base)):
        raise Cannot("its base is an integer, and must be floating there")
    if lowering.dtype(base) != lowering.dtype(exponent):
        known = lowering.array(exponent)
        if known is not None:
            set_input(node, 1, lowering.constant(known, lowering.dtype(base)))
        else:
            set_input(node, 1, lowering.apply1("Cast", [exponent], to=dtypes.to_onnx(lowering.dtype(base))))
    return node


@lowers(11, "Equal")
def equal_floats(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """Floating numbers were not compared for equality: neither less nor greater, and both numbers."""
    a, b = only_input(node), only_input(node, 1)
    if not dtypes.is_float(lowering.dtype(a)):
        return node
    differ = lowering.apply1("Or", [lowering.apply1("Less", [a, b]), lowering.apply1("Greater", [a, b])])
    nothing = lowering.apply1("Or", [lowering.apply1("IsNaN", [a]), lowering.apply1("IsNaN", [b])])
    lowering.replace([lowering.apply1("Not", [lowering.apply1("Or", [differ, nothing])])])
    return None


@lowers(9, "IsNaN")
def is_nan(node: ir.Node, lowering: Lowering) -> None:
    """Every number is less than one or greater than zero."""
    x = only_input(node)
    below = lowering.apply1("Less", [x, lowering.scalar_like(1, x)])
    above = lowering.apply1("Greater", [x, lowering.scalar_like(0, x)])
    lowering.replace([lowering.apply1("Not", [lowering.apply1("Or", [below, above])])])


@lowers(10, "IsInf")
def is_infinite(node: ir.Node, lowering: Lowering) -> None:
    x = only_input(node)
    most = float(np.finfo(lowering.dtype(x)).max)
    found = []
    if node.attributes.get_int("detect_positive", 1):
        found.append(lowering.apply1("Greater", [x, lowering.scalar_like(most, x)]))
    if node.attributes.get_int("detect_negative", 1):
        found.append(lowering.apply1("Less", [x, lowering.scalar_like(-most, x)]))
    if not found:
        raise Cannot("it does not exist there")
    lowering.replace([found[0] if len(found) == 1 else lowering.apply1("Or", found)])


@lowers(9, "Where")
def where(node: ir.Node, lowering: Lowering) -> None:
    """Both sides laid end to end, and each element taken from its place in one of them.

    No arithmetic does it: nothing times infinity is not nothing. The places are constants, so the shapes must be.
    """
    condition, x, y = (only_input(node, index) for index in range(3))
    shape = np.broadcast_shapes(*(lowering.static_dims(value) for value in (condition, x, y)))
    places = []
    start = 0
    for value in (x, y):
        given = lowering.static_dims(value)
        count = int(np.prod(given, dtype=np.int64))
        places.append(np.broadcast_to(np.arange(start, start + count).reshape(given), shape))
        start += count
    flat = [lowering.apply1("Reshape", [value, lowering.constant([-1])]) for value in (x, y)]
    both = lowering.apply1("Concat", flat, axis=0)
    chosen = lowering.apply1("Cast", [condition], to=dtypes.to_onnx(dtypes.INT64))
    step = lowering.apply1("Mul", [chosen, lowering.constant(places[0] - places[1])])
    place = lowering.apply1("Add", [step, lowering.constant(places[1])])
    lowering.replace([lowering.apply1("Gather", [both, place], axis=0)])


@lowers(15, "CastLike")
def cast_like(node: ir.Node, lowering: Lowering) -> None:
    kept = {name: a for name, a in node.attributes.items() if name in ("saturate", "round_mode")}
    to = dtypes.to_onnx(lowering.dtype(only_input(node, 1)))
    lowering.replace([lowering.apply1("Cast", [only_input(node)], to=to, **kept)])


@lowers(12, "Constant")
def constant_kinds(node: ir.Node, lowering: Lowering) -> ir.Node:
    """``value_int`` and the like are tensors."""
    for name, dtype in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32),
                        ("value_floats", np.float32)):  # fmt: skip
        attribute = node.attributes.pop(name, None)
        if attribute is not None:
            node.attributes.add(ir.AttrTensor("value", ir.tensor(np.asarray(attribute.value, dtype))))
    for name in ("value_string", "value_strings"):
        attribute = node.attributes.pop(name, None)
        if attribute is not None:
            texts = [attribute.value] if name == "value_string" else list(attribute.value)
            shape = ir.Shape([] if name == "value_string" else [len(texts)])
            encoded = [text.encode() if isinstance(text, str) else text for text in texts]
            node.attributes.add(ir.AttrTensor("value", ir.StringTensor(encoded, shape=shape)))
    return node


@lowers(9, "Constant")
def constant_type_of_old(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """Only floating ones were nodes; the others are initializers."""
    array = lowering.array(node.outputs[0])
    if array is None or array.dtype.kind == "f":
        return node
    old = node.outputs[0]
    if lowering.emitting or old.is_graph_output():
        lowering.replace([lowering.constant(array, array.dtype)])
        return None
    name, old.name = old.name, None
    old.replace_all_uses_with(lowering.new_constant(array, name or "constant"))
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return None


@lowers(12, "Dropout")
def dropout_inputs(node: ir.Node, lowering: Lowering) -> ir.Node | None:
    """``ratio`` was an attribute, and nothing was dropped: there was no training mode.

    What the mask was then is not said, and ONNX Runtime makes it false where today's is true everywhere.
    """
    mode = optional_input(node, 2)
    if mode is not None:
        training = lowering.array(mode)
        if training is None or training.any():
            raise Cannot("it trains, and does nothing there")
    if is_used(node, 1):
        x = only_input(node)
        kept = lowering.apply1("Not", [lowering.apply1("Less", [x, x])])
        lowering.replace([lowering.apply1("Identity", [x]), kept])
        return None
    ratio = lowering.array(optional_input(node, 1))
    node.attributes.pop("seed", None)
    drop_inputs(node, 1)
    if ratio is not None:
        set_attributes(node, ratio=float(ratio.item()))
    return node


@lowers(10, "Dropout")
def dropout_mask(node: ir.Node, lowering: Lowering) -> ir.Node:
    """The mask had the data's type; whoever reads it got another."""
    return node


@lowers(11, "Gemm")
def gemm_addend(node: ir.Node, lowering: Lowering) -> ir.Node:
    """The addend could not be left out: here it is a zero that counts zero times."""
    if optional_input(node, 2) is None:
        a = only_input(node)
        set_input(node, 2, lowering.constant([0], lowering.dtype(a)))
        set_attributes(node, beta=0.0)
    return node


@lowers(13, "QuantizeLinear", "DequantizeLinear")
def quantized_axis(node: ir.Node, lowering: Lowering) -> ir.Node:
    """There was one scale for the whole tensor."""
    known = lowering.dims(only_input(node, 1))
    if known is None or any(extent != 1 for extent in known):
        raise Cannot("it may have a scale for each channel, and has one in all there")
    node.attributes.pop("axis", None)
    return node


@lowers(11, "ConvTranspose")
def transposed_padding(node: ir.Node, lowering: Lowering) -> ir.Node:
    """What SAME means was turned around."""
    if node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        raise Cannot("its auto_pad means something else there; write pads")
    return node


@lowers(11, "Scan")
def scan_axes(node: ir.Node, lowering: Lowering) -> ir.Node:
    """Axes counted from the back."""
    for name in ("scan_input_axes", "scan_output_axes"):
        axes: Sequence[int] = node.attributes.get_ints(name, []) or []
        if any(axis < 0 for axis in axes):
            raise Cannot(f"its {name} count from the back, which they may not there")
    return node


@lowers(9, "Scan")
def scan_batch(node: ir.Node, lowering: Lowering) -> ir.Node:
    """It ran over a batch of sequences."""
    raise Cannot("it runs over a batch there")


@lowers(20, "DFT")
def dft_axis(node: ir.Node, lowering: Lowering) -> ir.Node:
    axis = lowering.ints(node, 2, "axis")
    drop_inputs(node, 2)
    set_attributes(node, axis=-2 if axis is None else axis[0])
    return node
