"""Passes over attention: its pieces become one operator, and masks become sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.broadcasts import uniform
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.no_operation import same_shape
from graphkit.optimizers.symbolic import size_of

__all__: list[str] = []

Array = np.ndarray[Any, Any]
_FLOAT: Final = ir.DataType.FLOAT
# A sum with less than this is this, whatever score is added, and its exponential is 0 beside any score at all.
_HIDDEN: Final = -1e30
# A row of the mask that has an element above this is not hidden as a whole.
_SEEN: Final = -1e4
_LARGEST_MASK: Final = 2**24
_VIEWS: Final = ("Reshape", "Unsqueeze", "Squeeze", "Identity")
# Measured on the CPU alone.
_CPU: Final = ("inference",)


@dataclass(slots=True)
class _Mask:
    """What is added to the scores: nothing, a causal mask, or a constant."""

    causal: bool = False
    value: ir.Value | None = None
    array: Array | None = None


@dataclass(slots=True)
class _Scaled:
    """A value, the product of the numbers it is multiplied by, and the nodes that multiply."""

    value: ir.Value
    factor: float
    nodes: list[ir.Node]


def _unscaled(ctx: Context, value: ir.Value) -> _Scaled:
    """A value without the numbers it is multiplied or divided by."""
    found = _Scaled(value, 1.0, [])
    while len(found.nodes) < 4:
        node = found.value.producer()
        if node is None or node.domain != "" or node.op_type not in ("Mul", "Div"):
            break
        number, source = ctx.scalar(node.inputs[1]), node.inputs[0]
        if number is None and node.op_type == "Mul":
            number, source = ctx.scalar(node.inputs[0]), node.inputs[1]
        if number is None or not number > 0 or source is None:
            break
        if not same_shape(ctx.shape(source), ctx.shape(node.outputs[0])):
            break
        found.value = source
        found.factor *= float(number) if node.op_type == "Mul" else 1 / float(number)
        found.nodes.append(node)
    return found


@rule("fuse_attention", "MatMul", tolerance=1e-5, training=False, targets=_CPU)
def fuse_attention(ctx: Context, node: ir.Node) -> Outcome:
    """The pieces of attention, softmax(scale * q k^T + mask) v, become Attention, also for grouped queries.

    From opset 23 on; float32 of four known and positive dims (the runtime's operator refuses what is empty); a mask
    that is constant or causal, and hides no row as a whole: the operator gives zeros there, the pieces an average or
    NaN. A hidden score that is NaN stays hidden behind a Where, and not in the operator.
    """
    if ctx.opset(node) < 23 or ctx.dtype(node.outputs[0]) != _FLOAT:
        return "Attention comes with opset 23, and is made for float32"
    softmax = inner_node(node, "Softmax")
    if softmax is None or softmax.attributes.get_int("axis", -1) not in (-1, 3):
        return "its first input is not a Softmax over the last axis"
    scores = ctx.shape(softmax.outputs[0])
    if scores is None or len(scores) != 4 or size_of(scores) is None or 0 in scores:
        return "the scores' shape is not known to be four positive numbers"
    nodes = [node, softmax]
    found = _masked(ctx, softmax.inputs[0], scores, nodes)
    if isinstance(found, str):
        return found
    value, mask = found
    outer = _unscaled(ctx, value)
    product = outer.value.producer()
    if product is None or product.op_type != "MatMul" or product.domain != "" or None in product.inputs:
        return "the scores are not a product of matrices"
    left, right = product.inputs[0], product.inputs[1]
    assert left is not None and right is not None
    q, k = _unscaled(ctx, left), _unscaled(ctx, right)
    turn = k.value.producer()
    if turn is None or turn.op_type != "Transpose" or turn.domain != "" or turn.inputs[0] is None:
        return "the keys are not transposed"
    order = list(turn.attributes.get_ints("perm", (3, 2, 1, 0)))
    inner = _unscaled(ctx, turn.inputs[0])
    nodes += [*outer.nodes, product, *q.nodes, *k.nodes, turn, *inner.nodes]
    if not _closed(nodes):
        return "something else reads a value inside"
    scale = outer.factor * q.factor * k.factor * inner.factor
    shape_q, shape_v, source = ctx.shape(q.value), ctx.shape(node.inputs[1]), ctx.shape(inner.value)
    if source is None or len(source) != 4 or not np.isfinite(np.float32(scale)) or not scale:
        return "the shapes of the keys, or the scale, are not known"
    batch, heads, rows, columns = scores
    shape_k = tuple(source[axis] for axis in (*order[:2], order[3], order[2]))
    width = shape_k[3]
    if shape_q != (batch, heads, rows, width) or shape_k != (batch, heads, columns, width):
        return "the shapes of queries and keys do not follow from one another without widening"
    if shape_v is None or shape_v[:3] != (batch, heads, columns) or size_of(shape_v) in (None, 0) or not width:
        return "the shape of the values does not follow from the scores'"
    return _emit(ctx, node, (q.value, inner.value, order), mask, float(scale))


def _emit(
    ctx: Context, node: ir.Node, parts: tuple[ir.Value, ir.Value, list[int]], mask: _Mask, scale: float
) -> Outcome:
    q, k, order = parts
    v = node.inputs[1]
    assert v is not None
    swapped = [*order[:2], order[3], order[2]]
    if swapped != [0, 1, 2, 3]:
        (k,) = ctx.add("Transpose", [k], {"perm": swapped}, before=node)
    few = [_unrepeated(ctx, k), _unrepeated(ctx, v)]
    if few[0] is not None and few[1] is not None and few[0][1][1] == few[1][1][1]:
        k, v = (_in_shape(ctx, node, *each) for each in few if each is not None)
    attributes: dict[str, Any] = {"scale": scale}
    inputs: list[ir.Value | None] = [q, k, v]
    if mask.causal:
        attributes["is_causal"] = 1
    elif mask.array is not None:
        name = mask.value.name if mask.value is not None else None
        inputs.append(ctx.constant(mask.array, f"{name}_mask", near=node, origin=[name] if name else []))
    elif mask.value is not None:
        inputs.append(mask.value)
    return finish(ctx, node, ctx.add("Attention", inputs, attributes, before=node)[0])


def _in_shape(ctx: Context, near: ir.Node, value: ir.Value, dims: list[int]) -> ir.Value:
    if ctx.shape(value) == tuple(dims):
        return value
    shape = ctx.constant(np.array(dims, np.int64), f"{value.name}_shape", near=near)
    return ctx.add("Reshape", [value, shape], before=near)[0]


def _closed(nodes: list[ir.Node]) -> bool:
    """Whether nothing but these nodes, of which the first is the last, reads what they compute."""
    inside = set(nodes)
    return all(
        not value.is_graph_output() and all(use.node in inside for use in value.uses())
        for node in nodes[1:]
        for value in node.outputs
    )


def _unrepeated(ctx: Context, value: ir.Value) -> tuple[ir.Value, list[int]] | None:
    """What holds the heads that a value (batch, heads, positions, features) repeats, each several times in a row.

    With the shape in which the heads are those of the operator.
    """
    node = value.producer()
    expand = None if node is None or node.op_type != "Reshape" or node.domain != "" else inner_node(node, "Expand")
    if expand is None or expand.inputs[0] is None:
        return None
    once, often, many = (ctx.shape(each) for each in (expand.inputs[0], expand.outputs[0], value))
    if often is None or len(often) != 5 or size_of(often) is None:
        return None
    batch, heads, times, rows, width = (dim for dim in often if isinstance(dim, int))
    if once != (batch, heads, 1, rows, width) or many != (batch, heads * times, rows, width):
        return None
    few = [batch, heads, rows, width]
    put_in = inner_node(expand, "Unsqueeze")
    source = None if put_in is None else put_in.inputs[0]
    return (source, few) if source is not None and ctx.shape(source) == tuple(few) else (expand.inputs[0], few)


def _masked(
    ctx: Context, value: ir.Value | None, scores: tuple[object, ...], nodes: list[ir.Node]
) -> tuple[ir.Value, _Mask] | str:
    """The scores before the mask, and the mask."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        return "the scores are not computed here"
    if node.domain == "" and node.op_type == "Where":
        return _filled(ctx, node, scores, nodes)
    if node.domain != "" or node.op_type != "Add":
        return value, _Mask()
    for at in (0, 1):
        array, source = _mask_array(ctx, node.inputs[at]), node.inputs[1 - at]
        if array is None or source is None or ctx.shape(source) != scores:
            continue
        nodes.append(node)
        wide = _wide(array, scores)
        if wide is None or np.isnan(wide).any() or (wide.max(axis=-1) < _SEEN).any() or wide.max() > -_HIDDEN:
            return "the mask hides a row as a whole, or has not the shape of the scores"
        if _is_causal(wide, wide == 0, wide <= _HIDDEN):
            return source, _Mask(causal=True)
        if ctx.array(node.inputs[at]) is not None:
            return source, _Mask(value=node.inputs[at])
        condition = _condition(ctx, node.inputs[at], wide)
        if condition is None:
            return "its mask is computed while the model runs, and not causal"
        return source, condition
    return "what is added to the scores is not constant: it might hide a row as a whole"


def _condition(ctx: Context, mask: ir.Value | None, wide: Array) -> _Mask | None:
    """The constant condition of a mask that adds 0 or hides, as ``add_mask`` makes it."""
    node = None if mask is None else mask.producer()
    kept = None if node is None or node.op_type != "Where" else ctx.array(node.inputs[0])
    if node is None or kept is None or not ((wide == 0) | (wide <= _HIDDEN)).all():
        return None
    own = _wide(kept, wide.shape)
    if own is None or own.shape != wide.shape:
        return None
    return _Mask(value=node.inputs[0], array=None if bool((own == (wide == 0)).all()) else ~kept)


def _filled(
    ctx: Context, node: ir.Node, scores: tuple[object, ...], nodes: list[ir.Node]
) -> tuple[ir.Value, _Mask] | str:
    condition = _mask_array(ctx, node.inputs[0])
    for at in (1, 2):
        fill, source = ctx.scalar(node.inputs[3 - at]), node.inputs[at]
        if fill is None or source is None or condition is None or ctx.shape(source) != scores:
            continue
        if not fill <= _HIDDEN:
            return "what stands for the hidden scores is not far enough below the others"
        kept = condition if at == 1 else ~condition
        wide = _wide(kept, scores)
        if wide is None or not wide.any(axis=-1).all():
            return "the mask hides a row as a whole, or has not the shape of the scores"
        nodes.append(node)
        if _is_causal(wide, wide, ~wide):
            return source, _Mask(causal=True)
        if ctx.array(node.inputs[0]) is None:
            return "its mask is computed while the model runs, and not causal"
        return source, _Mask(value=node.inputs[0], array=None if at == 1 else kept)
    return "the scores are not hidden by a constant mask"


def _wide(array: Array, scores: tuple[object, ...]) -> Array | None:
    """A mask of four dims, if the operator takes it: whole in the last two, and one or all in the others."""
    if array.ndim > 4:
        return None
    full = array.reshape((1,) * (4 - array.ndim) + array.shape)
    leading = all(own in (1, dim) for own, dim in zip(full.shape[:2], scores[:2], strict=True))
    return full if full.shape[2:] == scores[2:] and leading else None


def _is_causal(wide: Array, seen: Array, hidden: Array) -> bool:
    """Whether each position sees itself and what is before it, and nothing else."""
    rows, columns = wide.shape[2:]
    if rows != columns or wide.shape[:2] != (1, 1):
        return False
    lower = np.tri(rows, dtype=bool)
    return bool((seen[0, 0] == lower).all() and (hidden[0, 0] == ~lower).all())


def _mask_array(ctx: Context, value: ir.Value | None, depth: int = 8) -> Array | None:
    """The numbers of a mask, constant or made of constants alone while the model runs."""
    known = ctx.array(value)
    if value is None or known is not None or not depth:
        return known
    node, shape = value.producer(), ctx.shape(value)
    size = size_of(shape)
    if node is None or node.domain != "" or size is None or shape is None or size > _LARGEST_MASK:
        return None
    dims = [dim for dim in shape if isinstance(dim, int)]
    if node.op_type in _VIEWS:
        inner = _mask_array(ctx, node.inputs[0], depth - 1)
        return None if inner is None else inner.reshape(dims)
    if node.op_type in ("Expand", "ConstantOfShape"):
        number, dtype = uniform(ctx, value), ctx.dtype(value)
        return None if number is None or dtype is None else np.full(dims, number, dtype.numpy())
    if node.op_type == "Where":
        parts = [_mask_array(ctx, each, depth - 1) for each in node.inputs]
        a, b, c = parts
        return None if a is None or b is None or c is None else np.where(a, b, c)
    if node.op_type == "Trilu":
        inner = _mask_array(ctx, node.inputs[0], depth - 1)
        number = 0 if len(node.inputs) < 2 or node.inputs[1] is None else ctx.scalar(node.inputs[1])
        if inner is None or number is None:
            return None
        cut = np.triu if node.attributes.get_int("upper", 1) != 0 else np.tril
        return np.asarray(cut(inner, int(number)))
    return None


@rule("add_mask", "Where", tolerance=1e-6, training=False, targets=())
def add_mask(ctx: Context, node: ir.Node) -> Outcome:
    """Where that fills hidden scores before a softmax becomes a sum with a mask, which is made once, and small.

    The fill is minus infinity or far below all scores, so that it takes in whatever finite score it is added to; the
    condition is smaller than the scores, and the softmax alone reads them. float32. In no preset: a hidden score that
    is NaN or infinite, as rows of a cache that nothing was written to may give, makes its whole row NaN in the sum.
    """
    if ctx.dtype(node.outputs[0]) != _FLOAT or not ctx.only_use(node.outputs[0]):
        return "it is not float32, or not read once"
    reader = next(iter(node.outputs[0].uses())).node
    if reader.op_type != "Softmax" or reader.domain != "":
        return "no softmax reads it"
    condition, shape = node.inputs[0], ctx.shape(node.outputs[0])
    small, large = size_of(ctx.shape(condition)), size_of(shape)
    for at in (1, 2):
        fill, source = ctx.scalar(node.inputs[3 - at]), node.inputs[at]
        if fill is None or source is None or not fill <= _HIDDEN or not same_shape(ctx.shape(source), shape):
            continue
        if not _is_smaller(ctx.shape(condition), shape, small, large):
            return "the condition is not known to be smaller than the scores"
        hidden = ctx.constant(np.array(fill, np.float32), "hidden", near=node)
        seen = ctx.constant(np.array(0, np.float32), "seen", near=node)
        branches = [seen, hidden] if at == 1 else [hidden, seen]
        (mask,) = ctx.add("Where", [condition, *branches], before=node, hint=f"{node.outputs[0].name}_mask")
        return finish(ctx, node, ctx.add("Add", [source, mask], before=node)[0])
    return "it does not fill in a number far below the scores"


def _is_smaller(
    condition: tuple[object, ...] | None, scores: tuple[object, ...] | None, small: int | None, large: int | None
) -> bool:
    """Whether a condition has a dim of 1 where the scores have a longer one, so that one mask serves many scores."""
    if small is not None and large is not None:
        return 2 * small <= large
    if condition is None or scores is None or len(condition) > len(scores):
        return False
    padded = (1,) * (len(scores) - len(condition)) + condition
    return any(own == 1 and (isinstance(dim, int) and dim > 1) for own, dim in zip(padded, scores, strict=True))
