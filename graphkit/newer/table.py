"""The table of what is written out, and the call that an entry is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from graphkit.core import Tensor
from graphkit.errors import GraphkitError, OperatorError
from graphkit.interpreter import WRITTEN_OUT
from graphkit.schemas import default_of
from graphkit.source import here

PREVIEW: Final = "ai.onnx.preview"

Results: TypeAlias = "Sequence[Tensor | None]"
Writer: TypeAlias = "Callable[[Call], Results | None]"
W = TypeVar("W", bound="Callable[[Call], Results | None]")


class Call:
    """An operator about to be written in others: its inputs, as Tensors, and its attributes.

    ``opset`` is that of the file which holds the node; 0 where the operator is applied, which then means what it meant
    before opset 27 wherever it meant something.
    """

    def __init__(
        self, op: str, domain: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], count: int,
        opset: int = 0,
    ) -> None:  # fmt: skip
        self.op, self.domain = op, domain
        self.inputs, self.attributes = inputs, attributes
        self.count, self.opset = count, opset

    def input(self, index: int) -> Tensor | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def needed(self, index: int) -> Tensor:
        found = self.input(index)
        if found is None:
            raise GraphkitError(f"{self.domain or 'ai.onnx'}.{self.op} needs input {index}")
        return found

    def attribute(self, name: str, default: Any = None) -> Any:
        if name in self.attributes:
            return self.attributes[name]
        found = default_of(self.op, self.domain, name)
        return default if found is None else found

    def refused(self, reason: str) -> OperatorError:
        """An error that says at which line of the user's the call cannot be."""
        return OperatorError(f"{self.op} at {here()}: {reason}")


# (operator, domain) -> the version that the entry is for, and the entry.
NEWER: Final[dict[tuple[str, str], tuple[int, Writer]]] = {}
# What the runtime has a kernel or a body for, but only before this opset.
WITHOUT_KERNEL: Final[dict[str, int]] = {}


def newer(version: int, *operators: str, domain: str = "", applied: bool = True) -> Callable[[W], W]:
    """Register how the form that ``operators`` have from ``version`` on is written in operators of opset 21 to 26.

    The function gets a ``Call`` and returns the outputs; or None where the call says nothing that older forms could not
    (an integer ``Mod``), which then stands as it is. With ``applied``, ``apply()`` asks it too; without, only the
    reading of a file does.
    """

    def register(function: W) -> W:
        for operator in operators:
            assert (operator, domain) not in NEWER, f"two ways to write {operator}"
            NEWER[operator, domain] = (version, function)
            if domain:
                continue
            if applied:
                WRITTEN_OUT[operator] = written
            else:
                WITHOUT_KERNEL[operator] = version
        return function

    return register


def written(
    op: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any] | None, outputs: int, domain: str = "",
    opset: int = 0,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """The outputs of a newer operator under the current interpreter; None for a form that is not newer."""
    given = {name: value for name, value in (attributes or {}).items() if value is not None}
    made = NEWER[op, domain][1](Call(op, domain, inputs, given, outputs, opset))
    return None if made is None else tuple([t for t in made[:outputs] if t is not None])
