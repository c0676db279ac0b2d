"""The optimizer on what is large: a chain of 20,000 nodes, and 2.3 GB of weights in a file beside the model.

``python -m benchmarks.optimizers --large`` runs it. Each is measured in a process of its own, which says how long it
took and how much memory it held beyond what it held before; the files lie in a temporary folder, and go with it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir

from graphkit.optimizers import optimize

NODES, LAYERS, WIDTH = 20_000, 24, 4_900
NEEDED = 6 * 2**30  # bytes of disk: the model and the result


def many_nodes(folder: Path) -> Path:
    """A chain of little layers, one in four of its nodes without an effect."""
    inputs = [ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 8]))]
    values = [
        ir.Value(name=name, const_value=ir.tensor(np.full(shape, number, np.float32), name=name))
        for name, shape, number in (("scale", (8,), 0.5), ("shift", (8,), 0.25), ("none", (), 1.0))
    ]
    scale, shift, one = values
    nodes: list[ir.Node] = []
    last = inputs[0]
    while len(nodes) < NODES:
        for operator, other in (("Mul", scale), ("Add", shift), ("Mul", one), ("Tanh", None)):
            nodes.append(ir.Node("", operator, [last] if other is None else [last, other], name=f"n{len(nodes)}"))
            last = nodes[-1].outputs[0]
            last.name = f"v{len(nodes)}"
    last.type, last.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["N", 8])
    graph = ir.Graph(inputs, [last], nodes=nodes, initializers=values, opset_imports={"": 21}, name="chain")
    ir.save(ir.Model(graph, ir_version=10), folder / "nodes.onnx")
    return folder / "nodes.onnx"


def many_bytes(folder: Path) -> Path:
    """Layers of one matrix each, their weights written to the file one after the other."""
    path = folder / "bytes.onnx"
    rng = np.random.default_rng(0)
    block = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(WIDTH**0.5)
    with (folder / "bytes.data").open("wb") as file:
        for layer in range(LAYERS):
            file.write(np.roll(block, layer, 0).tobytes())
    shape = ir.Shape([WIDTH, WIDTH])
    inputs = [ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", WIDTH]))]
    nodes: list[ir.Node] = []
    weights: list[ir.Value] = []
    last = inputs[0]
    for layer in range(LAYERS):
        tensor = ir.ExternalTensor(
            "bytes.data", layer * block.nbytes, block.nbytes, ir.DataType.FLOAT, shape=shape, name=f"w{layer}",
            base_dir=folder,
        )  # fmt: skip
        weights.append(ir.Value(name=f"w{layer}", const_value=tensor, shape=shape, type=ir.TensorType(tensor.dtype)))
        for operator, given in (("MatMul", [weights[-1]]), ("Relu", []), ("Identity", [])):
            nodes.append(ir.Node("", operator, [last, *given], name=f"n{len(nodes)}"))
            last = nodes[-1].outputs[0]
            last.name = f"v{len(nodes)}"
    last.type, last.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["N", WIDTH])
    graph = ir.Graph(inputs, [last], nodes=nodes, initializers=weights, opset_imports={"": 21}, name="wide")
    ir.save(ir.Model(graph, ir_version=10), path)
    return path


def peak() -> int:
    """The most bytes that this process has held (getrusage would count what its parent held before it)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def measured(path: Path) -> dict[str, float]:
    """Seconds of the wall and of the processor, and bytes, of one call on the file; run in a process of its own."""
    before = peak()
    started, working = time.perf_counter(), time.process_time()
    made = optimize(path, verify=False)
    ir.save(made, path.with_name("result.onnx"), external_data="result.data" if path.stem == "bytes" else None)
    return {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - working,
        "gigabytes": (peak() - before) / 1e9,
        "nodes": len(made.graph),
    }


def main() -> int:
    """Make both, measure both."""
    if len(sys.argv) == 3 and sys.argv[1] == "--measure":
        print(json.dumps(measured(Path(sys.argv[2]))))
        return 0
    over = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if shutil.disk_usage(folder).free < NEEDED:
            raise SystemExit(f"{folder} has less than {NEEDED:,} bytes free")
        for name, make, limit, most in (("20,000 nodes", many_nodes, 5, 0.5), ("2.3 GB", many_bytes, 10, 0.5)):
            command = [sys.executable, "-m", "benchmarks._optimizer_large", "--measure", str(make(folder))]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(
                f"{name}: {found['seconds']:.2f} s ({found['processor']:.2f} s of the processor), "
                f"{found['gigabytes']:.2f} GB, {found['nodes']:,.0f} nodes left"
            )
            over += found["processor"] > limit or found["gigabytes"] > most
    return over


if __name__ == "__main__":
    sys.exit(main())
