"""Passes over loops: a few known turns are written out, and what is the same in every turn moves out.

A Loop of 2 to 8 small turns takes 0.67 to 0.79 of the time once it is written out. A Scan takes 1.01 to 1.04: it stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.symbolic import size_of

__all__: list[str] = []

_MOST_TURNS: Final = 16
_MOST_NODES: Final = 256
# What one loop may grow by: so many bytes, and this part of the file. (A budget for all loops would be new, and so
# unroll more, each time a model is optimized; for the same reason the file's size counts by its highest bit alone.)
_MOST_BYTES: Final = 1024
_SHARE: Final = 32
_NAME_BYTES: Final = 12  # what a node's new names take, at the most, beyond the old ones
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# What cannot fail, whatever its input is.
_UNARY: Final = frozenset(
    {
        *("Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "Softplus", "Softsign", "Gelu", "Tanh", "Exp"),
        *("Log", "Sqrt", "Reciprocal", "Erf", "Neg", "Abs", "Sign", "Floor", "Ceil", "Round", "Not", "Sin", "Cos"),
        *("Shape", "Size", "Transpose"),
    }
)
# What cannot fail once its shapes are known to go together.
_STATIC: Final = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "MatMul", "Gemm", "Concat", "Softmax", "Where"})


def _turns(ctx: Context, node: ir.Node, body: ir.Graph) -> int | str:
    """How often a Loop runs its body, where that is known before."""
    most, condition = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if condition is not None:
        begin = _truth(ctx, condition)
        if begin is None:
            return "whether it begins is not known"
        if not begin:
            return 0
    count = ctx.ints(most)
    if count is None:
        scalar = None if most is None else ctx.scalar(most)
        if scalar is None:
            return "its trip count is not known"
        count = (int(scalar),)
    if count[0] <= 0:
        return 0
    going = body.outputs[0]
    while (producer := going.producer()) is not None and producer.op_type == "Identity" and not producer.domain:
        assert producer.inputs[0] is not None
        going = producer.inputs[0]
    if going is not body.inputs[1] and not _truth(ctx, going):
        return "its body may end it"
    return int(count[0])


def _truth(ctx: Context, value: ir.Value) -> bool | None:
    known = ctx.ints(value)
    scalar = known[0] if known is not None and len(known) == 1 else ctx.scalar(value)
    return None if scalar is None else bool(scalar)


@dataclass(slots=True)
class _Copier:
    """Writes a body out, once for each turn."""

    ctx: Context
    node: ir.Node
    body: ir.Graph
    fixed: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def turn(self, number: int, states: list[ir.Value]) -> list[ir.Value]:
        """The body's outputs in one turn, the condition left out."""
        seen = dict(zip(self.body.inputs[2:], states, strict=True))
        for kind, value in enumerate(self.body.inputs[:2]):
            if value.uses() or value.is_graph_output():
                seen[value] = self._scalar(value, np.array(number if kind == 0 else True, (np.int64, np.bool_)[kind]))
        for inner in self.body:
            inputs = [None if v is None else seen.get(v, self.fixed.get(v, v)) for v in inner.inputs]
            if all(value in self.fixed for value in inner.outputs):
                continue
            made = self._copy(inner, inputs)
            varies = any(v in seen for v in inner.inputs if v is not None)
            (seen if varies else self.fixed).update(zip(inner.outputs, made, strict=True))
        return [seen.get(value, self.fixed.get(value, value)) for value in self.body.outputs[1:]]

    def _scalar(self, value: ir.Value, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ir.Value:
        rank = 0 if value.shape is None else len(value.shape)
        return self.ctx.constant(array.reshape((1,) * rank), value.name or "turn", near=self.node)

    def _copy(self, inner: ir.Node, inputs: list[ir.Value | None]) -> tuple[ir.Value, ...]:
        attributes = dict(inner.attributes.items())
        count = len(inner.outputs)
        made = self.ctx.add(
            inner.op_type, inputs, attributes, before=self.node, hint=inner.outputs[0].name or "", outputs=count,
            domain=inner.domain,
        )  # fmt: skip
        copy = made[0].producer()
        assert copy is not None
        copy.doc_string = inner.doc_string
        copy.metadata_props.clear()
        copy.metadata_props.update(inner.metadata_props)
        for new, old in zip(made, inner.outputs, strict=True):
            new.type = old.type
        return made


@rule("unroll_loop", "Loop", training=False)
def unroll_loop(ctx: Context, node: ir.Node) -> Outcome:
    """A Loop of a few known turns is written out; one of none becomes its initial values.

    At most 16 turns and 256 nodes, and 1 KiB or a thirty-second of the file more than the loop; no random draws, no
    bodies inside the body; the condition stays true. What is the same in every turn is written once.
    """
    body = node.attributes["body"].as_graph()
    turns = _turns(ctx, node, body)
    if isinstance(turns, str):
        return turns
    states = [value for value in node.inputs[2:] if value is not None]
    stacked = body.outputs[1 + len(states) :]
    if len(states) < len(node.inputs) - 2 or len(node.outputs) != len(body.outputs) - 1:
        return "an initial value is missing"
    if turns == 0:
        if any(_is_read(value) for value in node.outputs[len(states) :]):
            return "it gives out an empty stack"
        return _settle(ctx, node, states)
    if turns > _MOST_TURNS or turns * len(body) > _MOST_NODES:
        return f"{turns} turns of {len(body)} nodes are too many"
    if not ctx.pure(node) or body.initializers or any(subgraphs_of(inner) for inner in body):
        return "its body draws random numbers, or has bodies or initializers of its own"
    growth = _growth(node, body, turns, len(stacked))
    if growth > min(_MOST_BYTES, (1 << ctx.size.bit_length() >> 1) // _SHARE):
        return f"written out it would take {growth:,} bytes more"
    copier = _Copier(ctx, node, body)
    columns: list[list[ir.Value]] = [[] for _ in stacked]
    for number in range(turns):
        given = copier.turn(number, states)
        states = given[: len(states)]
        for column, value in zip(columns, given[len(states) :], strict=True):
            column.append(value)
    used = zip(columns, node.outputs[len(states) :], strict=True)
    stacks = [_stack(ctx, node, column) if _is_read(output) else None for column, output in used]
    return _settle(ctx, node, [*states, *stacks])


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _growth(node: ir.Node, body: ir.Graph, turns: int, stacks: int) -> int:
    """How many bytes more the file takes, at the most, once the loop is written out."""
    once = sum(int(ir.to_proto(inner).ByteSize()) + _NAME_BYTES * (1 + len(inner.outputs)) for inner in body)
    return turns * (once + stacks * 3 * _NAME_BYTES) - int(ir.to_proto(node).ByteSize())


def _stack(ctx: Context, node: ir.Node, values: list[ir.Value]) -> ir.Value:
    parts: list[ir.Value | None] = []
    for value in values:
        if ctx.opset(node) < 13:
            parts += ctx.add("Unsqueeze", [value], {"axes": [0]}, before=node)
        else:
            axis = ctx.constant(np.array([0], np.int64), f"{value.name}_axis", near=node)
            parts += ctx.add("Unsqueeze", [value, axis], before=node)
    if len(parts) > 1:
        parts = list(ctx.add("Concat", parts, {"axis": 0}, before=node))
    assert parts[0] is not None
    return parts[0]


def _settle(ctx: Context, node: ir.Node, values: Iterable[ir.Value | None]) -> Outcome:
    """Let values stand for the loop's outputs, and remove it."""
    for old, new in zip(node.outputs, values, strict=False):
        if new is None or not _is_read(old):
            continue
        if not ctx.can_replace(old, new):
            (new,) = ctx.add("Identity", [new], before=node)  # a node that takes the output's name
        ctx.replace(old, new)
    ctx.remove(node)
    return True


@rule("hoist_invariants", "Loop", "Scan", training=False)
def hoist_invariants(ctx: Context, node: ir.Node) -> Outcome:
    """What a body computes from outer values alone moves before the loop, to be computed once.

    Only what cannot fail, for a loop of no turns would not have computed it: elementwise functions, Transpose and
    Shape, and sums and products of values whose shapes are known. Never random draws.
    """
    body = node.attributes["body"].as_graph()
    graph, inside = node.graph, set(body.inputs) | set(body.initializers.values())
    assert graph is not None
    done = False
    for inner in list(body):
        free = inner.inputs and not any(value in inside for value in inner.inputs if value is not None)
        if free and _cannot_fail(ctx, inner) and not any(value.is_graph_output() for value in inner.outputs):
            body.remove(inner)
            for value in inner.outputs:
                ctx.rename_moved(value)
            graph.insert_before(node, inner)
            ctx.touch((inner,))
            done = True
        else:
            inside.update(inner.outputs)
    return True if done else "its body computes nothing from outer values alone that surely cannot fail"


def _cannot_fail(ctx: Context, node: ir.Node) -> bool:
    if node.domain != "" or any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    if node.op_type in _UNARY:
        return ctx.dtype(node.inputs[0]) is not None and ctx.rank(node.inputs[0]) is not None
    if node.op_type not in _STATIC or ctx.dtype(node.outputs[0]) not in _FLOATS:
        return False
    return all(value is None or size_of(ctx.shape(value)) is not None for value in (*node.inputs, *node.outputs))
