"""Random graphs of any operator, valid by trial: a node is kept if it runs, at two sizes of the symbolic dim.

Every value is known at both sizes while the graph grows, so that the graph is valid whatever the operators' rules are,
and a graph that fails can be cut anywhere: what a removed node gave becomes an input with the numbers it had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
SIZES = (2, 5)
LARGEST = 3000
ELEMENTS = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.bool_): TensorProto.BOOL,
}
# After these, numbers that differ in the last bit may become numbers that differ: only exact passes are compared then.
JUMPS = frozenset(
    {
        *("Floor", "Ceil", "Round", "Sign", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Cast", "Mod"),
        *("TopK", "ArgMax", "ArgMin", "Hardmax", "NonZero", "Compress", "QuantizeLinear", "DynamicQuantizeLinear"),
        *("Reciprocal", "Div", "Log", "Sqrt", "Pow", "Exp", "IsNaN", "IsInf", "Tan", "Sub", "Where", "If", "Shrink"),
        *("ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "LpNormalization", "InstanceNormalization", "ReduceL2"),
    }
)
Values = tuple[Array, ...]


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def typed(name: str, array: Array, dims: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENTS[array.dtype], dims)


@dataclass
class Drawing:
    """A graph that grows node by node; ``around`` is the drawing of the graph whose body this is."""

    rng: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)  # what may be read: inputs, outputs of nodes
    made: list[str] = field(default_factory=list)
    around: Drawing | None = None
    smooth: bool = False
    depth: int = 0

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one_of(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def root(self) -> Drawing:
        return self if self.around is None else self.around.root()

    def name(self, prefix: str = "v") -> str:
        root = self.root()
        root.count = getattr(root, "count", 0) + 1
        return f"{prefix}{root.count}"

    def visible(self) -> dict[str, Values]:
        outer = {} if self.around is None else self.around.visible()
        return {**outer, **self.values}

    def pick(self, fits: Callable[[Array], bool] = lambda _: True) -> str | None:
        """A value of a kind; late ones more often, so that chains grow."""
        names = [name for name, arrays in self.visible().items() if fits(arrays[0])]
        if not names:
            return None
        return names[min(len(names) - 1, int(len(names) * self.rng.random() ** 0.4))]

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(array, dtype)
        name = self.name("c")
        if self.around is not None or self.chance(0.3):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        else:
            self.constants[name] = array
        self.root().hidden = {**getattr(self.root(), "hidden", {}), name: array}
        return name

    def known(self, name: str) -> Values:
        hidden = getattr(self.root(), "hidden", {})
        if name in hidden:
            return (hidden[name],) * len(SIZES)
        return self.visible()[name]

    def add(self, operator: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str] | None:
        """Add a node if it runs; its outputs' names, or None."""
        names = [self.name() for _ in range(outputs)]
        if self.smooth and operator in JUMPS:
            return None
        node = helper.make_node(operator, list(inputs), names, **attributes)
        read = captured(node)
        feeds = [{name: self.known(name)[turn] for name in read} for turn in range(len(SIZES))]
        results = self.run(node, feeds)
        if results is None:
            return None
        self.nodes.append(node)
        for index, name in enumerate(names):
            self.values[name] = tuple(result[index] for result in results)
            self.made.append(name)
        return names

    def run(self, node: onnx.NodeProto, feeds: list[dict[str, Array]]) -> list[list[Array]] | None:
        graph = helper.make_graph(
            [node],
            "one",
            [typed(name, array) for name, array in feeds[0].items()],
            [onnx.ValueInfoProto(name=name) for name in node.output],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), quiet(), ["CPUExecutionProvider"])
            results = [session.run(None, each) for each in feeds]
        except Exception:  # noqa: BLE001 - then it is no node
            return None
        for result in results:
            for array in result:
                if not isinstance(array, np.ndarray) or array.size > LARGEST or array.dtype not in ELEMENTS:
                    return None
                if self.smooth and array.dtype.kind == "f" and not (np.abs(array) < 1e3).all():
                    return None
        return results


def captured(node: onnx.NodeProto) -> list[str]:
    """What a node reads, its bodies' outer values included."""
    found = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            own = {value.name for value in attribute.g.input}
            for inner in attribute.g.node:
                found.update(dict.fromkeys(name for name in captured(inner) if name not in own))
                own.update(inner.output)
            found.update(dict.fromkeys(value.name for value in attribute.g.output if value.name not in own))
    return list(found)


def feeds_of(turn: int) -> dict[str, Array]:
    """The inputs of every drawn graph, at one of the sizes."""
    n = SIZES[turn]
    rng = np.random.default_rng(n)
    feeds: dict[str, Array] = {
        "x": rng.standard_normal((n, 3, 4)).astype(np.float32),
        "z": rng.standard_normal((n, 3, 4)).astype(np.float32),
        "u": rng.standard_normal((2, 3)).astype(np.float32),
        "image": rng.standard_normal((n, 2, 5, 6)).astype(np.float32),
        "wide": rng.standard_normal((n, 3)),
        "half": rng.standard_normal((3, 4)).astype(np.float16),
        "whole": rng.integers(-4, 5, (n, 3)),
        "small": rng.integers(-4, 5, (3, 4)).astype(np.int32),
        "mask": rng.random((n, 3, 4)) < 0.5,
        "flag": np.array(turn == 0),
    }
    feeds["x"].flat[:3] = -0.0
    return feeds


DIMS: dict[str, list[Any]] = {
    "x": ["N", 3, 4],
    "z": ["N", 3, 4],
    "u": [2, 3],
    "image": ["N", 2, 5, 6],
    "wide": ["N", 3],
    "half": [3, 4],
    "whole": ["N", 3],
    "small": [3, 4],
    "mask": ["N", 3, 4],
    "flag": [],
}


def finished(drawing: Drawing) -> onnx.ModelProto | None:
    """The model of a drawing: some of its ends are outputs, and the inputs that it reads are inputs."""
    rng = drawing.rng
    read = {name for node in drawing.nodes for name in captured(node)}
    ends = [name for name in drawing.made if name not in read]
    others = [name for name in drawing.made if name in read]
    outputs = ends[-4:] + [name for name in others if rng.random() < 0.1][:2]
    if not outputs:
        return None
    used = {name for node in drawing.nodes for name in captured(node)}
    feeds = feeds_of(0)
    unnamed = rng.random() < 0.15  # dims that nothing is known of
    graph = helper.make_graph(
        drawing.nodes,
        "g",
        [typed(n, feeds[n], [None if unnamed and d == "N" else d for d in DIMS[n]]) for n in DIMS if n in used],
        [typed(n, drawing.values[n][0], [f"{n}_{i}" for i in range(drawing.values[n][0].ndim)]) for n in outputs],
        [numpy_helper.from_array(array, name) for name, array in drawing.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", drawing.opset)], ir_version=10)
