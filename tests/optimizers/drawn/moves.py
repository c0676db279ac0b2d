"""What a drawn graph may grow by: single operators with random settings, and the patterns that passes look for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.optimizers.drawn.drawing import ELEMENTS, SIZES, Array, Drawing

UNARY = (
    "Relu Neg Abs Exp Sigmoid Tanh Identity Sqrt Reciprocal Softplus Floor Ceil Round Sign Erf LeakyRelu Elu "
    "HardSigmoid Softsign Sin Cos Log Selu Identity Neg"
).split()
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Add", "Mul"]
COMPARISONS = ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]
CASTS = [
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
]
NEUTRAL = [
    ("Add", 0.0),
    ("Add", -0.0),
    ("Sub", 0.0),
    ("Sub", -0.0),
    ("Mul", 1.0),
    ("Div", 1.0),
    ("Pow", 1.0),
    ("Mul", 0.0),
]


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def is_single(array: Array) -> bool:
    return array.dtype == np.float32


def of_rank(*ranks: int) -> Callable[[Array], bool]:
    return lambda array: array.dtype == np.float32 and array.ndim in ranks


def unary(d: Drawing) -> None:
    if x := d.pick(is_float):
        d.add(d.one_of(UNARY), [x])


def binary(d: Drawing) -> None:
    x = d.pick(lambda a: a.dtype.kind in "fi")
    if x is None:
        return
    array = d.known(x)[0]
    other = d.pick(lambda a: a.dtype == array.dtype)
    if d.chance(0.5):
        shape = [1 if d.chance(0.5) or size in SIZES else size for size in array.shape]
        shape = shape[int(d.rng.integers(0, len(shape) + 1)) :]
        numbers = d.rng.standard_normal(shape) if array.dtype.kind == "f" else d.rng.integers(1, 4, shape)
        other = d.constant(numbers, array.dtype)
    pair = [x, other] if d.chance(0.5) else [other, x]
    operator = d.one_of(BINARY)
    if (
        operator == "Div"
        and array.dtype.kind == "i"
        and (d.known(pair[1])[0] == 0).any() | (d.known(pair[1])[1] == 0).any()
    ):
        return
    d.add(operator, pair)


def neutral(d: Drawing) -> None:
    if x := d.pick(is_float):
        operator, number = d.one_of(NEUTRAL)
        array = d.known(x)[0]
        shape = (1,) * int(d.rng.integers(0, array.ndim + 2))
        other = d.constant(np.full(shape, number), array.dtype)
        d.add(operator, [other, x] if operator in ("Add", "Mul") and d.chance(0.5) else [x, other])


def power(d: Drawing) -> None:
    if x := d.pick(is_float):
        d.add("Pow", [x, d.constant(d.one_of([2, 3, 0.5, -0.5, -1, 0, 1]), d.known(x)[0].dtype)])


def compare(d: Drawing) -> None:
    if x := d.pick(lambda a: a.dtype.kind in "fi"):
        y = d.pick(lambda a: a.dtype == d.known(x)[0].dtype)
        found = d.add(d.one_of(COMPARISONS if d.opset >= 12 else COMPARISONS[:3]), [x, y])
        if found and d.chance(0.4):
            d.add("Not", found)
        if found and d.chance(0.4):
            d.add("Cast", found, to=d.one_of(CASTS))


def logic(d: Drawing) -> None:
    x, y = d.pick(lambda a: a.dtype == bool), d.pick(lambda a: a.dtype == bool)
    if x and y:
        d.add(d.one_of(["And", "Or", "Xor"]), [x, y if d.chance(0.7) else d.constant(d.chance(0.5), np.bool_)])


def where(d: Drawing) -> None:
    x = d.pick(is_float)
    c = d.pick(lambda a: a.dtype == bool)
    if x is None or c is None:
        return
    other = d.pick(lambda a: a.dtype == d.known(x)[0].dtype)
    if d.chance(0.4):
        other = d.constant(d.one_of([0.0, 1.0, -1e9]), d.known(x)[0].dtype)
    if d.chance(0.3):
        c = d.constant(d.chance(0.5), np.bool_)
    d.add("Where", [c, x, other] if d.chance(0.5) else [c, other, x])


def cast(d: Drawing) -> None:
    x = d.pick()
    if x is None:
        return
    arrays = d.known(x)
    kinds = CASTS
    if arrays[0].dtype.kind == "f" and not all((np.abs(a.astype(float)) < 1e6).all() for a in arrays):
        kinds = CASTS[:3]  # what is too large for an integer has no right answer
    found = d.add("Cast", [x], to=d.one_of(kinds))
    if found and d.chance(0.6):
        arrays = d.known(found[0])
        if all((np.abs(a.astype(float)) < 1e6).all() for a in arrays):
            d.add("Cast", found, to=d.one_of([ELEMENTS[d.known(x)[0].dtype], d.one_of(CASTS)]))


def axes_node(d: Drawing, operator: str, x: str, axes: list[int], since: int = 13, **more: Any) -> list[str] | None:
    if d.opset >= since:
        return d.add(operator, [x, d.constant(axes)], **more)
    return d.add(operator, [x], axes=axes, **more)


def squeeze(d: Drawing) -> None:
    if x := d.pick():
        rank = d.known(x)[0].ndim
        axis = int(d.rng.integers(-rank - 1, rank + 1))
        found = axes_node(d, "Unsqueeze", x, [axis])
        if found and d.chance(0.5):
            axes_node(d, "Squeeze", found[0], [axis if d.chance(0.7) else int(d.rng.integers(-rank, rank + 1))])


def transpose(d: Drawing) -> None:
    if x := d.pick(lambda a: a.ndim > 1):
        order = [int(axis) for axis in d.rng.permutation(d.known(x)[0].ndim)]
        found = d.add("Transpose", [x], perm=order) if d.chance(0.8) else d.add("Transpose", [x])
        while found and d.chance(0.3):
            found = d.add(d.one_of(["Relu", "Neg", "Sigmoid", "Abs"]), found)
        if found and d.chance(0.5):
            back = [int(axis) for axis in np.argsort(order)]
            d.add("Transpose", found, perm=back if d.chance(0.7) else order)


def reshape(d: Drawing) -> None:
    x = d.pick()
    if x is None:
        return
    shape = list(d.known(x)[0].shape)
    target = [0 if d.chance(0.3) else size for size in shape]
    if d.chance(0.5) and len(target) > 1:
        at = int(d.rng.integers(len(target) - 1))
        target[at : at + 2] = [-1]
    elif d.chance(0.5) and target:
        target[int(d.rng.integers(len(target)))] = -1
    if d.chance(0.3):
        target.insert(int(d.rng.integers(len(target) + 1)), 1)
    if d.chance(0.3):
        target = [-1, int(d.one_of([1, 2, 3, 4, 6, 12]))]
    found = d.add("Reshape", [x, d.constant(target)])
    if found and d.chance(0.3):
        found = d.add(d.one_of(["Relu", "Neg", "Identity"]), found)
    if found and d.chance(0.3) and (measured := d.add("Shape", [x])):
        d.add("Reshape", [found[0], measured[0]])


def reshape_by_shape(d: Drawing) -> None:
    x, like = d.pick(lambda a: a.ndim > 1), d.pick(lambda a: a.ndim > 0)
    if x is None or like is None:
        return
    measured = d.add("Shape", [like if d.chance(0.3) else x])
    if measured is None:
        return
    parts = []
    for _ in range(int(d.rng.integers(1, 3))):
        dim = d.add("Gather", [measured[0], d.constant(int(d.rng.integers(-2, 2)))])
        if dim and d.chance(0.3):
            other = d.constant(int(d.rng.integers(1, 4)))
            dim = d.add(d.one_of(["Mul", "Add", "Div", "Sub"]), [dim[0], other])
        part = axes_node(d, "Unsqueeze", dim[0], [0]) if dim else None
        if part is None:
            return
        parts.append(part[0])
    rest = [d.constant([int(d.one_of([-1, -1, 1, 3, 4]))])]
    target = d.add("Concat", [*parts, *rest] if d.chance(0.7) else [*rest, *parts], axis=0)
    if target:
        d.add("Reshape", [x, target[0]])


def expand(d: Drawing) -> None:
    x, like = d.pick(), d.pick()
    if x is None or like is None:
        return
    measured = d.add("Shape", [like])
    if measured and (
        wide := d.add(
            "Expand", [x if d.chance(0.6) else d.constant(d.rng.standard_normal(()), np.float32), measured[0]]
        )
    ):
        other = d.pick(lambda a: a.dtype == d.known(wide[0])[0].dtype)
        d.add(d.one_of(BINARY), [like, wide[0]] if d.chance(0.5) or other is None else [other, wide[0]])
    elif d.chance(0.5):
        d.add("Expand", [x, d.constant([int(d.one_of([1, 1, 2, 3])) for _ in range(int(d.rng.integers(0, 4)))])])


def concat(d: Drawing) -> None:
    x = d.pick(lambda a: a.ndim > 0)
    if x is None:
        return
    array = d.known(x)[0]
    axis = int(d.rng.integers(-array.ndim, array.ndim))
    others = [
        d.pick(lambda a: a.dtype == array.dtype and a.ndim == array.ndim) for _ in range(int(d.rng.integers(0, 3)))
    ]
    found = d.add("Concat", [x, *(name for name in others if name)], axis=axis)
    if found and d.chance(0.4):
        d.add("Concat", [found[0], x], axis=axis)


def split(d: Drawing) -> None:
    x = d.pick(lambda a: a.ndim > 0)
    if x is None:
        return
    array = d.known(x)[0]
    axis = int(d.rng.integers(array.ndim))
    size = array.shape[axis]
    if size < 2:
        return
    first = int(d.rng.integers(1, size))
    sizes = [first, size - first]
    found = (
        d.add("Split", [x, d.constant(sizes)], 2, axis=axis)
        if d.opset >= 13
        else d.add("Split", [x], 2, axis=axis, split=sizes)
    )
    if found and d.chance(0.5):
        d.add("Concat", found if d.chance(0.6) else found[::-1], axis=axis if d.chance(0.8) else 0)


def slice_(d: Drawing) -> None:
    x = d.pick(lambda a: a.ndim > 0)
    if x is None:
        return
    rank = d.known(x)[0].ndim
    for _ in range(1 + int(d.rng.integers(3))):
        bounds = [
            d.one_of([0, 1, 2, -1, -2, -3]),
            d.one_of([1, 2, 3, -1, 2**63 - 1, 100]),
            int(d.rng.integers(-rank, rank)),
            d.one_of([1, 1, 1, 2, -1]),
        ]
        if bounds[3] < 0:
            bounds[:2] = [-1, -(2**63)]
        found = d.add("Slice", [x, *(d.constant([bound]) for bound in bounds)])
        x = found[0] if found and d.chance(0.7) else x


def slices(d: Drawing) -> None:
    """Several pieces of one value."""
    x = d.pick(lambda a: a.ndim > 0 and a.shape[-1] > 1)
    if x is None:
        return
    size = d.known(x)[0].shape[-1]
    cuts = sorted({0, int(d.rng.integers(1, size)), size})
    parts = [d.add("Slice", [x, *(d.constant([b]) for b in (low, high, -1))]) for low, high in itertools.pairwise(cuts)]
    names = [part[0] for part in parts if part]
    if len(names) > 1 and d.chance(0.5):
        d.add("Concat", names[::-1] if d.chance(0.5) else names, axis=-1)


def gather(d: Drawing) -> None:
    if x := d.pick(lambda a: a.ndim > 0):
        array = d.known(x)[0]
        axis = int(d.rng.integers(-array.ndim, array.ndim))
        size = min(a.shape[axis] for a in d.known(x))
        if size:
            d.add("Gather", [x, d.constant(d.rng.integers(-size, size, d.one_of([(), (1,), (2,), (2, 2)])))], axis=axis)


def reduce(d: Drawing) -> None:
    x = d.pick(lambda a: a.dtype.kind in "fi")
    if x is None:
        return
    rank = d.known(x)[0].ndim
    if not rank:
        return
    operator = d.one_of(
        [
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSumExp",
            "ReduceSum",
        ]
    )
    axes = sorted({int(d.rng.integers(-rank, rank)) for _ in range(int(d.rng.integers(1, 3)))})
    keep = int(d.rng.integers(2))
    since = 13 if operator == "ReduceSum" else 18
    found = (
        d.add(operator, [x], keepdims=keep) if d.chance(0.15) else axes_node(d, operator, x, axes, since, keepdims=keep)
    )
    if found and keep and d.chance(0.5):
        axes_node(d, "Squeeze", found[0], axes)


def index(d: Drawing) -> None:
    if x := d.pick(lambda a: is_single(a) and a.ndim > 0):
        rank = d.known(x)[0].ndim
        axis = int(d.rng.integers(-rank, rank))
        kind = int(d.rng.integers(6))
        if kind == 0:
            found = d.add(d.one_of(["ArgMax", "ArgMin"]), [x], axis=axis, keepdims=1)
            if found and d.chance(0.6):
                axes_node(d, "Squeeze", found[0], [axis])
        elif kind == 1:
            d.add("TopK", [x, d.constant([2])], 2, axis=axis)
        elif kind == 2:
            d.add("CumSum", [x, d.constant(axis)])
        elif kind == 3:
            found = d.add("NonZero", [x])
            if found and d.chance(0.5):
                d.add("Transpose", found)
        elif kind == 4 and d.opset >= 14:
            d.add("Trilu", [x], upper=int(d.rng.integers(2)))
        else:
            d.add(
                "OneHot",
                [d.constant(d.rng.integers(0, 3, 3)), d.constant(4), d.constant([0, 1], np.float32)],
                axis=d.one_of([0, -1]),
            )


def pad(d: Drawing) -> None:
    if x := d.pick(lambda a: is_single(a) and a.ndim > 0):
        rank = d.known(x)[0].ndim
        amounts = [int(d.one_of([0, 0, 0, 1, 2, -1])) for _ in range(2 * rank)] if d.chance(0.8) else [0] * 2 * rank
        value = [d.constant(d.one_of([0.0, 0.0, 1.0, -0.0]), np.float32)] if d.chance(0.5) else []
        d.add("Pad", [x, d.constant(amounts), *value], mode=d.one_of(["constant", "constant", "reflect", "edge"]))


def clip(d: Drawing) -> None:
    if x := d.pick(is_float):
        dtype = d.known(x)[0].dtype
        for _ in range(1 + int(d.rng.integers(2))):
            low, high = sorted(float(number) for number in d.rng.normal(size=2) * 2)
            kind = int(d.rng.integers(4))
            if kind == 0:
                found = d.add("Relu", [x])
            elif kind == 1:
                found = d.add("Max", [x, d.constant(low, dtype)])
                found = d.add("Min", [found[0], d.constant(high, dtype)]) if found else None
            else:
                bounds = [d.constant(low, dtype), d.constant(high, dtype)]
                found = d.add("Clip", [x, *d.one_of([bounds, bounds[:1], ["", bounds[1]], []])])
            x = found[0] if found else x
