"""Hostile graphs: graphkit beside onnxsim, onnxslim, onnxoptimizer, onnxscript and ONNX Runtime, and what each breaks.

    python -m benchmarks.hostile [--cache ~/.cache/graphkit/hostile] [--list]

The graphs are those of ``tests/optimizers/hostile``. The peers, at the versions below, go into an environment of their
own in the cache folder; each optimizes every graph with its default settings, and ONNX Runtime saves what its basic
level makes. All results are judged alike, here: *failed*, it raised an error, crashed or hung; *unloadable*; *wrong*
numbers, shapes or dtypes (a rounding of 1e-5 is allowed them); *interface*, names, order, types or defaults of inputs
and outputs; *metadata* lost; *growth* by nodes, or by bytes of tensors. Graphs that the runtime itself cannot run are
judged by what can be seen without running them, and left out for the runtime. graphkit is also held to what its tests
ask of it, and runs without verification, so that the passes are measured and not the check.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import onnx

from graphkit.optimizers import optimize
from tests.optimizers.hostile.cases import VERDICTS, judged
from tests.optimizers.hostile.every import CASES

PEERS = (
    "onnxsim==0.8.1",
    "onnxslim==0.1.98",
    "onnxoptimizer==0.4.2",
    "onnxscript==0.7.2",
    "onnxruntime",
    "onnx==1.23.2",
)
TOOLS = ("onnxsim", "onnxslim", "onnxoptimizer", "onnxscript", "onnxruntime")
WORKER = Path(__file__).with_name("_hostile_worker.py")
COLUMNS = ("right", "failed", *VERDICTS[:5])


def environment(cache: Path) -> Path:
    """The Python of the peers' environment, made if there is none."""
    home = cache / "environment"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
    return python


def optimized_by(tool: str, python: Path, graphs: Path) -> dict[str, dict[str, str]]:
    """Let one peer go through the graphs, and judge what it made."""
    home = graphs / tool
    shutil.rmtree(home, ignore_errors=True)
    command = [python, WORKER, tool, graphs]
    while subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        trying = home / "trying"
        if not trying.exists():
            raise SystemExit(f"{tool} does not start: {' '.join(map(str, command))}")
        name = trying.read_text()
        (home / f"{name}.onnx").unlink(missing_ok=True)
        with (home / "failed.jsonl").open("a") as file:
            print(json.dumps({"case": name, "said": "the process died, or took longer than a minute"}), file=file)
        trying.unlink()
    log = home / "failed.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    found = {line["case"]: {"failed": line["said"]} for line in lines}
    for name, case in CASES.items():
        if tool == "onnxruntime" and not case.loads:
            found.pop(name, None)
        elif name not in found:
            found[name] = judged(case, onnx.load(home / f"{name}.onnx"), strict=False)
    return found


def ours(strict: bool) -> dict[str, dict[str, str]]:
    return {name: judged(case, optimize(case.model, verify=False), strict=strict) for name, case in CASES.items()}


def main() -> int:
    """Write the graphs, let everybody optimize them, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "graphkit" / "hostile")
    parser.add_argument("--list", action="store_true", help="print every graph that somebody breaks, and how")
    options = parser.parse_args()
    graphs = options.cache / "graphs"
    shutil.rmtree(graphs, ignore_errors=True)
    graphs.mkdir(parents=True)
    for name, case in CASES.items():
        onnx.save(case.model, graphs / f"{name}.onnx")
    python = environment(options.cache)
    verdicts = {"graphkit": ours(strict=False), "graphkit, strict": ours(strict=True)}
    for tool in TOOLS:
        verdicts[tool] = optimized_by(tool, python, graphs)
    print(f"\n{len(CASES)} hostile graphs{'':8}{''.join(f'{column:>12}' for column in ('of', *COLUMNS))}")
    for tool, found in verdicts.items():
        count = collections.Counter(next(iter(each), "right") for each in found.values())
        numbers = "".join(f"{count[column]:12}" for column in COLUMNS)
        print(f"{tool:26}{len(found):12}{numbers}")
    if options.list:
        for name in CASES:
            for tool, found in verdicts.items():
                for verdict, said in found.get(name, {}).items():
                    print(f"{name}: {tool}: {verdict}: {' '.join(said.split())[:200]}")
    return 0 if not any(verdicts["graphkit, strict"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
