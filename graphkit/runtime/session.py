"""Sessions: a model made ready to run, and what is said when it does not load or fails on the way."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from graphkit.errors import GraphkitError, InputError, ModelFileError, did_you_mean
from graphkit.modelfile import REWRITTEN, ModelLike, borrow_model
from graphkit.modelfile.protos import to_proto
from graphkit.statistics import keep_apart, overwritten_inputs

from .devices import Device, create_session, find_device
from .feeds import FeedCheck, Port, check_feeds_finite, port
from .hazards import hazardous_optimizers
from .messages import cleaned
from .values import is_bridged, to_array, to_value

__all__ = ["Session", "run"]

# Fusions of ONNX Runtime that make models slower (its CPU SkipLayerNormalization takes 7 to 9 times Add and
# LayerNormalization), left out of every session.
_SLOW_FUSIONS = ("SkipLayerNormFusion", "BiasSkipLayerNormFusion")
# Above this the weights are handed over as they are, not inside a serialized model, which protobuf limits to 2 GiB.
_INLINE_LIMIT = 1_000_000_000


def run(
    model: ModelLike,
    inputs: Any,
    device: str = "cpu",
    *,
    outputs: Sequence[str] | None = None,
    threads: int | None = None,
    optimizations: bool = True,
    check_finite: bool = False,
) -> dict[str, np.ndarray[Any, Any]]:
    """Run a model once and return its outputs by name.

    ``inputs`` is a mapping by name, a list or tuple in the model's order, or the one input. Arrays must have the dtype,
    rank and dims that the model declares; Python numbers and lists take the declared dtype. Raises ``InputError`` for
    feeds that do not fit (with ``check_finite``, also for NaN and infinite values), ``ModelFileError`` for a model that
    cannot be loaded, ``DeviceError`` for a device that is not there.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
    >>> run(onnx.parser.parse_model(text), {"x": [1, 2]})["y"]
    array([-1., -2.], dtype=float32)
    """
    session = Session(model, device, threads, optimizations)
    return session.run(inputs, outputs, check_finite=check_finite)


class Session:
    """A model made ready to run many times on one device.

    ``threads`` limits the threads of one operator (None: as many as there are cores). ``optimizations=False`` turns
    ONNX Runtime's own graph optimizations off, which is how two models are compared; ``disabled_optimizers`` names
    single ones of them.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
    >>> session = Session(onnx.parser.parse_model(text))
    >>> print(session.inputs[0], "->", session.outputs[0], "on", session.device)
    x: float32[N] -> y: float32[N] on cpu
    >>> session.run([np.ones(1, "float32")])["y"]
    array([-1.], dtype=float32)
    """

    def __init__(
        self,
        model: ModelLike,
        device: str = "cpu",
        threads: int | None = None,
        optimizations: bool = True,
        *,
        disabled_optimizers: Iterable[str] = (),
    ) -> None:
        self._device = find_device(device)
        self._where = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "the model"
        graph_model = borrow_model(model)
        if any(overwritten_inputs(node) for node in graph_model.graph.all_nodes()):
            model = graph_model = graph_model.clone()
            keep_apart(graph_model.graph)
        options = _options(threads, optimizations)
        content, self._held = _content(model, graph_model, options)
        disabled = [*_SLOW_FUSIONS, *hazardous_optimizers(graph_model), *disabled_optimizers] if optimizations else []
        try:
            self._session = create_session(content, options, self._device, disabled)
        except GraphkitError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base of their own
            raise _load_error(error, self._where) from error
        graph = graph_model.graph
        overridable = {one.name for one in self._session.get_overridable_initializers()}
        given = {value.name for value in graph.initializers.values()}
        self.inputs: tuple[Port, ...] = tuple(
            port(value, required=value.name not in given)
            for value in graph.inputs
            if value.name not in given or value.name in overridable
        )
        self.outputs: tuple[Port, ...] = tuple(port(value) for value in graph.outputs)
        self._check = FeedCheck(self.inputs, (name for name in given if name and name not in overridable))
        self._recurrent = any(node.op_type in _RECURRENT for node in graph.all_nodes())
        self._output_names = [one.name for one in self.outputs]
        self._made_by: dict[tuple[str, str], list[str]] = {}
        for node in graph.all_nodes():
            made = next((value.name for value in node.outputs if value.name), "")
            self._made_by.setdefault((node.op_type, node.name or ""), []).append(made)
        self._by_value = not all(is_bridged(one.dtype) for one in (*self.inputs, *self.outputs))

    @property
    def device(self) -> str:
        """Where the model runs: ``"cpu"`` or ``"cuda:0"``."""
        return str(self._device)

    @property
    def runtime_device(self) -> Device:
        """The device as the runtime's modules pass it around."""
        return self._device

    @property
    def runtime_session(self) -> onnxruntime.InferenceSession:
        """The ``onnxruntime.InferenceSession`` underneath."""
        return self._session

    def placement(self) -> dict[str, dict[str, int]]:
        """Return how many nodes of each operator run on each device, as ONNX Runtime placed them when it loaded.

        What a CUDA session runs on the CPU costs a copy there and back each time: look for more than shapes there.

        >>> import onnx.parser
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
        >>> Session(onnx.parser.parse_model(text)).placement()
        {'cpu': {'Neg': 1}}
        """
        found: dict[str, dict[str, int]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            counts = found.setdefault(part.ep_name.removesuffix("ExecutionProvider").lower(), {})
            for node in part.get_nodes():
                counts[node.op_type] = counts.get(node.op_type, 0) + 1
        return found

    def __repr__(self) -> str:
        ports = "({}) -> ({})".format(*(", ".join(map(str, ports)) for ports in (self.inputs, self.outputs)))
        return f"Session{ports} on {self.device}"

    def run(
        self, inputs: Any = (), outputs: Sequence[str] | None = None, *, check_finite: bool = False
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Run the model on ``inputs`` and return all outputs, or those named, by name."""
        ready = self._check(inputs)
        if check_finite:
            check_feeds_finite(ready)
        if self._recurrent:
            _refuse_empty(ready)
        names = self._output_names if outputs is None else self.check_outputs(outputs)
        if not names:
            none = f"{self._where} has no outputs" if outputs is None else "outputs=[] names none"
            raise InputError(f"{none}, so there is nothing to run it for")
        try:
            if self._by_value:
                return self._run_values(names, ready)
            made: Any = self._session.run(names, ready)
            return dict(zip(names, made, strict=True))
        except Exception as error:  # see above
            raise self.explain(error, ready) from error

    def check_outputs(self, names: Iterable[str]) -> list[str]:
        """Return ``names`` as a list, or raise ``InputError`` for one the model does not have."""
        names = [names] if isinstance(names, str) else list(names)
        for name in names:
            if name not in self._output_names:
                hint = did_you_mean(name, self._output_names)
                raise InputError(f"no output '{name}'.{hint} The model has {', '.join(map(str, self.outputs))}")
        return names

    def explain(self, error: Exception, feeds: Mapping[str, Any]) -> GraphkitError:
        """Return the error to raise for what ONNX Runtime raised while running."""
        text = cleaned(str(error))
        # A body's failure is reported inside that of its If, Loop or Scan: the last one is where it happened.
        found = re.split(
            r"(?:Non-zero status code returned )?while running (\w+) node\. Name:'([^']*)' Status Message: ", text
        )
        if len(found) < 4:
            return GraphkitError(f"{self._where} failed: {text}")
        kind, name, reason = found[-3:]
        made = self._made_by.get((kind, name), [])
        unnamed = "without a name" if made else "that ONNX Runtime made of an operator"
        node = f"node '{name}' ({kind})" if name else f"a {kind} node {unnamed}"
        makes = f", which makes {made[0]!r}," if len(made) == 1 else ""
        empty = [name for name, value in feeds.items() if getattr(value, "size", 1) == 0]
        hint = f" (input {', '.join(map(repr, empty))} has no elements)" if empty else ""
        return GraphkitError(f"{node}{makes} failed: {reason.strip()}{hint}")

    def _run_values(self, names: list[str], ready: Mapping[str, Any]) -> dict[str, Any]:
        used = [one for one in (*self.inputs, *self.outputs) if one.name in ready or one.name in names]
        for one in used:
            if one.dtype is None or one.kind != "tensor":
                raise GraphkitError(
                    f"{self._where} mixes lists or optional values ('{one.name}') with element types that ONNX Runtime "
                    "does not exchange with numpy (bfloat16, float8, int4): they cannot run together"
                )
        values = {
            one.name: to_value(ready[one.name], one.dtype)
            for one in self.inputs
            if one.name in ready and one.dtype is not None
        }
        made = self._session.run_with_ort_values(names, values)
        return {name: to_array(value) for name, value in zip(names, made, strict=True)}


def _options(threads: int | None, optimizations: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 4  # a failure is raised as one error; ONNX Runtime would also print it
    if threads is not None:
        if isinstance(threads, bool) or int(threads) != threads or threads < 1:
            raise InputError(f"threads is a number of threads, 1 or more, or None for all cores, not {threads!r}")
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimizations else level.ORT_DISABLE_ALL
    return options


# Fed no rows, their kernels end the process instead of failing.
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


def _refuse_empty(feeds: Mapping[str, Any]) -> None:
    for name, value in feeds.items():
        shape = getattr(value, "shape", ())
        if 0 in shape:
            raise InputError(
                f"input '{name}' is empty, {list(shape)}, and ONNX Runtime's LSTM, GRU and RNN cannot run on nothing"
            )


def _content(
    source: ModelLike, model: ir.Model, options: onnxruntime.SessionOptions
) -> tuple[str | bytes, list[onnxruntime.OrtValue]]:
    """Return what to load, and the values it refers to, which must live as long as the session."""
    if isinstance(source, (str, os.PathLike)) and not model.meta.get(REWRITTEN):
        return os.fspath(source), []
    if isinstance(source, onnx.ModelProto) and not model.meta.get(REWRITTEN):
        return _serialized(source), []
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    outside = any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors.values())
    if not outside and sum(t.nbytes for t in tensors.values() if t is not None) < _INLINE_LIMIT:
        return _serialized(to_proto(model)), []
    light = model.clone()
    names, values = [], []
    for name, tensor in tensors.items():
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < 1024:
            continue
        names.append(name)
        values.append(to_value(tensor.numpy(), tensor.dtype.numpy()))
        light.graph.initializers[name].const_value = ir.ExternalTensor(
            "in memory", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
        )
    options.add_external_initializers(names, values)
    return _serialized(to_proto(light)), values


def _serialized(proto: onnx.ModelProto) -> bytes:
    return bytes(proto.SerializeToString())


def _load_error(error: Exception, where: str) -> ModelFileError:
    text = cleaned(str(error))
    found = re.search(r"No Op registered for (\w+) with domain_version of (\d+)", text)
    if found:
        kind, opset = found.groups()
        known = {schema.name for schema in onnx.defs.get_all_schemas()}
        node = re.search(r'In Node, \("([^"]*)"', text)
        named = f" (node '{node[1]}')" if node and node[1] else ""
        newer = ""
        if kind in known:
            newer = f" It exists at opset {onnx.defs.get_schema(kind).since_version}: export the model again"
        return ModelFileError(
            f"{where} uses the operator {kind}{named}, which ONNX Runtime does not have at opset {opset}."
            f"{newer or did_you_mean(kind, known)}"
        )
    found = re.search(r"Could not find an implementation for (\w+)\((\d+)\) node with name '([^']*)'", text)
    if found:
        kind, opset, name = found.groups()
        named = f" (node '{name}')" if name else ""
        return ModelFileError(
            f"{where}: ONNX Runtime has no kernel for {kind}{named} at opset {opset} with the element types it has "
            "here; cast its inputs to a type that it takes"
        )
    return ModelFileError(f"ONNX Runtime does not load {where}: {text}")
