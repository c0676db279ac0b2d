"""What runs an operator eagerly where ONNX Runtime has no kernel for its dtype: onnx's reference evaluator, corrected.

The evaluator's own ConvTranspose fails for groups and for an explicit output_shape, its LRN sums over the wrong
channels, its MeanVarianceNormalization takes float32 alone, its GlobalMaxPool is of pictures alone, it has no
GlobalLpPool, its Erf is of single precision, its Resize rounds places in its
own way, its RNN reads neither sequence_lens nor clip, its LpPool has other windows; it gets ours instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_resize import Resize as _Resize

from graphkit import dtypes
from graphkit.core import Array, Tensor

Kernel = Callable[[dict[str, Any]], Sequence[Any]]


def kernel(model: onnx.ModelProto, wanted: list[str]) -> Kernel:
    """A function that runs a model of one node."""
    if model.graph.node[0].op_type in _WIDENED and any(_is_bfloat16(i) for i in model.graph.input):
        return _widened(model.graph.node[0])
    evaluator = ReferenceEvaluator(model, new_ops=_CORRECTED)

    def run(feeds: dict[str, Any]) -> list[Any]:
        results: Any = evaluator.run(wanted, feeds)
        return [np.array(r, order="C") if isinstance(r, np.ndarray | np.generic) else r for r in results]

    return run


# What the evaluator gets wrong or refuses in bfloat16, which is computed in float32 and rounded once.
_WIDENED = frozenset(
    "AveragePool Conv ConvTranspose CumProd Det GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool Pad "
    "Resize".split()
)


def _is_bfloat16(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16


def _widened(node: onnx.NodeProto) -> Kernel:
    from graphkit.eager import EAGER

    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    texts = {name: value.decode() for name, value in attributes.items() if isinstance(value, bytes)}

    def run(feeds: dict[str, Any]) -> list[Any]:
        arrays = [feeds.get(name) for name in node.input]
        wide = [
            None if a is None else Tensor(a.astype(np.float32) if a.dtype == dtypes.BFLOAT16 else a) for a in arrays
        ]
        made = EAGER.apply(node.op_type, wide, {**attributes, **texts}, len(node.output), node.domain)
        return [y.astype(dtypes.BFLOAT16) if y.dtype == np.float32 else y for y in (t.numpy() for t in made)]

    return run


class Erf(OpRun):
    """In double precision, where the evaluator's own rounds to single."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        exact: Array = np.vectorize(math.erf, otypes=[np.float64])(x)
        return (exact.astype(x.dtype),)


class ConvTranspose(OpRun):
    """Each input element adds the kernel, times its value, at its window's place; pads are then cut off."""

    op_domain = ""

    def _run(
        self, x: Array, w: Array, b: Array | None = None, auto_pad: str | None = None,
        dilations: Sequence[int] | None = None, group: int | None = None,
        kernel_shape: Sequence[int] | None = None,  # noqa: ARG002  # passed by name; the weight says it
        output_padding: Sequence[int] | None = None, output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
    ) -> tuple[Array]:  # fmt: skip
        n, groups = x.ndim - 2, group or 1
        step, spread = list(strides or [1] * n), list(dilations or [1] * n)
        extra = list(output_padding or [0] * n)
        sizes = zip(step, x.shape[2:], spread, w.shape[2:], strict=True)
        reach = [s * (m - 1) + d * (k - 1) + 1 for s, m, d, k in sizes]
        whole = [r + e for r, e in zip(reach, extra, strict=True)]
        begins, extents = _placed(whole, step, x.shape[2:], auto_pad or "NOTSET", output_shape, pads)
        room = [max(b + m, r) for b, m, r in zip(begins, extents, whole, strict=True)]
        full = np.zeros((x.shape[0], w.shape[1] * groups, *room), x.dtype)
        each = x.shape[1] // groups
        for offset in itertools.product(*(range(k) for k in w.shape[2:])):
            place = tuple(
                slice(o * d, o * d + s * (m - 1) + 1, s)
                for o, d, s, m in zip(offset, spread, step, x.shape[2:], strict=True)
            )
            for g in range(groups):
                inside, outside = slice(g * each, (g + 1) * each), slice(g * w.shape[1], (g + 1) * w.shape[1])
                chosen: Any = (inside, slice(None), *offset)
                part = np.einsum("ni...,io->no...", x[:, inside], w[chosen])
                full[(slice(None), outside, *place)] += part
        result = full[(slice(None), slice(None), *(slice(b, b + m) for b, m in zip(begins, extents, strict=True)))]
        return (result if b is None else result + b.reshape(-1, *[1] * n),)


def _placed(
    whole: Sequence[int], strides: Sequence[int], inputs: Sequence[int], how: str, shape: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Where the output begins in everything that was written, and its extents; as ONNX Runtime has it."""
    n = len(whole)
    if shape:
        extents = [int(m) for m in shape][-n:]
    elif how.startswith("SAME"):
        extents = [min(m * s, r) for m, s, r in zip(inputs, strides, whole, strict=True)]
    else:
        given = list(pads or []) if how == "NOTSET" else []
        given = given or [0] * (2 * n)
        return given[:n], [r - b - e for r, b, e in zip(whole, given[:n], given[n:], strict=True)]
    totals = [max(0, r - m) for r, m in zip(whole, extents, strict=True)]
    return [t // 2 if how == "SAME_UPPER" else t - t // 2 for t in totals], extents


class LRN(OpRun):
    """x / (bias + alpha / size * the sum of squares over neighbouring channels) ^ beta."""

    op_domain = ""

    def _run(self, x: Array, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1) -> tuple[Array]:
        room = [(0, 0)] * x.ndim
        room[1] = ((size - 1) // 2, size // 2)
        squares = np.pad(x * x, room)
        total = sum(squares[:, n : n + x.shape[1]] for n in range(size))
        return (x / (bias + alpha / size * total) ** beta,)


class MeanVarianceNormalization(OpRun):
    """(x - mean) / (deviation + 1e-9)."""

    op_domain = ""

    def _run(self, x: Array, axes: Sequence[int] | None = None) -> tuple[Array]:
        over = tuple(axes or (0, 2, 3))
        return ((x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + 1e-9),)


class GlobalMaxPool(OpRun):
    """The maximum over every axis behind the channels."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):
    """The p-norm over every axis behind the channels."""

    op_domain = ""

    def _run(self, x: Array, p: int = 2) -> tuple[Array]:
        return ((np.abs(x) ** p).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


class Resize(_Resize):
    """As ONNX Runtime in single precision: nearest takes the elements that it takes, and what keeps its shape stays."""

    op_domain = ""

    def _run(  # type: ignore[override]  # the attributes come by name, as they are
        self, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array]:  # fmt: skip
        from graphkit.eager import EAGER

        given = [None if t is None else Tensor(np.asarray(t)) for t in (roi, scales, sizes)]
        settings = {name: value for name, value in attributes.items() if value is not None}
        outside = settings.pop("extrapolation_value", 0.0)
        numbers = np.arange(x.size, dtype=np.float32).reshape(x.shape)
        if not 0 < x.size < 2**24:  # so far does single precision count
            return super()._run(x, roi, scales, sizes, **attributes)  # type: ignore[no-any-return]
        settings["extrapolation_value"] = -1.0
        (where,) = EAGER.apply("Resize", [Tensor(numbers), *given], settings, 1, "")
        at = where.numpy()
        if settings.get("mode", "nearest") == "nearest":
            places = at.astype(np.int64)
            return (np.where(places < 0, np.asarray(outside, x.dtype), x.ravel()[places]),)
        if at.shape == x.shape and (at == numbers).all():
            return (x,)
        return super()._run(x, roi, scales, sizes, **attributes)  # type: ignore[no-any-return]


class LpPool(OpRun):
    """The p-norm of every window, of which there are as many as the runtime's MaxPool has."""

    op_domain = ""

    def _run(self, x: Array, p: int = 2, **attributes: Any) -> tuple[Array]:
        from graphkit.eager import EAGER

        settings = {name: value for name, value in attributes.items() if value is not None}
        (shape,) = EAGER.apply("MaxPool", [Tensor(np.zeros(x.shape, np.float32))], settings, 1, "")
        kernel, extents = settings["kernel_shape"], shape.numpy().shape[2:]
        n, how = len(kernel), settings.get("auto_pad", "NOTSET")
        steps, spread = settings.get("strides") or [1] * n, settings.get("dilations") or [1] * n
        sizes = list(zip(extents, steps, spread, kernel, strict=True))
        reach = [(m - 1) * s + d * (k - 1) + 1 for m, s, d, k in sizes]
        begins = list(settings.get("pads") or [0] * n)[:n] if how == "NOTSET" else [0] * n
        if how.startswith("SAME"):
            totals = [max(0, r - e) for r, e in zip(reach, x.shape[2:], strict=True)]
            begins = [t // 2 if how == "SAME_UPPER" else t - t // 2 for t in totals]
        room = [max(r, b + e) for r, b, e in zip(reach, begins, x.shape[2:], strict=True)]
        powers = np.zeros((*x.shape[:2], *room), x.dtype)
        inside: Any = (..., *(slice(b, b + e) for b, e in zip(begins, x.shape[2:], strict=True)))
        powers[inside] = np.abs(x) ** p
        total = np.zeros((*x.shape[:2], *extents), x.dtype)
        for offset in itertools.product(*(range(k) for k in kernel)):
            pairs = zip(offset, sizes, strict=True)
            places: Any = (..., *(slice(o * d, o * d + s * (m - 1) + 1, s) for o, (m, s, d, _) in pairs))
            total += powers[places]
        return (total ** (1 / p),)


class RNN(OpRun):
    """Step by step as the standard has it, with sequence_lens and clip, which the evaluator leaves out."""

    op_domain = ""

    def _run(
        self, x: Array, w: Array, r: Array, b: Array | None = None, lengths: Array | None = None,
        h: Array | None = None, activations: Sequence[str] | None = None, clip: float | None = None,
        direction: str | None = None, layout: int | None = None, **_: Any,
    ) -> tuple[Array, Array]:  # fmt: skip
        x = np.swapaxes(x, 0, 1) if layout else x
        steps, rows, size = x.shape[0], x.shape[1], r.shape[-1]
        names = [*(activations or ()), "Tanh", "Tanh"]
        y = np.zeros((steps, len(w), rows, size), x.dtype)
        last = np.zeros((len(w), rows, size), x.dtype)
        for d in range(len(w)):
            function = _ACTIVATIONS.get(names[d].lower())
            if function is None:
                raise NotImplementedError(f"the activation {names[d]} is not computed in double precision")
            bias = b[d, :size] + b[d, size:] if b is not None else 0
            for row in range(rows):
                count = steps if lengths is None else int(lengths[row])
                state = np.zeros(size, x.dtype) if h is None else (h[row, d] if layout else h[d, row])
                order = range(count)[::-1] if direction == "reverse" or d else range(count)
                for t in order:
                    before = x[t, row] @ w[d].T + state @ r[d].T + bias
                    state = function(np.clip(before, -clip, clip) if clip else before)
                    y[t, d, row] = state
                last[d, row] = state if count else 0
        return (y.transpose(2, 0, 1, 3), last.transpose(1, 0, 2)) if layout else (y, last)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "softsign": lambda a: a / (1 + np.abs(a)),
    "softplus": lambda a: np.logaddexp(a, 0),
}

_CORRECTED = [Erf, ConvTranspose, LRN, MeanVarianceNormalization, GlobalMaxPool, GlobalLpPool, Resize, LpPool, RNN]
