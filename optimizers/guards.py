"""Passes over the guards that exporters put around an operator, where the model would fail without it."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import Fact, Facts, subgraphs_of
from graphkit.optimizers.infer_elementwise import axes_of

__all__: list[str] = []

# How many nodes are looked at for one that must fail.
_REACH: Final = 64
_SEQUENCES: Final = ("LSTM", "GRU", "RNN")


@rule("unguard_squeeze", "If")
def unguard_squeeze(ctx: Context, node: ir.Node) -> Outcome:
    """An If that squeezes an axis where its length is 1, and leaves the value as it is elsewhere, becomes Squeeze.

    Only where an operator that follows at every run refuses the rank that the value would have elsewhere: such a run
    fails before and after, since Squeeze refuses an axis of any other length.
    """
    if len(node.outputs) != 1:
        return "it gives out several values"
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    squeeze, source = _only_node(then, "Squeeze"), _only_node(other, "Identity")
    if squeeze is None or source is None or squeeze.inputs[0] is not source.inputs[0]:
        return "its branches are not a Squeeze of a value, and the value"
    value = squeeze.inputs[0]
    shape, axes = ctx.shape(value), axes_of(ctx.facts, squeeze)
    if value is None or shape is None or not isinstance(axes, tuple) or len(axes) != 1:
        return "the rank of the value, or the axis, is not known"
    if not _asks_for_one(ctx, node.inputs[0], shape[axes[0]]):
        return "its condition is not that the axis has length 1"
    if not _must_fail(ctx, node, Fact(ctx.dtype(value), shape)):
        return "what follows may take the value as it is"
    attributes = dict(squeeze.attributes.items())
    return finish(ctx, node, ctx.add("Squeeze", [value, *squeeze.inputs[1:]], attributes, before=node)[0])


def _only_node(body: ir.Graph, operator: str) -> ir.Node | None:
    """The node with this operator that gives out the body's only output, with nothing but constants beside it."""
    nodes = [node for node in body if node.op_type != "Constant"]
    if (
        len(nodes) != 1
        or nodes[0].op_type != operator
        or nodes[0].domain != ""
        or list(body.outputs) != [*nodes[0].outputs]
    ):
        return None
    inner = {value for node in body for value in node.outputs} | set(body.initializers.values())
    # What moves out with the node is looked up outside: its inputs have to be there.
    return None if any(value in inner for value in nodes[0].inputs) else nodes[0]


def _asks_for_one(ctx: Context, condition: ir.Value | None, dim: object) -> bool:
    equal = None if condition is None else condition.producer()
    if equal is None or equal.op_type != "Equal" or equal.domain != "":
        return False
    for index in (0, 1):
        asked, number = ctx.facts(equal.inputs[index]).content, ctx.ints(equal.inputs[1 - index])
        if number == (1,) and asked == (dim,):
            return True
    return False


def _must_fail(ctx: Context, node: ir.Node, fact: Fact) -> bool:
    """Whether some node that runs whenever ``node`` does must fail if the output of ``node`` is as ``fact`` says."""
    trial = ctx.facts.supposing({node.outputs[0]: fact})
    reached: dict[ir.Node, None] = {}
    stack = [node]
    while stack and len(reached) < _REACH:
        for value in stack.pop().outputs:
            for use in value.uses():
                reader = ctx.node_around(use.node, node.graph)
                if reader is not None and reader not in reached:
                    reached[reader] = None
                    stack.append(reader)
    waiting = set(reached)
    while waiting:
        ready = [each for each in reached if each in waiting and not waiting & (_sources(each) - {each})]
        failing = [each for each in ready if _fails(trial, each)]
        if not ready or any(_is_live(each) for each in failing):
            return bool(ready)
        waiting.difference_update(ready)
    return False


def _is_live(node: ir.Node) -> bool:
    """Whether something that a graph gives out depends on a node, so that it is not one that is about to be dropped."""
    seen, stack = {node}, [node]
    while stack and len(seen) < 4 * _REACH:
        for value in stack.pop().outputs:
            if value.is_graph_output():
                return True
            for use in value.uses():
                if use.node not in seen:
                    seen.add(use.node)
                    stack.append(use.node)
    return False


def _sources(node: ir.Node) -> set[ir.Node]:
    """The nodes that a node, or a body of it, reads from."""
    found = {value.producer() for value in node.inputs if value is not None}
    for body in subgraphs_of(node):
        for inner in body.all_nodes():
            found.update(value.producer() for value in inner.inputs if value is not None)
    return {each for each in found if each is not None}


def _fails(facts: Facts, node: ir.Node) -> bool:
    """Whether the runtime refuses a node for the rank of an input; works out the facts of its outputs if not."""
    if node.op_type == "If" and node.domain == "" and (known := facts.ints(node.inputs[0])) is not None:
        body = node.attributes["then_branch" if known[0] else "else_branch"].as_graph()
        if any(_fails(facts, inner) for inner in body):
            return True
        for value, given in zip(node.outputs, body.outputs, strict=True):
            facts.learn(value, facts(given))
        return False
    for body in subgraphs_of(node):
        for inner in body.all_nodes():
            facts.infer(inner)
    if node.domain == "" and _refuses(facts, node):
        return True
    facts.infer(node)
    return False


def _refuses(facts: Facts, node: ir.Node) -> bool:
    shapes = [facts(value).shape for value in node.inputs]
    ranks = [None if shape is None else len(shape) for shape in shapes]
    if not ranks or ranks[0] is None:
        return False
    if node.op_type in _SEQUENCES:
        return ranks[0] != 3
    if node.op_type in ("Conv", "ConvTranspose"):
        return ranks[1] is not None and ranks[0] != ranks[1]
    if node.op_type == "Transpose" and "perm" in node.attributes:
        return len(node.attributes.get_ints("perm", ())) != ranks[0]
    return node.op_type == "Concat" and any(rank is not None and rank != ranks[0] for rank in ranks)
