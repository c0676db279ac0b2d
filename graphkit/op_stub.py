"""Write ``op.pyi``: one typed function for every operator of the default domain, for type checkers and editors.

Run ``python -m graphkit.op_stub`` after a new onnx; ``--check`` only says whether the file is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx.defs

from graphkit import schemas
from graphkit.errors import OperatorError
from graphkit.operators import DTYPE_ATTRIBUTES, returns_many

STUB: Final = Path(__file__).with_name("op.pyi")

HEADER: Final = '''"""Every ONNX operator as a function. Written by python -m graphkit.op_stub; do not edit."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import onnx

from graphkit.core import Dim, Tensor

Operator = Callable[..., Any]
TensorLike = Tensor | Dim | np.ndarray[Any, Any] | np.generic | bool | int | float | str | Sequence[Any]
DType = int | str | np.dtype[Any] | type

def operator(name: str, domain: str = "") -> Operator: ...
'''

_Option = onnx.defs.OpSchema.FormalParameterOption
_Kind = onnx.defs.OpSchema.AttrType
_TYPES: Final = {
    _Kind.INT: "int",
    _Kind.FLOAT: "float",
    _Kind.STRING: "str",
    _Kind.INTS: "Sequence[int]",
    _Kind.FLOATS: "Sequence[float]",
    _Kind.STRINGS: "Sequence[str]",
    _Kind.TENSOR: "TensorLike | onnx.TensorProto",
    _Kind.TYPE_PROTO: "onnx.TypeProto",
}


def stub() -> str:
    """The text of ``op.pyi`` for the onnx that is installed."""
    return HEADER + "".join(line for name in schemas.names() for line in _operator(name))


def _operator(name: str) -> Iterator[str]:
    try:
        schema = schemas.schema(name)
    except OperatorError:
        return  # newer than any opset that ONNX Runtime loads
    arguments = ", ".join([*_inputs(schema), *_attributes(schema)])
    joint = ", " if arguments else ""
    star = "" if "*" in arguments else "*, "
    if schema.max_output <= 1:
        yield f"def {name}({arguments}) -> Tensor: ...\n"
        return
    count = max(sum(o.option not in (_Option.Optional, _Option.Variadic) for o in schema.outputs), schema.min_output)
    usual = "Tensor" if count <= 1 and not returns_many(schema) else "tuple[Tensor, ...]"
    if usual != "Tensor":
        yield f"def {name}({arguments}{joint}{star}outputs: int | None = None) -> {usual}: ...\n"
        return
    yield "@overload\n"
    yield f"def {name}({arguments}{joint}{star}outputs: None = None) -> Tensor: ...\n"
    yield "@overload\n"
    yield f"def {name}({arguments}{joint}{star}outputs: int) -> tuple[Tensor, ...]: ...\n"


def _inputs(schema: schemas.Schema) -> Iterator[str]:
    optional = False
    for i in schema.inputs:
        if i.option == _Option.Variadic:
            yield f"*{i.name}: TensorLike"
            return
        optional = optional or i.option == _Option.Optional
        yield f"{i.name}: TensorLike | None = None" if optional else f"{i.name}: TensorLike"


def _attributes(schema: schemas.Schema) -> Iterator[str]:
    newest = schemas.newest_schema(schema.name, schema.domain) or schema
    known = dict(newest.attributes) | dict(schema.attributes)  # one that only a newer opset has raises the opset
    if known and not any(i.option == _Option.Variadic for i in schema.inputs):
        yield "*"
    for a in sorted(known.values(), key=lambda a: (not a.required, a.name)):
        kind = "DType" if a.name in DTYPE_ATTRIBUTES else _TYPES.get(a.type, "Any")
        if a.required:
            yield f"{a.name}: {kind}"
            continue
        default: Any = schemas.default_of(schema.name, schema.domain, a.name)
        wider = kind if kind == "Any" else f"{kind} | None"
        yield f"{a.name}: {wider} = {_literal(default)}"


def _literal(value: Any) -> str:
    if isinstance(value, float):
        return repr(float(str(np.float32(value))))  # 1e-05, not the float32's 9.999999747378752e-06
    if isinstance(value, list):
        return "..."
    return repr(value)


def main() -> int:
    """Write the stub, or with ``--check`` compare it."""
    text = stub()
    if "--check" in sys.argv[1:]:
        current = STUB.exists() and STUB.read_text(encoding="utf-8") == text
        print("up to date" if current else f"{STUB} is out of date: run python -m graphkit.op_stub")  # noqa: T201  # a command
        return 0 if current else 1
    STUB.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
