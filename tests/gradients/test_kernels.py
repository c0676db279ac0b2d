"""Whatever the rules wrote in the tests before this one runs on stock ONNX Runtime, on the CPU and on CUDA.

The runtime's own registry says which kernels it has; ``kernels.json`` is that registry as written down on a machine
where it can be read (reading it needs CUDA's libraries, without which the runtime's process ends).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx.defs
import pytest

TABLE = Path(__file__).with_name("kernels.json")
ONNX_NAMES = {"float32": "float", "float64": "double", "string": "string"}

# Nodes without a CUDA kernel. The runtime runs such a node on the CPU and copies what it reads and makes.
EXCEPTIONS = {
    "Det": "of smaller matrices, in the gradient of Det, which has no CUDA kernel itself",
    "DFT": "in the gradients of DFT and STFT, which have none themselves",
    "CumProd": "in the gradient of CumProd, which has none itself",
    "Unique": "in the gradient of Unique, which has none itself",
    "Col2Im": "in the gradient of Col2Im's counterpart",
}
# Small integer vectors (shapes, positions) that the runtime computes on the CPU by itself.
INTEGERS_ON_CPU = frozenset(
    "Pad ReduceProd ReduceMax ReduceMin Range Sign Abs ArgMax CumSum Tile ReduceSum Clip".split()
)

KERNELS = json.loads(TABLE.read_text())


def _covers(provider: str, op: str, opset: int, kinds: tuple[str | None, ...], schema: onnx.defs.OpSchema) -> bool:
    for low, high, types in KERNELS[provider].get(op, []):
        if not low <= opset <= high:
            continue
        for n, kind in enumerate(kinds):
            formal = schema.inputs[min(n, len(schema.inputs) - 1)]
            allowed = types.get(formal.type_str)
            if kind is not None and allowed is not None and ONNX_NAMES.get(kind, kind) not in allowed:
                break
        else:
            return True
    return False


@pytest.fixture
def notes(written_by_rules):
    if len(written_by_rules) < 50:
        pytest.skip("runs after the other tests of this folder")
    return written_by_rules


def test_only_plain_operators(notes):
    odd = {(op, domain, by) for op, domain, _, _, by in notes if domain and not by}
    assert not odd
    assert max(opset for _, _, opset, _, _ in notes) <= 26


def test_both_providers_have_the_kernels(notes):
    missing = set()
    for op, domain, opset, kinds, by in notes:
        # of sequences: in gradients of the same operators, which run where sequences do
        on_sequences = op.startswith("Sequence") or op in {"ConcatFromSequence", "SplitToSequence"}
        if domain or op in EXCEPTIONS or on_sequences or not kinds or not onnx.defs.has(op):
            continue
        schema = onnx.defs.get_schema(op, opset)
        if schema.has_function or schema.has_context_dependent_function:  # its body is, where it has no kernel
            continue
        # Half precision is computed in float32 on the CPU, and what it lacks in float64 by onnx's reference.
        if not {"float16", "bfloat16", "float64"} & set(kinds) and not _covers("CPU", op, opset, kinds, schema):
            missing.add(f"CPU: {op}{list(kinds)} in the gradient of {by}")
        if op in INTEGERS_ON_CPU and kinds[0] in {"int64", "int32"}:
            continue
        if not _covers("CUDA", op, opset, kinds, schema):
            missing.add(f"CUDA: {op}{list(kinds)} in the gradient of {by}")
    assert not missing, "\n".join(sorted(missing))


def test_no_scatter_that_two_threads_race_in(notes):
    """ScatterND is written to put rows at places that differ, and never adds."""
    assert {by for op, _, _, _, by in notes if op == "ScatterND"} <= {"ScatterND"}


SCRIPT = """
import json, sys
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
found = {}
for k in get_all_opkernel_def():
    if k.domain == "" and k.version_range[1] >= 21:
        found.setdefault(k.provider, set()).add(k.op_name)
sys.stdout.write(json.dumps({p: sorted(names) for p, names in found.items()}))
"""


def test_the_table_is_the_runtimes_own():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip("the registry cannot be read here: it needs CUDA's libraries")
    found = json.loads(done.stdout)
    for provider in ("CPU", "CUDA"):
        names = found.get(f"{provider}ExecutionProvider")
        if names is not None:
            assert set(KERNELS[provider]) <= set(names)
