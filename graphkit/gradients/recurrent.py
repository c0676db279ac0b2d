"""RNN, GRU and LSTM.

The operator gave every hidden state, so all gates of all steps are computed again by one matrix product, and with them
every slope, outside the loop. Only what really runs backward through time is left in it: for each step one product with
the recurrence weights and a few elementwise operators. The weights' gradients are matrix products over all steps again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphkit.bodies import over_time
from graphkit.core import Record, Tensor
from graphkit.gradients.cells import (
    Activation,
    Layer,
    activations,
    clipped,
    columns,
    gemm,
    inside_clip,
    joined,
    minus_from_one,
    plus,
    times,
    total,
)
from graphkit.gradients.matrix import flat_rows
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints


@dataclass
class Direction:
    """One direction of a layer: weights, the states that each step started from, cotangents, and the results."""

    layer: Layer
    d: int

    def __post_init__(self) -> None:
        layer, d = self.layer, self.d
        self.backwards = layer.backwards[d]
        self.x = flat_rows(layer.x)
        w, r = layer.part(layer.record.inputs[1], d), layer.part(layer.record.inputs[2], d)
        assert w is not None and r is not None
        self.w, self.r = w, r
        self.input_bias, self.state_bias = layer.biases(d)
        self.h0 = layer.initial(5, d)
        states = layer.part(layer.y, d, 1)
        assert states is not None
        self.before = layer.before(states, self.h0, self.backwards, blank=True)
        self.gy = layer.part(layer.gy, d, 1)
        if self.gy is not None and layer.masks is not None:
            self.gy = times(self.gy, layer.masks)
        self.gh = layer.part(layer.gh, d)
        self.h = flat_rows(self.before)

    def preactivations(self) -> Tensor:
        """[T B, gates H]: x W^T + h R^T + both biases."""
        bias = None
        if self.input_bias is not None and self.state_bias is not None:
            bias = plus(self.input_bias, self.state_bias)
        return gemm(self.h, self.r, gemm(self.x, self.w, bias))

    def scanned(self, flat: Tensor, width: int = 1) -> Tensor:
        return self.layer.by_time(flat, width * self.layer.hidden)

    def masked(self, factor: Tensor, width: int = 1) -> Tensor:
        """A factor by time, 0 where a sequence is over."""
        wide = self.scanned(factor, width) if factor.rank == 2 else factor
        return wide if self.layer.masks is None else times(wide, self.layer.masks)

    def kept(self, factor: Tensor) -> Tensor:
        """A factor by time, 1 where a sequence is over."""
        wide = self.scanned(factor)
        if self.layer.masks is None:
            return wide
        return plus(times(wide, self.layer.masks), minus_from_one(self.layer.masks))

    def run(
        self, states: Sequence[Tensor], xs: Sequence[Tensor], step: Callable[..., Sequence[Tensor]]
    ) -> list[Tensor]:
        """Back through time: ``step(dh, *other states, *xs)`` gives the cotangents of states and gates.

        The hidden state's cotangent has Y's added first, and passes a step unchanged where a sequence is over.
        """
        layer = self.layer
        extra = [t for t in (self.gy, layer.masks) if t is not None]

        def whole(*given: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            n = len(states)
            rest = list(given[n:])
            masks = rest.pop() if layer.masks is not None else None
            dh = plus(rest.pop(), given[0]) if self.gy is not None else given[0]
            before, *others = step(dh, *given[1:n], *rest)
            if masks is not None:
                before = plus(before, times(minus_from_one(masks), given[0]))
            return [before, *others[: n - 1]], others[n - 1 :]

        after, stacked = over_time(states, [*xs, *extra], whole, not self.backwards)
        return [*after, *stacked]

    def weights(self, gates: Tensor) -> tuple[Callable[[], Tensor], Callable[[], Tensor], Callable[[], Tensor]]:
        """The gradients of x (as [T, B, I]), W and R, given the cotangents of the preactivations [T B, gates H]."""

        def to_x() -> Tensor:
            flat = apply1("Gemm", gates, self.w)
            known = self.layer.x.dims
            if known is not None and isinstance(known[2], int):
                return self.layer.by_time(flat, known[2])
            return apply1("Reshape", flat, apply1("Shape", self.layer.x))

        return (
            to_x,
            lambda: apply1("Gemm", gates, self.x, transA=1),
            lambda: apply1("Gemm", gates, self.h, transA=1),
        )


def summed(gates: Tensor) -> Tensor:
    """The sum over all rows."""
    return apply1("ReduceSum", gates, constant_ints([0]), keepdims=0)


def layer_entries(
    r: Record, layer: Layer, found: Sequence[Sequence[Callable[[], Tensor] | None]]
) -> list[Tensor | None]:
    """Results of all directions as entries: x, W, R, B, (lengths), initial states and peepholes."""
    answer: list[Tensor | None] = [None] * 8
    for n in range(8):
        makers = [f[n] if n < len(f) else None for f in found]
        if not r.wanted(n) or makers[0] is None:
            continue
        parts = [m() for m in makers if m is not None]
        answer[n] = joined(parts, layer.directions) if n else total(parts)
    return answer


def value_of(t: Tensor) -> Callable[[], Tensor]:
    return lambda: t


def both_biases(gates: Tensor) -> Callable[[], Tensor]:
    def make() -> Tensor:
        s = summed(gates)
        return apply1("Concat", s, s, axis=0)

    return make


@gradient("RNN", mixes=True)
def rnn(r: Record, *gs: Tensor | None) -> list[Tensor | None]:
    """h' = f(x W^T + h R^T + b)"""
    layer = Layer(r, gs, 1)
    functions = activations(r, 1, layer.directions, ["Tanh"])
    found = []
    for d in range(layer.directions):
        one = Direction(layer, d)
        z = one.preactivations()
        f = functions[d][0]
        limited = clipped(z, layer.clip)
        slope = spread(inside_clip(f.slope(limited, f(limited)), z, layer.clip), z)

        def step(dh: Tensor, factor: Tensor, weights: Tensor = one.r) -> list[Tensor]:
            dz = times(dh, factor)
            return [apply1("MatMul", dz, weights), dz]

        first, gates = one.run([start_of(layer, one.gh)], [one.masked(slope)], step)
        flat = flat_rows(gates)
        to_x, to_w, to_r = one.weights(flat)
        found.append((to_x, to_w, to_r, both_biases(flat), None, value_of(first)))
    return layer_entries(r, layer, found)


def start_of(layer: Layer, g: Tensor | None) -> Tensor:
    return layer.zeros() if g is None else g


def spread(slope: Tensor, like: Tensor) -> Tensor:
    """A slope that is one number for all, as a tensor: it is scanned."""
    return apply1("Expand", slope, apply1("Shape", like)) if slope.rank == 0 else slope


@gradient("GRU", mixes=True)
def gru(r: Record, *gs: Tensor | None) -> list[Tensor | None]:
    """h' = (1 - z) n + z h, with n = g(x Wn^T + r (h Rn^T + b)) or g(x Wn^T + (r h) Rn^T + b)"""
    layer = Layer(r, gs, 3)
    functions = activations(r, 2, layer.directions, ["Sigmoid", "Tanh"])
    inside = bool(r.attribute("linear_before_reset", 0))
    return layer_entries(r, layer, [_gru(Direction(layer, d), functions[d], inside) for d in range(layer.directions)])


def _gru(one: Direction, functions: Sequence[Activation], inside: bool) -> list[Callable[[], Tensor] | None]:
    layer, n = one.layer, one.layer.hidden
    f, g = functions
    clip = layer.clip
    rows = [constant_ints([2 * n, n]), constant_ints([2 * n])]
    recurrent = _split(one.r, rows[0])
    w = _split(one.w, rows[0])
    input_bias = [None, None] if one.input_bias is None else _split(one.input_bias, rows[0])
    state_bias = [None, None] if one.state_bias is None else _split(one.state_bias, rows[0])
    bias = None if input_bias[0] is None or state_bias[0] is None else plus(input_bias[0], state_bias[0])
    gates = gemm(one.h, recurrent[0], gemm(one.x, w[0], bias))
    before_z, before_r = columns(gates, 2, n)
    z, reset = f(clipped(before_z, clip)), f(clipped(before_r, clip))
    slope_z = inside_clip(f.slope(clipped(before_z, clip), z), before_z, clip)
    slope_r = inside_clip(f.slope(clipped(before_r, clip), reset), before_r, clip)
    from_x = gemm(one.x, w[1], input_bias[1])
    if inside:
        from_h = gemm(one.h, recurrent[1], state_bias[1])
        before_n = plus(from_x, times(reset, from_h))
    else:
        from_h = times(reset, one.h)
        before_n = gemm(from_h, recurrent[1], from_x if state_bias[1] is None else plus(from_x, state_bias[1]))
    new = g(clipped(before_n, clip))
    slope_n = inside_clip(g.slope(clipped(before_n, clip), new), before_n, clip)
    factor_n = one.masked(times(minus_from_one(z), slope_n))
    factor_z = one.masked(times(apply1("Sub", one.h, new), slope_z))
    keep = one.masked(z)
    factor_r = one.masked(times(from_h if inside else one.h, slope_r))
    resets = one.scanned(reset)
    first = start_of(layer, one.gh)
    if inside:

        def step(dh: Tensor, fn: Tensor, fz: Tensor, fr: Tensor, k: Tensor, reset: Tensor) -> list[Tensor]:
            dn, dz = times(dh, fn), times(dh, fz)
            through = times(dn, reset)
            dr = times(dn, fr)
            state = apply1("Concat", dz, dr, through, axis=1)
            return [plus(times(dh, k), apply1("MatMul", state, one.r)), state, dn]

        before, stacked, dn = one.run([first], [factor_n, factor_z, factor_r, keep, resets], step)
        states = flat_rows(stacked)
        both, _ = _split(states, rows[0], 1)
        flat_n = flat_rows(dn)
        flat = apply1("Concat", both, flat_n, axis=1)
        to_x, to_w, _ = one.weights(flat)
        return [
            to_x,
            to_w,
            lambda: apply1("Gemm", states, one.h, transA=1),
            lambda: apply1("Concat", summed(flat), summed(states), axis=0),
            None,
            value_of(before),
        ]

    def plain(dh: Tensor, fn: Tensor, fz: Tensor, fr: Tensor, k: Tensor, reset: Tensor) -> list[Tensor]:
        dn, dz = times(dh, fn), times(dh, fz)
        through = apply1("MatMul", dn, recurrent[1])
        dr = times(through, fr)
        state = apply1("Concat", dz, dr, axis=1)
        carried = plus(times(dh, k), times(through, reset))
        return [plus(carried, apply1("MatMul", state, recurrent[0])), apply1("Concat", state, dn, axis=1)]

    before, stacked = one.run([first], [factor_n, factor_z, factor_r, keep, resets], plain)
    flat = flat_rows(stacked)
    to_x, to_w, _ = one.weights(flat)

    def to_recurrent() -> Tensor:
        both, last = _split(flat, rows[0], 1)
        return apply1("Concat", apply1("Gemm", both, one.h, transA=1), apply1("Gemm", last, from_h, transA=1), axis=0)

    return [to_x, to_w, to_recurrent, both_biases(flat), None, value_of(before)]


def _split(t: Tensor, sizes: Tensor, axis: int = 0) -> Sequence[Tensor]:
    return apply("Split", (t, sizes), {"axis": axis}, 2)
