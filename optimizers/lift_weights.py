"""Weights that are kept inside the bodies of If, Loop or Scan, moved to where a gradient can reach them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from graphkit.conversion import constant_array, ir_tensor, is_computed

__all__ = ["float_weights", "lift_weights", "weights_in_bodies"]


def float_weights(model: ir.Model) -> list[str]:
    """The names of all floating constants of rank 1 or more: initializers and Constant nodes, those in bodies too.

    >>> import onnx.parser
    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    ...     half = Constant<value = float {0.5}>() b = Constant<value_floats = [1.0, 3.0]>()
    ...     h = Mul(half, x) m = Mul(h, w) y = Add(m, b)}'''
    >>> float_weights(ir.from_proto(onnx.parser.parse_model(text)))
    ['w', 'b']
    """
    graph = model.graph
    constants = [node.outputs[0] for node in graph if node.op_type == "Constant" and not node.domain]
    found: dict[str, None] = {}
    for value in (*graph.initializers.values(), *constants, *weights_in_bodies(graph)):
        tensor = value.const_value if value.const_value is not None else ir.convenience.get_const_tensor(value)
        if value.name is None or tensor is None or is_computed(tensor):
            continue
        if tensor.dtype.is_floating_point() and len(tensor.shape):
            found.setdefault(value.name)
    return list(found)


def lift_weights(model: ir.Model, names: Collection[str]) -> None:
    """Make initializers of the main graph of the named constants of its bodies, in place.

    A name that the main graph has, or that no body has, is left alone.

    >>> import onnx.parser
    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (bool p, float[2] x) => (float[2] y) {
    ...     y = If<then_branch = a () => (float[2] t) {w = Constant<value = float[2] {1, 2}>() t = Mul(x, w)},
    ...            else_branch = b () => (float[2] e) {e = Identity(x)}>(p)}'''
    >>> model = ir.from_proto(onnx.parser.parse_model(text))
    >>> lift_weights(model, ["w"])
    >>> list(model.graph.initializers)
    ['w']
    """
    graph = model.graph
    known = {v.name for v in (*graph.inputs, *graph.initializers.values())}
    known.update(v.name for node in graph for v in node.outputs)
    wanted = {n for n in names if n not in known}
    if not wanted:
        return
    for value in list(weights_in_bodies(graph)):
        if value.name not in wanted:
            continue
        wanted.discard(value.name)
        array = constant_array(value)
        name = value.name
        assert name is not None
        owner, producer = value.graph, value.producer()
        lifted = ir.Value(name=name, type=value.type, shape=ir.Shape(array.shape), const_value=ir_tensor(array, name))
        if lifted.type is None:
            lifted.type = ir.TensorType(lifted.const_value.dtype)  # type: ignore[union-attr]  # made just above
        for body in _bodies(graph):
            for place, output in enumerate(body.outputs):
                if output is value:
                    node = ir.Node("", "Identity", [lifted])
                    node.outputs[0].name = f"{name}_output"
                    body.append(node)
                    body.outputs[place] = node.outputs[0]
        value.replace_all_uses_with(lifted)
        if producer is not None and producer.graph is not None:
            value.name = None
            producer.graph.remove(producer)
        elif isinstance(owner, ir.Graph):
            owner.initializers.pop(name)
        graph.register_initializer(lifted)


def weights_in_bodies(graph: ir.Graph) -> Iterator[ir.Value]:
    """The constants of every body in a graph: initializers, and what Constant nodes make."""
    for body in _bodies(graph):
        yield from body.initializers.values()
        for node in body:
            if node.op_type == "Constant" and not node.domain and constant_array(node.outputs[0]) is not None:
                yield node.outputs[0]


def _bodies(graph: ir.Graph) -> Iterator[ir.Graph]:
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield attribute.as_graph()
                yield from _bodies(attribute.as_graph())
