"""Passes over control flow whose outcome is known before the model runs."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context

__all__: list[str] = []


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


def _needs_identity(old: ir.Value, new: ir.Value, results: list[ir.Value]) -> bool:
    if not old.is_graph_output():
        return False
    producer, owner = new.producer(), results[0].graph
    inside = producer is not None and (producer.graph is owner or producer.graph is old.graph)
    return not inside or results.count(new) > 1 or new.is_initializer() or _is_outer_output(new, owner)


def _is_outer_output(value: ir.Value, body: ir.Graph | None) -> bool:
    return value.is_graph_output() and value.graph is not body
