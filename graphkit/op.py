"""Every ONNX operator as a function, with ONNX's names: ``gk.op.Conv(x, w, b, strides=[2, 2])``.

The functions are made from onnx's own schemas when first asked for. Inputs are positional or by name, attributes by
name. A Python number, list or numpy array stands for a tensor; a Python number takes the dtype of the operand it
meets. An operator with several outputs returns those it must have; ``outputs=n`` asks for the optional ones too.

``op.pyi`` tells type checkers and editors what is here; ``python -m graphkit.op_stub`` writes it.
"""

from __future__ import annotations

from graphkit import schemas
from graphkit.errors import OperatorError
from graphkit.operators import Operator, operator


def __getattr__(name: str) -> Operator:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return operator(name)
    except OperatorError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return list(schemas.names())
