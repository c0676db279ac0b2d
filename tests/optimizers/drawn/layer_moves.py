"""Layers, norms, patterns of fusions, quantization and control flow for drawn graphs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.optimizers.drawn import moves as m
from tests.optimizers.drawn.drawing import SIZES, Drawing, feeds_of, finished, typed
from tests.optimizers.drawn.moves import is_single, of_rank


def matmul(d: Drawing) -> None:
    x = d.pick(lambda a: is_single(a) and a.ndim > 1)
    if x is None:
        return
    inner = d.known(x)[0].shape[-1]
    if inner != d.known(x)[1].shape[-1] or not inner:
        return
    width = int(d.rng.integers(1, 5))
    weight = d.constant(d.rng.standard_normal((inner, width)), np.float32)
    if d.chance(0.25):
        turned = d.add("Transpose", [d.constant(d.rng.standard_normal((width, inner)), np.float32)], perm=[1, 0])
        weight = turned[0] if turned else weight
    if d.chance(0.3) and d.known(x)[0].ndim == 2:
        bias = d.constant(d.rng.standard_normal(d.one_of([(), (1,), (width,), (1, width)])), np.float32)
        found = d.add("Gemm", [x, weight, bias], alpha=float(d.one_of([1, 1, 0.5])), beta=float(d.one_of([1, 1, 2])))
    else:
        found = d.add("MatMul", [x, weight])
    for _ in range(int(d.rng.integers(3))):
        if found:
            shape = d.one_of([(), (1,), (width,), (1, width)])
            found = d.add(
                d.one_of(["Add", "Mul", "Sub", "Div"]), [found[0], d.constant(d.rng.uniform(0.5, 2, shape), np.float32)]
            )


def product_of_two(d: Drawing) -> None:
    x, y = d.pick(of_rank(2, 3)), d.pick(of_rank(2, 3))
    if x and y:
        turned = d.add("Transpose", [y], perm=[1, 0]) if d.known(y)[0].ndim == 2 and d.chance(0.5) else None
        d.add("MatMul", [x, turned[0] if turned else y])


def convolution(d: Drawing) -> None:
    x = d.pick(of_rank(3, 4))
    if x is None:
        return
    shape = d.known(x)[0].shape
    channels, spatial = shape[1], len(shape) - 2
    if not channels or channels != d.known(x)[1].shape[1]:
        return
    group = channels if d.chance(0.2) else 1
    out = group * int(d.rng.integers(1, 4))
    kernel = [int(d.rng.integers(1, 4)) for _ in range(spatial)]
    if d.chance(0.3):
        factor = d.constant(d.rng.uniform(0.5, 2, d.one_of([(), (channels, *[1] * spatial)])), np.float32)
        found = d.add(d.one_of(["Mul", "Add", "Div"]), [x, factor])
        x = found[0] if found else x
    pads = [int(d.rng.integers(2)) for _ in range(2 * spatial)]
    if d.chance(0.3):
        amounts = [0, 0, *[1] * spatial, 0, 0, *[int(d.rng.integers(2)) for _ in range(spatial)]]
        found = d.add("Pad", [x, d.constant(amounts)])
        x = found[0] if found else x
    if d.chance(0.2):
        weight = d.constant(d.rng.standard_normal((channels, out, *kernel)), np.float32)
        found = d.add("ConvTranspose", [x, weight], pads=pads)
    else:
        weight = d.constant(d.rng.standard_normal((out, channels // group, *kernel)), np.float32)
        bias = [d.constant(d.rng.standard_normal(out), np.float32)] if d.chance(0.5) else []
        found = d.add(
            "Conv",
            [x, weight, *bias],
            pads=pads,
            group=group,
            strides=[int(d.one_of([1, 1, 2])) for _ in range(spatial)],
        )
    if found and d.chance(0.5):
        normalize(d, found[0])
    elif found and d.chance(0.5):
        d.add(
            d.one_of(["Mul", "Add"]), [found[0], d.constant(d.rng.uniform(0.5, 2, (out, *[1] * spatial)), np.float32)]
        )


def normalize(d: Drawing, x: str | None = None) -> None:
    x = x or d.pick(of_rank(2, 3, 4))
    if x is None:
        return
    channels = d.known(x)[0].shape[1]
    if channels == d.known(x)[1].shape[1] and channels:
        numbers = [d.constant(d.rng.uniform(0.5, 2, channels), np.float32) for _ in range(4)]
        if d.chance(0.85):
            d.add("BatchNormalization", [x, *numbers])
        else:
            d.add("InstanceNormalization", [x, *numbers[:2]])


def pool(d: Drawing) -> None:
    if x := d.pick(of_rank(3, 4)):
        spatial = d.known(x)[0].ndim - 2
        kind = d.one_of(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
        if kind.startswith("Global"):
            found = d.add(kind, [x])
            if found and d.chance(0.5):
                d.add("Flatten", found)
            return
        more = {"count_include_pad": int(d.rng.integers(2))} if kind == "AveragePool" else {}
        if d.chance(0.3):
            amounts = [0, 0, *[1] * spatial, 0, 0, *[1] * spatial]
            found = d.add("Pad", [x, d.constant(amounts)])
            x = found[0] if found else x
        d.add(
            kind,
            [x],
            kernel_shape=[2] * spatial,
            strides=[int(d.one_of([1, 2]))] * spatial,
            ceil_mode=int(d.chance(0.2)),
            **more,
        )


def softmax(d: Drawing) -> None:
    if x := d.pick(lambda a: is_single(a) and a.ndim > 0):
        rank = d.known(x)[0].ndim
        d.add(d.one_of(["Softmax", "LogSoftmax", "Hardmax"]), [x], axis=int(d.rng.integers(-rank, rank)))


def layer_norm(d: Drawing) -> None:
    """The pieces of a norm, sometimes with one of them wrong."""
    x = d.pick(lambda a: is_single(a) and a.ndim > 1)
    if x is None:
        return
    axis = -1 if d.chance(0.8) else 1
    keep = int(d.chance(0.85))
    width = d.known(x)[0].shape[-1]
    centered: str | None = x
    if d.chance(0.6):
        mean = m.axes_node(d, "ReduceMean", x, [axis], 18, keepdims=keep)
        found = d.add("Sub", [x, mean[0]]) if mean else None
        centered = found[0] if found else None
    if centered is None:
        return
    square = (
        d.add("Mul", [centered, centered]) if d.chance(0.5) else d.add("Pow", [centered, d.constant(2, np.float32)])
    )
    mean = m.axes_node(d, "ReduceMean", square[0], [axis], 18, keepdims=keep) if square else None
    moved = d.add("Add", [mean[0], d.constant(d.one_of([1e-5, 0.1]), np.float32)]) if mean else None
    root = d.add("Sqrt", moved) if moved else None
    found = d.add("Div", [centered, root[0]]) if root else None
    if found and d.chance(0.8):
        found = d.add(
            "Mul",
            [found[0], d.constant(d.rng.uniform(0.5, 2, d.one_of([(width,), (width,), (), (1, width)])), np.float32)],
        )
    if found and d.chance(0.8):
        d.add("Add", [found[0], d.constant(d.rng.standard_normal(width), np.float32)])


def activation(d: Drawing) -> None:
    x = d.pick(is_single)
    if x is None:
        return
    kind = int(d.rng.integers(4))
    if kind == 0:
        a = d.add("Mul", [x, d.constant(0.70710678, np.float32)])
        a = d.add("Erf", a) if a else None
        a = d.add("Add", [a[0], d.constant(1, np.float32)]) if a else None
        a = d.add("Mul", [x, a[0]]) if a else None
        if a:
            d.add("Mul", [a[0], d.constant(0.5, np.float32)])
    elif kind == 1:
        a = d.add("Add", [x, d.constant(3, np.float32)])
        a = d.add("Clip", [a[0], d.constant(0, np.float32), d.constant(6, np.float32)]) if a else None
        a = d.add("Mul", [x, a[0]]) if a and d.chance(0.6) else a
        if a:
            d.add("Div", [a[0], d.constant(6, np.float32)])
    elif kind == 2:
        a = d.add("Mul", [x, d.constant(d.one_of([0.1, 0.5, 1.5, -0.1]), np.float32)])
        if a:
            d.add("Max", [x, a[0]])
    else:
        a = d.add("Sigmoid", [x])
        if a:
            d.add("Mul", [x, a[0]])


def quantize(d: Drawing) -> None:
    if x := d.pick(is_single):
        scale = d.constant(d.one_of([0.05, 0.1]), np.float32)
        zero = d.constant(3, np.uint8) if d.chance(0.5) else d.constant(0, np.int8)
        found = d.add("QuantizeLinear", [x, scale, zero])
        if found:
            found = d.add("DequantizeLinear", [found[0], scale, zero])
        if found and d.chance(0.3):
            d.add("QuantizeLinear", [found[0], d.constant(0.1, np.float32), zero])


def misc(d: Drawing) -> None:
    x = d.pick(is_single)
    if x is None:
        return
    kind = int(d.rng.integers(7))
    if kind == 0:
        d.add("Dropout", [x]) if d.opset < 12 or d.chance(0.5) else d.add(
            "Dropout", [x, d.constant(0.3, np.float32), d.constant(False, np.bool_)]
        )
    elif kind == 1:
        d.add("Flatten", [x], axis=int(d.rng.integers(-d.known(x)[0].ndim, d.known(x)[0].ndim + 1)))
    elif kind == 2:
        d.add("Tile", [x, d.constant([int(d.one_of([1, 1, 2])) for _ in d.known(x)[0].shape])])
    elif kind == 3:
        d.add("Sum", [x, *([x] if d.chance(0.5) else [])])
    elif kind == 4 and (shape := d.add("Shape", [x])):
        found = d.add(
            "ConstantOfShape",
            shape,
            value=helper.make_tensor("v", TensorProto.FLOAT, [1], [float(d.one_of([0, 1, 2]))]),
        )
        if found:
            d.add(d.one_of(["Mul", "Add", "Sub"]), [x, found[0]])
    elif kind == 5 and d.known(x)[0].ndim == 4:
        d.add(
            "Resize",
            [x, "", d.constant(d.one_of([[1, 1, 1, 1], [1, 1, 2, 2]]), np.float32)],
            mode=d.one_of(["nearest", "linear"]),
        )
    else:
        d.add(
            "Einsum",
            [x],
            equation={2: "ij->ji", 3: "ijk->ijk", 1: "i->i", 4: "abcd->badc"}.get(d.known(x)[0].ndim, "->"),
        )


def twice(d: Drawing) -> None:
    """The last node again."""
    usable = [
        node for node in d.nodes if node.op_type not in ("Constant", "If", "Loop", "Scan") and len(node.output) == 1
    ]
    if usable:
        node = usable[-1]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        again = d.add(node.op_type, list(node.input), **attributes)
        if again and d.known(again[0])[0].dtype.kind == "f":
            d.add(d.one_of(["Add", "Sub", "Max"]), [node.output[0], again[0]])


def body_of(d: Drawing, like: str | None, inputs: dict[str, tuple[np.ndarray, ...]]) -> tuple[Drawing, str] | None:
    inner = Drawing(d.rng, d.opset, values=dict(inputs), around=d, smooth=d.smooth, depth=d.depth + 1)
    grow(inner, int(d.rng.integers(1, 6)))
    shape = None if like is None else [a.shape for a in d.known(like)]
    dtype = None if like is None else d.known(like)[0].dtype
    fitting = [
        n
        for n in inner.made
        if shape is None or ([a.shape for a in inner.values[n]] == shape and inner.values[n][0].dtype == dtype)
    ]
    if fitting:
        return inner, fitting[-1]
    if like is None:
        return None
    source = list(inputs)[-1] if inputs else like
    found = (
        inner.add("Identity", [source]) if inner.known(source)[0].shape == shape[0] else inner.add("Identity", [like])
    )
    return (inner, found[0]) if found else None


def choose(d: Drawing) -> None:
    x = d.pick(is_single)
    if x is None or d.depth > 1 or d.smooth:
        return
    bodies = {}
    for name in ("then_branch", "else_branch"):
        made = body_of(d, x, {})
        if made is None:
            return
        inner, result = made
        bodies[name] = helper.make_graph(inner.nodes, name, [], [typed(result, inner.values[result][0])])
    condition = "flag" if d.chance(0.5) else d.constant(d.chance(0.5), np.bool_)
    if "flag" in d.visible() or condition != "flag":
        d.add("If", [condition], **bodies)


def repeat(d: Drawing) -> None:
    x = d.pick(is_single)
    if x is None or d.depth > 1:
        return
    turn, going, state = d.name("turn"), d.name("going"), d.name("state")
    pairs = len(SIZES)
    inputs = {turn: (np.array(0),) * pairs, going: (np.array(True),) * pairs, state: d.known(x)}
    made = body_of(d, x, inputs)
    if made is None:
        return
    inner, result = made
    goes_on, scanned = d.name(), d.name()
    inner.nodes.append(helper.make_node("Identity", [going], [goes_on]))
    inner.nodes.append(helper.make_node("Identity", [result], [scanned]))
    stacked = d.chance(0.4)
    outputs = [typed(goes_on, np.array(True), []), typed(result, inner.values[result][0])]
    if stacked:
        outputs.append(typed(scanned, inner.values[result][0]))
    body = helper.make_graph(
        inner.nodes, "body", [typed(n, a[0], [] if i < 2 else None) for i, (n, a) in enumerate(inputs.items())], outputs
    )
    count = d.constant(int(d.one_of([0, 1, 2, 3])))
    d.add("Loop", [count, d.constant(True, np.bool_), x], 1 + stacked, body=body)


MOVES = [
    *(m.unary, m.unary, m.binary, m.binary, m.neutral, m.power, m.compare, m.logic, m.where, m.cast, m.squeeze),
    *(
        m.transpose,
        m.transpose,
        m.reshape,
        m.reshape,
        m.reshape_by_shape,
        m.expand,
        m.concat,
        m.split,
        m.slice_,
        m.slices,
    ),
    *(
        m.gather,
        m.reduce,
        m.reduce,
        m.index,
        m.pad,
        m.clip,
        matmul,
        matmul,
        product_of_two,
        convolution,
        normalize,
        pool,
    ),
    *(softmax, layer_norm, activation, quantize, misc, misc, twice, choose, repeat),
]


def grow(d: Drawing, count: int) -> None:
    for _ in range(count):
        d.one_of(MOVES)(d)


def draw(seed: int) -> onnx.ModelProto | None:
    """The drawn graph of a seed; every third is smooth, so that passes with a tolerance can be compared too."""
    rng = np.random.default_rng(seed)
    opset = int(rng.choice([11, 12, 13, 14, 15, 16, 17, 17, 18, 20, 21, 21, 23]))
    feeds = [feeds_of(turn) for turn in range(len(SIZES))]
    values = {name: tuple(each[name] for each in feeds) for name in feeds[0]}
    drawing = Drawing(rng, opset, values=values, smooth=seed % 3 == 0)
    grow(drawing, 3 + seed % 22)
    return finished(drawing)
