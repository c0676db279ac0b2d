"""Floating-point operations of single nodes and of whole models, from shapes.

A multiplication and an addition count as two. The operators that take a model's time count by formula:

===================  ==================================================================================================
MatMul, Gemm, ...    ``2 m k n`` a product of ``m x k`` and ``k x n``, and 1 an element for a bias
Conv                 ``2 M_out (C / group) prod(kernel)``: each element made reads one window (Dumoulin and Visin, "A
                     guide to convolution arithmetic for deep learning", 2016), padding counted as if it were data
ConvTranspose        ``2 M_in (M / group) prod(kernel)``: each element read is spread over one window
Einsum               one operation an operand for each element of the whole index space
RNN, GRU, LSTM       ``2 T B D G H (W + H)`` for G = 1, 3, 4 gates, which are the products of the operator's equations
Attention            ``2 B H L S (d + d_v)`` for the two products, and 5 a score for the softmax between (Vaswani et
                     al., "Attention is all you need", 2017)
DFT, STFT            ``5 n log2 n`` a transform of length n, as for radix 2 (Cooley and Tukey, 1965)
Det                  ``2/3 n^3`` a matrix, by elimination
===================  ==================================================================================================

Reductions and pools count 1 an element read; softmax 5 and the normalizations 2 to 8 an element, as written beside
them; what only moves, compares or draws data counts 0; all other arithmetic 1 an element made, however dear its
kernel: this counts work, not time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

__all__ = ["Flops", "ShapeOf", "count_flops", "declared_shape", "node_flops"]

Shape: TypeAlias = tuple[int, ...]
ShapeOf: TypeAlias = Callable[[ir.Value], "Shape | None"]


@dataclass(frozen=True, slots=True)
class Flops:
    """The floating-point operations of one run. Where ``unknown`` nodes could not be counted it is at least these."""

    count: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        return f"at least {self.count:,}" if self.unknown else f"{self.count:,}"


def count_flops(nodes: Iterable[ir.Node], shape_of: ShapeOf) -> Flops:
    """Add up the operations of nodes; a body of If, Loop or Scan counts once, where its nodes are among them."""
    total = unknown = 0
    for node in nodes:
        flops = node_flops(node, shape_of)
        if flops is None:
            unknown += 1
        else:
            total += flops
    return Flops(total, unknown)


def declared_shape(value: ir.Value) -> Shape | None:
    """The shape that is written on a value, where it is static."""
    if value.shape is None:
        return None
    dims = [dim for dim in value.shape if isinstance(dim, int)]
    return tuple(dims) if len(dims) == len(value.shape) else None


def node_flops(node: ir.Node, shape_of: ShapeOf = declared_shape) -> int | None:
    """Return the floating-point operations of one node, or None where its operator or its shapes are not known."""
    ours = node.domain in ("", "ai.onnx")
    if ours and node.op_type in _FREE:
        return 0
    rule = _RULES.get(node.op_type) if ours else _MICROSOFT.get(node.op_type) if node.domain == _CONTRIB else None
    if (rule is None and not ours) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    try:
        return (rule or _elementwise)(_Node(node, shape_of))
    except _UnknownShapeError:
        return None


_CONTRIB = "com.microsoft"


class _UnknownShapeError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Node:
    node: ir.Node
    shape_of: ShapeOf

    def shape(self, index: int, *, rank: int | None = None) -> Shape:
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        found = None if value is None else self.shape_of(value)
        if found is None or (rank is not None and len(found) != rank):
            raise _UnknownShapeError
        return found

    def read(self, index: int = 0) -> int:
        return math.prod(self.shape(index))

    def made(self) -> int:
        shapes = [self.shape_of(value) for value in self.node.outputs if value.name]
        if None in shapes:
            raise _UnknownShapeError
        return max((math.prod(shape) for shape in shapes if shape is not None), default=0)

    def first(self) -> Shape:
        found = self.shape_of(self.node.outputs[0])
        if found is None:
            raise _UnknownShapeError
        return found

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def integer(self, name: str, default: int = 0) -> int:
        return self.node.attributes.get_int(name, default)

    def ints(self, name: str) -> tuple[int, ...]:
        return tuple(self.node.attributes.get_ints(name, ()))


def _elementwise(node: _Node) -> int:
    return node.made()


def _matmul(left: int = 0) -> Callable[[_Node], int]:
    def count(node: _Node) -> int:
        shape = node.shape(left)
        if not shape:
            raise _UnknownShapeError
        return 2 * math.prod(node.first()) * shape[-2 if len(shape) > 1 and node.integer("transA") else -1]

    return count


def _gemm(node: _Node) -> int:
    shared = node.shape(0, rank=2)[0 if node.integer("transA") else 1]
    made = math.prod(node.first())
    return 2 * made * shared + (made if node.has(2) else 0)


def _conv(weight: int = 1, bias: int = 2) -> Callable[[_Node], int]:
    def count(node: _Node) -> int:
        made = math.prod(node.first())
        return 2 * made * math.prod(node.shape(weight)[1:]) + (made if node.has(bias) else 0)

    return count


def _conv_transpose(node: _Node) -> int:
    bias = math.prod(node.first()) if node.has(2) else 0
    return 2 * node.read() * math.prod(node.shape(1)[1:]) + bias


def _pool(node: _Node) -> int:
    return math.prod(node.first()) * math.prod(node.ints("kernel_shape"))


def _einsum(node: _Node) -> int:
    terms = node.node.attributes.get_string("equation", "").replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        shape = node.shape(index)
        before, dots, after = term.partition("...")
        inside = len(shape) - len(before) - len(after)
        if inside < 0 or (inside and not dots):
            raise _UnknownShapeError
        # The axes that an ellipsis stands for are counted from the last, where they broadcast.
        letters = [*before, *(f".{place}" for place in range(inside, 0, -1)), *after]
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1)) if size else 0
    return len(terms) * math.prod(sizes.values())


def _recurrent(gates: int) -> Callable[[_Node], int]:
    def count(node: _Node) -> int:
        one, two, width = node.shape(0, rank=3)  # time and batch, in either layout
        directions, rows, _ = node.shape(1, rank=3)
        hidden = rows // gates
        return 2 * one * two * directions * rows * (width + hidden)

    return count


def _attention(node: _Node) -> int:
    query, key, value = node.shape(0), node.shape(1), node.shape(2)
    heads = node.integer("q_num_heads") if len(query) == 3 else query[1]
    groups = node.integer("kv_num_heads") if len(key) == 3 else key[1]
    if not heads or not groups or len(query) not in (3, 4):
        raise _UnknownShapeError
    size = query[-1] // heads if len(query) == 3 else query[-1]
    size_v = value[-1] // groups if len(value) == 3 else value[-1]
    keys = key[-2] + (node.shape(4)[-2] if node.has(4) else 0)
    scores = query[0] * heads * query[-2] * keys
    return scores * (2 * size + 2 * size_v + 5)


def _multi_head_attention(node: _Node) -> int:
    query, key = node.shape(0, rank=3), node.shape(1, rank=3)
    return query[0] * query[1] * key[1] * (4 * query[2] + 5 * node.integer("num_heads"))


def _packed_attention(node: _Node) -> int:
    batch, length, width = node.shape(0, rank=3)
    _, packed = node.shape(1, rank=2)
    return 2 * batch * length * width * packed + batch * length * length * (
        4 * packed // 3 + 5 * node.integer("num_heads")
    )


def _narrow_matmul(node: _Node) -> int:
    return 2 * math.prod(node.first()) * node.integer("K")


def _transform(node: _Node) -> int:
    made = node.made() // 2
    axis = node.integer("axis", 1) if node.node.op_type == "DFT" and not node.has(2) else -2
    length = node.first()[axis]
    return round(5 * made * math.log2(max(length, 2)))


def _det(node: _Node) -> int:
    shape = node.shape(0)
    return round(2 / 3 * math.prod(shape) * shape[-1])


def _times(factor: int) -> Callable[[_Node], int]:
    return lambda node: factor * node.read()


def _rules() -> Iterator[tuple[str, Callable[[_Node], int]]]:
    yield from {"MatMul": _matmul(), "Gemm": _gemm, "Conv": _conv(), "ConvTranspose": _conv_transpose}.items()
    yield from {"MatMulInteger": _matmul(), "ConvInteger": _conv(bias=99), "DeformConv": _conv(bias=3)}.items()
    yield from {"QLinearMatMul": _matmul(), "QLinearConv": _conv(weight=3, bias=8)}.items()
    yield from {"Einsum": _einsum, "Attention": _attention, "Det": _det, "DFT": _transform, "STFT": _transform}.items()
    yield from {"LSTM": _recurrent(4), "GRU": _recurrent(3), "RNN": _recurrent(1)}.items()
    for name in ("MaxPool", "AveragePool", "LpPool"):
        yield name, _pool
    for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "CumSum", "CumProd"):
        yield name, _times(1)
    for name in ("Sum", "Mean", "Max", "Min"):
        yield name, lambda node: node.made() * max(1, len(node.node.inputs) - 1)
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"):
        yield f"Reduce{kind}", _times(1)
    # Mean, variance, difference, quotient, scale and shift, counted an element at a time.
    for name in ("LayerNormalization", "GroupNormalization", "InstanceNormalization", "MeanVarianceNormalization"):
        yield name, _times(8)
    yield from {"BatchNormalization": _times(2), "RMSNormalization": _times(4), "LpNormalization": _times(3)}.items()
    # The largest, the difference, the exponential, the sum, the quotient.
    yield from {"Softmax": _times(5), "LogSoftmax": _times(5), "SoftmaxCrossEntropyLoss": _times(6)}.items()


_RULES = dict(_rules())
_MICROSOFT: dict[str, Callable[[_Node], int]] = {
    "FusedMatMul": _matmul(),
    "FusedGemm": _gemm,
    "FusedConv": _conv(),
    "MatMulNBits": _narrow_matmul,
    "MultiHeadAttention": _multi_head_attention,
    "Attention": _packed_attention,
    **dict.fromkeys(("Gelu", "FastGelu", "BiasGelu", "QuickGelu"), _elementwise),
    "SkipLayerNormalization": _times(9),
    "SkipSimplifiedLayerNormalization": _times(5),
}
# Operators that only move, compare or make up data, and those whose work is in their bodies.
_FREE = frozenset(
    name
    for line in (
        "Reshape Transpose Flatten Squeeze Unsqueeze Expand Concat Split Slice Gather GatherElements GatherND Pad Tile",
        "ScatterElements ScatterND Scatter Shape Size Cast CastLike Identity Constant ConstantOfShape Range OneHot",
        "Where ArgMax ArgMin Hardmax",
        "NonZero DepthToSpace SpaceToDepth If Loop Scan Equal Less Greater LessOrEqual GreaterOrEqual And Or Not Xor",
        "IsNaN IsInf Trilu EyeLike ReverseSequence Compress Unique TopK NonMaxSuppression RandomNormal RandomUniform",
        "RandomNormalLike RandomUniformLike Bernoulli Multinomial Dropout SequenceConstruct SequenceAt SequenceEmpty",
        "SequenceInsert SequenceErase SequenceLength ConcatFromSequence SplitToSequence Optional OptionalGetElement",
        "OptionalHasElement StringConcat StringSplit StringNormalizer RegexFullMatch TfIdfVectorizer MemcpyFromHost",
        "MemcpyToHost BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitCast",
    )
    for name in line.split()
)
