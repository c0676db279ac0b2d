"""What is trained: a Module, or a model file. Both open as a Graph with named outputs, as often as one is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import onnx_ir as ir
from onnx_ir.passes import common

from graphkit import dtypes, interpreter, tree
from graphkit.conversion import is_computed
from graphkit.core import Array, Tensor, as_tensor
from graphkit.errors import GradientError, GraphkitError, InputError, did_you_mean
from graphkit.graph import Graph
from graphkit.modelfile import ModelLike, read_model
from graphkit.nn import Module
from graphkit.optimizers import to_inference
from graphkit.optimizers.add_gradients import differentiable_graph
from graphkit.optimizers.lift_weights import float_weights, lift_constants, weights_in_bodies
from graphkit.tracing import PARAMETERS, Spec, argument_names
from graphkit.training.randomness import carry_dropout

__all__ = ["FileSource", "ModuleSource", "Opened", "Source"]

RUNNING: Final = "running statistics of BatchNormalization"
NO_PARAMETER: Final = "not a parameter of the module"


@dataclass
class Opened:
    """A model as a graph that more nodes can be appended to.

    Attributes:
        graph: whose outputs are not set yet.
        outputs: the model's outputs, by name.
        result: the same as the loss function wants them: alone, or as the module returned them.
        candidates: the initializers that may be trained, by name.
        buffers: initializers that are no parameters and change at every step, with their next values.
        frozen: the floating initializers that may not be trained by default, and why.
    """

    graph: Graph
    outputs: dict[str, Tensor]
    result: Any
    candidates: dict[str, Tensor]
    buffers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    frozen: dict[str, str] = field(default_factory=dict)


class Source:
    """What both kinds have in common."""

    def open(self, training: bool) -> Opened:
        """Record the model anew."""
        raise NotImplementedError

    def inference(self) -> ir.Model | None:
        """A model for inference that exists already, for its values to be replaced."""
        return None


class ModuleSource(Source):
    """A Module (or a function on Tensors with ``named_tensors``), traced on described inputs."""

    def __init__(self, module: Any, inputs: Any, loss: Any) -> None:
        if inputs is None:
            raise GraphkitError(
                "a module's inputs must be described: build(module, inputs={'x': gk.spec('float32', ['batch', 784])}, "
                f"loss={loss!r}, ...)"
            )
        if isinstance(inputs, Spec) or not isinstance(inputs, Mapping | Sequence):
            inputs = [inputs]
        named: Any = inputs
        if not isinstance(inputs, Mapping):
            named = dict(zip(argument_names(module, len(inputs)), inputs, strict=True))
        self.module = module
        self.specs = {name: _spec(name, given) for name, given in named.items()}

    def open(self, training: bool) -> Opened:
        """Trace the module in training or in inference mode; its own mode is put back afterwards."""
        named = dict(self.module.named_tensors())
        graph = Graph(names={id(t): name for name, t in named.items()})
        arguments = {name: graph.input(name, spec.dtype, spec.shape) for name, spec in self.specs.items()}
        for name in named:
            if name in arguments:
                raise GraphkitError(f"an input and a parameter of the module are both called '{name}'; rename one")
        with _mode(self.module, training), interpreter.using(graph):
            result = self.module(*arguments.values())
            leaves, structure = tree.flatten(result)
            tensors = [graph.capture(as_tensor(leaf)) for leaf in leaves]
            result = tree.unflatten(structure, list(tensors))
            outputs = dict(zip(_output_names(result, tensors), tensors, strict=True))
        used = {name: t for name, t in graph.parameters_and_buffers() if name in graph.graph.initializers}
        initializers = graph.graph.initializers
        opened = Opened(graph, outputs, result, {})
        for name, t in used.items():
            value = graph.tensor(initializers[name])
            if t.requires_grad:
                opened.candidates[name] = value
            elif dtypes.is_float(t.dtype) and t.dims:
                opened.frozen[name] = NO_PARAMETER
        for target, new in graph.updates.values():
            name = graph.initializer_names[id(target)]
            opened.buffers[name] = (graph.tensor(initializers[name]), new)
            opened.frozen.pop(name, None)
        return opened


def _spec(name: str, given: Any) -> Spec:
    if isinstance(given, Spec):
        return given
    if isinstance(given, Tensor) or hasattr(given, "dtype"):
        return Spec(given.dtype, tuple(given.shape))
    raise InputError(f"input '{name}' is described by a {type(given).__name__}; give gk.spec(dtype, shape) or an array")


def _output_names(result: Any, leaves: Sequence[Tensor]) -> list[str]:
    if isinstance(result, Mapping) and len(result) == len(leaves):
        return [str(key) for key in result]
    return ["output" if n == 0 else f"output_{n}" for n in range(len(leaves))]


@contextmanager
def _mode(module: Any, training: bool) -> Iterator[None]:
    if not isinstance(module, Module):
        yield
        return
    before = [(inner, inner.training) for _, inner in module.named_modules()]
    module.train(training)
    try:
        yield
    finally:
        for inner, mode in before:
            inner.training = mode


class FileSource(Source):
    """An ONNX model."""

    def __init__(self, model: ModelLike, inputs: Any, named: Sequence[str] = ()) -> None:
        if inputs is not None:
            raise GraphkitError("a model file describes its inputs itself; inputs= is for modules and functions")
        self.model = read_model(model)
        if self.model.functions:
            common.InlinePass()(self.model)
        graph = self.model.graph
        # An initializer is a parameter wherever it is held; a Constant node is one if it is asked for by name,
        # or if there is no initializer: some exporters write every weight so.
        weights = float_weights(self.model)
        held = weights_in_bodies(graph)
        initializers = [n for n in weights if n in graph.initializers or (n in held and held[n].is_initializer())]
        lift_constants(self.model, dict.fromkeys([*(initializers or weights), *named]))
        _untie_running_statistics(self.model.graph)

    def open(self, training: bool) -> Opened:
        """A Graph around a copy."""
        own = self.model.clone() if training else to_inference(self.model)
        assert isinstance(own, ir.Model)
        graph = differentiable_graph(own)
        keys = carry_dropout(graph) if training else {}
        if keys:
            graph = Graph.adopt(own)
        initializers = graph.graph.initializers
        for value in [v for v in graph.graph.inputs if v.name in initializers]:
            graph.graph.inputs.remove(value)  # a default that nobody is asked to override
        outputs = {str(v.name): graph.tensor(v) for v in graph.graph.outputs}
        graph.graph.outputs.clear()
        running, buffers = _running_statistics(graph)
        buffers |= {name: (graph.tensor(initializers[name]), graph.tensor(v)) for name, v in keys.items()}
        declared = _declared_parameters(own)
        opened = Opened(graph, outputs, None, {}, buffers)
        tensors = list(outputs.values())
        opened.result = tensors[0] if len(tensors) == 1 else tuple(tensors)
        for name, value in initializers.items():
            t = graph.tensor(value)
            if not dtypes.is_float(t.dtype) or name in buffers:
                continue
            if is_computed(value.const_value):
                continue
            if value in running:
                opened.frozen[name] = RUNNING
            elif t.dims if declared is None else name in declared:
                opened.candidates[name] = t
            elif t.dims:
                opened.frozen[name] = NO_PARAMETER
        return opened

    def inference(self) -> ir.Model | None:
        """The model itself, with Dropout off and BatchNormalization frozen."""
        made = to_inference(self.model)
        assert isinstance(made, ir.Model)
        return made


def _declared_parameters(model: ir.Model) -> set[str] | None:
    import json

    written = model.metadata_props.get(PARAMETERS)
    return None if written is None else set(json.loads(written))


def _running_statistics(graph: Graph) -> tuple[set[ir.Value], dict[str, tuple[Tensor, Tensor]]]:
    """The initializers that hold running statistics, and those of them that a training BatchNormalization updates."""
    running: set[ir.Value] = set()
    buffers: dict[str, tuple[Tensor, Tensor]] = {}
    for node in graph.graph:
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        for place, following in ((3, 1), (4, 2)):
            value = _through_identities(node.inputs[place])
            if value is None or not value.is_initializer():
                continue
            running.add(value)
            mode = node.attributes.get("training_mode")
            if mode is not None and mode.as_int() and len(node.outputs) > following:
                buffers[str(value.name)] = (graph.tensor(value), graph.tensor(node.outputs[following]))
    return running, buffers


def _untie_running_statistics(graph: ir.Graph) -> None:
    """Give BatchNormalization statistics of its own that reach it through an Identity.

    PyTorch's exporter merges initializers of equal values so: a scale and a variance that are all ones, which part as
    soon as one of them is trained.
    """
    for node in list(graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        for place in (3, 4):
            seen = node.inputs[place]
            source = _through_identities(seen)
            if seen is None or source is seen or source is None or not source.is_initializer():
                continue
            identity, name = seen.producer(), seen.name
            assert identity is not None and source.const_value is not None
            own = ir.Value(name=name, type=source.type, shape=source.shape)
            own.const_value = ir.Tensor(source.const_value.numpy(), name=name)
            node.replace_input_with(place, own)
            if seen.uses() or seen.is_graph_output():
                seen.name = f"{name}_shared"
            else:
                graph.remove(identity, safe=True)
            graph.register_initializer(own)


def _copies(node: ir.Node) -> bool:
    return node.op_type == "Identity" or (node.op_type == "Sum" and len(node.inputs) == 1)


def _through_identities(value: ir.Value | None) -> ir.Value | None:
    while value is not None and (producer := value.producer()) is not None and _copies(producer):
        value = producer.inputs[0]
    return value


def unknown_trainable(name: str, opened: Opened) -> GradientError:
    """The error for a name in ``trainable`` that is no floating initializer."""
    known = [*opened.candidates, *opened.frozen]
    return GradientError(
        f"trainable names '{name}', which is no floating parameter of the model.{did_you_mean(name, known)} There are "
        f"{', '.join(known[:20])}{'...' if len(known) > 20 else ''}"
    )


def values_of(graph: Graph) -> dict[str, Array]:
    """Every initializer's values, by name."""
    return {n: v.const_value.numpy() for n, v in graph.graph.initializers.items() if v.const_value is not None}
