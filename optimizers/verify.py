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
from graphkit.optimizers.differences import difference
from graphkit.optimizers.evaluate import open_session, run_in_time
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.feeds_for import Feeds, candidates
from graphkit.optimizers.report import PassReport, Report
from graphkit.optimizers.stand_ins import without_chance

__all__ = ["settle"]

Arrays = dict[str, Any]

# How much the tolerance of one pass may grow on its way through the rest of a model.
_AMPLIFICATION: Final = 20.0
# Seconds after which no second set of inputs is tried.
_PATIENCE: Final = 20.0
# A pass that rewrites more nodes than this is named without the node.
_MOST_REWRITES: Final = 65_536


@dataclass(slots=True)
class _Reference:
    """What the original computes, as it is, and in ``certain`` once more with numbers for its random draws."""

    feeds: list[Feeds]
    outputs: list[Arrays]
    random: set[str]
    noise: list[Arrays] | None = None
    certain: _Reference | None = None

    def unseen(self) -> list[str]:
        """The outputs that are compared in no way."""
        return sorted(self.random if self.certain is None else self.random & self.certain.random)


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
    unseen = reference.unseen()
    report.not_compared = unseen
    if unseen:
        report.note = f"not compared, since random draws that have no stand-in decide them: {', '.join(unseen)}"
        if forced:
            raise PassError(f"the result cannot be verified as a whole: {report.note}")
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
    report.verified = len(unseen) < len(reference.outputs[0]) or not unseen
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
    reference = _Reference(sets, outputs, _random_outputs(original, ctx))
    reference.certain = _certain(original, reference, names) if reference.random else None
    return reference, ""


def _certain(original: ir.Model, reference: _Reference, names: list[str]) -> _Reference | None:
    model = without_chance(original)
    if model is None:
        return None
    ctx = Context(model, training=False, slack=0)
    try:
        session = open_session(_bytes(model))
        outputs = [dict(zip(names, run_in_time(session, names, feeds), strict=True)) for feeds in reference.feeds]
    except Exception:  # noqa: BLE001 - a dtype without a kernel: then the draws are left as they are
        return None
    return _Reference(reference.feeds, outputs, _random_outputs(model, ctx))


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
            bodies = subgraphs_of(node)
            # Operators of other domains are taken to compute the same each time: if they do not, a comparison says so.
            random = not bodies and node.domain in ("", "com.microsoft") and not ctx.pure(node)
            random |= any(value in tainted for value in node.inputs if value is not None)
            called = model.functions.get(node.op_identifier())
            for body in (*bodies, *(() if called is None else (called.graph,))):
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
    problem = _run_beside(original, result, tolerance, reference, report)
    if problem is not None or reference.certain is None:
        return problem
    first, second = (without_chance(model) or model for model in (original, result))
    return _run_beside(first, second, tolerance, reference.certain, report)


def _run_beside(
    original: ir.Model, result: ir.Model, tolerance: float, reference: _Reference, report: Report
) -> str | None:
    names = [value.name or "" for value in original.graph.outputs]
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
