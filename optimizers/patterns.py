"""Matching the small trees of nodes that fusions look for."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import onnx_ir as ir

from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import use_count

__all__ = ["Match", "Pattern", "match"]

# A name stands for any value (the same value wherever it occurs), a number for a constant of one element, and a tuple
# for a node: its operator and its inputs.
Pattern: TypeAlias = "str | float | tuple[Any, ...]"

_COMMUTATIVE: Final = ("Add", "Mul")
# No tree that a pattern describes reads one of its values more often.
_MOST_READERS: Final = 32
_MOST_RANKS: Final = 4096


class Match:
    """The values that a pattern's names stand for, and the nodes inside it."""

    def __init__(self, values: dict[str, ir.Value], nodes: list[ir.Node]) -> None:
        self.values = values
        self.nodes = nodes

    def __getitem__(self, name: str) -> ir.Value:
        return self.values[name]

    def node(self, operator: str) -> ir.Node:
        """The first node inside with this operator."""
        return next(node for node in self.nodes if node.op_type == operator)


def match(ctx: Context, node: ir.Node, *patterns: Pattern, closed: bool = True) -> Match | None:
    """Match a node, the last of a tree, against patterns in turn.

    Nothing but the tree may read the values inside it; otherwise the nodes would have to stay, and nothing is won.
    With ``closed=False`` the caller sees to that.
    """
    children, grandchildren = _operators_before(node)
    for pattern in patterns:
        first, second = _operators_of(pattern)
        if not (first <= children and second <= grandchildren):
            continue
        found = _match_node(ctx, node, pattern, Match({}, []))
        if found is not None and (not closed or _is_closed(found, node)):
            return found
    return None


# A pattern (kept, so that its address stays its own) and the operators of its second and third rank.
_ranks: dict[int, tuple[Pattern, frozenset[str], frozenset[str]]] = {}


def _operators_of(pattern: Pattern) -> tuple[frozenset[str], frozenset[str]]:
    """The operators that must stand right before the last, and before those: most nodes are told by them alone."""
    known = _ranks.get(id(pattern))
    if known is None:
        inner = [part for part in pattern[1:] if isinstance(part, tuple)] if isinstance(pattern, tuple) else []
        second = {part[0] for each in inner for part in each[1:] if isinstance(part, tuple)}
        known = (pattern, frozenset(each[0] for each in inner), frozenset(second))
        if len(_ranks) < _MOST_RANKS:
            _ranks[id(pattern)] = known
    return known[1], known[2]


def _operators_before(node: ir.Node) -> tuple[set[str], set[str]]:
    first = [producer for value in node.inputs if value is not None and (producer := value.producer()) is not None]
    second = {
        producer.op_type
        for each in first
        for value in each.inputs
        if value is not None and (producer := value.producer()) is not None
    }
    return {each.op_type for each in first}, second


def _is_closed(found: Match, last: ir.Node) -> bool:
    inside = set(found.nodes)
    return all(
        not value.is_graph_output()
        and use_count(value) <= _MOST_READERS
        and all(use.node in inside for use in value.uses())
        for node in found.nodes
        if node is not last
        for value in node.outputs
    )


def _match_node(ctx: Context, node: ir.Node, pattern: Pattern, so_far: Match) -> Match | None:
    assert isinstance(pattern, tuple)
    operator, *parts = pattern
    if node.op_type != operator or node.domain != "" or len(node.inputs) < len(parts):
        return None
    orders = [parts]
    if operator in _COMMUTATIVE and len(parts) == 2:
        orders.append([parts[1], parts[0]])
    for order in orders:
        found: Match | None = Match(dict(so_far.values), [*so_far.nodes, node])
        for value, part in zip(node.inputs, order, strict=False):
            found = _match_value(ctx, value, part, found) if found is not None else None
        if found is not None:
            return found
    return None


def _match_value(ctx: Context, value: ir.Value | None, pattern: Pattern, so_far: Match) -> Match | None:
    if value is None:
        return None
    if isinstance(pattern, str):
        known = so_far.values.get(pattern)
        if known is not None:
            return so_far if known is value else None
        return Match({**so_far.values, pattern: value}, so_far.nodes)
    if isinstance(pattern, (int, float)):
        number = ctx.scalar(value)
        near = number is not None and math.isclose(float(number), pattern, rel_tol=1e-5)
        return so_far if near and (ctx.rank(value) or 0) <= 1 else None
    node = value.producer()
    if node is None or value is not node.outputs[0]:
        return None
    if node in so_far.nodes:
        # The tree may share a node: it matches again if it gives the same values.
        return _match_node(ctx, node, pattern, Match(so_far.values, so_far.nodes))
    return _match_node(ctx, node, pattern, so_far)
