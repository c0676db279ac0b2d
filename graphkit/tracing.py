"""trace(): a Python function on Tensors, as an ONNX model."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import dims, dtypes, interpreter, tree
from graphkit.core import Tensor
from graphkit.errors import TraceError
from graphkit.graph import Graph
from graphkit.modelfile import lowest_ir_version
from graphkit.schemas import NEWEST_OPSET, WORKING_OPSET
from graphkit.source import here
from graphkit.upgrade import OLDEST, lower_model

PARAMETERS = "graphkit.parameters"


@dataclass(frozen=True)
class Spec:
    """An input that a trace is made for: dtype, dims, and a name (the argument's own by default)."""

    dtype: dtypes.DType
    shape: tuple[int | str | None, ...]
    name: str | None = None


def spec(dtype: Any, shape: Sequence[int | str | None] | int, name: str | None = None) -> Spec:
    """Describe a trace's input; a name among the dims is a dimension that may differ from run to run.

    >>> spec("float32", ["batch", 784]).shape
    ('batch', 784)
    """
    shape = (shape,) if isinstance(shape, str | int) else shape  # "batch" is one dimension, not five
    for extent in shape:
        if isinstance(extent, bool) or not (extent is None or isinstance(extent, int | str)):
            raise TypeError(f"a dimension is an integer or a name, got {extent!r} ({here()})")
        if (isinstance(extent, int) and extent < 0) or (isinstance(extent, str) and extent[:1] in ("", "?")):
            raise TypeError(
                f"a dimension is an integer of 0 or more, or a name such as 'batch', got {extent!r} ({here()}); None "
                "stands for one that may differ and has no name"
            )
    return Spec(dtypes.as_dtype(dtype), tuple(shape), name)


@dataclass
class Trace:
    """A finished trace: the graph, and where the function's results and state went."""

    graph: Graph
    outputs: list[str]
    structure: tree.Structure
    updates: dict[str, str]  # initializer name -> name of the output that holds its next value
    model: ir.Model


def trace(
    f: Callable[..., Any],
    *specs: Any,
    opset: int | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> ir.Model:
    """Record a function or module on described inputs as an ``onnx_ir.Model``.

    The model computes the function's results. What the function assigns to parameters and buffers is seen by the rest
    of the function and is no output of the model; ``gk.training.build`` makes a model that keeps such states.

    Args:
        f: takes Tensors (or trees of them) and returns them.
        specs: ``gk.spec(...)``, an example array or a Tensor for each argument, or trees of those.
        opset: the ai.onnx opset to write, 21 by default and raised if an operator needs a newer one. An opset that is
            given, 7 to 26, is kept to: what an older one lacks is said in its words, and what it has no words for is
            an OperatorError.
        input_names, output_names: other names than the arguments' own and ``output``, ``output_1``...

    Raises:
        TraceError: where the function asks for a Python value that only the running graph knows.

    >>> import graphkit as gk
    >>> model = gk.trace(lambda x: gk.op.Relu(x), gk.spec("float32", ["batch", 3]))
    >>> model.graph.inputs[0].name, str(model.graph.inputs[0].shape)
    ('x', '[batch,3]')
    """
    model = record(f, specs, opset=opset, input_names=input_names, output_names=output_names).model
    lower_model(model, opset)
    return model


def record(
    f: Callable[..., Any],
    specs: Sequence[Any],
    *,
    opset: int | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    with_updates: bool = False,
) -> Trace:
    """What ``trace`` does, with more to say about the result; ``with_updates`` makes state updates outputs.

    The model is at the working opset or a newer one still: ``lower_model`` brings it to the one that was asked for.
    """
    if opset is not None and not OLDEST <= opset <= NEWEST_OPSET:
        raise TraceError(
            f"opset {opset} was asked for at {here()}; graphkit writes opsets {OLDEST} to {NEWEST_OPSET}, the newest "
            "that ONNX Runtime loads."
        )
    graph = Graph(opset=max(opset or 0, WORKING_OPSET), names=parameter_names(f))
    if input_names is not None and len(input_names) != len(specs):
        raise TraceError(f"{len(specs)} inputs were described and {len(input_names)} named ({here()})")
    given = input_names or argument_names(f, len(specs))
    arguments = [_arguments(graph, name, described) for name, described in zip(given, specs, strict=True)]
    graph.reserve_parameter_names()
    with interpreter.using(graph):
        result = f(*arguments)
        leaves, structure = tree.flatten(result)
        if not leaves:
            raise TraceError(f"the traced function returned nothing ({here()}); return its results")
        names, chosen = _output_names(f, result, leaves, output_names)
        outputs = [_output(graph, leaf, name, chosen) for leaf, name in zip(leaves, names, strict=True)]
        updates = {}
        if with_updates:
            for target, value in graph.updates.values():
                initializer = next(n for n, t in graph.parameters_and_buffers() if t is target)
                updates[initializer] = _output(graph, value, f"{initializer}.next")
    parameters = [n for n in graph.parameters if n in graph.graph.initializers]
    model = ir.Model(graph.graph, ir_version=10, producer_name="graphkit")
    if parameters:
        model.metadata_props[PARAMETERS] = json.dumps(parameters)
    model.ir_version = lowest_ir_version(model)
    return Trace(graph, outputs, structure, updates, model)


def parameter_names(f: Any) -> dict[int, str]:
    """Names for the tensors that a module holds, by their attribute paths.

    For a function that uses a module, such as ``lambda x: loss(model(x))``, the module's; with the variable's name in
    front where two modules have equal ones.
    """
    modules = {id(m): (variable, m) for variable, m in _modules(f, 3)}
    found = [(variable, name, t) for variable, m in modules.values() for name, t in m.named_tensors()]
    owners: dict[str, set[int]] = {}
    for _, name, t in found:
        owners.setdefault(name, set()).add(id(t))
    clash = any(len(tensors) > 1 for tensors in owners.values())
    names: dict[int, str] = {}
    for variable, name, t in found:
        names.setdefault(id(t), f"{variable}.{name}" if clash and variable else name)
    return names


def _modules(f: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The modules that a function is, is a method of, wraps or uses as variables, with the variables' names."""
    if _is_module(f):
        yield "", f
        return
    inside = [getattr(f, "__self__", None), getattr(f, "__wrapped__", None)]
    if isinstance(f, functools.partial):
        inside += [f.func, *f.args, *f.keywords.values()]
    for inner in inside:
        if inner is not None and depth:
            yield from _modules(inner, depth - 1)
    if not isinstance(f, FunctionType) or not depth:
        return
    code = f.__code__
    used = {n: f.__globals__[n] for n in code.co_names if n in f.__globals__}
    for n, cell in zip(code.co_freevars, f.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            used[n] = cell.cell_contents
    for name, value in used.items():
        if _is_module(value):
            yield name, value
        elif inspect.isfunction(value) and value.__module__ == f.__module__:
            yield from _modules(value, depth - 1)


def _is_module(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "named_tensors", None))


def argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """What a function calls its first ``count`` arguments."""
    names = getattr(f, "input_names", None)
    if isinstance(names, list | tuple) and len(names) >= count:
        return list(names[:count])
    target = getattr(f, "forward", None) if hasattr(f, "named_tensors") else None
    try:
        parameters = list(inspect.signature(target or f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = positional[:count]
    rest = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "input")
    first = len(names)
    return names + [f"{rest}_{n}" for n in range(count - first)]


def _arguments(graph: Graph, name: str, described: Any) -> Any:
    leaves, structure = tree.flatten(described)
    if len(leaves) == 1 and structure == ("leaf",):
        return _input(graph, name, leaves[0])
    return tree.unflatten(structure, [_input(graph, f"{name}_{n}", leaf) for n, leaf in enumerate(leaves)])


def _input(graph: Graph, name: str, described: Any) -> Tensor:
    if isinstance(described, Spec):
        return _named_input(graph, described.name or name, described.dtype, described.shape)
    if isinstance(described, Tensor):
        return _named_input(graph, name, described.dtype, described.dims)
    if isinstance(described, np.ndarray | np.generic):
        dtype = dtypes.STRING if described.dtype.kind in "US" else described.dtype
        return _named_input(graph, name, dtype, described.shape)
    raise TraceError(
        f"argument '{name}' is described by a {type(described).__name__}; give gk.spec(dtype, shape), an example array "
        f"or a Tensor ({here()})"
    )


def _named_input(graph: Graph, name: str, dtype: dtypes.DType, shape: Sequence[int | str | None] | None) -> Tensor:
    t = graph.input(name, dtype, shape)
    if t.name != name:
        raise TraceError(f"two inputs are called '{name}' ({here()}); give them names of their own, with input_names=")
    return t


def _output_names(f: Any, result: Any, leaves: Sequence[Any], given: Sequence[str] | None) -> tuple[list[str], bool]:
    """Names for the results, and whether somebody chose them."""
    if given is not None:
        if len(given) != len(leaves):
            raise TraceError(f"the function returns {len(leaves)} tensors, {len(given)} names were given ({here()})")
        names = list(given)
    elif isinstance(result, Mapping) and all(isinstance(k, str) for k in result) and len(result) == len(leaves):
        names = list(result)
    elif len(getattr(f, "output_names", ())) == len(leaves):
        names = list(f.output_names)
    else:
        return ["output" if n == 0 else f"output_{n}" for n in range(len(leaves))], False
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise TraceError(f"two outputs are called '{twice[0]}' ({here()}); give them names of their own")
    return names, True


def _output(graph: Graph, leaf: Any, name: str, chosen: bool = False) -> str:
    """Make a value an output under its own name; inputs, constants and repeated results get an Identity."""
    from graphkit.core import as_tensor

    t = graph.capture(as_tensor(leaf))
    graph.refuse_leaks([t])
    value = t.value
    assert value is not None
    if value.is_graph_input() or value.is_initializer() or value.is_graph_output() or value.producer() is None:
        t = graph.apply("Identity", (t,), None, 1, "")[0]
        value = t.value
        assert value is not None
    if chosen:
        value.name = ""
        if not graph.free_name(name):
            raise TraceError(f"'{name}' names an output and an input or parameter ({here()}); give it another name")
    value.name = name if chosen else graph.unique(name)
    t.name = value.name
    graph.graph.outputs.append(value)
    known = graph.dims_of(value)
    if known is not None:
        value.shape = ir.Shape([None if dims.is_anonymous(d) else d for d in known])
    return value.name
