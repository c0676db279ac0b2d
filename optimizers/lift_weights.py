"""Weights that are kept inside the bodies of If, Loop or Scan, moved to where a gradient can reach them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import onnx_ir as ir

from graphkit.conversion import constant_array, ir_tensor, is_computed
from graphkit.errors import GradientError

__all__ = ["float_weights", "lift_constants", "lift_weights", "weights_in_bodies"]


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
    named = {str(v.name): v for v in (*graph.initializers.values(), *constants) if v.name}
    return [name for name, value in (named | weights_in_bodies(graph)).items() if _is_float_weight(value)]


def _is_float_weight(value: ir.Value) -> bool:
    tensor = value.const_value if value.const_value is not None else ir.convenience.get_const_tensor(value)
    if tensor is None or is_computed(tensor):
        return False
    return tensor.dtype.is_floating_point() and bool(len(tensor.shape))


def lift_weights(model: ir.Model, names: Collection[str]) -> None:
    """Make initializers of the main graph of the named constants of its bodies, in place.

    A name that the main graph has, or that no body has, is left alone.

    Args:
        model: which is changed.
        names: as ``weights_in_bodies`` gives them.

    Raises:
        GradientError: for a name that several bodies have, which is none's; the message says what they are called.

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
    known = _names_of(graph)
    wanted = [n for n in names if n not in known]
    if not wanted:
        return
    held = weights_in_bodies(graph)
    for name in wanted:
        if name in held:
            _lift(graph, held[name], name)
            continue
        several = [full for full, value in held.items() if value.name == name]
        if several:
            raise GradientError(
                f"'{name}' is the name of {len(several)} constants, each in a body of its own. Say which: "
                f"{', '.join(several)}"
            )


def _lift(graph: ir.Graph, value: ir.Value, name: str) -> None:
    array = constant_array(value)
    owner, producer = value.graph, value.producer()
    lifted = ir.Value(name=name, type=value.type, shape=ir.Shape(array.shape), const_value=ir_tensor(array, name))
    if lifted.type is None:
        lifted.type = ir.TensorType(lifted.const_value.dtype)  # type: ignore[union-attr]  # made just above
    for _, body in _bodies(graph):
        for place, output in enumerate(body.outputs):
            if output is value:
                node = ir.Node("", "Identity", [lifted])
                node.outputs[0].name = f"{value.name}_output"
                body.append(node)
                body.outputs[place] = node.outputs[0]
    value.replace_all_uses_with(lifted)
    if producer is not None and producer.graph is not None:
        value.name = None
        producer.graph.remove(producer)
    elif isinstance(owner, ir.Graph):
        owner.initializers.pop(str(value.name))
    graph.register_initializer(lifted)


def lift_constants(model: ir.Model, names: Collection[str]) -> None:
    """Make initializers of named Constant nodes of the main graph and of constants of its bodies, in place.

    >>> import onnx.parser
    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) {
    ...     w = Constant<value = float[2] {1, 2}>() y = Mul(x, w)}'''
    >>> model = ir.from_proto(onnx.parser.parse_model(text))
    >>> lift_constants(model, ["w"])
    >>> list(model.graph.initializers)
    ['w']
    """
    graph = model.graph
    for node in list(graph):
        if node.op_type != "Constant" or node.domain or node.outputs[0].name not in names:
            continue
        (value,) = node.outputs
        if value.is_graph_output() or constant_array(value) is None:
            continue
        _lift(graph, value, str(value.name))
    lift_weights(model, names)


def weights_in_bodies(graph: ir.Graph) -> dict[str, ir.Value]:
    """The constants of every body in a graph, initializers and what Constant nodes make, by name.

    Bodies that lie side by side may use a name twice. Such a constant is called by the way to it: the node, the
    attribute, and its name, as in ``if_node/then_branch/w``.
    """
    found = []
    for path, body in _bodies(graph):
        constants = [n.outputs[0] for n in body if n.op_type == "Constant" and not n.domain]
        held = [*body.initializers.values(), *(v for v in constants if constant_array(v) is not None)]
        found += [(path, v) for v in held if v.name]
    counts = Counter(v.name for _, v in found)
    above = _names_of(graph)
    taken = above | {v.name for _, v in found if counts[v.name] == 1}
    named: dict[str, ir.Value] = {}
    for path, value in found:
        name = str(value.name)
        if counts[value.name] > 1 or name in above:
            name = full = f"{path}/{name}"
            again = 1
            while name in taken:
                again += 1
                name = f"{full}_{again}"
            taken.add(name)
        named[name] = value
    return named


def _names_of(graph: ir.Graph) -> set[str | None]:
    """The names of the main graph's values."""
    names = {v.name for v in (*graph.inputs, *graph.initializers.values())}
    return names | {v.name for node in graph for v in node.outputs}


def _bodies(graph: ir.Graph, above: str = "") -> Iterator[tuple[str, ir.Graph]]:
    """Every body in a graph, and the way to it."""
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                path = f"{above}{node.name or node.outputs[0].name}/{attribute.name}"
                yield path, attribute.as_graph()
                yield from _bodies(attribute.as_graph(), f"{path}/")
