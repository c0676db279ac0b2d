"""LSTM: see ``recurrent``. Cell states are not among the outputs: a loop of two operators makes them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphkit.bodies import over_time
from graphkit.core import Record, Tensor
from graphkit.gradients.cells import (
    Activation,
    Layer,
    activations,
    clipped,
    columns,
    inside_clip,
    minus_from_one,
    plus,
    times,
)
from graphkit.gradients.matrix import flat_rows
from graphkit.gradients.recurrent import Direction, both_biases, layer_entries, start_of, summed, value_of
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


@gradient("LSTM", mixes=True)
def lstm(r: Record, *gs: Tensor | None) -> list[Tensor | None]:
    """c' = f c + i g, h' = o tanh(c'); the gates i, o, f, g are of x W^T + h R^T + b, and of c through peepholes."""
    layer = Layer(r, gs, 4)
    functions = activations(r, 3, layer.directions, ["Sigmoid", "Tanh", "Tanh"])
    coupled = bool(r.attribute("input_forget", 0))
    found = [_direction(Direction(layer, d), functions[d], coupled) for d in range(layer.directions)]
    return layer_entries(r, layer, found)


def _direction(one: Direction, functions: Sequence[Activation], coupled: bool) -> list[Callable[[], Tensor] | None]:
    layer, n = one.layer, one.layer.hidden
    f, g, h = functions
    clip = layer.clip
    parts = list(columns(one.preactivations(), 4, n))
    peepholes = layer.part(layer.record.input(7), one.d)
    holes = None if peepholes is None else _three(peepholes, n)
    c0 = layer.initial(6, one.d)
    first = layer.zeros() if c0 is None else c0
    made = _cell_states(one, parts, functions, holes, coupled, first)
    before = flat_rows(layer.before(made, c0, one.backwards, blank=False))
    cells = flat_rows(made)
    z_i, z_o, z_f, z_g = parts
    if holes is not None:
        z_i, z_f = plus(z_i, times(before, holes[0])), plus(z_f, times(before, holes[2]))
        z_o = plus(z_o, times(cells, holes[1]))
    i, o = f(clipped(z_i, clip)), f(clipped(z_o, clip))
    new, bent = g(clipped(z_g, clip)), h(cells)
    kept = minus_from_one(i) if coupled else f(clipped(z_f, clip))

    def slope(function: Activation, z: Tensor, y: Tensor) -> Tensor:
        return inside_clip(function.slope(clipped(z, clip), y), z, clip)

    # How each gate's cotangent follows from that of the cell state (i, f, g) or of the hidden state (o).
    by_i = times(apply1("Sub", new, before) if coupled else new, slope(f, z_i, i))
    by_g = times(i, slope(g, z_g, new))
    by_o = times(bent, slope(f, z_o, o))
    through = one.masked(times(o, h.slope(cells, bent)))  # from the hidden state to the cell state
    keep = one.kept(kept)
    gates = [by_i, by_o, by_g] if coupled else [by_i, by_o, times(before, slope(f, z_f, kept)), by_g]
    factors = one.masked(apply1("Concat", *gates, axis=1), len(gates))
    recurrent = one.r
    if coupled:  # the forget gate has no preactivation of its own
        recurrent = _rows_without_forget(recurrent, n)

    def step(dh: Tensor, dc: Tensor, through: Tensor, factor: Tensor, keep: Tensor) -> list[Tensor]:
        if holes is None:
            dc = plus(times(dh, through), dc)
            pattern = (dc, dh, dc) if coupled else (dc, dh, dc, dc)
            dz = times(apply1("Concat", *pattern, axis=1), factor)
            return [apply1("MatMul", dz, recurrent), times(dc, keep), dz]
        fs = columns(factor, len(gates), n)
        do = times(dh, fs[1])
        dc = plus(plus(times(dh, through), dc), times(do, holes[1]))
        di = times(dc, fs[0])
        rest = [times(dc, k) for k in fs[2:]]
        dz = apply1("Concat", di, do, *rest, axis=1)
        carried = plus(times(dc, keep), times(di, holes[0]))
        if not coupled:
            carried = plus(carried, times(rest[0], holes[2]))
        return [apply1("MatMul", dz, recurrent), carried, dz]

    gc = layer.part(layer.gc, one.d)
    start = [start_of(layer, one.gh), start_of(layer, gc)]
    dh, dc, stacked = one.run(start, [through, factors, keep], step)
    flat = flat_rows(stacked)
    if coupled:
        di, do, dg = columns(flat, 3, n)
        flat = apply1("Concat", di, do, times(di, apply1("Sub", di, di)), dg, axis=1)
    to_x, to_w, to_r = one.weights(flat)

    def to_peepholes() -> Tensor:
        di, do, df, _ = columns(flat, 4, n)
        sums = [summed(times(di, before)), summed(times(do, cells)), summed(times(df, before))]
        return apply1("Concat", *sums, axis=0)

    return [to_x, to_w, to_r, both_biases(flat), None, value_of(dh), value_of(dc), to_peepholes]


def _three(peepholes: Tensor, n: int) -> Sequence[Tensor]:
    row = apply1("Reshape", peepholes, constant_ints([1, 3 * n]))
    return columns(row, 3, n)


def _rows_without_forget(recurrent: Tensor, n: int) -> Tensor:
    first = apply1("Slice", recurrent, constant_ints([0]), constant_ints([2 * n]), constant_ints([0]))
    last = apply1("Slice", recurrent, constant_ints([3 * n]), constant_ints([4 * n]), constant_ints([0]))
    return apply1("Concat", first, last, axis=0)


def _cell_states(
    one: Direction, parts: Sequence[Tensor], functions: Sequence[Activation], holes: Sequence[Tensor] | None,
    coupled: bool, first: Tensor,
) -> Tensor:  # fmt: skip
    """Every cell state, [T, B, H]."""
    f, g, _ = functions
    clip = one.layer.clip
    new = g(clipped(parts[3], clip))
    if holes is None:
        i = f(clipped(parts[0], clip))
        kept = minus_from_one(i) if coupled else f(clipped(parts[2], clip))

        def step(c: Tensor, kept: Tensor, added: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            after = plus(times(kept, c), added)
            return [after], [after]

        return over_time([first], [one.kept(kept), one.masked(times(i, new))], step, one.backwards)[1][0]
    masks = [] if one.layer.masks is None else [one.layer.masks]

    def peeking(c: Tensor, z_i: Tensor, z_f: Tensor, new: Tensor, *masks: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        i = f(clipped(plus(z_i, times(c, holes[0])), clip))
        kept = minus_from_one(i) if coupled else f(clipped(plus(z_f, times(c, holes[2])), clip))
        after = plus(times(kept, c), times(i, new))
        for mask in masks:
            after = plus(times(after, mask), times(c, minus_from_one(mask)))
        return [after], [after]

    xs = [one.scanned(parts[0]), one.scanned(parts[2]), one.scanned(new), *masks]
    return over_time([first], xs, peeking, one.backwards)[1][0]
