"""Resize: every mode is a linear map, the product of one matrix an axis.

The matrix of an axis is what the operator itself makes of an identity matrix, with the same attributes; so coordinate
modes, antialiasing, cubic weights and regions of interest need no second account here, and the gradient is the
transpose of what the runtime does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit import dtypes
from graphkit.core import Array, Record, Tensor
from graphkit.dims import same, same_dims
from graphkit.gradients.elementwise import number
from graphkit.gradients.shapes import constant, rank_of, shaped_like, static_ints, static_value
from graphkit.gradients.table import gradient
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

_COPIED = (
    "antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode",
)  # fmt: skip


@gradient("Resize", mixes=True)
def resize(r: Record, g: Tensor) -> Tensor:
    x = r.inputs[0]
    assert x is not None
    rank = rank_of(r, x)
    axes = [int(a) % rank for a in r.attribute("axes") or range(rank)]
    changed = [n for n, axis in enumerate(axes) if not _kept(r, x, n, axis)]
    repeats = _repeats(r, x, axes, changed)
    if repeats is not None:
        return shaped_like(_summed(g, x, rank, repeats), x)
    copied = _copied(r, x, axes, changed)
    if copied is True:
        return shaped_like(g, x)
    result = g
    for n in changed:
        result = _pulled(r, x, result, n, axes, rank, copied)
    return shaped_like(result, x)


def _mode(r: Record) -> str:
    return str(r.attribute("coordinate_transformation_mode", "half_pixel"))


def _scales(r: Record) -> Array | None:
    """The scales if they are given and known."""
    t = r.input(2)
    found = static_value(t)
    return None if found is None or np.asarray(found).size == 0 else np.asarray(found, np.float32)


def _has_scales(r: Record) -> bool:
    return r.input(2) is not None and r.input(3) is None


def _kept(r: Record, x: Tensor, n: int, axis: int) -> bool:
    """Whether an axis certainly stays as it is."""
    if _mode(r) == "tf_crop_and_resize":
        roi = static_value(r.input(1))
        if roi is None or len(roi) == 0:
            return False
        half = len(roi) // 2
        if roi[n] != 0 or roi[half + n] != 1:
            return False
    elif axis == 0 and (x.rank or 0) > 3 and r.attribute("mode", "nearest") != "nearest":
        return True  # no runtime interpolates between images of a batch
    if _has_scales(r):
        scales = _scales(r)
        return scales is not None and float(scales[n]) == 1.0
    y = r.outputs[0]
    if x.dims is None or y.dims is None:
        return False
    if r.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        scale = _kept_ratio(r, x)
        return scale is not None and scale == 1
    return same(x.dims[axis], y.dims[axis]) is True


def _may_keep_extent(r: Record, x: Tensor, n: int, axis: int) -> bool:
    """Whether an axis may have as many elements as before though its scale is not 1: 4 * 1.2 rounded down."""
    scales = _scales(r)
    if scales is None:
        return True
    if not 1 < scales[n] < 2:
        return False
    extent = x.dims[axis] if x.dims is not None else None
    return not isinstance(extent, int) or int(np.float32(extent) * scales[n]) == extent


def _copied(r: Record, x: Tensor, axes: list[int], changed: list[int]) -> bool | Tensor:
    """Whether the runtime copies, as it does where no axis has another extent than before, whatever the scales."""
    crops = _mode(r) == "tf_crop_and_resize"
    if crops or not _has_scales(r) or not all(_may_keep_extent(r, x, n, axes[n]) for n in changed):
        return False
    y = r.outputs[0]
    known = same_dims(x.dims, y.dims)
    if known is not None:
        return known
    return apply1("ReduceMin", apply1("Equal", apply1("Shape", x), apply1("Shape", y)).astype("int64"), keepdims=0)


def _repeats(r: Record, x: Tensor, axes: list[int], changed: list[int]) -> dict[int, int] | None:
    """By axis, how often nearest repeats each element, where that is all it does."""
    how, rounding = _mode(r), str(r.attribute("nearest_mode", "round_prefer_floor"))
    exact = (how == "asymmetric" and rounding == "floor") or (
        how in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel") and rounding.startswith("round_")
    )
    if r.attribute("mode", "nearest") != "nearest" or not exact or not changed:
        return None
    scales = _scales(r) if _has_scales(r) else None
    y = r.outputs[0]
    if scales is None and r.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        ratio = _kept_ratio(r, x)
        if ratio is None or ratio != int(ratio):
            return None  # extents are rounded: 3 * 2.1 is 6, but two elements do not come from each
    found: dict[int, int] = {}
    for n in changed:
        axis = axes[n]
        if scales is not None:
            factor = float(scales[n])
        else:
            before, after = (None if t.dims is None else t.dims[axis] for t in (x, y))
            if not isinstance(before, int) or not isinstance(after, int) or not before:
                return None
            factor = after / before
        if factor != int(factor) or factor < 1:
            return None
        if how == "pytorch_half_pixel" and x.dims is not None and not isinstance(x.dims[axis], int):
            return None  # an output of one element reads the first
        found[axis] = int(factor)
    return found


def _summed(g: Tensor, x: Tensor, rank: int, repeats: dict[int, int]) -> Tensor:
    """Every block of repeats added up: a mean over windows, where there is a kernel for it."""
    if min(repeats) >= 2 and rank in (3, 4, 5) and g.dtype in (dtypes.FLOAT32, dtypes.FLOAT16):
        kernel = [repeats.get(axis, 1) for axis in range(2, rank)]
        pooled = apply1("AveragePool", g, kernel_shape=kernel, strides=kernel)
        return apply1("Mul", pooled, number(float(np.prod(kernel)), g))
    result = g
    for axis, factor in sorted(repeats.items(), reverse=True):
        before, after = apply1("Shape", result, start=0, end=axis), apply1("Shape", result, start=axis + 1)
        shape = [*([before] if axis else []), constant_ints([-1, factor]), *([after] if axis < rank - 1 else [])]
        apart = apply1("Reshape", result, apply1("Concat", *shape, axis=0) if len(shape) > 1 else shape[0])
        result = apply1("ReduceSum", apart, constant_ints([axis + 1]), keepdims=0)
    return result


def _pulled(r: Record, x: Tensor, g: Tensor, n: int, axes: list[int], rank: int, copied: bool | Tensor) -> Tensor:
    """The cotangent carried back along one axis."""
    axis = axes[n]
    matrix = _matrix(r, x, n, axis, len(axes), transposed=axis == rank - 2)
    if isinstance(copied, Tensor):
        matrix = apply1("Where", copied.astype("bool"), apply1("EyeLike", matrix), matrix)
    if axis == rank - 1:
        return apply1("MatMul", g, matrix)
    if axis == rank - 2:
        return apply1("MatMul", matrix, g)
    perm = [a for a in range(rank) if a != axis] + [axis]
    moved = apply1("MatMul", apply1("Transpose", g, perm=perm), matrix)
    return apply1("Transpose", moved, perm=[perm.index(a) for a in range(rank)])


def _matrix(r: Record, x: Tensor, n: int, axis: int, count: int, *, transposed: bool) -> Tensor:
    """[outputs, inputs] of one axis, or its transpose: the operator applied to an identity matrix."""
    extent = x.dims[axis] if x.dims is not None else None
    if isinstance(extent, int):
        identity = constant(np.eye(extent), x.dtype)
    else:
        length = apply1("Shape", x, start=axis, end=axis + 1)
        square = apply1("ConstantOfShape", apply1("Concat", length, length, axis=0), value=np.zeros(1, x.dtype))
        identity = apply1("EyeLike", square)
    place = 1 if transposed else 0
    settings: dict[str, Any] = {k: r.attributes[k] for k in _COPIED if r.attributes.get(k) is not None}
    roi = _roi(r, n, count, place)
    if _has_scales(r):
        scale = _one(r.input(2), n, _scales(r), dtypes.FLOAT32)
        if _may_keep_extent(r, x, n, axis):  # a second axis that grows keeps the runtime from copying
            pictures = apply1("Unsqueeze", identity, constant_ints([1, 3]))
            pair = _beside(constant([2.0], dtypes.FLOAT32), scale, 0)
            return _of_pictures(apply1("Resize", pictures, _roi(r, n, count, 0), pair, axes=[2, 3], **settings), place)
        return apply1("Resize", identity, roi, _beside(constant([1.0], dtypes.FLOAT32), scale, place), **settings)
    if r.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return _kept_ratio_matrix(r, x, identity, axis, roi, place, settings)
    y = r.outputs[0]
    wanted = y.dims[axis] if y.dims is not None else None
    target = constant_ints([wanted]) if isinstance(wanted, int) else apply1("Shape", y, start=axis, end=axis + 1)
    length = constant_ints([extent]) if isinstance(extent, int) else apply1("Shape", x, start=axis, end=axis + 1)
    return apply1("Resize", identity, roi, None, _beside(length, target, place), **settings)


def _one(t: Tensor | None, n: int, known: Array | None, dtype: dtypes.DType) -> Tensor:
    if known is not None:
        return constant([known[n]], dtype)
    assert t is not None
    return apply1("Gather", t, constant_ints([n]))


def _beside(other: Tensor, own: Tensor, place: int) -> Tensor:
    if not other.traced and not own.traced and other.literal and own.literal:
        pair = [other.numpy(), own.numpy()] if place else [own.numpy(), other.numpy()]
        return constant(np.concatenate(pair), own.dtype)
    return apply1("Concat", *([other, own] if place else [own, other]), axis=0)


def _roi(r: Record, n: int, count: int, place: int) -> Tensor | None:
    """The region of interest of one axis of the identity matrix, the whole of the other."""
    given = r.input(1)
    if _mode(r) != "tf_crop_and_resize" or given is None:
        return None
    known = static_value(given)
    if known is not None:
        values = [known[n], known[count + n]]
        row = [values[0], 0.0, values[1], 1.0] if place == 0 else [0.0, values[0], 1.0, values[1]]
        return constant(row, given.dtype)
    bounds = apply1("Concat", given, constant([0.0, 1.0], given.dtype), axis=0)
    zero, one = 2 * count, 2 * count + 1
    wanted = [n, zero, count + n, one] if place == 0 else [zero, n, one, count + n]
    return apply1("Gather", bounds, constant_ints(wanted))


def _kept_ratio(r: Record, x: Tensor) -> float | None:
    """The one scale of keep_aspect_ratio_policy, if sizes and extents are known."""
    sizes = static_ints(r.input(3))
    assert x.dims is not None
    axes = [int(a) % len(x.dims) for a in r.attribute("axes") or range(len(x.dims))]
    extents = [x.dims[a] for a in axes]
    if sizes is None or not all(isinstance(e, int) for e in extents):
        return None
    ratios = [np.float32(s) / np.float32(int(e)) for s, e in zip(sizes, extents, strict=True)]
    return float(min(ratios) if r.attribute("keep_aspect_ratio_policy") == "not_larger" else max(ratios))


def _kept_ratio_matrix(
    r: Record, x: Tensor, identity: Tensor, axis: int, roi: Tensor | None, place: int, settings: dict[str, Any]
) -> Tensor:
    """With one scale for all axes, an extent is rounded after scaling, where scales alone would round it down."""
    scale = _kept_ratio(r, x)
    if scale is None:
        return _run_time_ratio_matrix(r, x, identity, axis, roi, place, settings)
    assert x.dims is not None
    extent = int(x.dims[axis])
    exact = np.float32(extent) * np.float32(scale)
    wanted = int(np.floor(exact + np.float32(0.5)))
    # the kernel multiplies in single precision, shape inference in double: 5 * 1.4 is 7 or 6
    if int(np.floor(exact)) == wanted == int(np.floor(extent * scale)) and wanted != extent:
        pair = _beside(constant([1.0], dtypes.FLOAT32), constant([scale], dtypes.FLOAT32), place)
        return apply1("Resize", identity, roi, pair, **settings)
    if _mode(r) in ("align_corners", "tf_crop_and_resize"):  # which go by the extents alone
        pair = _beside(constant_ints([extent]), constant_ints([wanted]), place)
        return apply1("Resize", identity, roi, None, pair, **settings)
    if _reads_beyond(r, settings):
        return _in_a_picture(r, x, identity, axis, place, settings)
    # Enough copies of the last element to make the extent come out; reading beyond it reads the last element anyhow.
    # Fewer of them than make a difference to the extent, the runtime would copy.
    more = int(np.ceil(max((wanted + 1) / scale, 1 / (scale - 1) + 1 if scale > 1 else 0))) - extent
    rows = np.pad(np.eye(extent), [(0, more), (0, 0)], mode="edge")
    pair = _beside(constant([1.0], dtypes.FLOAT32), constant([scale], dtypes.FLOAT32), place)
    longer = apply1("Resize", constant(rows.T if place else rows, x.dtype), None, pair, **settings)
    return apply1("Slice", longer, constant_ints([0]), constant_ints([wanted]), constant_ints([place]))


def _reads_beyond(r: Record, settings: dict[str, Any]) -> bool:
    """Whether it matters to a result where the input ends: more copies of the last element would change it."""
    uneven = settings.get("antialias") or settings.get("exclude_outside")
    return bool(uneven) or _mode(r) == "half_pixel_symmetric"


def _in_a_picture(
    r: Record, x: Tensor, identity: Tensor, axis: int, place: int, settings: dict[str, Any]
) -> Tensor:  # fmt: skip
    """The matrix of an axis beside the axis that the one scale comes from, along which every picture is constant."""
    assert x.rank is not None
    sizes = r.input(3)
    assert sizes is not None
    policy = str(r.attribute("keep_aspect_ratio_policy"))
    axes = [int(a) % x.rank for a in r.attribute("axes") or range(x.rank)]
    extents = apply1("Gather", apply1("Shape", x), constant_ints(axes))
    ratios = apply1("Div", sizes.astype("float32"), extents.astype("float32"))
    scaling = apply1("ArgMin" if policy == "not_larger" else "ArgMax", ratios, axis=0, keepdims=1)
    size, extent = apply1("Gather", sizes, scaling), apply1("Gather", extents, scaling)
    own = apply1("Gather", sizes, constant_ints([axes.index(axis)]))
    pictures = apply1("Unsqueeze", identity, constant_ints([1, 3]))  # [element, 1, element, 1]
    pictures = apply1("Expand", pictures, apply1("Concat", constant_ints([1, 1, 1]), extent, axis=0))
    resized = apply1(
        "Resize", pictures, None, None, apply1("Concat", own, size, axis=0), axes=[2, 3],
        keep_aspect_ratio_policy=policy, **settings,
    )  # fmt: skip
    return _of_pictures(resized, place)


def _of_pictures(resized: Tensor, place: int) -> Tensor:
    """The matrix in the first column of every picture: [element, 1, outputs, columns]."""
    matrix = apply1("Squeeze", apply1("Gather", resized, constant(0, dtypes.INT64), axis=3), constant_ints([1]))
    return matrix if place else apply1("Transpose", matrix, perm=[1, 0])


def _run_time_ratio_matrix(
    r: Record, x: Tensor, identity: Tensor, axis: int, roi: Tensor | None, place: int, settings: dict[str, Any]
) -> Tensor:
    """The same where the scale is only known when the graph runs."""
    sizes, y = r.input(3), r.outputs[0]
    assert sizes is not None
    length = apply1("Shape", x, start=axis, end=axis + 1)
    wanted = apply1("Shape", y, start=axis, end=axis + 1)
    if _mode(r) in ("align_corners", "tf_crop_and_resize"):
        return apply1("Resize", identity, roi, None, _beside(length, wanted, place), **settings)
    if _reads_beyond(r, settings):
        return _in_a_picture(r, x, identity, axis, place, settings)
    extents = apply1("Shape", x)
    axes = r.attribute("axes")
    if axes:
        extents = apply1("Gather", extents, constant_ints([int(a) for a in axes]))
    ratios = apply1("Div", sizes.astype("float32"), extents.astype("float32"))
    smallest = r.attribute("keep_aspect_ratio_policy") == "not_larger"
    scale = apply1("ReduceMin" if smallest else "ReduceMax", ratios, keepdims=1)
    reach = apply1("Ceil", apply1("Div", apply1("Add", wanted.astype("float32"), number(1, scale)), scale))
    above = apply1("Max", apply1("Sub", scale, number(1, scale)), number(1e-6, scale))
    least = apply1("Ceil", apply1("Add", apply1("Reciprocal", above), number(1, scale)))
    reach = apply1("Where", apply1("Greater", scale, number(1, scale)), apply1("Max", reach, least), reach)
    more = apply1("Max", apply1("Sub", reach.astype("int64"), length), constant(0, length.dtype))
    pads = [constant_ints([0, 0]), *([constant_ints([0]), more] if place else [more, constant_ints([0])])]
    longer = apply1("Pad", identity, apply1("Concat", *pads, axis=0), mode="edge")
    result = apply1("Resize", longer, None, _beside(constant([1.0], dtypes.FLOAT32), scale, place), **settings)
    return apply1("Slice", result, constant_ints([0]), wanted, constant_ints([place]))
