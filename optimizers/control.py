"""Passes over control flow whose outcome is known before the model runs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context

__all__: list[str] = []

_FEW: Final = 64


@rule("inline_if", "If")
def inline_if(ctx: Context, node: ir.Node) -> Outcome:
    """An If whose condition is known becomes the branch that it takes.

    The names inside the branch are changed where the graph around it has them already.
    """
    known = ctx.ints(node.inputs[0])
    if known is None:
        scalar = ctx.scalar(node.inputs[0])
        if scalar is None:
            return "its condition is not known"
        known = (int(scalar),)
    root = ctx.root(node)
    body = node.attributes["then_branch" if known[0] else "else_branch"].as_graph()
    if root is not ctx.model.graph and body.initializers:
        return "a function holds no initializers"
    results = list(body.outputs)
    # A value that is given out elsewhere already, or is not made by a node here, needs a node to take the If's name.
    given = [_needs_identity(old, new, results) for old, new in zip(node.outputs, results, strict=True)]
    while body.outputs:
        body.outputs.pop()
    ctx.move_out(body, node)
    for old, new, copy in zip(node.outputs, results, given, strict=True):
        made = new
        if copy:
            (made,) = ctx.add("Identity", [new], before=node)
            ctx.facts.learn(made, ctx.facts(new))
        ctx.replace(old, made)
    ctx.remove(node)
    return True


@rule("branch_facts", "If")
def branch_facts(ctx: Context, node: ir.Node) -> Outcome:
    """In the branches of an If its condition is known, and so is what another If with that condition gives out there.

    The gradient of an If is such another If: it reads what the branch that was taken had saved for it.
    """
    condition = node.inputs[0]
    done = False
    for name in ("then_branch", "else_branch"):
        body = node.attributes[name].as_graph()
        made: dict[ir.Value, ir.Value | None] = {}
        for inner in body.all_nodes():
            for index, value in enumerate(inner.inputs):
                if value is None:
                    continue
                if value not in made:
                    array = _in_branch(ctx, value, node, condition, name)
                    made[value] = None if array is None else ctx.constant(array, f"{value.name}_known", near=node)
                known = made[value]
                if known is not None:
                    inner.replace_input_with(index, known)
                    ctx.touch((inner,))
                    done = True
    return True if done else "its branches read nothing that its condition decides"


def _in_branch(ctx: Context, value: ir.Value, node: ir.Node, condition: ir.Value | None, name: str) -> Any:
    """The few numbers that a value has wherever the branch ``name`` of ``node`` runs, or None."""
    if value is condition:
        array = np.array(name == "then_branch")
        shape = ctx.shape(value)
        return array.reshape((1,) * len(shape)) if shape is not None else None
    producer = value.producer()
    if producer is None or producer is node or producer.op_type != "If" or producer.inputs[0] is not condition:
        return None
    given = producer.attributes[name].as_graph().outputs[value.index() or 0]
    shape, dtype, ints = ctx.shape(given), ctx.dtype(given), ctx.ints(given)
    known = None if shape is None else [n for n in shape if isinstance(n, int)]
    if ints is not None and dtype is not None and shape is not None and known is not None and len(known) == len(shape):
        return np.array(ints, dtype.numpy()).reshape(known)
    tensor = ctx.tensor(given)
    return ctx.array(given) if tensor is not None and tensor.size <= _FEW else None


def _needs_identity(old: ir.Value, new: ir.Value, results: list[ir.Value]) -> bool:
    if not old.is_graph_output():
        return False
    producer, owner = new.producer(), results[0].graph
    inside = producer is not None and (producer.graph is owner or producer.graph is old.graph)
    return not inside or results.count(new) > 1 or new.is_initializer() or _is_outer_output(new, owner)


def _is_outer_output(value: ir.Value, body: ir.Graph | None) -> bool:
    return value.is_graph_output() and value.graph is not body
