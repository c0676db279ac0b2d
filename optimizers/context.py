"""The model while it is being rewritten: what passes ask of it, and the only ways in which they change it.

Everything that must hold whatever a pass does is kept here: the names, order and declared types of inputs and outputs,
unique names, the uses of what is removed, the account of each pass, and the worklist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.facts import Fact, Facts, fact_of, subgraphs_of
from graphkit.optimizers.report import PassReport
from graphkit.optimizers.symbolic import Dim

__all__ = ["RANDOM", "Context", "graphs_of", "is_pure"]

# What draws random numbers. Dropout does so only in training mode, see ``is_pure``.
RANDOM: Final = (
    *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"),
)
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
# Domains whose operators are known to compute the same outputs from the same inputs.
_PURE_DOMAINS: Final = ("", "com.microsoft", "ai.onnx.ml")


def is_pure(node: ir.Node) -> bool:
    """Whether a node computes the same outputs from the same inputs at each run."""
    if node.domain not in _PURE_DOMAINS or node.op_type in RANDOM:
        return False
    if node.op_type == "Dropout":
        return len(node.inputs) < 3 or node.inputs[2] is None
    if node.domain == "com.microsoft" and ("Dropout" in node.op_type or "Random" in node.op_type):
        return False
    return all(is_pure(inner) for body in subgraphs_of(node) for inner in body)


def graphs_of(model: ir.Model) -> list[ir.Graph]:
    """The outermost graphs: the model's own and each function's."""
    return [model.graph, *(function.graph for function in model.functions.values())]


class Context:
    """One model under optimization."""

    def __init__(self, model: ir.Model, *, training: bool, slack: int) -> None:
        self.model = model
        self.training = training
        # How many bytes the constants may grow by in all, beyond what they replace.
        self.slack = slack
        self.account = PassReport()
        self.pending: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._roots: dict[ir.Graph, ir.Graph] = {}
        self._names: set[str] = set()
        self._arrays: dict[ir.Value, np.ndarray[Any, Any]] = {}
        self._made: set[ir.Value] = set()
        self._opsets: dict[ir.Graph, int] = {}
        self._pure: dict[ir.Node, bool] = {}
        for function in model.functions.values():
            self._opsets[function.graph] = function.opset_imports.get("", model.opset_imports.get("", 1))
        self._opsets[model.graph] = model.opset_imports.get("", 1)
        for root in graphs_of(model):
            self._enter(root, root)
        self.facts = Facts(self.tensor)
        self.facts.opset_of = self.opset

    def _enter(self, graph: ir.Graph, root: ir.Graph) -> None:
        self._roots[graph] = root
        self._names.update(value.name for value in graph.inputs if value.name)
        self._names.update(graph.initializers)
        for node in graph:
            if node.name:
                self._names.add(node.name)
            self._names.update(value.name for value in node.outputs if value.name)
            for body in subgraphs_of(node):
                self._enter(body, root)

    # Asking

    def graphs(self) -> list[ir.Graph]:
        """The model's graph and each function's."""
        return graphs_of(self.model)

    def root(self, node: ir.Node) -> ir.Graph:
        """The outermost graph around a node."""
        assert node.graph is not None
        return self._roots[node.graph]

    def opset(self, node: ir.Node) -> int:
        """The version of ai.onnx that a node is written in."""
        return self._opsets[self.root(node)]

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor a value is at every run: an initializer that no caller may override, or a Constant's."""
        if value is None:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else value.const_value
        node = value.producer()
        if node is None or node.op_type != "Constant" or node.domain != "":
            return None
        return _constant_attribute(node)

    def was_made(self, value: ir.Value) -> bool:
        """Whether the pipeline made this initializer, so that it cannot be one of the model's own weights."""
        return value in self._made

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether a constant may be a weight that training changes: in that case its value is not to be used."""
        if not self.training or not value.is_initializer() or value in self._made:
            return False
        tensor = value.const_value
        return tensor is None or (tensor.dtype in _FLOATS and tensor.size > 0 and len(tensor.shape) > 0)

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether passes may use the value's number: it is constant, and no parameter that is being trained."""
        return value is not None and self.tensor(value) is not None and not self.is_parameter(value)

    def array(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """The numbers of a constant that passes may use, or None."""
        if value is None or not self.is_constant(value):
            return None
        known = self._arrays.get(value)
        if known is None:
            tensor = self.tensor(value)
            assert tensor is not None
            if tensor.dtype == ir.DataType.STRING:
                return None
            known = np.asarray(tensor.numpy())
            if known.nbytes <= 4096:
                self._arrays[value] = known
        return known

    def scalar(self, value: ir.Value | None) -> float | int | bool | None:
        """The number that a constant of one element holds, or None."""
        if value is None or (tensor := self.tensor(value)) is None or tensor.size != 1:
            return None
        array = self.array(value)
        return None if array is None else array.reshape(-1)[0].item()

    def shape(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The shape of a value, symbolic where it must be."""
        return self.facts(value).shape

    def rank(self, value: ir.Value | None) -> int | None:
        """The rank of a value."""
        shape = self.facts(value).shape
        return None if shape is None else len(shape)

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The dtype of a value."""
        return self.facts(value).dtype

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The integers a value is known to hold."""
        return self.facts.ints(value)

    def pure(self, node: ir.Node) -> bool:
        """``is_pure``, remembered."""
        known = self._pure.get(node)
        if known is None:
            known = self._pure[node] = is_pure(node)
        return known

    @staticmethod
    def only_use(value: ir.Value) -> bool:
        """Whether one node input reads the value, and no graph gives it out."""
        return len(value.uses()) == 1 and not value.is_graph_output()

    # Changing

    def touch(self, nodes: Iterable[ir.Node]) -> None:
        """Put nodes on the worklist."""
        for node in nodes:
            if node not in self._queued:
                self._queued.add(node)
                self.pending.append(node)

    def next_node(self) -> ir.Node | None:
        """Take the next node off the worklist, skipping those removed since."""
        while self.pending:
            node = self.pending.popleft()
            self._queued.discard(node)
            if node.graph is not None:
                return node
        return None

    def can_replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Whether ``replace`` would succeed: a value that a graph gives out must keep its public name."""
        if old is new:
            return False
        if not old.is_graph_output():
            return True
        producer = new.producer()
        return (
            producer is not None
            and producer.graph is old.graph
            and not new.is_graph_output()
            and not new.is_initializer()
        )

    def replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Let everything that reads ``old`` read ``new``; False, and nothing done, where that cannot be."""
        if not self.can_replace(old, new):
            return False
        for node, index in old.uses():
            node.replace_input_with(index, new)
            self.touch((node,))
        if old.is_graph_output():
            self._give_out(old, new)
        for value in (old, new):
            producer = value.producer()
            if producer is not None:
                self.touch((producer,))
        self.touch(use.node for use in new.uses())
        return True

    def _give_out(self, old: ir.Value, new: ir.Value) -> None:
        graph = old.graph
        assert graph is not None
        name, old.name = old.name, self.name(f"{old.name}_before")
        new.name = name
        new.type, new.shape, new.doc_string = old.type, old.shape, old.doc_string
        new.metadata_props.update(old.metadata_props)
        for index, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[index] = new

    def name(self, hint: str) -> str:
        """A name that nothing in the model has, made from ``hint``."""
        if hint and hint not in self._names:
            self._names.add(hint)
            return hint
        number = 1
        while f"{hint}_{number}" in self._names:
            number += 1
        self._names.add(f"{hint}_{number}")
        return f"{hint}_{number}"

    def constant(
        self, array: np.ndarray[Any, Any], hint: str, *, near: ir.Node, origin: Sequence[str] = ()
    ) -> ir.Value:
        """A new constant that ``near`` can read; ``origin`` names the weights that it was computed from."""
        root = self.root(near)
        name = self.name(hint)
        note = f"from {', '.join(origin)}" if origin else None
        tensor = ir.Tensor(np.asarray(array, order="C"), name=name, doc_string=note)
        self.account.bytes += tensor.nbytes
        if root is self.model.graph:
            value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
            root.register_initializer(value)
            self._made.add(value)
        else:
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=self.name(f"{name}_node"))
            value = node.outputs[0]
            value.name, value.type, value.shape = name, ir.TensorType(tensor.dtype), tensor.shape
            assert near.graph is not None
            near.graph.insert_before(near, node)
            self.account.nodes += 1
            self._roots.setdefault(near.graph, root)
        self.facts.learn(value, fact_of(tensor))
        return value

    def adopt(self, tensor: ir.TensorProtocol, like: ir.Value) -> ir.Value:
        """Make a tensor that a node held an initializer of the model, without copying it."""
        name = self.name(like.name or "constant")
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape([int(dim) for dim in tensor.shape if isinstance(dim, int)]),
            const_value=_renamed(tensor, name),
            doc_string=like.doc_string,
        )
        self.model.graph.register_initializer(value)
        self._made.add(value)
        self.facts.learn(value, self.facts(like))
        return value

    def replace_by_constant(self, old: ir.Value, array: np.ndarray[Any, Any], origin: Sequence[str] = ()) -> bool:
        """Let a constant stand for ``old``; False where ``old`` is given out by a body or function."""
        node = old.producer()
        assert node is not None
        given_out = old.is_graph_output()
        if given_out and old.graph is not self.model.graph:
            return False
        if not given_out:
            return self.replace(old, self.constant(array, old.name or "constant", near=node, origin=origin))
        graph, name = self.model.graph, old.name
        positions = [index for index, value in enumerate(graph.outputs) if value is old]
        assert name is not None
        old.name = self.name(f"{name}_before")
        self._names.discard(name)
        new = self.constant(array, name, near=node, origin=origin)
        new.type, new.shape, new.doc_string = old.type, old.shape, old.doc_string
        for use, index in old.uses():
            use.replace_input_with(index, new)
            self.touch((use,))
        for index in positions:
            graph.outputs[index] = new
        return True

    def add(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        before: ir.Node,
        hint: str = "",
        outputs: int = 1,
        domain: str = "",
    ) -> tuple[ir.Value, ...]:
        """Add a node just before another, which lends it its name, documentation and metadata."""
        graph = before.graph
        assert graph is not None
        made = [ir.convenience.convert_attribute(key, item) for key, item in (attributes or {}).items()]
        node = ir.Node(
            domain,
            operator,
            inputs,
            made,
            num_outputs=outputs,
            name=self.name(before.name or f"{operator}_node"),
            doc_string=before.doc_string,
            metadata_props=dict(before.metadata_props),
        )
        for value in node.outputs:
            value.name = self.name(hint or f"{before.outputs[0].name or operator}")
        graph.insert_before(before, node)
        self.account.nodes += 1
        self.facts.infer(node)
        self.touch((node,))
        return tuple(node.outputs)

    def set_inputs(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
        """Give a node other inputs, and look at it again."""
        before = [value for value in node.inputs if value is not None]
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            if node.inputs[index] is not value:
                node.replace_input_with(index, value)
        self.touch((node,))
        self._touch_producers(before)

    def _touch_producers(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            producer = value.producer()
            if producer is not None:
                self.touch((producer,))
            if len(value.uses()) == 1:  # it became the only use: a rule may have waited for that
                self.touch(use.node for use in value.uses())

    def remove(self, node: ir.Node) -> bool:
        """Remove a node that nothing reads; False where something does."""
        if any(value.uses() or value.is_graph_output() for value in node.outputs):
            return False
        read = [value for value in node.inputs if value is not None]
        self._detach(node)
        graph = node.graph
        assert graph is not None
        graph.remove(node)
        self._touch_producers(read)
        return True

    def _detach(self, node: ir.Node) -> None:
        self.account.nodes -= 1
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        for value in node.outputs:
            self.facts.forget(value)
        for body in subgraphs_of(node):
            while body.outputs:
                body.outputs.pop()
            for inner in reversed(body):
                self._detach(inner)

    def learn(self, value: ir.Value, fact: Fact) -> None:
        """Note the fact of a value."""
        self.facts.learn(value, fact)


def _renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    # The serializer writes a tensor's own name, and the tensor may be shared with the model that was given.
    if tensor.name == name:
        return tensor
    shape = ir.Shape([int(dim) for dim in tensor.shape if isinstance(dim, int)])
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape, name=name, doc_string=tensor.doc_string)


def _constant_attribute(node: ir.Node) -> ir.TensorProtocol | None:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return attribute.as_tensor()
        if name == "value_float":
            return ir.tensor(np.array(attribute.as_float(), np.float32))
        if name == "value_floats":
            return ir.tensor(np.array(attribute.as_floats(), np.float32))
        if name == "value_int":
            return ir.tensor(np.array(attribute.as_int(), np.int64))
        if name == "value_ints":
            return ir.tensor(np.array(attribute.as_ints(), np.int64))
    return None
