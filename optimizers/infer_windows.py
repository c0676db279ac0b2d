"""How shapes pass through convolutions and pools, whose spatial dims may be symbolic."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.optimizers.facts import Fact, Facts, infers
from graphkit.optimizers.infer_shapes import as_dim
from graphkit.optimizers.symbolic import Dim, add, derived, divide, fresh, multiply


def _windows(facts: Facts, node: ir.Node, kernel: tuple[Dim, ...]) -> tuple[Dim, ...]:
    shape = facts(node.inputs[0]).shape
    assert shape is not None
    found: list[Dim] = []
    count = len(kernel)
    strides = node.attributes.get_ints("strides", (1,) * count)
    dilations = node.attributes.get_ints("dilations", (1,) * count)
    pads = node.attributes.get_ints("pads", (0,) * (2 * count))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    ceil = node.attributes.get_int("ceil_mode", 0) != 0
    for axis, width in enumerate(kernel):
        dim = shape[2 + axis]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            found.append(dim if strides[axis] == 1 else _quotient(add(dim, strides[axis] - 1), strides[axis]))
            continue
        if not isinstance(width, int) or (ceil and not isinstance(dim, int)):
            found.append(fresh())
            continue
        padding = 0 if auto == "VALID" else pads[axis] + pads[count + axis]
        room = add(dim, padding - dilations[axis] * (width - 1) - 1)
        if ceil:
            # Whether a last window that hangs over counts, is told differently by opset: leave it open.
            exact = isinstance(room, int) and room % strides[axis] == 0
            found.append(add(_quotient(room, strides[axis]), 1) if exact else fresh())
        else:
            found.append(add(_quotient(room, strides[axis]), 1))
    return tuple(as_dim(dim) if isinstance(dim, int) else dim for dim in found)


def _quotient(a: Dim, by: int) -> Dim:
    """``a // by``; an expression of its own where it is not exact, equal to itself wherever it comes up again."""
    if isinstance(a, int):
        return a // by
    exact = divide(a, by)
    return derived(f"floor({a!r} / {by})") if exact is None else exact


@infers("Conv")
def conv(facts: Facts, node: ir.Node) -> list[Fact]:
    first, weight = facts(node.inputs[0]), facts(node.inputs[1])
    if weight.shape is None or len(weight.shape) < 3:
        return [Fact(first.dtype)]
    if first.shape is None:  # the runtime refuses an input of another rank than the weight's
        return [Fact(first.dtype, (fresh(), weight.shape[0], *(fresh() for _ in weight.shape[2:])))]
    if len(first.shape) != len(weight.shape):
        return [Fact(first.dtype)]
    kernel = weight.shape[2:]
    return [Fact(first.dtype, (first.shape[0], weight.shape[0], *_windows(facts, node, kernel)))]


@infers("ConvTranspose")
def conv_transpose(facts: Facts, node: ir.Node) -> list[Fact]:
    first, weight = facts(node.inputs[0]), facts(node.inputs[1])
    if first.shape is None or weight.shape is None or len(first.shape) != len(weight.shape) or len(first.shape) < 3:
        return [Fact(first.dtype)]
    channels = multiply(weight.shape[1], node.attributes.get_int("group", 1))
    count = len(first.shape) - 2
    given = node.attributes.get_ints("output_shape", ())
    if given:
        return [Fact(first.dtype, (first.shape[0], channels, *given[-count:]))]
    strides = node.attributes.get_ints("strides", (1,) * count)
    dilations = node.attributes.get_ints("dilations", (1,) * count)
    pads = node.attributes.get_ints("pads", (0,) * (2 * count))
    extra = node.attributes.get_ints("output_padding", (0,) * count)
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    dims: list[Dim] = []
    for axis, (dim, width) in enumerate(zip(first.shape[2:], weight.shape[2:], strict=True)):
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            dims.append(multiply(dim, strides[axis]))
        elif not isinstance(width, int):
            dims.append(fresh())
        else:
            padding = 0 if auto == "VALID" else pads[axis] + pads[count + axis]
            reach = dilations[axis] * (width - 1) + 1 - strides[axis] + extra[axis] - padding
            dims.append(add(multiply(dim, strides[axis]), reach))
    return [Fact(first.dtype, (first.shape[0], channels, *dims))]


@infers("MaxPool", "AveragePool", "LpPool")
def pool(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    kernel = tuple(node.attributes.get_ints("kernel_shape", ()))
    if first.shape is None or len(first.shape) != len(kernel) + 2:
        return [Fact(first.dtype), Fact(ir.DataType.INT64)]
    shape = (*first.shape[:2], *_windows(facts, node, kernel))
    return [Fact(first.dtype, shape), Fact(ir.DataType.INT64, shape)]


@infers("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if first.shape is None or len(first.shape) < 2:
        return [Fact(first.dtype)]
    return [Fact(first.dtype, (*first.shape[:2], *(1 for _ in first.shape[2:])))]


@infers("LSTM", "GRU", "RNN")
def recurrent(facts: Facts, node: ir.Node) -> list[Fact]:
    first, weight = facts(node.inputs[0]), facts(node.inputs[2])
    # The runtime refuses inputs of another rank than 3.
    shape = first.shape if first.shape is not None else (fresh(), fresh(), fresh())
    count = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    hidden: Dim | None = node.attributes.get_int("hidden_size", 0) or None
    if hidden is None:
        hidden = weight.shape[2] if weight.shape is not None and len(weight.shape) == 3 else fresh()
    if len(shape) != 3:
        return [Fact(first.dtype) for _ in node.outputs]
    whole: tuple[Dim, ...]
    last: tuple[Dim, ...]
    if node.attributes.get_int("layout", 0):
        whole, last = (shape[0], shape[1], count, hidden), (shape[0], count, hidden)
    else:
        whole, last = (shape[0], count, shape[1], hidden), (count, shape[1], hidden)
    return [Fact(first.dtype, whole), *(Fact(first.dtype, last) for _ in node.outputs[1:])]


@infers("Resize")
def resize(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if first.shape is None:
        return [Fact(first.dtype)]
    unknown = Fact(first.dtype, tuple(fresh() for _ in first.shape))
    if "axes" in node.attributes or node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return [unknown]
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        sizes = facts(node.inputs[3]).content
        if sizes is None or len(sizes) != len(first.shape):
            return [unknown]
        return [Fact(first.dtype, tuple(as_dim(size) for size in sizes))]
    tensor = facts.tensor(node.inputs[2 if len(node.inputs) > 2 else 1]) if len(node.inputs) > 1 else None
    if tensor is None or tensor.size != len(first.shape):
        return [unknown]
    dims: list[Dim] = []
    for dim, scale in zip(first.shape, tensor.numpy().reshape(-1).tolist(), strict=True):
        if scale == int(scale):
            dims.append(multiply(dim, int(scale)))
        else:
            dims.append(fresh())
    return [Fact(first.dtype, tuple(dims))]
