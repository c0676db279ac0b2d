"""Back from a training file to an inference file: Dropout off, BatchNormalization with its running statistics."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from graphkit.modelfile import ModelLike, give_back, read_model
from graphkit.optimizers.context import Context

__all__ = ["to_inference"]


def to_inference(model: ModelLike) -> ir.Model | onnx.ModelProto:
    """Return the model with BatchNormalization and Dropout in their inference form; its inputs and outputs stay.

    BatchNormalization uses the running mean and variance that it is given instead of the batch's (and hands them on
    unchanged, where an output gives them out). Dropout passes its input on: its training mode is switched off whatever
    computed it, and an output that gave out the mask gives True everywhere. The rest of the graph, gradients included,
    is left as it is; ``optimize`` removes what this makes needless.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y)
    ...     <float r = {0.5}, bool t = {1}> {a = Dropout(x, r, t) y = Abs(a)}'''
    >>> from graphkit.optimizers import optimize
    >>> [node.op_type for node in optimize(to_inference(onnx.parser.parse_model(text))).graph.node]
    ['Abs']
    """
    result = read_model(model)
    ctx = Context(result, training=False, slack=0)
    ctx.facts.sweep(ctx.graphs())
    for graph in ctx.graphs():
        for node in list(graph.all_nodes()):
            if node.domain != "":
                continue
            if node.op_type == "Dropout":
                _switch_off(ctx, node)
            elif node.op_type == "BatchNormalization":
                _use_running_statistics(ctx, node)
    return give_back(model, result)


def _switch_off(ctx: Context, node: ir.Node) -> None:
    if len(node.inputs) > 2:
        # Without the third input Dropout does not train; a seed it no longer needs.
        ctx.set_inputs(node, node.inputs[:2] if node.inputs[1] is not None else node.inputs[:1])
    elif ctx.opset(node) < 7 and "is_test" in node.attributes:
        node.attributes.add(ir.AttrInt64("is_test", 1))


def _use_running_statistics(ctx: Context, node: ir.Node) -> None:
    trains = node.attributes.get_int("training_mode", 0) != 0
    extra = [value for value in node.outputs[1:] if value.uses() or value.is_graph_output()]
    if not trains and not (extra and ctx.opset(node) < 14):
        return
    # Outputs 1 and 2 are the new running mean and variance: at inference they are the ones that came in.
    for value, source in zip(node.outputs[1:3], node.inputs[3:5], strict=False):
        if not value.uses() and not value.is_graph_output():
            continue
        assert source is not None
        (copy,) = ctx.add("Identity", [source], before=node)
        ctx.replace(value, copy)
    for value in node.outputs[3:]:
        # Before opset 14 the batch's own statistics too.
        if value.uses() or value.is_graph_output():
            source = node.inputs[3 if value.index() == 3 else 4]
            assert source is not None
            (copy,) = ctx.add("Identity", [source], before=node)
            ctx.replace(value, copy)
    node.resize_outputs(1)
    if "training_mode" in node.attributes:
        node.attributes.pop("training_mode")
