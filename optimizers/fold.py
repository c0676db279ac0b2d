"""Passes that compute before the model runs what does not depend on its inputs."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.conversion import FROM_NO_WEIGHT, is_computed
from graphkit.optimizers.base import Outcome, rule, sweep
from graphkit.optimizers.context import Context
from graphkit.optimizers.evaluate import evaluate
from graphkit.optimizers.facts import subgraphs_of, use_count
from graphkit.optimizers.symbolic import size_of

__all__: list[str] = []

# Folding these would undo what someone did on purpose: quantized weights would become four times as large.
_NEVER: Final = frozenset(
    {"Constant", "Identity", "DequantizeLinear", "Optional", "OptionalGetElement", "OptionalHasElement"}
)
# Nothing larger is computed, even where a later node would cut it down again.
_LARGEST: Final = 64 * 2**20
_SHAPE_ARITHMETIC: Final = """
Shape Size Gather Slice Concat Unsqueeze Squeeze Reshape Cast Add Sub Mul Div Neg Equal Where Min Max Range
ConstantOfShape Expand ReduceProd Split And Or Not Greater Less Identity
"""
# What a node and its names weigh in a file, at the least.
_NODE_BYTES: Final = 48
_MAX_CONE: Final = 128
# Up to so many integers of 8 bits are settings, and more are quantized weights.
_FEW: Final = 16
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FOLDABLE_TYPES: Final = frozenset(
    {
        *(ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL),
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)


def _why_not(ctx: Context, node: ir.Node) -> str:
    if node.domain != "" or node.op_type in _NEVER:
        return f"{node.op_type} is never folded"
    if node.op_type == "Cast" and _is_quantized(ctx, node):
        return "quantized weights stay quantized"
    if not ctx.pure(node):
        return "it draws random numbers, or may"
    varying = [value.name for value in node.inputs if value is not None and not _is_usable(ctx, value)]
    if varying:
        return f"its input '{varying[0]}' is not constant, or may be overridden or trained"
    if not node.inputs or subgraphs_of(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return "it has no inputs, or bodies, or attributes that a caller sets"
    if any(value.is_graph_output() and value.graph is not ctx.model.graph for value in node.outputs):
        return "a body gives it out"
    size = sum(_bytes(ctx, value) for value in node.outputs)
    return f"its {size:,} bytes are more than the {_allowance(ctx, node):,} that it would replace, or have no kernel"


@sweep("fold_constants", explain=_why_not)
def fold_constants(ctx: Context) -> int:
    """Computes the nodes whose inputs are all constant, on ONNX Runtime with its optimizations off.

    Never random nodes, DequantizeLinear, overridable initializers or, in training, parameters; and only where the
    result is no larger than the nodes and constants that it replaces, up to a small budget for the whole model.
    """
    return sum(_fold_graph(ctx, graph) for graph in ctx.graphs())


def _fold_graph(ctx: Context, root: ir.Graph) -> int:
    constant: dict[ir.Value, bool] = {}
    nodes: list[ir.Node] = []
    for graph in (root, *root.subgraphs()):
        for node in graph:
            if _is_foldable(ctx, node, constant):
                nodes.append(node)
                constant.update(dict.fromkeys(node.outputs, True))
    if not nodes:
        return 0
    folded = _worth(ctx, nodes)
    if not folded:
        return 0
    chosen = set(folded)
    wanted = [
        value
        for node in folded
        for value in node.outputs
        if value.is_graph_output() or any(use.node not in chosen for use in value.uses())
    ]
    found = evaluate(ctx, folded, wanted)
    done = 0
    for value, array in found.items():
        producer = value.producer()
        # Where a shape was not known beforehand, what came out is weighed now.
        if producer is None or array.nbytes > max(_allowance(ctx, producer), 4 * _NODE_BYTES) + ctx.slack:
            continue
        ctx.slack = max(0, ctx.slack - max(0, array.nbytes - _allowance(ctx, producer)))
        name = ctx.called(producer)
        if ctx.replace_by_constant(value, array, origin=_origin(producer)):
            ctx.account.rewritten.append(name)
            done += 1
    for node in reversed(folded):
        ctx.remove(node)
    return done


def _is_foldable(ctx: Context, node: ir.Node, constant: dict[ir.Value, bool]) -> bool:
    if node.domain != "" or node.op_type in _NEVER or not node.inputs or not ctx.pure(node):
        return False
    if subgraphs_of(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    if not all(value is None or value in constant or _is_usable(ctx, value) for value in node.inputs):
        return False
    if node.op_type == "Cast" and _is_quantized(ctx, node):
        return False
    if all(value is None for value in node.inputs) or _may_trap(ctx, node):
        return False
    if any(value.is_graph_output() and value.graph is not ctx.model.graph for value in node.outputs):
        return False  # a body gives it out, so it must stay a node
    return all(_fits(ctx, value) for value in node.outputs)


def _may_trap(ctx: Context, node: ir.Node) -> bool:
    """Whether whole numbers are divided by 0, or the lowest by -1, which ends the process on some processors."""
    if node.op_type not in ("Div", "Mod") or len(node.inputs) != 2:
        return False
    if ctx.dtype(node.inputs[0]) in _FLOATS or ctx.dtype(node.inputs[1]) in _FLOATS:
        return False
    divisor = ctx.array(node.inputs[1])
    return divisor is None or bool(((divisor == 0) | (divisor == -1)).any())


def _is_quantized(ctx: Context, node: ir.Node) -> bool:
    """Whether a Cast makes a floating-point weight of one in few bits, which is as good as DequantizeLinear."""
    tensor = ctx.tensor(node.inputs[0])
    if tensor is None or tensor.size <= _FEW or ctx.facts(node.outputs[0]).dtype not in _FLOATS:
        return False
    return tensor.dtype in (ir.DataType.INT8, ir.DataType.UINT8)


def _is_usable(ctx: Context, value: ir.Value) -> bool:
    if not ctx.is_constant(value):
        return False
    tensor = ctx.tensor(value)
    return tensor is not None and tensor.dtype in _FOLDABLE_TYPES


def _fits(ctx: Context, value: ir.Value) -> bool:
    fact = ctx.facts(value)
    if fact.dtype is not None and fact.dtype not in _FOLDABLE_TYPES:
        return False
    count = size_of(fact.shape)
    if count is None:
        # Unknown: only from small inputs, and not by a node that makes much of little.
        node = value.producer()
        assert node is not None
        small = all(_bytes(ctx, item) <= 4096 for item in node.inputs if item is not None)
        return small and node.op_type not in ("ConstantOfShape", "Expand", "Tile", "Range", "OneHot", "Resize", "Pad")
    return count * (fact.dtype.itemsize if fact.dtype is not None else 8) <= _LARGEST


def _bytes(ctx: Context, value: ir.Value) -> int:
    tensor = ctx.tensor(value)
    if tensor is not None:
        return int(tensor.nbytes)
    fact = ctx.facts(value)
    count = size_of(fact.shape)
    return 0 if count is None else int(count * (fact.dtype.itemsize if fact.dtype is not None else 8))


def _allowance(ctx: Context, node: ir.Node) -> int:
    """The bytes that go away when a node does: its own, and those of nodes and constants that only it leads to."""
    return _freed(ctx, node)[1]


def _freed(ctx: Context, node: ir.Node) -> tuple[int, int]:
    """How many nodes go away when a node does, and how many bytes."""
    cone = {node}
    leaves: dict[ir.Value, None] = {}
    stack = [node]
    while stack and len(cone) < _MAX_CONE:
        for value in stack.pop().inputs:
            # Looked at again from every node that reads it, the last of which sees all its uses inside.
            if value is None or value.is_graph_output() or value.is_graph_input():
                continue
            if use_count(value) > _MAX_CONE or any(use.node not in cone for use in value.uses()):
                continue
            producer = value.producer()
            if ctx.tensor(value) is not None:
                leaves[value] = None
            elif producer is not None and producer not in cone:
                cone.add(producer)
                stack.append(producer)
    return len(cone), len(cone) * _NODE_BYTES + sum(_bytes(ctx, value) for value in leaves)


def _worth(ctx: Context, nodes: list[ir.Node]) -> list[ir.Node]:
    """Those nodes whose results, kept in the file, are not larger than what they replace."""
    chosen = dict.fromkeys(nodes)
    for node in reversed(nodes):
        cost = sum(
            _bytes(ctx, value)
            for value in node.outputs
            if value.is_graph_output() or any(use.node not in chosen for use in value.uses())
        )
        if not cost:
            continue
        count, freed = _freed(ctx, node)
        # Each node that goes away may take a twelfth of what the whole model may grow by.
        if cost > freed + min(ctx.slack, max(256, count * ctx.budget // 12)):
            del chosen[node]
    # A node is computed only from constants or from other nodes that are.
    kept: dict[ir.Node, None] = {}
    for node in chosen:
        if all(value is None or ctx.tensor(value) is not None or value.producer() in kept for value in node.inputs):
            kept[node] = None
    return list(kept)


def _held(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer or Constant node. (onnx_ir's own look-up names the tensor, which callers share.)"""
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or "value" not in producer.attributes:
        return value.const_value
    return producer.attributes["value"].as_tensor()


def _origin(node: ir.Node) -> list[str]:
    """The names of the weights that a constant was computed from; "no weight" where they are settings alone."""
    found: dict[str, None] = {}
    weight = False
    stack, seen = [node], {node}
    while stack and len(seen) < 64:
        last = stack.pop()
        for value in () if last.op_type in ("Shape", "Size") else last.inputs:  # of whose input no number is in theirs
            if value is None:
                continue
            producer = value.producer()
            tensor = _held(value)
            weight |= tensor is not None and tensor.dtype in _FLOATS and tensor.size > 1 and not is_computed(tensor)
            if value.is_initializer() and value.name and value.const_value is not None and value.const_value.size > 1:
                found[value.name] = None
            elif producer is not None and producer not in seen:
                seen.add(producer)
                stack.append(producer)
    return list(found)[:8] if weight else [FROM_NO_WEIGHT.removeprefix("from ")]


def _why_in_place(ctx: Context, node: ir.Node) -> str:
    del ctx
    if node.op_type != "Constant" or node.domain != "":
        return "it looks at Constant"
    return "it is in a function, or a graph gives it out, or it holds text or what training would take for a weight"


@sweep("lift_constants", explain=_why_in_place)
def lift_constants(ctx: Context) -> int:
    """Turns Constant nodes into initializers.

    Not in functions, which hold none, not where a graph gives the constant out, and not what training would take for
    weights.
    """
    done = 0
    for graph in (ctx.model.graph, *ctx.model.graph.subgraphs()):
        for node in graph:
            if node.op_type != "Constant" or node.domain != "":
                continue
            tensor = ctx.tensor(node.outputs[0])
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            if ctx.training and tensor.size > 1 and tensor.dtype in _FLOATS:
                continue  # as an initializer it would look like one of the weights
            if _lift(ctx, node, tensor):
                done += 1
    return done


def _lift(ctx: Context, node: ir.Node, tensor: ir.TensorProtocol) -> bool:
    old = node.outputs[0]
    if old.is_graph_output():
        return False
    new = ctx.adopt(tensor, old)
    ctx.replace(old, new)
    ctx.account.rewritten.append(node.name or "Constant")
    ctx.remove(node)
    return True


@rule(
    "fold_shapes",
    *_SHAPE_ARITHMETIC.split(),
)
def fold_shapes(ctx: Context, node: ir.Node) -> Outcome:
    """Integers that follow from the model's static dims (Shape, and arithmetic on it) become constants.

    Every element must be known; int32, int64 and bool of rank 0 or 1.
    """
    if ctx.tensor(node.outputs[0]) is not None:
        return "it is constant already"
    done = False
    for value in node.outputs:
        fact = ctx.facts(value)
        numbers = ctx.ints(value)
        if numbers is None or fact.dtype is None or fact.shape is None or not (value.uses() or value.is_graph_output()):
            continue
        if fact.shape not in ((), (len(numbers),)):
            continue
        weight = int(len(numbers) * fact.dtype.itemsize) + 12
        freed = 10 + len(node.op_type) + sum(len(item.name or "") for item in node.inputs if item is not None)
        if weight > freed + ctx.slack // 8:
            continue  # what reads it is looked at next, and is often smaller
        if all(item is None or ctx.is_constant(item) for item in node.inputs) and node.inputs:
            continue  # left to fold_constants, which keeps count of bytes
        array = np.array(numbers, fact.dtype.numpy()).reshape((len(numbers),) if fact.shape else ())
        done |= ctx.replace_by_constant(value, array)
    if not done:
        return "its elements do not all follow from static dims"
    ctx.remove(node)
    return True
