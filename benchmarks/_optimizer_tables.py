"""What ``benchmarks.optimizers`` measured, as tables, and where graphkit is behind."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rich.table import Table

__all__ = ["SLOWEST", "Row", "gaps", "geomean", "per_model", "summary"]

SLOWEST = 1.03


@dataclass
class Row:
    """What one tool made of one model."""

    model: str
    tool: str
    said: str = ""
    verdict: str = "right"  # or failed, wrong, broken (no runtime loads or runs it)
    portable: bool = True
    nodes: int = 0
    with_constants: int = 0
    bytes: int = 0
    seconds: float = 0.0
    latency: float = float("nan")
    # Passes that leave more nodes than they found, to save time, and the nodes there are without them.
    spenders: tuple[str, ...] = ()
    lean: int = 0


def geomean(numbers: list[float]) -> float:
    """The geometric mean; NaN of nothing."""
    kept = [n for n in numbers if n > 0]
    return statistics.geometric_mean(kept) if kept else float("nan")


def gaps(rows: list[Row]) -> list[str]:
    """Where graphkit leaves more nodes than the best portable peer that is right, or is slower than it may be."""
    found = []
    mine = next(row for row in rows if row.tool == "graphkit")
    if mine.verdict != "right" or mine.said:
        found.append(f"{mine.model}: {mine.verdict} {mine.said}")
    for count in ("nodes", "with_constants"):
        peers = [r for r in rows[2:] if r.verdict == "right" and r.portable]
        best = min(peers, key=lambda r: getattr(r, count), default=None)
        if best is not None and getattr(mine, count) > getattr(best, count):
            kind = "nodes" if count == "nodes" else "nodes with Constants"
            lean = f" ({mine.lean} without {', '.join(mine.spenders)})" if mine.spenders else ""
            found.append(f"{mine.model}: {getattr(mine, count)} {kind}{lean}, {best.tool} {getattr(best, count)}")
    if mine.latency > SLOWEST:
        found.append(f"{mine.model}: latency {mine.latency:.3f}")
    if mine.bytes > 1.05 * rows[0].bytes:
        found.append(f"{mine.model}: {mine.bytes:,} bytes instead of {rows[0].bytes:,}")
    if mine.seconds > 3:
        found.append(f"{mine.model}: {mine.seconds:.1f} s")
    return found


def per_model(tables: list[list[Row]]) -> Table:
    """Nodes and latency of every model and tool."""
    tools = [row.tool for row in tables[0]]
    table = Table(title="nodes left without Constants (with them) and latency, by model", row_styles=["", "dim"])
    table.add_column("model")
    for tool in tools:
        table.add_column(tool, justify="right")
    for rows in tables:
        cells = []
        for row in rows:
            text = f"{row.nodes} ({row.with_constants}) {row.latency:.2f}".replace(" nan", "")
            cells.append(f"[red]{row.verdict}[/]" if row.verdict != "right" else text + ("" if row.portable else "*"))
        table.add_row(rows[0].model, *cells)
    table.caption = "* operators of the runtime's own: not portable"
    return table


def summary(tables: list[list[Row]]) -> Table:
    """One line a tool."""
    table = Table(title=f"{len(tables)} models")
    for heading in ("tool", "failed", "wrong", "broken", "nodes", "latency", "slowest", "s, median", "s, max", "bytes"):
        table.add_column(heading, justify="left" if heading == "tool" else "right")
    originals = {rows[0].model: rows[0] for rows in tables}
    for tool in [row.tool for row in tables[0][1:]]:
        rows = [row for found in tables for row in found if row.tool == tool]
        right = [row for row in rows if row.verdict == "right"]
        latency = [row.latency for row in right]
        table.add_row(
            tool,
            *(str(sum(row.verdict == verdict for row in rows)) for verdict in ("failed", "wrong", "broken")),
            f"{geomean([row.nodes / originals[row.model].nodes for row in right]):.3f}",
            f"{geomean(latency):.3f}",
            f"{max(latency, default=float('nan')):.2f}",
            f"{statistics.median(row.seconds for row in rows):.2f}",
            f"{max(row.seconds for row in rows):.2f}",
            f"{geomean([row.bytes / originals[row.model].bytes for row in right]):.3f}",
        )
    best = [
        min((r.nodes for r in rows[2:] if r.verdict == "right" and r.portable), default=rows[0].nodes) / rows[0].nodes
        for rows in tables
    ]
    fastest = [
        min((r.latency for r in rows[2:] if r.verdict == "right" and r.portable), default=1.0) for rows in tables
    ]
    table.add_row("best portable peer", "", "", "", f"{geomean(best):.3f}", f"{geomean(fastest):.3f}")
    return table
