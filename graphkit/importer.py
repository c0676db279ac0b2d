"""load(): any ONNX file as a differentiable function on Tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from graphkit import bodies, dims, dtypes, interpreter
from graphkit.bodies import Environment
from graphkit.core import Tensor, as_tensor
from graphkit.errors import InputError, did_you_mean
from graphkit.modelfile import ModelLike, read_model
from graphkit.schemas import WORKING_OPSET
from graphkit.source import here
from graphkit.subgraphs import run_subgraphs
from graphkit.upgrade import upgrade_model


class Loaded:
    """A model as a function: call it with Tensors or arrays, positional or by input name.

    One output comes back as a Tensor, several as a tuple in the model's order. Under a trace the model's nodes become
    part of the traced graph; eagerly each runs as it is met, and gradients flow through them to the inputs and to
    ``parameters()``.
    """

    def __init__(self, model: ir.Model) -> None:
        if model.functions:
            common.InlinePass()(model)
        if model.opset_imports.get("", WORKING_OPSET) < WORKING_OPSET:
            upgrade_model(model, WORKING_OPSET)
        self.model = model
        graph = model.graph
        overridable = {v.name for v in graph.inputs} & set(graph.initializers)
        self.inputs = [str(v.name) for v in graph.inputs if v.name not in overridable]
        self.optional_inputs = sorted(str(n) for n in overridable)
        self.outputs = [str(v.name) for v in graph.outputs]
        self.input_names, self.output_names = self.inputs, self.outputs  # a trace of the model keeps them
        self._constants: dict[str, Tensor] = {}
        for name, value in graph.initializers.items():
            assert value.const_value is not None
            array = value.const_value.numpy()
            owned = as_tensor(array)
            trainable = dtypes.is_float(owned.dtype) and owned.dims != ()
            self._constants[name] = Tensor(owned._array, needs=int(trainable), name=name)

    def parameters(self) -> dict[str, Tensor]:
        """The floating initializers of rank 1 or more, by name; they require gradients."""
        return {n: t for n, t in self._constants.items() if t.requires_grad}

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every initializer, by name; an export keeps the names."""
        yield from self._constants.items()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the model; one output comes back alone, several as a tuple."""
        results = self.run(self._bind(args, named))
        return results[0] if len(results) == 1 else tuple(results)

    def _bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.inputs):
            raise InputError(f"the model has {len(self.inputs)} inputs ({', '.join(self.inputs)}), got {len(args)}")
        feeds = dict(zip(self.inputs, args, strict=False))
        twice = [n for n in feeds if n in named]
        if twice:
            raise InputError(f"input {twice[0]} was given twice, by place and by name ({here()})")
        feeds |= named
        missing = [n for n in self.inputs if n not in feeds]
        known = [*self.inputs, *self.optional_inputs]
        extra = [n for n in feeds if n not in known]
        if missing or extra:
            parts = []
            if missing:
                parts.append(f"missing input {', '.join(missing)}")
            if extra:
                parts.append(f"unknown input {', '.join(extra)}.{did_you_mean(extra[0], known)}")
            raise InputError(f"{'; '.join(parts)} ({here()}). The model's inputs are {', '.join(known)}.")
        return feeds

    def run(self, feeds: Mapping[str, Any]) -> list[Tensor]:
        """The outputs for inputs by name."""
        graph = self.model.graph
        env: Environment = {}
        for name, value in graph.initializers.items():
            env[value] = self._constants[name]
        for value in graph.inputs:
            if value.name is not None and value.name in feeds:
                env[value] = _fed(value, feeds[value.name])
        run_nodes(graph, env)
        return [bodies.look_up(env, v) for v in graph.outputs]


def _fed(value: ir.Value, given: Any) -> Tensor:
    wanted = dtypes.as_dtype(int(value.dtype)) if value.dtype is not None else None
    if isinstance(given, list) and isinstance(value.type, ir.SequenceType | ir.OptionalType):
        return Tensor([as_tensor(g)._array for g in given])
    literal = isinstance(given, bool | int | float | list | tuple)
    t = as_tensor(given, wanted if literal else None)
    if wanted is not None and isinstance(value.type, ir.TensorType) and t.dtype != wanted:
        raise InputError(
            f"input '{value.name}' takes {dtypes.name(wanted)}, got {dtypes.name(t.dtype)} ({here()}); "
            f"write x.astype('{dtypes.name(wanted)}')"
        )
    known = value.shape if isinstance(value.type, ir.TensorType) else None
    if known is not None and t.rank is not None and len(known) != t.rank:
        raise InputError(f"input '{value.name}' takes rank {len(known)} {known}, got {t.rank} ({here()})")
    for extent, declared in zip(t.dims or (), known or (), strict=False):
        if isinstance(extent, int) and isinstance(declared, int) and extent != declared:
            raise InputError(f"input '{value.name}' takes shape {known}, got {dims.text(t.dims)} ({here()})")
    return t


def run_nodes(graph: ir.Graph, env: Environment) -> None:
    """Apply every node of a graph in order, under the current interpreter."""
    bodies.run_nodes(graph, env, run_subgraphs)


def load(model: ModelLike) -> Loaded:
    """Read a model file as a differentiable function on Tensors.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``, of opset 7 to 28.

    >>> import onnx.parser, graphkit as gk
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Mul(x, x)}'
    >>> f = load(onnx.parser.parse_model(text))
    >>> gk.grad(lambda x: f(x).sum())(gk.tensor([1., 2.])).tolist()
    [2.0, 4.0]
    """
    return Loaded(read_model(model))


__all__ = ["Loaded", "interpreter", "load", "run_nodes"]
