"""Which operators can be differentiated, how, and why the others cannot.

``python -m graphkit.gradients`` writes the list as Markdown; ``docs/gradients.md`` is its output.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, get_args

import onnx.defs

from graphkit.gradients.expansion import expands
from graphkit.gradients.table import RULES, reason_against
from graphkit.newer import NEWER

How = Literal["rule", "expanded", "lowered", "not differentiable", "refused"]

OLDEST_OPSET: Final = 7
# Operators of old opsets that the upgrade writes in newer ones before anything is differentiated.
LOWERED: Final[dict[str, str]] = {
    "Scatter": "read as ScatterElements",
    "Upsample": "read as Resize",
}
WRITTEN_OUT: Final = "newer than what ONNX Runtime loads: it is written in older operators where it is applied or read"


@dataclass(frozen=True)
class Coverage:
    """How one operator is differentiated.

    Attributes:
        op, domain: the operator.
        how: "rule"; "expanded" by its function body; "lowered" to other operators when the file is read or the operator
            applied; "not differentiable"; or "refused".
        why: for the last three, in a few words.
    """

    op: str
    domain: str
    how: How
    why: str = ""


def coverage() -> list[Coverage]:
    """Every operator of ai.onnx from opset 7 on, and every other with a rule: how it is differentiated.

    >>> found = {c.op: c.how for c in coverage() if not c.domain}
    >>> found["Conv"], found["Upsample"], found["ArgMax"]
    ('rule', 'lowered', 'not differentiable')
    """
    found = {(op, ""): _of(op) for op in _names()}
    for (op, domain), rule in RULES.items():
        if not rule.__module__.startswith("graphkit.gradients"):
            continue  # a user's own operator, or a call that is no operator of a file, as those of jit
        if domain or (op, domain) not in found:
            found[op, domain] = Coverage(op, domain, "rule")
    found |= {(op, domain): Coverage(op, domain, "lowered", WRITTEN_OUT) for op, domain in NEWER if domain}
    return sorted(found.values(), key=lambda c: (c.domain, c.op))


def _names() -> set[str]:
    """Operators that some opset from the oldest read to the newest known has."""
    by_name: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            by_name.setdefault(schema.name, []).append(schema)
    names = set()
    for name, versions in by_name.items():
        ordered = sorted(versions, key=lambda s: s.since_version)
        alive = [s for s in ordered if not s.deprecated]
        ended = next((s.since_version for s in ordered if s.deprecated), None)
        if alive and (ended is None or ended > OLDEST_OPSET):
            names.add(name)
    return names


def _of(op: str) -> Coverage:
    reason = reason_against(op)
    if reason is not None:
        return Coverage(op, "", "not differentiable", reason)
    if (op, "") in RULES:
        return Coverage(op, "", "rule")
    if op in LOWERED:
        return Coverage(op, "", "lowered", LOWERED[op])
    if expands(op):
        return Coverage(op, "", "expanded")
    if (op, "") in NEWER:
        return Coverage(op, "", "lowered", WRITTEN_OUT)
    return Coverage(op, "", "refused", "no rule is written")


def markdown() -> str:
    """The list as a page."""
    found = coverage()
    counts = Counter(c.how for c in found)
    lines = [
        "# The gradient of every operator",
        "",
        "Written by `python -m graphkit.gradients`; `gk.gradients.coverage()` gives the same list.",
        "",
        "- **rule**: graphkit has a rule, written in ONNX operators, to any order.",
        "- **expanded**: the operator's function body, as ONNX defines it, is differentiated.",
        "- **lowered**: written in other operators where it is read or applied, and they are differentiated.",
        "- **not differentiable**: gradients stop there, for the reason given.",
        "- **refused**: an error names the operator.",
        "",
        ", ".join(f"{counts[how]} {how}" for how in get_args(How)) + ".",
        "",
        *POLICIES.strip().splitlines(),
        "",
    ]
    for domain in dict.fromkeys(c.domain for c in found):
        lines += [f"## {domain or 'ai.onnx'}", "", "| operator | gradient | |", "|---|---|---|"]
        lines += [f"| {c.op} | {c.how} | {c.why} |" for c in found if c.domain == domain]
        lines.append("")
    return "\n".join(lines)


# ruff: noqa: E501  # rows of a Markdown table cannot be broken
POLICIES: Final = """
## Where a derivative is not unique

| | the gradient |
|---|---|
| Max, Min, ReduceMax, ReduceMin, Scatter (max, min) at ties | shared evenly: the total stays one |
| TopK, Unique among equal values | all to the element that was picked |
| Abs, ReduceL1, ReduceL2, Relu, ThresholdedRelu, Shrink at their kink | 0 |
| LeakyRelu, PRelu at 0 | the slope below 0 |
| Elu, Selu, Celu at 0 | the slope above 0 |
| Clip at a bound | 1 to the input, 0 to the bound |
| Sqrt, Pow(x, p < 1), Log, Reciprocal at 0 | infinite, as the limit is |
| std of equal elements, a Sqrt at 0 | NaN (PyTorch: 0); add a small number to the variance |
| Pow(x, p) at x = 0 | p = 0: 0; p = 1: 1; p > 1: 0; in p: 0 for p >= 0 |
| ReduceProd, CumProd, Scatter (mul) with zeros | the product of the others, to any order |
| MaxPool at ties | shared evenly where windows lie side by side (no pads, dilation or ceil_mode); else all to the first |
| ReduceLogSumExp of a row that is -inf throughout | 0 |
| Softmax, LogSoftmax of such a row | NaN, as the result is |
| an element that Where, Slice, Gather, Max or the like did not select | exactly 0, even if the slope there is infinite or NaN |
| the second derivative where the cotangent is 0, as at an exact fit | that of any other point; behind a selecting operator 0 where the slope is infinite or NaN |
| an infinite slope behind a clamp that is constant there, as sqrt(relu(x)) for x < 0 | exactly 0 |
| SoftmaxCrossEntropyLoss with every label ignored | 0, though the mean of nothing is NaN |
| a batch of no elements | empty, or 0 where a parameter is not; of a mean too, whose value ONNX Runtime calls 0 |
| DFT back from one side, of a length that its places are not those of | that of the standard, from which ONNX Runtime's kernel departs there |
| ScatterElements, ScatterND with repeated indices and no reduction | to the update that was written last |
| Mod | 1 in the first, minus the whole quotient in the second |
| NaN | a NaN result has a NaN slope where the slope depends on it; a selecting operator has 0 there |
| Round, Floor, Ceil, QuantizeLinear | gradients stop; `with gk.gradients.straight_through():` lets them pass |
"""
