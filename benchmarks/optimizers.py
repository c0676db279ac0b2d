"""graphkit's optimizer beside the others: failures, wrong results, nodes, latency, seconds and bytes on real models.

    python -m benchmarks.optimizers [--cache ~/.cache/graphkit/models] [--only silero] [--tools onnxsim,onnxscript]
                                    [--seconds 2] [--no-latency] [--json table.json] [--large]

The models are the files that packages ship (``benchmarks.real_gradients`` fetches them) and raw exports of PyTorch
models (``_optimizer_models``), made in an environment of their own, as the peers run in one of theirs; both lie in the
cache folder, and so does what the peers made, which is not made again (``--fresh`` does).

A result is *wrong* where it differs from the original by more than 1e-3 of an output's largest number, both on ONNX
Runtime with its optimizations off, on the model's inputs and on inputs of other sizes where the model leaves them open.
*Nodes* are those of the model, its bodies and its functions, Constants left out (the counts with them in brackets).
*Latency* is the processor time of one thread under ONNX Runtime's default optimization, as a ratio to the original's
in the same round, the median over the rounds and then over several sessions. A result that has operators of the
runtime's own is not portable, and no peer to be compared with. Seconds are of processor time, reading and writing of
the file included, without verification. Where graphkit has more nodes than a peer, the passes that spent them to save
time are named, with the count without them. ``--large`` measures graphs of 20,000 nodes and 2.3 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from rich.console import Console

from benchmarks._optimizer_tables import Row, gaps, geomean, per_model, summary
from benchmarks.real_gradients import FILES, fetch, files, inputs_for
from graphkit.optimizers import Report, optimize

PEERS = (
    "onnxsim==0.8.1", "onnxslim==0.1.98", "onnxoptimizer==0.4.2", "onnxscript==0.7.2", "onnxruntime==1.31.1",
    "onnx==1.23.2",
)  # fmt: skip
EXPORTERS = ("torch==2.13.0", "onnxscript==0.7.2", "onnx==1.23.2")
TOOLS = ("onnxsim", "onnxslim", "onnxoptimizer", "onnxscript", "ort-basic")
HERE = Path(__file__).parent
TOLERANCE = 1e-3
SESSIONS = 3  # how often each session is opened anew: where its memory lies moves a small model by some percent
FINE = 0.93


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """The interpreter of an environment with these packages, made if there is none."""
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "done").touch()
    return python


def models(cache: Path, only: str) -> Iterator[tuple[str, Path]]:
    """Names and files: those shipped first, then the exports."""
    fetch(cache)
    exports = cache / "exports"
    if not (exports / "done").exists():
        python = environment(cache / "exporters-environment", EXPORTERS)
        command = [str(python), "-m", "benchmarks._optimizer_models", str(exports)]
        made = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=HERE.parent, check=False)
        print(f"{made.returncode} exports failed")
        (exports / "done").touch()
    for path in [*files(cache), *sorted(exports.glob("*.onnx"))]:
        name = "magika" if path.name == "model.onnx" else path.stem
        if only in name:
            yield name, path


def counted(model: onnx.ModelProto) -> tuple[int, int, bool]:
    """Nodes without Constants, with them, and whether every operator is one of the standard's (or a function)."""
    functions = {(f.domain, f.name) for f in model.functions}
    found = [0, 0, True]

    def visit(nodes: Any) -> None:
        for node in nodes:
            found[1] += 1
            found[0] += node.op_type != "Constant"
            if node.domain not in ("", "ai.onnx") and (node.domain, node.op_type) not in functions:
                found[2] = False
            for attribute in node.attribute:
                for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                    visit(body.node)

    visit(model.graph.node)
    for function in model.functions:
        visit(function.node)
    return found[0], found[1], bool(found[2])


def session(path: Path, *, optimized: bool) -> Any:
    """One thread."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds_for(path: Path) -> list[dict[str, Any]]:
    """The model's inputs, and the same cut or repeated to other sizes of the symbolic dims."""
    model = ir.load(path)
    shared = path.parent / f"{path.stem.rpartition('-')[0]}.npz"
    given = inputs_for(path, model) if path.name in FILES else dict(np.load(shared))
    open_dims: dict[str, int] = {}
    other = dict(given)
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, int) or value.name not in given:
                continue
            size = other[value.name].shape[axis]
            size = open_dims.setdefault(
                dim.value or f"{value.name}.{axis}", size + 1 if axis == 0 else size - size // 4
            )
            other[value.name] = np.take(other[value.name], range(size), axis, mode="wrap")
    return [given, other] if open_dims else [given]


def run(made: Any, feeds: dict[str, Any]) -> list[Any]:
    """The outputs."""
    return list(made.run(None, feeds))


def differs(got: list[Any], expected: list[Any]) -> str:
    """How outputs differ from the original's, or nothing."""
    if len(got) != len(expected):
        return f"{len(got)} outputs instead of {len(expected)}"
    for index, (a, b) in enumerate(zip(map(np.asarray, got), map(np.asarray, expected), strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {index} is {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"output {index} differs"
            continue
        scale = max(1e-6, float(np.nanmax(np.abs(b), initial=0)))
        if not np.allclose(a / scale, b / scale, rtol=0, atol=TOLERANCE, equal_nan=True):
            return f"output {index} differs by {np.nanmax(np.abs(a - b)) / scale:.2g} of its largest number"
    return ""


class References:
    """The original's outputs; sizes that the original itself does not run with are left out."""

    def __init__(self, path: Path) -> None:
        made = session(path, optimized=False)
        self.feeds: list[dict[str, Any]] = []
        self.outputs: list[list[Any]] = []
        for feeds in feeds_for(path):
            try:
                self.outputs.append(run(made, feeds))
                self.feeds.append(feeds)
            except Exception as error:  # a raw export may have baked the size it was traced with
                if not self.feeds:
                    raise
                print(f"{path.name} does not run with other sizes: {str(error)[:100]}", file=sys.stderr)


def judged(row: Row, made: Path, reference: References) -> Row:
    """Fill in verdict, counts and bytes."""
    if row.said:
        row.verdict = "failed"
        return row
    row.nodes, row.with_constants, row.portable = counted(onnx.load(made, load_external_data=False))
    row.bytes = made.stat().st_size
    try:
        opened = session(made, optimized=False)
        results = [run(opened, feeds) for feeds in reference.feeds]
        session(made, optimized=True)
    except Exception as error:  # noqa: BLE001  # whatever the runtime says, the file is no use
        row.verdict, row.said = "broken", str(error).splitlines()[0][:300]
        return row
    row.said = next(filter(None, map(differs, results, reference.outputs)), "")
    row.verdict = "wrong" if row.said else "right"
    return row


def by_peer(python: Path, tool: str, name: str, source: Path, folder: Path, *, fresh: bool) -> tuple[Row, Path]:
    """What a peer makes of a file, kept in the folder."""
    target, account = folder / f"{name}.{tool}.onnx", folder / f"{name}.{tool}.json"
    if fresh or not account.exists():
        target.unlink(missing_ok=True)
        command = [str(part) for part in (python, HERE / "_optimizer_peers_worker.py", tool, source, target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            account.write_text(done.stdout or json.dumps({"seconds": 0, "said": f"it died: {done.returncode}"}))
        except subprocess.TimeoutExpired:
            account.write_text(json.dumps({"seconds": 300, "said": "it took more than 300 s"}))
    found = json.loads(account.read_text())
    return Row(name, tool, said=found["said"], seconds=found["seconds"]), target


def by_graphkit(name: str, source: Path, folder: Path) -> tuple[Row, Path]:
    """What graphkit makes of a file: the seconds without verification, the file with it."""
    row, target = Row(name, "graphkit"), folder / f"{name}.graphkit.onnx"
    started = time.process_time()
    ir.save(optimize(source, verify=False), target)
    row.seconds = time.process_time() - started
    report = Report()
    ir.save(optimize(source, verify=True, report=report), target)
    row.spenders = tuple(name for name, entry in report.passes.items() if entry.nodes > 0)
    if row.spenders:
        row.lean = counted(ir.to_proto(optimize(source, skip=row.spenders, verify=False)))[0]
    if not report.verified or report.dropped:
        row.said = f"not verified: {report.note} {report.dropped}"
    return row, target


def latencies(variants: dict[str, Path], feeds: dict[str, Any], seconds: float) -> dict[str, float]:
    """Ratios to the first, each variant run once a round, in an order that turns."""
    ratios: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(SESSIONS):
        opened = {name: session(path, optimized=True) for name, path in variants.items()}
        times: dict[str, list[float]] = {name: [] for name in variants}
        for made in opened.values():
            made.run(None, feeds)
        names, until = list(opened), time.thread_time() + seconds / SESSIONS
        while time.thread_time() < until or len(times[names[0]]) < 7:
            for name in names:
                started = time.thread_time()
                opened[name].run(None, feeds)
                times[name].append(time.thread_time() - started)
            names = [*names[1:], names[0]]
        first = times[next(iter(variants))]
        for name, found in times.items():
            ratios[name].append(statistics.median(a / b for a, b in zip(found, first, strict=True)))
    return {name: statistics.median(found) for name, found in ratios.items()}


def measure(name: str, source: Path, options: argparse.Namespace, python: Path | None) -> list[Row]:
    """Every tool on one model."""
    folder = options.cache / "optimized"
    folder.mkdir(parents=True, exist_ok=True)
    reference = References(source)
    original = judged(Row(name, "original"), source, reference)
    rows, variants = [original], {"original": source}
    for tool in ("graphkit", *(options.tools if python else ())):
        if tool == "graphkit":
            row, made = by_graphkit(name, source, folder)
        else:
            assert python is not None
            row, made = by_peer(python, tool, name, source, folder, fresh=options.fresh)
        rows.append(judged(row, made, reference))
        if row.verdict == "right":
            variants[tool] = made
    if not options.no_latency:
        found = latencies(variants, reference.feeds[0], options.seconds)
        for row in rows:
            row.latency = found.get(row.tool, float("nan"))
    return rows


def main() -> int:
    """Measure every model and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "graphkit" / "models")
    parser.add_argument("--only", default="", help="a part of the model's name")
    parser.add_argument("--tools", default=",".join(TOOLS), help="the peers, or nothing for none")
    parser.add_argument("--seconds", type=float, default=2.0, help="processor time of the rounds of one model")
    parser.add_argument("--no-latency", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="run the peers again")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument(
        "--large", action="store_true", help="20,000 nodes, and 2.3 GB of weights in a file of their own"
    )
    options = parser.parse_args()
    if options.large:
        from benchmarks import _optimizer_large

        return int(_optimizer_large.main())
    options.tools = [tool for tool in options.tools.split(",") if tool]
    python = environment(options.cache / "peers-environment", PEERS) if options.tools else None
    tables, found = [], []
    for name, source in models(options.cache, options.only):
        rows = measure(name, source, options, python)
        tables.append(rows)
        found += gaps(rows)
        shown = "  ".join(f"{r.tool} {r.nodes if r.verdict == 'right' else r.verdict} {r.latency:.2f}" for r in rows)
        print(f"{name}: {shown}  {rows[1].seconds:.2f} s", flush=True)
    if not tables:
        raise SystemExit(f"no model's name contains '{options.only}'")
    console = Console(width=200)
    console.print(per_model(tables), summary(tables))
    for line in found:
        console.print(line, highlight=False)
    mean = geomean([rows[1].latency for rows in tables])
    print(f"{len(found)} places where graphkit is not at or below the best portable peer, or not within its bounds")
    if mean > FINE:
        print(f"the geometric mean of its latencies is {mean:.3f}, above {FINE}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for rows in tables for row in rows], indent=1))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
