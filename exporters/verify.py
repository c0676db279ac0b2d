"""Two computations that should agree, run beside each other: a function and its export, a model and its rewriting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.dtypes import name as dtype_name
from graphkit.errors import VerificationError
from graphkit.exporters.inputs import random_inputs
from graphkit.modelfile import ModelLike
from graphkit.runtime import Session

__all__ = ["Difference", "compare_outputs", "verify"]

# Relative and absolute tolerance by dtype: a few hundred roundings of a value of order one.
_TOLERANCES = {"float64": (1e-9, 1e-10), "float32": (1e-4, 1e-5), "float16": (2e-2, 2e-3), "bfloat16": (5e-2, 1e-2)}


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one output is from what was expected."""

    name: str
    type: str
    absolute: float
    relative: float
    agrees: bool
    note: str = ""

    def __str__(self) -> str:
        """Return one line: the output, its type, and the worst difference."""
        if self.note:
            return f"{self.name}: {self.note}"
        return f"{self.name} {self.type}: differs by at most {self.absolute:.3g} ({self.relative:.3g} relative)"


def verify(
    model: ModelLike,
    against: ModelLike | Callable[..., Any],
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    device: str = "cpu",
    optimizations: bool = False,
) -> list[Difference]:
    """Run ``model`` and ``against`` on the same inputs and return how far each output is; raise where they disagree.

    ``against`` is a model with the same input names, or a function of the inputs in the model's order that returns an
    output, several, or a mapping by name. Inputs that are not given are drawn from ``seed``. ONNX Runtime's own
    optimizations are off unless asked for, so that what is compared is the models. Without ``rtol`` and ``atol`` the
    tolerance follows the dtype; integers, booleans and text must be equal. Raises ``VerificationError`` that lists
    every output that disagrees with its worst difference.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) {y = Neg(x)}'
    >>> [round(d.absolute) for d in verify(onnx.parser.parse_model(text), lambda x: -x)]
    [0]
    """
    session = Session(model, device, optimizations=optimizations)
    given = (
        dict(zip([one.name for one in session.inputs], inputs or (), strict=False)) if _is_sequence(inputs) else inputs
    )
    feeds = random_inputs(model, dims, seed, given if isinstance(given, Mapping) else None)
    got = session.run(feeds)
    if callable(against):
        ordered = [feeds[one.name] for one in session.inputs if one.name in feeds]
        expected = _named(against(*ordered), [one.name for one in session.outputs])
    else:
        expected = Session(against, device, optimizations=optimizations).run(feeds)
    differences = compare_outputs(expected, got, rtol=rtol, atol=atol)
    wrong = [difference for difference in differences if not difference.agrees]
    if wrong:
        raise VerificationError("the two disagree:\n" + "\n".join(f"  {difference}" for difference in wrong))
    return differences


def compare_outputs(
    expected: Mapping[str, Any], got: Mapping[str, Any], *, rtol: float | None = None, atol: float | None = None
) -> list[Difference]:
    """Return the difference of every output in either mapping; NaN agrees with NaN, infinity with the same infinity.

    Where both tolerances are 0, a zero agrees with a zero of the same sign alone.
    """
    found = []
    for name in dict.fromkeys([*expected, *got]):
        if name not in got or name not in expected:
            which = "the first" if name not in got else "the second"
            found.append(Difference(name, "", np.inf, np.inf, agrees=False, note=f"only {which} has this output"))
        else:
            found.append(_difference(name, expected[name], got[name], rtol, atol))
    return found


def _difference(name: str, expected: Any, got: Any, rtol: float | None, atol: float | None) -> Difference:
    if isinstance(expected, (list, tuple)) or isinstance(got, (list, tuple)):
        return _list_difference(name, expected, got, rtol, atol)
    if expected is None or got is None:
        same = expected is None and got is None
        return Difference(name, "none", 0, 0, agrees=same, note="" if same else "only one of them is there")
    a, b = np.asarray(expected), np.asarray(got)
    kind = f"{dtype_name(b.dtype)}{list(b.shape)}"
    if a.dtype != b.dtype or a.shape != b.shape:
        note = f"expected {dtype_name(a.dtype)}{list(a.shape)}, got {kind}"
        return Difference(name, kind, np.inf, np.inf, agrees=False, note=note)
    if a.dtype.kind not in "fcV" and a.dtype.name not in _TOLERANCES:
        wrong = int((a != b).sum())
        note = f"{wrong} of {a.size} elements differ" if wrong else ""
        distance = (
            float(np.abs(a.astype(float) - b.astype(float)).max()) if wrong and a.dtype.kind in "iub" else float(wrong)
        )
        return Difference(name, kind, distance, float(wrong), agrees=not wrong, note=note)
    default = _TOLERANCES.get(a.dtype.name, (1e-4, 1e-5) if a.dtype.kind in "fc" else (0.3, 0.3))
    relative, absolute = default[0] if rtol is None else rtol, default[1] if atol is None else atol
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        distance_of = np.where(same, 0.0, np.abs(x - y))
        distance_of = np.where(np.isnan(distance_of), np.inf, distance_of)
        scaled = np.where(same, 0.0, distance_of / np.maximum(np.abs(x), np.finfo(np.float64).tiny))
        if relative == absolute == 0 and a.dtype.kind != "c":
            same &= np.isnan(x) | (np.signbit(x) == np.signbit(y))
        near = (
            (absolute + relative > 0)
            & np.isfinite(x)
            & np.isfinite(y)
            & (distance_of <= absolute + relative * np.abs(x))
        )
        agrees = bool((same | near).all())
    worst = float(distance_of.max(initial=0.0))
    return Difference(name, kind, worst, float(np.nan_to_num(scaled, nan=np.inf).max(initial=0.0)), agrees)


def _list_difference(name: str, expected: Any, got: Any, rtol: float | None, atol: float | None) -> Difference:
    if not isinstance(expected, (list, tuple)) or not isinstance(got, (list, tuple)) or len(expected) != len(got):
        return Difference(
            name, "list", np.inf, np.inf, agrees=False, note="lists of different lengths, or only one list"
        )
    each = [_difference(f"{name}[{i}]", a, b, rtol, atol) for i, (a, b) in enumerate(zip(expected, got, strict=True))]
    if not each:
        return Difference(name, "list", 0, 0, agrees=True)
    return max(each, key=lambda one: (not one.agrees, one.absolute))


def _named(result: Any, names: list[str]) -> dict[str, Any]:
    """Return a function's result under the output names; what it returns may be tensors of any library."""
    if isinstance(result, Mapping):
        return {name: _host(value) for name, value in result.items()}
    values = list(result) if _is_sequence(result) else [result]
    if len(values) != len(names):
        raise VerificationError(f"the function returned {len(values)} values for the outputs {', '.join(names)}")
    return {name: _host(value) for name, value in zip(names, values, strict=True)}


def _host(value: Any) -> Any:
    return (
        np.asarray(value.numpy())
        if hasattr(value, "numpy") and not isinstance(value, np.ndarray)
        else np.asarray(value)
    )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))
