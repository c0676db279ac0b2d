"""Eager: run each operator as it is applied, on ONNX Runtime.

One operator with its attributes and input dtypes is one session, made once; its inputs have no declared rank, so it
serves every shape. Where the CPU provider has no kernel for a dtype, onnx's reference evaluator computes it.

A tensor's ``_needs`` is a bit set that says which reverse passes may reach it: bit 0 is ``backward()``, and every
running ``gk.grad`` owns one more. A record is kept only where some bit is set and being recorded, so that a plain
forward pass keeps nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy import ndarray
from onnx import helper

from graphkit import dtypes, interpreter
from graphkit.absent import UNREAD_INPUTS, UNREAD_OUTPUTS, WORTH, Absent
from graphkit.core import Record, Tensor, as_tensor
from graphkit.errors import GradientError, GraphkitError, OperatorError, TraceError
from graphkit.interpreter import Attributes
from graphkit.schemas import late_types, opset_for
from graphkit.source import describe, here, user_location

Run = Callable[[list[str], dict[str, Any], None], Any]  # as the session's own: outputs, feeds, options

ALL_LEVELS = -1
# Operators of which the reverse pass reads more outputs than most callers ask for (masks, indices, statistics), and how
# many to ask for where a record is kept.
KEPT_OUTPUTS: dict[tuple[str, str], int] = {}
_recording: ContextVar[int] = ContextVar("graphkit_recording", default=ALL_LEVELS)


@contextmanager
def recording(levels: int) -> Iterator[None]:
    """Record only for the reverse passes whose bits are set in ``levels`` (0: keep nothing)."""
    token = _recording.set(levels)
    try:
        yield
    finally:
        _recording.reset(token)


_watched: ContextVar[list[Tensor] | None] = ContextVar("graphkit_watched", default=None)


@contextmanager
def watching(found: list[Tensor]) -> Iterator[None]:
    """Collect the tensors from outside the block that operators inside it use and that a gradient may reach."""
    token = _watched.set(found)
    try:
        yield
    finally:
        _watched.reset(token)


def recorded_levels() -> int:
    return _recording.get()


class Eager:
    """The interpreter that is current unless a trace is being recorded."""

    def __init__(self) -> None:
        self._kernels: dict[Any, tuple[Run, list[str], tuple[str, ...]]] = {}

    def apply(
        self, op: str, inputs: Sequence[Tensor | None], attributes: Attributes | None, outputs: int, domain: str
    ) -> tuple[Tensor, ...]:
        needs = 0
        arrays: list[Any] = []
        signature: list[Any] = [op]
        whole = True
        for t in inputs:
            if t is None:
                whole = False
                arrays.append(None)
                signature.append(None)
                continue
            array = t._array
            if type(array) is not ndarray:
                if t.value is not None:
                    raise TraceError(
                        f"{op} at {here()} got a tensor of a trace that is over (or of another one): {t!r}. "
                        "Return it from the traced function instead of keeping it in a variable outside."
                    )
                if type(array) is Absent:
                    raise GradientError(
                        f"{op} reads a value of which only the shape was kept. This is a fault of graphkit: a gradient "
                        "rule reads more than graphkit.absent says of it."
                    )
                signature.append(("sequence", _sequence_dtype(array)))
            else:
                signature.append(array.dtype.num)
            arrays.append(array)
            needs |= t._needs
        count = outputs
        if needs & _recording.get():
            count = max(count, KEPT_OUTPUTS.get((op, domain), 0))
        signature.append(count)
        if attributes:
            frozen: Any = tuple(attributes.items())
            try:
                hash(frozen)
            except TypeError:  # lists and arrays
                frozen = _freeze(attributes)
            signature.append(frozen)
        if domain:
            signature.append(domain)
        key = tuple(signature)
        try:
            run, wanted, names = self._kernels[key]
        except KeyError:
            run, wanted, names = self._kernels[key] = self._prepare(op, arrays, attributes or {}, count, domain)
        try:
            feeds = dict(zip(names, arrays if whole else [a for a in arrays if a is not None]))  # noqa: B905  # every operator pays for strict
            results = run(wanted, feeds, None)
        except GraphkitError:
            raise
        except Exception as error:  # noqa: BLE001  # ONNX Runtime's and the reference evaluator's errors share no base class
            raise _explain(op, inputs, error) from None
        if needs:
            watched = _watched.get()
            if watched is not None:
                watched.extend(t for t in inputs if t is not None and t._needs and all(t is not w for w in watched))
            needs &= _recording.get()
        if not needs:
            return tuple([Tensor(array) for array in results])
        versions = 0
        for t in inputs:
            if t is not None:
                versions += t._version
        record = Record(
            op, domain, inputs, dict(attributes) if attributes else {}, results, user_location(), versions, needs=needs
        )
        first = results[0]
        if not domain and type(first) is ndarray and first.nbytes >= WORTH:
            _let_go(record)
        if count == 1 and type(first) is ndarray and first.dtype.kind == "f":
            return (Tensor(first, record, 0, needs),)
        if count != outputs:  # what the rule keeps is the record's own affair
            results = results[:outputs]
        return tuple(
            [
                Tensor(array, record, i, needs) if _carries(array) or op == "QuantizeLinear" else Tensor(array)
                for i, array in enumerate(results)
            ]
        )

    def assign(self, target: Tensor, value: Any) -> None:
        new = as_tensor(value)
        if target.record is not None:
            raise GradientError(f"assign() replaces a leaf tensor, not the result of {target.record.describe()}")
        if new.dtype != target.dtype or new.dims != target.dims:
            raise OperatorError(
                f"assign() at {here()} keeps dtype and shape: {target.name or 'the tensor'} is "
                f"{dtypes.name(target.dtype)}{list(target.shape)}, the value {dtypes.name(new.dtype)}{list(new.shape)}"
            )
        target._array = new._array
        target._version += 1

    def state_of(self, target: Tensor) -> Any:
        return target._array, target._version

    def put_back(self, target: Tensor, state: Any) -> None:
        target._array, target._version = state

    def stop_gradient(self, x: Tensor) -> Tensor:
        return Tensor(x._array)

    def _prepare(
        self, op: str, arrays: list[Any], attributes: Attributes, outputs: int, domain: str
    ) -> tuple[Run, list[str], tuple[str, ...]]:
        if op == "BatchNormalization" and attributes.get("training_mode") and outputs != 3:
            raise OperatorError(
                f"BatchNormalization at {describe(user_location())} has three results with training_mode=1, also the "
                "new running mean and variance; call it with outputs=3"
            )
        late = late_types([a.dtype for a in arrays if isinstance(a, ndarray)], attributes)
        opset = opset_for(op, domain, frozenset(attributes), len(arrays), late)
        model, names = _one_node_model(op, arrays, attributes, outputs, domain, opset)
        wanted = [o.name for o in model.graph.output]
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), _options(op), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001  # ONNX Runtime raises classes of its own, which it does not export
            if not _lacks_kernel(error):
                raise _explain(op, [None if a is None else Tensor(a) for a in arrays], error) from None
            session = None
        if session is None or _foreign(session):
            from graphkit import reference

            try:
                kernel = reference.kernel(model, wanted)
            except Exception:  # noqa: BLE001  # the evaluator raises what it likes for what it does not have
                given = ", ".join(dict.fromkeys(dtypes.name(a.dtype) for a in arrays if isinstance(a, ndarray)))
                raise OperatorError(
                    f"{domain + '.' if domain else ''}{op} at {describe(user_location())} has no kernel for {given} on "
                    "a CPU, and onnx's reference evaluator does not have the operator; cast its inputs to float32"
                ) from None
            return (lambda _wanted, feeds, _options: kernel(feeds)), wanted, names
        assert session._sess is not None
        # the public run() checks what is known here, at half the cost of the whole call
        run = _guarded(op, session._sess.run)
        return run, wanted, names


def _guarded(op: str, run: Any) -> Any:
    """The session's run(); recurrent kernels end the process when they are fed no rows, so those are refused first."""
    if op not in ("LSTM", "GRU", "RNN"):
        return run

    def checked(wanted: Sequence[str], feeds: dict[str, Any], options: Any) -> Any:
        if any(not a.size for a in feeds.values()):
            raise OperatorError(f"{op} at {here()} got an empty input; ONNX Runtime's kernel cannot run on nothing")
        return run(wanted, feeds, options)

    return checked


def _foreign(session: onnxruntime.InferenceSession) -> bool:
    """Whether a dtype goes in or out that ONNX Runtime's Python API has no numpy arrays for."""
    types = [v.type for v in (*session.get_inputs(), *session.get_outputs())]
    return any(name in t for t in types for name in ("bfloat16", "float8", "int4", "float4", "int2"))


def _let_go(record: Record) -> None:
    """Keep the shapes alone of what the record's gradient rule does not read."""
    unread = UNREAD_INPUTS.get(record.op)
    if unread is not None:
        inputs = list(record.inputs)
        for place in unread:
            t = inputs[place] if place < len(inputs) else None
            if t is not None and t.record is not None and type(t._array) is ndarray:
                inputs[place] = Tensor(Absent(t._array.shape, t._array.dtype), t.record, t.index, t._needs, t.name)
        record.inputs = tuple(inputs)
    if record.op in UNREAD_OUTPUTS:
        record.made = [Absent(a.shape, a.dtype) for a in record.made]


def _carries(array: Any) -> bool:
    return type(array) is not np.ndarray or array.dtype.kind in "fV"  # ml_dtypes' bfloat16 has kind V


def _freeze(attributes: Attributes) -> Any:
    frozen: list[Any] = []
    for name in sorted(attributes):
        value = attributes[name]
        if isinstance(value, list):
            value = tuple(value)
        elif isinstance(value, np.ndarray):
            value = (value.dtype.num, value.shape, value.tobytes())
        elif isinstance(value, onnx.TensorProto | onnx.GraphProto | onnx.TypeProto):
            value = value.SerializeToString()
        frozen.append((name, type(value), value))
    return tuple(frozen)


def _sequence_dtype(items: list[Any]) -> Any:
    return items[0].dtype.num if items else None


def _element_dtype(op: str, items: list[Any], arrays: list[Any]) -> dtypes.DType:
    if items:
        return items[0].dtype  # type: ignore[no-any-return]  # of an ndarray
    return arrays[1].dtype if op == "SequenceInsert" else dtypes.FLOAT32  # an empty sequence takes what comes in


def attribute_protos(attributes: Attributes) -> list[onnx.AttributeProto]:
    """Attributes as protos; a numpy array becomes a tensor."""
    protos = []
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, np.ndarray):
            value = onnx.numpy_helper.from_array(value)
        protos.append(helper.make_attribute(name, value))
    return protos


def _one_node_model(
    op: str, arrays: list[Any], attributes: Attributes, outputs: int, domain: str, opset: int
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    names = [f"i{n}" if a is not None else "" for n, a in enumerate(arrays)]
    node = helper.make_node(op, names, [f"o{n}" for n in range(outputs)], domain=domain)
    node.attribute.extend(attribute_protos(attributes))
    infos = []
    for name, array in zip(names, arrays, strict=True):
        if not name:
            continue
        if isinstance(array, list):
            element = helper.make_tensor_type_proto(dtypes.to_onnx(_element_dtype(op, array, arrays)), None)
            infos.append(helper.make_value_info(name, helper.make_sequence_type_proto(element)))
        else:
            infos.append(helper.make_tensor_value_info(name, dtypes.to_onnx(array.dtype), None))
    graph = helper.make_graph([node], "eager", infos, [onnx.ValueInfoProto(name=f"o{n}") for n in range(outputs)])
    imports = [helper.make_opsetid("", opset if not domain else 21)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = min(helper.find_min_ir_version_for(imports, ignore_unknown=True), 13)
    model.ir_version = max(model.ir_version, 10)
    return model, tuple(n for n in names if n)


# A session has a pool of threads of its own, so only operators that are worth one get it. (ONNX Runtime's global pool
# would be shared, but then no other session of the process may choose its threads.)
_THREADED = frozenset("MatMul Gemm Conv ConvTranspose Einsum RNN GRU LSTM Attention".split())


def _options(op: str) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = min(4, os.cpu_count() or 1) if op in _THREADED else 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _lacks_kernel(error: Exception) -> bool:
    return "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in str(error)


def _explain(op: str, inputs: Sequence[Tensor | None], error: Exception) -> OperatorError:
    shown = ", ".join("none" if t is None else _show(t) for t in inputs)
    from graphkit.runtime.messages import cleaned

    reason = str(error).strip()
    for marker in ("Status Message: ", "reason: "):
        reason = reason.rsplit(marker, 1)[-1]
    reason = next(iter(cleaned(reason).splitlines()), type(error).__name__)
    return OperatorError(f"{op}({shown}) at {describe(user_location())} failed: {reason[:400]}")


def _show(t: Tensor) -> str:
    if not isinstance(t._array, np.ndarray):
        return "sequence"
    return f"{dtypes.name(t._array.dtype)}{list(t._array.shape)}"


EAGER = Eager()
interpreter.set_default(EAGER)
