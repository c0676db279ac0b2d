"""Graph: write each operator down as a node of an onnx_ir graph.

A Graph is made empty by a trace, or around the graph of a model that exists (``adopt``); either way its nodes are
Records, and what is applied while it is current is appended to it. Eager tensors that a traced function uses become
initializers, each object once: two parameters with equal values stay two, one parameter used twice stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphkit import dims, dtypes, schemas
from graphkit.conversion import attribute_value, captured_values, constant_array, ir_attribute, ir_tensor, literal_key
from graphkit.core import Record, Tensor, as_tensor
from graphkit.dims import Dims
from graphkit.errors import OperatorError, TraceError
from graphkit.inference import Misfit, Type, from_proto, infer, type_proto
from graphkit.interpreter import Attributes
from graphkit.source import here, user_location
from graphkit.statistics import keep_apart

STOP = "graphkit.stop_gradient"
_stopping: ContextVar[bool] = ContextVar("graphkit_stopping", default=False)


@contextmanager
def stopping(on: bool) -> Iterator[None]:
    """Mark the nodes made in the block as ones through which no gradient flows, here and in the file."""
    token = _stopping.set(on)
    try:
        yield
    finally:
        _stopping.reset(token)


class Graph:
    """The interpreter that records.

    Attributes:
        graph: the onnx_ir graph that nodes are appended to.
        opset: the ai.onnx opset of the nodes, raised when an operator needs a newer one.
        parent: the enclosing Graph, for the body of an If, Loop or Scan.
        updates: leaf tensors that were assigned to, with the traced value of their next state.
        awaited: the gradients that what is computed again next, by gk.checkpoint, must not come before.
        repeating: whether a function is being written for the second time.
    """

    def __init__(
        self, graph: ir.Graph | None = None, *, opset: int = schemas.WORKING_OPSET,
        parent: Graph | None = None, names: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph if graph is not None else ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main")
        self.parent = parent
        self._opset = self.graph.opset_imports.get("", opset)
        self.names = dict(names or {})
        self.updates: dict[int, tuple[Tensor, Tensor]] = {}
        self.awaited: list[Tensor] = []
        self.repeating = False
        self.parameters: dict[str, Tensor] = {}
        self.initializer_names: dict[int, str] = {}
        self.strict = True  # whether inputs that cannot go together are refused when a node is made
        self._types: dict[ir.Value, Type] = {}
        self._tensors: dict[ir.Value, Tensor] = {}
        self._captured: dict[int, tuple[Tensor, Tensor]] = {}
        self._literals: dict[Any, Tensor] = {}
        self._kept: list[Tensor] = []  # large literals are told apart by id, which is theirs while they live
        self._reserved: set[str] = set()
        self._dims: dict[tuple[ir.Value, int], Tensor] = {}
        self._used: set[str] = parent._used if parent is not None else set()
        self._counts: dict[str, int] = parent._counts if parent is not None else {}

    @property
    def root(self) -> Graph:
        """The outermost graph, which holds the initializers."""
        return self if self.parent is None else self.parent.root

    @property
    def opset(self) -> int:
        return self.root._opset

    # Reading a graph that exists

    @classmethod
    def adopt(cls, model: ir.Model) -> Graph:
        """A Graph around a model's main graph, with a Record for every node and types inferred afresh."""
        keep_apart(model.graph)
        self = cls.around(model)
        for graph_value in (*model.graph.inputs, *model.graph.initializers.values()):
            self._types[graph_value] = self._declared(graph_value)
        for node in model.graph:
            self.read(node)
        return self

    @classmethod
    def around(cls, model: ir.Model) -> Graph:
        """A Graph around a model's main graph as it is: to append to, not to differentiate; written types hold."""
        self = cls(model.graph, opset=model.opset_imports.get("", schemas.WORKING_OPSET))
        self.strict = False
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            self._used.add(node.name or "")
            self._used.update(v.name for v in node.outputs if v.name)
            for a in node.attributes.values():
                if a.type == ir.AttributeType.GRAPH:
                    body = a.as_graph()
                    self._used.update(v.name for v in (*body.inputs, *body.initializers.values()) if v.name)
        self._used.update(v.name for v in (*model.graph.inputs, *model.graph.initializers.values()) if v.name)
        return self

    def read(self, node: ir.Node) -> Record:
        """The Record of a node that is in the graph already; its inputs' tensors exist."""
        attributes = {a.name: attribute_value(a) for a in node.attributes.values()}
        inputs = [None if v is None else self.tensor(v) for v in node.inputs]
        outer = captured_values(node)
        self._infer(node, attributes, [*inputs], outer)
        made = [self.tensor(v) for v in node.outputs]
        record = Record(
            node.op_type, node.domain, [*inputs, *(self.tensor(v) for v in outer)], attributes, made,
            node.meta.get("graphkit.source"), name=node.name or (node.outputs[0].name if node.outputs else "") or "",
            captured=len(outer),
        )  # fmt: skip
        record.stopped = STOP in node.metadata_props
        for index, t in enumerate(made):
            t.record, t.index = record, index
        return record

    def _declared(self, value: ir.Value) -> Type:
        array = constant_array(value)
        if array is not None and not value.is_graph_input():
            return _constant_type(array)
        if value.type is None:
            return Type(dtypes.FLOAT32, None)
        proto = onnx.TypeProto()
        ir.serde.serialize_type_into(proto, value.type)
        if value.shape is not None and isinstance(value.type, ir.TensorType):
            ir.serde.serialize_shape_into(proto, value.shape)
        return from_proto(proto) or Type(dtypes.FLOAT32, None)

    # Tensors and their types

    def tensor(self, value: ir.Value) -> Tensor:
        """The Tensor of a value of this graph or of one around it."""
        found = self._tensors.get(value)
        if found is None and self.parent is not None and value.graph is not self.graph:
            return self.parent.tensor(value)
        if found is None:
            found = self._tensors[value] = Tensor(None, name=value.name, value=value, graph=self)
        return found

    def type_of(self, value: ir.Value) -> Type:
        found = self._types.get(value)
        if found is None:
            if self.parent is not None and value.graph is not self.graph:
                return self.parent.type_of(value)
            found = self._types[value] = self._declared(value)
        return found

    def dtype_of(self, value: ir.Value) -> dtypes.DType:
        return self.type_of(value).dtype

    def dims_of(self, value: ir.Value) -> Dims | None:
        return self.type_of(value).dims

    def declare(self, t: Tensor, known: Dims | None) -> None:
        """State the dims of a traced value that its node's inference cannot see, but that hold by construction."""
        value = t.value
        if value is None or known is None or t.graph is not self:
            return
        type_ = self.type_of(value)
        if type_.dims is None or any(dims.is_anonymous(d) for d in type_.dims):
            type_.dims = known
            if value.graph is self.graph:  # what is known of an outer value in here need not hold where it is made
                value.shape = _ir_shape(known)

    def array_of(self, t: Tensor) -> Any:
        """The values of a tensor that every run gives the same, else None."""
        if t.value is None:
            return t._array
        known = self.type_of(t.value)
        if known.array is not None:
            return known.array
        if isinstance(known.contents, int):
            return np.array(known.contents, dtype=known.dtype)
        if isinstance(known.contents, tuple) and all(isinstance(c, int) for c in known.contents):
            return np.array(known.contents, dtype=known.dtype)
        return constant_array(t.value)

    def input(self, name: str, dtype: Any, shape: Sequence[int | str | None] | None) -> Tensor:
        """A new input of the graph."""
        wanted = dtypes.as_dtype(dtype)
        known = None if shape is None else tuple(dims.anonymous() if d is None else d for d in shape)
        value = ir.Value(
            name=self.unique(name), type=ir.TensorType(ir.DataType(dtypes.to_onnx(wanted))), shape=_ir_shape(known)
        )
        self.graph.inputs.append(value)
        self._types[value] = Type(wanted, known)
        return self.tensor(value)

    def unique(self, name: str) -> str:
        """``name``, or with a number if the graph has it already."""
        if name and name not in self._used:
            self._used.add(name)
            return name
        count = self._counts.get(name, 0)
        while True:
            count += 1
            candidate = f"{name}_{count}"
            if candidate not in self._used:
                self._counts[name] = count
                self._used.add(candidate)
                return candidate

    def reserve_parameter_names(self) -> None:
        """Keep the names that tensors have by attribute path for them, whatever operators come first."""
        self._reserved = {n for n in self.names.values() if n not in self._used}
        self._used |= self._reserved

    def free_name(self, name: str) -> bool:
        """Take a name back from a value that only has it from its operator; False if it is an input's or the like."""
        outer = (*self.graph.inputs, *self.graph.outputs, *self.graph.initializers.values())
        if any(value.name == name for value in outer):
            return False
        for node in ir.traversal.RecursiveGraphIterator(self.graph):
            for value in node.outputs:
                if value.name == name:
                    value.name = self.unique(name)
                    self.tensor(value).name = value.name
        self._used.add(name)
        return True

    # Capturing eager tensors

    def capture(self, t: Tensor) -> Tensor:
        """The graph's tensor for any tensor: itself, an outer graph's, or an initializer made of an eager one."""
        if t.value is not None:
            owner: Graph | None = self
            while owner is not None and owner is not t.graph:
                owner = owner.parent
            if owner is None and self.parent is not None:
                return self.parent.capture(t)  # the body of a gradient reads the forward's values
            if owner is None:
                raise TraceError(
                    f"a tensor of another trace ({t.name}) is used at {here()}. Pass it in as an argument, or "
                    "return it from the trace it belongs to."
                )
            return t
        if self.parent is not None:
            return self.parent.capture(t)
        found = self._captured.get(id(t))
        if found is not None:
            return found[1]
        key = literal_key(t) if t.literal else None
        if key is not None and key in self._literals:
            return self._literals[key]
        name = self.names.get(id(t), "")
        if name in self._reserved:
            self._reserved.remove(name)
        else:
            name = self.unique(name or t.name or ("constant" if t.literal else "weight"))
        made = self.initializer(name, t._array)
        if not t.literal:
            self._captured[id(t)] = (t, made)  # the eager tensor is kept, so that its id stays its own
            self.initializer_names[id(t)] = made.name or ""
            if dtypes.is_float(t.dtype) and (t.requires_grad or id(t) in self.names):
                assert made.name is not None
                self.parameters[made.name] = t
        elif key is not None:
            self._literals[key] = made
            self._kept.append(t)
        return made

    def initializer(self, name: str, array: Any) -> Tensor:
        """A new initializer of the graph."""
        value = ir.Value(
            name=name, type=ir.TensorType(ir.DataType(dtypes.to_onnx(array.dtype))), shape=_ir_shape(array.shape),
            const_value=ir_tensor(array, name),
        )  # fmt: skip
        self.graph.register_initializer(value)
        self._types[value] = _constant_type(array)
        return self.tensor(value)

    # The interpreter

    def apply(
        self, op: str, inputs: Sequence[Tensor | None], attributes: Attributes | None, outputs: int, domain: str
    ) -> tuple[Tensor, ...]:
        given = dict(attributes) if attributes else {}
        self._ensure_opset(op, given, domain, inputs)
        captured = [None if t is None else self.capture(t) for t in inputs]
        if op == "BatchNormalization" and outputs > 1 and given.get("training_mode"):
            # see graphkit.statistics: the runtime writes over these. What it makes of them a second time, nobody reads.
            sources = captured[1:3] if self.repeating else captured[3:]
            captured[3:] = [None if t is None else self.apply("Sum", (t,), None, 1, "")[0] for t in sources]
        node = ir.Node(
            domain, op, [None if t is None else t.value for t in captured],
            attributes=[ir_attribute(k, v) for k, v in given.items() if v is not None],
            num_outputs=outputs, name=self.unique(f"{op.lower()}_node"),
        )  # fmt: skip
        for value in node.outputs:
            value.name = self.unique(op.lower())
        location = user_location()
        node.meta["graphkit.source"] = location
        stopped = _stopping.get()
        if stopped:
            node.metadata_props[STOP] = "1"
        self.graph.append(node)
        outer = captured_values(node) if any(isinstance(v, ir.Graph) for v in given.values()) else []
        try:
            self._infer(node, given, captured, outer, strict=self.strict)
        except Misfit as misfit:
            self.graph.remove(node, safe=True)
            shown = ", ".join("none" if t is None else f"{dtypes.name(t.dtype)}{dims.text(t.dims)}" for t in captured)
            raise OperatorError(f"{op}({shown}) at {here()}: {misfit}") from None
        made = [self.tensor(v) for v in node.outputs]
        record = Record(
            op, domain, [*captured, *(self.tensor(v) for v in outer)], given, made, location,
            name=node.name or "", captured=len(outer),
        )  # fmt: skip
        record.stopped = stopped
        for index, t in enumerate(made):
            t.record, t.index = record, index
        return tuple(made)

    def _ensure_opset(self, op: str, attributes: dict[str, Any], domain: str, inputs: Sequence[Tensor | None]) -> None:
        root = self.root
        if domain:
            root.graph.opset_imports.setdefault(domain, 1)
            return
        late = schemas.late_types([t.dtype for t in inputs if t is not None], attributes)
        needed = schemas.opset_for(op, "", frozenset(attributes), len(inputs), late)
        if needed > root._opset:
            root._opset = root.graph.opset_imports[""] = needed

    def assign(self, target: Tensor, value: Any) -> None:
        new = self.capture(as_tensor(value))
        if target.traced:
            raise TraceError(f"assign() at {here()} is for parameters and buffers, not for traced values")
        self.capture(target)
        root = self.root
        root.updates[id(target)] = (target, new)
        root._captured[id(target)] = (target, new)

    def state_of(self, target: Tensor) -> Any:
        self.capture(target)
        return self.root._captured.get(id(target)), self.root.updates.get(id(target))

    def put_back(self, target: Tensor, state: Any) -> None:
        for kept, found in zip((self.root._captured, self.root.updates), state, strict=True):
            kept.pop(id(target), None)
            if found is not None:
                kept[id(target)] = found

    def stop_gradient(self, x: Tensor) -> Tensor:
        with stopping(True):
            return self.apply("Identity", (x,), None, 1, "")[0]

    # Dimensions as tensors

    def dim_vector(self, t: Tensor, axis: int) -> Tensor:
        """The extent of one axis, int64 [1]."""
        assert t.value is not None
        key = (t.value, axis)
        if key not in self._dims:
            self._dims[key] = self.apply("Shape", (t,), {"start": axis, "end": axis + 1}, 1, "")[0]
        return self._dims[key]

    def dim_tensor(self, t: Tensor, axis: int) -> Tensor:
        """The extent of one axis, int64 []."""
        assert t.value is not None
        key = (t.value, -1 - axis)
        if key not in self._dims:
            self._dims[key] = self.apply("Squeeze", (self.dim_vector(t, axis),), None, 1, "")[0]
        return self._dims[key]

    # Types of a node's outputs

    def _infer(
        self, node: ir.Node, attributes: dict[str, Any], inputs: Sequence[Tensor | None], outer: Iterable[ir.Value],
        *, strict: bool = False,
    ) -> None:  # fmt: skip
        types = [None if t is None or t.value is None else self.type_of(t.value) for t in inputs]
        proto = None
        outer_types: dict[str, onnx.TypeProto] = {}
        from graphkit.body_types import BODIES, imply, infer_bodies

        if not node.domain:
            imply(node.op_type, attributes, types)
        found: list[Type | None] | None = None
        if node.op_type in BODIES and not node.domain:
            found = infer_bodies(self, node, attributes, types)
        elif attributes and any(
            a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()
        ):
            proto = ir.serde.serialize_node(node)
            for n, name in enumerate(proto.input):
                proto.input[n] = f"i{n}" if name else ""
            del proto.output[:]
            proto.output.extend(f"o{n}" for n in range(len(node.outputs)))
            outer_types = {v.name: type_proto(self.type_of(v)) for v in outer if v.name}
        if found is not None:
            found = [*found, *[None] * len(node.outputs)][: len(node.outputs)]
        elif node.op_type == "Constant" and not node.domain:
            array = constant_array(node.outputs[0])
            found = [None if array is None else _constant_type(array)]
        else:
            found = infer(
                node.op_type, node.domain, self.opset, attributes, types, len(node.outputs), proto, outer_types,
                self.root.graph.opset_imports, strict=strict,
            )  # fmt: skip
        for value, known in zip(node.outputs, found, strict=True):
            declared = self._declared(value) if value.type is not None else None
            if known is None:
                known = declared or Type(dtypes.FLOAT32, None)
            elif known.dims is None and known.proto is None and declared is not None and declared.dims is not None:
                known.dims = declared.dims
            self._types[value] = known
            if value.type is None and known.proto is None:
                value.type = ir.TensorType(ir.DataType(dtypes.to_onnx(known.dtype)))
            elif value.type is None and known.proto is not None:
                value.type = ir.serde.deserialize_type_proto_for_type(known.proto)
            if known.proto is None and (value.shape is None or not value.is_graph_output()):
                value.shape = _ir_shape(known.dims)

    def parameters_and_buffers(self) -> list[tuple[str, Tensor]]:
        """The eager tensors that became initializers, with the initializers' names."""
        named = {id(t): n for n, t in self.parameters.items()} | self.initializer_names
        return [(named.get(id(t)) or made.name or "", t) for t, made in self._captured.values()]

    def refuse_leaks(self, result: Iterable[Tensor]) -> None:
        """Raise if a result is not a tensor of this graph."""
        if any(t.traced and t.graph is not self for t in result):
            raise TraceError(f"the traced function returned a tensor of another trace ({here()})")


def _constant_type(array: Any) -> Type:
    contents: Any = None
    if array.dtype in (dtypes.INT64, dtypes.INT32) and array.ndim <= 1 and array.size <= 64:
        contents = tuple(array.tolist()) if array.ndim else int(array)
    return Type(array.dtype, array.shape, contents, array if array.size <= 1024 else None)


def _ir_shape(known: Dims | None) -> ir.Shape | None:
    return None if known is None else ir.Shape([None if dims.is_anonymous(d) else d for d in known])
