"""quantize_weights(): weights in 8 or 4 bits, arithmetic in floating point as before."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

import numpy as np
import onnx
import onnx_ir as ir

from graphkit.errors import PassError, did_you_mean
from graphkit.modelfile import ModelLike, give_back, read_model
from graphkit.modelfile.protos import every_graph, every_node
from graphkit.optimizers.context import Context
from graphkit.optimizers.loss_check import LossCheck, LossReport, inlined, worst_first
from graphkit.optimizers.precision_plan import constant_of, declare_types, matches
from graphkit.optimizers.quantize_layout import Layout, layout_of, packed
from graphkit.optimizers.report import measure

__all__ = ["QuantizationReport", "quantize_weights"]

_TYPES: Final = {8: ir.DataType.INT8, 4: ir.DataType.INT4}
_TOLERANCES: Final = {8: 0.05, 4: 0.2}
_FORMS: Final = ("cast", "dequantize")
_BLOCK: Final = 32


@dataclass(slots=True)
class QuantizationReport(LossReport):
    """What a quantization did.

    ``quantized`` names the weights in few bits, ``in_bits`` says in how many each (what 4 do not suit is in 8), and
    ``kept`` gives a reason for each of the other large ones; the rest is said of ``LossReport``.
    """

    bits: int = 8
    quantized: list[str] = field(default_factory=list)
    in_bits: dict[str, int] = field(default_factory=dict)


@overload
def quantize_weights(
    model: onnx.ModelProto,
    bits: int = ...,
    *,
    block: int | None = ...,
    min_elements: int = ...,
    keep: Collection[str] = ...,
    form: str = ...,
    check: bool = ...,
    tolerance: float | None = ...,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = ...,
    report: QuantizationReport | None = ...,
) -> onnx.ModelProto: ...


@overload
def quantize_weights(
    model: str | os.PathLike[str] | ir.Model,
    bits: int = ...,
    *,
    block: int | None = ...,
    min_elements: int = ...,
    keep: Collection[str] = ...,
    form: str = ...,
    check: bool = ...,
    tolerance: float | None = ...,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = ...,
    report: QuantizationReport | None = ...,
) -> ir.Model: ...


def quantize_weights(
    model: ModelLike,
    bits: int = 8,
    *,
    block: int | None = None,
    min_elements: int = 1024,
    keep: Collection[str] = (),
    form: str = "cast",
    check: bool = True,
    tolerance: float | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    report: QuantizationReport | None = None,
) -> ir.Model | onnx.ModelProto:
    """Return the model with its large weights as integers and scales: about a quarter (or an eighth) of the size.

    A weight w becomes round(w / s), s = max|w| / 127 (7 for 4 bits): symmetric, one scale for each output channel of
    MatMul, Gemm, Conv, ConvTranspose, LSTM, GRU and RNN, for each row of a table that Gather reads, or for each block.
    Arithmetic stays floating point. A weight that several nodes read stays one. Model-local functions are inlined.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed, and its kind comes back.
        bits: 8, or 4 (opset 21; what 4 bits do not suit, as kernels of convolutions, is written in 8).
        block: One scale for so many neighbours along the axis that is summed over, where it divides that; for 4 bits
            32 if not given, for 8 bits the whole axis.
        min_elements: Weights of fewer elements stay as they are.
        keep: What stays as it is: names of weights, of nodes or operators that read them, or patterns of such names.
        form: ``"cast"`` writes ``Cast(q) * s``, which ONNX Runtime computes once, at load: exact, and as fast as
            before. ``"dequantize"`` writes ``DequantizeLinear`` (opset 13), which other tools look for; ONNX Runtime
            keeps such weights small in memory too, computes it at every run, and by default makes a MatMul behind it
            one that rounds its other input to 8 bits as well (0.5% of the range).
        check: Run the result beside the original. Where an output's relative error passes ``tolerance``, the weights
            at fault are found and stay as they were.
        tolerance: The largest difference over the largest number of an output (over 1, the range, for those of sigmoid,
            softmax and tanh); 0.05, for 4 bits 0.2, if not given.
        inputs: Inputs by name to check with, instead of generated ones.
        report: A ``QuantizationReport`` to fill.

    Raises ``PassError`` for other bits or forms, an entry of ``keep`` that names nothing, and an opset that is too old.

    >>> import graphkit as gk
    >>> weight = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    >>> model = gk.trace(lambda x: x @ gk.tensor(weight), gk.spec("float32", ["n", 64]))
    >>> small = quantize_weights(model)
    >>> [node.op_type for node in small.graph]
    ['Cast', 'Mul', 'MatMul']
    """
    if bits not in _TYPES:
        raise PassError(f"weights are quantized to 8 or 4 bits, not {bits!r}")
    if form not in _FORMS:
        raise PassError(f"the form is 'cast' or 'dequantize', not {form!r}.{did_you_mean(str(form), _FORMS)}")
    if isinstance(keep, str):
        raise PassError(f"keep is a list of names, not the text {keep!r}")
    if block is not None and (isinstance(block, bool) or block < 2):
        raise PassError(f"a block holds at least 2 elements, not {block!r}")
    if tolerance is not None and not tolerance > 0:
        raise PassError(f"the tolerance is a relative error above 0, not {tolerance!r}")
    account = QuantizationReport() if report is None else report
    started = time.perf_counter()
    account.bits = bits
    account.tolerance = _TOLERANCES[bits] if tolerance is None else tolerance
    original = read_model(model)
    account.bytes_before = measure(original).bytes
    base = inlined(original)
    block = _BLOCK if block is None and bits == 4 else block
    _check_opset(base, bits, block, form)
    work = _Quantization(base, bits, block, min_elements, keep, form=form, account=account)
    result = work.run(check=check, inputs=inputs)
    account.bytes_after = measure(result).bytes
    account.seconds = time.perf_counter() - started
    return give_back(model, result)


def _check_opset(model: ir.Model, bits: int, block: int | None, form: str) -> None:
    opset = model.opset_imports.get("", 1)
    needs = 21 if bits == 4 or (form == "dequantize" and block is not None) else 13 if form == "dequantize" else 7
    if opset < needs:
        what = "4-bit weights" if bits == 4 else "blocks in DequantizeLinear" if block else "this form"
        raise PassError(
            f"{what} need opset {needs}, and the model is at {opset}; change_opset to {needs} first (--opset {needs})"
        )


class _Quantization:
    """One model: which weights can be quantized and how, and the model with some of them quantized."""

    def __init__(
        self,
        base: ir.Model,
        bits: int,
        block: int | None,
        min_elements: int,
        keep: Collection[str],
        *,
        form: str,
        account: QuantizationReport,
    ) -> None:
        self.base = base
        self.bits = bits
        self.form = form
        self.account = account
        self.layouts: list[tuple[str, int, Layout]] = []
        self._packed: dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}
        declare_types(Context(base, training=False, slack=0))
        found: set[str] = set()
        for node in every_node(base.graph):
            found |= matches(keep, node)
        for position, (value, tensor) in enumerate(_weights(base)):
            if tensor.size < max(1, min_elements):
                continue
            name = value.name or ""
            kept = {entry for use in value.uses() for entry in matches(keep, use.node)}
            layout = f"'{min(kept)}' is on the keep list" if kept else layout_of(value, tensor, bits, block)
            if isinstance(layout, str):
                account.kept[name] = layout
            else:
                self.layouts.append((name, position, layout))
        if unknown := [entry for entry in keep if entry not in found]:
            names = [name for node in every_node(base.graph) for name in (node.name, node.op_type) if name]
            close = did_you_mean(unknown[0], [*names, *(value.name or "" for value, _ in _weights(base))])
            raise PassError(f"nothing in the model is called '{unknown[0]}' (in keep).{close}")

    def run(self, *, check: bool, inputs: Mapping[str, np.ndarray[Any, Any]] | None) -> ir.Model:
        loss = LossCheck(self.base, inputs) if check else None
        chosen = list(range(len(self.layouts)))
        if loss is None or loss.why_not:
            why = "it was not asked for" if loss is None else loss.why_not
            self.account.checked = f"not checked: {why}"
        else:
            chosen = self._settle(chosen, loss)
            self.account.checked = "the model run beside the original on ONNX Runtime, its own optimizations off"
            self.account.not_reached = loss.unreached()
            if self.account.not_reached:
                self.account.checked += f"; NOT CHECKED, since no input ran it: {', '.join(self.account.not_reached)}"
        self.account.quantized = [self.layouts[index][0] for index in chosen]
        self.account.in_bits = {name: layout.bits for name, _, layout in (self.layouts[index] for index in chosen)}
        return self._write(chosen)

    def _settle(self, chosen: list[int], loss: LossCheck) -> list[int]:
        error = loss.error(self._write(chosen))
        faults: set[int] = set()
        if error > self.account.tolerance:
            for found in worst_first(chosen, lambda some: loss.error(self._write(some))):
                faults.update(found)
                chosen = [index for index in chosen if index not in faults]
                error = loss.error(self._write(chosen))
                if error <= self.account.tolerance:
                    break
        self.account.by_check = [self.layouts[index][0] for index in sorted(faults)]
        reason = "the loss check put it on the keep list"
        self.account.kept.update(dict.fromkeys(self.account.by_check, reason))
        self.account.error, self.account.worst_output = error, loss.worst_output
        return chosen

    def _write(self, chosen: Sequence[int]) -> ir.Model:
        model = self.base.clone()
        ctx = Context(model, training=False, slack=0)
        weights = _weights(model)
        for index in chosen:
            _, position, layout = self.layouts[index]
            value, tensor = weights[position]
            if index not in self._packed:
                self._packed[index] = packed(np.asarray(tensor.numpy()), layout)
            self._replace(ctx, value, layout, *self._packed[index])
        return model

    def _replace(
        self,
        ctx: Context,
        value: ir.Value,
        layout: Layout,
        numbers: np.ndarray[Any, Any],
        scale: np.ndarray[Any, Any],
    ) -> None:
        producer = value.producer()
        graph = value.graph if producer is None else producer.graph
        assert isinstance(graph, ir.Graph)
        name, shape, dtype = value.name or "", ir.Shape(numbers.shape), value.dtype
        assert dtype is not None
        uses = list(value.uses())
        first = next(iter(graph)) if producer is None else producer
        if producer is None:
            del graph.initializers[name]  # and not renamed: its tensor, which is shared, would be too
        else:
            value.name = ctx.name(f"{name}_before")
        whole = _initializer(ctx, graph, f"{name}_quantized", numbers, _TYPES[layout.bits])
        if (
            self.form == "dequantize"
        ):  # which wants the scales of channels as a vector, those of blocks without the axis
            scale = scale.reshape(-1) if layout.block is None else scale.squeeze((layout.axis or 0) + 1)
        factor = _initializer(ctx, graph, f"{name}_scale", scale, dtype)
        if self.form == "dequantize":
            attributes: dict[str, Any] = {} if layout.axis is None else {"axis": layout.axis}
            if layout.block is not None:
                attributes["block_size"] = layout.block
            made = _before(ctx, first, "DequantizeLinear", [whole, factor], attributes, name)
        else:
            made = _before(ctx, first, "Cast", [whole], {"to": int(dtype)}, ctx.name(f"{name}_integers"))
            made = self._scaled(ctx, graph, first, made, factor, layout, name, numbers.shape)
        made.name, made.shape, made.type = name, shape, ir.TensorType(dtype)
        made.doc_string = value.doc_string
        made.metadata_props.update(value.metadata_props)
        for use in uses:
            use.node.replace_input_with(use.idx, made)
        if producer is not None:
            graph.remove(producer)

    def _scaled(
        self,
        ctx: Context,
        graph: ir.Graph,
        first: ir.Node,
        made: ir.Value,
        factor: ir.Value,
        layout: Layout,
        name: str,
        shape: tuple[int, ...],
    ) -> ir.Value:
        if layout.block is None:
            return _before(ctx, first, "Mul", [made, factor], {}, name)
        # One more axis for the place within a block; the scales have one element there.
        assert layout.axis is not None
        axis = layout.axis
        split = (*shape[:axis], shape[axis] // layout.block, layout.block, *shape[axis + 1 :])
        for hint, target in ((f"{name}_blocks", split), (name, shape)):
            dims = _initializer(ctx, graph, f"{hint}_shape", np.array(target, np.int64), ir.DataType.INT64)
            if target is shape:
                made = _before(ctx, first, "Mul", [made, factor], {}, ctx.name(f"{name}_scaled"))
            made = _before(ctx, first, "Reshape", [made, dims], {}, hint)
        return made


def _weights(model: ir.Model) -> list[tuple[ir.Value, ir.TensorProtocol]]:
    """What no caller may override: initializers, and the outputs of Constant nodes, of every graph, in order."""
    values = [value for graph in every_graph(model.graph) for value in graph.initializers.values()]
    values += [node.outputs[0] for node in every_node(model.graph) if node.op_type == "Constant" and node.domain == ""]
    found = ((value, constant_of(value, ir_version=model.ir_version)) for value in values)
    return [(value, tensor) for value, tensor in found if tensor is not None]


def _initializer(ctx: Context, graph: ir.Graph, hint: str, array: np.ndarray[Any, Any], dtype: ir.DataType) -> ir.Value:
    name = ctx.name(hint)
    tensor = ir.Tensor(array, dtype=dtype, name=name)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def _before(
    ctx: Context, first: ir.Node, operator: str, inputs: list[ir.Value], attributes: dict[str, Any], name: str
) -> ir.Value:
    node = ir.node(operator, inputs, attributes, name=ctx.name(f"{name}_{operator.lower()}"))
    assert first.graph is not None
    first.graph.insert_before(first, node)
    node.outputs[0].name = name
    return node.outputs[0]
