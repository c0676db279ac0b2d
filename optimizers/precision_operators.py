"""What can be computed in half precision: by the standard, by ONNX Runtime's kernels, and without losing the result.

Which kernels there are is what ONNX Runtime 1.31 registers for CUDA (a test compares); its CPU provider computes
float16 in float32 and has next to no bfloat16. What stays in float32 for its numbers' sake is what mixed precision
keeps there everywhere: exponentials, powers, sums, softmax, losses, and rounding to whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx
import onnx_ir as ir

__all__ = ["CHEAP", "EXACT", "UNTYPED", "half_slots", "has_kernel", "is_sensitive"]

_BOTH: Final = """
Abs Add Concat Div Dropout Erf Exp Expand Flatten Gather GatherElements GatherND Gelu Gemm Identity LayerNormalization
MatMul Max Min Mod Mul Neg Pow ReduceMean ReduceSum Relu Reshape ScatterElements ScatterND Sigmoid Sign
Slice Softmax Split Sqrt Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where IsInf IsNaN ConstantOfShape
"""
_FLOAT16: Final = """
ArgMax ArgMin AveragePool BatchNormalization Ceil Clip Compress Conv ConvTranspose Cos CumSum DeformConv DepthToSpace
Einsum Elu Equal Floor GRU GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish
InstanceNormalization LRN LSTM LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MaxPool NonZero PRelu Pad RNN
Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin ReduceProd ReduceSumSquare Resize
ReverseSequence RoiAlign Round Selu Shrink Sin Softplus Softsign SpaceToDepth ThresholdedRelu TopK
"""
# From which opset on there is a kernel, where that is not every opset that has the operator with this dtype.
_FROM: Final = {
    "float16": {"Attention": 23, "RMSNormalization": 23, "RotaryEmbedding": 23, "TensorScatter": 24},
    "bfloat16": {
        **dict.fromkeys("AveragePool Conv Cos DeformConv HardSigmoid HardSwish LpNormalization RoiAlign".split(), 22),
        **dict.fromkeys("Sin Softplus Softsign".split(), 22),
        "Attention": 23,
        "RMSNormalization": 23,
        "RotaryEmbedding": 23,
        "TensorScatter": 24,
        "TopK": 24,
    },
}
_KERNELS: Final = {
    "float16": frozenset((_BOTH + _FLOAT16).split()),
    "bfloat16": frozenset(_BOTH.split()),
}
# Fused operators with kernels for both; every float tensor of theirs has one type.
_MICROSOFT: Final = frozenset("FusedMatMul BiasGelu FastGelu Gelu QuickGelu".split())

# What loses its result in half precision, whatever the numbers.
_SENSITIVE: Final = {
    **dict.fromkeys("Exp Log Pow Softplus Softmax LogSoftmax".split(), "it may overflow, and its result is steep"),
    **dict.fromkeys(
        "ReduceSum ReduceL1 ReduceL2 ReduceSumSquare ReduceProd ReduceLogSum ReduceLogSumExp CumSum".split(),
        "it accumulates",
    ),
    **dict.fromkeys("Sin Cos Floor Ceil Round Mod RoiAlign DeformConv".split(), "it needs its argument exactly"),
}
# Averages over more elements than this are sums that were divided too late.
LONG: Final = 1024

# What moves numbers without changing them.
EXACT: Final = frozenset(
    """
    Identity Reshape Transpose Squeeze Unsqueeze Flatten Slice Gather GatherElements GatherND Concat Split Expand Tile
    Where Pad Compress DepthToSpace SpaceToDepth ReverseSequence Trilu Relu Abs Neg Max Min
    MaxPool GlobalMaxPool ReduceMax ReduceMin TopK Sign Clip Dropout
    """.split()
)
# What costs little, so that it may follow its neighbours.
CHEAP: Final = EXACT | frozenset(
    """
    Add Sub Mul Div Sqrt Reciprocal Erf Sigmoid Tanh Elu LeakyRelu HardSigmoid HardSwish Softsign Selu Sum PRelu
    Less LessOrEqual Greater GreaterOrEqual Equal IsNaN IsInf ScatterElements ScatterND ReduceMean
    """.split()
)
# What reads a tensor of any type and gives out none of it.
UNTYPED: Final = frozenset({"Shape", "Size"})
# Type variables that stay float32 in an operator that is otherwise converted: ratios and regions of interest.
_STAY: Final = {("Dropout", "T1"), ("Dropout", "T2"), ("Resize", "T2"), ("LayerNormalization", "U")}


def has_kernel(node: ir.Node, half: ir.DataType, opset: int) -> bool:
    """Whether CUDA computes the node's operator in ``half``."""
    if node.domain == "com.microsoft":
        return node.op_type in _MICROSOFT
    kind = half.name.lower()
    first = _FROM[kind].get(node.op_type)
    return opset >= first if first is not None else node.op_type in _KERNELS[kind]


def is_sensitive(node: ir.Node, reduced: int | None) -> str | None:
    """Why the node's result would be lost in half precision; ``reduced`` is how many elements a mean is taken of."""
    if node.domain != "":
        return None
    if node.op_type in ("ReduceMean", "GlobalAveragePool") and (reduced is None or reduced > LONG):
        return f"it averages {'an unknown number of' if reduced is None else f'{reduced:,}'} elements"
    return _SENSITIVE.get(node.op_type)


def half_slots(node: ir.Node, half: ir.DataType, opset: int) -> tuple[set[int], set[int]] | None:
    """The inputs and outputs whose type changes with ``half``; None where the standard allows no such node.

    Those of fixed type (the scales of Resize) and of type variables of their own (its regions) are not among them.
    """
    if node.domain == "com.microsoft":
        return set(range(len(node.inputs))), set(range(len(node.outputs)))
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    text = f"tensor({half.name.lower()})"
    variables = {
        constraint.type_param_str
        for constraint in schema.type_constraints
        if "tensor(float)" in constraint.allowed_type_strs and (node.op_type, constraint.type_param_str) not in _STAY
    }
    allowed = {
        constraint.type_param_str for constraint in schema.type_constraints if text in constraint.allowed_type_strs
    }
    slots = (
        {index for index in range(len(values)) if _formal(formals, index) in variables}
        for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs))
    )
    inputs, outputs = slots
    used = {_formal(schema.inputs, i) for i in inputs if node.inputs[i] is not None}
    used |= {_formal(schema.outputs, i) for i in outputs}
    needed = {variable for variable in used if _is_float(node, schema, variable)}
    return (inputs, outputs) if needed <= allowed else None


def _formal(formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> str:
    return formals[min(index, len(formals) - 1)].type_str if formals else ""


def _is_float(node: ir.Node, schema: onnx.defs.OpSchema, variable: str) -> bool:
    pairs = [(value, _formal(schema.inputs, i)) for i, value in enumerate(node.inputs)]
    pairs += [(value, _formal(schema.outputs, i)) for i, value in enumerate(node.outputs)]
    return any(v is not None and v.dtype == ir.DataType.FLOAT for v, formal in pairs if formal == variable)
