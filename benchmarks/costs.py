"""What an operator costs on the runtime's CPU provider, ns an element, beside the form that a pass gives it.

Usage: ``python -m benchmarks.costs [--web] [word ...]`` (only the forms whose name has one of the words).

Both forms run under the runtime's own default optimizations, interleaved, with one thread (processor time) and with two
(wall-clock time, which needs a quiet machine); what is shown is the tenth percentile. The upper table holds the forms
that passes rewrite, as ``optimize`` rewrites them, also just above and well below the size from which it does. The
lower one holds rewrites that were measured and left alone, because they do not pay on every size or on one thread, or
make a small file larger, or are not the same for NaN and infinities.

With ``--web`` the upper table is measured on the WASM build of onnxruntime-web under Node instead, one thread. Which
rewrites the preset ``web`` has follows from that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from benchmarks.web import fetch
from graphkit.optimizers import optimize

_WORKER = Path(__file__).with_name("_costs_worker.mjs")
_SECONDS = 0.25
_SQUARES = ((1024, 1024), (256, 256), (64, 64))
_NUMBERS = "float one = {1.0}, float zero = {0.0}, int64[1] last = {-1}, int64[1] first = {0}"


@dataclass(frozen=True)
class Form:
    """A graph over inputs ``x`` and ``z``, with what passes make of it, or another graph to compare with."""

    graph: str
    passes: tuple[str, ...] = ()
    instead: str = ""
    shapes: tuple[tuple[int, ...], ...] = _SQUARES
    second: tuple[int, ...] | None = None
    constants: str = ""
    kind: str = "float"
    result: str = "float"
    opset: int = 21


_IMAGES = ((1, 21, 224, 224), (1, 16, 4, 2100), (1, 16, 8, 8))
_PRODUCT = ("split_einsum",)
_FEATURES = ((1, 16, 112, 112), (1, 16, 28, 28), (1, 16, 24, 24))
_HEADS = ((1, 12, 512, 64), (1, 12, 128, 64), (1, 2, 8, 8))
_HEADS_LAST = ((1, 512, 12, 64), (1, 128, 12, 64), (1, 8, 2, 8))
_SLOPES = "float[16,1,1] s = {" + ", ".join(["0.25"] * 16) + "}"

REWRITTEN = {
    "ReduceLogSumExp, last axis": Form("y = ReduceLogSumExp(x, last)", ("split_log_sum_exp",)),
    "ReduceLogSumExp, first axis": Form("y = ReduceLogSumExp(x, first)", ("split_log_sum_exp",)),
    "Softplus": Form("y = Softplus(x)", ("split_softplus",)),
    "Mish": Form("y = Mish(x)", ("split_mish",), shapes=(*_SQUARES, (16, 16))),
    "Mish in parts": Form("s = Softplus(x) t = Tanh(s) y = Mul(x, t)", ("split_mish",), shapes=(*_SQUARES, (16, 16))),
    "Pow -1": Form("y = Pow(x, p)", ("power_by_products",), constants="float p = {-1.0}"),
    "Pow -2": Form("y = Pow(x, p)", ("power_by_products",), constants="float p = {-2.0}"),
    "Pow 4": Form("y = Pow(x, p)", ("power_by_products",), constants="float p = {4.0}"),
    "Pow 3/2": Form("a = Abs(x) y = Pow(a, p)", ("power_by_products",), constants="float p = {1.5}"),
    "Softmax, axis 1 of 4": Form("y = Softmax<axis = 1>(x)", ("softmax_in_three_dims",), shapes=_IMAGES),
    "LogSoftmax, axis 1 of 4": Form("y = LogSoftmax<axis = 1>(x)", ("softmax_in_three_dims",), shapes=_IMAGES),
    "PRelu": Form("y = PRelu(x, s)", ("split_prelu",), shapes=_FEATURES, constants=_SLOPES),
    "Einsum ij,ij->i": Form('y = Einsum<equation = "ij,ij->i">(x, z)', _PRODUCT, second=()),
    "Einsum bhid,bhjd->bhij": Form(
        'y = Einsum<equation = "bhid,bhjd->bhij">(x, z)', _PRODUCT, shapes=_HEADS, second=()
    ),
    "Einsum bqhd,bkhd->bhqk": Form(
        'y = Einsum<equation = "bqhd,bkhd->bhqk">(x, z)', _PRODUCT, shapes=_HEADS_LAST, second=()
    ),
    "Einsum bid,de->bie": Form(
        'y = Einsum<equation = "bid,de->bie">(x, z)',
        _PRODUCT,
        shapes=((4, 256, 64), (1, 4, 64)),
        second=(64, 64),
    ),
    "Einsum bid,dhe->bihe": Form(
        'y = Einsum<equation = "bid,dhe->bihe">(x, z)',
        _PRODUCT,
        shapes=((4, 256, 64), (1, 4, 64)),
        second=(64, 4, 16),
    ),
    "Where(c, 1, 0)": Form("y = Where(x, one, zero)", ("cast_condition",), kind="bool"),
}  # fmt: skip

LEFT_ALONE = {
    "Where(c, 0, -1e9) as a sum": Form(
        "y = Where(x, zero, n)",
        instead="c = Cast<to = 1>(x) d = Mul(c, p) y = Add(d, n)",
        constants="float n = {-1e9}, float p = {1e9}",
        kind="bool",
    ),
    "Where(c, x, 0) as a product": Form(
        "y = Where(x, z, zero)", instead="c = Cast<to = 1>(x) y = Mul(z, c)", kind="bool", second=()
    ),
    "Sum of 3 as two Adds": Form("y = Sum(x, z, x)", instead="a = Add(x, z) y = Add(a, x)", second=()),
    "Gemm transA as Transpose": Form(
        "y = Gemm<transA = 1>(x, z)", instead="t = Transpose<perm = [1, 0]>(x) y = Gemm(t, z)", second=()
    ),
    "Pow 3 as products": Form("y = Pow(x, p)", instead="a = Mul(x, x) y = Mul(a, x)", constants="float p = {3.0}"),
    "ReduceL2, last axis": Form("y = ReduceL2(x, last)", instead="a = Mul(x, x) b = ReduceSum(a, last) y = Sqrt(b)"),
    "ReduceL1, last axis": Form("y = ReduceL1(x, last)", instead="a = Abs(x) y = ReduceSum(a, last)"),
    "Sign by comparisons": Form(
        "y = Sign(x)",
        instead="a = Greater(x, zero) b = Less(x, zero) c = Cast<to = 1>(a) d = Cast<to = 1>(b) y = Sub(c, d)",
    ),
    "Softmax, first of two": Form(
        "y = Softmax<axis = 0>(x)",
        instead="m = ReduceMax(x, first) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, first) y = Div(e, s)",
    ),
    "OneHot, which grows the graph": Form(
        "y = OneHot(x, d, v)",
        instead="u = Unsqueeze(x, last) e = Equal(u, r) y = Cast<to = 1>(e)",
        shapes=((4096,), (64,), (16,)),
        constants=f"int64 d = {{256}}, float[2] v = {{0, 1}}, int64[256] r = {{{', '.join(map(str, range(256)))}}}",
        kind="int64",
    ),
    "Gather of columns": Form(
        "y = Gather<axis = 1>(x, i)",
        instead="t = Transpose<perm = [1, 0]>(x) g = Gather(t, i) y = Transpose<perm = [1, 0]>(g)",
        constants="int64[64] i = {" + ", ".join(str(n * 7 % 64) for n in range(64)) + "}",
    ),
}  # fmt: skip


def models(form: Form, shape: tuple[int, ...]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The plain form, and the one it is compared with."""
    dims = ",".join(map(str, shape))
    second = () if form.second is None else (form.second or shape)
    inputs = [f"{form.kind}[{dims}] x", *([f"float[{','.join(map(str, second))}] z"] if second else [])]
    constants = ", ".join(filter(None, (_NUMBERS, form.constants)))

    def parsed(graph: str) -> onnx.ModelProto:
        text = f"g ({', '.join(inputs)}) => ({form.result}[?] y) <{constants}> {{{graph}}}"
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {form.opset}]> {text}')
        model.graph.output[0].type.tensor_type.ClearField("shape")
        return model

    plain = parsed(form.graph)
    return plain, parsed(form.instead) if form.instead else optimize(plain, passes=form.passes, verify=False)


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Inputs drawn for a model of static shapes."""
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        most = 2 if kind.kind == "b" else 64
        drawn = rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, most, shape)
        feeds[value.name] = drawn.astype(kind)
    return feeds


def runner(model: onnx.ModelProto, feeds: dict[str, np.ndarray], threads: int) -> tuple[Callable[[], None], int]:
    """A function that runs the model once, without copies, and the elements that it makes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return lambda: session.run_with_iobinding(binding), int(np.prod(binding.get_outputs()[0].shape()))


def interleaved(runs: Sequence[Callable[[], None]], clock: Callable[[], float]) -> list[float]:
    """Seconds of one run of each, in turns, at the tenth percentile."""
    started = time.perf_counter()
    runs[0]()
    repeats = max(1, int(2e-3 / max(time.perf_counter() - started, 1e-6)))
    seconds: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(seconds[0]) < 5:
        for run, times in zip(runs, seconds, strict=True):
            begun = clock()
            for _ in range(repeats):
                run()
            times.append((clock() - begun) / repeats)
    return [float(np.percentile(times, 10)) for times in seconds]


def rows(forms: dict[str, Form], words: Sequence[str]) -> Iterator[str]:
    """One line a form and shape: ns an element before and after, and their ratio, with one thread and with two."""
    for name, form in forms.items():
        if words and not any(word.lower() in name.lower() for word in words):
            continue
        for shape in form.shapes:
            plain, ours = models(form, shape)
            feeds = feeds_of(plain)
            cells = []
            for threads, clock in ((1, time.process_time), (2, time.perf_counter)):
                made = [runner(model, feeds, threads) for model in (plain, ours)]
                before, after = interleaved([run for run, _ in made], clock)
                count = max(made[0][1], *(array.size for array in feeds.values()))
                cells.append(f"{before / count * 1e9:8.2f} {after / count * 1e9:8.2f} {after / before:5.2f}")
            kept = [node.op_type for node in ours.graph.node] == [node.op_type for node in plain.graph.node]
            same = "  (left alone)" if kept else ""
            yield f"{name:28s} {'x'.join(map(str, shape)):14s} {cells[0]}   {cells[1]}{same}"


def web_rows(words: Sequence[str]) -> Iterator[str]:
    """The upper table on onnxruntime-web, which is fetched as ``benchmarks.web`` does."""
    cache = Path.home() / ".cache" / "graphkit" / "web"
    fetch(cache)
    labels, jobs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, form in REWRITTEN.items():
            if words and not any(word.lower() in name.lower() for word in words):
                continue
            for shape in form.shapes:
                pair = [f"{len(jobs)}_{which}.onnx" for which in ("plain", "ours")]
                both = models(form, shape)
                for file, model in zip(pair, both, strict=True):
                    (Path(folder) / file).write_bytes(model.SerializeToString())
                feeds = feeds_of(both[0])
                inputs = [{"name": k, "dtype": str(v.dtype), "dims": list(v.shape)} for k, v in feeds.items()]
                jobs.append({"pair": pair, "inputs": inputs})
                labels.append((name, shape, max(array.size for array in feeds.values())))
        (Path(folder) / "jobs.json").write_text(json.dumps(jobs))
        command = ["node", str(_WORKER), folder, str(_SECONDS)]
        done = subprocess.run(command, cwd=cache, check=True, capture_output=True, text=True)
    for (name, shape, count), (before, after) in zip(labels, json.loads(done.stdout), strict=True):
        cells = f"{before / count * 1e9:8.2f} {after / count * 1e9:8.2f} {after / before:5.2f}"
        yield f"{name:28s} {'x'.join(map(str, shape)):14s} {cells}"


def main() -> None:
    """Print both tables, or the one for the web."""
    words = [word for word in sys.argv[1:] if word != "--web"]
    if "--web" in sys.argv[1:]:
        print("onnxruntime-web, WASM, ns an element: plain, rewritten, ratio")
        print("\n".join(web_rows(words)))
        return
    print(f"onnxruntime {onnxruntime.__version__}, ns an element: plain, rewritten, ratio with one thread; with two")
    for title, forms in (("Rewritten by passes", REWRITTEN), ("Measured, and left alone", LEFT_ALONE)):
        print(f"\n{title}")
        for row in rows(forms, words):
            print(row, flush=True)


if __name__ == "__main__":
    main()
