"""The model while it is being rewritten: what passes ask of it, and the only ways in which they change it.

Everything that must hold whatever a pass does is kept here: the names, order and declared types of inputs and outputs,
unique names, the uses of what is removed, the account of each pass, and the worklist.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphkit.optimizers.facts import Fact, fact_of, subgraphs_of, use_count
from graphkit.optimizers.known import Known, graphs_of
from graphkit.optimizers.report import PassReport

__all__ = ["Context", "graphs_of"]


class Context(Known):
    """One model under optimization."""

    def __init__(self, model: ir.Model, *, training: bool, slack: int, size: int = 0) -> None:
        super().__init__(model, training=training)
        # About how large the file was, in bytes.
        self.size = size
        # How many bytes the constants may grow by in all, beyond what they replace.
        self.slack = slack
        self.budget = slack  # what it was at first: a rule that must decide the same on a second run asks this
        self.account = PassReport()
        # Counts a node's operations for the account of each pass; None where nobody asked for them.
        self.weigh: Callable[[ir.Node], int] | None = None
        self.pending: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._names: Counter[str] = Counter()
        self._lent: set[ir.Node] = set()
        self._owners: dict[ir.Graph, ir.Node] = {}
        for root in graphs_of(model):
            self._enter(root, root)

    def _enter(self, graph: ir.Graph, root: ir.Graph) -> None:
        self._roots[graph] = root
        self._names.update(value.name for value in graph.inputs if value.name)
        self._names.update(list(graph.initializers))
        for node in graph:
            if node.name:
                self._names[node.name] += 1
            self._names.update(value.name for value in node.outputs if value.name)
            for body in subgraphs_of(node):
                self._owners[body] = node
                self._enter(body, root)

    def node_around(self, node: ir.Node, graph: ir.Graph | None) -> ir.Node | None:
        """The node of ``graph`` that is ``node``, or has it in a body; None where it is elsewhere."""
        current: ir.Node | None = node
        while current is not None and current.graph is not graph:
            current = None if current.graph is None else self._owners.get(current.graph)
        return current

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
            self._names[hint] += 1
            return hint
        number = 1
        while f"{hint}_{number}" in self._names:
            number += 1
        self._names[f"{hint}_{number}"] += 1
        return f"{hint}_{number}"

    def take_names(self, graph: ir.Graph) -> None:
        """Note the names that a rewrite of a whole graph made by itself."""
        for node in graph:
            for name in (node.name, *(value.name for value in node.outputs)):
                if name and name not in self._names:
                    self._names[name] = 1

    def rename_moved(self, value: ir.Value) -> None:
        """Give a value that leaves its body another name, if anything else in the model is called so."""
        if value.name and self._names[value.name] > 1:
            self._names[value.name] -= 1
            value.name = self.name(value.name)

    def move_out(self, body: ir.Graph, before: ir.Node) -> None:
        """Move a body's initializers and nodes into the graph around it, just before a node."""
        graph, root = before.graph, self.root(before)
        assert graph is not None
        for name, value in list(body.initializers.items()):
            del body.initializers[name]
            if value.name and self._names[value.name] > 1 and value.const_value is not None:
                self._names[value.name] -= 1
                # Without its tensor: a value hands its name on, and the tensor may be the given model's own.
                tensor, value.const_value = value.const_value, None
                value.name = self.name(name)
                value.const_value = _renamed(tensor, value.name)
            root.register_initializer(value)
        for node in list(body):
            body.remove(node)
            for value in node.outputs:
                self.rename_moved(value)
            graph.insert_before(before, node)
            self.touch((node,))

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
            self.model.ir_version = max(self.model.ir_version, 4)  # before that, every initializer is an input too
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
        self.model.ir_version = max(self.model.ir_version, 4)  # before that, every initializer is an input too
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
        self._names[name] -= 1
        if not self._names[name]:
            del self._names[name]
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
        # The first node made in another's place takes over its name; that one is about to go.
        name = before.name if before not in self._lent or not before.name else self.name(before.name)
        self._lent.add(before)
        made = [_attribute(key, item) for key, item in (attributes or {}).items()]
        node = ir.Node(
            domain,
            operator,
            inputs,
            made,
            num_outputs=outputs,
            name=name or "",
            doc_string=before.doc_string,
            metadata_props=dict(before.metadata_props),
        )
        for value in node.outputs:
            value.name = self.name(hint or f"{before.outputs[0].name or operator}")
        graph.insert_before(before, node)
        self.account.nodes += 1
        self.facts.infer(node)
        if self.weigh is not None:
            self.account.flops += self.weigh(node)
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
                if use_count(value) == 1:  # it became the only use: a rule may have waited for that
                    self.touch(use.node for use in value.uses())

    def remove(self, node: ir.Node) -> bool:
        """Remove a node that nothing reads; False where something does."""
        if any(use_count(value) or value.is_graph_output() for value in node.outputs):
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
        if self.weigh is not None:
            self.account.flops -= self.weigh(node)
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


def _attribute(name: str, item: Any) -> ir.Attr:
    return item if isinstance(item, ir.Attr) else ir.convenience.convert_attribute(name, item)


def _renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    # The serializer writes a tensor's own name, and the tensor may be shared with the model that was given.
    if tensor.name == name:
        return tensor
    if isinstance(tensor, ir.serde.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
        # Written as it was: small integers take a byte each in a typed field, and eight as raw bytes.
        proto = onnx.TensorProto()
        proto.CopyFrom(tensor.raw)
        proto.name = name
        return ir.serde.TensorProtoTensor(proto)
    shape = ir.Shape([int(dim) for dim in tensor.shape if isinstance(dim, int)])
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape, name=name, doc_string=tensor.doc_string)
