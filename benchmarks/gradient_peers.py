"""Gradients of single operators beside other tools that differentiate ONNX files: right, wrong, refused, nodes added.

    python -m benchmarks.gradient_peers [--cache ~/.cache/graphkit/peers] [--per-test 8] [--tests tests/gradients]

The cases come out of our own tests: whatever they hand to ``check_gradients`` is written as a model whose output
``loss`` is a weighted sum of the results, in float32 with static dims, with its gradient by central differences in
float64. onnx-ad 0.3 and onnxsim 0.8.1 (``graph_grad``) go into an environment of their own, made in the cache folder,
and differentiate every case there, each result run on ONNX Runtime with its optimizations off. At most ``--per-test``
cases are taken of one test function. "Broken" is a gradient that no runtime loads or runs.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import graphkit as gk
from graphkit import dtypes, testing, tree
from graphkit.core import Tensor
from graphkit.errors import GraphkitError
from graphkit.optimizers import add_gradients, optimize

PEERS = ("onnx-ad==0.3.0", "onnxsim==0.8.1", "onnxruntime", "onnx==1.23.2")
TOOLS = ("onnx-ad", "onnxsim")
WORKER = Path(__file__).with_name("_gradient_peers_worker.py")
LARGEST = 200  # elements of one input: differences take two runs an element


class Exporter:
    """Stands in for ``check_gradients`` while the tests run, and writes what it is given."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.count: collections.Counter[str] = collections.Counter()

    def __call__(self, f: Callable[..., Any], inputs: Sequence[Any], **options: Any) -> None:
        test = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0]
        function = test.split("[")[0]
        if self.count[function] >= self.limit or not options.get("numeric", True) or not options.get("float32", True):
            return
        arrays = [np.asarray(i) for i in inputs]
        wrt = options.get("wrt") or [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
        if any(arrays[n].size > LARGEST for n in wrt) or any(a.dtype.kind not in "fiub" for a in arrays):
            return
        try:
            case = written(f, arrays, list(wrt), options.get("step", 1e-5))
        except (GraphkitError, AssertionError, NotImplementedError):
            return  # what the test expects of it is not to be had as a float32 file
        self.count[function] += 1
        name = re.sub(r"[^\w.-]+", "_", test.rpartition("/")[2])[:120]
        target = self.folder / f"{name}-{self.count[function]}"
        target.mkdir(parents=True, exist_ok=True)
        model, feeds, gradients = case
        onnx.save(model, target / "model.onnx")
        np.savez(target / "feeds.npz", **feeds)
        np.savez(target / "gradients.npz", **gradients)


def written(f: Callable[..., Any], arrays: list[Any], wrt: list[int], step: float) -> tuple[Any, Any, Any]:
    """The model, its inputs, and the gradients that differences give."""
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    weights = []
    for n, y in enumerate(tree.flatten(f(*map(gk.tensor, wide)))[0]):
        floating = isinstance(y, Tensor) and dtypes.is_float(y.dtype)
        weights.append(1 + np.cos(np.arange(y.numpy().size) + n).reshape(y.shape) / 2 if floating else None)

    def loss(*args: Tensor) -> Tensor:
        total: Any = None
        for y, w in zip(tree.flatten(f(*args))[0], weights, strict=True):
            if w is not None:
                part = (y * gk.tensor(w.astype(y.dtype))).sum()
                total = part if total is None else total + part
        assert total is not None
        found: Tensor = total
        return found

    narrow = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]
    names = [f"x{n}" for n in range(len(arrays))]
    specs = [gk.spec(a.dtype, list(a.shape)) for a in narrow]
    model = ir.to_proto(gk.trace(loss, *specs, input_names=names, output_names=["loss"]))
    expected = {names[n]: testing.differences(loss, wide, n, step) for n in wrt}
    return model, dict(zip(names, narrow, strict=True)), expected


def export(tests: str, folder: Path, limit: int) -> None:
    """Run the tests with the exporter in place of the check."""
    import pytest

    shutil.rmtree(folder, ignore_errors=True)
    original = testing.check_gradients
    setattr(testing, original.__name__, Exporter(folder, limit))
    try:
        pytest.main([tests, "-q", "--no-header", "-x", "--maxfail=10000", "-m", "not slow", "-p", "no:cacheprovider",
                     "--disable-warnings", "--tb=no"])  # fmt: skip
    finally:
        setattr(testing, original.__name__, original)


def ours(folder: Path) -> dict[str, Any]:
    """The same judgement of ``add_gradients``."""
    model = onnx.load(folder / "model.onnx")
    feeds, expected = dict(np.load(folder / "feeds.npz")), dict(np.load(folder / "gradients.npz"))
    result: dict[str, Any] = {"case": folder.name, "added": 0, "said": ""}
    try:
        made = add_gradients(model, "loss", list(expected))
    except GraphkitError as error:
        return result | {"verdict": "refused", "said": str(error)[:300]}
    smaller = optimize(made, "training", verify=False)
    result["added"] = len(smaller.graph.node) - len(optimize(model, "training", verify=False).graph.node)
    for variant in (made, smaller):
        try:
            found = gk.run(variant, feeds, optimizations=False)
        except GraphkitError as error:
            return result | {"verdict": "broken", "said": str(error)[:300]}
        for name, want in expected.items():
            got, scale = found[f"{name}_grad"], max(1.0, float(np.max(np.abs(want), initial=0)))
            if not np.allclose(got, want, rtol=2e-3, atol=2e-4 * scale):
                return result | {"verdict": "wrong", "said": name}
    return result | {"verdict": "right"}


def peers(cache: Path, cases: Path) -> None:
    """Make the environment if there is none, and let each tool go through the cases."""
    home = cache / "environment"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
    for tool in TOOLS:
        log, trying = cases / f"{tool}.jsonl", cases / f"{tool}.trying"
        log.unlink(missing_ok=True)
        while subprocess.run([python, WORKER, tool, cases], stderr=subprocess.DEVNULL, check=False).returncode:
            if not trying.exists():
                raise SystemExit(f"{tool} does not start in {home}")
            line = {"case": trying.read_text(), "verdict": "broken", "added": 0, "said": "the process died"}
            with log.open("a") as file:
                print(json.dumps(line), file=file)
            trying.unlink()


def main() -> int:
    """Export, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "graphkit" / "peers")
    parser.add_argument("--per-test", type=int, default=8)
    parser.add_argument("--tests", default="tests/gradients")
    parser.add_argument("--keep", action="store_true", help="use the cases that are in the cache")
    parser.add_argument("--list", action="store_true", help="print every case")
    options = parser.parse_args()
    cases = options.cache / "cases"
    if not options.keep:
        export(options.tests, cases, options.per_test)
    folders = sorted(p for p in cases.iterdir() if p.is_dir())
    verdicts = {"graphkit": {f.name: ours(f) for f in folders}}
    peers(options.cache, cases)
    for tool in TOOLS:
        lines = map(json.loads, (cases / f"{tool}.jsonl").read_text().splitlines())
        verdicts[tool] = {line["case"]: line for line in lines}
    if options.list:
        for folder in folders:
            shown = (f"{t} {v[folder.name]['verdict']} +{v[folder.name]['added']}" for t, v in verdicts.items())
            print(f"{folder.name}: {'; '.join(shown)}")
    for folder in folders:
        mine = verdicts["graphkit"][folder.name]
        if mine["verdict"] != "right":
            print(f"graphkit, {folder.name}: {mine['verdict']} {mine['said']}")
    print(f"\n{len(folders)} cases     right  wrong  refused  broken   nodes added (graphkit's, on those it has right)")
    for tool, found in verdicts.items():
        count = collections.Counter(v["verdict"] for v in found.values())
        right = [case for case, v in found.items() if v["verdict"] == "right"]
        nodes, own = (sum(verdicts[t][c]["added"] for c in right) for t in (tool, "graphkit"))
        numbers = f"{count['right']:8} {count['wrong']:6} {count['refused']:8} {count['broken']:7}"
        print(f"{tool:12} {numbers} {nodes:9,} ({own:,})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
