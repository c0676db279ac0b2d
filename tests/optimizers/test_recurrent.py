"""Unrolled recurrent cells become LSTM and GRU, in every layout; look-alikes do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from tests.optimizers.conftest import operators

BATCH, INPUTS, SIZE = 3, 4, 5


@dataclass
class Builder:
    """A graph of unrolled cells in one of many layouts."""

    steps: int = 4
    order: str = "ifgo"
    layout: str = "gemm"  # gemm, matmul, joined, apart or projected
    cut: str = "split"  # split or slices
    take: str = "gather"  # gather, gather0, split, inputs or backwards
    dtype: Any = np.float32
    batch: Any = BATCH
    bias: bool = True
    start: str = "inputs"  # inputs or zeros
    give: str = "last"  # last, all or cells
    change: str = ""  # one thing that makes it no LSTM or GRU
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    count: int = 0

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{self.count + i}" for i in range(outputs)]
        self.count += outputs
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any, name: str = "") -> str:
        name = name or f"k{len(self.constants)}"
        self.constants.setdefault(name, np.asarray(array))
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64), "i" + "_".join(map(str, numbers)))

    def weights(self) -> None:
        rng = np.random.default_rng(0)
        gates = len(self.order)
        self.arrays = {
            "w": rng.standard_normal((INPUTS, gates * SIZE)).astype(self.dtype) / 2,
            "r": rng.standard_normal((SIZE, gates * SIZE)).astype(self.dtype) / 2,
            "b": rng.standard_normal(gates * SIZE).astype(self.dtype),
            "p": rng.standard_normal(gates * SIZE).astype(self.dtype),
        }

    def input(self, t: int) -> str:
        if self.take == "inputs":
            return f"x{t}"
        if self.take == "split":
            if t == 0:
                parts = self.op("Split", "x", self.ints(*[1] * self.steps), outputs=self.steps, axis=1)
                self.parts = parts if self.steps > 1 else [parts]
            return self.op("Squeeze", self.parts[t], self.ints(1))
        place = self.steps - 1 - t if self.take == "backwards" else t
        return self.op(
            "Gather", "x", self.constant(np.int64(place), f"t{place}"), axis=0 if self.take == "gather0" else 1
        )

    def linear(self, value: str, matrix: str, bias: str) -> str:
        if self.layout == "matmul" or value == "x":
            product = self.op("MatMul", value, self.constant(self.arrays[matrix], matrix))
            return self.op("Add", product, self.constant(self.arrays[bias], bias)) if self.bias else product
        more = [self.constant(self.arrays[bias], bias)] if self.bias else []
        return self.op("Gemm", value, self.constant(self.arrays[matrix].T.copy(), f"{matrix}_t"), *more, transB=1)

    def gates(self, value: str) -> dict[str, str]:
        if self.cut == "split":
            sizes = self.ints(*[SIZE] * len(self.order))
            return dict(zip(self.order, self.op("Split", value, sizes, outputs=len(self.order), axis=1), strict=True))
        bounds = [(i * SIZE, (i + 1) * SIZE) for i in range(len(self.order))]
        parts = [self.op("Slice", value, self.ints(a), self.ints(b), self.ints(1)) for a, b in bounds]
        return dict(zip(self.order, parts, strict=True))

    def cell(self, x: str, h: str) -> dict[str, str]:
        """Each gate before its activation."""
        if self.layout == "apart":
            found = {}
            for index, gate in enumerate(self.order):
                part = slice(index * SIZE, (index + 1) * SIZE)
                a = self.op("MatMul", x, self.constant(self.arrays["w"][:, part], f"w_{gate}"))
                b = self.op("MatMul", h, self.constant(self.arrays["r"][:, part], f"r_{gate}"))
                total = self.op("Add", b, a)
                found[gate] = self.op("Add", total, self.constant(self.arrays["b"][part], f"b_{gate}"))
            return found
        if self.layout == "joined":
            both = self.op("Concat", x, h, axis=1)
            matrix = self.constant(np.concatenate([self.arrays["w"], self.arrays["r"]]), "wr")
            return self.gates(self.op("Add", self.op("MatMul", both, matrix), self.constant(self.arrays["b"], "b")))
        left = x if self.layout == "projected" else self.linear(x, "w", "b")
        return self.gates(self.op("Add", left, self.linear(h, "r", "p")))

    def graph(self) -> onnx.ModelProto:
        self.weights()
        zero = self.constant(np.zeros((BATCH, SIZE), self.dtype), "zeros") if self.start == "zeros" else ""
        h, c = zero or "h0", zero or "c0"
        given, cells = [], []
        if self.layout == "projected":
            whole = self.linear("x", "w", "b")
            steps = [self.op("Gather", whole, self.constant(np.int64(t), f"t{t}"), axis=1) for t in range(self.steps)]
        for t in range(self.steps):
            x = steps[t] if self.layout == "projected" else self.input(t)
            h, c = self.step(x, h, c)
            given.append(h)
            cells.append(c)
        ends = {"last": [given[-1], cells[-1]], "all": [*given, cells[-1]], "cells": [given[-1], *cells]}[self.give]
        outputs = [value for value in dict.fromkeys(ends) if value]
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        info = onnx.helper.make_tensor_value_info
        shape = [self.steps, self.batch, INPUTS] if self.take == "gather0" else [self.batch, self.steps, INPUTS]
        inputs = [info("x", kind, shape)]
        if self.take == "inputs":
            inputs = [info(f"x{t}", kind, [self.batch, INPUTS]) for t in range(self.steps)]
        if not zero:
            inputs += [
                info(name, kind, [self.batch, SIZE]) for name in ("h0", "c0") if name == "h0" or "o" in self.order
            ]
        graph = onnx.helper.make_graph(
            self.nodes,
            "g",
            inputs,
            [info(name, kind, [self.batch, SIZE]) for name in outputs],
            [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)

    def step(self, x: str, h: str, c: str) -> tuple[str, str]:
        gates = self.cell(x, h)
        i, f, o = (self.op("Sigmoid", gates[name]) for name in "ifo")
        g = self.op("Sigmoid" if self.change == "another activation" else "Tanh", gates["g"])
        left = self.op("Mul", i if self.change == "gate twice" else f, c)
        c = self.op("Add", left, self.op("Mul", i, g))
        if self.change == "peephole":
            o = self.op("Sigmoid", self.op("Add", gates["o"], c))
        return self.op("Mul", o, c if self.change == "no tanh" else self.op("Tanh", c)), c


class GRU(Builder):
    """The same for gated recurrent units; ``change`` tells where the reset gate is."""

    def step(self, x: str, h: str, c: str) -> tuple[str, str]:
        if self.change == "reset before":
            parts = {
                name: self.gates(self.linear(value, m, b))
                for name, value, m, b in (("x", x, "w", "b"), ("h", h, "r", "p"))
            }
            r, z = (self.op("Sigmoid", self.op("Add", parts["x"][g], parts["h"][g])) for g in "rz")
            part = slice(self.order.index("n") * SIZE, (self.order.index("n") + 1) * SIZE)
            inner = self.op("MatMul", self.op("Mul", r, h), self.constant(self.arrays["r"][:, part], "r_n"))
            n = self.op("Tanh", self.op("Add", parts["x"]["n"], inner))
        else:
            parts = {
                name: self.gates(self.linear(value, m, b))
                for name, value, m, b in (("x", x, "w", "b"), ("h", h, "r", "p"))
            }
            r, z = (self.op("Sigmoid", self.op("Add", parts["h"][g], parts["x"][g])) for g in "rz")
            n = self.op("Tanh", self.op("Add", parts["x"]["n"], self.op("Mul", r, parts["h"]["n"])))
        if self.change == "swapped":
            return self.op("Add", self.op("Mul", self.op("Sub", n, h), z), h), ""
        if self.change == "plain":
            rest = self.op("Sub", self.constant(np.ones((), self.dtype), "one"), z)
            return self.op("Add", self.op("Mul", rest, n), self.op("Mul", z, h)), ""
        return self.op("Add", self.op("Mul", self.op("Sub", h, n), z), n), ""


FUSED = {
    "gemm": Builder(),
    "another order": Builder(order="gofi"),
    "matmul and add": Builder(layout="matmul", cut="slices"),
    "joined": Builder(layout="joined", order="fiog"),
    "gates apart": Builder(layout="apart"),
    "projected at once": Builder(layout="projected"),
    "first axis": Builder(take="gather0"),
    "split steps": Builder(take="split"),
    "separate inputs": Builder(take="inputs"),
    "backwards": Builder(take="backwards", give="all"),
    "all states": Builder(give="all"),
    "one step": Builder(steps=1),
    "zero states": Builder(start="zeros"),
    "no bias": Builder(bias=False),
    "one gate for two": Builder(change="gate twice"),
    "gru": GRU(order="rzn"),
    "gru another order": GRU(order="znr", layout="matmul", take="gather0", give="all"),
    "gru plain": GRU(order="rzn", change="plain", take="backwards"),
    "gru reset before": GRU(order="zrn", change="reset before"),
    "gru zero state": GRU(order="rzn", start="zeros", give="all"),
    "gru one step": GRU(order="rzn", steps=1),
}


@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED.keys())
def test_fused(prove, case):
    result = prove(case.graph(), tolerance=1e-5, verify=True, strict=True, grow=600)
    found = operators(result)
    assert found["GRU" if isinstance(case, GRU) else "LSTM"] == 1
    assert not {"Sigmoid", "Tanh", "Mul", "MatMul", "Gemm"} & set(found), found


@pytest.mark.parametrize("case", [Builder(batch="N", give="all"), GRU(order="rzn", batch="N")], ids=["lstm", "gru"])
def test_a_batch_that_may_be_empty(prove, case):
    """The runtime's own kernels do not survive an empty batch, so it never reaches them."""
    model = case.graph()
    feeds = []
    for size in (0, 1, 4):
        rng = np.random.default_rng(size)
        shapes = {v.name: [d.dim_value or size for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        feeds.append({name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    found = operators(prove(model, *feeds, tolerance=1e-5, verify=True, strict=True, grow=1200))
    assert found["LSTM"] + found["GRU"] == 1
    assert not found["Sigmoid"]


def test_cell_states_that_are_read_cut_the_chain(prove):
    found = operators(prove(Builder(give="cells").graph(), tolerance=1e-5, grow=600))
    assert found["LSTM"] == 4
    assert not found["Tanh"]


def test_two_layers_and_their_stack(prove):
    """The second layer reads the states of the first, step by step in between, and its own are stacked."""
    one = Builder(steps=3, start="zeros", give="all")
    one.weights()
    zeros = one.constant(np.zeros((BATCH, SIZE), np.float32), "zeros")
    h, c, k, d, rows = zeros, zeros, zeros, zeros, []
    for t in range(3):
        h, c = one.step(one.input(t), h, c)
        one.layout = "apart"
        gates = {}
        for index, gate in enumerate("ifgo"):
            part = slice(index * SIZE, (index + 1) * SIZE)
            a = one.op("MatMul", h, one.constant(one.arrays["r"][:, part] * 2, f"w2_{gate}"))
            gates[gate] = one.op("Add", a, one.op("MatMul", k, one.constant(one.arrays["r"][:, part], f"r2_{gate}")))
        i, f, o = (one.op("Sigmoid", gates[name]) for name in "ifo")
        d = one.op("Add", one.op("Mul", f, d), one.op("Mul", i, one.op("Tanh", gates["g"])))
        k = one.op("Mul", o, one.op("Tanh", d))
        one.layout = "gemm"
        rows.append(one.op("Unsqueeze", k, one.ints(1)))
    y = one.op("Concat", *rows, axis=1)
    info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    constants = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in one.constants.items()]
    x, out = info("x", kind, [BATCH, 3, INPUTS]), info(y, kind, [BATCH, 3, SIZE])
    graph = onnx.helper.make_graph(one.nodes, "g", [x], [out], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    found = operators(prove(model, tolerance=1e-5, verify=True, strict=True))
    assert found == {"LSTM": 2, "Transpose": 2, "Reshape": 2}


KEPT = {
    "float64": Builder(dtype=np.float64),
    "another activation": Builder(change="another activation"),
    "no tanh": Builder(change="no tanh"),
    "peephole": Builder(change="peephole"),
    "one step of a batch that may be empty": Builder(batch="N", steps=1),
    "gru with its gate the other way round": GRU(order="rzn", change="swapped"),
}


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_kept(prove, case):
    found = operators(prove(case.graph(), tolerance=1e-5))
    assert not {"LSTM", "GRU"} & set(found)


def test_inside_a_branch(prove):
    model = Builder().graph()
    (h, c), names = [value.name for value in model.graph.output], ["y", "z"]
    info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    outs = [info(name, kind, [BATCH, SIZE]) for name in (h, c)]
    other = [onnx.helper.make_node("Identity", [name], [f"{name}_same"]) for name in ("h0", "c0")]
    no = onnx.helper.make_graph(other, "no", [], [info(f"{name}_same", kind, [BATCH, SIZE]) for name in ("h0", "c0")])
    yes = onnx.helper.make_graph(list(model.graph.node), "yes", [], outs)
    branch = onnx.helper.make_node("If", ["cond"], names, then_branch=yes, else_branch=no)
    inputs = [*model.graph.input, info("cond", onnx.TensorProto.BOOL, [])]
    given = [info(name, kind, [BATCH, SIZE]) for name in names]
    graph = onnx.helper.make_graph([branch], "g", inputs, given, list(model.graph.initializer))
    whole = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    found = operators(prove(whole, tolerance=1e-5, grow=200))
    assert found["LSTM"] == 1
    assert not {"Sigmoid", "Tanh"} & set(found)


def test_a_large_weight_that_is_read_elsewhere_is_not_copied(prove, monkeypatch):
    """The packed copy would make the file larger."""
    monkeypatch.setattr("tests.optimizers.test_recurrent.SIZE", 64)
    model = Builder(layout="joined").graph()
    model.graph.node.append(onnx.helper.make_node("Identity", ["wr"], ["again"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("again", onnx.TensorProto.FLOAT, [INPUTS + 64, 256]))
    assert not operators(prove(model, tolerance=1e-5))["LSTM"]


def test_never_on_a_training_graph(prove):
    assert not operators(prove(Builder().graph(), preset="training", tolerance=1e-6))["LSTM"]
