"""Seconds to add gradients to graphs of 20,000 nodes, and of a tenth of that: the time grows with the nodes.

    python -m benchmarks.build_time [--nodes 20000]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

import graphkit as gk
from graphkit.optimizers import add_gradients
from models import gpt

GOAL = 10.0


def chain(nodes: int) -> tuple[onnx.ModelProto, list[str]]:
    """MatMul, Add, Tanh and a residual Add, over and over, all with one weight."""
    made, last = [], "x"
    for n in range(nodes // 4):
        made += [
            helper.make_node("MatMul", [last, "w"], [f"m{n}"]),
            helper.make_node("Add", [f"m{n}", "b"], [f"a{n}"]),
            helper.make_node("Tanh", [f"a{n}"], [f"t{n}"]),
            helper.make_node("Add", [f"t{n}", last], [f"r{n}"]),
        ]
        last = f"r{n}"
    made.append(helper.make_node("ReduceMean", [last], ["loss"], keepdims=0))
    values = {"w": np.eye(4, dtype=np.float32), "b": np.zeros(4, np.float32)}
    graph = helper.make_graph(
        made, "chain", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), list(values)


def transformer(nodes: int) -> tuple[onnx.ModelProto, list[str]]:
    """A GPT of as many layers as it takes, with its loss; each has weights of its own."""
    model = gpt.GPT(64, 32, max(1, nodes // 36), 2, 16)

    class Loss:
        named_tensors = staticmethod(model.named_tensors)

        def __call__(self, x: Any, labels: Any) -> Any:
            return gk.nn.cross_entropy(model(x), labels)

    tokens = gk.spec("int64", ["batch", 16])
    traced = gk.trace(Loss(), tokens, tokens, output_names=["loss"])
    return ir.to_proto(traced), [name for name, _ in model.named_parameters()]


def main() -> None:
    """Build and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    options = parser.parse_args()
    for make in (chain, transformer):
        for nodes in (options.nodes // 10, options.nodes):
            model, names = make(nodes)
            started, ran = time.perf_counter(), time.process_time()
            made = add_gradients(model, "loss", names)
            wall, busy = time.perf_counter() - started, time.process_time() - ran
            print(
                f"{make.__name__}: {len(model.graph.node):,} nodes, {len(made.graph.node):,} with the gradients of "
                f"{len(names):,} weights: {wall:.1f} s, of which {busy:.1f} on the processor (goal {GOAL:g} at 20,000)",
                flush=True,
            )


if __name__ == "__main__":
    main()
