"""A model's graph for people: as a picture, and as text."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from graphkit.dtypes import name as dtype_name
from graphkit.errors import GraphkitError
from graphkit.exporters.layout import Layout, arrange
from graphkit.exporters.scene import CHARACTER, Scene, save
from graphkit.modelfile import ModelLike, borrow_model
from graphkit.runtime.feeds import port

__all__ = ["draw", "listing"]

_MOST_NODES = 1500
# Colour by kind of operator; the rest is elementwise arithmetic. Kinds are those by which people read a network.
_MATRIX, _NORMALIZATION, _ACTIVATION, _REDUCTION = "#f4c095", "#c9b6e4", "#f7a8a8", "#a8d8b9"
_SHAPE, _CONTROL, _ARITHMETIC, _END = "#d9d9d9", "#f1e18a", "#bcd6f0", "#ffffff"
_OPERATORS = {
    _MATRIX: "MatMul Gemm Conv ConvTranspose Einsum LSTM GRU RNN Attention MatMulInteger",
    _NORMALIZATION: """BatchNormalization LayerNormalization GroupNormalization InstanceNormalization RMSNormalization
        Softmax LogSoftmax LpNormalization LRN Dropout SimplifiedLayerNormalization""",
    _ACTIVATION: """Relu LeakyRelu PRelu Elu Selu Celu Gelu Sigmoid HardSigmoid HardSwish Swish Mish Tanh Softplus
        Softsign ThresholdedRelu""",
    _REDUCTION: """ArgMax ArgMin TopK MaxPool AveragePool GlobalAveragePool GlobalMaxPool ReduceSum ReduceMean ReduceMax
        ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare""",
    _SHAPE: """Reshape Transpose Flatten Squeeze Unsqueeze Expand Concat Split Slice Gather GatherElements GatherND
        Scatter ScatterElements ScatterND Pad Tile Shape Size Cast CastLike Identity Constant ConstantOfShape Range
        Resize DepthToSpace SpaceToDepth OneHot Where NonZero""",
    _CONTROL: "If Loop Scan",
}
_COLOURS = {name: colour for colour, names in _OPERATORS.items() for name in names.split()}


def draw(model: ModelLike, path: str | os.PathLike[str]) -> Path:
    """Draw a model's graph as ``.svg`` (or ``.png`` where matplotlib is installed) and return the path.

    Operators are boxes coloured by kind, with the parameters and constants that they read inside; edges carry the
    tensors' types where they are declared. Raises ``GraphkitError`` for graphs of more than 1,500 nodes: ``listing``
    gives those as text.

    >>> import onnx.parser, tempfile
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(onnx.parser.parse_model(text), f"{folder}/g.svg").name
    'g.svg'
    """
    graph = borrow_model(model).graph
    if len(graph) > _MOST_NODES:
        raise GraphkitError(
            f"{Path(path).name}: a graph of {len(graph):,} nodes makes no readable picture (the limit is "
            f"{_MOST_NODES:,}); list it as text instead"
        )
    return save(_scene(graph), path)


class _Box:
    """One box of the picture: what is written in it, and how large that makes it."""

    def __init__(self, title: str, lines: list[str], fill: str, tooltip: str = "") -> None:
        self.title, self.lines, self.fill, self.tooltip = title, lines, fill, tooltip or title
        longest = max([len(title) * 15.5, *(len(line) * 10 for line in lines)])
        self.width = max(60.0, longest * CHARACTER + 20)
        self.height = 26.0 + 13 * len(lines)


def _scene(graph: ir.Graph) -> Scene:
    boxes, edges, labels, late = _graph_boxes(graph)
    layout = arrange([box.width for box in boxes], edges, late, 28)
    count = len(boxes)
    tallest = [0.0] * (max(layout.row[:count], default=0) + 1)
    for box, row in zip(boxes, layout.row, strict=False):
        tallest[row] = max(tallest[row], box.height)
    tops, at = [], 20.0
    for height in tallest:
        tops.append(at)
        at += height + 44
    right = max((x + box.width / 2 for box, x in zip(boxes, layout.x, strict=False)), default=0.0)
    scene = Scene(max(right, *layout.x, 0) + 40, at - 24)
    labelled = set()
    for route, (label, dashed) in zip(layout.routes, labels, strict=True):
        _edge(scene, layout, route, boxes, tops, tallest, dashed)
        if label and route[0] not in labelled:
            labelled.add(route[0])
            start = boxes[route[0]]
            x, y = layout.x[route[0]] + 20, tops[layout.row[route[0]]] + start.height + 14
            scene.text(x + 6, y, label, 9, "start", "#777")
    for box, x, row in zip(boxes, layout.x, layout.row, strict=False):
        left, top = x + 20 - box.width / 2, tops[row]
        radius = 12 if box.fill == _END else 4
        scene.box(left, top, box.width, box.height, box.fill, radius=radius, title=box.tooltip)
        scene.text(x + 20, top + 17, box.title, 13, bold=True)
        for line_number, line in enumerate(box.lines):
            scene.text(x + 20, top + 31 + 13 * line_number, line, 10, fill="#444")
    return scene


def _edge(
    scene: Scene,
    layout: Layout,
    route: list[int],
    boxes: list[_Box],
    tops: list[float],
    tallest: list[float],
    dashed: bool,
) -> None:
    """Draw one edge: a curve from row to row, straight through the rows that it only passes."""
    for upper, lower in itertools.pairwise(route):
        row = layout.row[upper]
        start = tops[row] + (boxes[upper].height if upper < len(boxes) else tallest[row])
        x0, x1, end = layout.x[upper] + 20, layout.x[lower] + 20, tops[row + 1]
        if upper >= len(boxes):
            scene.line([(x0, tops[row]), (x0, start)], dashed=dashed)
        middle = (start + end) / 2
        last = lower == route[-1]
        scene.line([(x0, start), (x0, middle), (x1, middle), (x1, end)], curved=True, arrow=last, dashed=dashed)


def _graph_boxes(graph: ir.Graph) -> tuple[list[_Box], list[tuple[int, int]], list[tuple[str, bool]], set[int]]:
    boxes: list[_Box] = []
    edges: list[tuple[int, int]] = []
    labels: list[tuple[str, bool]] = []
    made_by: dict[ir.Value, int] = {}
    constants = set(graph.initializers.values())
    for value in graph.inputs:
        if value not in constants:
            made_by[value] = len(boxes)
            boxes.append(_Box(value.name or "?", [port(value).type], _END, f"input {port(value)}"))
    late = set(range(len(boxes)))
    for node in graph:
        number = len(boxes)
        boxes.append(_node_box(node, constants))
        for value, dashed in _read(node):
            if value in made_by:
                edges.append((made_by[value], number))
                labels.append(("" if made_by[value] in late else _type_text(value), dashed))
        made_by.update((value, number) for value in node.outputs)
    for value in graph.outputs:
        if value in made_by:
            edges.append((made_by[value], len(boxes)))
            labels.append(("", False))
        boxes.append(_Box(value.name or "?", [port(value).type], _END, f"output {port(value)}"))
    return boxes, edges, labels, late


def _node_box(node: ir.Node, constants: set[ir.Value]) -> _Box:
    lines = []
    for value in node.inputs:
        if value is not None and value in constants:
            shape = "scalar" if value.shape is not None and not len(value.shape) else _dims_text(value)
            lines.append(f"{value.name} {shape}")
    bodies = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH and not a.is_ref()]
    if bodies:
        lines.append(f"{' / '.join(str(len(body)) for body in bodies)} nodes inside")
    fill = _COLOURS.get(node.op_type, _ARITHMETIC)
    title = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    return _Box(title, [line if len(line) < 40 else f"{line[:37]}..." for line in lines], fill, _line(node))


def _read(node: ir.Node) -> Iterator[tuple[ir.Value, bool]]:
    """Yield what a node reads, and what its bodies capture (True)."""
    seen = set()
    for value in node.inputs:
        if value is not None and value not in seen:
            seen.add(value)
            yield value, False
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            for inner in attribute.as_graph().all_nodes():
                for value in inner.inputs:
                    if value is not None and value not in seen:
                        seen.add(value)
                        yield value, True


def listing(model: ModelLike) -> str:
    """Return a model's graph as text: inputs, parameters, one line an operator, outputs.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = LeakyRelu<alpha = 0.1>(x)}'
    >>> print(listing(onnx.parser.parse_model(text)))
    input      x: float32[N]
    y          = LeakyRelu(x, alpha=0.1) : float32[N]
    output     y: float32[N]
    """
    graph = borrow_model(model).graph
    lines = [f"{'input':<10} {port(value)}" for value in graph.inputs if value.name not in graph.initializers]
    inputs = set(graph.inputs)
    for value in graph.initializers.values():
        kind = "default" if value in inputs else "parameter"
        lines.append(f"{kind:<10} {value.name}: {_type_text(value) or 'unknown'}{_small_value(value)}")
    lines.extend(_node_lines(graph, ""))
    lines.extend(f"{'output':<10} {port(value)}" for value in graph.outputs)
    return "\n".join(lines)


def _node_lines(graph: ir.Graph, indent: str) -> Iterator[str]:
    for node in graph:
        kind = f" : {_type_text(node.outputs[0])}" if node.outputs and _type_text(node.outputs[0]) else ""
        yield f"{indent}{', '.join(v.name or '_' for v in node.outputs):<10} = {_line(node)}{kind}"
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                body = attribute.as_graph()
                yield f"{indent}  {attribute.name}({', '.join(v.name or '?' for v in body.inputs)}):"
                yield from _node_lines(body, indent + "    ")
                yield f"{indent}    return {', '.join(v.name or '?' for v in body.outputs)}"


def _line(node: ir.Node) -> str:
    arguments = [value.name or "?" if value is not None else "_" for value in node.inputs]
    for name, attribute in node.attributes.items():
        if attribute.type != ir.AttributeType.GRAPH:
            arguments.append(f"{name}={_attribute_text(attribute)}")
    operator = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    return f"{operator}({', '.join(arguments)})"


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.size <= 8 and tensor.dtype != ir.DataType.STRING:
            return str(tensor.numpy().tolist())
        return f"{tensor.dtype.name.lower()}{list(tensor.shape)}"
    if attribute.type == ir.AttributeType.FLOAT:
        return f"{np.float32(attribute.as_float()):g}"
    return str(attribute.value) if attribute.type != ir.AttributeType.STRING else repr(attribute.as_string())


def _type_text(value: ir.Value) -> str:
    return "" if value.dtype is None or value.shape is None else f"{dtype_name(value.dtype.numpy())}{_dims_text(value)}"


def _dims_text(value: ir.Value) -> str:
    if value.shape is None:
        return ""
    return "[" + ", ".join(str(d) if isinstance(d, int) else str(d.value or "?") for d in value.shape) + "]"


def _small_value(value: ir.Value) -> str:
    tensor = value.const_value
    if tensor is None or tensor.size > 8 or tensor.dtype == ir.DataType.STRING:
        return ""
    return f" = {tensor.numpy().tolist()}"
