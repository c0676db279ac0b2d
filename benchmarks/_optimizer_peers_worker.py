"""Optimize one model with one of the peers; run by ``benchmarks.optimizers`` in the peers' own environment.

    python _optimizer_peers_worker.py TOOL MODEL RESULT

Prints one line of JSON: the seconds of processor time that the peer took (reading and writing of the file included,
importing not), and what it said where it failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable

Tool = Callable[[str, str], None]


def onnxsim() -> Tool:
    import onnx
    import onnxsim as tool

    def run(source: str, target: str) -> None:
        found, ok = tool.simplify(onnx.load(source))
        if not ok:
            raise ValueError("its own check failed")
        onnx.save(found, target)

    return run


def onnxslim() -> Tool:
    import onnx
    import onnxslim as tool

    def run(source: str, target: str) -> None:
        onnx.save(tool.slim(onnx.load(source)), target)

    return run


def onnxoptimizer() -> Tool:
    import onnx
    import onnxoptimizer as tool

    def run(source: str, target: str) -> None:
        onnx.save(tool.optimize(onnx.load(source), fixed_point=True), target)

    return run


def onnxscript() -> Tool:
    import onnx_ir
    import onnxscript.optimizer as tool

    def run(source: str, target: str) -> None:
        model = onnx_ir.load(source)
        tool.optimize(model)
        onnx_ir.save(model, target)

    return run


def ort_basic() -> Tool:
    import onnxruntime

    def run(source: str, target: str) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = target
        options.log_severity_level = 4
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return run


TOOLS = {
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "onnxoptimizer": onnxoptimizer,
    "onnxscript": onnxscript,
    "ort-basic": ort_basic,
}


def main() -> None:
    """One model."""
    name, source, target = sys.argv[1:]
    said = ""
    with contextlib.redirect_stdout(io.StringIO()):
        run = TOOLS[name]()
        started = time.process_time()
        try:
            run(source, target)
        except Exception as error:  # noqa: BLE001  # whatever a peer raises is its failure
            said = f"{type(error).__name__}: {error}"[:300]
        seconds = time.process_time() - started
    print(json.dumps({"seconds": seconds, "said": said}))


if __name__ == "__main__":
    main()
