"""Functions of functions: grad, vjp, jvp, hvp, jacobian, hessian; and functions that say how they are differentiated.

All are sugar over ``pullback``. Since gradient rules are operators, each of these nests in each other, and works in a
trace as it does eagerly.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graphkit import dtypes, eager, tree
from graphkit.autograd import as_cotangent, history, pullback
from graphkit.core import Key, Tensor, as_tensor
from graphkit.errors import GradientError
from graphkit.gradients.shapes import ones_like, zeros_like
from graphkit.gradients.table import VJP
from graphkit.graph import stopping
from graphkit.interpreter import apply1, current
from graphkit.methods import constant_ints
from graphkit.source import here

# Functions of functions. Each running transform owns one bit of every tensor's ``_needs``.

_taken = itertools.count()


def new_bit() -> int:
    """A bit of its own: a pullback may outlive its transform, so nesting depth would not tell two apart."""
    return 2 << next(_taken) % 512


def alias_of(x: Tensor, bit: int) -> Tensor:
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


def drop_level(x: Tensor, bit: int) -> Tensor:
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
        self.bit = new_bit()
        self.aliases = [alias_of(p, self.bit) for p in self.primals]
        replaced = list(args)
        for i, structure, leaves in zip(argnums, self.structures, self._split(self.aliases), strict=True):
            replaced[i] = tree.unflatten(structure, leaves)
        with eager.recording(eager.recorded_levels() | self.bit), stopping(False):
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
                    gradients.append(drop_level(found[alias.key], self.bit))
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
        return tree.map(lambda t: drop_level(t, self.bit) if isinstance(t, Tensor) else t, value)


def _places(numbers: Sequence[int], args: Sequence[Any], what: str) -> list[int]:
    """Argument numbers, negative ones counted from the end."""
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise GradientError(f"{what} of argument {n}, and {len(args)} were given by place ({here()})")
    return [n % len(args) for n in numbers]


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

    @functools.wraps(f, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        tape = _Tape(lambda *a: f(*a, **kwargs), args, _places(numbers, args, "grad"), "grad")
        value = _scalar(tape.result[0] if has_aux else tape.result, "grad")
        gradients = tape.pull([value], [ones_like(value)])
        result = gradients[0] if isinstance(argnums, int) else tuple(gradients)
        return (tape.drop(tape.result) if has_aux else drop_level(value, tape.bit)), result

    return wrapped


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of f's scalar value; see ``value_and_grad``.

    >>> import graphkit as gk
    >>> gk.grad(gk.grad(lambda x: x * x * x))(gk.tensor(2.0)).item()  # the second derivative, 6 x
    12.0
    """
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f, updated=())
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
        cotangents = [as_cotangent(c, o) for c, o in zip(given, leaves, strict=True)]
        return tuple(tape.pull(leaves, cotangents, allow_unused=True))

    return tape.drop(_copy_leaves(tape.result)), pull


VJP.append(vjp)


def _copy_leaves(value: Any) -> Any:
    def copy(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.traced:
            return t
        return Tensor(t._array, t.record, t.index, t._needs, t.name)

    return tree.map(copy, value)


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """f(*primals), and its directional derivative along ``tangents``: the pullback of the pullback.

    The pullback is linear, so its own pullback is the same at every cotangent. It is taken at ones: where a cotangent
    is 0, an infinite slope counts as not selected.

    >>> import graphkit as gk
    >>> y, dy = gk.jvp(lambda x: x * x, [gk.tensor([1., 2.])], [gk.tensor([1., 10.])])
    >>> dy.tolist()
    [2.0, 40.0]
    """
    result, pull = vjp(f, *primals)
    leaves, structure = tree.flatten(result)
    zeros = [zeros_like(leaf) for leaf in leaves]
    places = [n for n, leaf in enumerate(leaves) if dtypes.is_float(leaf.dtype)]  # the others' tangents stay zero
    given = [t for tangent in tangents for t in tree.flatten(tangent)[0]]
    wanted = [t for primal in primals for t in tree.flatten(primal)[0]]
    if len(given) != len(wanted):
        raise GradientError(f"jvp got {len(given)} tangents for {len(wanted)} primals ({here()}); give one for each")

    def pulled(*seeds: Any) -> Any:
        cotangents = list(zeros)
        for n, seed in zip(places, seeds, strict=True):
            cotangents[n] = seed
        return [t for part in pull(tree.unflatten(structure, cotangents)) for t in tree.flatten(part)[0]]

    outer = _Tape(pulled, [ones_like(leaves[n]) for n in places], range(len(places)), "jvp")
    cotangents = [as_cotangent(t, o) for t, o in zip(given, outer.result, strict=True)]
    found = list(zeros)
    for n, tangent in zip(places, outer.pull(outer.result, cotangents, allow_unused=True), strict=True):
        found[n] = tangent
    return result, tree.unflatten(structure, found)


def hvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar function times a vector, without the Hessian.

    >>> import graphkit as gk
    >>> gk.hvp(lambda x: (x * x * x).sum(), [gk.tensor([1., 2.])], [gk.tensor([1., 1.])]).tolist()
    [6.0, 12.0]
    """
    numbers = tuple(range(len(primals)))
    if len(tangents) != len(primals):
        raise GradientError(
            f"hvp got {len(tangents)} tangents for {len(primals)} primals ({here()}); give one for each"
        )

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


def jacobian(f: Callable[..., Any], argnum: int = 0) -> Callable[..., Any]:
    """A function that returns the matrix of all derivatives of f's result: result dims, then the argument's dims.

    One reverse pass for each element of the result, whose shape must be static.

    >>> import graphkit as gk
    >>> gk.jacobian(lambda x: x * x)(gk.tensor([1., 2.])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    @functools.wraps(f, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Tensor:
        tape = _Tape(lambda *a: f(*a, **kwargs), args, _places([argnum], args, "jacobian"), "jacobian")
        y = tape.result
        if not isinstance(y, Tensor) or y.dims is None or not all(isinstance(d, int) for d in y.dims):
            raise GradientError(f"jacobian needs a function that returns one Tensor of static shape ({here()})")
        size = [int(d) for d in y.dims]
        count = int(np.prod(size, dtype=np.int64))
        rows = []
        for n in range(count):
            basis = np.zeros(count, y.dtype)
            basis[n] = 1
            (row,) = tape.pull([y], [as_tensor(basis.reshape(size))], allow_unused=True)
            rows.append(apply1("Unsqueeze", row, constant_ints([0])))
        x = tape.primals[0]
        if not rows:
            return as_tensor(np.zeros([*size, *x.shape], y.dtype))
        stacked = rows[0] if len(rows) == 1 else apply1("Concat", *rows, axis=0)
        return stacked.reshape(*size, *x.shape)

    return wrapped


def hessian(f: Callable[..., Any], argnum: int = 0) -> Callable[..., Any]:
    """A function that returns the matrix of all second derivatives of f's scalar value.

    >>> import graphkit as gk
    >>> gk.hessian(lambda x: (x * x * x).sum())(gk.tensor([1., 2.])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacobian(grad(f, argnum), argnum)
