"""Functions that say how they are differentiated (custom_vjp), that forget and compute again (checkpoint), and vmap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from graphkit import dtypes, eager, tree
from graphkit.autograd import history, pullback
from graphkit.conversion import captured_values
from graphkit.core import Record, Tensor, as_tensor
from graphkit.errors import GradientError
from graphkit.gradients import gradient
from graphkit.gradients.shapes import zeros_like
from graphkit.graph import Graph, stopping
from graphkit.interpreter import apply1, current
from graphkit.methods import constant_ints
from graphkit.ordering import after, false_after
from graphkit.rewinding import journal, rewound
from graphkit.source import here, user_location
from graphkit.transforms import alias_of, drop_level, new_bit


class custom_vjp:  # noqa: N801  # used as a decorator, and called so elsewhere
    """A function that says itself how it is differentiated.

    ``forward`` returns the result and whatever the reverse pass needs; ``backward`` takes that and the result's
    cotangent (a tuple of them for several results) and returns a cotangent, or None, for each argument.

    The rule holds wherever this Python function is called, eagerly and in traces. A file exported from it holds the
    operators of ``forward`` alone, and is differentiated through them.

    >>> import graphkit as gk
    >>> @gk.custom_vjp
    ... def double(x):
    ...     return x * 2.0
    >>> double.defvjp(lambda x: (x * 2.0, None), lambda saved, g: (g * 10.0,))
    >>> gk.grad(double)(gk.tensor(1.0)).item()
    10.0
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        self.__doc__ = f.__doc__

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Give the two halves of the rule."""
        self.forward, self.backward = forward, backward

    def __call__(self, *args: Any) -> Any:
        if self.forward is None or self.backward is None:
            raise GradientError(f"custom_vjp at {here()}: give the rule first, with {self.f.__name__}.defvjp(...)")
        tensors = [as_tensor(a) for a in args]
        with eager.recording(0):
            result, saved = self.forward(*[_bare(t) for t in tensors])
        backward = self.backward

        def pull(r: Record, gs: Sequence[Tensor | None]) -> Any:
            given = [g if g is not None else zeros_like(y) for g, y in zip(gs, r.outputs, strict=True)]
            answer = backward(saved, given[0] if isinstance(result, Tensor) else tuple(given))
            return answer if isinstance(answer, tuple | list) else (answer,)

        return _with_rule(result, tensors, pull, self.f.__name__)


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, keeping none of its intermediate values: the reverse pass computes them again.

    Memory for the time of one more forward pass of f (Chen et al., 2016, "Training deep nets with sublinear memory
    cost"). Tensors that f closes over, such as a module's parameters, get their gradients too. In a trace, f is written
    a second time, so that a runtime computes it again when the gradients behind it are there, and not before.

    >>> import graphkit as gk
    >>> gk.grad(gk.checkpoint(lambda x: (x * x * x).sum()))(gk.tensor([1., 2.])).tolist()
    [3.0, 12.0]
    """

    @functools.wraps(f, updated=())
    def wrapped(*args: Any) -> Any:
        leaves, structure = tree.flatten(list(args))
        tensors = [as_tensor(leaf) for leaf in leaves]
        found: list[Tensor] = []
        graph = current()
        last = graph.graph[-1] if isinstance(graph, Graph) and len(graph.graph) else None
        with eager.recording(0), eager.watching(found), journal() as changed:
            result = f(*args)
        if isinstance(graph, Graph):
            found += _read_since(graph, last)
        own = {id(t) for t in tensors}
        outer = [t for t in found if id(t) not in own and not any(t is o for o in tree.flatten(result)[0])]
        together = [*tensors, *outer]

        def pull(r: Record, gs: Sequence[Tensor | None]) -> Any:
            bit = new_bit()
            graph = current()
            never = None
            if isinstance(graph, Graph):
                with stopping(True):
                    never = false_after([*(g for g in gs if g is not None), *graph.awaited])
            aliases = [_alias(t, bit, never) if dtypes.is_float(t.dtype) else t for t in tensors]
            keep = [(t, t._needs) for t in outer]
            for t in outer:
                t._needs |= bit
            before = isinstance(graph, Graph) and graph.repeating
            try:
                if isinstance(graph, Graph):
                    graph.repeating = True
                with eager.recording(eager.recorded_levels() | bit), stopping(False), rewound(changed):
                    again = f(*tree.unflatten(structure, list(aliases)))
            finally:
                if isinstance(graph, Graph):
                    graph.repeating = before
                for t, needs in keep:
                    t._needs = needs
            ys = tree.flatten(again)[0]
            start = {y.key: g for y, g in zip(ys, gs, strict=True) if g is not None}
            wanted = {t.key: t for t in (*aliases, *outer) if dtypes.is_float(t.dtype)}
            found_ = pullback(history([y for y in ys if y.key in start], wanted), start, wanted)
            if isinstance(graph, Graph):
                graph.awaited = [t for t in found_.values() if t.graph is graph]
            return [drop_level(found_[t.key], bit) if t.key in found_ else None for t in (*aliases, *outer)]

        return _with_rule(result, together, pull, "checkpoint")

    return wrapped


def _read_since(graph: Graph, last: ir.Node | None) -> list[Tensor]:
    """The floating values from before that the nodes behind ``last`` read: parameters and computed ones."""
    made: set[ir.Value] = set()
    read: dict[ir.Value, None] = {}
    for node in reversed(graph.graph):
        if node is last:
            break
        made.update(node.outputs)
        read.update(dict.fromkeys(v for v in (*node.inputs, *captured_values(node)) if v is not None))
    parameters = graph.root.parameters
    outside = [v for v in read if v not in made and (not v.is_initializer() or v.name in parameters)]
    return [t for t in map(graph.tensor, outside) if dtypes.is_float(t.dtype)]


def _alias(t: Tensor, bit: int, never: Tensor | None) -> Tensor:
    """The same numbers as another value; traced, one that no runtime merges with the first or computes early."""
    return after(t, never) if t.traced and never is not None else alias_of(t, bit)


def _bare(t: Tensor) -> Tensor:
    return t if t.traced else Tensor(t._array, name=t.name)


def _with_rule(
    result: Any, inputs: Sequence[Tensor], pull: Callable[[Record, Sequence[Tensor | None]], Any], name: str
) -> Any:
    """Results of which ``pull`` is the gradient rule, whatever operators made them."""
    leaves, structure = tree.flatten(result)
    if any(t.traced for t in (*inputs, *leaves)) or not isinstance(current(), eager.Eager):
        graph: Any = current()
        made = [apply1("Identity", graph.capture(as_tensor(leaf))) for leaf in leaves]
        captured = [graph.capture(t) for t in inputs]
        record = Record("custom_vjp", "graphkit", captured, {"pull": pull}, made, user_location(), name=name)
        for index, t in enumerate(made):
            t.record, t.index = record, index
        return tree.unflatten(structure, made)
    needs = 0
    for t in inputs:
        needs |= t._needs
    needs &= eager.recorded_levels()
    if not needs:
        return result
    arrays = [leaf._array for leaf in leaves]
    record = Record("custom_vjp", "graphkit", inputs, {"pull": pull}, arrays, user_location(),
                    sum(t._version for t in inputs), name=name, needs=needs)  # fmt: skip
    return tree.unflatten(structure, [Tensor(a, record, i, needs) for i, a in enumerate(arrays)])


@gradient("custom_vjp", domain="graphkit")
def _custom_rule(r: Record, *gs: Tensor | None) -> Any:
    return tuple(r.attributes["pull"](r, gs))


def vmap(f: Callable[..., Any], in_axes: int | Sequence[int | None] = 0) -> Callable[..., Any]:
    """f applied to every slice along an axis of its arguments, the results stacked along a new first axis.

    Written for one example and meant for many; each slice is computed by itself, so prefer operators that broadcast
    where speed matters.

    Args:
        f: takes and returns Tensors (or trees of them).
        in_axes: the axis to map over, one for all arguments or one each; None hands an argument on whole.

    >>> import graphkit as gk
    >>> gk.vmap(lambda x: (x * x).sum())(gk.tensor([[1., 2.], [3., 4.]])).tolist()
    [5.0, 25.0]
    """

    @functools.wraps(f, updated=())
    def wrapped(*args: Any) -> Any:
        axes = [in_axes] * len(args) if isinstance(in_axes, int) else list(in_axes)
        if len(axes) != len(args):
            raise GradientError(f"vmap has {len(axes)} in_axes for {len(args)} arguments ({here()})")
        tensors = [as_tensor(a) if axis is not None else a for a, axis in zip(args, axes, strict=True)]
        for n, (t, axis) in enumerate(zip(tensors, axes, strict=True)):
            rank = 0 if axis is None else len(t.dims or ())
            if axis is not None and not -rank <= axis < rank:
                has = f"has {rank} axes" if t.dims is not None else "is of unknown rank"
                raise GradientError(
                    f"vmap maps over axis {axis} of argument {n}, which {has} ({here()}); in_axes says None for an "
                    "argument that is handed on whole"
                )
        extents = {(t.dims or ())[axis] for t, axis in zip(tensors, axes, strict=True) if axis is not None}
        if not extents:
            raise GradientError(f"vmap has no argument to map over ({here()})")
        if len(extents) != 1:
            found = ", ".join(sorted(map(str, extents)))
            raise GradientError(f"vmap maps over one extent, got {found} ({here()})")
        count = extents.pop()
        if not isinstance(count, int) or count == 0:
            raise GradientError(f"vmap needs a static extent of 1 or more, got {count} ({here()}); use gk.scan")
        results = []
        for n in range(count):
            picked = []
            for t, axis in zip(tensors, axes, strict=True):
                place = None if axis is None else axis % t.ndim
                picked.append(t if place is None else t[(slice(None),) * place + (n,)])
            results.append(tree.flatten(f(*picked)))
        structure = results[0][1]
        stacked = [
            apply1("Concat", *[apply1("Unsqueeze", as_tensor(r[0][k]), constant_ints([0])) for r in results], axis=0)
            for k in range(len(results[0][0]))
        ]
        return tree.unflatten(structure, stacked)

    return wrapped
