"""Arithmetic on a dimension that is only known when the graph runs: each operator makes a traced int64 scalar of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphkit.core import Tensor


class DimArithmetic:
    """What can be written with a ``Dim``."""

    __slots__ = ()

    def as_tensor(self) -> Tensor:
        """The extent as a traced scalar, int64 []."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Tensor:
        return self.as_tensor().__add__(other)

    def __radd__(self, other: Any) -> Tensor:
        return self.as_tensor().__radd__(other)

    def __sub__(self, other: Any) -> Tensor:
        return self.as_tensor().__sub__(other)

    def __rsub__(self, other: Any) -> Tensor:
        return self.as_tensor().__rsub__(other)

    def __mul__(self, other: Any) -> Tensor:
        return self.as_tensor().__mul__(other)

    def __rmul__(self, other: Any) -> Tensor:
        return self.as_tensor().__rmul__(other)

    def __floordiv__(self, other: Any) -> Tensor:
        return self.as_tensor().__floordiv__(other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return self.as_tensor().__rfloordiv__(other)

    def __mod__(self, other: Any) -> Tensor:
        return self.as_tensor().__mod__(other)

    def __rmod__(self, other: Any) -> Tensor:
        return self.as_tensor().__rmod__(other)

    def __pow__(self, other: Any) -> Tensor:
        return self.as_tensor().__pow__(other)

    def __rpow__(self, other: Any) -> Tensor:
        return self.as_tensor().__rpow__(other)

    def __truediv__(self, other: Any) -> Tensor:
        return self.as_tensor().__truediv__(other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self.as_tensor().__rtruediv__(other)

    def __neg__(self) -> Tensor:
        return -self.as_tensor()
