"""Passes that drop what nothing reads."""

from __future__ import annotations

import itertools

import onnx_ir as ir

from graphkit.optimizers.base import sweep
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import subgraphs_of

__all__ = ["prune"]


def _why_kept(ctx: Context, node: ir.Node) -> str:
    for value in node.outputs:
        if value.is_graph_output():
            return f"a graph gives out '{value.name}'"
        for use in value.uses():
            return f"'{value.name}' is read by {use.node.op_type} '{ctx.called(use.node)}'"
    return "nothing keeps it"


@sweep("prune", explain=_why_kept)
def prune(ctx: Context) -> int:
    """Drops nodes, optional outputs, initializers, functions and opset imports that nothing reads.

    Graph inputs stay, used or not, and so does an initializer that is the default of an input.
    """
    done = 0
    for root in ctx.graphs():
        done += _dead_nodes(ctx, root)
    done += _dead_initializers(ctx)
    done += _dead_functions(ctx)
    return done


def _dead_nodes(ctx: Context, graph: ir.Graph) -> int:
    done = 0
    for node in reversed(graph):
        if ctx.remove(node):
            ctx.account.rewritten.append(ctx.called(node))
            done += 1
            continue
        for body in subgraphs_of(node):
            done += _dead_nodes(ctx, body)
        done += _dead_outputs(node) + _trailing_inputs(node)
    return done


# Operators that take a missing trailing output to mean that it need not be computed.
_OPTIONAL_OUTPUTS = {
    "Dropout": 1,
    "MaxPool": 1,
    "LayerNormalization": 1,
    "LSTM": 1,
    "GRU": 1,
    "RNN": 1,
    "Unique": 1,
    "DynamicQuantizeLinear": 3,
}


def _dead_outputs(node: ir.Node) -> int:
    least = _OPTIONAL_OUTPUTS.get(node.op_type) if node.domain == "" else None
    if least is None:
        return 0
    keep = len(node.outputs)
    while keep > least and not node.outputs[keep - 1].uses() and not node.outputs[keep - 1].is_graph_output():
        keep -= 1
    if keep == len(node.outputs):
        return 0
    node.resize_outputs(keep)
    return 1


def _trailing_inputs(node: ir.Node) -> int:
    keep = len(node.inputs)
    while keep and node.inputs[keep - 1] is None:
        keep -= 1
    if keep == len(node.inputs) or node.domain != "":
        return 0
    node.resize_inputs(keep)
    return 1


def _dead_initializers(ctx: Context) -> int:
    done = 0
    for graph in (ctx.model.graph, *ctx.model.graph.subgraphs()):
        noted = _noted(graph)
        for name, value in list(graph.initializers.items()):
            if name in noted:
                continue
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                if value.const_value is not None:
                    ctx.account.bytes -= value.const_value.nbytes
                del graph.initializers[name]
                ctx.account.rewritten.append(name)
                done += 1
    return done


def _noted(graph: ir.Graph) -> set[str]:
    """The initializers that hold what quantization annotations say of other values: scales and zero points."""
    values = itertools.chain(graph.inputs, graph.initializers.values(), (v for node in graph for v in node.outputs))
    notes = (value.meta.get("quant_parameter_tensor_names") for value in values)
    return {name for note in notes if note for name in note.values()}


def _dead_functions(ctx: Context) -> int:
    model = ctx.model
    called: set[tuple[str, str, str]] = set()
    domains: set[str] = set()

    def visit(nodes: ir.Graph | ir.Function) -> None:
        for node in nodes.all_nodes():
            domains.add(node.domain)
            key = node.op_identifier()
            if key in model.functions and key not in called:
                called.add(key)
                visit(model.functions[key])

    visit(model.graph)
    done = 0
    for key in [key for key in model.functions if key not in called]:
        del model.functions[key]
        ctx.account.rewritten.append("::".join(key))
        done += 1
    # The imports of a model must cover its functions' too. The default domain stays: every model has it.
    for function in model.functions.values():
        domains.update(function.opset_imports)
    for domain in [domain for domain in model.opset_imports if domain not in domains and domain != ""]:
        del model.opset_imports[domain]
        done += 1
    return done
