"""What the standard's shape inference does not say of operators that read windows.

A pool that rounds up (ceil_mode) has no window that would begin in the padding at the end: ONNX Runtime leaves it out
and the standard says so, but its inference counts it. And a kernel tells the rank of an input of unknown rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphkit import dims
from graphkit.dims import Dims, Extent

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
WINDOWED = POOLS | {"Conv", "ConvTranspose"}


def pooled_dims(attributes: Mapping[str, Any], x: Dims) -> Dims:
    """The dims of a pool's output with ceil_mode and without auto_pad.

    >>> pooled_dims({"kernel_shape": [1], "strides": [2], "ceil_mode": 1}, ("n", 3, 2))
    ('n', 3, 1)
    """
    kernel = attributes["kernel_shape"]
    n = len(kernel)
    strides, dilations = attributes.get("strides") or [1] * n, attributes.get("dilations") or [1] * n
    pads = attributes.get("pads") or [0] * (2 * n)
    result: list[Extent] = list(x[:2])
    for axis, extent in enumerate(x[2:]):
        if not isinstance(extent, int):
            result.append(dims.anonymous())
            continue
        stride, before, after = strides[axis], pads[axis], pads[n + axis]
        room = extent + before + after - (kernel[axis] - 1) * dilations[axis] - 1
        windows = -(-room // stride) + 1
        if (windows - 1) * stride >= extent + before:
            windows -= 1
        result.append(windows)
    return tuple(result)


def dims_by_kernel(op: str, attributes: Mapping[str, Any], inputs: Sequence[Dims | None]) -> Dims | None:
    """The dims of an output whose input has no known rank: only as many as the kernel has, and two.

    >>> dims_by_kernel("Conv", {}, [None, (8, 3, 5, 5)])[1]
    8
    """
    weight = inputs[1] if op not in POOLS and len(inputs) > 1 else None
    if weight is not None:
        channels = weight[0] if op == "Conv" else weight[1]
        if op != "Conv" and isinstance(channels, int):
            channels *= int(attributes.get("group", 1))
        elif op != "Conv":
            channels = dims.anonymous()
        return (dims.anonymous(), channels, *(dims.anonymous() for _ in weight[2:]))
    kernel = attributes.get("kernel_shape")
    return tuple(dims.anonymous() for _ in range(len(kernel) + 2)) if kernel else None
