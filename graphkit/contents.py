"""What small integer tensors hold, operator by operator, and the types of common operators without asking onnx.

Names pass through as numbers do: the shape of [batch, 3] is ("batch", 3), and a Reshape to it gives its dims back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphkit import dims, dtypes
from graphkit.dims import Dims, Extent

Contents = tuple[Extent, ...] | Extent

_SAME = frozenset(
    """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Clip Cos Cosh CumSum CumProd Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish Hardmax Identity LeakyRelu Log LogSoftmax LpNormalization Mish Neg Not Reciprocal Relu Round Selu Shrink
    Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu BitwiseNot Dropout
    ReverseSequence ScatterElements ScatterND""".split()
)
_BROADCAST = frozenset(
    """Add Sub Mul Div Pow Mod Max Min Sum Mean PRelu BitwiseAnd BitwiseOr BitwiseXor And Or Xor Equal Greater
    GreaterOrEqual Less LessOrEqual Where""".split()
)
_BOOLEAN = frozenset("Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not".split())


@dataclass
class Type:
    """What is known of one value: element type, dims, and the contents of a small integer tensor."""

    dtype: dtypes.DType
    dims: Dims | None
    contents: Contents | None = None
    array: Any = None
    proto: onnx.TypeProto | None = field(default=None, repr=False)  # for sequences, optionals and sparse tensors


class Misfit(Exception):  # noqa: N818  # caught by Graph, which knows the line to tell
    """Inputs that cannot go together: shapes that do not broadcast, an axis that is not there."""


def check_fit(op: str, attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> None:
    known = [t.dims for t in inputs if t is not None and t.dims is not None]
    if op in _BROADCAST and len(known) > 1:
        for k in range(1, max(map(len, known)) + 1):
            met = {d[-k] for d in known if len(d) >= k and isinstance(d[-k], int)} - {1}
            if len(met) > 1:
                raise Misfit("the shapes do not broadcast")
    elif op == "MatMul" and len(known) == 2 and known[0] and known[1]:
        if dims.same(known[0][-1], known[1][max(-2, -len(known[1]))]) is False:
            raise Misfit("the inner dimensions of the matrix product differ")
    elif op == "Gemm" and len(known) > 1 and len(known[0]) == 2 and len(known[1]) == 2:
        inner = known[0][0 if attributes.get("transA") else 1], known[1][1 if attributes.get("transB") else 0]
        if dims.same(*inner) is False:
            raise Misfit("the inner dimensions of the matrix product differ")
    elif "axis" in attributes and known and op in (*_SAME, "Gather", "Concat"):
        rank = len(known[0])
        if not -rank <= attributes["axis"] < max(rank, 1):
            raise Misfit(f"axis {attributes['axis']} is not one of a tensor of rank {rank}")
    elif op == "Transpose" and known:
        perm = attributes.get("perm")
        if perm is not None and sorted(perm) != list(range(len(known[0]))):
            raise Misfit(f"perm {list(perm)} is no order of {len(known[0])} axes")


def second(op: str, first: Type) -> Type:
    return Type(dtypes.BOOL if op == "Dropout" else first.dtype, first.dims)


def quick_type(op: str, attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    if not inputs or any(t is not None and t.proto is not None for t in inputs):
        return None
    first = inputs[0]
    if op in _SAME and first is not None:
        contents = first.contents if op == "Identity" else None
        return Type(dtypes.BOOL if op == "Not" else first.dtype, first.dims, contents)
    if op in _BROADCAST:
        return _broadcast(op, attributes, inputs)
    if first is None:
        return None
    handler = _CONTENTS.get(op)
    return handler(attributes, inputs) if handler is not None else None


def _broadcast(op: str, attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    if any(t is None for t in inputs):
        return None
    known = [t for t in inputs if t is not None]
    of = known[1] if op == "Where" else known[0]
    dtype = dtypes.BOOL if op in _BOOLEAN else of.dtype
    result: Dims | None = ()
    for t in known:
        result = None if t.dims is None or result is None else dims.broadcast(result, t.dims)
    follows = len(known) == 2 and dtype == dtypes.INT64 and not attributes.get("fmod")
    contents = _arithmetic(op, known) if follows else None
    return Type(dtype, result, contents)


def _arithmetic(op: str, pair: Sequence[Type]) -> Contents | None:
    a, b = pair[0].contents, pair[1].contents
    if a is None or b is None:
        return None
    if isinstance(a, tuple) != isinstance(b, tuple):
        width = len(a) if isinstance(a, tuple) else len(b) if isinstance(b, tuple) else 1
        a = a if isinstance(a, tuple) else (a,) * width
        b = b if isinstance(b, tuple) else (b,) * width
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        assert not isinstance(a, tuple) and not isinstance(b, tuple)
        return _number(op, a, b)
    if len(a) != len(b) and 1 not in (len(a), len(b)):
        return None
    n = max(len(a), len(b))
    return tuple(_number(op, x, y) for x, y in zip(a * (n // len(a) or 1), b * (n // len(b) or 1), strict=False))


def _number(op: str, a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        if op == "Add":
            return a + b
        if op == "Sub":
            return a - b
        if op == "Mul":
            return a * b
        if op == "Div" and b:
            return a // b if (a >= 0) == (b > 0) else -(-a // b) if a % b == 0 else -(abs(a) // abs(b))
        if op == "Mod" and b:
            return a % b
        if op in ("Max", "Min"):
            return max(a, b) if op == "Max" else min(a, b)
    if op in ("Mul", "Div") and b == 1:
        return a
    if (op == "Mul" and a == 1) or (op == "Add" and a == 0):
        return b
    if op in ("Add", "Sub") and b == 0:
        return a
    if op == "Mul" and all(isinstance(e, str) or e >= 0 for e in (a, b)):
        return dims.product((a, b))
    return dims.anonymous()


# Operators that make, move or use the contents of integer tensors.


def _shape(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first = inputs[0]
    assert first is not None
    if first.dims is None:
        return Type(dtypes.INT64, (dims.anonymous(),))
    part = first.dims[_clamp(attributes.get("start", 0), len(first.dims)) : _end(attributes, len(first.dims))]
    return Type(dtypes.INT64, (len(part),), part)


def _clamp(value: int, rank: int) -> int:
    return max(0, min(rank, value + rank if value < 0 else value))


def _end(attributes: Mapping[str, Any], rank: int) -> int:
    end = attributes.get("end")
    return rank if end is None else _clamp(end, rank)


def _size(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first = inputs[0]
    assert first is not None
    total = dims.quotient(first.dims, ()) if first.dims is not None else None
    return Type(dtypes.INT64, (), total)


def _cast(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first = inputs[0]
    assert first is not None
    dtype = dtypes.as_dtype(int(attributes["to"]))
    return Type(dtype, first.dims, first.contents if dtype in (dtypes.INT64, dtypes.INT32) else None)


def _gather(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    data, indices = inputs[0], inputs[1]
    if data is None or indices is None or data.dims is None or indices.dims is None:
        return None
    axis = attributes.get("axis", 0)
    axis += len(data.dims) if axis < 0 else 0
    result = data.dims[:axis] + indices.dims + data.dims[axis + 1 :]
    contents: Contents | None = None
    if isinstance(data.contents, tuple) and indices.contents is not None:
        wanted = indices.contents if isinstance(indices.contents, tuple) else (indices.contents,)
        n = len(data.contents)
        if all(isinstance(i, int) and -n <= i < n for i in wanted):
            picked = tuple(data.contents[i] for i in wanted if isinstance(i, int))
            contents = picked if isinstance(indices.contents, tuple) else picked[0]
    return Type(data.dtype, result, contents)


def _concat(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    known = [t for t in inputs if t is not None]
    if any(t.dims != (len(t.contents),) for t in known if isinstance(t.contents, tuple)):
        return None
    if any(t.dtype not in (dtypes.INT64, dtypes.INT32) or t.dims is None or len(t.dims) != 1 for t in known):
        return None
    parts: list[Extent] = []
    for t in known:
        length = t.dims[0] if t.dims else None
        if isinstance(t.contents, tuple):
            parts.extend(t.contents)
        elif isinstance(length, int) and length <= 64:
            parts.extend(dims.anonymous() for _ in range(length))
        else:
            return None
    return Type(known[0].dtype, (len(parts),), tuple(parts))


def _unsqueeze(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first = inputs[0]
    assert first is not None
    if first.contents is not None and not isinstance(first.contents, tuple) and first.dims == ():
        return Type(first.dtype, (1,), (first.contents,))
    return None


def _squeeze(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first = inputs[0]
    assert first is not None
    if isinstance(first.contents, tuple) and len(first.contents) == 1:
        return Type(first.dtype, (), first.contents[0])
    return None


def _slice(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first = inputs[0]
    if first is None or len(inputs) < 3:
        return None
    if not isinstance(first.contents, tuple):
        return _sliced_by_the_run(first, inputs)
    given = [t.contents if t is not None else None for t in inputs[1:]]
    numbers = [g[0] if isinstance(g, tuple) and len(g) == 1 else None for g in given]
    start, end = numbers[0], numbers[1]
    step = numbers[3] if len(numbers) > 3 else 1
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)) or step < 1:
        return None
    n = len(first.contents)
    part = first.contents[_clamp(start, n) : _clamp(end, n) : step]
    return Type(first.dtype, (len(part),), part)


def _sliced_by_the_run(first: Type, inputs: Sequence[Type | None]) -> Type | None:
    """The dims of a slice whose bounds only the run knows: those of the axes that are not sliced stay."""
    bounds = [t.contents if t is not None else None for t in inputs[1:3]]
    if first.dims is None or all(isinstance(b, tuple) and all(isinstance(i, int) for i in b) for b in bounds):
        return None
    axes: Contents | None = None
    if len(inputs) > 3 and inputs[3] is not None:
        axes = inputs[3].contents
    elif inputs[1] is not None and inputs[1].dims and isinstance(inputs[1].dims[0], int):
        axes = tuple(range(inputs[1].dims[0]))
    rank = len(first.dims)
    if not isinstance(axes, tuple) or not all(isinstance(a, int) and -rank <= a < rank for a in axes):
        return None
    sliced = {a % rank for a in axes if isinstance(a, int)}
    return Type(first.dtype, tuple(dims.anonymous() if n in sliced else d for n, d in enumerate(first.dims)))


def _reshape(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first, target = inputs[0], inputs[1]
    assert first is not None
    if target is None or not isinstance(target.contents, tuple):
        length = target.dims[0] if target is not None and target.dims else None
        return Type(first.dtype, tuple(dims.anonymous() for _ in range(length)) if isinstance(length, int) else None)
    copied = not attributes.get("allowzero", 0)
    result: list[Extent] = []
    for axis, extent in enumerate(target.contents):
        if extent == 0 and copied:
            known = first.dims[axis] if first.dims is not None and axis < len(first.dims) else None
            extent = known if known is not None else dims.anonymous()
        result.append(extent)
    if -1 in result:
        place = result.index(-1)
        rest = [r for n, r in enumerate(result) if n != place]
        missing = dims.quotient(first.dims, rest) if first.dims is not None else None
        result[place] = dims.anonymous() if missing is None else missing
    contents: Contents | None = None
    if first.contents is not None and len(result) <= 1:
        flat = first.contents if isinstance(first.contents, tuple) else (first.contents,)
        if len(result) == 1:
            contents = flat
            result = [len(flat)]
        elif len(flat) == 1:
            contents = flat[0]
    return Type(first.dtype, tuple(result), contents)


def _expand(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first, target = inputs[0], inputs[1]
    assert first is not None
    if target is None or not isinstance(target.contents, tuple) or first.dims is None:
        return None
    return Type(first.dtype, dims.broadcast(first.dims, target.contents))


def _constant_of_shape(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    target = inputs[0]
    assert target is not None
    value = attributes.get("value")
    dtype = dtypes.FLOAT32
    if value is not None:
        array = value if isinstance(value, np.ndarray) else numpy_helper.to_array(value)
        dtype = array.dtype
    if isinstance(target.contents, tuple):
        return Type(dtype, target.contents)
    length = target.dims[0] if target.dims else None
    return Type(dtype, tuple(dims.anonymous() for _ in range(length)) if isinstance(length, int) else None)


def _matmul(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    a, b = inputs[0], inputs[1]
    if a is None or b is None or not a.dims or not b.dims:
        return None
    batch = dims.broadcast(a.dims[:-2], b.dims[:-2])
    rows = a.dims[-2:-1] if len(a.dims) > 1 else ()
    columns = b.dims[-1:] if len(b.dims) > 1 else ()
    return Type(a.dtype, batch + rows + columns)


def _gemm(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    a, b = inputs[0], inputs[1]
    if a is None or b is None or a.dims is None or b.dims is None or len(a.dims) != 2 or len(b.dims) != 2:
        return None
    return Type(a.dtype, (a.dims[1 if attributes.get("transA") else 0], b.dims[0 if attributes.get("transB") else 1]))


def _transpose(attributes: Mapping[str, Any], inputs: Sequence[Type | None]) -> Type | None:
    first = inputs[0]
    if first is None or first.dims is None:
        return None
    perm = attributes.get("perm")
    return Type(first.dtype, first.dims[::-1] if perm is None else tuple(first.dims[p] for p in perm))


_CONTENTS = {
    "MatMul": _matmul, "Gemm": _gemm, "Transpose": _transpose,
    "Shape": _shape, "Size": _size, "Cast": _cast, "Gather": _gather, "Concat": _concat, "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze, "Slice": _slice, "Reshape": _reshape, "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
}  # fmt: skip
