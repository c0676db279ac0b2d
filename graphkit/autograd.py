"""The reverse pass.

``pullback`` walks records from the last to the first, asks each operator's rule, and adds up what arrives at a value
by several ways. It runs under whatever interpreter is current: ``.backward()`` under Eager, ``AddGradients`` under
Graph. Since rules are operators too, what it computes can be differentiated again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphkit import dims, dtypes, eager
from graphkit.core import Key, Record, Tensor, as_tensor
from graphkit.errors import GradientError
from graphkit.gradients import reason_against, rule_for
from graphkit.gradients.lists import Spots, is_tensor, together, whole
from graphkit.gradients.shapes import compare, ones_like, sum_to, zeros_like
from graphkit.gradients.table import (
    MIXING,
    PULLBACK,
    SELECTING,
    SINGULAR,
    Pieces,
    carries_gradient,
    entries,
    may_be_singular,
    may_overflow,
)
from graphkit.graph import stopping
from graphkit.interpreter import apply1, current
from graphkit.methods import BACKWARD
from graphkit.source import here


@contextmanager
def no_grad() -> Iterator[None]:
    """Within the block nothing is recorded: results need no gradient and activations are not kept.

    In a trace the nodes made in the block are marked, so that no gradient flows through them in the file either.
    """
    with eager.recording(0), stopping(True):
        yield


def stop_gradient(x: Any) -> Tensor:
    """The same values, through which no gradient flows."""
    return current().stop_gradient(as_tensor(x))


def history(
    outputs: Iterable[Tensor], wrt: Mapping[Key, Tensor] | None = None, *, independent: bool = True
) -> list[Record]:
    """The records that lead to ``outputs``, last first; with ``wrt``, only those on a way from one of them.

    An input that cannot carry a gradient (an integer, a stopped one) is not followed.

    Args:
        outputs: the values to differentiate.
        wrt: the values whose gradient is asked for.
        independent: whether each of ``wrt`` is a variable of its own, as a function's arguments are, however it was
            computed; else one may be computed from another, which then gets what flows through it.
    """
    seen: dict[int, Record] = {}
    stack = [t.record for t in outputs if t.record is not None]
    stop = (wrt or {}) if independent else {}
    while stack:
        record = stack.pop()
        if id(record) in seen:
            continue
        if record.stopped or reason_against(record.op, record.domain) is not None:
            continue
        seen[id(record)] = record
        stack.extend(
            t.record
            for t in record.inputs
            if t is not None and t.record is not None and id(t.record) not in seen and t.key not in stop
        )
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
    return any(t is not None and t.key in live and carries_gradient(t) for t in record.inputs)


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
    made = {key for record in records for key in record.output_keys()}
    unselected: set[Key] = set()  # values whose cotangent is 0 where nothing downstream selected them
    wild: set[Key] = set()  # values whose cotangent may be infinite, some slope downstream being so
    for record in records:
        keys = record.output_keys()
        gradients = [found.pop(k, None) if wanted is None or k not in wanted else found.get(k) for k in keys]
        if all(g is None for g in gradients):
            continue
        record.check_unchanged()
        inputs = [None if t is None else t.key for t in record.inputs]
        wants = [
            t is not None
            and (key in made or (key in wanted if wanted is not None else bool(t._needs & 1) and t.record is None))
            and (_is_plain(t) or carries_gradient(t))
            for t, key in zip(record.inputs, inputs, strict=True)
        ]
        if True not in wants:
            continue
        record.wants = tuple(wants)
        if all(g is None or _is_empty(g) for g in gradients):  # of nothing, which no kernel need be asked about
            for t, key, want in zip(record.inputs, inputs, wants, strict=True):
                if want and t is not None and key is not None and key not in found and (_is_plain(t) or is_tensor(t)):
                    found[key] = zeros_like(t)
            continue
        name = (record.op, record.domain)
        rule = rule_for(*name)
        assert rule is not None  # check_rules saw to it
        masked = name in SELECTING or (bool(unselected) and name not in MIXING and not unselected.isdisjoint(keys))
        singular = name in SINGULAR and may_be_singular(record)
        guard = masked and (singular or may_overflow(record))
        record.wild = bool(wild) and not wild.isdisjoint(keys)
        answer = entries(rule(record, *gradients))
        for t, key, want, entry in zip(record.inputs, inputs, wants, answer, strict=False):
            if not want or entry is None or t is None or key is None:
                continue
            cotangent = entry() if callable(entry) else entry
            if not _is_plain(t) and not is_tensor(t):
                found[key] = _together(found.get(key), cotangent)
                continue
            if guard and gradients[0] is not None:
                cotangent = _stay_zero(gradients[0], cotangent)
            cotangent = _fit(cotangent, t)
            if masked:
                unselected.add(key)
            if singular or record.wild:
                wild.add(key)
            already = found.get(key)
            found[key] = cotangent if already is None else apply1("Add", already, cotangent)
    chosen = found if wanted is None else {key: found[key] for key in wanted if key in found}
    return {key: whole(g) for key, g in chosen.items()}


def _is_empty(t: Tensor) -> bool:
    """Whether a cotangent is known to have no element."""
    if t._array is not None:
        return type(t._array) is np.ndarray and not t._array.size
    return not isinstance(t, Pieces | Spots) and t.dims is not None and 0 in t.dims


def _is_plain(t: Tensor) -> bool:
    """Whether the value is an array of float16, float32 or float64: the common case, answered at once."""
    array = t._array
    return type(array) is np.ndarray and array.dtype.kind == "f"


def _together(already: Tensor | None, cotangent: Tensor) -> Tensor:
    """Two cotangents of one sequence or optional."""
    if already is None:
        return cotangent
    kept = (Pieces, Spots)
    if not isinstance(already, kept) and not isinstance(cotangent, kept) and is_tensor(already):
        return apply1("Add", already, cotangent)  # of an optional
    return together(already, cotangent)


def _stay_zero(g: Tensor, cotangent: Tensor) -> Tensor:
    """0 where the cotangent that came in is 0 and the slope infinite or NaN, so that their product is NaN.

    Not wherever the cotangent is 0: where the slope is finite the product must stay linear in the cotangent, or its
    derivative there, which is the slope, would be lost to the second order and to jvp.
    """
    unselected = compare("Equal", g, Tensor(np.zeros((), g.dtype), literal=True))
    wide = cotangent.astype(dtypes.FLOAT32) if cotangent.dtype == dtypes.BFLOAT16 else cotangent
    undefined = apply1("And", unselected, apply1("IsNaN", wide))
    return apply1("Where", undefined, Tensor(np.zeros((), cotangent.dtype), literal=True), cotangent)


def _fit(cotangent: Tensor, t: Tensor) -> Tensor:
    """A cotangent in its value's own dtype and shape."""
    have, want = cotangent._array, t._array
    if have is not None and want is not None and have.shape == want.shape and have.dtype == want.dtype:
        return cotangent  # the common case of an eager pass, without the questions that follow
    if cotangent.dtype != t.dtype and dtypes.is_float(t.dtype):
        cotangent = cotangent.astype(t.dtype)
    fitted = sum_to(cotangent, t)
    if fitted.graph is not None and fitted is not t and fitted.graph is current():
        fitted.graph.declare(fitted, t.dims)  # not outside: what holds in a branch need not hold around it
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


_accumulating = threading.Lock()


def backward(output: Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
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
        cotangent = as_cotangent(gradient, output)
    records = history([output])
    leaves: dict[Key, Tensor] = {}
    if output.record is None:
        leaves[output.key] = output
    for record in records:
        for t in record.inputs:
            if t is not None and t.record is None and t.requires_grad:
                leaves[t.key] = t
    if not leaves:
        for record in records:
            record.check_unchanged()  # which says so where an earlier backward() freed what leads to the leaves
        raise GradientError(
            f"backward() at {here()}: every way from the tensor to one that requires a gradient is stopped, by "
            "stop_gradient or by an operator such as Floor whose derivative is zero almost everywhere."
        )
    with eager.recording(eager.ALL_LEVELS if create_graph else 0):
        found = pullback(records, {output.key: cotangent})
        with _accumulating:  # threads may share a parameter
            for key, leaf in leaves.items():
                if key in found:
                    leaf.grad = found[key] if leaf.grad is None else apply1("Add", leaf.grad, found[key])
    if not (retain_graph or create_graph):
        for record in records:
            record.free()


BACKWARD.append(backward)
PULLBACK.append(pullback)


def as_cotangent(value: Any, output: Tensor) -> Tensor:
    cotangent = as_tensor(value, output.dtype)
    if dims.same_dims(cotangent.dims, output.dims) is False:
        raise GradientError(
            f"the cotangent has shape {list(cotangent.shape)}, its output {list(output.shape)} ({here()})"
        )
    return cotangent


__all__ = ["backward", "check_rules", "history", "no_grad", "pullback", "stop_gradient"]
