"""What each pattern that is worth rewriting gains on stock ONNX Runtime, beside the gain that was measured before.

    python -m benchmarks.patterns [--json gains.json] [--only lstm rotary] [--repeats 40]

Each pattern is built as exporters write it and optimized with ``gk.optimize``. Both run interleaved on one thread,
under the runtime's own default optimization; the ratio is the median of those of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import graphkit as gk

Arrays = dict[str, Any]  # numpy's arrays and scalars by name
_random = np.random.default_rng(0)


@dataclass(frozen=True)
class Pattern:
    """A model in the form that pays to rewrite, what to run it on, and the ratio of times that was measured."""

    name: str
    model: onnx.ModelProto
    feeds: Arrays
    stated: float


def normal(*shape: int) -> np.ndarray[Any, Any]:
    """Random numbers."""
    return (_random.standard_normal(shape) / 4).astype(np.float32)


def build(
    name: str, stated: float, inputs: Arrays, body: str, constants: Arrays, opset: int, rank: int, batch: bool = False
) -> Pattern:
    """A pattern from the text of its nodes, which give out ``y``; with ``batch``, the first dim has only a name."""
    kinds = {"float32": "float", "int64": "int64", "bool": "bool"}
    declared = ", ".join(
        f"{kinds[str(array.dtype)]}[{','.join(map(str, ('N', *array.shape[1:]) if batch else array.shape))}] {key}"
        for key, array in inputs.items()
    )
    dims = ",".join(f"D{axis}" for axis in range(rank))
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g ({declared}) => (float[{dims}] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    return Pattern(name, model, inputs, stated)


def lstm() -> Pattern:
    """An LSTM cell called step by step."""
    steps, inputs, size = 32, 16, 16
    body, h, c = "", "h0", "c0"
    for t in range(steps):
        body += (
            f"x{t} = Gather<axis=1>(x, t{t}) a{t} = Gemm<transB=1>(x{t}, w, b) e{t} = Gemm<transB=1>({h}, r, d) "
            f"p{t} = Add(a{t}, e{t}) i{t}, f{t}, g{t}, o{t} = Split<axis=1>(p{t}, parts) si{t} = Sigmoid(i{t}) "
            f"sf{t} = Sigmoid(f{t}) tg{t} = Tanh(g{t}) so{t} = Sigmoid(o{t}) u{t} = Mul(sf{t}, {c}) "
            f"v{t} = Mul(si{t}, tg{t}) c_{t} = Add(u{t}, v{t}) tc{t} = Tanh(c_{t}) h_{t} = Mul(so{t}, tc{t}) "
        )
        h, c = f"h_{t}", f"c_{t}"
    weights = {"w": normal(4 * size, inputs), "r": normal(4 * size, size), "b": normal(4 * size), "d": normal(4 * size)}
    numbers = {f"t{t}": np.array(t) for t in range(steps)} | {"parts": np.full(4, size)}
    feeds = {"x": normal(1, steps, inputs), "h0": normal(1, size), "c0": normal(1, size)}
    return build("unrolled LSTM cell", 0.17, feeds, f"{body} y = Identity({h})", weights | numbers, 17, 2)


def rotary() -> Pattern:
    """Queries turned by their positions."""
    heads, length, width = 16, 256, 128
    angles = np.arange(length)[:, None] / 1e4 ** (np.arange(width // 2) / width * 2)
    both = np.concatenate([angles, angles], -1)[None, None]
    body = "n = Neg(b) r = Concat<axis=-1>(n, a) u = Mul(x, c) v = Mul(r, s) y = Add(u, v)"
    cut = "a = Slice(x, zero, half, last) b = Slice(x, half, end, last)"
    numbers = {"zero": [0], "half": [width // 2], "end": [width], "last": [3]}
    constants: Arrays = {key: np.array(value) for key, value in numbers.items()}
    constants |= {"c": np.cos(both).astype(np.float32), "s": np.sin(both).astype(np.float32)}
    return build("rotary embedding", 0.28, {"x": normal(1, heads, length, width)}, f"{cut} {body}", constants, 23, 4)


def rms(opset: int) -> Pattern:
    """A root mean square norm by Sqrt and Reciprocal."""
    body = "q = Mul(x, x) m = ReduceMean(q, k) e = Add(m, p) r = Sqrt(e) i = Reciprocal(r) n = Mul(x, i) y = Mul(n, w)"
    if opset < 18:
        body = body.replace("ReduceMean(q, k)", "ReduceMean<axes=[-1]>(q)")
    constants = {"k": np.array([-1]), "p": np.float32(1e-6), "w": normal(512)}
    return build(f"RMS norm, opset {opset}", 0.48, {"x": normal(256, 512)}, body, constants, opset, 2)


def layer_norm() -> Pattern:
    """A LayerNormalization whose variance is Mul(d, d)."""
    body = (
        "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, p) "
        "r = Sqrt(e) n = Div(d, r) s = Mul(n, w) y = Add(s, b)"
    )
    constants = {"p": np.float32(1e-5), "w": normal(512), "b": normal(512)}
    return build("LayerNorm by Mul(d, d)", 0.63, {"x": normal(256, 512)}, body, constants, 17, 2)


def expand() -> Pattern:
    """A row that is widened before a sum that would widen it."""
    body = "s = Shape(x) e = Expand(w, s) y = Add(x, e)"
    return build("needless Expand", 0.57, {"x": normal(512, 512)}, body, {"w": normal(512)}, 17, 2)


def affine_before() -> Pattern:
    """An image scaled and moved before a convolution without padding."""
    body = "a = Div(x, t) b = Sub(a, m) c = Div(b, d) y = Conv<strides=[4,4]>(c, w, o)"
    constants = {"t": np.float32(255), "m": normal(1, 3, 1, 1), "d": 1 + normal(1, 3, 1, 1) ** 2}
    constants |= {"w": normal(8, 3, 4, 4), "o": normal(8)}
    return build("affine before Conv", 0.58, {"x": normal(1, 3, 256, 256)}, body, constants, 17, 4)


def affine_after() -> Pattern:
    """A convolution whose result is scaled and moved."""
    body = "a = Conv<pads=[1,1,1,1]>(x, w) b = Mul(a, s) y = Add(b, t)"
    constants = {"w": normal(32, 16, 3, 3), "s": np.float32(0.7), "t": np.float32(0.1)}
    return build("scalar affine after Conv", 0.90, {"x": normal(1, 16, 64, 64)}, body, constants, 17, 4)


def known_if() -> Pattern:
    """Branches whose conditions follow from the input's shape."""
    body = "s = Shape(x) n = Gather(s, place) "
    value = "x"
    for k in range(8):
        body += (
            f"p{k} = Equal(n, width) v{k} = If<then_branch = a () => (float[N,64] t{k}) {{ t{k} = Relu({value}) }}, "
            f"else_branch = b () => (float[N,64] e{k}) {{ e{k} = Neg({value}) }}>(p{k}) z{k} = Add(v{k}, w) "
        )
        value = f"z{k}"
    constants = {"place": np.array(1), "width": np.array(64), "w": normal(64)}
    body = f"{body} y = Identity({value})"
    return build("If with a known condition", 0.75, {"x": normal(16, 64)}, body, constants, 17, 2, batch=True)


def gelu() -> Pattern:
    """The tanh form of Gelu with x * x * x, between products of matrices."""
    body = (
        "h = MatMul(x, w) q = Mul(h, h) c = Mul(q, h) a = Mul(c, k) b = Add(h, a) d = Mul(b, t) e = Tanh(d) "
        "f = Add(e, o) i = Mul(h, f) g = Mul(i, z) y = MatMul(g, u)"
    )
    constants = {"w": normal(256, 1024), "u": normal(1024, 256), "k": np.float32(0.044715), "o": np.float32(1)}
    constants |= {"t": np.float32(math.sqrt(2 / math.pi)), "z": np.float32(0.5)}
    return build("tanh-Gelu by x*x*x", 0.88, {"x": normal(128, 256)}, body, constants, 20, 2)


def hard_swish() -> Pattern:
    """HardSwish in pieces behind a convolution."""
    body = "h = Conv<pads=[1,1,1,1]>(x, w) a = Add(h, t) b = Clip(a, z, s) c = Mul(h, b) y = Div(c, s)"
    constants = {"w": normal(16, 16, 3, 3), "t": np.float32(3), "z": np.float32(0), "s": np.float32(6)}
    return build("HardSwish", 0.89, {"x": normal(1, 16, 64, 64)}, body, constants, 17, 4)


def reshapes() -> Pattern:
    """Reshape targets that are computed from shapes, in a small graph."""
    body, value = "", "x"
    for k in range(8):
        body += (
            f"s{k} = Shape({value}) a{k} = Gather(s{k}, zero) m{k} = Mul(a{k}, four) b{k} = Unsqueeze(m{k}, axis) "
            f"c{k} = Concat<axis=0>(b{k}, rest) r{k} = Reshape({value}, c{k}) e{k} = Softmax(r{k}) "
            f"f{k} = Reshape(e{k}, flat) v{k} = MatMul(f{k}, w) "
        )
        value = f"v{k}"
    numbers = {"zero": 0, "four": 4, "axis": [0], "rest": [32], "flat": [-1, 128]}
    constants: Arrays = {key: np.array(value) for key, value in numbers.items()} | {"w": normal(128, 128)}
    body = f"{body} y = Identity({value})"
    return build("constant Reshape targets", 0.90, {"x": normal(2, 128)}, body, constants, 17, 2, batch=True)


def attention(mask: str) -> Pattern:
    """Attention in pieces."""
    heads, length, width = 8, 128, 64
    shape = (1, heads, length, width)
    body = "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) u = Div(s, c) "
    body += {"": "w = Identity(u)", "added": "w = Add(u, m)", "filled": "w = Where(m, u, f)"}[mask]
    lower = np.tri(length, dtype=bool)[None, None]
    low = np.finfo(np.float32).min
    constants: Arrays = {"c": np.float32(math.sqrt(width)), "f": low}
    constants |= {"m": lower if mask == "filled" else np.where(lower, np.float32(0), low).astype(np.float32)}
    feeds = {"q": normal(*shape), "k": normal(*shape), "v": normal(*shape)}
    name = f"Attention{', mask ' + mask if mask else ''}"
    return build(name, 0.96, feeds, f"{body} p = Softmax(w) y = MatMul(p, v)", constants, 23, 4)


def gemm_norm() -> Pattern:
    """A linear layer and its BatchNormalization."""
    body = "a = Gemm<transB=1>(x, w, b) y = BatchNormalization(a, s, t, m, v)"
    constants = {"w": normal(256, 256), "b": normal(256), "s": normal(256), "t": normal(256), "m": normal(256)}
    return build(
        "Gemm + BatchNormalization", 0.93, {"x": normal(64, 256)}, body, constants | {"v": 1 + normal(256) ** 2}, 17, 2
    )


def clip() -> Pattern:
    """A value cut off on both sides by Max and Min."""
    body = "a = MatMul(x, w) b = Max(a, l) y = Min(b, h)"
    constants = {"w": normal(64, 512), "l": np.float32(-0.5), "h": np.float32(0.75)}
    return build("Min and Max", 0.93, {"x": normal(256, 64)}, body, constants, 17, 2)


def leaky() -> Pattern:
    """A leaky rectifier by Max."""
    body = "a = MatMul(x, w) b = Mul(a, s) y = Max(a, b)"
    constants = {"w": normal(64, 512), "s": np.float32(0.1)}
    return build("Max and a slope", 0.93, {"x": normal(256, 64)}, body, constants, 17, 2)


PATTERNS: dict[str, Callable[[], Pattern]] = {
    "lstm": lstm,
    "rotary": rotary,
    "rms": lambda: rms(17),
    "rms23": lambda: rms(23),
    "expand": expand,
    "affine_before": affine_before,
    "layer_norm": layer_norm,
    "if": known_if,
    "gelu": gelu,
    "hard_swish": hard_swish,
    "affine_after": affine_after,
    "reshapes": reshapes,
    "attention": lambda: attention(""),
    "attention_added": lambda: attention("added"),
    "attention_filled": lambda: attention("filled"),
    "gemm_norm": gemm_norm,
    "clip": clip,
    "leaky": leaky,
}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session as most people open it, but on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def measure(pattern: Pattern, repeats: int) -> dict[str, Any]:
    """Times of the plain and the optimized form, interleaved, and how far their results are apart."""
    optimized = gk.optimize(pattern.model)
    sessions = [session(pattern.model), session(optimized)]
    plain, better = (each.run(["y"], pattern.feeds)[0] for each in sessions)
    started = time.perf_counter()
    sessions[0].run(None, pattern.feeds)
    # Short runs are timed together, so that the clock and the call count for little.
    together = max(1, int(0.004 / max(time.perf_counter() - started, 1e-6)))
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for each, found in zip(sessions, times, strict=True):
            # The thread's own time: what else the machine does is not counted.
            started = time.thread_time()
            for _ in range(together):
                each.run(None, pattern.feeds)
            found.append((time.thread_time() - started) / together)
    before, after = (statistics.median(found) for found in times)
    return {
        "pattern": pattern.name,
        "nodes_before": len(pattern.model.graph.node),
        "nodes_after": len(optimized.graph.node),
        "microseconds_before": before * 1e6,
        "microseconds_after": after * 1e6,
        "ratio": statistics.median(b / a for a, b in zip(*times, strict=True)),
        "stated": pattern.stated,
        "largest_difference": float(np.abs(plain - better).max()),
    }


def main() -> None:
    """Measure and print."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(PATTERNS), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    found = [measure(PATTERNS[name](), options.repeats) for name in options.only or PATTERNS]
    table = Table("pattern", "nodes", "us before", "us after", "ratio", "stated", "difference")
    for row in found:
        table.add_row(
            row["pattern"],
            f"{row['nodes_before']} -> {row['nodes_after']}",
            f"{row['microseconds_before']:.0f}",
            f"{row['microseconds_after']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['stated']:.2f}",
            f"{row['largest_difference']:.0e}",
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
