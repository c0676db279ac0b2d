"""export(): a function or module as an .onnx file, checked before it is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import autograd, dtypes, tree
from graphkit.core import Tensor, as_tensor
from graphkit.errors import GraphkitError, TraceError, VerificationError
from graphkit.exporters.inputs import random_inputs
from graphkit.exporters.test_vectors import write_test_vectors
from graphkit.exporters.verify import verify as verify_against
from graphkit.interpreter import apply1
from graphkit.modelfile import write_model
from graphkit.optimizers import optimize
from graphkit.runtime import run
from graphkit.source import here
from graphkit.tracing import Spec, Trace, argument_names, record
from graphkit.upgrade import lower_model

__all__ = ["export"]

Dynamic = Mapping[str, Mapping[int, str] | Sequence[str | int | None]]


def export(
    f: Callable[..., Any],
    args: Any,
    path: str | os.PathLike[str],
    *,
    dynamic: Dynamic | None = None,
    opset: int | None = None,
    verify: bool = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    test_vectors: bool = False,
) -> ir.Model:
    """Trace a function or module and write it as an ONNX file.

    Args:
        f: takes Tensors and returns them. A module is exported as it is for inference (``eval()``); parameters are
            called by their attribute paths.
        args: an example input (or ``gk.spec``), a tuple of them, or a dict by argument name.
        path: the file; weights of more than 100 MB in all go into ``<path>.data`` beside it.
        dynamic: for an input, the axes that may differ from run to run and their names: ``{"x": {0: "batch"}}``.
        opset: the ai.onnx opset, 7 to 26; 21 by default, and raised when an operator needs a newer one. An opset that
            is given is kept to.
        verify: run the file's model beside the function, on the example and on other sizes of the dynamic axes,
            before anything is written.
        input_names, output_names: other names than the arguments' own and ``output``.
        test_vectors: also write ``test_data_set_0/`` beside the file: inputs, outputs, and the gradients of the sum of
            all floating outputs with respect to inputs and parameters.

    Returns:
        The model as it was written.

    Raises:
        TraceError: where the function asks for a Python value that only the running graph knows.
        OperatorError: naming every line that cannot be said at the opset that was asked for, and which one it needs.
        VerificationError: if the model does not agree with the function; nothing is written.

    >>> import graphkit as gk, numpy as np, tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = gk.export(lambda x: gk.op.Relu(x), np.zeros((1, 3), "float32"), os.path.join(folder, "f.onnx"),
    ...                       dynamic={"x": {0: "batch"}})
    >>> str(model.graph.inputs[0].shape)
    '[batch,3]'
    """
    names, examples = _by_name(args, input_names)
    with _inference(f):
        found = names or argument_names(f, len(examples))
        specs = [_spec(e, n, dynamic) for n, e in zip(found, examples, strict=True)]
        _check_dynamic(dynamic, found)
        trace = record(f, specs, opset=opset, input_names=found, output_names=output_names)
        model = trace.model
        _check_dims(trace, specs)
        model = optimize(model, passes=("prune",), verify=False)
        lower_model(model, opset)
        feeds = {n: e for n, e in zip(found, examples, strict=True) if not isinstance(e, Spec)}
        if verify:
            _verify(f, trace, model, found, feeds)
        write_model(model, path)
        if test_vectors:
            _write_vectors(f, trace, model, found, feeds, Path(path).parent)
    return model


def _by_name(args: Any, given: Sequence[str] | None) -> tuple[list[str] | None, list[Any]]:
    if isinstance(args, Mapping):
        if given is not None and list(given) != list(args):
            raise TraceError(f"args is a dict, so its keys are the input names; leave input_names out ({here()})")
        return list(args), [_example(v) for v in args.values()]
    values = list(args) if isinstance(args, tuple) else [args]
    return (None if given is None else list(given)), [_example(v) for v in values]


def _example(value: Any) -> Any:
    if isinstance(value, Spec | Tensor):
        return value
    leaves, structure = tree.flatten(value)
    if structure != ("leaf",) and not all(isinstance(v, int | float | bool) for v in leaves):
        raise TraceError(f"an exported function's inputs are tensors, one an argument; got {structure[0]} ({here()})")
    return as_tensor(value)


def _spec(example: Any, name: str, dynamic: Dynamic | None) -> Spec:
    dtype, shape = example.dtype, list(example.shape)
    wanted = (dynamic or {}).get(name, {})
    if isinstance(wanted, Mapping):
        for axis, dim in wanted.items():
            if not -len(shape) <= axis < len(shape):
                raise TraceError(f"dynamic names axis {axis} of '{name}', which has rank {len(shape)} ({here()})")
            shape[axis] = dim
    else:
        if len(wanted) != len(shape):
            raise TraceError(f"dynamic names {len(wanted)} axes of '{name}', which has rank {len(shape)} ({here()})")
        shape = [s if w is None else w for s, w in zip(shape, wanted, strict=True)]
    return Spec(dtype, tuple(shape), name)


def _check_dynamic(dynamic: Dynamic | None, names: Sequence[str]) -> None:
    unknown = [n for n in dynamic or {} if n not in names]
    if unknown:
        raise TraceError(f"dynamic names '{unknown[0]}', no input; the inputs are {', '.join(names)} ({here()})")


def _check_dims(trace: Trace, specs: Sequence[Spec]) -> None:
    """Every dimension that was named is still a name in the model."""
    for value, spec in zip(trace.graph.graph.inputs, specs, strict=True):
        kept = [d if isinstance(d, int) else d.value for d in value.shape or ()]
        if kept != list(spec.shape):
            raise TraceError(f"input '{value.name}' was to be {list(spec.shape)} and became {kept}")


def _verify(
    f: Callable[..., Any], trace: Trace, model: ir.Model, names: Sequence[str], feeds: Mapping[str, Any]
) -> None:
    if any(record.op_type in _RANDOM for record in model.graph.all_nodes()):
        return  # two runs differ, and rightly

    def eager(*arrays: Any) -> list[Any]:
        with autograd.no_grad():
            return tree.flatten(f(*[as_tensor(a) for a in arrays]))[0]

    arrays = {n: t.numpy() for n, t in feeds.items()}
    dynamic = {
        d.value for v in model.graph.inputs for d in v.shape or () if not isinstance(d, int) and d.value is not None
    }
    tries: list[dict[str, Any]] = [arrays] if len(arrays) == len(names) else []
    if dynamic or not tries:
        tries.extend({} for _ in range(1 if tries else 2))
    for number, given in enumerate(tries):
        sizes = {d: 2 + number + n for n, d in enumerate(sorted(dynamic))}
        inputs = given or random_inputs(model, sizes, number, None)
        try:
            verify_against(model, eager, inputs)
        except VerificationError as error:
            raise VerificationError(f"the exported model does not compute what the function does: {error}") from None
        except GraphkitError as error:
            if given:
                raise
            shown = ", ".join(f"{d} = {size}" for d, size in sizes.items()) or "made-up inputs"
            raise VerificationError(
                f"the exported model or the function fails for {shown}, which dynamic= says it need not: {error}"
            ) from None


_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


def _write_vectors(
    f: Callable[..., Any], trace: Trace, model: ir.Model, names: Sequence[str], feeds: Mapping[str, Any], folder: Path
) -> None:
    inputs = {n: feeds[n].numpy() for n in names if n in feeds}
    if len(inputs) < len(names):
        inputs = random_inputs(model, None, 0, inputs)
    parameters = trace.graph.parameters
    leaves = {
        n: Tensor(as_tensor(a)._array, needs=int(dtypes.is_float(np.asarray(a).dtype))) for n, a in inputs.items()
    }
    kept = {n: p.grad for n, p in parameters.items()}
    total: Tensor | None = None
    for result in tree.flatten(f(*leaves.values()))[0]:
        if dtypes.is_float(result.dtype):
            part = apply1("ReduceSum", result, keepdims=0)
            total = part if total is None else total + part
    gradients: dict[str, Any] = {}
    if total is not None and total.requires_grad:
        for p in parameters.values():
            p.grad = None
        total.backward()
        for name, t in {**leaves, **parameters}.items():
            if t.grad is not None:
                gradients[f"{name}_grad"] = t.grad.numpy()
    for n, p in parameters.items():
        p.grad = kept[n]
    write_test_vectors(folder, inputs, run(model, inputs, optimizations=False), gradients)


@contextmanager
def _inference(f: Any) -> Iterator[None]:
    """A module in eval mode for the time of the export."""
    if not (getattr(f, "training", False) and callable(getattr(f, "eval", None))):
        yield
        return
    f.eval()
    try:
        yield
    finally:
        f.train()
