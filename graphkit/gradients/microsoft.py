"""The operators of com.microsoft that optimized files contain, in ai.onnx operators; and SimplifiedLayerNormalization.

ONNX Runtime writes them when it saves an optimized model. Their meaning here is that of its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from graphkit import dtypes
from graphkit.core import Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import number
from graphkit.gradients.lowered import Call, lowering
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints
from graphkit.operands import extents, joined_shape

DOMAIN: Final = "com.microsoft"


# Matrix products and convolutions


@lowering("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_matmul(c: Call) -> Sequence[Tensor]:
    """alpha op(a) op(b); a batch transpose moves the first axis behind the batch."""
    a = _turned(c, c.needed(0), bool(c.attribute("transA", 0)), bool(c.attribute("transBatchA", 0)))
    b = _turned(c, c.needed(1), bool(c.attribute("transB", 0)), bool(c.attribute("transBatchB", 0)))
    product = apply1("MatMul", a, b)
    alpha = float(c.attribute("alpha", 1.0))
    return (product if alpha == 1 else apply1("Mul", product, number(alpha, product)),)


def _turned(c: Call, x: Tensor, last: bool, batch: bool) -> Tensor:
    if not last and not batch:
        return x
    rank = x.rank
    if rank is None:
        raise GradientError(f"the gradient of {c.op} needs the rank of its inputs")
    if rank < 2:
        return x
    perm = list(range(rank))
    if batch:
        perm = [*perm[1:-1], 0, perm[-1]]
    if last:
        perm[-2:] = [perm[-1], perm[-2]]
    return apply1("Transpose", x, perm=perm)


def _activated(c: Call, y: Tensor, settings: Sequence[float | None]) -> Tensor:
    """A fused activation: its name, and up to three numbers."""
    name = str(c.attribute("activation", "") or "")
    numbers = [*settings, None, None, None]
    if name in ("", "Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", "HardSwish", "Gelu"):
        return apply1(name, y) if name else y
    if name == "Clip":
        low, high = numbers[0], numbers[1]
        bounds = [None if v is None else number(v, y) for v in (low, high)]
        return apply1("Clip", y, *bounds)
    names = {"LeakyRelu": ["alpha"], "Elu": ["alpha"], "ThresholdedRelu": ["alpha"], "HardSigmoid": ["alpha", "beta"]}
    if name not in names:
        raise GradientError(f"{c.op} has the activation '{name}', which has no gradient here")
    attributes = {k: float(v) for k, v in zip(names[name], numbers, strict=False) if v is not None}
    return apply1(name, y, **attributes)


@lowering("FusedGemm", domain=DOMAIN)
def fused_gemm(c: Call) -> Sequence[Tensor]:
    attributes = {n: c.attributes[n] for n in ("alpha", "beta", "transA", "transB") if n in c.attributes}
    y = apply1("Gemm", c.needed(0), c.needed(1), c.input(2), **attributes)
    settings = [c.attribute(f"activation_{n}") for n in ("alpha", "beta", "gamma")]
    return (_activated(c, y, settings),)


_CONVOLUTION: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _convolved(c: Call, x: Tensor, w: Tensor) -> Tensor:
    attributes = {n: c.attributes[n] for n in _CONVOLUTION if n in c.attributes}
    bias = c.input(2)
    return apply1("Conv", x, w, bias, **attributes) if bias is not None else apply1("Conv", x, w, **attributes)


@lowering("FusedConv", domain=DOMAIN)
def fused_conv(c: Call) -> Sequence[Tensor]:
    """activation(conv(x, w) + b + z)"""
    y = _convolved(c, c.needed(0), c.needed(1))
    z = c.input(3)
    if z is not None:
        y = apply1("Add", y, z)
    return (_activated(c, y, list(c.attribute("activation_params") or [])),)


@lowering("NhwcConv", "NhwcFusedConv", domain=DOMAIN)
def nhwc_conv(c: Call) -> Sequence[Tensor]:
    """Channels last, in x, in w and in the result."""
    w = c.needed(1)
    rank = w.rank
    if rank is None:
        raise GradientError(f"the gradient of {c.op} needs the rank of its inputs")
    to_first, to_last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    x = apply1("Transpose", c.needed(0), perm=to_first)
    if c.op == "NhwcConv":  # the fused one keeps the kernel as Conv has it
        w = apply1("Transpose", w, perm=to_first)
    y = _convolved(c, x, w)
    z = c.input(3)
    if z is not None:
        y = apply1("Add", y, apply1("Transpose", z, perm=to_first))
    return (apply1("Transpose", _activated(c, y, list(c.attribute("activation_params") or [])), perm=to_last),)


# Activations


@lowering("Gelu", domain=DOMAIN)
def gelu(c: Call) -> Sequence[Tensor]:
    return (apply1("Gelu", c.needed(0)),)


@lowering("BiasGelu", domain=DOMAIN)
def bias_gelu(c: Call) -> Sequence[Tensor]:
    return (apply1("Gelu", apply1("Add", c.needed(0), c.needed(1))),)


@lowering("FastGelu", domain=DOMAIN)
def fast_gelu(c: Call) -> Sequence[Tensor]:
    bias = c.input(1)
    x = c.needed(0) if bias is None else apply1("Add", c.needed(0), bias)
    return (apply1("Gelu", x, approximate="tanh"),)


@lowering("QuickGelu", domain=DOMAIN)
def quick_gelu(c: Call) -> Sequence[Tensor]:
    x, alpha = c.needed(0), float(c.attribute("alpha", 1.702))
    return (apply1("Mul", x, apply1("Sigmoid", apply1("Mul", x, number(alpha, x)))),)


@lowering("BiasSplitGelu", domain=DOMAIN)
def bias_split_gelu(c: Call) -> Sequence[Tensor]:
    """One half of the last axis times the Gelu of the other."""
    left, right = apply("Split", (apply1("Add", c.needed(0), c.needed(1)),), {"axis": -1, "num_outputs": 2}, 2)
    return (apply1("Mul", left, apply1("Gelu", right)),)


@lowering("BiasSoftmax", domain=DOMAIN)
def bias_softmax(c: Call) -> Sequence[Tensor]:
    """Softmax over all axes from ``axis`` on, of data and a bias that broadcasts."""
    x = apply1("Add", c.needed(0), c.needed(1))
    rank, axis = x.rank, int(c.attribute("axis", 1))
    if rank is None and axis != -1:
        raise GradientError("the gradient of BiasSoftmax needs the rank of its inputs")
    if rank is None or axis % rank == rank - 1:
        return (apply1("Softmax", x, axis=-1),)
    flat = apply1("Reshape", x, joined_shape(extents(x, 0, axis % rank), [-1]))
    return (apply1("Reshape", apply1("Softmax", flat, axis=-1), extents(x, 0, rank)),)


@lowering("Trilu", domain=DOMAIN)
def trilu(c: Call) -> Sequence[Tensor]:
    k = c.input(1)
    given = (c.needed(0),) if k is None else (c.needed(0), k)
    return (apply1("Trilu", *given, upper=int(c.attribute("upper", 1))),)


# Normalization


def root_mean_square(x: Tensor, scale: Tensor, epsilon: float, axis: int = -1) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from ``axis`` on, in float32 at least; and the 1/sqrt."""
    wide = x if x.dtype in (dtypes.FLOAT32, dtypes.FLOAT64) else x.astype("float32")
    axes = [-1] if axis == -1 else list(range(axis, 0))
    if axis >= 0:
        if x.rank is None:
            raise GradientError("the gradient of SimplifiedLayerNormalization needs the rank of its input")
        axes = list(range(axis, x.rank))
    mean = apply1("ReduceMean", apply1("Mul", wide, wide), constant_ints(axes), keepdims=1)
    inverse = apply1("Reciprocal", apply1("Sqrt", apply1("Add", mean, number(epsilon, wide))))
    return apply1("Mul", apply1("Mul", wide, inverse).astype(scale.dtype), scale), inverse


@lowering("SimplifiedLayerNormalization")
def simplified_layer_normalization(c: Call) -> Sequence[Tensor]:
    return root_mean_square(c.needed(0), c.needed(1), float(c.attribute("epsilon", 1e-5)), int(c.attribute("axis", -1)))


def _skipped(c: Call, bias: int) -> Tensor:
    x, skip, b = c.needed(0), c.needed(1), c.input(bias)
    summed = apply1("Add", x, skip)
    return summed if b is None else apply1("Add", summed, b)


@lowering("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(c: Call) -> Sequence[Tensor | None]:
    """LayerNormalization of input + skip + bias; the sum is the fourth output."""
    x = _skipped(c, 4)
    y, mean, inverse = _normalized(x, c.needed(2), c.input(3), float(c.attribute("epsilon", 1e-12)), c.count)
    return y, mean, inverse, x


def _normalized(
    x: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float, count: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    inputs = (x, scale) if bias is None else (x, scale, bias)
    settings: dict[str, Any] = {"axis": -1, "epsilon": epsilon}
    if count == 1:
        return apply("LayerNormalization", inputs, settings)[0], None, None
    made = apply("LayerNormalization", inputs, settings, 3)
    return made[0], made[1], made[2]


@lowering("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(c: Call) -> Sequence[Tensor | None]:
    x = _skipped(c, 3)
    y, inverse = root_mean_square(x, c.needed(2), float(c.attribute("epsilon", 1e-12)))
    return y, None, inverse, x


@lowering("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(c: Call) -> Sequence[Tensor | None]:
    """LayerNormalization of the sum of word, position and segment embeddings; the mask's index carries no gradient."""
    words, segments, places = c.needed(0), c.input(1), c.input(8)
    table = c.needed(3)
    if places is None:
        size = apply1("Shape", words, start=1, end=2)
        zero = constant_ints([0])
        position = apply1("Slice", table, zero, size, zero)
    else:
        position = apply1("Gather", table, places, axis=0)
    x = apply1("Add", apply1("Gather", c.needed(2), words, axis=0), position)
    kinds = c.input(4)
    if segments is not None and kinds is not None:
        x = apply1("Add", x, apply1("Gather", kinds, segments, axis=0))
    y, _, _ = _normalized(x, c.needed(5), c.input(6), float(c.attribute("epsilon", 1e-12)), 1)
    mask = c.input(7)
    if mask is None:
        index = apply1("ConstantOfShape", apply1("Shape", words, start=0, end=1), value=np.zeros(1, dtype=np.int32))
    else:
        index = apply1("ReduceSum", mask.astype("int32"), constant_ints([1]), keepdims=0)
    return y, index, x
