"""What the preset ``web`` asks of a model: that onnxruntime-web loads it, and JavaScript can feed it.

The WASM build (measured on onnxruntime-web 1.30.0) has every operator that the CPU provider has: it loads the 1,721
models, of 185 operators, among onnx's own node tests that the CPU provider loads, and 21 fused ``com.microsoft``
operators beside them. What differs is JavaScript, whose tensors have no bfloat16, float8 or complex type.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from graphkit.errors import PassError

__all__ = ["NEWEST_OPSET", "check_for_web"]

# Older builds, which pages keep for years, load this and what is older.
NEWEST_OPSET: Final = 21
_NO_TENSORS: Final = frozenset(
    kind for kind in ir.DataType if kind.name.startswith(("BFLOAT", "FLOAT8", "FLOAT4", "COMPLEX"))
)


def check_for_web(model: ir.Model) -> None:
    """Raise ``PassError`` that names the inputs and outputs for which JavaScript has no tensors."""
    odd = [
        f"{where} '{value.name}' is {value.dtype.name.lower()}"
        for where, values in (("input", model.graph.inputs), ("output", model.graph.outputs))
        for value in values
        if value.dtype in _NO_TENSORS and value.dtype is not None
    ]
    if odd:
        raise PassError(f"JavaScript has no such tensors, so the model cannot be run on the web: {', '.join(odd)}")
