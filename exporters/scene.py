"""Drawings made of boxes, lines and text: written as SVG by hand, or as PNG with matplotlib where it is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from graphkit.errors import GraphkitError
from graphkit.modelfile.files import replacing, target_of, write_text

__all__ = ["Scene", "check_picture", "save"]

Point = tuple[float, float]
# The width of a character of the fonts asked for, relative to the font size.
CHARACTER = 0.56


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str
    radius: float
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline, or for four points that are ``curved`` one cubic curve."""

    points: tuple[Point, ...]
    stroke: str
    width: float
    curved: bool
    arrow: bool
    dashed: bool


@dataclass(frozen=True, slots=True)
class Text:
    x: float
    y: float
    text: str
    size: float
    anchor: str
    fill: str
    bold: bool


@dataclass(slots=True)
class Scene:
    """What is drawn, in the order in which it is drawn; y grows downward, lengths are pixels."""

    width: float = 0
    height: float = 0
    items: list[Box | Line | Text] = field(default_factory=list)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "#444",
        radius: float = 4,
        title: str = "",
    ) -> None:
        self.items.append(Box(x, y, width, height, fill, stroke, radius, title))

    def line(
        self,
        points: Sequence[Point],
        stroke: str = "#777",
        width: float = 1,
        *,
        curved: bool = False,
        arrow: bool = False,
        dashed: bool = False,
    ) -> None:
        self.items.append(Line(tuple(points), stroke, width, curved, arrow, dashed))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        anchor: str = "middle",
        fill: str = "#111",
        bold: bool = False,
    ) -> None:
        self.items.append(Text(x, y, text, size, anchor, fill, bold))


def save(scene: Scene, path: str | os.PathLike[str]) -> Path:
    """Write a scene as ``.svg`` or ``.png``, whole or not at all, and return the path."""
    target = check_picture(path)
    try:
        if target.suffix.lower() == ".svg":
            write_text(target, to_svg(scene))
        else:
            _save_png(scene, target)
    except OSError as error:
        raise GraphkitError(f"{target} could not be written: {error.strerror or error}") from error
    return target


def check_picture(path: str | os.PathLike[str]) -> Path:
    """The path, if a picture can be written there; for a caller who would rather know before a long computation."""
    target = Path(path)
    if target.suffix.lower() not in (".svg", ".png"):
        raise GraphkitError(f"{target}: pictures are written as .svg or .png")
    if target.suffix.lower() == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise _no_matplotlib(target)
    try:
        target_of(path)
    except OSError as error:
        raise GraphkitError(f"{target} could not be written: {error.strerror or error}") from error
    return target


def to_svg(scene: Scene) -> str:
    """Return a scene as the text of an SVG file."""
    w, h = scene.width, scene.height
    size = f'viewBox="0 0 {w:.0f} {h:.0f}" width="{w:.0f}" height="{h:.0f}"'
    marker = 'id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">',
        f'<defs><marker {marker}><path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
        f'<rect width="{w:.0f}" height="{h:.0f}" fill="white"/>',
    ]
    lines.extend(_svg(item) for item in scene.items)
    return "\n".join([*lines, "</svg>", ""])


def _svg(item: Box | Line | Text) -> str:
    if isinstance(item, Box):
        title = f"<title>{escape(item.title)}</title>" if item.title else ""
        return (
            f'<rect x="{item.x:.1f}" y="{item.y:.1f}" width="{item.width:.1f}" height="{item.height:.1f}" '
            f'rx="{item.radius:g}" fill="{item.fill}" stroke="{item.stroke}">{title}</rect>'
        )
    if isinstance(item, Line):
        points = [f"{x:.1f} {y:.1f}" for x, y in item.points]
        data = f"M{points[0]}C{' '.join(points[1:])}" if item.curved else "M" + "L".join(points)
        more = ' marker-end="url(#arrow)"' if item.arrow else ""
        more += ' stroke-dasharray="4 3"' if item.dashed else ""
        return f'<path d="{data}" fill="none" stroke="{item.stroke}" stroke-width="{item.width:g}"{more}/>'
    weight = ' font-weight="bold"' if item.bold else ""
    return (
        f'<text x="{item.x:.1f}" y="{item.y:.1f}" font-size="{item.size:g}" text-anchor={quoteattr(item.anchor)} '
        f'fill="{item.fill}"{weight}>{escape(item.text)}</text>'
    )


def _save_png(scene: Scene, target: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise _no_matplotlib(target) from None
    dots = 144 if max(scene.width, scene.height) < 8000 else 72  # a PNG side is limited to 65,536 dots
    figure = Figure(figsize=(scene.width / 72, scene.height / 72), dpi=dots)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    for order, item in enumerate(scene.items):
        _draw(axes, item, order)
    with replacing(target) as file:
        figure.savefig(file, format="png")


def _no_matplotlib(target: Path) -> GraphkitError:
    return GraphkitError(
        f"{target.name}: a PNG needs matplotlib, which is not installed; install onnx-graphkit[plot], or write "
        f"{target.with_suffix('.svg').name}"
    )


def _draw(axes: Any, item: Box | Line | Text, order: int) -> None:
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path as Curve

    if isinstance(item, Box):
        style = f"round,pad=0,rounding_size={item.radius}"
        corner, size = (item.x, item.y), (item.width, item.height)
        axes.add_patch(FancyBboxPatch(corner, *size, style, fc=item.fill, ec=item.stroke, lw=0.8, zorder=order))
    elif isinstance(item, Line):
        codes = [Curve.MOVETO] + [Curve.CURVE4 if item.curved else Curve.LINETO] * (len(item.points) - 1)
        style = "-|>,head_length=4,head_width=2" if item.arrow else "-"
        dashes = "--" if item.dashed else "-"
        curve = Curve(list(item.points), codes)
        axes.add_patch(
            FancyArrowPatch(path=curve, arrowstyle=style, ec=item.stroke, fc="none" if style == "-" else item.stroke,
                            lw=item.width, ls=dashes, zorder=order, shrinkA=0, shrinkB=0)
        )  # fmt: skip
    else:
        where = {"middle": "center", "start": "left", "end": "right"}[item.anchor]
        weight = "bold" if item.bold else "normal"
        axes.text(item.x, item.y, item.text.replace("$", r"\$"), fontsize=item.size, ha=where, va="baseline",
                  color=item.fill, fontweight=weight, zorder=order)  # fmt: skip
