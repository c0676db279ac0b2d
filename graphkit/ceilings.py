"""How many windows a pool has that rounds up (ceil_mode).

A window that would begin in the padding at the end is left out. ONNX Runtime does so and the standard says so, but the
standard's own shape inference counts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkit import dims
from graphkit.dims import Dims, Extent

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})


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
