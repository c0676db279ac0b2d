"""How dtypes, shapes and integer contents pass through operators that compute: elementwise, reductions, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import onnx_ir as ir

from graphkit.equations import explicit
from graphkit.optimizers.facts import Fact, Facts, broadcast, infers
from graphkit.optimizers.symbolic import (
    Dim,
    add,
    derived,
    fresh,
    multiply,
    negate,
    never_negative,
    product,
    truncated_quotient,
    unknown_number,
)

_BOOL: Final = ir.DataType.BOOL
_INT64: Final = ir.DataType.INT64
_SHAPE_OF_FIRST: Final = """
Relu LeakyRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Mish Softplus Softsign Gelu Swish
Tanh Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Exp Log Sqrt Reciprocal Erf Neg Abs Sign
Floor Ceil Round Not BitwiseNot Softmax LogSoftmax Hardmax Clip PRelu CumSum CumProd Trilu Identity
LpNormalization LRN MeanVarianceNormalization InstanceNormalization GroupNormalization RMSNormalization
ScatterElements ScatterND Scatter Shrink Bernoulli RotaryEmbedding
"""
_BROADCASTING: Final = "Add Sub Mul Div Pow Mod And Or Xor Min Max Sum Mean BitShift BitwiseAnd BitwiseOr BitwiseXor"
_REDUCTIONS: Final = """
ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp
"""
_INT_TYPES: Final = (ir.DataType.INT64, ir.DataType.INT32)


@infers(*_SHAPE_OF_FIRST.split())
def same_as_first(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    dtype = first.dtype
    if "dtype" in node.attributes:
        dtype = ir.DataType(node.attributes.get_int("dtype", 1))
    content = None
    if first.content is not None and node.op_type in ("Identity", "Neg", "Abs", "Not"):
        content = tuple(_unary(node.op_type, item) for item in first.content)
    return [Fact(dtype, first.shape, content)]


def _unary(operator: str, item: Dim) -> Dim:
    if operator == "Neg":
        return negate(item)
    if operator == "Abs":
        return item if never_negative(item) else abs(item) if isinstance(item, int) else unknown_number()
    if operator == "Not":
        return int(not item) if isinstance(item, int) else unknown_number()
    return item


@infers("LayerNormalization", "BatchNormalization", "Dropout")
def first_output_same(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    found = [Fact(first.dtype, first.shape)]
    if node.op_type == "Dropout":
        found.append(Fact(_BOOL, first.shape))
    elif node.op_type == "BatchNormalization":
        found += [Fact(facts(value).dtype, facts(value).shape) for value in node.inputs[3:5]]
    elif first.shape:
        axis = node.attributes.get_int("axis", -1) % len(first.shape)
        kept = first.shape[:axis] + (1,) * (len(first.shape) - axis)
        found += [Fact(ir.DataType.FLOAT, kept)] * 2
    return found


@infers("Cast", "CastLike")
def cast(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if node.op_type == "Cast":
        dtype: ir.DataType | None = ir.DataType(node.attributes.get_int("to", 1))
    else:
        dtype = facts(node.inputs[1]).dtype
    content = None
    if first.content is not None and dtype in _INT_TYPES:
        content = first.content
    elif first.content is not None and dtype == _BOOL and all(isinstance(item, int) for item in first.content):
        content = tuple(int(item != 0) for item in first.content)
    return [Fact(dtype, first.shape, content)]


@infers("QuantizeLinear", "DequantizeLinear", "IsNaN", "IsInf")
def same_shape(facts: Facts, node: ir.Node) -> list[Fact]:
    dtype = node.outputs[0].dtype
    if node.op_type in ("IsNaN", "IsInf"):
        dtype = _BOOL
    elif node.op_type == "DequantizeLinear":
        dtype = facts(node.inputs[1]).dtype
    elif len(node.inputs) > 2 and node.inputs[2] is not None:
        dtype = facts(node.inputs[2]).dtype
    return [Fact(dtype, facts(node.inputs[0]).shape)]


_COMPARISONS: Final = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")


@infers(
    *_BROADCASTING.split(),
    *_COMPARISONS,
)
def broadcasting(facts: Facts, node: ir.Node) -> list[Fact]:
    inputs = [facts(value) for value in node.inputs]
    shape = broadcast(*(fact.shape for fact in inputs))
    dtype = _BOOL if node.op_type in _COMPARISONS else inputs[0].dtype
    content = None
    if len(inputs) == 2 and shape is not None and len(shape) <= 1:
        content = _binary_content(node.op_type, inputs[0].content, inputs[1].content)
    return [Fact(dtype, shape, content)]


def _binary_content(
    operator: str, left: tuple[Dim, ...] | None, right: tuple[Dim, ...] | None
) -> tuple[Dim, ...] | None:
    if left is None or right is None or operator not in _BINARY:
        return None
    if len(left) != len(right):
        if len(left) == 1:
            left = left * len(right)
        elif len(right) == 1:
            right = right * len(left)
        else:
            return None
    function = _BINARY[operator]
    return tuple(function(a, b) for a, b in zip(left, right, strict=True))


def _equal(a: Dim, b: Dim) -> Dim:
    if a == b:
        return 1
    if isinstance(a, int) and isinstance(b, int):
        return 0
    for one, other in ((a, b), (b, a)):
        if isinstance(one, int) and one < 0 and never_negative(other):
            return 0
    return derived(f"({a!r})=({b!r})")  # 0 or 1: an atom, which is never negative


def _decided(function: Callable[[int, int], int]) -> Callable[[Dim, Dim], Dim]:
    def decide(a: Dim, b: Dim) -> Dim:
        return int(function(a, b)) if isinstance(a, int) and isinstance(b, int) else unknown_number()

    return decide


def _extreme(function: Callable[[int, int], int]) -> Callable[[Dim, Dim], Dim]:
    def extreme(a: Dim, b: Dim) -> Dim:
        if isinstance(a, int) and isinstance(b, int):
            return function(a, b)
        return a if a == b else unknown_number()

    return extreme


_BINARY: Final[dict[str, Callable[[Dim, Dim], Dim]]] = {
    "Add": add,
    "Sub": lambda a, b: add(a, negate(b)),
    "Mul": multiply,
    "Div": truncated_quotient,
    "Equal": _equal,
    "Greater": _decided(lambda a, b: a > b),
    "Less": _decided(lambda a, b: a < b),
    "GreaterOrEqual": _decided(lambda a, b: a >= b),
    "LessOrEqual": _decided(lambda a, b: a <= b),
    "And": _decided(lambda a, b: a and b),
    "Or": _decided(lambda a, b: a or b),
    "Min": _extreme(min),
    "Max": _extreme(max),
}


@infers("Where")
def where(facts: Facts, node: ir.Node) -> list[Fact]:
    condition, yes, no = (facts(value) for value in node.inputs)
    shape = broadcast(condition.shape, yes.shape, no.shape)
    content = None
    if shape is not None and len(shape) <= 1 and condition.content and yes.content and no.content:
        length = max(len(condition.content), len(yes.content), len(no.content))
        columns = [part * length if len(part) == 1 else part for part in (condition.content, yes.content, no.content)]
        if all(len(column) == length for column in columns):
            content = tuple(
                (b if a else c) if isinstance(a, int) else b if b == c else unknown_number()
                for a, b, c in zip(*columns, strict=True)
            )
    return [Fact(yes.dtype, shape, content)]


def axes_of(facts: Facts, node: ir.Node, position: int = 1) -> tuple[int, ...] | str | None:
    """The axes of a node, from its attribute or its input: a tuple, None for not given, ``"unknown"``."""
    if "axes" in node.attributes:
        return tuple(node.attributes.get_ints("axes", ()))
    if len(node.inputs) <= position or node.inputs[position] is None:
        return None
    known = facts.ints(node.inputs[position])
    return "unknown" if known is None else known


@infers(*_REDUCTIONS.split())
def reduction(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if first.shape is None:
        return [Fact(first.dtype)]
    axes = axes_of(facts, node)
    keep = node.attributes.get_int("keepdims", 1)
    if isinstance(axes, str):
        return [Fact(first.dtype)]
    rank = len(first.shape)
    if not axes:
        if node.attributes.get_int("noop_with_empty_axes", 0):
            return [Fact(first.dtype, first.shape)]
        axes = tuple(range(rank))
    reduced = {axis % rank for axis in axes} if rank else set()
    shape = tuple(
        1 if index in reduced else dim for index, dim in enumerate(first.shape) if keep or index not in reduced
    )
    content = None
    if node.op_type == "ReduceProd" and first.content is not None and first.dtype in _INT_TYPES:
        content = (product(first.content),)
    return [Fact(first.dtype, shape, content)]


@infers("ArgMax", "ArgMin")
def argument(facts: Facts, node: ir.Node) -> list[Fact]:
    first = facts(node.inputs[0])
    if not first.shape:
        return [Fact(_INT64)]
    axis = node.attributes.get_int("axis", 0) % len(first.shape)
    keep = node.attributes.get_int("keepdims", 1)
    shape = tuple(1 if i == axis else dim for i, dim in enumerate(first.shape) if keep or i != axis)
    return [Fact(_INT64, shape)]


@infers("MatMul")
def matmul(facts: Facts, node: ir.Node) -> list[Fact]:
    left, right = facts(node.inputs[0]), facts(node.inputs[1])
    if not left.shape or not right.shape:
        return [Fact(left.dtype)]
    a = left.shape if len(left.shape) > 1 else (1, *left.shape)
    b = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        return [Fact(left.dtype)]
    rows = (a[-2],) if len(left.shape) > 1 else ()
    columns = (b[-1],) if len(right.shape) > 1 else ()
    return [Fact(left.dtype, (*batch, *rows, *columns))]


@infers("Einsum")
def einsum(facts: Facts, node: ir.Node) -> list[Fact]:
    """A letter of extent 1 in one operand broadcasts, as the standard's own inference does not know."""
    operands = [facts(value) for value in node.inputs]
    equation = node.attributes.get_string("equation", "")
    shapes = [fact.shape for fact in operands if fact.shape is not None]
    if len(shapes) < len(operands) or not equation:
        return [Fact(operands[0].dtype)]
    try:
        terms, result = explicit(equation, [len(shape) for shape in shapes])
        found: dict[str, tuple[Dim, ...]] = {}
        for term, shape in zip(terms, shapes, strict=True):
            for letter, dim in zip(term, shape, strict=True):
                found[letter] = broadcast(found.get(letter, (1,)), (dim,)) or (fresh(),)
        return [Fact(operands[0].dtype, tuple(found[letter][0] for letter in result))]
    except (ValueError, KeyError):  # it is not of this many operands, or not of such ranks
        return [Fact(operands[0].dtype)]


@infers("Gemm")
def gemm(facts: Facts, node: ir.Node) -> list[Fact]:
    a, b = facts(node.inputs[0]), facts(node.inputs[1])
    if a.shape is None or b.shape is None or len(a.shape) != 2 or len(b.shape) != 2:
        return [Fact(a.dtype, (fresh(), fresh()))]
    rows = a.shape[1 if node.attributes.get_int("transA", 0) else 0]
    columns = b.shape[0 if node.attributes.get_int("transB", 0) else 1]
    return [Fact(a.dtype, (rows, columns))]
