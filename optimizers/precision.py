"""to_precision(): a model that computes in float16 or bfloat16, with what must stay in float32 kept there."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
import onnx
import onnx_ir as ir

from graphkit.errors import GraphkitError, PassError
from graphkit.modelfile import ModelLike, give_back, read_model
from graphkit.modelfile.external import embedded
from graphkit.modelfile.protos import every_node, to_proto
from graphkit.optimizers.add_updates import NEXT, STATE
from graphkit.optimizers.context import Context
from graphkit.optimizers.loss_check import LossCheck, LossReport, inlined, name_of, worst_first
from graphkit.optimizers.precision_operators import EXACT
from graphkit.optimizers.precision_plan import Plan, Planner, declare_types, is_float32
from graphkit.optimizers.precision_rewrite import Arrays, Halver, emulated
from graphkit.optimizers.report import measure

__all__ = ["PrecisionReport", "to_precision"]

_TYPES: Final = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
# The relative error that is let through where the caller names none: some 20 roundings.
_TOLERANCES: Final = {"float16": 0.01, "bfloat16": 0.08}
# Below this opset an operator's standard form takes no such numbers.
_OLDEST: Final = {"float16": 7, "bfloat16": 13}
# Values beyond a quarter of the largest float16, or that are subnormal in it, are not stored in it.
_LARGE, _SMALL = 65504 / 4, 2.0**-14


@dataclass(slots=True)
class PrecisionReport(LossReport):
    """What a conversion did.

    ``kept`` gives a reason for each node that stays float32; the rest is said of ``LossReport``.
    """

    dtype: str = ""
    converted: int = 0
    casts: int = 0


@overload
def to_precision(
    model: onnx.ModelProto,
    dtype: str,
    keep: Collection[str] = ...,
    *,
    keep_io: bool = ...,
    check: bool = ...,
    tolerance: float | None = ...,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = ...,
    report: PrecisionReport | None = ...,
) -> onnx.ModelProto: ...


@overload
def to_precision(
    model: str | os.PathLike[str] | ir.Model,
    dtype: str,
    keep: Collection[str] = ...,
    *,
    keep_io: bool = ...,
    check: bool = ...,
    tolerance: float | None = ...,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = ...,
    report: PrecisionReport | None = ...,
) -> ir.Model: ...


def to_precision(
    model: ModelLike,
    dtype: str,
    keep: Collection[str] = (),
    *,
    keep_io: bool = True,
    check: bool = True,
    tolerance: float | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    report: PrecisionReport | None = None,
) -> ir.Model | onnx.ModelProto:
    """Return the model with its float32 weights and arithmetic in ``"float16"`` or ``"bfloat16"``: half the size.

    Nodes stay in float32 where ONNX Runtime's CUDA provider has no kernel, where numbers are lost (exponentials,
    powers, sums, softmax, losses, positions and sizes), where a constant overflows or underflows, and where ``keep``
    says so. Loop states stay float32. Model-local functions are inlined.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed, and its kind comes back.
        dtype: ``"float16"`` or ``"bfloat16"``.
        keep: What stays in float32: names of nodes, of operators, of values (the node that makes one; of a weight or
            an input, those that read it), or patterns of such names (``"*/norm/*"``).
        keep_io: Keep the declared types of inputs (overridable initializers too) and outputs, and cast behind them.
        check: Run the result beside the original. Where an output's relative error passes ``tolerance``, the nodes at
            fault are found and stay in float32 too. What runs is the result with every half node computed in float32
            and its output rounded to ``dtype``, which is what kernels do that accumulate in float32.
        tolerance: The largest difference over the largest number of an output (over 1, the range, for those of sigmoid,
            softmax and tanh); 0.01, for bfloat16 0.08, if not given.
        inputs: Inputs by name to check with, instead of generated ones.
        report: A ``PrecisionReport`` to fill.

    Raises ``PassError`` for another dtype, an entry of ``keep`` that names nothing, a training graph (which needs
    float32 master weights and a loss scale: convert the inference model instead), and a model whose opset is too old.

    >>> import graphkit as gk
    >>> model = gk.trace(lambda x, w: gk.op.Relu(x @ w), gk.spec("float32", ["n", 3]), gk.spec("float32", [3, 2]))
    >>> [node.op_type for node in to_precision(model, "float16").graph]
    ['Cast', 'Cast', 'MatMul', 'Relu', 'Cast']
    """
    half = _TYPES.get(dtype)
    if half is None:
        raise PassError(f"the precision is 'float16' or 'bfloat16', not {dtype!r}")
    if isinstance(keep, str):
        raise PassError(f"keep is a list of names, not the text {keep!r}")
    if tolerance is not None and not tolerance > 0:
        raise PassError(f"the tolerance is a relative error above 0, not {tolerance!r}")
    account = PrecisionReport() if report is None else report
    started = time.perf_counter()
    account.dtype = dtype
    account.tolerance = _TOLERANCES[dtype] if tolerance is None else tolerance
    original = read_model(model)
    _refuse(original, dtype)
    account.bytes_before = measure(original).bytes
    base = inlined(original)
    result = _Conversion(base, half, keep, keep_io=keep_io, account=account).run(check=check, inputs=inputs)
    account.bytes_after = measure(result).bytes
    account.seconds = time.perf_counter() - started
    return give_back(model, result)


def _refuse(model: ir.Model, dtype: str) -> None:
    opset = model.opset_imports.get("", 1)
    if "" in model.opset_imports and opset < _OLDEST[dtype]:
        raise PassError(
            f"at opset {opset} the operators take no {dtype}; change the opset to {_OLDEST[dtype]} or newer first"
        )
    training = [
        node.name or node.op_type
        for node in every_node(model.graph)
        if node.op_type in ("BatchNormalization", "Dropout") and _trains(node)
    ]
    inputs = {value.name for value in model.graph.inputs}
    steps = [v.name for v in model.graph.outputs if v.name and v.name.removesuffix(NEXT) in inputs - {v.name}]
    if STATE in model.metadata_props or steps or training:
        shown = f" ({training[0]} is in training mode)" if training else ""
        raise PassError(
            f"this is a training graph{shown}: in {dtype} it would need float32 master weights and a loss scale, which "
            "is not offered. Convert the inference model (to_inference, Trainer.export_inference) instead"
        )


def _trains(node: ir.Node) -> bool:
    if node.op_type == "BatchNormalization":
        return node.attributes.get_int("training_mode", 0) == 1
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    if mode is None:
        return False
    constant = mode.const_value if mode.is_initializer() and not mode.is_graph_input() else None
    return constant is None or bool(constant.numpy())


def _plain_casts(model: ir.Model) -> None:
    """Write CastLike as the Cast that it is, and those that change no type as Identity: they follow what they read."""
    for node in every_node(model.graph):
        if node.domain != "" or node.op_type not in ("Cast", "CastLike") or node.outputs[0].dtype is None:
            continue
        source, made = node.inputs[0], node.outputs[0]
        if node.op_type == "CastLike":
            node.resize_inputs(1)
            node.attributes.clear()
            node.op_type = "Cast"
            node.attributes["to"] = ir.AttrInt64("to", int(made.dtype or 0))
        if source is not None and source.dtype == made.dtype == ir.DataType.FLOAT:
            node.attributes.clear()
            node.op_type = "Identity"


class _Conversion:
    """One model on its way: planned once, written as often as the loss check asks."""

    def __init__(
        self, base: ir.Model, half: ir.DataType, keep: Collection[str], *, keep_io: bool, account: PrecisionReport
    ) -> None:
        self.base = base
        self.half = half
        self.keep_io = keep_io
        self.account = account
        self.ctx = Context(base, training=False, slack=0)
        untyped = declare_types(self.ctx)
        _plain_casts(base)
        numbers = {node: number for number, node in enumerate(every_node(base.graph))}
        self.untyped = [
            (numbers[producer], value.index() or 0) for value in untyped if (producer := value.producer()) is not None
        ]
        self.planner = Planner(self.ctx, half, keep, keep_io=keep_io)
        self.arrays: Arrays = {}

    def run(self, *, check: bool, inputs: Mapping[str, np.ndarray[Any, Any]] | None) -> ir.Model:
        plan = self.planner.plan()
        loss = LossCheck(self.base, inputs) if check else None
        if loss is not None and not loss.why_not:
            try:
                plan = self._settle(plan, loss)
            except GraphkitError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the runtime says of what stands for the result
                loss.why_not = f"the rounding cannot be emulated: {str(error).splitlines()[0][:200]}"
        result, casts = self._write(plan.half, types=False)
        self._describe(plan, casts)
        if loss is None:
            self.account.checked = "not checked: it was not asked for"
        elif loss.why_not:
            self.account.checked = f"not checked: {loss.why_not}"
        else:
            self._load(result, loss)
            self.account.not_reached = loss.unreached()
            if self.account.not_reached:
                self.account.checked += f"; NOT CHECKED, since no input ran it: {', '.join(self.account.not_reached)}"
        return result

    def _settle(self, plan: Plan, loss: LossCheck) -> Plan:
        """Take nodes out of the plan until the error is within the tolerance."""
        outside: set[ir.Value] = set()
        if self.half == ir.DataType.FLOAT16:
            outside = self._out_of_range(plan, loss)
        forced: set[int] = set()
        plan = self.planner.plan(forced, outside)
        error = self._trial(plan.half, loss)
        if error > self.account.tolerance:
            operators = [node.op_type for node in every_node(self.base.graph)]
            # What moves numbers rounds them no more than its readers do, so it is looked at last.
            movers = sorted(number for number in plan.half if operators[number] in EXACT)
            others = sorted(plan.half.difference(movers))
            searches = (worst_first(each, lambda chosen: self._trial(chosen, loss)) for each in (others, movers))
            for found in itertools.chain.from_iterable(searches):
                forced.update(found)
                plan = self.planner.plan(forced, outside)
                error = self._trial(plan.half, loss)
                if error <= self.account.tolerance:
                    break
        if error > self.account.tolerance:
            raise PassError(
                f"the output '{loss.worst_output}' cannot be given out in {self.account.dtype}: even with every node "
                f"in float32 its relative error is {error:.2g}, over {self.account.tolerance:.2g}; keep the types of "
                "inputs and outputs (keep_io)"
            )
        self.account.error, self.account.worst_output = error, loss.worst_output
        nodes = list(every_node(self.base.graph))
        self.account.by_check = [name_of(nodes[number]) for number in sorted(forced)]
        return plan

    def _out_of_range(self, plan: Plan, loss: LossCheck) -> set[ir.Value]:
        nodes = list(every_node(self.base.graph))
        own = [value for number in plan.half for value in (*nodes[number].outputs, *nodes[number].inputs)]
        graph = self.base.graph
        asked = dict.fromkeys(
            value for value in own
            if is_float32(value) and not value.is_initializer()
            and value.graph is graph and ((maker := value.producer()) is None or maker.op_type != "Constant")
        )  # fmt: skip
        ranges = loss.ranges(list(asked))
        return {value for value, top in ranges.items() if top > _LARGE or 0 < top < _SMALL}

    def _trial(self, converted: Collection[int], loss: LossCheck) -> float:
        model, _ = self._write(converted)
        emulated(Context(model, training=False, slack=0), self.half)
        return loss.error(model)

    def _write(self, converted: Collection[int], *, types: bool = True) -> tuple[ir.Model, int]:
        """The model with some nodes in half precision; ``types`` keeps those of values that had none declared."""
        model = self.base.clone()
        nodes = list(every_node(model.graph))
        halver = Halver(
            Context(model, training=False, slack=0), self.half, converted, keep_io=self.keep_io, arrays=self.arrays
        )
        halver.run()
        for number, index in () if types else self.untyped:
            value = nodes[number].outputs[index]
            if not value.is_graph_output():
                value.type = None
        return model, halver.casts

    def _describe(self, plan: Plan, casts: int) -> None:
        nodes = list(every_node(self.base.graph))
        self.account.converted = len(plan.half)
        self.account.casts = casts
        self.account.kept = {name_of(nodes[number]): reason for number, reason in plan.kept.items()}

    def _load(self, result: ir.Model, loss: LossCheck) -> None:
        """See that the result itself is sound, as far as the CPU provider can tell."""
        kind = self.account.dtype
        how = f"each {kind} node computed in float32 and its output rounded to {kind}"
        try:
            if self.half == ir.DataType.FLOAT16:
                loss.error(result)
                how += "; the file itself loads and runs on the CPU provider, which computes float16 in float32"
            else:
                how += f"; the CPU provider lacks bfloat16 kernels{self._by_checker(result)}"
        except Exception as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise PassError(f"the model in {kind} is not sound: {first}. Keep the nodes it names with keep") from error
        self.account.checked = how

    def _by_checker(self, result: ir.Model) -> str:
        """See that ONNX's own checker takes the types of the result, if it takes those of the original."""
        try:
            onnx.checker.check_model(to_proto(embedded(self.base)), full_check=True)
        except Exception:  # noqa: BLE001 - a type of its own, or protobuf's for what is too large
            return ", and ONNX's checker refuses the original"
        onnx.checker.check_model(to_proto(embedded(result)), full_check=True)
        return "; ONNX's checker takes the file"
