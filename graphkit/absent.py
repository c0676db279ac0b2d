"""What a record keeps of values that its gradient rule never reads: their shape and dtype.

A Relu's rule reads its output alone, a matrix product's its inputs alone, a sum's neither. Keeping no more than that
halves the memory of a recorded forward pass. Reading what was not kept raises; it can never give a wrong number.
"""

from __future__ import annotations

from typing import Final

from graphkit.dtypes import DType

# Below this many bytes a value costs less than the question whether to keep it.
WORTH: Final = 16_384

# Operators whose rule reads no value of the inputs at these places, only their shapes and dtypes.
UNREAD_INPUTS: Final[dict[str, tuple[int, ...]]] = {
    "Add": (0, 1), "Sub": (0, 1), "Neg": (0,), "Identity": (0,), "Relu": (0,), "Sigmoid": (0,), "Tanh": (0,),
    "Exp": (0,), "Softmax": (0,), "LogSoftmax": (0,), "Reshape": (0,), "Flatten": (0,), "Squeeze": (0,),
    "Unsqueeze": (0,), "Transpose": (0,), "Expand": (0,), "ReduceSum": (0,), "ReduceMean": (0,),
}  # fmt: skip
# Operators whose rule reads no value of the output.
UNREAD_OUTPUTS: Final = frozenset(
    "Add Sub Mul Neg Identity MatMul Gemm Conv Reshape Flatten Squeeze Unsqueeze Transpose Expand ReduceSum ReduceMean "
    "Gelu".split()
)


class Absent:
    """The shape and dtype of a value that was not kept."""

    __slots__ = ("dtype", "nbytes", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = 0
