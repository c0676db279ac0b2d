"""What the pipeline writes itself runs everywhere: operators with a kernel for the CPU and for CUDA."""

from __future__ import annotations

import re
from pathlib import Path

import graphkit.optimizers

FOLDER = Path(graphkit.optimizers.__file__).resolve().parent
# Read from the kernel registry of ONNX Runtime 1.31: both providers have these, for float32 at least.
EVERYWHERE = set(
    """
    Abs Add Attention Cast Clip Concat Constant Div Equal Exp Flatten Gather Gelu Gemm Greater HardSigmoid
    Identity LayerNormalization LeakyRelu Log MatMul Mul Neg Not Pad Pow RMSNormalization Reciprocal ReduceMax
    ReduceSum Relu Reshape Resize RotaryEmbedding Shape Sign Slice Split Sqrt Squeeze Sub Transpose Unsqueeze
    Where
    """.split()
)


def test_emitted_operators_have_kernels_everywhere():
    found: set[str] = set()
    for file in FOLDER.glob("*.py"):
        if not file.name.startswith("add_") and file.name != "cuda_kernels.py":  # whose operators are for CUDA alone
            found |= set(re.findall(r'(?:ctx|frame|self)\.add\(\s*"([A-Za-z]+)"', file.read_text(encoding="utf-8")))
    assert "Transpose" in found
    assert found <= EVERYWHERE
