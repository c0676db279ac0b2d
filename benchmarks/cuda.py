"""The four models on a CUDA GPU: do they compute what the CPU computes, does every node run there, how long is a step.

    python -m benchmarks.cuda [--steps 20]

For each of mlp, lenet, resnet and gpt: the losses of some training steps on the CPU and on the GPU from the same first
parameters, the nodes that ONNX Runtime placed on the CPU (none that computes may be there), and the time of a step
beside PyTorch's on the same GPU where PyTorch with CUDA is installed. Ends with exit code 1 if something disagrees, and
with 2 and the reason where there is no GPU that ONNX Runtime can use. Takes under five minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

import graphkit as gk
from graphkit.errors import DeviceError
from graphkit.runtime.devices import find_device, preload
from graphkit.training import TrainingGraph
from models import gpt, lenet, mlp, resnet

# What may run on the CPU beside CUDA: arithmetic on shapes, which ONNX Runtime keeps where the shapes are.
_ON_SHAPES = frozenset(
    "Shape Size Gather Concat Slice Squeeze Unsqueeze Cast Add Sub Mul Div Mod Equal Range Neg".split()
)
_TOLERANCE = 2e-3  # of a loss after some steps: TF32 products and atomic sums round otherwise than the CPU


def cases() -> dict[str, tuple[Callable[[], gk.nn.Module], Any, int]]:
    """Each model with a batch, and its number of classes."""
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(256, 784)).astype("float32")
    return {
        "mlp": (lambda: mlp.MLP((784, 512, 512, 10)), images, 10),
        "lenet": (lenet.LeNet, images, 10),
        "resnet": (resnet.ResNet, images, 10),
        "gpt": (lambda: gpt.GPT(256, 256, 4, 8, 128), rng.integers(0, 256, (16, 128)), 256),
    }


def build(make: Callable[[], gk.nn.Module], x: Any) -> tuple[gk.nn.Module, TrainingGraph]:
    """A model with the first parameters that every contestant starts from, and its training graph."""
    gk.random.seed(0)
    model = make()
    inputs = {"x": gk.spec(x.dtype, ["batch", *x.shape[1:]])}
    return model, gk.training.build(model, "cross_entropy", gk.optim.SGD(0.01), inputs=inputs)


def run(trainer: gk.Trainer, batch: dict[str, Any], steps: int) -> tuple[list[float], float]:
    """The losses, and the median time of a step in ms."""
    losses, times = [], []
    for _ in range(steps):
        started = time.perf_counter()
        losses.append(float(trainer.step(batch)["loss"]))
        times.append(time.perf_counter() - started)
    return losses, 1e3 * statistics.median(times[len(times) // 4 :])


def nodes_on_cpu(graph: TrainingGraph, batch: dict[str, Any]) -> list[str]:
    """Operators of the training graph that ONNX Runtime placed on the CPU though they compute on the data."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            ir.to_proto(graph.train).SerializeToString(), options, providers=find_device("cuda").providers
        )
        session.run(None, graph.state | batch)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found = []
    for event in events:
        about = event.get("args", {})
        if event.get("cat") == "Node" and about.get("provider") == "CPUExecutionProvider":
            sizes = [int(np.prod(s)) if s else 1 for port in about.get("output_type_shape", []) for s in port.values()]
            if about["op_name"] not in _ON_SHAPES or max(sizes, default=0) > 64:
                found.append(f"{about['op_name']} {event['name'].removesuffix('_kernel_time')}")
    return sorted(set(found))


def torch_step(name: str, model: gk.nn.Module, x: Any, labels: Any, steps: int) -> float | None:
    """The median time of PyTorch's step on the GPU in ms, None if PyTorch has no CUDA here."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    from tests.torch_models import mirrored

    theirs = mirrored(torch, name, model).cuda()
    optimizer = torch.optim.SGD(theirs.parameters(), 0.01)
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        inputs, targets = torch.tensor(x).cuda(), torch.tensor(labels).reshape(-1).cuda()
        optimizer.zero_grad()
        logits = theirs(inputs)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times[len(times) // 4 :])


def main() -> int:
    """Compare and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", default="mlp,lenet,resnet,gpt")
    options = parser.parse_args()
    if options.steps < 4:
        parser.error("--steps is 4 or more")
    try:
        gk.run(gk.trace(lambda x: x + 1.0, gk.spec("float32", [1])), [np.zeros(1, "float32")], device="cuda")
    except DeviceError as error:
        print(f"benchmarks.cuda needs a CUDA GPU: {error}", file=sys.stderr)
        return 2
    preload()
    failed = False
    for name, (make, x, classes) in cases().items():
        if name not in options.models.split(","):
            continue
        labels = np.random.default_rng(1).integers(0, classes, x.shape if x.dtype.kind == "i" else x.shape[:1])
        batch = {"x": x, "labels": labels}
        model, graph = build(make, x)
        on_cpu, _ = run(gk.Trainer(graph), batch, 6)
        on_cuda, milliseconds = run(gk.Trainer(graph, "cuda"), batch, max(options.steps, 6))
        worst = max(abs(a - b) / abs(a) for a, b in zip(on_cpu, on_cuda, strict=False))
        left = nodes_on_cpu(graph, batch)
        peer = torch_step(name, model, x, labels, options.steps)
        beside = (
            "PyTorch with CUDA is not here"
            if peer is None
            else f"PyTorch {peer:.2f} ms, ratio {milliseconds / peer:.2f}"
        )
        print(f"{name}: losses differ by {worst:.1e} (at most {_TOLERANCE:g}); a step {milliseconds:.2f} ms, {beside}")
        print(f"  nodes on the CPU: {', '.join(left) if left else 'none'}", flush=True)
        failed |= worst > _TOLERANCE or bool(left)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
