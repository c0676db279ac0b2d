"""Activations that are computed again: the same numbers from less memory, whatever the runtime makes of the file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import graphkit as gk
import graphkit.optimizers
from graphkit import nn
from graphkit.errors import GraphkitError
from graphkit.modelfile import read_model
from graphkit.modelfile.protos import to_proto
from graphkit.optimizers import add_gradients, optimize, recompute
from graphkit.optimizers.liveness import ValueBytes, peak_activation_bytes, peak_of, step_of
from models.gpt import GPT
from models.resnet import ResNet
from tests.optimizers.conftest import parse, random_feeds

Arrays = dict[str, np.ndarray[Any, Any]]
LEVELS = {
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Block(nn.Module):
    def __init__(self, width: int, drop: float = 0.0) -> None:
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Any) -> Any:
        return x + self.narrow(self.drop(nn.relu(self.wide(self.norm(x)))))


class Unrolled(nn.Module):
    """An LSTM cell, written once for each of the steps."""

    def __init__(self, width: int, steps: int) -> None:
        self.width, self.steps = width, steps
        self.gates, self.head = nn.Linear(2 * width, 4 * width), nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        h = c = x[:, 0] * 0.0
        for t in range(self.steps):
            z = self.gates(gk.op.Concat(x[:, t], h, axis=-1))
            i, f, g, o = (z[:, k * self.width : (k + 1) * self.width] for k in range(4))
            c = gk.op.Sigmoid(f) * c + gk.op.Sigmoid(i) * gk.op.Tanh(g)
            h = gk.op.Sigmoid(o) * gk.op.Tanh(c)
        return self.head(h)


class Looped(nn.Module):
    """A Scan and an If, then blocks."""

    def __init__(self, width: int, blocks: int) -> None:
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))

    def forward(self, x: Any) -> Any:
        _, y = gk.scan(lambda c, e: (gk.op.Tanh(c + e), c * e), x[0] * 0.0, x)
        y = self.blocks(y)
        return gk.cond(gk.op.ReduceSum(y, keepdims=0) > 0.0, lambda v: v * 2.0, lambda v: v - 1.0, self.blocks(y))


def _same(block: nn.Module, times: int) -> nn.Module:
    return nn.Sequential(*[block] * times)


ROWS = 48
# The module, its input, how many times less memory the default must take at least
NETS: dict[str, tuple[Callable[[], nn.Module], list[Any], float]] = {
    "residual": (lambda: nn.Sequential(*(Block(16) for _ in range(16))), ["batch", 16], 2.5),
    "plain": (lambda: nn.Sequential(*[f for _ in range(30) for f in (nn.Linear(8, 8), nn.relu)]), ["batch", 8], 1.8),
    "dropout": (lambda: nn.Sequential(*(Block(16, 0.3) for _ in range(9))), ["batch", 16], 2.0),
    "tied weights": (lambda: _same(Block(16), 16), ["batch", 16], 2.5),
    "transformer": (lambda: GPT(layers=4, width=16, context=8, heads=2, vocabulary=16), ["batch", 8], 2.0),
    "transformer of any length": (
        lambda: GPT(layers=4, width=16, context=8, heads=2, vocabulary=16), ["batch", "time"], 2.0,
    ),
    "convolutions": (lambda: ResNet(widths=(4,), blocks=6), ["batch", 64], 1.5),
    "unrolled LSTM": (lambda: Unrolled(8, 12), ["batch", 12, 8], 2.0),
    "If and Scan": (lambda: Looped(16, 8), ["batch", 16], 2.0),
}  # fmt: skip


def build(name: str, **options: Any) -> tuple[gk.training.TrainingGraph, Arrays, dict[str, int]]:
    """The training graph of a net, everything it is fed, and its dims."""
    make, shape, _ = NETS[name]
    gk.random.seed(0)
    tokens = name.startswith("transformer")
    spec = gk.spec("int64" if tokens else "float32", shape)
    graph = gk.training.build(make(), "cross_entropy", gk.optim.SGD(0.1), inputs={"x": spec}, **options)
    rng = np.random.default_rng(0)
    dims = {"batch": ROWS, "time": 8}
    size = [dims.get(d, d) for d in shape]
    x = rng.integers(0, 16, size) if tokens else rng.standard_normal(size).astype("float32")
    labels = rng.integers(0, 4, size if tokens else size[:1])
    return graph, {"x": x, "labels": labels} | {k: np.asarray(v) for k, v in graph.state.items()}, dims


class Ran:
    """What a plain session of the runtime gave, and the peak of activations in the order that it ran the nodes in."""

    def __init__(
        self, model: Any, feeds: Arrays, dims: dict[str, int], level: str, folder: Path, runs: int = 1
    ) -> None:
        proto = model if isinstance(model, onnx.ModelProto) else to_proto(model)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = LEVELS[level], 4
        options.intra_op_num_threads = 1
        options.enable_profiling, options.profile_file_prefix = True, str(folder / f"{id(self)}")
        options.optimized_model_filepath = str(folder / f"{id(self)}.onnx")
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.names = [v.name for v in session.get_outputs()]
        self.results = [dict(zip(self.names, session.run(None, feeds), strict=True)) for _ in range(runs)]
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        ran = ir.from_proto(onnx.load(options.optimized_model_filepath))
        nodes = {node.name: node for node in ran.graph}
        self.operators = Counter(node.op_type for node in nodes.values())
        order = [e["name"].removesuffix("_kernel_time") for e in events if e["name"].endswith("_kernel_time")]
        size = ValueBytes(ran, dims)
        # A node of a body is in the events too, and one that ran twice is there twice.
        self.peak = peak_of([step_of(nodes[name], size) for name in dict.fromkeys(order) if name in nodes])[0]


def assert_equal(got: Arrays, expected: Arrays, tolerance: float = 0.0) -> None:
    assert got.keys() == expected.keys()
    for name, right in expected.items():
        np.testing.assert_allclose(got[name], right, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", NETS)
def test_computes_the_same_from_less_memory(name: str, tmp_path: Path) -> None:
    graph, feeds, dims = build(name)
    less = recompute(graph.train, dims=dims)
    assert [v.name for v in less.graph.outputs] == [v.name for v in graph.train.graph.outputs]
    for level in ("off", "all"):
        before, after = (Ran(m, feeds, dims, level, tmp_path) for m in (graph.train, less))
        # What the runtime fuses, it may fuse in one of the two only.
        assert_equal(after.results[0], before.results[0], 0.0 if level == "off" else 1e-6)
        assert before.peak > NETS[name][2] * after.peak, level
        if level == "off":
            assert [peak_activation_bytes(m, dims) for m in (graph.train, less)] == [before.peak, after.peak]


@pytest.mark.parametrize("segments", [1, 2, 5, 10_000])
def test_segments(segments: int, tmp_path: Path) -> None:
    graph, feeds, dims = build("residual")
    less = recompute(graph.train, segments, dims=dims)
    runs = [Ran(m, feeds, dims, "all", tmp_path) for m in (graph.train, less)]
    assert_equal(runs[1].results[0], runs[0].results[0], 1e-6)
    assert runs[1].peak < runs[0].peak or segments == 1
    # A product whose sum is kept need not be computed again, so that many segments repeat less.
    assert again(less, "Gemm") <= 16 if segments > 16 else again(less, "Gemm") >= 0


def again(model: Any, *operators: str) -> int:
    """How many nodes are there a second time."""
    return sum(
        "graphkit.recomputed" in n.metadata_props and (not operators or n.op_type in operators) for n in model.graph
    )


def test_memory_is_kept_to_and_used(tmp_path: Path) -> None:
    graph, feeds, dims = build("residual")
    whole = peak_activation_bytes(graph.train, dims)
    repeated = []
    for part in (0.8, 0.4):
        less = recompute(graph.train, memory=int(part * whole), dims=dims)
        repeated.append(again(less, "Gemm"))
        for level in ("basic", "all"):
            assert Ran(less, feeds, dims, level, tmp_path).peak <= part * whole
    assert repeated == sorted(repeated)
    assert again(recompute(graph.train, memory="2GiB", dims=dims)) == 0


TRANSFORMS = {
    "training preset": lambda m: optimize(m, "training"),
    "inference preset": lambda m: optimize(m, "inference"),
    "equal nodes": lambda m: optimize(m, passes=["merge_common", "merge_reshapes", "remove_reshape", "prune"]),
    "a file": lambda m: read_model(to_proto(m)),
    "asked for again": lambda m: optimize(m, passes=["recompute"]),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_passes_do_not_undo_it(transform: str, tmp_path: Path) -> None:
    graph, feeds, dims = build("unrolled LSTM")
    less = recompute(graph.train, dims=dims)
    rewritten = TRANSFORMS[transform](less)
    before, after = (Ran(m, feeds, dims, "all", tmp_path) for m in (less, rewritten))
    assert_equal(after.results[0], before.results[0], 1e-5)
    assert after.peak < 1.2 * before.peak


DROPS = {
    "seeded": "d{1}, m{1} = Dropout<seed = 7>(b{0}, r, t) ",
    "each its seed": "d{1}, m{1} = Dropout<seed = {1}>(b{0}, r, t) ",
    "by half": "d{1}, m{1} = Dropout<seed = 3>(b{0}, , t) ",
    "unknown ratio": "d{1}, m{1} = Dropout<seed = 3>(b{0}, p, t) ",
    "no mask": "d{1} = Dropout<seed = 5>(b{0}, r, t) ",
}


def chain(link: str = "d{1} = Sigmoid(b{0})", *, outputs: str = "") -> onnx.ModelProto:
    """Nine products with something behind each, and the gradients of a sum of squares."""
    numbered = [link.replace("{0}", str(n)).replace("{1}", str(n + 1)) for n in range(9)]
    nodes = " ".join(f"a{n} = MatMul(d{n}, w) b{n} = Tanh(a{n}) {each}" for n, each in enumerate(numbered))
    weight = ", ".join(["0.5, -0.25, 0.75, 1.0"] * 4)
    text = (
        f"g (float[N, 4] x, float p) => (float loss{outputs}) <float[4, 4] w = {{{weight}}}, float r = {{0.3}}, "
        f"bool t = {{1}}> {{d0 = Identity(x) {nodes} loss = ReduceSumSquare<keepdims = 0>(d9)}}"
    )
    return add_gradients(parse(text, 21), "loss", ["w", "x"])


@pytest.mark.parametrize("drop", DROPS)
def test_dropout_is_drawn_once(drop: str, tmp_path: Path) -> None:
    model = chain(DROPS[drop])
    less = recompute(model, 4, dims={"N": 64})
    feeds = {**random_feeds(model, 64), "p": np.array(0.4, np.float32)}
    before, after = (Ran(m, feeds, {"N": 64}, "off", tmp_path, runs=3) for m in (model, less))
    assert after.operators["Dropout"] == before.operators["Dropout"]
    assert again(read_model(less), "Tanh") > 0
    for got, expected in zip(after.results, before.results, strict=True):
        assert_equal(got, expected)
    assert not np.array_equal(after.results[0]["w_grad"], after.results[1]["w_grad"])


def test_running_statistics_are_updated_once(tmp_path: Path) -> None:
    norm = "d{1}, m{1}, v{1} = BatchNormalization<training_mode = 1>(d{0}, s, o, m{0}, v{0})"
    links = " ".join(norm.replace("{0}", str(n)).replace("{1}", str(n + 1)) for n in range(8))
    text = (
        "g (float[N, 4] x, float[4] m0, float[4] v0) => (float loss, float[4] m8, float[4] v8, float[N, 4] d5) "
        "<float[4] s = {1, 2, 3, 4}, float[4] o = {0, 0, 1, 1}> "
        f"{{d0 = Tanh(x) {links} loss = ReduceSumSquare<keepdims = 0>(d8) late = Add(m3, v4)}}"
    ).replace("float[N, 4] d5", "float[N, 4] d5, float[4] late")  # statistics that are read behind the forward
    model = add_gradients(parse(text, 21), "loss", ["s", "o"])
    less = recompute(model, 3, dims={"N": 64})
    assert again(read_model(less)) > 0
    feeds = random_feeds(model, 64)
    feeds["v0"] = np.abs(feeds["v0"])
    for level in LEVELS:
        given = {name: value.copy() for name, value in feeds.items()}
        before, after = (Ran(m, given, {"N": 64}, level, tmp_path, runs=2) for m in (model, less))
        for got, expected in zip(after.results, before.results, strict=True):
            assert_equal(got, expected)
        assert_equal(given, feeds)  # which the runtime's kernel would write over


def test_what_is_kept() -> None:
    model = chain("d{1} = Sigmoid(b{0})", outputs=", float[N, 4] b4")
    names = {n.outputs[0].name for n in read_model(recompute(model, 3, dims={"N": 64}, keep=["d3"])).graph}
    assert "b3_again" in names
    assert not {"d3_again", "b4_again"} & names  # one named, one an output of the model


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
def test_other_dtypes(dtype: str) -> None:
    nodes = " ".join(f"a{n} = MatMul(d{n}, w) b{n} = Tanh(a{n}) d{n + 1} = Sigmoid(b{n})" for n in range(9))
    text = (
        f"g ({dtype}[N, 4] d0, {dtype}[4, 4] w) => ({dtype} loss) {{{nodes} loss = ReduceSumSquare<keepdims = 0>(d9)}}"
    )
    less = recompute(add_gradients(parse(text, 21), "loss", ["w"]), 3, dims={"N": 64})
    onnx.checker.check_model(less, full_check=True)
    assert again(read_model(less)) > 0


class Checkpointed(nn.Module):
    """Groups of blocks, of each of which only the input is kept."""

    def __init__(self, groups: int, size: int, keep: bool) -> None:
        self.groups = [nn.Sequential(*(Block(16) for _ in range(size))) for _ in range(groups)]
        self.keep = keep

    def forward(self, x: Any) -> Any:
        for group in self.groups:
            x = group(x) if self.keep else gk.checkpoint(group)(x)
        return x


def test_checkpoint_holds_in_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {}
    for keep in (True, False):
        monkeypatch.setitem(NETS, "groups", (lambda keep=keep: Checkpointed(5, 4, keep), ["batch", 16], 2.0))
        graph, feeds, dims = build("groups")
        runs[keep] = [Ran(graph.train, feeds, dims, level, tmp_path) for level in LEVELS]
    for before, after in zip(runs[True], runs[False], strict=True):
        assert_equal(after.results[0], before.results[0], 1e-6)
        assert before.peak > 2 * after.peak


REFUSALS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "no loss": (lambda: recompute(chain(), of="los"), ["'los'", "'loss'"]),
    "no gradients": (
        lambda: recompute(parse("g (float[N] x) => (float loss) {loss = ReduceSum<keepdims=0>(x)}")), ["no gradients"],
    ),
    "an input": (lambda: recompute(chain(), of="x"), ["'x'", "not computed"]),
    "twice": (lambda: recompute(recompute(chain(), 3)), ["already"]),
    "both": (lambda: recompute(chain(), 3, "1MB"), ["not both"]),
    "no dims": (lambda: recompute(chain(), memory="1MB"), ["N", 'dims={"N": 32}']),
    "too little": (lambda: recompute(chain(), memory=100, dims={"N": 64}), ["100", "bytes"]),
    "segments": (lambda: recompute(chain(), 0), ["segments", "0"]),
    "memory": (lambda: recompute(chain(), memory="much", dims={"N": 64}), ["'512MB'", "'much'"]),
    "no memory": (lambda: recompute(chain(), memory=0, dims={"N": 64}), ["1 or more"]),
    "keep": (lambda: recompute(chain(), keep=["b33"]), ["'b33'", "b3"]),
    "build": (lambda: build("plain", recompute={"memry": 1}), ["memry", "memory"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused(case: str) -> None:
    call, words = REFUSALS[case]
    with pytest.raises(GraphkitError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "setting", [True, 6, {"memory": "120kB", "dims": {"batch": ROWS}}, {"segments": 6, "dims": {"batch": 9}}]
)
def test_training_graphs_are_built_so(setting: Any) -> None:
    plain, feeds, dims = build("dropout")
    less, _, _ = build("dropout", recompute=setting)
    assert peak_activation_bytes(plain.train, dims) > 1.5 * peak_activation_bytes(less.train, dims)
    batch = {name: feeds[name] for name in ("x", "labels")}
    losses = [[float(t.step(batch)["loss"]) for _ in range(4)] for t in (gk.Trainer(plain), gk.Trainer(less))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_as_a_pass() -> None:
    graph, _, dims = build("residual")
    report = graphkit.optimizers.Report()
    less = optimize(graph.train, passes=["recompute"], report=report)
    assert report.verified
    assert 0 < report.passes["recompute"].rewrites <= again(less)
    assert peak_activation_bytes(graph.train, dims) > 2.5 * peak_activation_bytes(less, dims)
    assert graphkit.optimizers.passes()["recompute"].presets == ()


RESIDENT = """
import sys, numpy as np, onnxruntime
from pathlib import Path
options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena = sys.argv[2] == "arena"
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = {}
for v in session.get_inputs():
    shape = [d if isinstance(d, int) else 4096 for d in v.shape]
    feeds[v.name] = np.zeros(shape, v.type[7:-1].replace("float", "float32"))
def peak():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))
small = {k: v[:2] if k in ("x", "labels") else v for k, v in feeds.items()}
session.run(None, small)
Path("/proc/self/clear_refs").write_text("5")
before = peak()
session.run(None, feeds)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("arena", ["arena", "no arena"])
def test_the_process_takes_less(arena: str, tmp_path: Path) -> None:
    graph, _, _ = build("residual")
    taken = []
    for name, model in (("whole", graph.train), ("less", recompute(graph.train))):
        onnx.save(to_proto(model), tmp_path / f"{name}.onnx")
        command = [sys.executable, "-c", RESIDENT, str(tmp_path / f"{name}.onnx"), arena]
        taken.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    assert taken[0] > 2 * taken[1]
