"""The pass that puts rotary position embeddings together again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.chains import inner_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.infer_shapes import slice_bounds
from graphkit.optimizers.patterns import Pattern, match

__all__: list[str] = []

_DEPTH: Final = 12
_UNARY: Final = ("Cos", "Sin", "Cast", "Neg", "Identity", "Exp")
_BINARY: Final = ("Mul", "Add", "Div", "Sub")
# The same with the halves apart; a pattern binds the first way round that fits, so both are written out.
_APART: Final[tuple[Pattern, ...]] = tuple(
    (
        "Concat",
        ("Sub", ("Mul", *first), ("Mul", *second)),
        ("Add", ("Mul", "b", "cos"), ("Mul", "a", "sin")),
    )
    for first in (("a", "cos"), ("cos", "a"))
    for second in (("b", "sin"), ("sin", "b"))
)
# Measured on the CPU alone.
_CPU: Final = ("inference",)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is rotated by which angles; whether pairs lie side by side, and whether the angles are there once a pair."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    nodes: frozenset[ir.Node]
    interleaved: bool = False
    once: bool = False


@rule("fuse_rotary_embedding", "Add", "Concat", tolerance=1e-5, training=False, targets=_CPU)
def fuse_rotary_embedding(ctx: Context, node: ir.Node) -> Outcome:
    """x * cos + rotate_half(x) * sin becomes RotaryEmbedding, also where only the first features are rotated.

    From opset 23 on; float32 of shape (batch, heads, positions, features), in halves or in pairs side by side; the
    halves (or pairs) of cos and sin are known to be equal, and both are the same for all heads.
    """
    if ctx.opset(node) < 23 or ctx.dtype(node.outputs[0]) != ir.DataType.FLOAT:
        return "RotaryEmbedding comes with opset 23, and is made for float32"
    shape = ctx.shape(node.outputs[0])
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int) or shape[3] % 2 or not shape[3]:
        return "its shape is not known to be (batch, heads, positions, features)"
    turn = _in_one(ctx, node) if node.op_type == "Add" else _apart(ctx, node)
    if turn is None:
        return "it is not x * cos + rotate_half(x) * sin"
    if ctx.shape(turn.x) != shape:
        return "cos or sin widens x"
    inside = turn.nodes | {node}
    if any(
        use.node not in inside
        for each in turn.nodes - {node}
        if each.op_type not in ("Split", "Slice")
        for value in each.outputs
        for use in value.uses()
    ):
        return "something else reads a value inside"
    angles = [turn.cos, turn.sin]
    if not turn.once and not all(_repeats(ctx, value, turn.interleaved, _DEPTH) for value in angles):
        return "cos and sin are not known to repeat themselves for the second of each pair"
    width = shape[3]
    folded = [_fits(ctx, value, (*shape[:3], width // 2 if turn.once else width)) for value in angles]
    if None in folded or folded[0] != folded[1]:
        return "cos and sin differ from head to head, or their shapes are not known"
    whole, last = _whole(ctx, node, turn.x)
    source = turn.x if whole is None else whole
    full = ctx.shape(source)
    assert full is not None
    together = bool(folded[0]) and full[0] != 1
    if together and not all(isinstance(dim, int) and dim > 0 for dim in full[1:3]):
        return "the heads and positions are not known, and the angles have no batch"
    attributes = {"interleaved": 1} if turn.interleaved else {}
    if whole is not None:
        attributes["rotary_embedding_dim"] = width
    caches = [_half(ctx, last, value, turn) for value in angles]
    if together:  # one row of angles for all: to the operator, the heads of the whole batch are heads of one
        (source,) = ctx.add("Reshape", [source, _ints(ctx, last, 1, -1, *full[2:])], before=last)
        (made,) = ctx.add("RotaryEmbedding", [source, *caches], attributes, before=last)
        (made,) = ctx.add("Reshape", [made, _ints(ctx, last, -1, *full[1:])], before=last)
    else:
        (made,) = ctx.add("RotaryEmbedding", [source, *caches], attributes, before=last)
    finish(ctx, last, made)
    if last is not node:
        ctx.remove(node)
    return True


def _ints(ctx: Context, near: ir.Node, *numbers: object) -> ir.Value:
    return ctx.constant(np.array(numbers, np.int64), f"{near.outputs[0].name}_shape", near=near)


def _in_one(ctx: Context, node: ir.Node) -> _Turn | None:
    """The sum of x * cos and rotate_half(x) * sin, whichever way round each is."""
    products = [inner_node(node, "Mul", index=index) for index in (0, 1)]
    for first, second in (products, products[::-1]):
        if first is None or second is None:
            return None
        for at in (0, 1):
            turned, sin = second.inputs[at], second.inputs[1 - at]
            found = None if turned is None else _turned(ctx, turned)
            if found is None or sin is None:
                continue
            x, interleaved, nodes = found
            cos = first.inputs[1 - list(first.inputs).index(x)] if x in first.inputs else None
            if cos is not None:
                return _Turn(x, cos, sin, nodes | {first, second}, interleaved)
    return None


def _apart(ctx: Context, node: ir.Node) -> _Turn | None:
    """The Concat of first * cos - second * sin and second * cos + first * sin."""
    rank = ctx.rank(node.outputs[0]) or 0
    if len(node.inputs) != 2 or node.attributes.get_int("axis", 0) not in (-1, rank - 1):
        return None
    found = match(ctx, node, *_APART)
    halves = None if found is None else _halves(ctx, found["a"], found["b"])
    if found is None or halves is None:
        return None
    x, cutters = halves
    return _Turn(x, found["cos"], found["sin"], frozenset({*found.nodes, *cutters}), once=True)


def _turned(ctx: Context, value: ir.Value) -> tuple[ir.Value, bool, frozenset[ir.Node]] | None:
    """The x of rotate_half(x), (-second, first), and whether of neighbours instead of halves."""
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type == "Concat":
        return _turned_halves(ctx, node)
    if node.op_type != "Reshape":
        return None
    stack = inner_node(node, "Concat")
    rank = ctx.rank(value) or 0
    if stack is None or len(stack.inputs) != 2 or stack.attributes.get_int("axis", 0) not in (-1, rank):
        return None
    parts = [inner_node(stack, "Unsqueeze", "Reshape", index=index) for index in (0, 1)]
    if parts[0] is None or parts[1] is None:
        return None
    second = inner_node(parts[0], "Neg")
    cutters = [None if second is None else inner_node(second, "Slice"), inner_node(parts[1], "Slice")]
    if second is None or cutters[0] is None or cutters[1] is None:
        return None
    x = cutters[1].inputs[0]
    shape = ctx.shape(x)
    if x is None or x is not cutters[0].inputs[0] or shape is None or shape != ctx.shape(value):
        return None
    length = shape[-1]
    if not isinstance(length, int):
        return None
    pair = (*shape[:-1], length // 2, 1)
    if any(ctx.shape(part.outputs[0]) != pair for part in parts if part is not None):
        return None
    if _every_second(ctx, cutters[0], shape) != 1 or _every_second(ctx, cutters[1], shape) != 0:
        return None
    nodes = {node, stack, second, *(p for p in parts if p is not None), *(c for c in cutters if c is not None)}
    return x, True, frozenset(nodes)


def _every_second(ctx: Context, node: ir.Node, shape: tuple[object, ...]) -> int | None:
    """Where a Slice of every second element of the last axis begins."""
    bounds = slice_bounds(ctx.facts, node, len(shape))
    if bounds is None or len(bounds[2]) != 1:
        return None
    (start,), (end,), (axis,), (step,) = bounds
    length = shape[-1]
    if axis != len(shape) - 1 or step != 2 or not (isinstance(end, int) and isinstance(length, int)):
        return None
    return start if isinstance(start, int) and end >= length and start in (0, 1) else None


def _turned_halves(ctx: Context, node: ir.Node) -> tuple[ir.Value, bool, frozenset[ir.Node]] | None:
    rank = ctx.rank(node.outputs[0]) or 0
    second = inner_node(node, "Neg")
    if len(node.inputs) != 2 or node.attributes.get_int("axis", 0) not in (-1, rank - 1) or second is None:
        return None
    halves = _halves(ctx, node.inputs[1], second.inputs[0])
    return None if halves is None else (halves[0], False, frozenset({node, second, *halves[1]}))


def _halves(ctx: Context, first: ir.Value | None, second: ir.Value | None) -> tuple[ir.Value, list[ir.Node]] | None:
    """What two values are the first and the second half of, along the last axis, and the nodes that cut it."""
    found = _parts(ctx, first, second)
    return found if found is not None and ctx.shape(first) == ctx.shape(second) else None


def _parts(ctx: Context, first: ir.Value | None, second: ir.Value | None) -> tuple[ir.Value, list[ir.Node]] | None:
    """What two values are the first and the last features of, all in all, and the nodes that cut it."""
    cutter = None if first is None else first.producer()
    other = None if second is None else second.producer()
    if cutter is None or other is None or cutter.domain != "" or other.domain != "" or not cutter.inputs:
        return None
    x = cutter.inputs[0]
    shape, left, right = ctx.shape(x), ctx.shape(first), ctx.shape(second)
    if x is None or not shape or not left or not right:
        return None
    if not (isinstance(shape[-1], int) and isinstance(left[-1], int) and left[:-1] == right[:-1] == shape[:-1]):
        return None
    if right[-1] != shape[-1] - left[-1]:
        return None
    if cutter is other and cutter.op_type == "Split":
        good = list(cutter.outputs) == [first, second]
    else:
        good = cutter.op_type == other.op_type == "Slice" and other.inputs[0] is x
        good = good and _begin(ctx, cutter, shape) == 0 and _begin(ctx, other, shape) == left[-1]
    return (x, [cutter, other]) if good else None


def _begin(ctx: Context, node: ir.Node, shape: tuple[object, ...]) -> int | None:
    bounds = slice_bounds(ctx.facts, node, len(shape))
    if bounds is None or bounds[2] != [len(shape) - 1] or bounds[3] != [1]:
        return None
    start, length = bounds[0][0], shape[-1]
    return slice(start, None).indices(length)[0] if isinstance(start, int) and isinstance(length, int) else None


def _repeats(ctx: Context, value: ir.Value | None, interleaved: bool, depth: int) -> bool:
    """Whether the second half of a value's last axis repeats the first, or each second element the one before."""
    shape = ctx.shape(value)
    if value is None or not depth or not shape:
        return False
    if ctx.tensor(value) is not None:
        array = ctx.array(value)
        if array is None or array.shape[-1] % 2:
            return False
        half = array.shape[-1] // 2
        parts = (array[..., ::2], array[..., 1::2]) if interleaved else (array[..., :half], array[..., half:])
        return bool(np.array_equal(*parts))
    node = value.producer()
    if node is None or node.domain != "" or not isinstance(shape[-1], int):
        return False

    def again(inner: ir.Value | None) -> bool:
        return _repeats(ctx, inner, interleaved, depth - 1)

    source = ctx.shape(node.inputs[0]) if node.inputs else None
    if node.op_type in _UNARY:
        return again(node.inputs[0])
    if node.op_type in _BINARY:
        flat = [(ctx.shape(each) or (0,))[-1:] in ((1,), ()) or ctx.shape(each) == () for each in node.inputs]
        return not all(flat) and all(one or again(each) for one, each in zip(flat, node.inputs, strict=True))
    if node.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Expand") and source and source[-1] == shape[-1]:
        # The last axis is the same one only if what is before it is regrouped and nothing else.
        return again(node.inputs[0])
    if node.op_type in ("Gather", "Slice", "Split") and source and source[-1] == shape[-1]:
        axis = node.attributes.get_int("axis", 0) % len(source)
        return (node.op_type != "Gather" or axis != len(source) - 1) and again(node.inputs[0])
    if interleaved:
        return node.op_type == "Reshape" and _doubles(ctx, node, shape)
    if node.op_type == "Concat" and node.attributes.get_int("axis", 0) in (-1, len(shape) - 1):
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    return False


def _doubles(ctx: Context, node: ir.Node, shape: tuple[object, ...]) -> bool:
    """Whether a Reshape joins each element with its own copy: a stack of two equals, or an Expand to two."""
    inner = inner_node(node, "Concat", "Expand")
    joined = None if inner is None else ctx.shape(inner.outputs[0])
    if inner is None or joined is None or joined[-1] != 2 or not isinstance(shape[-1], int):
        return False
    if joined[:-1] != (*shape[:-1], shape[-1] // 2):
        return False
    if inner.op_type == "Expand":
        before = ctx.shape(inner.inputs[0])
        return bool(before) and before is not None and before[-1] == 1
    last = inner.attributes.get_int("axis", 0) in (-1, len(joined) - 1)
    return last and len(inner.inputs) == 2 and inner.inputs[0] is inner.inputs[1]


def _fits(ctx: Context, value: ir.Value, shape: tuple[object, ...]) -> bool | None:
    """True: one row of angles for the whole batch. False: one for each of the batch. None: neither."""
    own = ctx.shape(value)
    if own is None or not 2 <= len(own) <= 4:
        return None
    full = (1,) * (4 - len(own)) + own
    if full[1] != 1 or full[2:] != shape[2:]:
        return None
    return True if full[0] == 1 else False if full[0] == shape[0] else None


def _whole(ctx: Context, node: ir.Node, x: ir.Value) -> tuple[ir.Value | None, ir.Node]:
    """The value of which ``x`` is the first features, and the Concat that puts the others behind; else None."""
    uses = node.outputs[0].uses()
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None, node
    joint, place = next(iter(uses))
    if joint.op_type != "Concat" or joint.domain != "" or place != 0 or len(joint.inputs) != 2:
        return None, node
    if joint.graph is not node.graph or joint.attributes.get_int("axis", 0) not in (-1, 3):
        return None, node
    found = _parts(ctx, x, joint.inputs[1])
    return (None, node) if found is None else (found[0], joint)


def _half(ctx: Context, near: ir.Node, value: ir.Value, turn: _Turn) -> ir.Value:
    """The angles once for each pair, as (batch or 1, positions, pairs)."""
    shape = ctx.shape(value)
    assert shape is not None
    width, hint = shape[-1], f"{value.name}_once"
    assert isinstance(width, int)
    array = ctx.array(value)
    if array is not None:
        part = array if turn.once else array[..., ::2] if turn.interleaved else array[..., : width // 2]
        part = part.reshape(-1, *part.shape[-2:])
        return ctx.constant(np.ascontiguousarray(part), hint, near=near, origin=[value.name] if value.name else [])

    def number(what: str, item: int) -> ir.Value:
        return ctx.constant(np.array([item], np.int64), f"{hint}_{what}", near=near)

    made = value
    if not turn.once:
        bounds = [number("start", 0), number("end", width if turn.interleaved else width // 2)]
        bounds.append(number("axis", len(shape) - 1))
        if turn.interleaved:
            bounds.append(number("step", 2))
        (made,) = ctx.add("Slice", [value, *bounds], before=near, hint=hint)
    if len(shape) != 3:
        operator, axis = ("Unsqueeze", 0) if len(shape) == 2 else ("Squeeze", 1)
        (made,) = ctx.add(operator, [made, number("axis", axis)], before=near, hint=hint)
    return made
