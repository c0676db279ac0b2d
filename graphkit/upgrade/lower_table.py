"""The table of rewrites downward, and the tools an entry is written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphkit import dims, dtypes
from graphkit.conversion import attribute_value, constant_array, ir_attribute, ir_tensor
from graphkit.inference import Type, infer
from graphkit.upgrade.adapters import Names, take_over

Lowerer: TypeAlias = "Callable[[ir.Node, Lowering], ir.Node | None]"
Attribute: TypeAlias = "int | float | str | Sequence[int] | Sequence[float] | npt.NDArray[Any] | ir.Attr"

# (operator, version that changed its form) -> what brings a node of that version to the form of the version before. At
# the version that introduced an operator: what says the same without it.
LOWERERS: dict[tuple[str, int], Lowerer] = {}


class Cannot(Exception):  # noqa: N818  # caught by the driver, which gathers every node that cannot be lowered
    """Why a node has no form at the opset that was asked for."""


def lowers(version: int, *operators: str) -> Callable[[Lowerer], Lowerer]:
    """Register a rewrite of ``operators`` as they are from ``version`` on into what they were before it.

    The function changes the node in place and returns it, and the entry of an older version takes it from there; or it
    puts other nodes in its place (``Lowering.replace``) and returns None. Nodes that it makes are in the newest form:
    each is lowered by itself. It raises ``Cannot`` with the reason where the older opset has no way to say the same.
    """

    def register(function: Lowerer) -> Lowerer:
        for operator in operators:
            assert (operator, version) not in LOWERERS, f"two rewrites of {operator} {version}"
            LOWERERS[operator, version] = function
        return function

    return register


class Lowering:
    """Adds nodes before the nodes of one graph while it is walked, and knows types and constants.

    Attributes:
        source: the opset of the model, and of the nodes that entries make.
        target: the opset to reach.
        types: what is known of each value; a value that is missing is of a type that nobody knows.
    """

    def __init__(
        self, source: int, target: int, names: Names, types: dict[ir.Value, Type], lower: Callable[[ir.Node], None]
    ) -> None:
        self.source = source
        self.target = target
        self.names = names
        self.types = types
        self._lower = lower
        self._nodes: list[ir.Node] = []
        self._made: dict[ir.Node, list[ir.Value | None]] = {}
        self._fresh: set[ir.Value] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    @property
    def node(self) -> ir.Node:
        """The node being lowered."""
        return self._nodes[-1]

    @property
    def emitting(self) -> bool:
        """Whether that node was made on the way, and is not one of the model's own."""
        return len(self._nodes) > 1

    def visit(self, node: ir.Node) -> list[ir.Value | None]:
        """Lower a node; the values that stand for its outputs now."""
        self._nodes.append(node)
        try:
            self._lower(node)
        finally:
            self._nodes.pop()
        return self._made.pop(node, list(node.outputs))

    def apply(
        self, operator: str, inputs: Sequence[ir.Value | None], outputs: int = 1, **attributes: Attribute
    ) -> list[ir.Value]:
        """Add a node in its newest form before the one being lowered, lower it too, and return its outputs."""
        given = [ir_attribute(name, value) for name, value in attributes.items()]
        node = self._add(operator, inputs, given, outputs)
        self._infer(node)
        try:
            made = self.visit(node)
        except Cannot as cannot:
            raise Cannot(f"it would need {operator}: {cannot}") from None
        assert all(value is not None for value in made)
        return [value for value in made if value is not None]

    def apply1(self, operator: str, inputs: Sequence[ir.Value | None], **attributes: Attribute) -> ir.Value:
        """``apply`` for a node of one output."""
        return self.apply(operator, inputs, 1, **attributes)[0]

    def _add(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], outputs: int
    ) -> ir.Node:
        node = ir.Node("", operator, inputs, attributes, num_outputs=outputs)
        self.place(node)
        return node

    def place(self, node: ir.Node) -> None:
        """Put a new node before the one being lowered: under a name of its own, and with that one's metadata."""
        top = self._nodes[0]
        label = top.name or next((value.name for value in top.outputs if value.name), None) or top.op_type
        node.name = self.names.fresh(f"{label}/{node.op_type}")
        node.metadata_props.update(top.metadata_props)
        node.meta.update(top.meta)
        for value in node.outputs:
            value.name = self.names.fresh(f"{node.name}:{value.index()}")
            self._fresh.add(value)
        self.node.prepend(node)

    def _infer(self, node: ir.Node) -> None:
        known = [None if value is None else self.types.get(value) for value in node.inputs]
        if any(value is not None and t is None for value, t in zip(node.inputs, known, strict=True)):
            return
        attributes = {a.name: attribute_value(a) for a in node.attributes.values()}
        constant = constant_array(node.outputs[0]) if node.op_type == "Constant" else None
        if constant is not None:
            self.types[node.outputs[0]] = constant_type(np.asarray(constant))
            return
        found = infer(node.op_type, "", self.source, attributes, known, len(node.outputs))
        for value, t in zip(node.outputs, found, strict=True):
            if t is not None:
                self.types[value] = t
                if t.proto is None:
                    value.type = ir.TensorType(ir.DataType(dtypes.to_onnx(t.dtype)))

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> ir.Value:
        """Return a constant, one for all uses of the same one in this graph."""
        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.names.fresh(f"{self._nodes[0].name or self._nodes[0].op_type}/Constant")
            self._constants[key] = self.new_constant(array, name)
        return self._constants[key]

    def new_constant(self, array: npt.NDArray[Any], name: str) -> ir.Value:
        """Return a new constant: a node, or an initializer where the Constant of the opset has no such type."""
        kind = ir.TensorType(ir.DataType(dtypes.to_onnx(array.dtype)))
        top = self._nodes[0]
        if self.target < 9 and array.dtype.kind != "f":
            assert isinstance(top.graph, ir.Graph)
            value = ir.Value(name=name, type=kind, const_value=ir_tensor(array, name))
            top.graph.register_initializer(value)
        else:
            node = ir.Node("", "Constant", [], [ir_attribute("value", array)], num_outputs=1, name=name)
            value = node.outputs[0]
            value.name = self.names.fresh(f"{name}:0")
            value.type = kind
            self.node.prepend(node)
        value.shape = ir.Shape(array.shape)
        self.types[value] = constant_type(array)
        return value

    def scalar_like(self, value: float, like: ir.Value) -> ir.Value:
        """Return ``value`` as a scalar of ``like``'s dtype."""
        return self.constant(value, self.dtype(like))

    # What is known

    def dtype(self, value: ir.Value) -> dtypes.DType:
        """The dtype of a value; ``Cannot`` where nobody knows it."""
        found = self.types.get(value)
        if found is None or found.proto is not None:
            raise Cannot(f"the type of its input '{value.name}' is not known")
        return found.dtype

    def dims(self, value: ir.Value) -> dims.Dims | None:
        """The dims of a value, or None where not even the rank is known."""
        found = self.types.get(value)
        return None if found is None else found.dims

    def rank(self, value: ir.Value) -> int:
        """The rank of a value; ``Cannot`` where nobody knows it."""
        found = self.dims(value)
        if found is None:
            raise Cannot(f"the rank of its input '{value.name}' is not known")
        return len(found)

    def static_dims(self, value: ir.Value) -> tuple[int, ...]:
        """The dims of a value as integers; ``Cannot`` where one is not."""
        found = self.dims(value)
        if found is None or not all(isinstance(extent, int) for extent in found):
            raise Cannot(f"the shape of its input '{value.name}' is not fixed")
        return tuple(extent for extent in found if isinstance(extent, int))

    def array(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """The array that a value holds at every run, None where that is not known."""
        if value is None:
            return None
        array = constant_array(value)
        if array is not None:
            return np.asarray(array)
        found = self.types.get(value)
        if found is None:
            return None
        if found.array is not None:
            return np.asarray(found.array)
        contents = found.contents
        if isinstance(contents, int):
            return np.array(contents, found.dtype)
        if isinstance(contents, tuple) and all(isinstance(extent, int) for extent in contents):
            return np.array(contents, found.dtype)
        return None

    def ints(self, node: ir.Node, index: int, what: str) -> list[int] | None:
        """The integers of an input, None where it is left out; ``Cannot`` where they are computed by the graph."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        array = self.array(value)
        if array is None:
            raise Cannot(f"its {what} are computed by the graph, and are an attribute there")
        return [int(x) for x in array.ravel()]

    # Putting something else in a node's place

    def replace(self, values: Sequence[ir.Value | None]) -> None:
        """Put ``values`` in the place of the node's outputs (None: nobody uses that one) and take the node out."""
        node = self.node
        if self.emitting:  # whoever made it gets the values
            self._made[node] = list(values)
        else:
            taken: set[ir.Value] = set()
            for old, given in zip(node.outputs, values, strict=False):
                new = given
                if new is None:
                    continue
                if new not in self._fresh or new in taken:
                    new = self._add("Identity", [new], [], 1).outputs[0]
                taken.add(new)
                take_over(old, new)
                producer = new.producer()
                if producer is not None:
                    producer.doc_string = node.doc_string
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def constant_type(array: npt.NDArray[Any]) -> Type:
    """The type of a constant, with its contents where they are few integers."""
    contents: Any = None
    if array.dtype in (dtypes.INT64, dtypes.INT32) and array.ndim <= 1 and array.size <= 64:
        contents = tuple(array.tolist()) if array.ndim else int(array)
    return Type(array.dtype, array.shape, contents, array if array.size <= 1024 else None)


def drop_inputs(node: ir.Node, count: int) -> None:
    """Leave the node its first ``count`` inputs."""
    if len(node.inputs) > count:
        node.resize_inputs(count)


def optional_input(node: ir.Node, index: int) -> ir.Value | None:
    """The input at ``index``, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def counted_from_front(axes: Iterable[int], rank: int) -> list[int]:
    """Axes as numbers of 0 or more."""
    return [axis + rank if axis < 0 else axis for axis in axes]
