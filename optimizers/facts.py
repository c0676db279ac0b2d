"""What is known of each value before the model runs: dtype, shape, and small integer contents, with symbolic dims.

The pipeline works out its own facts instead of believing the shapes written on intermediate values: people edit the
inputs of a model ("make the batch dynamic") and leave the old shapes inside, and the runtime only warns. What is
declared on graph inputs is checked by the runtime at each run, so that is believed.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.symbolic import Dim, derived, fresh, named

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Fact", "Facts", "Infer", "at_sizes", "broadcast", "infers", "subgraphs_of"]

Shape: TypeAlias = tuple[Dim, ...]
# Integer contents are followed up to this many elements: enough for any shape, axes or sizes.
_MAX_CONTENT: Final = 64
_LIMIT: Final = 2**31
# What exporters write for "unknown", the same for dims that have nothing to do with one another.
_NO_NAMES: Final = ("", "?", "*", "-1", "none", "null", "unk", "unknown", "dynamic", "any", "undefined")
_ARITHMETIC: Final = ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Cast", "ReduceProd", "Size", "Range")
_INTEGERS: Final = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


@dataclass(frozen=True, slots=True)
class Fact:
    """``content`` holds the elements of a small integer tensor of rank 0 or 1, in order."""

    dtype: ir.DataType | None = None
    shape: Shape | None = None
    content: Shape | None = None


UNKNOWN: Final = Fact()
Infer: TypeAlias = "Callable[[Facts, ir.Node], list[Fact] | None]"
_rules: dict[str, Infer] = {}


def infers(*operators: str) -> Callable[[Infer], Infer]:
    """Register how the outputs' facts of some ai.onnx operators follow from the inputs'."""

    def decorate(function: Infer) -> Infer:
        for operator in operators:
            _rules[operator] = function
        return function

    return decorate


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape that shapes broadcast to; a dim that cannot be known is fresh."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    result: list[Dim] = []
    for position in range(1, max((len(shape) for shape in known), default=0) + 1):
        dim: Dim = 1
        for shape in known:
            if position > len(shape) or shape[-position] in (1, dim):
                continue
            other = shape[-position]
            if dim == 1:
                dim = other
            elif isinstance(dim, int) and isinstance(other, int):
                return None  # not broadcastable: the runtime will say so
            elif not isinstance(dim, int):
                # A name beside an integer is 1 or that integer. Two names may each be 1: what they give has a name of
                # its own, the same wherever the two meet.
                pair = " with ".join(sorted((repr(dim), repr(other))))
                dim = other if isinstance(other, int) else derived(f"({pair})")
        result.append(dim)
    return tuple(reversed(result))


def use_count(value: ir.Value) -> int:
    """How many node inputs read a value.

    ``uses()`` copies them all: where 20,000 nodes read one value, and each asks, that is what takes the time.
    """
    uses = getattr(value, "_uses", None)
    return len(value.uses() if uses is None else uses)


def subgraphs_of(node: ir.Node) -> list[ir.Graph]:
    """The bodies that a node holds in its attributes."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.value)
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found.extend(attribute.value)
    return found


class Facts:
    """The facts of one model, filled by ``sweep`` and asked by value."""

    def __init__(self, tensor_of: Callable[[ir.Value], ir.TensorProtocol | None]) -> None:
        self._tensor_of = tensor_of
        self._known: MutableMapping[ir.Value, Fact] = {}
        # Sizes by the names of dims, for who wants numbers: with them, every dim that has no size here is 1.
        self.sizes: Mapping[str, int] | None = None
        self.opset_of: Callable[[ir.Node], int] = lambda _: 21

    def sweep(self, graphs: Iterable[ir.Graph]) -> None:
        """Work out the facts of every value anew, in order; the first graph is the model's, the others functions'."""
        self._known = {}
        for position, graph in enumerate(graphs):
            # The first is the model's own; a function is called with other shapes from other places.
            self._sweep_graph(graph, trusted=position == 0)

    def _sweep_graph(self, graph: ir.Graph, *, trusted: bool) -> None:
        for value in graph.inputs:
            # A body's inputs change from turn to turn (a Loop may even change their shape), whatever is declared.
            self._known[value] = self._declared(value) if trusted else Fact(value.dtype)
        for node in graph:
            for body in subgraphs_of(node):
                self._sweep_graph(body, trusted=False)
            self.infer(node)

    def infer(self, node: ir.Node) -> None:
        """Work out the facts of one node's outputs from its inputs'."""
        rule = _rules.get(node.op_type) if node.domain == "" else None
        found: list[Fact] | None = None
        if rule is not None and not any(attribute.is_ref() for attribute in node.attributes.values()):
            try:
                found = rule(self, node)
            except Exception:  # noqa: BLE001 - a node that breaks its operator's rules: nothing is known of it
                found = None
        elif node.domain == "" and not subgraphs_of(node):
            from graphkit.optimizers.infer_other import infer_by_schema

            found = infer_by_schema(self, node)
        for index, value in enumerate(node.outputs):
            fact = found[index] if found is not None and index < len(found) else UNKNOWN
            if node.domain != "" and value.shape is not None:
                fact = self._declared(value)  # an operator that only its own library knows
            if value.dtype is not None and fact.dtype != value.dtype:
                fact = Fact(value.dtype, fact.shape, fact.content)
            if fact.content is not None and node.op_type in _ARITHMETIC and _too_large(fact.content):
                fact = Fact(fact.dtype, fact.shape)  # an int32 would wrap here
            self._known[value] = fact

    def supposing(self, supposed: Mapping[ir.Value, Fact]) -> Facts:
        """The same facts but for some that are supposed; what is learned there is not learned here."""
        made = Facts(self._tensor_of)
        made._known = ChainMap(dict(supposed), self._known)
        made.opset_of = self.opset_of
        return made

    def __call__(self, value: ir.Value | None) -> Fact:
        """The fact of a value; ``Fact()`` where nothing is known."""
        if value is None:
            return UNKNOWN
        fact = self._known.get(value)
        if fact is None:
            fact = self._of_constant(value)
            self._known[value] = fact
        return fact

    def learn(self, value: ir.Value, fact: Fact) -> None:
        """Note the fact of a value that a rewrite made."""
        self._known[value] = fact

    def forget(self, value: ir.Value) -> None:
        """Drop what is known of a value that was removed."""
        self._known.pop(value, None)

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The constant tensor behind a value, if it is constant."""
        return None if value is None else self._tensor_of(value)

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The integers a value is known to hold, or None."""
        content = self(value).content
        if content is None:
            return None
        known = tuple(dim for dim in content if isinstance(dim, int))
        return known if len(known) == len(content) else None

    def _of_constant(self, value: ir.Value) -> Fact:
        tensor = self._tensor_of(value)
        return fact_of(tensor) if tensor is not None else self._declared(value)

    def _declared(self, value: ir.Value) -> Fact:
        fact = _declared(value)
        if self.sizes is None or fact.shape is None:
            return fact
        return Fact(fact.dtype, tuple(at_sizes(dim, self.sizes) for dim in fact.shape))


def fact_of(tensor: ir.TensorProtocol) -> Fact:
    """The fact of a constant tensor."""
    shape = tuple(int(dim) for dim in tensor.shape if isinstance(dim, int))
    content: Shape | None = None
    if tensor.dtype in _INTEGERS and len(shape) <= 1 and tensor.size <= _MAX_CONTENT:
        content = tuple(int(item) for item in np.asarray(tensor.numpy()).reshape(-1))
    return Fact(tensor.dtype, shape, content)


def at_sizes(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dim as a number, where each name has its size; what has none is 1."""
    if isinstance(dim, int):
        return dim
    return sum(count * math.prod(sizes.get(name_of(atom), 1) for atom in monomial) for monomial, count in dim.terms)


def _too_large(content: Shape) -> bool:
    return any(isinstance(item, int) and not -_LIMIT <= item < _LIMIT for item in content)


def _declared(value: ir.Value) -> Fact:
    if value.shape is None or not isinstance(value.type, ir.TensorType):
        return Fact(value.dtype)
    dims: list[Dim] = []
    for dim in value.shape:
        if isinstance(dim, int):
            dims.append(dim if dim >= 0 else fresh())  # some exporters write -1 for a dim that they do not know
        else:
            dims.append(fresh() if dim.value is None or dim.value.lower() in _NO_NAMES else named(_atom(dim.value)))
    return Fact(value.dtype, tuple(dims))


def _atom(name: str) -> str:
    # A name like "?1" or "N + 1" must not be taken for what is called so here.
    return name if name.isidentifier() else f"'{name}"


def name_of(atom: str) -> str:
    """The name of the dimension that an atom stands for."""
    return atom.removeprefix("'")


# The rules themselves register on import.
from graphkit.optimizers import (  # noqa: E402 - they need the names above
    infer_control,  # noqa: F401
    infer_elementwise,  # noqa: F401
    infer_sequences,  # noqa: F401
    infer_shapes,  # noqa: F401
    infer_windows,  # noqa: F401
)
