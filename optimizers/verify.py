"""The proof: run the optimized model beside the original, and take back the pass that made them differ."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.errors import PassError
from graphkit.modelfile.external import embedded
from graphkit.optimizers.base import Outcome, Pass
from graphkit.optimizers.context import Context
from graphkit.optimizers.evaluate import open_session, run_in_time
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.feeds_for import Feeds, candidates
from graphkit.optimizers.report import PassReport, Report

__all__ = ["difference", "settle"]

Arrays = dict[str, Any]

# What rounding alone may do in the last bits of each dtype, relative to the largest number of the output.
_ROUNDING: Final = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}
# How much the tolerance of one pass may grow on its way through the rest of a model.
_AMPLIFICATION: Final = 20.0
# Seconds after which no second set of inputs is tried.
_PATIENCE: Final = 20.0
# A pass that rewrites more nodes than this is named without the node.
_MOST_REWRITES: Final = 65_536


@dataclass(slots=True)
class _Reference:
    feeds: list[Feeds]
    outputs: list[Arrays]
    random: set[str]
    noise: list[Arrays] | None = None


@np.errstate(all="ignore")
def settle(
    original: ir.Model,
    result: ir.Model,
    chosen: Sequence[Pass],
    report: Report,
    *,
    training: bool,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None,
    strict: bool,
    forced: bool = False,
) -> ir.Model:
    """Return ``result`` if it agrees with ``original``, else the result without the passes that made it differ.

    Where the original itself does not run there is nothing to compare with: the report says so, or ``PassError`` where
    the comparison is ``forced``.
    """
    from graphkit.optimizers.pipeline import run_passes

    reference, why_not = _reference(original, inputs)
    if reference is None:
        if forced:
            raise PassError(f"the result cannot be verified: {why_not}")
        report.note = why_not
        return result
    chosen = list(chosen)
    active = _active(chosen, report)
    found = _disagreement(original, result, active, reference, report)
    while found is not None:
        # The shortest sequence of passes whose result differs ends with the one at fault.
        low, high, seen = 0, len(active), found
        while high - low > 1:
            middle = (low + high) // 2
            trial = original.clone()
            run_passes(trial, active[:middle], Report(), training=training)
            differs = _disagreement(original, trial, active[:middle], reference, Report())
            low, high, seen = (low, middle, differs) if differs is not None else (middle, high, seen)
        if not active:
            raise PassError(f"the model does not survive being read and written: {found}")
        fault = active[high - 1]
        place = _place(original, active[:high], reference, training=training)
        seen = f"{seen}{f' (at node {place!r})' if place else ''}"
        if strict:
            raise PassError(f"the pass '{fault.name}' changed what the model computes: {seen}")
        report.dropped[fault.name] = seen
        chosen = [made for made in chosen if made is not fault]
        result = original.clone()
        report.passes = {}
        run_passes(result, chosen, report, training=training)
        active = _active(chosen, report)
        found = _disagreement(original, result, active, reference, report)
    report.verified = True
    return result


def _place(original: ir.Model, passes: Sequence[Pass], reference: _Reference, *, training: bool) -> str | None:
    """The node whose rewrite by the last of ``passes`` makes the result differ: where the fewest rewrites end."""
    from graphkit.optimizers.pipeline import run_passes

    *others, fault = passes
    if fault.rewrite is None:
        return None  # a sweep does all it does at once

    def differs(limit: int) -> tuple[bool, list[str]]:
        trial, report = original.clone(), Report()
        run_passes(trial, [*others, _limited(fault, limit)], report, training=training)
        found = _disagreement(original, trial, passes, reference, Report())
        return found is not None, report.passes[fault.name].rewritten

    low, high = 0, 1
    while not differs(high)[0]:
        low, high = high, 2 * high
        if high > _MOST_REWRITES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle)[0] else (middle, high)
    names = differs(high)[1]
    return names[-1] if names else None


def _limited(made: Pass, most: int) -> Pass:
    """A rule that stops after so many rewrites."""
    rewrite, left = made.rewrite, most
    assert rewrite is not None

    def limited(ctx: Context, node: ir.Node) -> Outcome:
        nonlocal left
        if left == 0:
            return "it has done all that it may"
        outcome = rewrite(ctx, node)
        left -= outcome is True
        return outcome

    return replace(made, rewrite=limited)


def _active(chosen: Sequence[Pass], report: Report) -> list[Pass]:
    return [made for made in chosen if report.passes.get(made.name, PassReport()).rewrites]


def _reference(original: ir.Model, inputs: Mapping[str, np.ndarray[Any, Any]] | None) -> tuple[_Reference | None, str]:
    ctx = Context(original, training=False, slack=0)
    ctx.facts.sweep(ctx.graphs())
    try:
        session = open_session(_bytes(original))
    except Exception as error:  # noqa: BLE001 - an operator of another library, a dtype without a kernel
        return None, f"the original itself does not load in ONNX Runtime: {_first_line(error)}"
    names = [value.name or "" for value in original.graph.outputs]
    started = time.perf_counter()
    sets: list[Feeds] = []
    outputs: list[Arrays] = []
    why = "no inputs were accepted"
    for seed in (0, 1) if inputs is None else (0,):
        try:
            tries = candidates(original, ctx, seed) if inputs is None else iter([dict(inputs)])
            for feeds in tries:
                try:
                    outputs.append(dict(zip(names, run_in_time(session, names, feeds), strict=True)))
                except Exception as error:  # noqa: BLE001 - these sizes do not fit; the next may
                    why = _first_line(error)
                    if isinstance(error, TimeoutError):
                        break
                    continue
                sets.append(feeds)
                break
            if time.perf_counter() - started > _PATIENCE:
                break  # one comparison of a slow model has to do
        except ValueError as error:
            return None, f"no inputs could be made up, so give them: {error}"
    if not sets:
        given = "the inputs that were given" if inputs is not None else "any inputs that were made up"
        return None, f"the original itself does not run on {given}: {why}"
    return _Reference(sets, outputs, _random_outputs(original, ctx)), ""


def _bytes(model: ir.Model) -> bytes:
    content = ir.to_proto(embedded(model)).SerializeToString()
    assert isinstance(content, bytes)
    return content


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]


def _random_outputs(model: ir.Model, ctx: Context) -> set[str]:
    """The outputs that follow from a random draw: two right models give different numbers there."""
    tainted: set[ir.Value] = set()

    def visit(graph: ir.Graph) -> bool:
        any_random = False
        for node in graph:
            random = node.domain in ("", "com.microsoft") and not ctx.pure(node)
            random |= any(value in tainted for value in node.inputs if value is not None)
            for body in subgraphs_of(node):
                random |= visit(body)
            if random:
                any_random = True
                tainted.update(node.outputs)
        return any_random

    visit(model.graph)
    return {value.name or "" for value in model.graph.outputs if value in tainted}


def _disagreement(
    original: ir.Model, result: ir.Model, active: Sequence[Pass], reference: _Reference, report: Report
) -> str | None:
    names = [value.name or "" for value in original.graph.outputs]
    if names != [value.name for value in result.graph.outputs]:
        return f"its outputs are {[value.name for value in result.graph.outputs]} instead of {names}"
    if [value.name for value in original.graph.inputs] != [value.name for value in result.graph.inputs]:
        return "its inputs changed"
    tolerance = max((made.tolerance for made in active), default=0.0) * _AMPLIFICATION
    try:
        session = open_session(_bytes(result))
    except Exception as error:  # noqa: BLE001 - whatever the runtime says, the result is no good
        return f"the result does not load: {_first_line(error)}"
    for turn, (feeds, expected) in enumerate(zip(reference.feeds, reference.outputs, strict=True)):
        try:
            got = dict(zip(names, run_in_time(session, names, feeds), strict=True))
        except Exception as error:  # noqa: BLE001 - as above
            return f"the result does not run: {_first_line(error)}"
        for name in names:
            problem, size = difference(got[name], expected[name], tolerance, random=name in reference.random)
            if problem is not None and _is_noise(original, reference, turn, name, got[name], exact=tolerance == 0):
                continue
            if problem is not None:
                return f"output '{name}': {problem}"
            report.largest_difference = max(report.largest_difference, size)
    return None


def _is_noise(original: ir.Model, reference: _Reference, turn: int, name: str, got: Any, *, exact: bool) -> bool:
    """Whether the original, fed with inputs that differ in their last bit, moves as far as the result did.

    A NaN or an infinity elsewhere, or one of the other sign, is no noise; nor, where passes are ``exact``, the other
    sign of a zero that the original does not move itself.
    """
    expected = reference.outputs[turn][name]
    if not _is_float(got) or not _is_float(expected) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    infinite = np.isinf(expected)
    if not np.array_equal(infinite, np.isinf(got)) or not np.array_equal(got[infinite], expected[infinite]):
        return False
    if reference.noise is None:
        session = open_session(_bytes(original))
        names = [value.name or "" for value in original.graph.outputs]
        reference.noise = []
        for feeds in reference.feeds:
            nudged = {key: np.nextafter(x, np.inf, dtype=x.dtype) if _is_float(x) else x for key, x in feeds.items()}
            try:
                reference.noise.append(dict(zip(names, run_in_time(session, names, nudged), strict=True)))
            except Exception:  # noqa: BLE001 - then nothing is known of the noise
                reference.noise.append({})
    moved = reference.noise[turn].get(name)
    if moved is None or moved.shape != expected.shape or not np.array_equal(np.isnan(got), np.isnan(expected)):
        return False
    turned = (got == 0) & (expected == 0) & (np.signbit(got) != np.signbit(expected))
    still = (moved == 0) & (np.signbit(moved) == np.signbit(expected))
    if exact and bool((turned & still).any()):
        return False
    finite = np.isfinite(expected) & np.isfinite(moved)
    allowed = 4 * np.abs(moved.astype(float) - expected.astype(float))[finite].max(initial=0)
    return bool(np.abs(got.astype(float) - expected.astype(float))[finite].max(initial=0) <= allowed)


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def difference(got: Any, expected: Any, tolerance: float, *, random: bool = False) -> tuple[str | None, float]:
    """How two outputs differ, or None, and by how much relative to the larger numbers of what was expected.

    A ``tolerance`` of 0 allows what rounding does when the runtime sums in another order, but no change of a signed
    zero, an infinity or a NaN; integers, booleans and text must be equal.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        if type(got) is not type(expected):
            return f"it is a {type(got).__name__} instead of a {type(expected).__name__}", 0.0
        if isinstance(expected, list):
            if len(got) != len(expected):
                return f"it holds {len(got)} items instead of {len(expected)}", 0.0
            parts = [difference(a, b, tolerance, random=random) for a, b in zip(got, expected, strict=True)]
            return next((part for part in parts if part[0] is not None), (None, 0.0))
        return (None, 0.0) if got == expected else ("it differs", 0.0)
    if got.dtype != expected.dtype:
        return f"its dtype is {got.dtype} instead of {expected.dtype}", 0.0
    if random and len(got.shape) == len(expected.shape):
        return None, 0.0
    if got.shape != expected.shape:
        return f"its shape is {got.shape} instead of {expected.shape}", 0.0
    if got.size == 0:
        return None, 0.0
    if got.dtype.kind != "f":
        wrong = int((got != expected).sum())
        return (f"{wrong:,} of {got.size:,} elements differ", 1.0) if wrong else (None, 0.0)
    return _float_difference(got, expected, tolerance)


def _float_difference(
    got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float
) -> tuple[str | None, float]:
    if not np.array_equal(np.isnan(got), np.isnan(expected)):
        return "it is NaN at other places", np.inf
    infinite = np.isinf(expected)
    if not np.array_equal(infinite, np.isinf(got)) or not np.array_equal(got[infinite], expected[infinite]):
        return "it is infinite at other places", np.inf
    finite = np.isfinite(expected)
    a, b = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    if not a.size:
        return None, 0.0
    if tolerance == 0 and bool((np.signbit(a) != np.signbit(b))[(a == 0) & (b == 0)].any()):
        return "the sign of a zero changed", 0.0
    scale = float(np.abs(b).max())
    if scale == 0:
        scale = 1.0
    worst = float(np.abs(a - b).max()) / scale
    rounding = _ROUNDING.get(str(expected.dtype), 1e-6)
    # Half precision rounds a thousand times more coarsely than the tolerances, which are stated for float32.
    allowed = rounding if tolerance == 0 else max(tolerance, 8 * rounding)
    if worst > allowed:
        return f"it differs by {worst:.2g} of its largest number, {allowed:.2g} is allowed", worst
    return None, worst
