"""Random graphs, valid by construction: every preset keeps their outputs, bit for bit where all its passes "
"are exact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.optimizers import passes

N = "N"
UNARY = "Relu Neg Abs Exp Sigmoid Tanh Identity Sqrt Reciprocal Softplus".split()
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min"]


@dataclass
class Builder:
    """A graph that grows node by node; every value is float32 and its shape is known, ``N`` being symbolic."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    count: int = 0
    inside: bool = False  # a body, whose constants are nodes

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(array, dtype)
        name = self.name("c")
        if self.inside or self.rng.random() < 0.3:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        else:
            self.constants[name] = array
        return name

    def node(self, operator: str, inputs: list[str], shape: tuple[Any, ...] | None, **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        if shape is not None:
            self.values[name] = shape
        return name

    def pick(self) -> str:
        names = list(self.values)
        # Late values more often, so that chains grow.
        return names[min(len(names) - 1, int(len(names) * self.rng.random() ** 0.5))]

    def grow(self) -> None:
        moves = [
            *(self.unary, self.binary, self.neutral, self.transpose, self.reshape, self.concat, self.split, self.slice),
            *(
                self.view_by_shape,
                self.expand,
                self.reduce,
                self.matmul,
                self.pad,
                self.clip,
                self.squeeze,
                self.gather,
            ),
            *(self.cast, self.twice, self.norm, self.where, self.choose, self.repeat),
        ]
        moves[self.rng.integers(len(moves))]()

    def unary(self) -> None:
        x = self.pick()
        self.node(str(self.rng.choice(UNARY)), [x], self.values[x])

    def binary(self) -> None:
        x = self.pick()
        shape = self.values[x]
        same = [name for name, other in self.values.items() if other == shape]
        other = str(self.rng.choice(same))
        if self.rng.random() < 0.5 and shape:
            numbers = self.rng.standard_normal([1 if d == N or self.rng.random() < 0.5 else d for d in shape])
            other = self.constant(numbers, np.float32)
        pair = [x, other] if self.rng.random() < 0.5 else [other, x]
        self.node(str(self.rng.choice(BINARY)), pair, shape)

    def neutral(self) -> None:
        x = self.pick()
        operator, number = [("Add", 0.0), ("Add", -0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0), ("Pow", 1.0)][
            self.rng.integers(6)
        ]
        rank = int(self.rng.integers(0, len(self.values[x]) + 1))
        other = self.constant(np.full((1,) * rank, number), np.float32)
        swap = operator in ("Add", "Mul") and self.rng.random() < 0.5
        self.node(operator, [other, x] if swap else [x, other], self.values[x])

    def transpose(self) -> None:
        x = self.pick()
        order = [int(axis) for axis in self.rng.permutation(len(self.values[x]))]
        if order:
            self.node("Transpose", [x], tuple(self.values[x][axis] for axis in order), perm=order)

    def reshape(self) -> None:
        x = self.pick()
        shape = self.values[x]
        if shape.count(N) > 1:
            return
        fixed = int(np.prod([d for d in shape if d != N]))
        choices: list[tuple[list[int], tuple[Any, ...]]] = []
        if N in shape:
            choices.append(([-1, fixed], (N, fixed)))
            choices.append(([fixed, -1], (fixed, N)))
            if fixed % 2 == 0:
                choices.append(([2, -1, fixed // 2], (2, N, fixed // 2)))
            if shape[0] == N:
                choices.append(([0, -1], (N, fixed)))
        else:
            choices.append(([-1], (fixed,)))
            choices.append(([1, fixed], (1, fixed)))
        target, result = choices[self.rng.integers(len(choices))]
        self.node("Reshape", [x, self.constant(target)], result)

    def view_by_shape(self) -> None:
        x = self.pick()
        shape = self.values[x]
        if len(shape) < 2 or shape.count(N) > 1:
            return
        measured = self.node("Shape", [x], None)
        parts = []
        for axis in range(2):
            dim = self.node("Gather", [measured, self.constant(axis)], None)
            parts.append(self.node("Unsqueeze", [dim, self.constant([0])], None))
        rest = list(shape[2:])
        if N in rest:
            return
        product = int(np.prod(rest)) if rest else 1
        if self.rng.random() < 0.5:
            target = self.node("Concat", [*parts, self.constant([product])], None, axis=0)
            self.node("Reshape", [x, target], (*shape[:2], product))
        else:
            both = self.node("Mul", parts, None)
            target = self.node("Concat", [both, self.constant([product])], None, axis=0)
            if shape[0] != N and shape[1] != N:
                self.node("Reshape", [x, target], (shape[0] * shape[1], product))
            elif 1 in shape[:2]:
                self.node("Reshape", [x, target], (N, product))
            else:
                self.node("Reshape", [x, target], None)

    def expand(self) -> None:
        x = self.pick()
        shape = self.values[x]
        if self.rng.random() < 0.5:
            target = self.node("Shape", [x], None)
            row = self.constant(
                self.rng.standard_normal(() if self.rng.random() < 0.5 else (1,) * len(shape)), np.float32
            )
            wide = self.node("Expand", [row, target], shape)
            self.node(str(self.rng.choice(BINARY)), [x, wide], shape)
        elif shape and shape[0] == 1:
            self.node("Expand", [x, self.constant([3] + [1] * (len(shape) - 1))], (3, *shape[1:]))

    def concat(self) -> None:
        x = self.pick()
        shape = self.values[x]
        axes = [axis for axis, d in enumerate(shape) if d != N]
        if not axes:
            return
        axis = int(self.rng.choice(axes))
        like = [
            n
            for n, s in self.values.items()
            if len(s) == len(shape)
            and all(a == b or i == axis for i, (a, b) in enumerate(zip(s, shape, strict=True)))
            and s[axis] != N
        ]
        others = [str(self.rng.choice(like)) for _ in range(int(self.rng.integers(0, 3)))]
        total = shape[axis] + sum(self.values[n][axis] for n in others)
        if total < 40:
            self.node("Concat", [x, *others], (*shape[:axis], total, *shape[axis + 1 :]), axis=axis)

    def split(self) -> None:
        x = self.pick()
        shape = self.values[x]
        axes = [axis for axis, d in enumerate(shape) if d != N and d > 1]
        if not axes:
            return
        axis = int(self.rng.choice(axes))
        first = int(self.rng.integers(1, shape[axis]))
        names = [self.name(), self.name()]
        self.nodes.append(helper.make_node("Split", [x, self.constant([first, shape[axis] - first])], names, axis=axis))
        for name, size in zip(names, (first, shape[axis] - first), strict=True):
            self.values[name] = (*shape[:axis], size, *shape[axis + 1 :])
        if self.rng.random() < 0.5:
            order = names if self.rng.random() < 0.7 else names[::-1]
            self.node("Concat", order, shape, axis=axis)

    def slice(self) -> None:
        x = self.pick()
        shape = self.values[x]
        axes = [axis for axis, d in enumerate(shape) if d != N]
        if not axes:
            return
        axis = int(self.rng.choice(axes))
        start, end = sorted(int(i) for i in self.rng.integers(0, shape[axis] + 1, 2))
        step = int(self.rng.choice([1, 1, 2, -1]))
        if step < 0:
            start, end = -1, -1000
        elif self.rng.random() < 0.3:
            start, end = 0, 2**63 - 1
        length = len(range(*slice(start, None if step < 0 else end, step).indices(shape[axis])))
        if length == 0:
            return
        bounds = [self.constant([number]) for number in (start, end, axis, step)]
        self.node("Slice", [x, *bounds], (*shape[:axis], length, *shape[axis + 1 :]))

    def reduce(self) -> None:
        x = self.pick()
        shape = self.values[x]
        if not shape:
            return
        axis = int(self.rng.integers(len(shape)))
        keep = int(self.rng.integers(2))
        operator = str(self.rng.choice(["ReduceSum", "ReduceMax", "ReduceMean"]))
        left = tuple(1 if i == axis else d for i, d in enumerate(shape) if keep or i != axis)
        if operator == "ReduceSum":
            name = self.node(operator, [x, self.constant([axis])], left, keepdims=keep)
        else:
            name = self.node(operator, [x], left, keepdims=keep, axes=[axis])
        if keep and self.rng.random() < 0.5:
            self.node("Squeeze", [name, self.constant([axis])], tuple(d for i, d in enumerate(left) if i != axis))

    def matmul(self) -> None:
        x = self.pick()
        shape = self.values[x]
        if len(shape) < 2 or shape[-1] == N:
            return
        width = int(self.rng.integers(1, 5))
        weight = self.constant(self.rng.standard_normal((shape[-1], width)), np.float32)
        if self.rng.random() < 0.3:
            weight = self.node(
                "Transpose",
                [self.constant(self.rng.standard_normal((width, shape[-1])), np.float32)],
                None,
                perm=[1, 0],
            )
        product = self.node("MatMul", [x, weight], (*shape[:-1], width))
        if self.rng.random() < 0.7:
            bias = self.constant(self.rng.standard_normal(width if self.rng.random() < 0.7 else 1), np.float32)
            product = self.node("Add", [product, bias], (*shape[:-1], width))
        if self.rng.random() < 0.3:
            factor = self.constant(self.rng.standard_normal(width), np.float32)
            self.node("Mul", [product, factor], (*shape[:-1], width))

    def norm(self) -> None:
        x = self.pick()
        shape = self.values[x]
        if len(shape) < 2 or shape[1] == N:
            return
        numbers = [self.constant(self.rng.uniform(0.5, 2, shape[1]), np.float32) for _ in range(4)]
        self.node("BatchNormalization", [x, *numbers], shape)

    def pad(self) -> None:
        x = self.pick()
        shape = self.values[x]
        amounts = [0] * (2 * len(shape))
        axes = [axis for axis, d in enumerate(shape) if d != N]
        if axes and self.rng.random() < 0.5:
            amounts[int(self.rng.choice(axes))] = 1
        if shape:
            result = tuple(d if d == N else d + amounts[i] for i, d in enumerate(shape))
            self.node("Pad", [x, self.constant(amounts)], result)

    def clip(self) -> None:
        x = self.pick()
        low, high = sorted(self.rng.normal(size=2) * 2)
        bounds = [self.constant(low, np.float32), self.constant(high, np.float32)]
        self.node("Clip", [x, *bounds], self.values[x])

    def squeeze(self) -> None:
        x = self.pick()
        shape = self.values[x]
        axis = int(self.rng.integers(len(shape) + 1))
        wide = self.node("Unsqueeze", [x, self.constant([axis])], (*shape[:axis], 1, *shape[axis:]))
        if self.rng.random() < 0.5:
            self.node("Squeeze", [wide, self.constant([axis])], shape)

    def gather(self) -> None:
        x = self.pick()
        shape = self.values[x]
        axes = [axis for axis, d in enumerate(shape) if d != N]
        if axes:
            axis = int(self.rng.choice(axes))
            index = int(self.rng.integers(shape[axis]))
            self.node("Gather", [x, self.constant(index)], shape[:axis] + shape[axis + 1 :], axis=axis)

    def cast(self) -> None:
        x = self.pick()
        middle = int(self.rng.choice([TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16]))
        a = self.node("Cast", [x], None, to=middle)
        self.node("Cast", [a], self.values[x], to=TensorProto.FLOAT)

    def twice(self) -> None:
        x = self.pick()
        operator = str(self.rng.choice(UNARY))
        a, b = (self.node(operator, [x], self.values[x]) for _ in range(2))
        self.node("Sub", [a, b], self.values[x])

    def where(self) -> None:
        x = self.pick()
        condition = self.constant(bool(self.rng.integers(2)), np.bool_)
        self.node("Where", [condition, x, self.constant(0.5, np.float32)], self.values[x])

    def body(self, start: int, x: str) -> tuple[Builder, str]:
        """Nodes of a body that see everything around it; ``start`` numbers their names, so siblings share some."""
        inner = Builder(self.rng, [], {}, dict(self.values), start, inside=True)
        moves = [
            inner.unary,
            inner.binary,
            inner.neutral,
            inner.twice,
            inner.clip,
            inner.cast,
            inner.squeeze,
            inner.where,
        ]
        for _ in range(int(self.rng.integers(1, 5))):
            moves[self.rng.integers(len(moves))]()
        like = [name for name, shape in inner.values.items() if shape == self.values[x]]
        return inner, inner.node("Add", [x, str(self.rng.choice(like[-3:]))], self.values[x])

    def choose(self) -> None:
        x = self.pick()
        bodies = {}
        start = self.count
        for name in ("then_branch", "else_branch"):
            inner, result = self.body(start, x)
            output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
            bodies[name] = helper.make_graph(inner.nodes, name, [], [output])
            self.count = max(self.count, inner.count)
        condition = "flag" if self.rng.random() < 0.5 else self.constant(bool(self.rng.integers(2)), np.bool_)
        self.node("If", [condition], self.values[x], **bodies)

    def repeat(self) -> None:
        x = self.pick()
        inner = Builder(self.rng, [], {}, dict(self.values), self.count + 3, inside=True)
        turn, going, state = (f"v{self.count + i}" for i in (1, 2, 3))
        inner.values[state] = self.values[x]
        inner, result = inner.body(inner.count, state)
        self.count = inner.count
        goes_on = self.name()
        inner.nodes.append(helper.make_node("Identity", [going], [goes_on]))
        body = helper.make_graph(
            inner.nodes,
            "body",
            [
                helper.make_tensor_value_info(turn, TensorProto.INT64, []),
                helper.make_tensor_value_info(going, TensorProto.BOOL, []),
                helper.make_tensor_value_info(state, TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []),
                helper.make_tensor_value_info(result, TensorProto.FLOAT, None),
            ],
        )
        self.node("Loop", [self.constant(2), self.constant(True, np.bool_), x], self.values[x], body=body)


def build(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    builder = Builder(rng)
    builder.values = {"x": (N, 3, 4), "z": (N, 3, 4), "u": (2, 3)}
    inputs = dict(builder.values)
    while len(builder.nodes) < 5 + seed % 25:
        builder.grow()
    read = {name for node in builder.nodes for name in node.input}
    ends = [name for name in builder.values if name not in read and name not in inputs]
    chosen = list(dict.fromkeys([*ends[-3:], *rng.choice(list(builder.values), 2)]))
    outputs = [name for name in chosen if name not in inputs] or [builder.node("Neg", ["x"], inputs["x"])]
    graph = helper.make_graph(
        builder.nodes,
        "g",
        [
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in inputs.items()),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"d{i}_{n}" for i in range(len(builder.values[n]))])
            for n in outputs
        ],
        [numpy_helper.from_array(array, name) for name, array in builder.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


EXACT = [name for name, made in passes().items() if made.tolerance == 0]


def feeds(size: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(size)
    made = {name: rng.standard_normal((size, 3, 4)).astype(np.float32) for name in ("x", "z")}
    made["u"] = rng.standard_normal((2, 3)).astype(np.float32)
    made["x"].flat[:3] = -0.0
    made["flag"] = np.array(size % 2 == 0)
    return made


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def hold(prove, seed: int) -> None:
    model = build(seed)
    try:
        running = onnxruntime.InferenceSession(model.SerializeToString(), quiet(), providers=["CPUExecutionProvider"])
        running.run(None, feeds(2))
        running.run(None, feeds(5))
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        return  # the runtime itself loses a captured value that only a dead node of a branch reads
    prove(model, feeds(2), feeds(5), passes=EXACT, tolerance=1e-5, grow=400)
    for preset in ("inference", "training"):
        prove(model, feeds(2), feeds(5), preset=preset, tolerance=2e-3, grow=400)


@pytest.mark.parametrize("seed", range(20))
def test_random_graph(prove, seed):
    hold(prove, seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_graphs(prove, block):
    for seed in range(20 + 99 * block, 119 + 99 * block):
        hold(prove, seed)
