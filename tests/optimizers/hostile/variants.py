"""The same graph said in other ways: with Constant nodes, defaults, no sizes, in a branch, in a function, twice.

Each variant computes what the graph itself does, so the graph's own outputs are what is right.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto, helper

__all__ = ["VARIANTS"]


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def settings(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """The initializers that no caller may override."""
    given = {value.name for value in graph.input}
    return [tensor for tensor in graph.initializer if tensor.name not in given]


def constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    made = copied(model)
    kept = {tensor.name for tensor in settings(made.graph)} - {value.name for value in made.graph.output}
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in made.graph.initializer
        if tensor.name in kept
    ]
    if not nodes:
        return None
    rest = [tensor for tensor in made.graph.initializer if tensor.name not in kept]
    del made.graph.initializer[:]
    made.graph.initializer.extend(rest)
    after = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend([*nodes, *after])
    return made


def defaults(model: onnx.ModelProto) -> onnx.ModelProto | None:
    made = copied(model)
    tensors = settings(made.graph)
    if not tensors or model.ir_version < 4:
        return None
    made.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in tensors)
    return made


def without_sizes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    made = copied(model)
    for value in (*made.graph.input, *made.graph.output):
        plain = value.type.tensor_type
        if value.type.HasField("tensor_type") and plain.HasField("shape"):
            for axis, dim in enumerate(plain.shape.dim):
                dim.Clear()
                dim.dim_param = f"{value.name}_{axis}"
    del made.graph.value_info[:]
    return made


def without_ranks(model: onnx.ModelProto) -> onnx.ModelProto | None:
    made = copied(model)
    for value in (*made.graph.input, *made.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del made.graph.value_info[:]
    return made


def _body(model: onnx.ModelProto, prefix: str) -> onnx.GraphProto:
    """The graph as a body without inputs, whose own names begin with ``prefix``."""
    given = {value.name for value in model.graph.input}
    graph = copied(model).graph
    own = {name for node in graph.node for name in node.output if name}
    own |= {tensor.name for tensor in settings(graph)}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}

    def renamed(name: str) -> str:
        return prefix + name if name in own else name

    def rename(nodes: object) -> None:
        for node in nodes:  # type: ignore[attr-defined]
            for names in (node.input, node.output):
                names[:] = [renamed(name) for name in names]
            node.name = prefix + node.name if node.name else ""
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    rename(attribute.g.node)
                    for value in attribute.g.output:
                        value.name = renamed(value.name)

    rename(graph.node)
    for tensor in graph.initializer:
        tensor.name = renamed(tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = renamed(sparse.values.name)
    outputs = []
    for index, value in enumerate(graph.output):
        # What a body gives out must be made in it, and only once.
        name = f"{prefix}given_{index}"
        graph.node.append(helper.make_node("Identity", [renamed(value.name)], [name]))
        made = onnx.ValueInfoProto()
        made.CopyFrom(value)
        made.name = name
        outputs.append(made)
    kept = [tensor for tensor in graph.initializer if tensor.name not in given]
    body = helper.make_graph(list(graph.node), prefix + "body", [], outputs, kept)
    body.sparse_initializer.extend(graph.sparse_initializer)
    return body


def _around(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    made = copied(model)
    given = {value.name for value in made.graph.input}
    kept = [tensor for tensor in made.graph.initializer if tensor.name in given]
    del made.graph.node[:], made.graph.initializer[:], made.graph.sparse_initializer[:], made.graph.value_info[:]
    made.graph.initializer.extend(kept)
    made.graph.node.extend(nodes)
    return made


def in_branch(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Both branches of an If that is decided at run time: by whether nothing is nothing."""
    names = [value.name for value in model.graph.output]
    given = {value.name for value in model.graph.input}
    if len(set(names)) < len(names) or set(names) & given or model.ir_version < 4:
        return None
    made = _around(
        model,
        [
            helper.make_node("If", ["flag"], names, then_branch=_body(model, "t_"), else_branch=_body(model, "e_")),
        ],
    )
    made.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    made.graph.initializer.append(helper.make_tensor("flag", TensorProto.BOOL, [], [True]))
    return made


def in_known_branch(model: onnx.ModelProto) -> onnx.ModelProto | None:
    made = in_branch(model)
    if made is not None:
        del made.graph.input[len(made.graph.input) - 1]
    return made


def twice(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A second copy of all nodes, whose outputs come after."""
    body = _body(model, "second_")
    made = copied(model)
    made.graph.node.extend(body.node)
    made.graph.initializer.extend(body.initializer)
    made.graph.sparse_initializer.extend(body.sparse_initializer)
    made.graph.output.extend(body.output)
    return made


def in_function(model: onnx.ModelProto) -> onnx.ModelProto | None:
    graph = model.graph
    names = [value.name for value in graph.output]
    given = [value.name for value in graph.input]
    taken = any("" in node.output for node in graph.node) or graph.sparse_initializer
    if len(set(names)) < len(names) or set(names) & set(given) or model.ir_version < 8 or model.functions or taken:
        return None
    body = _body(model, "f_")
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in body.initializer]
    outputs = [value.name for value in body.output]
    function = helper.make_function(
        "wrapped", "whole", given, outputs, [*constants, *body.node], list(model.opset_import)
    )
    made = _around(model, [helper.make_node("whole", given, names, domain="wrapped")])
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("wrapped", 1))
    return made


VARIANTS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto | None]] = {
    each.__name__: each
    for each in (constant_nodes, defaults, without_sizes, without_ranks, in_branch, in_known_branch, twice, in_function)
}
