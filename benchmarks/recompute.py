"""Memory and time of a 1,000-layer residual network whose activations are computed again.

    python -m benchmarks.recompute [--blocks 500] [--rows 1024] [--rounds 5] [--plot benchmarks/recompute.svg] [--json]

500 blocks ``x + W2 relu(W1 norm(x))`` of width 128, SGD, trained by plain ``onnxruntime.InferenceSession``: the file as
it is built, cut into more and more segments, and made for a seventh of the memory. Every setting runs in a process of
its own; all of them are kept and take their steps in turn, so that what else the machine does strikes all alike.

*Memory* is what a process's largest resident size grows by over its steps, after two steps on two rows: without the
session, the parameters and their next values, which are the same everywhere. It is what activations take, the
gradients that wait for their update, and what the allocator wastes. *Time* is processor time on one thread, the median
over the rounds of the ratio to the file as it is built. ``--levels`` also runs that file and the last one with the
runtime's optimizations off, basic and all, with its arena and without, and by ``gk.Trainer``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDTH, CLASSES = 128, 10
GOAL = 6.9  # 48 GB to 7 GB, as published for a residual network of 1,000 layers
LEVELS = ("off", "basic", "all")


def make(blocks: int, rows: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Write the training graph at every setting; what is estimated of each, by name."""
    import graphkit as gk
    from graphkit import nn
    from graphkit.modelfile import write_model
    from graphkit.optimizers import recompute
    from graphkit.optimizers.liveness import live_bytes

    class Block(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.LayerNorm(WIDTH)
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.second.weight = gk.tensor(self.second.weight.numpy() * 0.1, requires_grad=True)

        def forward(self, x: Any) -> Any:
            return x + self.second(nn.relu(self.first(self.norm(x))))

    gk.random.seed(0)
    net = nn.Sequential(*(Block() for _ in range(blocks)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
    graph = gk.training.build(
        net, "cross_entropy", gk.optim.SGD(0.01), inputs={"x": gk.spec("float32", ["batch", WIDTH])}
    )
    graph.save(folder / "whole")
    dims = {"batch": rows}
    whole = live_bytes(graph.train, dims).activations
    root = round(blocks**0.5)
    settings: dict[str, dict[str, Any]] = {"as built": {}}
    for segments in sorted({root // 3, root, blocks // 8, blocks // 4, blocks // 2}):
        settings[f"{segments} segments"] = {"segments": segments}
    settings["a seventh"] = {"memory": int(whole / GOAL / 1.1)}
    found: dict[str, dict[str, Any]] = {}
    for name, setting in settings.items():
        started = time.perf_counter()
        model = recompute(graph.train, dims=dims, **setting) if setting else graph.train
        seconds = time.perf_counter() - started
        path = folder / f"{len(found)}.onnx"
        write_model(model, path)
        found[name] = {
            "path": str(path),
            "segments": setting.get("segments"),
            "nodes": len(model.graph),
            "seconds to rewrite": round(seconds, 2),
            "estimated MB": live_bytes(model, dims).activations / 1e6,
        }
    return found


def work(path: str, rows: int, level: str, arena: bool, trainer: str) -> None:
    """Take a step for each line that comes in, and say what it took; a process of its own."""
    import numpy as np
    import onnxruntime

    rng = np.random.default_rng(0)
    batch = {"x": rng.standard_normal((rows, WIDTH)).astype("float32"), "labels": rng.integers(0, CLASSES, rows)}
    few = {name: value[:2] for name, value in batch.items()}
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = {
        "off": levels.ORT_DISABLE_ALL, "basic": levels.ORT_ENABLE_BASIC, "all": levels.ORT_ENABLE_ALL
    }[level]  # fmt: skip
    options.enable_cpu_mem_arena = arena
    options.intra_op_num_threads = 1
    folder = Path(path).parent / "whole"
    if trainer:
        import graphkit as gk
        from graphkit.modelfile import read_model

        graph = gk.training.TrainingGraph.load(folder)
        graph.train = read_model(path)
        trained = gk.Trainer(graph, threads=1)

        def step(feeds: Any) -> float:
            return float(trained.step(feeds)["loss"])
    else:
        import safetensors.numpy

        state = safetensors.numpy.load_file(folder / "checkpoint.safetensors")
        first = {name: value.copy() for name, value in state.items()}
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        pairs = {v.name: f"{v.name}.next" for v in session.get_inputs() if v.name in state}

        def step(feeds: Any) -> float:
            names = ["loss", *pairs.values()]
            loss, *following = session.run(names, {**feeds, **state})
            state.update(zip(pairs, following, strict=True))
            return float(loss)

        for _ in range(2):  # so that the parameters' next values, and those before them, are there
            step(few)
        for name, value in first.items():
            np.copyto(state[name], value)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from what is resident
    before = _peak()
    print("ready", flush=True)
    for _ in sys.stdin:
        started, clock = time.process_time(), time.perf_counter()
        loss = step(batch)
        took = {"cpu": time.process_time() - started, "wall": time.perf_counter() - clock}
        print(json.dumps({"loss": loss, "MB": _peak() - before} | took), flush=True)


def _peak() -> float:
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) / 1000


class Worker:
    """A process that takes steps."""

    def __init__(self, path: str, rows: int, level: str = "all", arena: bool = True, trainer: bool = False) -> None:
        command = [sys.executable, "-m", "benchmarks.recompute", "--work", path, "--rows", str(rows), "--level", level]
        command += ["--no-arena"] * (not arena) + ["--trainer"] * trainer
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.steps: list[dict[str, float]] = []

    def wait(self) -> None:
        """Wait until it is ready: the workers of a comparison start side by side."""
        assert self._line() == "ready\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with {self.process.wait()}")
        return line

    def step(self) -> None:
        """One step more."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.steps.append(json.loads(self._line()))

    def end(self) -> None:
        """Let the process end."""
        self.process.communicate()


def compare(workers: dict[str, Worker], rounds: int) -> dict[str, dict[str, Any]]:
    """Steps in turn; memory, time and losses of each, beside the first."""
    for worker in workers.values():
        worker.wait()
    for _ in range(rounds):
        for worker in workers.values():
            worker.step()
    first = next(iter(workers.values())).steps
    found: dict[str, dict[str, Any]] = {}
    for name, worker in workers.items():
        worker.end()
        pairs = list(zip(worker.steps, first, strict=True))
        found[name] = {
            "MB": worker.steps[-1]["MB"],
            "times less memory": first[-1]["MB"] / worker.steps[-1]["MB"],
            "seconds": statistics.median(s["cpu"] for s in worker.steps),
            # The first step takes its memory from the system, and is slower for it.
            "times the time": statistics.median(a["cpu"] / b["cpu"] for a, b in pairs[1:] or pairs),
            "largest difference of a loss": max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in pairs),
        }
    return found


def plot(rows: dict[str, dict[str, Any]], target: Path) -> None:
    """Memory and time over the number of segments."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    memory = figure.add_subplot()
    taken = memory.twinx()
    curve = [(row["segments"] or 1, row["MB"], row["times the time"]) for row in rows.values() if row["segments"]]
    whole, made = rows["as built"], rows["a seventh"]
    segments, sizes, times = zip(*curve, strict=True)
    memory.plot(segments, sizes, "o-", color="tab:blue", label="memory")
    memory.axhline(whole["MB"], color="tab:blue", linestyle=":")
    memory.annotate(f"as built, {whole['MB']:,.0f} MB", (segments[0], whole["MB"]), color="tab:blue", va="bottom")
    taken.plot(segments, times, "s--", color="tab:red", label="time")
    taken.axhline(made["times the time"], color="tab:red", linestyle=":")
    taken.annotate(
        f"made for a seventh: {made['MB']:,.0f} MB at {made['times the time']:.2f} times the time",
        (segments[0], made["times the time"]), color="tab:red", va="top",
    )  # fmt: skip
    memory.set(xscale="log", yscale="log", xlabel="segments", ylabel="memory of activations, MB")
    taken.set(ylabel="processor time, of the file as built", ylim=(0.9, None))
    figure.savefig(target)


def main() -> None:
    """Every setting, and the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=500)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--levels", action="store_true")
    parser.add_argument("--json", action="store_true")
    for hidden in ("--work", "--level"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--no-arena", "--trainer"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen.work, chosen.rows, chosen.level, not chosen.no_arena, chosen.trainer)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = make(chosen.blocks, chosen.rows, Path(folder))
        measured = compare({name: Worker(one["path"], chosen.rows) for name, one in found.items()}, chosen.rounds)
        rows = {name: one | measured[name] for name, one in found.items()}
        others = {}
        for level in LEVELS if chosen.levels else ():
            for arena, trainer in ((True, False), (False, False), *([(True, True)] if level == "all" else [])):
                pair = {
                    n: Worker(rows[n]["path"], chosen.rows, level, arena, trainer) for n in ("as built", "a seventh")
                }
                name = "gk.Trainer" if trainer else f"{level}, {'arena' if arena else 'no arena'}"
                others[name] = compare(pair, min(chosen.rounds, 3))["a seventh"]
    for row in rows.values():
        del row["path"]
    if chosen.plot:
        plot(rows, chosen.plot)
    if chosen.json:
        print(json.dumps({"blocks": chosen.blocks, "rows": chosen.rows, "settings": rows, "levels": others}, indent=2))
        return
    print(f"{chosen.blocks} blocks of two layers, {chosen.rows} rows")
    for name, row in rows.items():
        print(f"{name:14s} {row['nodes']:6,} nodes  estimate {row['estimated MB']:6.1f}  {_line(row)}")
    for name, row in others.items():
        print(f"a seventh; {name:16s} {_line(row)}")


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['MB']:6.1f} MB, {row['times less memory']:5.1f} times less; {row['seconds']:.2f} s, "
        f"{row['times the time']:.2f} times; losses within {row['largest difference of a loss']:.1g}"
    )


if __name__ == "__main__":
    main()
