"""The estimate of what a run's values take, from producer to last reader, views and in-place writes included."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest

import graphkit as gk
from graphkit.modelfile import borrow_model
from graphkit.optimizers.liveness import ValueBytes, as_run, live_bytes, peak_activation_bytes, step_of
from tests.optimizers.conftest import parse, random_feeds

# A float[N, 10] at N = 1 takes 40 bytes. y is an output and does not count.
PEAKS = {
    "one node": ("{y = Abs(x)}", {}, 0),
    "a chain holds two": ("{a = Softmax(x) b = Softmax(a) y = Softmax(b)}", {}, 80),
    "in place": ("{a = Softmax(x) b = Exp(a) c = Exp(b) y = Softmax(c)}", {}, 40),
    "not over an input that is read again": ("{a = Softmax(x) b = Exp(a) y = Add(a, b)}", {}, 80),
    "not over one of another size": ("{s = ReduceSum(x) a = Add(x, s) y = Softmax(a)}", {}, 44),
    "read late": ("{a = Softmax(x) b = Softmax(a) c = Softmax(b) d = Softmax(c) y = Add(a, d)}", {}, 120),
    "inputs do not count": ("{a = Softmax(x) y = Add(x, a)}", {}, 40),
    "a view": ("{a = Softmax(x) s = Shape(a) b = Reshape(a, s) y = Softmax(b)}", {}, 56),
    "a view of an input": ("{a = Flatten(x) y = Softmax(a)}", {}, 0),
    "what a view shows lives on": (
        "{c = Softmax(x) d = Softmax(c) a = Softmax(x) b = Flatten(a) y = Add(b, d)}", {}, 120,
    ),
    "unread outputs go": (
        "{a, b = Split<axis = 1, num_outputs = 2>(x) c = Softmax(a) y = Concat<axis = 1>(c, c)}", {}, 40,
    ),
    "a named dim": ("{a = Softmax(x) y = Softmax(a)}", {"N": 100}, 4000),
    "another dim's size": ("{a = Softmax(x) y = Softmax(a)}", {"M": 100}, 40),
    "a computed dim": ("{a = Concat<axis = 0>(x, x) y = ReduceSum(a)}", {"N": 100}, 8000),
    "another dtype": ("{a = Cast<to = 11>(x) y = Cast<to = 1>(a)}", {}, 80),
    "a constant is no activation": ("{c = Constant<value_floats = [1., 2.]>() r = ReduceSum(c) y = Add(x, r)}", {}, 4),
    # What a node reads is run from the last to the first: c before a.
    "not in the order of the file": (
        "{a = Softmax(x) c = Softmax(x) d = ReduceSum(c) z = Abs(d) y = Add(a, z)}", {}, 44,
    ),
    "a branch counts while it runs": (
        "{k = Softmax(x) s = ReduceSum<keepdims = 0>(k) c = Cast<to = 9>(s) r = If(c) <"
        "then_branch = t () => (float[N, 10] u) {p = Softmax(k) q = Softmax(p) u = Softmax(q)}, "
        "else_branch = e () => (float[N, 10] v) {v = Abs(k)}> y = Softmax(r)}", {}, 161,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "dims", "expected"), PEAKS.values(), ids=PEAKS)
def test_peaks_counted_by_hand(body: str, dims: dict[str, int], expected: int) -> None:
    outputs = "float y" if body.endswith("y = ReduceSum(a)}") else "float[N, 10] y"
    assert peak_activation_bytes(parse(f"g (float[N, 10] x) => ({outputs}) {body}", 18), dims) == expected


def test_parts_are_counted_apart() -> None:
    text = (
        "g (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {a = Exp(x) y = MatMul(a, w)}"
    )
    found = live_bytes(parse(text), {"N": 3})
    assert (found.inputs, found.initializers, found.outputs, found.activations, found.node) == (48, 32, 24, 48, "a")


def test_order_is_the_runtime_s(tmp_path: Path) -> None:
    net = gk.nn.Sequential(gk.nn.Linear(4, 8), gk.nn.relu, gk.nn.LayerNorm(8), gk.nn.Linear(8, 3))
    graph = gk.training.build(net, "cross_entropy", gk.optim.AdamW(), inputs={"x": gk.spec("float32", ["batch", 4])})
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "run")
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    options.log_severity_level = 4
    proto = gk.modelfile.protos.to_proto(graph.train)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, random_feeds(proto, 2))
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    run = [e["name"].removesuffix("_kernel_time") for e in events if e["name"].endswith("_kernel_time")]
    model = borrow_model(onnx.load(tmp_path / "run.onnx"))
    nodes, size = list(model.graph), ValueBytes(model)
    assert [nodes[place].name for place in as_run([step_of(node, size) for node in nodes])] == run
