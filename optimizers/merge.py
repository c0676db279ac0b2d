"""Passes that let one value serve where several are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

import onnx_ir as ir

from graphkit.optimizers.base import sweep
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import subgraphs_of

__all__: list[str] = []

_COMMUTATIVE: Final = ("Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
# Constants above this are compared by identity: reading gigabytes of weights to find two equal ones is not worth it.
_MAX_COMPARED: Final = 1024


def _why_apart(ctx: Context, node: ir.Node) -> str:
    if subgraphs_of(node):
        return "it has bodies, which are not compared"
    if not ctx.pure(node):
        return "it draws random numbers, or may: two draws stay two"
    readers = [use.node for value in node.inputs if value is not None for use in value.uses()]
    for other in dict.fromkeys(readers):
        if other is node or other.op_identifier() != node.op_identifier():
            continue
        if _key(other) == _key(node):
            return f"'{ctx.called(other)}' is the same in another body, or both are graph outputs"
        if Counter(other.inputs) == Counter(node.inputs):
            return f"'{ctx.called(other)}' reads the same inputs, with other attributes or order"
    return f"no other {node.op_type} reads the same inputs"


@sweep("merge_common", explain=_why_apart)
def merge_common(ctx: Context) -> int:
    """Nodes that compute the same from the same inputs become one.

    Same operator, inputs and attributes, bit for bit (0.0 is not -0.0), or integers known to be the same dimensions;
    never random nodes, and never two weights that happen to be equal, which are different inputs.
    """
    return sum(_merge_graph(ctx, graph, {}) for graph in ctx.graphs())


def _merge_graph(ctx: Context, graph: ir.Graph, outer: dict[Hashable, ir.Node]) -> int:
    # A body sees what the graphs around it have computed before it; what it computes itself nobody else sees.
    seen = dict(outer) if outer else {}
    done = 0
    for node in graph:
        bodies = subgraphs_of(node)
        if bodies:
            for body in bodies:
                done += _merge_graph(ctx, body, seen)
            continue
        if _merge_content(ctx, node, seen):
            done += 1
            continue
        key = _key(node) if ctx.pure(node) else None
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is not node and _merge(ctx, node, first):
            done += 1
    return done


def _merge_content(ctx: Context, node: ir.Node, seen: dict[Hashable, ir.Node]) -> bool:
    """Merge a node with an earlier one that holds the same integers, however the two come by them.

    The length of a sequence, say, is asked of every layer's own value, and is the same each time.
    """
    if len(node.outputs) != 1 or ctx.tensor(node.outputs[0]) is not None:
        return False
    fact = ctx.facts(node.outputs[0])
    if fact.content is None or not fact.content:
        return False
    first, name = seen.setdefault(("content", fact.dtype, fact.shape, fact.content), node), ctx.called(node)
    if first is node or not ctx.replace(node.outputs[0], first.outputs[0]):
        return False
    ctx.account.rewritten.append(name)
    return ctx.remove(node)


def _merge(ctx: Context, node: ir.Node, first: ir.Node) -> bool:
    if len(node.outputs) != len(first.outputs):
        return False
    name, pairs = ctx.called(node), list(zip(node.outputs, first.outputs, strict=True))
    # A first output that nobody reads may be missing its type; one that is given out cannot take a second name.
    if not all(ctx.can_replace(old, new) for old, new in pairs):
        return False
    for old, new in pairs:
        if not ctx.replace(old, new):
            return False
    ctx.account.rewritten.append(name)
    return ctx.remove(node)


def _key(node: ir.Node) -> Hashable | None:
    inputs = [id(value) for value in node.inputs]
    if node.op_type in _COMMUTATIVE and node.domain == "":
        inputs.sort()
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.is_ref():
            attributes.append((name, "ref", attribute.ref_attr_name))
            continue
        value = _attribute_key(attribute)
        if value is None:
            return None
        attributes.append((name, *value))
    return (node.domain, node.op_type, node.overload, len(node.outputs), tuple(inputs), tuple(attributes))


def _attribute_key(attribute: ir.Attr) -> tuple[str, str] | None:
    kind = attribute.type
    if kind in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.SPARSE_TENSOR):
        return None
    if kind == ir.AttributeType.TENSOR:
        return (kind.name, repr(tensor_key(attribute.as_tensor())))
    if kind == ir.AttributeType.TENSORS:
        return (kind.name, repr([tensor_key(tensor) for tensor in attribute.as_tensors()]))
    return (kind.name, repr(attribute.value))  # repr tells -0.0 from 0.0, and NaN is itself


def tensor_key(tensor: ir.TensorProtocol) -> tuple[str, ...]:
    """What two tensors share exactly when they are equal bit for bit (or are one object, for large ones)."""
    if tensor.dtype == ir.DataType.STRING or tensor.nbytes > _MAX_COMPARED:
        return ("object", str(id(tensor)))
    return (tensor.dtype.name, str(tensor.shape), tensor.tobytes().hex())


@sweep("merge_initializers", explain=lambda _ctx, _node: "it looks at initializers")
def merge_initializers(ctx: Context) -> int:
    """Small equal integer initializers (shapes, axes, indices) become one.

    Floating-point initializers stay apart unless the pipeline made both: two equal weights are two weights. Never those
    that are inputs or outputs.
    """
    graph = ctx.model.graph
    seen: dict[tuple[str, ...], ir.Value] = {}
    done = 0
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output() or not value.uses():
            continue
        if tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL) and not ctx.was_made(value):
            continue
        key = tensor_key(tensor)
        first = seen.setdefault(key, value) if key[0] != "object" else value
        if first is not value and ctx.replace(value, first):
            ctx.account.rewritten.append(name)
            done += 1
    return done
