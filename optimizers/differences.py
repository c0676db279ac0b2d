"""How far an output is from what was expected, and whether that is more than passes may cause."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

__all__ = ["difference"]

# What rounding alone may do in the last bits of each dtype, relative to the largest number of the output.
_ROUNDING: Final = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}
_BFLOAT16: Final = 1.6e-2


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
    if got.dtype == ml_dtypes.bfloat16:
        return _float_difference(got.astype(np.float32), expected.astype(np.float32), tolerance, _BFLOAT16)
    if got.dtype.kind != "f":
        wrong = int((got != expected).sum())
        return (f"{wrong:,} of {got.size:,} elements differ", 1.0) if wrong else (None, 0.0)
    return _float_difference(got, expected, tolerance, _ROUNDING.get(str(expected.dtype), 1e-6))


def _float_difference(
    got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float, rounding: float
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
    # Half precision rounds a thousand times more coarsely than the tolerances, which are stated for float32.
    allowed = rounding if tolerance == 0 else max(tolerance, 8 * rounding)
    if worst > allowed:
        return f"it differs by {worst:.2g} of its largest number, {allowed:.2g} is allowed", worst
    return None, worst
