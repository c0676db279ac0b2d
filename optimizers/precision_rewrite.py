"""Write a model's chosen nodes in half precision, with as few casts as that takes; and the same model to be checked.

A value has one type, that of the node which makes it. Where a reader needs the other, one Cast behind the value serves
all of them, in bodies too. Constants are converted in place. Loop states and everything that a control-flow operator
reads stay float32; what it gives out is half where every branch makes it so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.modelfile.protos import every_graph, every_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.precision_operators import EXACT, UNTYPED, half_slots
from graphkit.optimizers.precision_plan import CONTROL, constant_of, is_float32

__all__ = ["Halver", "emulated"]

# What constants are in half precision, with the tensors they come from, by the tensors' ids.
Arrays = dict[int, tuple[ir.TensorProtocol, np.ndarray[Any, Any]]]

_FLOAT: Final = ir.DataType.FLOAT
# A constant that some readers want in each type is written twice up to this size, and cast above.
_COPIED: Final = 1024


class Halver:
    """One rewriting of one model, in place; ``converted`` are the numbers of the nodes that become half."""

    def __init__(
        self,
        ctx: Context,
        half: ir.DataType,
        converted: Collection[int],
        *,
        keep_io: bool,
        arrays: Arrays | None = None,
    ) -> None:
        self.ctx = ctx
        self.model = ctx.model
        self.half = half
        self.keep_io = keep_io
        self.casts = 0
        self._arrays: Arrays = {} if arrays is None else arrays
        nodes = list(every_node(self.model.graph))
        self._half_nodes = {nodes[number] for number in converted}
        self._slots = {node: half_slots(node, half, ctx.opset(node)) or (set(), set()) for node in self._half_nodes}
        self._stored: set[ir.Value] = set()
        self._cast: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        """Rewrite the model."""
        graph = self.model.graph
        nodes = list(every_node(graph))
        self._store_inputs()
        self._store_outputs_of(graph)
        for each in list(every_graph(graph)):
            for value in list(each.initializers.values()):
                self._store_constant(value)
        for node in nodes:
            if node.op_type == "Constant" and node.domain == "":
                self._store_constant(node.outputs[0])
        for value in self._stored:
            value.type = ir.TensorType(self.half, denotation=value.type.denotation if value.type else None)
        for node in nodes:
            self._connect(node)
        self._give_out()
        for value, _ in self._cast:
            producer = value.producer()
            if producer is not None and producer.op_type == "Cast" and producer.graph is not None:
                self.ctx.remove(producer)  # where nothing reads it any more

    # What each value is stored as

    def _store_inputs(self) -> None:
        if self.keep_io:
            return
        for value in self.model.graph.inputs:
            if is_float32(value) and not value.is_initializer():
                self._stored.add(value)

    def _store_outputs_of(self, graph: ir.Graph) -> None:
        for node in graph:
            bodies = subgraphs_of(node)
            for body in bodies:
                self._store_outputs_of(body)
            if node in self._half_nodes:
                outputs = self._slots[node][1]
                self._stored.update(v for i, v in enumerate(node.outputs) if i in outputs and is_float32(v))
                if node.op_type == "ConstantOfShape":
                    self._fill(node)
            elif bodies:
                self._stored.update(self._given_half(node, bodies))

    def _given_half(self, node: ir.Node, bodies: list[ir.Graph]) -> list[ir.Value]:
        """The outputs of a control-flow operator that every branch makes in half precision."""
        if node.domain != "" or node.op_type not in ("If", "Loop", "Scan"):
            return []
        first, skipped = 0, 0
        if node.op_type == "Loop":
            first, skipped = len(node.inputs) - 2, 1
        elif node.op_type == "Scan":
            scanned = node.attributes.get_int("num_scan_inputs", 0)
            first = len(node.inputs) - scanned
        found = []
        for index in range(first, len(node.outputs)):
            inner = [body.outputs[index + skipped] for body in bodies]
            own = all(value in self._stored and value.graph is body for value, body in zip(inner, bodies, strict=True))
            if own and is_float32(node.outputs[index]):
                found.append(node.outputs[index])
        return found

    def _fill(self, node: ir.Node) -> None:
        attribute = node.attributes.get("value")
        number = np.zeros(1, np.float32) if attribute is None else attribute.value.numpy()
        node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.asarray(number).astype(self.half.numpy())))

    def _store_constant(self, value: ir.Value) -> None:
        tensor = constant_of(value, ir_version=self.model.ir_version)
        overridable = tensor is None and value.is_initializer() and value.is_graph_input()
        if overridable and not self.keep_io:
            tensor = value.const_value
        if tensor is None or tensor.dtype != _FLOAT:
            return
        wants = [self._wants_half(use.node, use.idx) for use in value.uses() if use.node.op_type not in UNTYPED]
        if not any(wants) or (value.is_graph_output() and not all(wants)):
            return
        if all(wants) and not value.is_graph_output():
            self._replace(value, self._rounded(tensor))
            self._stored.add(value)
        elif tensor.size <= _COPIED and not overridable and self.model.ir_version >= 4:
            reader = next(use.node for use in value.uses() if self._wants_half(use.node, use.idx))
            copy = self.ctx.constant(self._rounded(tensor), f"{value.name}_{self.half.name.lower()}", near=reader)
            self._stored.add(copy)
            self._cast[value, self.half] = copy

    def _replace(self, value: ir.Value, array: np.ndarray[Any, Any]) -> None:
        producer = value.producer()
        if producer is not None:
            producer.attributes.clear()
            producer.attributes["value"] = ir.AttrTensor("value", ir.Tensor(array))
            return
        old = value.const_value
        assert old is not None
        made = ir.Tensor(array, name=value.name, doc_string=old.doc_string)
        made.metadata_props.update(old.metadata_props)
        value.const_value = made

    def _rounded(self, tensor: ir.TensorProtocol) -> np.ndarray[Any, Any]:
        known = self._arrays.get(id(tensor))
        if known is None:
            with np.errstate(all="ignore"):
                known = tensor, np.asarray(tensor.numpy()).astype(self.half.numpy())
            self._arrays[id(tensor)] = known  # with the tensor, which keeps its id its own
        return known[1]

    def _wants_half(self, node: ir.Node, index: int) -> bool:
        if node.op_type == "Cast" and node.domain == "":
            return False
        return node in self._half_nodes and index in self._slots[node][0]

    # Connecting

    def _connect(self, node: ir.Node) -> None:
        if node.op_type in UNTYPED or (node.op_type == "Cast" and node.domain == ""):
            return
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if self._wants_half(node, index):
                if is_float32(value):
                    node.replace_input_with(index, self._as(value, self.half))
            elif value in self._stored:
                node.replace_input_with(index, self._as(value, _FLOAT))
        if node.op_type in CONTROL and node.domain == "":
            for body in subgraphs_of(node):
                self._connect_body(node, body)

    def _connect_body(self, node: ir.Node, body: ir.Graph) -> None:
        skipped = 1 if node.op_type == "Loop" else 0
        for index, value in enumerate(body.outputs):
            outer = node.outputs[index - skipped] if index >= skipped else None
            if value in self._stored and (outer is None or outer not in self._stored):
                body.outputs[index] = self._as(value, _FLOAT)

    def _as(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in another type: what it was made of, or one Cast behind it."""
        known = self._cast.get((value, dtype))
        if known is not None:
            return known
        source = value
        producer = value.producer()
        if producer is not None and producer.op_type == "Cast" and producer.domain == "" and dtype == self.half:
            before = producer.inputs[0]
            if before is not None and before.dtype == dtype:
                self._cast[value, dtype] = before
                return before
            if before is not None and before.dtype not in (None, ir.DataType.STRING):
                source = before  # which is rounded once then, and not twice
        made = ir.Node("", "Cast", [source], [ir.AttrInt64("to", int(dtype))], name=self.ctx.name(f"{value.name}_cast"))
        result = made.outputs[0]
        result.name = self.ctx.name(f"{value.name}_{dtype.name.lower()}")
        result.type, result.shape = ir.TensorType(dtype), value.shape
        self._insert(made, value)
        self.casts += 1
        self._cast[value, dtype] = result
        return result

    def _insert(self, made: ir.Node, value: ir.Value) -> None:
        producer = value.producer()
        if producer is not None:
            assert producer.graph is not None
            producer.graph.insert_after(producer, made)
            return
        graph = value.graph
        assert isinstance(graph, ir.Graph)
        first = next(iter(graph), None)
        if first is None:
            graph.append(made)
        else:
            graph.insert_before(first, made)

    def _give_out(self) -> None:
        graph = self.model.graph
        for value in dict.fromkeys(graph.outputs):
            if self.keep_io and value in self._stored:
                self._swap(value, self._as(value, _FLOAT))
            elif not self.keep_io and is_float32(value) and not value.is_graph_input() and not value.is_initializer():
                self._swap(value, self._as(value, self.half))

    def _swap(self, old: ir.Value, new: ir.Value) -> None:
        """Let ``new`` be the output that ``old`` was, under its name."""
        graph = self.model.graph
        name, old.name = old.name, self.ctx.name(f"{old.name}_before")
        new.name = name
        new.doc_string, new.shape = old.doc_string, old.shape
        new.metadata_props.update(old.metadata_props)
        for index, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[index] = new


def emulated(ctx: Context, half: ir.DataType) -> None:
    """Turn a model of ``half`` into one of float32 that rounds where it did: every half value, after it was computed.

    ONNX Runtime's CPU provider computes float16 nodes in float32 without rounding in between, and has next to no
    bfloat16; this runs there and gives what a kernel gives that accumulates in float32 and stores half.
    """
    graph = ctx.model.graph
    for node in list(every_node(graph)):
        was_half = [value for value in node.outputs if value.dtype == half and isinstance(value.type, ir.TensorType)]
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref() and attribute.value.dtype == half:
                node.attributes[name] = ir.AttrTensor(name, ir.Tensor(attribute.value.numpy().astype(np.float32)))
            elif name == "to" and node.op_type == "Cast" and attribute.value == int(half):
                node.attributes[name] = ir.AttrInt64("to", int(_FLOAT))
        for value in was_half:
            value.type = ir.TensorType(_FLOAT)
            if node.op_type not in EXACT and node.op_type != "Constant" and not subgraphs_of(node):
                _round(ctx, value, half)
    for each in every_graph(graph):
        for value in (*each.inputs, *each.initializers.values()):
            if value.const_value is not None and value.const_value.dtype == half:
                value.const_value = ir.Tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            if value.dtype == half:
                value.type = ir.TensorType(_FLOAT)
                if each is graph and not value.is_initializer():
                    _round(ctx, value, half)


def _round(ctx: Context, value: ir.Value, half: ir.DataType) -> None:
    uses = value.uses()
    # The runtime may take a pair of casts for nothing; the node between them keeps them apart.
    down = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(half))])
    between = ir.Node("", "Identity", [down.outputs[0]])
    up = ir.Node("", "Cast", [between.outputs[0]], [ir.AttrInt64("to", int(_FLOAT))])
    producer = value.producer()
    graph = value.graph if producer is None else producer.graph
    assert isinstance(graph, ir.Graph)
    if producer is not None:
        graph.insert_after(producer, [down, between, up])
    elif (first := next(iter(graph), None)) is not None:
        graph.insert_before(first, [down, between, up])
    for node in (down, between, up):
        node.name = ctx.name(f"{value.name}_round")
        node.outputs[0].name = ctx.name(f"{value.name}_rounded")
    for node, index in uses:
        node.replace_input_with(index, up.outputs[0])
    if producer is not None and value.is_graph_output():
        name, value.name = value.name, ctx.name(f"{value.name}_before")
        up.outputs[0].name = name
        up.outputs[0].type, up.outputs[0].shape = ir.TensorType(_FLOAT), value.shape
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = up.outputs[0]
