"""jit(): a function traced once for each kind of argument, optimized, and run by ONNX Runtime as one session.

What the function reads from outside, such as a module's parameters, becomes an input of the session: it is read anew at
every call, and gradients flow to it. The gradient of a call is a second session, which reads what the first one saved.
A gradient of that gradient is asked of a session that computes the whole again, as a call like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit import dtypes, eager, tree
from graphkit.core import Record, Tensor, as_tensor
from graphkit.errors import GraphkitError, TraceError
from graphkit.gradients.table import gradient
from graphkit.graph import Graph
from graphkit.interpreter import current, using
from graphkit.jit_reverse import ReversePass, Runner, Settings, add_output
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
        self._modules: list[Any] | None = None
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
        key: list[Any] = [structure, tuple([m.training for m in self._mode()])]
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
        if program.unfit():
            return self.f(*args, **kwargs)
        return tree.unflatten(results, program(tensors))

    def _mode(self) -> list[Any]:
        """The modules whose mode, training or evaluating, is part of the signature."""
        if self._modules is None:
            self._modules = _modules_of(self.f)
        return self._modules

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


def _modules_of(f: Any) -> list[Any]:
    """The modules that a function is, belongs to, or reads from around it, and those inside them."""
    code, around = getattr(f, "__code__", None), getattr(f, "__globals__", {})
    reads = [around[n] for n in code.co_names if n in around] if code is not None else []
    for cell in getattr(f, "__closure__", None) or ():
        try:
            reads.append(cell.cell_contents)
        except ValueError:  # not bound yet
            continue
    found: dict[int, Any] = {}
    for owner in (f, getattr(f, "__self__", None), *reads):
        modules = getattr(owner, "named_modules", None)
        if modules is not None and not isinstance(owner, type):
            found.update({id(m): m for _, m in modules()})
    return list(found.values())


class _Program:
    """A flat function of tensors, traced for their dtypes and shapes."""

    def __init__(
        self,
        flat: Flat,
        kinds: Sequence[tuple[dtypes.DType, Any]],
        settings: Settings,
        names: Mapping[int, str] | None = None,
    ) -> None:
        self.flat = flat
        self.kinds = list(kinds)
        self.settings = settings
        self._pulls: dict[Any, _Program] = {}
        self._passes: dict[tuple[int, ...], ReversePass] = {}
        graph = self.graph = Graph(names=names)
        given = [graph.input(f"x{n}", dtype, shape) for n, (dtype, shape) in enumerate(kinds)]
        with using(graph):
            self.results = [graph.capture(t) for t in flat(given)]
            graph.refuse_leaks(self.results)
            updated = [(target, graph.capture(value)) for target, value in graph.updates.values()]
            self.targets = [target for target, _ in updated]
            made = [*self.results, *(value for _, value in updated)]
            self.outputs = [add_output(graph, t, f"y{n}") for n, t in enumerate(made)]
        self.captured = _captured(graph)
        nodes = ir.traversal.RecursiveGraphIterator(graph.graph)
        self.random = any(node.op_type in _RANDOM and node.domain == "" for node in nodes)
        self.runner = Runner(graph, self.outputs, settings)

    def unfit(self) -> bool:
        """Whether calls must be made operator by operator: some operator has no kernel for a dtype."""
        return self.runner.session is None

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        inputs = [*tensors, *self.captured]
        arrays = [t._array for t in inputs]
        needs = 0
        for t in inputs:
            needs |= t._needs
        levels = eager.recorded_levels()
        needs &= levels
        reverse = None
        wanted: tuple[int, ...] = ()
        if needs:
            wanted = tuple(n for n, t in enumerate(inputs) if t._needs & levels and dtypes.is_float(t.dtype))
            reverse = self._reverse(wanted)
        made = (self.runner if reverse is None else reverse.forward)(arrays)
        count = len(self.results)
        for target, array in zip(self.targets, made[count:], strict=False):
            target._array = array
            target._version += 1
        saved, made = made[len(self.outputs) :], made[:count]
        if reverse is None:
            return [Tensor(a) for a in made]
        attributes = {"program": self, "reverse": reverse, "wanted": wanted, "saved": len(saved)}
        versions = sum(t._version for t in inputs)
        # what the reverse pass reads stands behind the results, where it is let go of with them
        kept = [*made, *saved, *arrays]
        record = Record("jit", _DOMAIN, inputs, attributes, kept, user_location(), versions, needs=needs)
        return [Tensor(a, record, n, needs) if dtypes.is_float(a.dtype) else Tensor(a) for n, a in enumerate(made)]

    def _reverse(self, wanted: tuple[int, ...]) -> ReversePass:
        found = self._passes.get(wanted)
        if found is None:
            found = ReversePass(self.graph, self.results, self.outputs, wanted, self.settings)
            self._passes[wanted] = found
        return found

    def pull_saved(self, r: Record, gs: Sequence[Tensor | None], needs: int) -> list[Tensor | None]:
        """The cotangents of the inputs that needed one, from what the forward session saved."""
        reverse: ReversePass = r.attributes["reverse"]
        cotangents = []
        for n in reverse.places:
            g = gs[n]
            cotangents.append(np.zeros_like(r.made[n]) if g is None else g._array)
        first, second = len(self.results), len(self.results) + r.attributes["saved"]
        made = reverse(r.made[second:], r.made[first:second], cotangents)
        answer: list[Tensor | None] = [None] * len(r.inputs)
        record = None
        if needs:  # another reverse pass over this one is refused by name: it would draw other random numbers
            record = Record("gradient of a jitted function that draws at random", _DOMAIN, r.inputs, {}, made, r.source,
                            sum(t._version for t in r.inputs if t is not None), needs=needs)  # fmt: skip
        for n, (place, array) in enumerate(zip(r.attributes["wanted"], made, strict=True)):
            answer[place] = Tensor(array) if record is None else Tensor(array, record, n, needs)
        return answer

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
    levels, needs = eager.recorded_levels(), 0
    for t in (*r.inputs, *gs):
        needs |= 0 if t is None else t._needs & levels
    reverse: ReversePass = r.attributes["reverse"]
    if reverse.usable and (not needs or program.random):
        return program.pull_saved(r, gs, needs)
    return program.pull(r, gs)


def _root() -> Graph:
    graph = current()
    if not isinstance(graph, Graph):
        raise GraphkitError("a jitted gradient is traced, never run as it is")
    return graph.root


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
