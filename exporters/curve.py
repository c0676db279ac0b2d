"""Pictures of numbers over steps: loss curves."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphkit.errors import GraphkitError
from graphkit.exporters.scene import CHARACTER, Scene, save

__all__ = ["draw_curve"]

_COLOURS = ("#2563a8", "#c2571a", "#2e8b57", "#8e44ad", "#b03060", "#7f7f1f")
_WIDTH, _HEIGHT = 720.0, 420.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 20.0, 40.0, 50.0
_MOST_POINTS = 2000


def draw_curve(
    series: Sequence[float] | Mapping[str, Sequence[float]],
    path: str | os.PathLike[str],
    *,
    title: str = "loss",
    x_label: str = "step",
    logarithmic: bool = False,
    first: int = 0,
) -> Path:
    """Draw one or several named series of numbers over their index as ``.svg`` or ``.png``; return the path.

    Values that are not finite leave a gap. ``logarithmic`` scales the y axis, for values above 0. ``first`` is what the
    first value is called on the x axis: 1 for epochs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_curve({"train": [2.3, 0.9, 0.5], "test": [2.3, 1.0, 0.7]}, f"{folder}/loss.svg").name
    'loss.svg'
    """
    named = {key: [float(v) for v in values] for key, values in series.items()} if isinstance(series, Mapping) else {
        "": [float(v) for v in series]
    }  # fmt: skip
    shown = [v for values in named.values() for v in values if math.isfinite(v) and (v > 0 or not logarithmic)]
    if not shown:
        raise GraphkitError(f"{path}: there is no finite value to draw")
    scene = Scene(_WIDTH, _HEIGHT)
    ticks = _log_ticks(min(shown), max(shown)) if logarithmic else _ticks(min(shown), max(shown))
    low, high = _scale(ticks[0], logarithmic), _scale(ticks[-1], logarithmic)
    longest = max(len(values) for values in named.values())

    def at(step: float, value: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (step / max(longest - 1, 1))
        return x, _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (_scale(value, logarithmic) - low) / (high - low)

    scene.text(_WIDTH / 2, 24, title, 15, bold=True)
    for tick in ticks:
        y = at(0, tick)[1]
        scene.line([(_LEFT, y), (_WIDTH - _RIGHT, y)], "#dddddd")
        scene.text(_LEFT - 6, y + 4, f"{tick:g}", 11, "end")
    for step in _steps(longest):
        x = at(step, ticks[0])[0]
        scene.line([(x, _HEIGHT - _BOTTOM), (x, _HEIGHT - _BOTTOM + 4)], "#444444")
        scene.text(x, _HEIGHT - _BOTTOM + 18, f"{step + first:g}", 11)
    scene.line([(_LEFT, _TOP), (_LEFT, _HEIGHT - _BOTTOM), (_WIDTH - _RIGHT, _HEIGHT - _BOTTOM)], "#444444")
    scene.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x_label, 12)
    for number, (label, values) in enumerate(named.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for run in _runs(values, logarithmic):
            points = [at(step, value) for step, value in run]
            if len(points) == 1:
                x, y = points[0]
                scene.box(x - 2, y - 2, 4, 4, colour, colour, 2)
            else:
                scene.line(points, colour, 1.6)
        if label:
            width = len(label) * 12 * CHARACTER
            y = _TOP + 14 + 18 * number
            scene.line([(_WIDTH - _RIGHT - width - 40, y - 4), (_WIDTH - _RIGHT - width - 16, y - 4)], colour, 2)
            scene.text(_WIDTH - _RIGHT - 10, y, label, 12, "end")
    return save(scene, path)


def _scale(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic else value


def _runs(values: list[float], logarithmic: bool) -> list[list[tuple[int, float]]]:
    """Split a series where it has no drawable value, thinned to what a picture can show."""
    stride = max(1, len(values) // _MOST_POINTS)
    runs: list[list[tuple[int, float]]] = [[]]
    for step, value in enumerate(values):
        if not math.isfinite(value) or (logarithmic and value <= 0):
            runs.append([])
        elif step % stride == 0 or step == len(values) - 1:
            runs[-1].append((step, value))
    return [run for run in runs if run]


def _ticks(low: float, high: float) -> list[float]:
    if high == low:
        low, high = (low - 1, high + 1) if low == 0 else (low - abs(low) * 0.1, high + abs(high) * 0.1)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(n * step, 12) for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


def _steps(count: int) -> list[float]:
    if count <= 1:
        return [0]
    return [tick for tick in _ticks(0, count - 1) if 0 <= tick <= count - 1 and tick == int(tick)]
