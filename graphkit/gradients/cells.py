"""What the gradients of RNN, GRU and LSTM share: activations, inputs by time, masks, and the loop over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphkit import dtypes
from graphkit.core import Record, Tensor
from graphkit.errors import GradientError
from graphkit.gradients.elementwise import as_mask, number
from graphkit.gradients.shapes import constant
from graphkit.interpreter import apply, apply1
from graphkit.methods import constant_ints

# Default alpha and beta of the activations that have them. The standard leaves those of Affine and ScaledTanh open;
# ONNX Runtime, which computes the values, takes 0 there, and 0 for the threshold too.
_DEFAULTS: Final[dict[str, tuple[float | None, float | None]]] = {
    "affine": (0.0, 0.0), "relu": (None, None), "leakyrelu": (0.01, None), "thresholdedrelu": (0.0, None),
    "tanh": (None, None), "scaledtanh": (0.0, 0.0), "sigmoid": (None, None), "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None), "softsign": (None, None), "softplus": (None, None),
}  # fmt: skip
_PLAIN: Final = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softsign": "Softsign", "softplus": "Softplus",
}  # fmt: skip
_WITH_ALPHA: Final = {"leakyrelu": "LeakyRelu", "thresholdedrelu": "ThresholdedRelu", "elu": "Elu"}


def times(a: Tensor, b: Tensor) -> Tensor:
    return apply1("Mul", a, b)


def plus(a: Tensor, b: Tensor) -> Tensor:
    return apply1("Add", a, b)


def minus_from_one(x: Tensor) -> Tensor:
    return apply1("Sub", number(1, x), x)


@dataclass(frozen=True)
class Activation:
    """An activation function with its settings."""

    name: str
    alpha: float
    beta: float

    def __call__(self, z: Tensor) -> Tensor:
        name = self.name
        if name == "affine":
            return plus(times(z, number(self.alpha, z)), number(self.beta, z))
        if name == "scaledtanh":
            return times(apply1("Tanh", times(z, number(self.beta, z))), number(self.alpha, z))
        if name == "hardsigmoid":
            return apply1("HardSigmoid", z, alpha=self.alpha, beta=self.beta)
        if name in _PLAIN:
            return apply1(_PLAIN[name], z)
        return apply1(_WITH_ALPHA[name], z, alpha=self.alpha)

    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        """The derivative at z, where the value is y."""
        name, one = self.name, number(1, z)
        if name == "sigmoid":
            return times(y, apply1("Sub", one, y))
        if name == "tanh":
            return apply1("Sub", one, times(y, y))
        if name == "scaledtanh":
            rest = times(times(y, y), number(self.beta / self.alpha if self.alpha else 0.0, z))
            return apply1("Sub", number(self.alpha * self.beta, z), rest)
        if name == "affine":
            return number(self.alpha, z)
        if name == "softplus":
            return apply1("Sigmoid", z)
        if name == "softsign":
            rest = apply1("Sub", one, apply1("Abs", y))
            return times(rest, rest)
        if name == "hardsigmoid":
            inside = apply1("And", apply1("Greater", y, number(0, z)), apply1("Less", y, one))
            return times(as_mask(inside, z), number(self.alpha, z))
        threshold = self.alpha if name == "thresholdedrelu" else 0.0
        above = as_mask(apply1("Greater", z, number(threshold, z)), z)
        if name == "leakyrelu":
            return plus(times(above, number(1 - self.alpha, z)), number(self.alpha, z))
        if name == "elu":
            return plus(above, times(apply1("Sub", one, above), plus(y, number(self.alpha, z))))
        return above


def activations(r: Record, count: int, directions: int, defaults: Sequence[str]) -> list[list[Activation]]:
    """The activations of each direction. Alphas and betas are taken in order by the functions that have them."""
    names = [str(n).lower() for n in (r.attribute("activations") or list(defaults) * directions)]
    alphas = [float(v) for v in (r.attribute("activation_alpha") or [])]
    betas = [float(v) for v in (r.attribute("activation_beta") or [])]
    found = []
    for name in names:
        if name not in _DEFAULTS:
            raise GradientError(
                f"{r.describe()} has the activation '{name}'; those of the standard are {', '.join(_DEFAULTS)}"
            )
        alpha, beta = _DEFAULTS[name]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        found.append(Activation(name, alpha or 0.0, beta or 0.0))
    return [found[d * count : (d + 1) * count] for d in range(directions)]


def clipped(z: Tensor, clip: float | None) -> Tensor:
    """z limited to -clip..clip."""
    return z if clip is None else apply1("Clip", z, number(-clip, z), number(clip, z))


def inside_clip(slope: Tensor, z: Tensor, clip: float | None) -> Tensor:
    """A slope, made 0 where z was clipped."""
    if clip is None:
        return slope
    return times(slope, as_mask(apply1("LessOrEqual", apply1("Abs", z), number(clip, z)), z))


class Layer:
    """A recurrent record, with time first, and the cotangents that came in.

    Attributes:
        x: [T, B, I]
        y: [T, D, B, H], every hidden state.
        masks: [T, B, 1], 1 for the steps that a sequence has; None where all have all.
    """

    def __init__(self, r: Record, gs: Sequence[Tensor | None], gates: int) -> None:
        self.record = r
        self.gates = gates
        direction = str(r.attribute("direction", "forward"))
        self.directions = 2 if direction == "bidirectional" else 1
        self.backwards = [direction == "reverse"] if self.directions == 1 else [False, True]
        clip = r.attribute("clip")
        self.clip = None if clip is None else float(clip)
        x, recurrence = r.inputs[0], r.inputs[2]
        assert x is not None and recurrence is not None
        self.x, self.y = x, every_state(r)
        self.gy, self.gh, self.gc = (gs[n] if n < len(gs) else None for n in range(3))
        known = recurrence.dims[2] if recurrence.dims is not None else None
        size = r.attribute("hidden_size") or known
        if not isinstance(size, int):
            raise GradientError(f"the gradient of {r.describe()} needs hidden_size, or the shape of R")
        self.hidden = size
        self.masks = self._masks(r.input(4))

    def part(self, t: Tensor | None, d: int, axis: int = 0) -> Tensor | None:
        """One direction of a tensor."""
        if t is None:
            return None
        if self.directions == 1:
            return apply1("Squeeze", t, constant_ints([axis]))
        return apply1("Gather", t, constant(d, dtypes.INT64), axis=axis)

    def initial(self, n: int, d: int) -> Tensor | None:
        """The initial state of a direction, [B, H], from input n."""
        t = self.record.input(n)
        return None if t is None else self.part(t, d)

    def _masks(self, lengths: Tensor | None) -> Tensor | None:
        if lengths is None:
            return None
        steps = apply1("Squeeze", apply1("Shape", self.x, start=0, end=1))
        known = self.x.dims[0] if self.x.dims is not None else None
        if isinstance(known, int):
            steps = constant(known, dtypes.INT64)
        places = apply1("Range", constant(0, dtypes.INT64), steps, constant(1, dtypes.INT64))
        column = apply1("Unsqueeze", places, constant_ints([1]))
        row = apply1("Unsqueeze", lengths.astype("int64"), constant_ints([0]))
        return as_mask(apply1("Unsqueeze", apply1("Less", column, row), constant_ints([2])), self.x)

    def before(self, states: Tensor, first: Tensor | None, backwards: bool, blank: bool) -> Tensor:
        """The state that each step started from, [T, B, H], given the one that each made.

        ``blank`` says that the states after a sequence's end are zeros, as those of Y are, and not the initial state.
        """
        if backwards:
            rest = apply1("Slice", states, constant_ints([1]), constant_ints([2**31 - 1]), constant_ints([0]))
        else:
            rest = apply1("Slice", states, constant_ints([0]), constant_ints([-1]), constant_ints([0]))
        if first is None:
            pads = [0, 0, 0, 1, 0, 0] if backwards else [1, 0, 0, 0, 0, 0]
            return apply1("Pad", rest, constant_ints(pads))
        row = apply1("Unsqueeze", first, constant_ints([0]))
        shifted = apply1("Concat", *((rest, row) if backwards else (row, rest)), axis=0)
        if blank and backwards and self.masks is not None:
            # the last step of a shorter sequence starts from the initial state too: what follows it is all zeros
            follows = apply1("Slice", self.masks, constant_ints([1]), constant_ints([2**31 - 1]), constant_ints([0]))
            follows = apply1("Pad", follows, constant_ints([0, 0, 0, 1, 0, 0]), number(1, self.x))
            shifted = plus(shifted, times(minus_from_one(follows), row))
        return shifted

    def zeros(self) -> Tensor:
        """[B, H]"""
        known = self.x.dims
        if known is not None and isinstance(known[1], int):
            return constant(np.zeros((known[1], self.hidden)), self.x.dtype)
        shape = apply1("Concat", apply1("Shape", self.x, start=1, end=2), constant_ints([self.hidden]), axis=0)
        return apply1("ConstantOfShape", shape, value=np.zeros(1).astype(self.x.dtype))

    def by_time(self, flat: Tensor, width: int) -> Tensor:
        """[T B, n] as [T, B, n]."""
        known = self.x.dims
        if known is not None and isinstance(known[1], int):
            return apply1("Reshape", flat, constant_ints([-1, known[1], width]))
        if known is not None and isinstance(known[0], int):
            return apply1("Reshape", flat, constant_ints([known[0], -1, width]))
        shape = apply1("Concat", apply1("Shape", self.x, start=0, end=2), constant_ints([width]), axis=0)
        return apply1("Reshape", flat, shape)

    def biases(self, d: int) -> tuple[Tensor | None, Tensor | None]:
        """The biases of the input's and of the state's part."""
        both = self.part(self.record.input(3), d)
        if both is None:
            return None, None
        made = apply("Split", (both, constant_ints([self.gates * self.hidden] * 2)), {"axis": 0}, 2)
        return made[0], made[1]


def every_state(r: Record) -> Tensor:
    """Output Y, whether it was asked for or not."""
    y = r.outputs[0]
    if y.value is not None and not y.value.name and y.graph is not None:
        y.value.name = y.name = y.graph.unique(f"{r.op.lower()}_states")
    return y


def gemm(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """a b^T + c"""
    return apply1("Gemm", a, b, c, transB=1) if c is not None else apply1("Gemm", a, b, transB=1)


def columns(t: Tensor, count: int, width: int) -> Sequence[Tensor]:
    """Equal parts along the last of two axes."""
    return apply("Split", (t, constant_ints([width] * count)), {"axis": 1}, count) if count > 1 else (t,)


def joined(parts: Sequence[Tensor | None], directions: int) -> Tensor | None:
    """The directions' results put together along a new first axis."""
    if parts[0] is None:
        return None
    wide = [apply1("Unsqueeze", p, constant_ints([0])) for p in parts if p is not None]
    return wide[0] if directions == 1 else apply1("Concat", *wide, axis=0)


def total(parts: Sequence[Tensor]) -> Tensor:
    result = parts[0]
    for p in parts[1:]:
        result = plus(result, p)
    return result
