"""Where the boxes of a directed acyclic graph go: rows from top to bottom, few crossings, short edges.

The layered method of Sugiyama, Tagawa and Toda (1981): longest-path rows; a chain of placeholders for an edge that
spans several rows; ordering each row by the mean place of its neighbours; then positions as close to the neighbours as
the widths allow.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["Layout", "arrange"]

_SWEEPS = 8


class Layout:
    """``row`` and ``x`` (the middle) of every node, and the nodes and placeholders that every edge runs through."""

    def __init__(self, row: list[int], x: list[float], routes: list[list[int]]) -> None:
        self.row = row
        self.x = x
        self.routes = routes


def arrange(widths: Sequence[float], edges: Sequence[tuple[int, int]], late: set[int], gap: float) -> Layout:
    """Lay out nodes 0..n-1, numbered so that every edge goes from a lower to a higher number.

    ``late`` are sources to be placed just above what reads them instead of at the top; ``gap`` is the least distance
    between neighbours in a row.
    """
    row = _rows(len(widths), edges, late)
    widths = list(widths)
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    routes = []
    for start, end in edges:
        route = [start]
        for between in range(row[start] + 1, row[end]):
            route.append(len(widths))
            widths.append(0.0)
            row.append(between)
            above.append([])
            below.append([])
        route.append(end)
        routes.append(route)
        for upper, lower in itertools.pairwise(route):
            below[upper].append(lower)
            above[lower].append(upper)
    rows: list[list[int]] = [[] for _ in range(max(row, default=0) + 1)]
    for node, place in enumerate(row):
        rows[place].append(node)
    _order(rows, above, below)
    return Layout(row, _positions(rows, above, below, widths, gap), routes)


def _rows(count: int, edges: Sequence[tuple[int, int]], late: set[int]) -> list[int]:
    row = [0] * count
    for start, end in sorted(edges, key=lambda edge: edge[1]):
        row[end] = max(row[end], row[start] + 1)
    first_use: dict[int, int] = {}
    for start, end in edges:
        first_use[start] = min(row[end], first_use.get(start, row[end]))
    for node in late:
        row[node] = max(first_use.get(node, 1) - 1, 0)
    return row


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    place = {node: float(i) for nodes in rows for i, node in enumerate(nodes)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for nodes in rows if down else reversed(rows):
            means = {n: sum(place[m] for m in neighbours[n]) / len(neighbours[n]) for n in nodes if neighbours[n]}
            nodes.sort(key=lambda n: means.get(n, place[n]))
            place.update((node, float(i)) for i, node in enumerate(nodes))


def _positions(
    rows: list[list[int]], above: list[list[int]], below: list[list[int]], widths: Sequence[float], gap: float
) -> list[float]:
    x = [0.0] * len(widths)
    for nodes in rows:
        _place(nodes, [0.0] * len(nodes), x, widths, gap)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for nodes in rows if down else reversed(rows):
            wanted = []
            for node in nodes:
                near = above[node] if down else below[node]
                near = near or (below[node] if down else above[node])
                wanted.append(sum(x[m] for m in near) / len(near) if near else x[node])
            _place(nodes, wanted, x, widths, gap)
    left = min((x[n] - widths[n] / 2 for n in range(len(x))), default=0.0)
    return [value - left for value in x]


def _place(nodes: list[int], wanted: list[float], x: list[float], widths: Sequence[float], gap: float) -> None:
    """Set ``x`` of a row's nodes, in order and apart, with the least sum of squared distances from ``wanted``.

    Taking off the distance that each node must keep from the first turns this into isotonic regression, which pooling
    adjacent violators solves exactly.
    """
    offsets, at = [], 0.0
    for i, node in enumerate(nodes):
        if i:
            at += (widths[nodes[i - 1]] + widths[node]) / 2 + gap
        offsets.append(at)
    blocks: list[list[float]] = []  # sum, count
    for target, offset in zip(wanted, offsets, strict=True):
        blocks.append([target - offset, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    level = [total / count for total, count in blocks for _ in range(int(count))]
    for node, value, offset in zip(nodes, level, offsets, strict=True):
        x[node] = value + offset
