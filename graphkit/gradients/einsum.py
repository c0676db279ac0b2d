"""Einsum: the gradient of an operand is an Einsum of the cotangent and the other operands.

A letter may have extent 1 in some operands and another in the rest, which then broadcast, as in ONNX Runtime and numpy.
"""

from __future__ import annotations

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.dims import Extent
from graphkit.equations import explicit
from graphkit.gradients.elementwise import Entries
from graphkit.gradients.shapes import constant, expand_to, rank_of, shape_tensor, shaped_like
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@gradient("Einsum", mixes=True)
def einsum(r: Record, g: Tensor) -> Entries:
    terms, result = explicit(str(r.attribute("equation")), [rank_of(r, t) for t in r.inputs])
    return tuple(lambda n=n: _to_operand(r, n, terms, result, g) for n in range(len(terms)))


def _to_operand(r: Record, n: int, terms: list[str], result: str, g: Tensor) -> Tensor:
    term = terms[n]
    x = r.inputs[n]
    assert x is not None
    others = [m for m in range(len(terms)) if m != n]
    letters = "".join(dict.fromkeys(term))  # each axis once: a repeated letter reads a diagonal
    extents = _extents(r, terms)
    inputs: list[Tensor] = [g]
    given = [result]
    for m in others:
        operand, spelled = _without_ones(r.inputs[m], terms[m], extents)
        inputs.append(operand)
        given.append(spelled)
    # an axis of extent 1 that was broadcast is summed over, as is one that this operand has not
    summed = {c for c, extent in zip(term, x.dims or (), strict=True) if extent == 1 and _is_mixed(extents[c])}
    reachable = set("".join(given)) - summed
    found = "".join(c for c in letters if c in reachable)
    for c in found:
        if c not in result:
            inputs, given = _with_longest(c, inputs, given)
    equation = ",".join(given) + "->" + found
    value = g if equation == f"{result}->{result}" else apply1("Einsum", *inputs, equation=equation)
    # An axis that was summed away and stands nowhere else: every element along it gets the same.
    lost = [position for position, c in enumerate(letters) if c not in reachable]
    if lost:
        value = apply1("Unsqueeze", value, constant_ints(lost))
    value, spread = _fitted(r, n, terms, result, value, letters)
    if len(letters) < len(term):
        return _on_diagonal(value, x, letters, term)
    if spread or any(letters[position] not in summed for position in lost):
        return expand_to(value, x)
    return shaped_like(value, x)


def _extents(r: Record, terms: list[str]) -> dict[str, list[tuple[int, Extent]]]:
    """By letter, which operands have it and how long it is there."""
    found: dict[str, list[tuple[int, Extent]]] = {}
    for m, (term, t) in enumerate(zip(terms, r.inputs, strict=True)):
        assert t is not None and t.dims is not None
        for c, extent in zip(term, t.dims, strict=True):
            found.setdefault(c, []).append((m, extent))
    return found


def _is_mixed(extents: list[tuple[int, Extent]]) -> bool:
    """Whether an axis has extent 1 in some operands and perhaps another elsewhere."""
    return any(e == 1 for _, e in extents) and any(e != 1 for _, e in extents)


def _without_ones(
    t: Tensor | None, term: str, extents: dict[str, list[tuple[int, Extent]]]
) -> tuple[Tensor, str]:  # fmt: skip
    """An operand without its axes of extent 1 that broadcast: the runtime's plan for memory does not expect those."""
    assert t is not None and t.dims is not None
    axes = [axis for axis, c in enumerate(term) if t.dims[axis] == 1 and _is_mixed(extents[c])]
    if not axes:
        return t, term
    squeezed = apply1("Squeeze", t, constant_ints(axes))
    return squeezed, "".join(c for axis, c in enumerate(term) if axis not in axes)


def _with_longest(c: str, inputs: list[Tensor], given: list[str]) -> tuple[list[Tensor], list[str]]:
    """The operands, before them ones as long as the longest axis ``c`` if only the run knows which that is.

    The runtime takes the first operand's extent for that of the result, and fails where another is longer.
    """
    having = [(t, term.index(c)) for t, term in zip(inputs, given, strict=True) if c in term]
    known = {t.dims[axis] for t, axis in having if t.dims is not None}
    if len(known) < 2:
        return inputs, given
    longest = apply1("Max", *(apply1("Shape", t, start=axis, end=axis + 1) for t, axis in having))
    return [apply1("Expand", constant([1], inputs[0].dtype), longest), *inputs], [c, *given]


def _fitted(
    r: Record, n: int, terms: list[str], result: str, value: Tensor, letters: str
) -> tuple[Tensor, bool]:  # fmt: skip
    """Sum over the axes along which the run finds operand n broadcast; and whether others may be broadcast against it.

    The value's axes are ``letters``. One that the result has came back as long as the longest operand's, another as
    long as the longest of the other operands.
    """
    extents = _extents(r, terms)
    doubtful, spread = [], False
    for axis, c in enumerate(letters):
        own = next(e for m, e in extents[c] if m == n)
        others = [e for m, e in extents[c] if m != n]
        if own == 1 or all(e == own for e in others):
            continue
        if not isinstance(own, int) and any(e != 1 for e in others):
            doubtful.append(axis)
        if c not in result and not (isinstance(own, int) and own in others):
            spread = True  # if the others have extent 1
    if doubtful:
        x = r.inputs[n]
        assert x is not None
        places = constant_ints([terms[n].index(letters[axis]) for axis in doubtful])
        ones = apply1("Equal", apply1("Gather", apply1("Shape", x), places), constant_ints([1]))
        axes = apply1("Compress", constant_ints(doubtful), ones, axis=0)
        value = apply1("ReduceSum", value, axes, keepdims=1, noop_with_empty_axes=1)
    return value, spread


def _on_diagonal(value: Tensor, x: Tensor, letters: str, term: str) -> Tensor:
    """The value where the axes of a repeated letter agree, zeros elsewhere."""
    assert x.rank is not None
    # first every letter at its first axis, then a mask for each further axis of the same letter
    spread = [term.index(c) for c in letters]
    missing = [axis for axis in range(len(term)) if axis not in spread]
    value = apply1("Unsqueeze", value, constant_ints(missing))
    for axis in missing:
        first = term.index(term[axis])
        value = apply1("Mul", value, _eye(x, first, axis, value))
    return apply1("Expand", value, shape_tensor(x))


def _eye(x: Tensor, a: int, b: int, like: Tensor) -> Tensor:
    """1 where the positions along axes a and b agree, extent 1 along all others."""
    assert x.rank is not None and x.dims is not None
    extent = x.dims[a]
    shape = [1] * x.rank
    if isinstance(extent, int):
        shape[a] = shape[b] = extent
        return constant(np.eye(extent).reshape(shape), like.dtype)
    size = apply1("Squeeze", apply1("Shape", x, start=a, end=a + 1))
    positions = apply1("Range", constant(0, dtypes.INT64), size, constant(1, dtypes.INT64))
    shapes = ([-1 if n == axis else 1 for n in range(x.rank)] for axis in (a, b))
    one, two = (apply1("Reshape", positions, constant_ints(shape)) for shape in shapes)
    return apply1("Equal", one, two).astype(like.dtype)
