"""The normalizations: batch, layer, RMS, instance, group, mean-variance, Lp and local response.

Those that subtract a mean and divide by a deviation share one form. With z = (x - mean) * inv, the normalized input,
and h the cotangent of z, dx = inv * (h - mean(h) - z * mean(h * z)). Half precision is computed in float32, as the
operators themselves do.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit import dims, dtypes
from graphkit.core import Record, Tensor
from graphkit.gradients.elementwise import Entries, as_mask, number
from graphkit.gradients.kept import kept_output
from graphkit.gradients.shapes import divide_by_count, element_count, rank_of, reshape_to, shaped_like
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints


def widened(t: Tensor) -> Tensor:
    """Half precision as float32: squares and sums of it overflow."""
    return t.astype("float32") if t.dtype in (dtypes.FLOAT16, dtypes.BFLOAT16) else t


def mean(t: Tensor, axes: Sequence[int]) -> Tensor:
    return apply1("ReduceMean", t, constant_ints(axes), keepdims=1)


def centered(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """x - mean, and 1 / sqrt(variance + epsilon), over the axes."""
    c = apply1("Sub", x, mean(x, axes))
    return c, inverse_root(mean(apply1("Mul", c, c), axes), epsilon)


def inverse_root(variance: Tensor, epsilon: float) -> Tensor:
    return apply1("Reciprocal", apply1("Sqrt", apply1("Add", variance, number(epsilon, variance))))


def normalized_gradient(h: Tensor, z: Tensor, inv: Tensor, axes: Sequence[int], centers: bool = True) -> Tensor:
    """The cotangent of x in z = (x - mean) * inv, of h for z."""
    inner = apply1("Mul", z, mean(apply1("Mul", h, z), axes))
    if centers:
        h = apply1("Sub", h, mean(h, axes))
    return shaped_like(apply1("Mul", inv, apply1("Sub", h, inner)), z)


def _trailing(r: Record, x: Tensor) -> list[int]:
    """The axes from ``axis`` on; counted from the end if that is how it was given."""
    axis = int(r.attribute("axis", -1))
    return list(range(axis, 0)) if axis < 0 else list(range(axis, rank_of(r, x)))


@gradient("LayerNormalization", keeps=3)
def layer_normalization(
    r: Record, g: Tensor | None, g_mean: Tensor | None = None, g_inv: Tensor | None = None
) -> Entries:
    """The mean and inverse deviation are outputs of the operator, so nothing is computed twice.

    Except in float64: ONNX Runtime gives those two in float32.
    """
    x, scale = r.inputs[0], r.inputs[1]
    assert x is not None and scale is not None
    axes = _trailing(r, x)
    wide = widened(x)
    if x.dtype == dtypes.FLOAT64:
        c, inv = centered(x, axes, float(r.attribute("epsilon", 1e-5)))
    else:
        c, inv = apply1("Sub", wide, widened(kept_output(r, 1))), widened(kept_output(r, 2))
    z = apply1("Mul", c, inv)
    up = None if g is None else widened(g)

    def input_gradient() -> Tensor:
        total = None if up is None else normalized_gradient(apply1("Mul", up, widened(scale)), z, inv, axes)
        if g_mean is not None:
            part = divide_by_count(g_mean.astype(wide.dtype), element_count(x, axes))
            total = apply1("Add", apply1("Mul", z, number(0, z)) if total is None else total, part)
        if g_inv is not None:
            share = divide_by_count(g_inv.astype(wide.dtype), element_count(x, axes))
            slope = apply1("Mul", apply1("Mul", inv, inv), share)
            part = apply1("Mul", slope, z)
            total = apply1("Neg", part) if total is None else apply1("Sub", total, part)
        assert total is not None
        return total

    if up is None:
        return (input_gradient,)
    return input_gradient, lambda: apply1("Mul", up, z), lambda: up


@gradient("RMSNormalization")
def rms_normalization(r: Record, g: Tensor) -> Entries:
    x, scale = r.inputs[0], r.inputs[1]
    assert x is not None and scale is not None
    axes = _trailing(r, x)
    wide, up = widened(x), widened(g)
    inv = inverse_root(mean(apply1("Mul", wide, wide), axes), float(r.attribute("epsilon", 1e-5)))
    z = apply1("Mul", wide, inv)
    return (
        lambda: normalized_gradient(apply1("Mul", up, widened(scale)), z, inv, axes, centers=False),
        lambda: apply1("Mul", up, z),
    )


def _channel(v: Tensor, rank: int) -> Tensor:
    """A vector over channels, ready to broadcast against [batch, channels, ...]."""
    return apply1("Unsqueeze", v, constant_ints(list(range(1, rank - 1)))) if rank > 2 else v


def _over_channels(t: Tensor, rank: int) -> Tensor:
    """Summed over everything but the channels."""
    return apply1("ReduceSum", t, constant_ints([a for a in range(rank) if a != 1]), keepdims=0)


@gradient("BatchNormalization")
def batch_normalization(
    r: Record, g: Tensor | None, g_mean: Tensor | None = None, g_var: Tensor | None = None
) -> Entries:
    """Frozen, or by the batch's own statistics (of the population, as in ONNX), which also enter the running ones."""
    x, scale, _, running_mean, running_var = r.inputs
    assert x is not None and scale is not None and running_mean is not None and running_var is not None
    if not r.attribute("training_mode", 0):
        return () if g is None else _frozen(r, g)
    rank = rank_of(r, x)
    momentum, epsilon = float(r.attribute("momentum", 0.9)), float(r.attribute("epsilon", 1e-5))
    wide, others = widened(x), [a for a in range(rank) if a != 1]
    c = apply1("Sub", wide, mean(wide, others))
    variance = apply1("ReduceMean", apply1("Mul", c, c), constant_ints(others), keepdims=0)
    inv = inverse_root(variance, epsilon)
    count = element_count(x, others)
    up = None if g is None else widened(g)
    # dx = a * g - b * (x - mean) - d, with one number a channel in each of a, b and d
    total = None if up is None else _over_channels(up, rank)
    product = None if up is None else _over_channels(apply1("Mul", up, c), rank)

    def of_running(cotangent: Tensor, factor: float) -> Tensor:
        wide_cotangent = widened(cotangent).astype(wide.dtype)
        return divide_by_count(apply1("Mul", wide_cotangent, number(factor * (1 - momentum), wide)), count)

    def input_gradient() -> Tensor:
        result: Tensor | None = None
        b: Tensor | None = None
        d: Tensor | None = None
        if up is not None:
            assert total is not None and product is not None
            a = apply1("Mul", widened(scale).astype(wide.dtype), inv)
            b = apply1("Mul", apply1("Mul", a, apply1("Mul", inv, inv)), divide_by_count(product, count))
            d = apply1("Mul", a, divide_by_count(total, count))
            result = apply1("Mul", up, _channel(a, rank))
        if g_var is not None:
            part = of_running(g_var, -2)
            b = part if b is None else apply1("Add", b, part)
        if g_mean is not None:
            part = of_running(g_mean, -1)
            d = part if d is None else apply1("Add", d, part)
        zero = apply1("Mul", c, number(0, c)) if result is None else result
        if b is not None:
            zero = apply1("Sub", zero, apply1("Mul", c, _channel(b, rank)))
        return zero if d is None else apply1("Sub", zero, _channel(d, rank))

    return (
        input_gradient,
        None if product is None else lambda: apply1("Mul", product, inv),
        total,
        None if g_mean is None else lambda: apply1("Mul", g_mean, number(momentum, g_mean)),
        None if g_var is None else lambda: apply1("Mul", g_var, number(momentum, g_var)),
    )


def _frozen(r: Record, g: Tensor) -> Entries:
    x, scale, _, running_mean, running_var = r.inputs
    assert x is not None and scale is not None and running_mean is not None and running_var is not None
    rank = rank_of(r, x)
    up = widened(g)
    inv = inverse_root(widened(running_var).astype(up.dtype), float(r.attribute("epsilon", 1e-5)))
    gain = apply1("Mul", widened(scale).astype(up.dtype), inv)
    total = _over_channels(up, rank) if any(map(r.wanted, (2, 3))) else None
    of_scale: Tensor | None = None
    if r.wanted(1) or r.wanted(4):
        c = apply1("Sub", widened(x), _channel(widened(running_mean).astype(up.dtype), rank))
        of_scale = apply1("Mul", _over_channels(apply1("Mul", up, c), rank), inv)

    def of_variance() -> Tensor:
        assert of_scale is not None
        return apply1("Mul", apply1("Mul", apply1("Mul", gain, inv), of_scale), number(-0.5, up))

    return (
        lambda: apply1("Mul", up, _channel(gain, rank)),
        of_scale,
        total,
        None if total is None else lambda: apply1("Neg", apply1("Mul", gain, total)),
        of_variance,
    )


@gradient("GroupNormalization", "InstanceNormalization")
def group_normalization(r: Record, g: Tensor) -> Entries:
    """Over [batch, groups, the rest]; each channel is a group of its own in InstanceNormalization."""
    x, scale, _ = r.inputs
    assert x is not None and scale is not None
    rank = rank_of(r, x)
    groups = int(r.attribute("num_groups", 0)) if r.op == "GroupNormalization" else 0
    axes: list[int] = [2]
    if groups:
        rows = apply1("Reshape", widened(x), constant_ints([0, groups, -1]))
    else:
        rows, axes = widened(x), list(range(2, rank))
    c, inv = centered(rows, axes, float(r.attribute("epsilon", 1e-5)))
    z = apply1("Mul", c, inv)
    up = widened(g)

    def input_gradient() -> Tensor:
        h = apply1("Mul", up, _channel(widened(scale), rank))
        if not groups:
            return normalized_gradient(h, z, inv, axes)
        h = apply1("Reshape", h, constant_ints([0, groups, -1]))
        return reshape_to(normalized_gradient(h, z, inv, axes), x)

    def scale_gradient() -> Tensor:
        return _over_channels(apply1("Mul", up, reshape_to(z, x) if groups else z), rank)

    return input_gradient, scale_gradient, lambda: _over_channels(up, rank)


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(r: Record, g: Tensor) -> Tensor:
    """(x - mean) / (deviation + 1e-9)."""
    x, axes = r.inputs[0], [int(a) for a in r.attribute("axes") or [0, 2, 3]]
    assert x is not None
    wide = widened(x)
    c = apply1("Sub", wide, mean(wide, axes))
    deviation = apply1("Sqrt", mean(apply1("Mul", c, c), axes))
    inv = apply1("Reciprocal", apply1("Add", deviation, number(1e-9, deviation)))
    return normalized_gradient(widened(g), apply1("Mul", c, inv), inv, axes)


@gradient("LpNormalization")
def lp_normalization(r: Record, g: Tensor) -> Tensor:
    """x / |x|; a vector of zeros has no direction, and gets 0."""
    x = r.inputs[0]
    (y,) = r.outputs
    assert x is not None
    axis, p = constant_ints([int(r.attribute("axis", -1))]), int(r.attribute("p", 2))
    wide, up = widened(x), widened(g)
    if p == 1:
        norm = apply1("ReduceL1", wide, axis, keepdims=1)
        side = apply1("Sign", wide)
    else:
        norm = apply1("Sqrt", apply1("ReduceSum", apply1("Mul", wide, wide), axis, keepdims=1))
        side = widened(y)
    along = apply1("ReduceSum", apply1("Mul", up, widened(y)), axis, keepdims=1)
    zero = as_mask(apply1("Equal", norm, number(0, norm)), norm)
    inv = apply1("Div", apply1("Sub", number(1, norm), zero), apply1("Add", norm, zero))
    return apply1("Mul", apply1("Sub", up, apply1("Mul", side, along)), inv)


@gradient("LRN")
def local_response(r: Record, g: Tensor) -> Tensor:
    """y = x * d^-beta, with d = bias + alpha / size * (sum of squares over neighbouring channels).

    The sums are average pools over the channels as an axis of a picture: [batch, 1, channels, the rest].
    """
    x = r.inputs[0]
    (y,) = r.outputs
    assert x is not None
    size, alpha = int(r.attribute("size")), float(r.attribute("alpha", 1e-4))
    beta, bias = float(r.attribute("beta", 0.75)), float(r.attribute("bias", 1.0))
    before, after = (size - 1) // 2, size // 2
    wide, up = widened(x), widened(g)
    squares = apply1("Mul", apply1("Mul", wide, wide), number(alpha, wide))
    d = apply1("Add", _neighbours(squares, before, after), number(bias, wide))
    slope = apply1("Pow", d, number(-beta, d))
    shared = _neighbours(apply1("Div", apply1("Mul", up, widened(y)), d), after, before)
    crossed = apply1("Mul", apply1("Mul", wide, number(2 * alpha * beta, wide)), shared)
    return apply1("Sub", apply1("Mul", up, slope), crossed)


def _neighbours(t: Tensor, before: int, after: int) -> Tensor:
    """The mean over a window of channels, zeros beyond the first and last of them."""
    size = before + after + 1
    assert t.rank is not None and t.dims is not None
    channels = t.dims[1]
    if isinstance(channels, int) and channels > 0:
        place = dims.size(t.dims[2:])
        rows = apply1("Reshape", t, constant_ints([0, 1, channels, place or -1]))
    else:
        shape = apply1("Concat", constant_ints([0, 1]), apply1("Shape", t, start=1, end=2), constant_ints([-1]), axis=0)
        rows = apply1("Reshape", t, shape)
    pooled = apply1(
        "AveragePool", rows, kernel_shape=[size, 1], pads=[before, 0, after, 0], strides=[1, 1], count_include_pad=1
    )  # fmt: skip
    return reshape_to(pooled, t)
