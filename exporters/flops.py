"""Floating-point operations of single nodes, from their shapes.

A multiplication and an addition count as two. Matrix products, convolutions, recurrences and attention are counted
exactly; reductions as one for an element read; softmax and the normalizations as a few for an element, as stated beside
them; other arithmetic as one for an element made; what only moves data as none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import onnx_ir as ir

__all__ = ["node_flops"]

Shape = tuple[int, ...]


def node_flops(node: ir.Node) -> int | None:
    """Return the floating-point operations of one node, or None where its shapes are not known."""
    if node.op_type in _FREE or node.domain not in ("", "ai.onnx", "com.microsoft"):
        return 0
    try:
        return _RULES.get(node.op_type, _elementwise)(node)
    except _UnknownShapeError:
        return None


class _UnknownShapeError(Exception):
    pass


def _shape(value: ir.Value | None) -> Shape:
    if value is None or value.shape is None or not all(isinstance(d, int) for d in value.shape):
        raise _UnknownShapeError
    return tuple(int(d) for d in value.shape)  # type: ignore[arg-type]  # all are int, as just checked


def _elements(value: ir.Value | None) -> int:
    return math.prod(_shape(value))


def _ints(node: ir.Node, name: str) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else []


def _int(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _optional(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _elementwise(node: ir.Node) -> int:
    return max((_elements(value) for value in node.outputs if value.name), default=0)


def _reduction(node: ir.Node) -> int:
    return _elements(node.inputs[0])


def _matmul(node: ir.Node) -> int:
    return 2 * _elements(node.outputs[0]) * _shape(node.inputs[0])[-1]


def _gemm(node: ir.Node) -> int:
    shared = _shape(node.inputs[0])[0 if _int(node, "transA", 0) else 1]
    made = _elements(node.outputs[0])
    return 2 * made * shared + (made if _optional(node, 2) is not None else 0)


def _conv(node: ir.Node) -> int:
    weight, made = _shape(node.inputs[1]), _elements(node.outputs[0])
    return 2 * made * math.prod(weight[1:]) + (made if _optional(node, 2) is not None else 0)


def _conv_transpose(node: ir.Node) -> int:
    weight = _shape(node.inputs[1])
    bias = _elements(node.outputs[0]) if _optional(node, 2) is not None else 0
    return 2 * _elements(node.inputs[0]) * math.prod(weight[1:]) + bias


def _pool(node: ir.Node) -> int:
    return _elements(node.outputs[0]) * math.prod(_ints(node, "kernel_shape"))


def _einsum(node: ir.Node) -> int:
    terms = node.attributes["equation"].as_string().replace(" ", "").split("->")[0].split(",")
    if any("." in term for term in terms):
        raise _UnknownShapeError
    sizes: dict[str, int] = {}
    for term, value in zip(terms, node.inputs, strict=True):
        sizes.update(zip(term, _shape(value), strict=True))
    return len(terms) * math.prod(sizes.values())


def _recurrent(gates: int) -> Callable[[ir.Node], int]:
    def count(node: ir.Node) -> int:
        length, batch, width = _shape(node.inputs[0])
        directions, rows, _ = _shape(node.inputs[1])
        hidden = rows // gates
        return 2 * length * batch * directions * gates * hidden * (width + hidden)

    return count


def _attention(node: ir.Node) -> int:
    query, key = _shape(node.inputs[0]), _shape(node.inputs[1])
    width = query[-1] if len(query) == 3 else query[1] * query[-1]
    return 4 * query[0] * query[-2] * key[-2] * width


def _times(factor: int) -> Callable[[ir.Node], int]:
    return lambda node: factor * _elements(node.inputs[0])


def _rules() -> Iterator[tuple[str, Callable[[ir.Node], int]]]:
    yield from {"MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv_transpose}.items()
    yield from {"FusedMatMul": _matmul, "FusedConv": _conv, "ConvInteger": _conv, "MatMulInteger": _matmul}.items()
    yield from {"Einsum": _einsum, "Attention": _attention}.items()
    yield from {"LSTM": _recurrent(4), "GRU": _recurrent(3), "RNN": _recurrent(1)}.items()
    for name in ("MaxPool", "AveragePool", "LpPool"):
        yield name, _pool
    for name in ("GlobalAveragePool", "GlobalMaxPool", "ArgMax", "ArgMin", "CumSum", "Sum", "Mean"):
        yield name, _reduction
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"):
        yield f"Reduce{kind}", _reduction
    # Mean, variance, normalization, scale and shift, counted an element at a time.
    for name in ("LayerNormalization", "GroupNormalization", "InstanceNormalization"):
        yield name, _times(8)
    yield from {"BatchNormalization": _times(2), "RMSNormalization": _times(4)}.items()
    # The largest, the difference, the exponential, the sum, the quotient.
    yield from {"Softmax": _times(5), "LogSoftmax": _times(5), "SoftmaxCrossEntropyLoss": _times(6)}.items()


_RULES = dict(_rules())
# Operators that only move, compare or make up data, and those whose work is in their bodies.
_FREE = frozenset(
    name
    for line in (
        "Reshape Transpose Flatten Squeeze Unsqueeze Expand Concat Split Slice Gather GatherElements GatherND Pad Tile",
        "ScatterElements ScatterND Scatter Shape Size Cast CastLike Identity Constant ConstantOfShape Range OneHot",
        "Where",
        "NonZero DepthToSpace SpaceToDepth If Loop Scan Equal Less Greater LessOrEqual GreaterOrEqual And Or Not Xor",
        "IsNaN IsInf Trilu EyeLike ReverseSequence Compress Unique TopK NonMaxSuppression RandomNormal RandomUniform",
        "RandomNormalLike RandomUniformLike Bernoulli Multinomial Dropout SequenceConstruct SequenceAt SequenceEmpty",
        "SequenceInsert SequenceErase SequenceLength ConcatFromSequence SplitToSequence Optional OptionalGetElement",
        "OptionalHasElement StringConcat StringSplit StringNormalizer RegexFullMatch TfIdfVectorizer MemcpyFromHost",
        "MemcpyToHost BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot",
    )
    for name in line.split()
)
