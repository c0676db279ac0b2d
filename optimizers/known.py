"""What passes may ask of a model: which values are constant, which are parameters, dtypes, shapes and contents."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.modelfile.sparse import SparseTensor
from graphkit.optimizers.facts import Facts, subgraphs_of, use_count
from graphkit.optimizers.symbolic import Dim, size_of

__all__ = ["RANDOM", "Known", "graphs_of", "is_pure"]

# What draws random numbers. Dropout does so only in training mode, see ``is_pure``.
RANDOM: Final = (
    *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"),
)
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
# Domains whose operators are known to compute the same outputs from the same inputs.
_DRAWS: Final = ("Dropout", "Random", "Sampling", "Bernoulli", "Multinomial")
_PURE_DOMAINS: Final = ("", "com.microsoft", "ai.onnx.ml")


def is_pure(node: ir.Node) -> bool:
    """Whether a node computes the same outputs from the same inputs at each run."""
    if node.domain not in _PURE_DOMAINS or node.op_type in RANDOM:
        return False
    if node.op_type == "Dropout":
        return len(node.inputs) < 3 or node.inputs[2] is None
    if node.domain == "com.microsoft" and any(word in node.op_type for word in _DRAWS):
        return False
    return all(is_pure(inner) for body in subgraphs_of(node) for inner in body)


def graphs_of(model: ir.Model) -> list[ir.Graph]:
    """The outermost graphs: the model's own and each function's."""
    return [model.graph, *(function.graph for function in model.functions.values())]


class Known:
    """What is known of one model before it runs."""

    def __init__(self, model: ir.Model, *, training: bool) -> None:
        self.model = model
        self.training = training
        self._roots: dict[ir.Graph, ir.Graph] = {}
        self._arrays: dict[ir.Value, np.ndarray[Any, Any]] = {}
        self._made: set[ir.Value] = set()
        self._constants: dict[ir.Node, ir.TensorProtocol] = {}
        self._opsets: dict[ir.Graph, int] = {}
        self._pure: dict[ir.Node, bool] = {}
        for function in model.functions.values():
            self._opsets[function.graph] = function.opset_imports.get("", model.opset_imports.get("", 1))
        self._opsets[model.graph] = model.opset_imports.get("", 1)
        self.facts = Facts(self.tensor)
        self.facts.opset_of = self.opset

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
            # What is computed from a sparse tensor is dense, and larger.
            hidden = value.is_graph_input() or isinstance(value.const_value, SparseTensor)
            return None if hidden else value.const_value
        node = value.producer()
        if node is None or node.op_type != "Constant" or node.domain != "":
            return None
        known = self._constants.get(node)
        if known is None and (known := _constant_attribute(node)) is not None:
            self._constants[node] = known
        return known

    def was_made(self, value: ir.Value) -> bool:
        """Whether the pipeline made this initializer, so that it cannot be one of the model's own weights."""
        return value in self._made

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether a constant may be a weight that training changes: in that case its value is not to be used."""
        if not self.training or not value.is_initializer() or value in self._made:
            return False
        tensor = value.const_value
        return tensor is None or (tensor.dtype in _FLOATS and self.facts(value).shape != ())

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
        if value is None or self.tensor(value) is None or size_of(self.facts(value).shape) != 1:
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
            known = is_pure(node)
            if not subgraphs_of(node):  # what a body draws may be pruned from it
                self._pure[node] = known
        return known

    @staticmethod
    def called(node: ir.Node) -> str:
        """What a report calls a node: its name, or that of its first output."""
        return node.name or next((value.name for value in node.outputs if value.name), node.op_type)

    @staticmethod
    def only_use(value: ir.Value) -> bool:
        """Whether one node input reads the value, and no graph gives it out."""
        return use_count(value) == 1 and not value.is_graph_output()


def _constant_attribute(node: ir.Node) -> ir.TensorProtocol | None:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            # Not as_tensor(): it asks the value whether it keeps a protocol, which takes longer than all else here.
            tensor: ir.TensorProtocol = attribute.value
            return tensor
        if name == "value_float":
            return ir.tensor(np.array(attribute.as_float(), np.float32))
        if name == "value_floats":
            return ir.tensor(np.array(attribute.as_floats(), np.float32))
        if name == "value_int":
            return ir.tensor(np.array(attribute.as_int(), np.int64))
        if name == "value_ints":
            return ir.tensor(np.array(attribute.as_ints(), np.int64))
    return None
