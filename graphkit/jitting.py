"""jit(): a function traced once for each kind of argument, optimized, and run by ONNX Runtime as one session.

What the function reads from outside, such as a module's parameters, becomes an input of the session: it is read anew at
every call, and gradients flow to it. The gradient of a call is a second session, made the first time that it is asked
for; and that one is a call like any other, so it has a gradient too.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import dtypes, eager, tree
from graphkit.core import Record, Tensor, as_tensor
from graphkit.errors import GraphkitError, ModelFileError, TraceError
from graphkit.gradients.table import gradient
from graphkit.graph import Graph
from graphkit.interpreter import current, using
from graphkit.modelfile import lowest_ir_version
from graphkit.runtime import Session
from graphkit.source import here, user_location
from graphkit.tracing import parameter_names
from graphkit.transforms import vjp

Function = Callable[..., Any]
Flat = Callable[[Sequence[Tensor]], list[Tensor]]

_RANDOM = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial Dropout".split()
)
_DOMAIN = "graphkit"


def jit(
    f: Function | None = None,
    *,
    dynamic: Mapping[int, Mapping[int, str]] | None = None,
    optimize: bool = True,
    device: str = "cpu",
    threads: int | None = None,
) -> Any:
    """A function that does what ``f`` does, as one ONNX Runtime session for each signature.

    The signature is the structure of the arguments, the dtype and shape of every Tensor or array among them, and the
    value of everything else (numbers, strings, None), which is fixed in the trace. Inside another trace ``f`` itself is
    called, so that its operators become part of that graph.

    Args:
        f: takes and returns Tensors, or trees of them.
        dynamic: names for axes whose extent may differ without another trace, by argument and axis:
            ``{0: {0: "batch"}}``.
        optimize: whether the graph goes through graphkit's own passes (the training preset) before the session.
        device: "cpu" or "cuda".
        threads: of the session; None leaves it to ONNX Runtime.

    Raises:
        TraceError: where ``f`` asks for a Python value of a Tensor; see ``gk.cond`` and ``gk.scan``.

    >>> import graphkit as gk
    >>> square = gk.jit(lambda x: (x * x).sum())
    >>> square(gk.tensor([1., 2.])).item(), gk.grad(square)(gk.tensor([1., 2.])).tolist()
    (5.0, [2.0, 4.0])
    """
    if f is None:
        return functools.partial(jit, dynamic=dynamic, optimize=optimize, device=device, threads=threads)
    return Jitted(f, dynamic or {}, optimize, device, threads)


class Jitted:
    """What ``jit`` returns: call it as the function it was made of."""

    def __init__(
        self, f: Function, dynamic: Mapping[int, Mapping[int, str]], optimize: bool, device: str, threads: int | None
    ) -> None:
        self.f = f
        self.dynamic = dynamic
        self.settings = (optimize, device, threads)
        self._programs: dict[Any, tuple[_Program, tree.Structure]] = {}
        functools.update_wrapper(self, f, updated=())

    def named_tensors(self) -> Any:
        """The tensors that the function's module holds, for exports that keep their names."""
        found = getattr(self.f, "named_tensors", None)
        return found() if found is not None else iter(())

    @property
    def traces(self) -> int:
        """How many signatures were traced so far."""
        return len(self._programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(current(), Graph):
            return self.f(*args, **kwargs)
        leaves, structure = tree.flatten((args, kwargs))
        tensors: list[Tensor] = []
        fixed: list[Any] = []
        key: list[Any] = [structure, getattr(self.f, "training", None)]
        axes = self._axes(args, len(leaves)) if self.dynamic else None
        for n, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor | np.ndarray):
                t = as_tensor(leaf)
                tensors.append(t)
                fixed.append(None)
                shape = t.dims
                if axes is not None and axes[n] and shape is not None:
                    shape = tuple(axes[n].get(a, d) for a, d in enumerate(shape))
                key.append((t.dtype, shape))
            else:
                fixed.append(leaf)
                key.append((type(leaf), leaf))
        signature = tuple(key)
        try:
            found = self._programs.get(signature)
        except TypeError:
            raise TraceError(f"gk.jit at {here()}: an argument is neither a Tensor, an array nor hashable") from None
        if found is None:
            found = self._programs[signature] = self._trace(key[2:], fixed, structure)
        program, results = found
        if program.unfit(tensors):
            return self.f(*args, **kwargs)
        return tree.unflatten(results, program(tensors))

    def _axes(self, args: Sequence[Any], count: int) -> list[Mapping[int, str]]:
        axes: list[Mapping[int, str]] = []
        for n, argument in enumerate(args):
            axes += [self.dynamic.get(n, {})] * len(tree.flatten(argument)[0])
        return axes + [{}] * (count - len(axes))

    def _trace(
        self, key: Sequence[Any], fixed: Sequence[Any], structure: tree.Structure
    ) -> tuple[_Program, tree.Structure]:
        results: list[tree.Structure] = []
        places = [n for n, (kind, _) in enumerate(key) if isinstance(kind, np.dtype)]

        def flat(given: Sequence[Tensor]) -> list[Tensor]:
            leaves = list(fixed)
            for n, t in zip(places, given, strict=True):
                leaves[n] = t
            args, kwargs = tree.unflatten(structure, leaves)
            made, made_structure = tree.flatten(self.f(*args, **kwargs))
            results[:] = [made_structure]
            return [as_tensor(t) for t in made]

        program = _Program(flat, [key[n] for n in places], self.settings, parameter_names(self.f))
        return program, results[0]


class _Program:
    """A flat function of tensors, traced for their dtypes and shapes."""

    def __init__(
        self, flat: Flat, kinds: Sequence[tuple[dtypes.DType, Any]], settings: tuple[bool, str, int | None],
        names: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        self.flat = flat
        self.kinds = list(kinds)
        self.settings = settings
        self._pulls: dict[Any, _Program] = {}
        graph = Graph(names=names)
        given = [graph.input(f"x{n}", dtype, shape) for n, (dtype, shape) in enumerate(kinds)]
        with using(graph):
            results = [graph.capture(t) for t in flat(given)]
            graph.refuse_leaks(results)
            updated = [(target, graph.capture(value)) for target, value in graph.updates.values()]
            self.outputs = len(results)
            self.targets = [target for target, _ in updated]
            for n, t in enumerate([*results, *(value for _, value in updated)]):
                _add_output(graph, t, f"y{n}")
        self.captured = _captured(graph)
        nodes = ir.traversal.RecursiveGraphIterator(graph.graph)
        self.random = any(node.op_type in _RANDOM and node.domain == "" for node in nodes)
        self.names = [str(v.name) for v in graph.graph.inputs]
        model = ir.Model(graph.graph, ir_version=10, producer_name="graphkit")
        model.ir_version = lowest_ir_version(model)
        optimize, device, threads = settings
        if optimize:
            # the passes stand above this module, so they are asked for by name, once they are needed
            model = importlib.import_module("graphkit.optimizers").optimize(model, preset="training", verify=False)
        self._wanted = [str(v.name) for v in model.graph.outputs]
        self._kept = {v.name for v in model.graph.inputs}
        self._session: Session | None
        try:
            self._session = Session(model, device, threads)
        except ModelFileError as error:
            if "no kernel" not in str(error):
                raise
            self._session = None  # an operator has no kernel for a dtype; eagerly it has another way
        self._plain = all(dtypes.to_onnx(d) not in (16, *range(17, 30)) for d, _ in kinds)

    def unfit(self, tensors: Sequence[Tensor]) -> bool:
        """Whether this call must be made operator by operator.

        The gradient computes the forward pass again, and would draw other random numbers.
        """
        if self._session is None:
            return True
        levels = eager.recorded_levels()
        return self.random and any(t._needs & levels for t in (*tensors, *self.captured))

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        inputs = [*tensors, *self.captured]
        arrays = [t._array for t in inputs]
        feeds = {n: a for n, a in zip(self.names, arrays, strict=True) if n in self._kept}
        made = self._run(feeds)
        for target, array in zip(self.targets, made[self.outputs :], strict=True):
            target._array = array
            target._version += 1
        made = made[: self.outputs]
        needs = 0
        for t in inputs:
            needs |= t._needs
        needs &= eager.recorded_levels()
        if not needs:
            return [Tensor(a) for a in made]
        versions = sum(t._version for t in inputs)
        record = Record("jit", _DOMAIN, inputs, {"program": self}, made, user_location(), versions, needs=needs)
        return [Tensor(a, record, n, needs) if dtypes.is_float(a.dtype) else Tensor(a) for n, a in enumerate(made)]

    def _run(self, feeds: dict[str, Any]) -> list[Any]:
        session = self._session
        assert session is not None
        if not self._plain:
            found = session.run(feeds)
            return [found[n] for n in self._wanted]
        try:
            made: list[Any] = session.runtime_session.run(self._wanted, feeds)
        except Exception as error:  # noqa: BLE001  # ONNX Runtime's errors share no base class
            raise session.explain(error, feeds) from None
        for array in made:
            array.flags.writeable = False
        return made

    def pull(self, r: Record, gs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The cotangents of the record's inputs that are wanted, by a session of their own."""
        wanted = tuple(n for n, want in enumerate(r.wants) if want)
        given = tuple(n for n, g in enumerate(gs) if g is not None)
        inputs = [t for t in r.inputs if t is not None]
        cotangents = [g for g in gs if g is not None]
        kinds = [*self.kinds, *((t.dtype, t.dims) for t in inputs[len(self.kinds) :])]
        outer = [(g.dtype, g.dims) for g in cotangents]
        key = (wanted, given, tuple(outer))
        program = self._pulls.get(key)
        if program is None:
            program = self._pulls[key] = _Program(self._backward(wanted, given), [*kinds, *outer], self.settings)
        made = program([*inputs, *cotangents])
        answer: list[Tensor | None] = [None] * len(r.inputs)
        for n, g in zip(wanted, made, strict=True):
            answer[n] = g
        return answer

    def _backward(self, wanted: Sequence[int], given: Sequence[int]) -> Flat:
        count = len(self.kinds)

        def backward(tensors: Sequence[Tensor]) -> list[Tensor]:
            primals = list(tensors[: count + len(self.captured)])

            def forward(*changed: Tensor) -> list[Tensor]:
                values = list(primals)
                for n, t in zip(wanted, changed, strict=True):
                    values[n] = t
                root = _root()
                for outer, t in zip(self.captured, values[count:], strict=True):
                    root._captured[id(outer)] = (outer, t)
                outputs = self.flat(values[:count])
                return [outputs[n] for n in given]

            _, pull = vjp(forward, *[primals[n] for n in wanted])
            return list(pull(list(tensors[len(primals) :])))

        return backward


@gradient("jit", domain=_DOMAIN)
def _jit_gradient(r: Record, *gs: Tensor | None) -> list[Tensor | None]:
    program: _Program = r.attributes["program"]
    return program.pull(r, gs)


def _root() -> Graph:
    graph = current()
    if not isinstance(graph, Graph):
        raise GraphkitError("a jitted gradient is traced, never run as it is")
    return graph.root


def _add_output(graph: Graph, t: Tensor, name: str) -> None:
    """Every output has a node of its own and a name of its own."""
    value = t.value
    assert value is not None
    if value.producer() is None or value.is_graph_output() or value.is_graph_input() or value.is_initializer():
        value = graph.apply("Identity", (t,), None, 1, "")[0].value
        assert value is not None
    value.name = graph.unique(name)
    graph.graph.outputs.append(value)


def _captured(graph: Graph) -> list[Tensor]:
    """The eager tensors that a trace used, whose initializers become inputs after the others."""
    found = []
    for key, (t, _) in graph._captured.items():
        name = graph.initializer_names.get(key)
        if name is None or name not in graph.graph.initializers:
            continue
        value = graph.graph.initializers.pop(name)
        value.const_value = None
        graph.graph.inputs.append(value)
        found.append(t)
    return found
