"""The reverse pass, and everything that is sugar over it.

``pullback`` walks records from the last to the first, asks each operator's rule, and adds up what arrives at a value
by several ways. It runs under whatever interpreter is current: ``.backward()`` under Eager, ``AddGradients`` under
Graph. Since rules are operators too, what it computes can be differentiated again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphkit import dims, dtypes, eager, interpreter, tree
from graphkit.core import Key, Record, Tensor, as_tensor
from graphkit.errors import GradientError
from graphkit.gradients import reason_against, rule_for
from graphkit.gradients.shapes import ones_like, sum_to, zeros_like
from graphkit.gradients.table import MIXING, SELECTING, entries, may_be_singular
from graphkit.interpreter import apply1, current
from graphkit.methods import BACKWARD
from graphkit.source import here

no_gradient_levels = eager.recording


@contextmanager
def no_grad() -> Iterator[None]:
    """Within the block nothing is recorded: results need no gradient and activations are not kept."""
    with eager.recording(0):
        yield


def stop_gradient(x: Any) -> Tensor:
    """The same values, through which no gradient flows."""
    return current().stop_gradient(as_tensor(x))


def history(outputs: Iterable[Tensor], wrt: Mapping[Key, Tensor] | None = None) -> list[Record]:
    """The records that lead to ``outputs``, last first; with ``wrt``, only those on a way from one of them.

    An input that cannot carry a gradient (an integer, a stopped one) is not followed.
    """
    seen: dict[int, Record] = {}
    stack = [t.record for t in outputs if t.record is not None]
    stop = wrt or {}
    while stack:
        record = stack.pop()
        if id(record) in seen:
            continue
        if record.stopped or reason_against(record.op, record.domain) is not None:
            continue
        seen[id(record)] = record
        for t in record.inputs:
            if t is not None and t.record is not None and id(t.record) not in seen and t.key not in stop:
                stack.append(t.record)
    ordered = sorted(seen.values(), key=lambda r: -r.sequence)
    if wrt is None:
        return ordered
    live = set(wrt)
    kept = []
    for record in reversed(ordered):
        if _passes(record, live):
            live.update(record.output_key(i) for i in range(len(record.made)))
            kept.append(record)
    return kept[::-1]


def _passes(record: Record, live: set[Key]) -> bool:
    return any(t is not None and t.key in live and dtypes.is_float(t.dtype) for t in record.inputs)


def pullback(
    records: Sequence[Record],
    cotangents: Mapping[Key, Tensor],
    wanted: Mapping[Key, Tensor] | None = None,
) -> dict[Key, Tensor]:
    """Carry cotangents back over ``records`` (last first); returns every wanted value's cotangent, by key.

    Args:
        records: as ``history`` gives them.
        cotangents: those of the outputs, by the outputs' keys.
        wanted: the values whose gradient is asked for; None for every leaf that requires one.

    Raises:
        GradientError: naming every operator on the way that has no rule, before anything is computed.
    """
    check_rules(records)
    found: dict[Key, Tensor] = dict(cotangents)
    made = {record.output_key(i) for record in records for i in range(len(record.made))}
    results: dict[Key, Tensor] = {}
    unselected: set[Key] = set()  # values whose cotangent is 0 where nothing downstream selected them
    for record in records:
        keys = [record.output_key(i) for i in range(len(record.made))]
        gradients = [found.pop(k, None) if wanted is None or k not in wanted else found.get(k) for k in keys]
        if all(g is None for g in gradients):
            continue
        record.check_unchanged()
        record.wants = tuple(
            t is not None
            and (t.key in made or (t.key in wanted if wanted is not None else t.requires_grad and t.record is None))
            and dtypes.is_float(t.dtype)
            for t in record.inputs
        )
        if not any(record.wants):
            continue
        rule = rule_for(record.op, record.domain)
        assert rule is not None  # check_rules saw to it
        name = (record.op, record.domain)
        masked = name in SELECTING or (name not in MIXING and not unselected.isdisjoint(keys))
        guard = masked and may_be_singular(record)
        answer = entries(rule(record, *gradients))
        for t, want, entry in zip(record.inputs, record.wants, answer, strict=False):
            if not want or entry is None or t is None:
                continue
            cotangent = entry() if callable(entry) else entry
            if guard and gradients[0] is not None:
                cotangent = _stay_zero(gradients[0], cotangent)
            cotangent = _fit(cotangent, t)
            key = t.key
            if masked:
                unselected.add(key)
            already = found.get(key)
            found[key] = cotangent if already is None else apply1("Add", already, cotangent)
    if wanted is None:
        return found
    for key in wanted:
        if key in found:
            results[key] = found[key]
    return results


def _stay_zero(g: Tensor, cotangent: Tensor) -> Tensor:
    """0 where the cotangent that came in is 0, even if the slope there is infinite or NaN."""
    zero = Tensor(np.zeros((), cotangent.dtype), literal=True)
    still = apply1("Equal", g, Tensor(np.zeros((), g.dtype), literal=True))
    return apply1("Where", still, zero, cotangent)


def _fit(cotangent: Tensor, t: Tensor) -> Tensor:
    """A cotangent in its value's own dtype and shape."""
    if cotangent.dtype != t.dtype:
        cotangent = cotangent.astype(t.dtype)
    fitted = sum_to(cotangent, t)
    if fitted.graph is not None and fitted is not t:
        fitted.graph.declare(fitted, t.dims)
    return fitted


def check_rules(records: Sequence[Record]) -> None:
    """Raise one GradientError that names every record without a rule."""
    missing = [r for r in records if rule_for(r.op, r.domain) is None]
    if missing:
        names = ", ".join(dict.fromkeys(r.describe() for r in missing))
        raise GradientError(
            f"no gradient rule for {names}. Register one with @gk.gradients.gradient(...), or stop the gradient "
            "before it with gk.stop_gradient(x)."
        )


def backward(
    output: Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
) -> None:
    """What ``Tensor.backward`` does: see there."""
    if output.traced:
        raise GradientError(
            f"backward() at {here()} was called on a traced tensor; inside a trace write gk.grad(f) or "
            "gk.value_and_grad(f), whose results are part of the graph."
        )
    if not output._needs & 1:
        raise GradientError(
            f"backward() at {here()}: the tensor depends on nothing that requires a gradient. Make the inputs with "
            "gk.tensor(..., requires_grad=True), and leave gk.no_grad() before computing it."
        )
    if not dtypes.is_float(output.dtype):
        raise GradientError(f"backward() needs a floating tensor, got {dtypes.name(output.dtype)} ({here()})")
    if gradient is None:
        if output.dims != ():
            raise GradientError(
                f"backward() at {here()} needs a scalar, got shape {list(output.shape)}. Reduce it, with .sum() or "
                ".mean(), or pass the cotangent: y.backward(gradient)."
            )
        cotangent = ones_like(output)
    else:
        cotangent = _as_cotangent(gradient, output)
    records = history([output])
    leaves: dict[Key, Tensor] = {}
    if output.record is None:
        leaves[output.key] = output
    for record in records:
        for t in record.inputs:
            if t is not None and t.record is None and t.requires_grad:
                leaves[t.key] = t
    if not leaves:
        raise GradientError(
            f"backward() at {here()}: every way from the tensor to one that requires a gradient is stopped, by "
            "stop_gradient or by an operator such as Floor whose derivative is zero almost everywhere."
        )
    with eager.recording(eager.ALL_LEVELS if create_graph else 0):
        found = pullback(records, {output.key: cotangent})
        for key, leaf in leaves.items():
            if key in found:
                leaf.grad = found[key] if leaf.grad is None else apply1("Add", leaf.grad, found[key])
    if not (retain_graph or create_graph):
        for record in records:
            record.free()


BACKWARD.append(backward)


def _as_cotangent(value: Any, output: Tensor) -> Tensor:
    cotangent = as_tensor(value, output.dtype)
    if dims.same_dims(cotangent.dims, output.dims) is False:
        raise GradientError(
            f"the cotangent has shape {list(cotangent.shape)}, its output {list(output.shape)} ({here()})"
        )
    return cotangent


# Functions of functions. Each running transform owns one bit of every tensor's ``_needs``.

_taken = itertools.count()


def _new_bit() -> int:
    """A bit of its own: a pullback may outlive its transform, so nesting depth would not tell two apart."""
    return 2 << next(_taken) % 512


def _alias(x: Tensor, bit: int) -> Tensor:
    """A value of its own for ``x``: what f does with it is told apart from what it does with x by other ways."""
    if x.traced or isinstance(current(), eager.Eager) is False:
        return apply1("Identity", x)
    if x._needs & eager.recorded_levels():
        y = apply1("Identity", x)
        y._needs |= bit
        if y.record is not None:
            y.record.needs |= bit
        return y
    return Tensor(x._array, needs=bit)


def _drop_level(x: Tensor, bit: int) -> Tensor:
    """A result without the bit of the transform that is over, and without history if nobody else needs it."""
    if x.traced:
        return x
    left = x._needs & ~bit & eager.recorded_levels()
    if not left:
        return Tensor(x._array)
    x._needs = left
    return x


def _differentiable(leaves: Sequence[Any], what: str) -> list[Tensor]:
    tensors = [as_tensor(leaf) for leaf in leaves]
    for t in tensors:
        if not dtypes.is_float(t.dtype):
            raise GradientError(
                f"{what} at {here()}: the argument is {dtypes.name(t.dtype)}, which has no gradient; give floats."
            )
    return tensors


class _Tape:
    """f applied to aliases of some of its arguments, ready to be pulled back any number of times."""

    def __init__(self, f: Callable[..., Any], args: Sequence[Any], argnums: Sequence[int], what: str) -> None:
        self.argnums = argnums
        flat = [tree.flatten(args[i]) for i in argnums]
        self.structures = [structure for _, structure in flat]
        self.primals = [t for leaves, _ in flat for t in _differentiable(leaves, what)]
        self.counts = [len(leaves) for leaves, _ in flat]
        self.bit = _new_bit()
        self.aliases = [_alias(p, self.bit) for p in self.primals]
        replaced = list(args)
        for i, structure, leaves in zip(argnums, self.structures, self._split(self.aliases), strict=True):
            replaced[i] = tree.unflatten(structure, leaves)
        with eager.recording(eager.recorded_levels() | self.bit):
            self.result = f(*replaced)

    def _split(self, leaves: Sequence[Any]) -> Iterator[list[Any]]:
        start = 0
        for count in self.counts:
            yield list(leaves[start : start + count])
            start += count

    def pull(self, outputs: Sequence[Tensor], cotangents: Sequence[Tensor], allow_unused: bool = False) -> list[Any]:
        wanted = {a.key: a for a in self.aliases}
        levels = eager.recorded_levels() & ~self.bit
        records = history(outputs, wanted)
        start: dict[Key, Tensor] = {}
        with eager.recording(levels):
            for output, cotangent in zip(outputs, cotangents, strict=True):
                already = start.get(output.key)
                start[output.key] = cotangent if already is None else apply1("Add", already, cotangent)
            found = pullback(records, start, wanted)
            gradients = []
            for n, alias in enumerate(self.aliases):
                if alias.key in found:
                    gradients.append(_drop_level(found[alias.key], self.bit))
                elif allow_unused:
                    gradients.append(zeros_like(self.primals[n]))
                else:
                    raise GradientError(
                        f"the result does not depend on {self._name(n)} by any differentiable way ({here()}). "
                        "If a gradient of zero is meant, add 0 * x to the result."
                    )
        return [
            tree.unflatten(structure, leaves)
            for structure, leaves in zip(self.structures, self._split(gradients), strict=True)
        ]

    def _name(self, n: int) -> str:
        named = self.primals[n].name
        position = 0
        for argnum, count in zip(self.argnums, self.counts, strict=True):
            if n < position + count:
                place = f"argument {argnum}" + (f" (leaf {n - position})" if count > 1 else "")
                return f"{place}, '{named}'," if named else place
            position += count
        return "an argument"

    def drop(self, value: Any) -> Any:
        return tree.map(lambda t: _drop_level(t, self.bit) if isinstance(t, Tensor) else t, value)


def _scalar(result: Any, what: str) -> Tensor:
    if not isinstance(result, Tensor):
        raise GradientError(f"{what} needs a function that returns a Tensor, got {type(result).__name__} ({here()})")
    if result.dims is not None and result.dims != ():
        raise GradientError(
            f"{what} needs a function that returns a scalar, got shape {list(result.shape)} ({here()}); reduce it, or "
            "use gk.vjp or gk.jacobian."
        )
    if not dtypes.is_float(result.dtype):
        raise GradientError(f"{what} needs a floating result, got {dtypes.name(result.dtype)} ({here()})")
    return result


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """A function that returns f's scalar value and its gradient.

    Args:
        f: returns a scalar Tensor (with ``has_aux``, a pair of it and anything else).
        argnums: which positional arguments to differentiate; each may be a tree of Tensors.
        has_aux: whether f returns extra results, handed through.

    >>> import graphkit as gk
    >>> value, g = gk.value_and_grad(lambda x: (x * x).sum())(gk.tensor([1., 2.]))
    >>> value.item(), g.tolist()
    (5.0, [2.0, 4.0])
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        tape = _Tape(lambda *a: f(*a, **kwargs), args, [n % len(args) for n in numbers], "grad")
        value = _scalar(tape.result[0] if has_aux else tape.result, "grad")
        gradients = tape.pull([value], [ones_like(value)])
        result = gradients[0] if isinstance(argnums, int) else tuple(gradients)
        return (tape.drop(tape.result) if has_aux else _drop_level(value, tape.bit)), result

    return wrapped


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of f's scalar value; see ``value_and_grad``.

    >>> import graphkit as gk
    >>> gk.grad(gk.grad(lambda x: x * x * x))(gk.tensor(2.0)).item()  # the second derivative, 6 x
    12.0
    """
    both = value_and_grad(f, argnums, has_aux)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return wrapped


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], Any]]:
    """f(*primals), and the function that pulls a cotangent of the result back to one of each primal.

    >>> import graphkit as gk
    >>> y, pull = gk.vjp(lambda x: x * x, gk.tensor([1., 2.]))
    >>> pull(gk.tensor([1., 10.]))[0].tolist()
    [2.0, 40.0]
    """
    tape = _Tape(f, primals, range(len(primals)), "vjp")
    leaves, structure = tree.flatten(tape.result)

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given, given_structure = tree.flatten(cotangent)
        if given_structure != structure:
            raise GradientError(f"the cotangent has another structure than the function's result ({here()})")
        cotangents = [_as_cotangent(c, o) for c, o in zip(given, leaves, strict=True)]
        return tuple(tape.pull(leaves, cotangents, allow_unused=True))

    return tape.drop(_copy_leaves(tape.result)), pull


def _copy_leaves(value: Any) -> Any:
    def copy(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.traced:
            return t
        return Tensor(t._array, t.record, t.index, t._needs, t.name)

    return tree.map(copy, value)


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """f(*primals), and its directional derivative along ``tangents``: the pullback of the pullback.

    >>> import graphkit as gk
    >>> y, dy = gk.jvp(lambda x: x * x, [gk.tensor([1., 2.])], [gk.tensor([1., 10.])])
    >>> dy.tolist()
    [2.0, 40.0]
    """
    result, pull = vjp(f, *primals)
    leaves, structure = tree.flatten(result)
    seeds = [zeros_like(leaf) for leaf in leaves]
    given = [t for tangent in tangents for t in tree.flatten(tangent)[0]]

    def pulled(*cotangents: Any) -> Any:
        return [t for part in pull(tree.unflatten(structure, list(cotangents))) for t in tree.flatten(part)[0]]

    outer = _Tape(pulled, seeds, range(len(seeds)), "jvp")
    cotangents = [_as_cotangent(t, o) for t, o in zip(given, outer.result, strict=True)]
    found = outer.pull(outer.result, cotangents, allow_unused=True)
    return result, tree.unflatten(structure, found)


def hvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar function times a vector, without the Hessian.

    >>> import graphkit as gk
    >>> gk.hvp(lambda x: (x * x * x).sum(), [gk.tensor([1., 2.])], [gk.tensor([1., 1.])]).tolist()
    [6.0, 12.0]
    """
    numbers = tuple(range(len(primals)))

    def along(*xs: Any) -> Tensor:
        gradients = [t for g in grad(f, numbers)(*xs) for t in tree.flatten(g)[0]]
        given = [as_tensor(v) for tangent in tangents for v in tree.flatten(tangent)[0]]
        total: Tensor | None = None
        for g, v in zip(gradients, given, strict=True):
            part = (g * v).sum()
            total = part if total is None else total + part
        assert total is not None
        return total

    tape = _Tape(along, primals, numbers, "hvp")
    found = tape.pull([tape.result], [ones_like(tape.result)], allow_unused=True)
    return found[0] if len(found) == 1 else tuple(found)


__all__ = [
    "backward", "check_rules", "grad", "history", "hvp", "interpreter", "jvp", "no_grad", "pullback", "stop_gradient",
    "value_and_grad", "vjp",
]  # fmt: skip
