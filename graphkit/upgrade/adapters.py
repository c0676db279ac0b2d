"""The table of rewrites, and the tools an entry is written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Adapter: TypeAlias = "Callable[[ir.Node, Rewriter], ir.Node | None]"

# (operator, version that changed its form) -> what brings a node of the version before to that version.
ADAPTERS: dict[tuple[str, int], Adapter] = {}


def adapter(version: int, *operators: str) -> Callable[[Adapter], Adapter]:
    """Register a rewrite of ``operators`` as they were before ``version`` into what they are from it on.

    The function changes the node in place and returns it, and the next version's entry takes it from there; or it puts
    other nodes in its place (``Rewriter.replace``) and returns None. Nodes that it makes are of the working opset
    already: no entry sees them.
    """

    def register(function: Adapter) -> Adapter:
        for operator in operators:
            assert (operator, version) not in ADAPTERS, f"two rewrites of {operator} {version}"
            ADAPTERS[operator, version] = function
        return function

    return register


class Names:
    """Names that no value and no node of the model has yet; looked up when the first one is needed."""

    def __init__(self, graphs: Iterable[ir.Graph | ir.Function]) -> None:
        self._graphs = graphs
        self._taken: set[str] | None = None

    def fresh(self, wanted: str) -> str:
        """Return ``wanted``, or the first of ``wanted_1``, ``wanted_2``, ... that is free."""
        if self._taken is None:
            self._taken = {name for graph in self._graphs for name in _names(graph)}
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def _names(graph: ir.Graph | ir.Function) -> Iterable[str]:
    for nested in (graph, *graph.subgraphs()):
        yield from (value.name for value in nested.inputs if value.name)
        if isinstance(nested, ir.Graph):
            yield from nested.initializers
        for node in nested:
            if node.name:
                yield node.name
            yield from (value.name for value in node.outputs if value.name)


class Rewriter:
    """Adds nodes around the nodes of one graph while it is walked from first to last."""

    def __init__(self, names: Names, shapes: Mapping[ir.Value, ir.Shape]) -> None:
        self.names = names
        self._shapes = shapes
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._node: ir.Node | None = None

    def visit(self, node: ir.Node) -> None:
        """What is added from here on goes before ``node`` and carries its metadata."""
        self._node = node

    @property
    def node(self) -> ir.Node:
        """The node being rewritten."""
        assert self._node is not None
        return self._node

    def apply(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        *,
        name: str | None = None,
        outputs: int = 1,
        dtype: ir.DataType | None = None,
        **attributes: int | float | str | Sequence[int] | ir.Graph | ir.TensorProtocol,
    ) -> tuple[ir.Value, ...]:
        """Add a node of the working opset before the one being rewritten, and return its outputs."""
        label = self.node.name or next((value.name for value in self.node.outputs if value.name), None)
        node = ir.Node(
            "",
            operator,
            inputs,
            ir.convenience.convert_attributes(attributes),
            num_outputs=outputs,
            name=name or self.names.fresh(f"{label or self.node.op_type}/{operator}"),
            metadata_props=dict(self.node.metadata_props),
        )
        for value in node.outputs:
            value.name = self.names.fresh(f"{node.name}:{value.index()}")
            if dtype is not None:
                value.type = ir.TensorType(dtype)
        self.node.prepend(node)
        return tuple(node.outputs)

    def apply1(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        **attributes: int | float | str | Sequence[int] | ir.TensorProtocol,
    ) -> ir.Value:
        """``apply`` for a node of one output."""
        return self.apply(operator, inputs, **attributes)[0]  # type: ignore[arg-type]  # name= and dtype= are not passed

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> ir.Value:
        """Return a constant, one node for all uses of the same one in this graph.

        It is a node, not an initializer: a function body cannot have initializers, and the parameters of a model stay
        the list that they were.
        """
        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            value = self.apply1("Constant", [], value=ir.tensor(array))
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape(array.shape)
            self._constants[key] = value
        return self._constants[key]

    def scalar_like(self, value: float, like: ir.Value) -> ir.Value:
        """Return ``value`` as a scalar of ``like``'s dtype, whether or not that is known now."""
        if like.dtype is not None:
            return self.constant(value, like.dtype.numpy())
        return self.apply1("CastLike", [self.constant(value, np.float32), like])

    def known_dims(self, value: ir.Value) -> list[int | None] | None:
        """The dims of a value, None for each that is symbolic; None where not even the rank is known."""
        shape = self._shapes.get(value) if value.shape is None else value.shape
        return None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]

    def replace(self, values: Sequence[ir.Value | None]) -> None:
        """Put ``values`` in the place of the node's outputs (None: nobody uses that one) and take the node out."""
        node = self.node
        for old, new in zip(node.outputs, values, strict=False):
            if new is not None:
                take_over(old, new)
        for new in values:
            producer = None if new is None else new.producer()
            if producer is not None:
                producer.doc_string = node.doc_string
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let ``new`` be what ``old`` was to everyone: its uses, its place among the graph's outputs, its name and type."""
    new.name = old.name
    new.type = old.type
    new.shape = old.shape
    new.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None


def is_used(node: ir.Node, output: int) -> bool:
    """Whether anyone reads this output of the node."""
    if output >= len(node.outputs):
        return False
    value = node.outputs[output]
    return bool(value.uses()) or value.is_graph_output()


def only_input(node: ir.Node, index: int = 0) -> ir.Value:
    """The input at ``index``, which the operator requires."""
    value = node.inputs[index]
    assert value is not None, f"{node.op_type} without its input {index}"
    return value


def set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    """Set an input, with empty ones before it where the node had fewer."""
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def set_attributes(node: ir.Node, **attributes: int | float | str | Sequence[int]) -> None:
    """Set attributes of the node."""
    for attribute in ir.convenience.convert_attributes(attributes):
        node.attributes.add(attribute)


def take_ints(node: ir.Node, name: str) -> list[int] | None:
    """Remove an attribute of integers and return it; None where the node has none."""
    attribute = node.attributes.pop(name, None)
    return None if attribute is None else list(attribute.as_ints())
