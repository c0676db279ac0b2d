"""extract(): the part of a model between some of its values, as a model of its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import overload

import onnx
import onnx_ir as ir

from graphkit.errors import PassError, did_you_mean
from graphkit.modelfile import ModelLike, give_back, read_model
from graphkit.modelfile.external import embedded
from graphkit.modelfile.protos import every_graph, every_node, to_proto
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import subgraphs_of

__all__ = ["extract"]


@overload
def extract(
    model: onnx.ModelProto, inputs: Collection[str] | None = ..., outputs: Collection[str] | None = ...
) -> onnx.ModelProto: ...


@overload
def extract(
    model: str | os.PathLike[str] | ir.Model,
    inputs: Collection[str] | None = ...,
    outputs: Collection[str] | None = ...,
) -> ir.Model: ...


def extract(
    model: ModelLike, inputs: Collection[str] | None = None, outputs: Collection[str] | None = None
) -> ir.Model | onnx.ModelProto:
    """Return the part of a model that computes ``outputs`` from ``inputs``, any values of its main graph by name.

    Without ``inputs`` those of the model that the outputs need, without ``outputs`` all of the model's. A weight may be
    an input too. Types and shapes of what becomes an input or output are declared as far as they follow. Nodes, weights
    and functions that the part does not need go; names, metadata and opsets stay. The model that is given is not
    changed, and its kind comes back (a path gives an ``onnx_ir.Model``).

    Raises ``PassError`` for a name that the main graph does not have (or that stands in a body), an output that needs
    an input of the model which is not among ``inputs``, an input that no output needs, and a type that does not follow.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {a = Abs(x) y = Exp(a)}'
    >>> part = extract(onnx.parser.parse_model(text), inputs=["a"])
    >>> [node.op_type for node in part.graph.node], part.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    (['Exp'], 'N')
    """
    result = read_model(model)
    for group, names in (("inputs", inputs), ("outputs", outputs)):
        if isinstance(names, str):
            raise PassError(f"{group} is a list of names, not the text {names!r}")
    work = _Extraction(result)
    work.run(None if inputs is None else list(inputs), None if outputs is None else list(outputs))
    return give_back(model, result)


class _Extraction:
    """One model that is cut down, in place."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.ctx = Context(model, training=False, slack=0)
        self.ctx.facts.sweep(self.ctx.graphs())
        own = [*self.graph.inputs, *self.graph.initializers.values(), *(v for n in self.graph for v in n.outputs)]
        self.values = {value.name: value for value in own if value.name}

    def run(self, inputs: list[str] | None, outputs: list[str] | None) -> None:
        chosen = self._find("outputs", [v.name or "" for v in self.graph.outputs] if outputs is None else outputs)
        if not chosen:
            raise PassError("no outputs are named, so nothing would be left")
        cuts = self._find("inputs", inputs or [])
        if both := [value for value in cuts if value in chosen and inputs is not None]:
            raise PassError(f"'{both[0].name}' is among the inputs and among the outputs; nothing lies between")
        needed, reached = self._needed(chosen, cuts, named=inputs is not None)
        if idle := [value for value in cuts if value not in reached]:
            names = ", ".join(f"'{value.name}'" for value in chosen)
            raise PassError(f"no output needs the input '{idle[0].name}' once it is cut there: {names}")
        for value in (*cuts, *chosen):
            self._declare(value)
        made = [self._as_input(value) for value in cuts]
        if inputs is None:
            made = [value for value in self.graph.inputs if value in reached]
        else:  # defaults that may be overridden stay so
            made += [v for v in self.graph.inputs if v in reached and v.is_initializer() and v not in made]
        self._keep(needed, made, chosen)

    def _find(self, group: str, names: Sequence[str]) -> list[ir.Value]:
        found: list[ir.Value] = []
        for name in names:
            if names.count(name) > 1:
                raise PassError(f"'{name}' is named twice among the {group}")
            value = self.values.get(name)
            if value is None:
                raise PassError(self._unknown(group, name))
            found.append(value)
        return found

    def _unknown(self, group: str, name: str) -> str:
        for node in self.graph:
            for body in subgraphs_of(node):
                inner = {v.name for graph in every_graph(body) for v in (*graph.inputs, *graph.initializers.values())}
                inner |= {value.name for each in every_node(body) for value in each.outputs}
                if name in inner:
                    where = f"'{node.name}' ({node.op_type})" if node.name else node.op_type
                    return (
                        f"'{name}' (in {group}) stands in a body of the node {where}, which runs as a whole; "
                        "name values of the main graph"
                    )
        return f"the model's graph has no value '{name}' (in {group}).{did_you_mean(name, self.values)}"

    def _needed(
        self, outputs: list[ir.Value], cuts: list[ir.Value], *, named: bool
    ) -> tuple[set[ir.Node], set[ir.Value]]:
        """The nodes between, and every value that they or the outputs read."""
        stops = set(cuts)
        nodes: set[ir.Node] = set()
        reached: set[ir.Value] = set()
        for output in outputs:
            stack = [output]
            while stack:
                value = stack.pop()
                if value in reached:
                    continue
                reached.add(value)
                if value in stops:
                    continue
                node = value.producer()
                if node is None:
                    if named and value.is_graph_input() and not value.is_initializer():
                        raise PassError(
                            f"the output '{output.name}' needs the input '{value.name}' of the model, which is not "
                            f"among the inputs; name it too, or a value between the two"
                        )
                elif node not in nodes:
                    nodes.add(node)
                    stack += _read_by(node)
        return nodes, reached

    def _declare(self, value: ir.Value) -> None:
        """Give a value that becomes part of the interface its type and shape."""
        if value.is_graph_input() or value.is_graph_output() or value.is_initializer():
            return
        fact = self.ctx.facts(value)
        if value.type is None:
            dtype = fact.dtype or self._inferred().get(value.name or "")
            if dtype is None:
                raise PassError(
                    f"the type of '{value.name}' does not follow from the model, so it cannot be declared; name "
                    "another value"
                )
            value.type = ir.TensorType(dtype)
        if fact.shape is not None and isinstance(value.type, ir.TensorType):
            names = {d.value for v in self.graph.inputs for d in v.shape or () if not isinstance(d, int)}
            dims = [dim if isinstance(dim, int) else repr(dim) if repr(dim) in names else None for dim in fact.shape]
            declared = value.shape if value.shape is not None and len(value.shape) == len(dims) else None
            if declared is not None:  # a name that was given stays, where nothing better is known
                pairs = zip(dims, declared, strict=True)
                dims = [old.value if new is None and not isinstance(old, int) else new for new, old in pairs]
            value.shape = ir.Shape(dims)

    def _inferred(self) -> dict[str, ir.DataType]:
        """Types by onnx's own inference, which looks into functions."""
        try:
            found = onnx.shape_inference.infer_shapes(to_proto(embedded(self.model)))
        except Exception:  # noqa: BLE001 - protobuf's for what is too large, and several of the inference itself
            return {}
        infos = [info for info in found.graph.value_info if info.type.tensor_type.elem_type]
        return {info.name: ir.DataType(info.type.tensor_type.elem_type) for info in infos}

    def _as_input(self, value: ir.Value) -> ir.Value:
        if value.is_graph_input():
            return value
        made = ir.Value(
            name=value.name, type=value.type, shape=value.shape, doc_string=value.doc_string,
            metadata_props=dict(value.metadata_props),
        )  # fmt: skip
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, made)
        if value.is_initializer():
            del self.graph.initializers[value.name or ""]  # and not renamed: its tensor, which is shared, would be too
        else:
            value.name = self.ctx.name(f"{value.name}_before")
        return made

    def _keep(self, nodes: set[ir.Node], inputs: list[ir.Value], outputs: list[ir.Value]) -> None:
        graph = self.graph
        graph.outputs.clear()
        graph.outputs.extend(outputs)
        for node in reversed(list(graph)):
            if node not in nodes:
                self.ctx.remove(node)
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]
        self._drop_functions()

    def _drop_functions(self) -> None:
        functions = self.model.functions
        wanted: set[tuple[str, str, str]] = set()
        pending: list[Iterable[ir.Node]] = [every_node(self.graph)]
        while pending:
            for node in pending.pop():
                identifier = node.op_identifier()
                if identifier in functions and identifier not in wanted:
                    wanted.add(identifier)
                    pending.append(every_node(functions[identifier]))
        for identifier in list(functions):
            if identifier not in wanted:
                del functions[identifier]


def _read_by(node: ir.Node) -> list[ir.Value]:
    """What a node reads, and what its bodies read from outside them."""
    found = [value for value in node.inputs if value is not None]
    for body in subgraphs_of(node):
        inside = {value for graph in every_graph(body) for value in (*graph.inputs, *graph.initializers.values())}
        nodes = list(every_node(body))
        inside.update(value for each in nodes for value in each.outputs)
        read = [value for each in nodes for value in each.inputs if value is not None]
        read += [value for graph in every_graph(body) for value in graph.outputs]
        found += [value for value in read if value not in inside]
    return found
