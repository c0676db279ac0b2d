"""Optimize hostile graphs with one of the peers; run by ``benchmarks.hostile`` in the peers' own environment.

    python _hostile_worker.py TOOL FOLDER

Every ``FOLDER/NAME.onnx`` becomes ``FOLDER/TOOL/NAME.onnx``, or a line in ``FOLDER/TOOL/failed.jsonl``. A graph that
takes longer than a minute ends the process, as one that crashes it does; the caller notes it and starts again.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import onnx

LIMIT = 60


def by_onnxsim(path: Path, target: Path) -> None:
    import onnxsim

    made, _ = onnxsim.simplify(onnx.load(path))
    target.write_bytes(made.SerializeToString())


def by_onnxslim(path: Path, target: Path) -> None:
    import onnxslim

    target.write_bytes(onnxslim.slim(onnx.load(path)).SerializeToString())


def by_onnxoptimizer(path: Path, target: Path) -> None:
    import onnxoptimizer

    target.write_bytes(onnxoptimizer.optimize(onnx.load(path)).SerializeToString())


def by_onnxscript(path: Path, target: Path) -> None:
    from onnxscript import optimizer

    target.write_bytes(optimizer.optimize(onnx.load(path)).SerializeToString())


def by_runtime(path: Path, target: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


TOOLS = {
    "onnxsim": by_onnxsim,
    "onnxslim": by_onnxslim,
    "onnxoptimizer": by_onnxoptimizer,
    "onnxscript": by_onnxscript,
    "onnxruntime": by_runtime,
}


def main() -> None:
    """Every graph that was not tried yet."""
    tool, root = sys.argv[1], Path(sys.argv[2])
    home = root / tool
    home.mkdir(exist_ok=True)
    failed, trying = home / "failed.jsonl", home / "trying"
    known = {json.loads(line)["case"] for line in failed.read_text().splitlines()} if failed.exists() else set()
    for path in sorted(root.glob("*.onnx")):
        target = home / path.name
        if target.exists() or path.stem in known:
            continue
        trying.write_text(path.stem)
        signal.alarm(LIMIT)
        said = ""
        try:
            TOOLS[tool](path, target)
        except Exception as error:  # noqa: BLE001  # whatever a peer raises is its failure
            target.unlink(missing_ok=True)
            said = f"{type(error).__name__}: {error}"[:300]
        if not target.exists():
            with failed.open("a") as file:
                print(json.dumps({"case": path.stem, "said": said or "it wrote nothing"}), file=file)
        signal.alarm(0)
        trying.unlink()


if __name__ == "__main__":
    main()
