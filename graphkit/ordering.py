"""Values that are computed only after others, in whatever order a runtime would run the nodes.

A runtime may run a node as soon as its inputs are there, and merges two nodes that compute the same. What is to be
computed a second time, and not before its turn, therefore adds a zero that nobody knows before the others are computed:
minus zero, which changes no number, whether a zero, an infinity or a NaN.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphkit import dtypes
from graphkit.core import Tensor, as_tensor
from graphkit.interpreter import apply1
from graphkit.methods import constant_ints

__all__ = ["after", "false_after"]


def false_after(values: Iterable[Tensor]) -> Tensor:
    """False, as a scalar that no runtime knows before every one of some floating values is computed.

    The sum of the magnitudes of one element of each is not below zero, nor is it if one is NaN or has no elements.
    """
    groups: dict[tuple[dtypes.DType, int | None], list[Tensor]] = {}
    for value in values:
        groups.setdefault((value.dtype, None if value.dims is None else len(value.dims)), []).append(value)
    parts = []
    for (dtype, rank), members in groups.items():
        if rank:
            first = [apply1("Slice", t, constant_ints([0] * rank), constant_ints([1] * rank)) for t in members]
        else:
            first = [apply1("Reshape", t, constant_ints([-1])) for t in members]
            if rank is None:
                first = [apply1("Slice", t, constant_ints([0]), constant_ints([1])) for t in first]
        joined = first[0] if len(first) == 1 else apply1("Concat", *first, axis=0)
        if rank is not None and rank > 1:
            joined = apply1("Reshape", joined, constant_ints([-1]))
        parts.append(joined if dtype == dtypes.FLOAT32 else joined.astype("float32"))
    together = parts[0] if len(parts) == 1 else apply1("Concat", *parts, axis=0)
    return apply1("Less", apply1("ReduceL1", together, keepdims=0), as_tensor(np.float32(0)))


def after(value: Tensor, never: Tensor) -> Tensor:
    """The same numbers as a value of their own, computed when ``never``, from ``false_after``, is known.

    A floating value, int32, int64 or bool.
    """
    if value.dtype == dtypes.BOOL:
        return apply1("Or", value, never)
    zero = never.astype(value.dtype)
    return apply1("Add", value, apply1("Neg", zero) if dtypes.is_float(value.dtype) else zero)
