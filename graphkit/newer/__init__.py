"""Operators, and forms of operators, that are newer than ONNX Runtime, in operators that it has.

(And the few older ones that it loads at no opset, or not at every opset: layout=1, Swish.)

The standard is ahead of the runtime: onnx defines opset 28, stock ONNX Runtime loads 26. What opsets 27 and 28 added is
written here once, on Tensors: eagerly its operators run, in a trace they become nodes, and ``upgrade.lower_newer`` puts
them in the place of such a node when a file is read. No record or graph of graphkit ever holds the newer operator, so
gradients, optimization and every runtime follow from the plain ones.
"""

from __future__ import annotations

from graphkit.newer import (  # noqa: F401 (fill the table)
    convolution,
    elementwise,
    flex_attention,
    linear_attention,
    moves,
    recurrent,
)
from graphkit.newer.table import NEWER, PREVIEW, WITHOUT_KERNEL, Call, written

__all__ = ["NEWER", "PREVIEW", "WITHOUT_KERNEL", "Call", "written"]
