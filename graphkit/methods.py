"""What can be written on a Tensor: arithmetic, comparisons, indexing, reductions, shapes.

Everything here goes through ``apply``, so the same expression runs under Eager and is recorded under Graph.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit import dtypes
from graphkit.errors import OperatorError, TraceError
from graphkit.interpreter import apply1, current
from graphkit.numpy_dispatch import call_function, call_ufunc, numpy_function
from graphkit.operands import (
    Axis,
    Scalar,
    accumulate,
    argument,
    axis_list,
    binary,
    constant_ints,
    divide,
    floor_divide,
    logic,
    modulo,
    reduced,
    scalar,
    stack_scalars,
    together,
)
from graphkit.rewinding import note
from graphkit.source import here

if TYPE_CHECKING:
    from graphkit.core import Array, Tensor

__all__ = [
    "BACKWARD", "Axis", "Scalar", "TensorMethods", "binary", "constant_ints", "scalar", "stack_scalars", "together",
]  # fmt: skip

# Filled by graphkit.autograd, which stands above this module.
BACKWARD: list[Callable[..., None]] = []


class TensorMethods:  # noqa: PLW1641  # Tensor hashes by identity
    """The methods of Tensor, kept apart from what a Tensor is."""

    __slots__ = ()
    __array_priority__ = 1000

    if TYPE_CHECKING:
        _array: Any
        name: str | None
        grad: Tensor | None

        @property
        def traced(self) -> bool: ...
        @property
        def dtype(self) -> dtypes.DType: ...
        @property
        def dims(self) -> tuple[int | str, ...] | None: ...
        @property
        def shape(self) -> tuple[Any, ...]: ...
        @property
        def ndim(self) -> int: ...

    # Arithmetic

    def __add__(self: Any, other: Any) -> Tensor:
        return binary("Add", self, other)

    def __radd__(self: Any, other: Any) -> Tensor:
        return binary("Add", other, self)

    def __sub__(self: Any, other: Any) -> Tensor:
        return binary("Sub", self, other)

    def __rsub__(self: Any, other: Any) -> Tensor:
        return binary("Sub", other, self)

    def __mul__(self: Any, other: Any) -> Tensor:
        return binary("Mul", self, other)

    def __rmul__(self: Any, other: Any) -> Tensor:
        return binary("Mul", other, self)

    def __truediv__(self: Any, other: Any) -> Tensor:
        return divide(self, other)

    def __rtruediv__(self: Any, other: Any) -> Tensor:
        return divide(other, self)

    def __floordiv__(self: Any, other: Any) -> Tensor:
        return floor_divide(self, other)

    def __rfloordiv__(self: Any, other: Any) -> Tensor:
        return floor_divide(other, self)

    def __mod__(self: Any, other: Any) -> Tensor:
        return modulo(self, other)

    def __rmod__(self: Any, other: Any) -> Tensor:
        return modulo(other, self)

    def __pow__(self: Any, other: Any) -> Tensor:
        if dtypes.is_float(self.dtype) and isinstance(other, int | float) and not isinstance(other, bool):
            if other == 2:
                return apply1("Mul", self, self)
            if other == 0.5:
                return apply1("Sqrt", self)
            if other == -1:
                return apply1("Reciprocal", self)
        return binary("Pow", self, other)

    def __rpow__(self: Any, other: Any) -> Tensor:
        return binary("Pow", other, self)

    def __matmul__(self: Any, other: Any) -> Tensor:
        return binary("MatMul", self, other)

    def __rmatmul__(self: Any, other: Any) -> Tensor:
        return binary("MatMul", other, self)

    def __neg__(self: Any) -> Tensor:
        return apply1("Neg", self)

    def __pos__(self: Any) -> Tensor:
        return self  # type: ignore[no-any-return]  # self is a Tensor

    def __abs__(self: Any) -> Tensor:
        return apply1("Abs", self)

    # Comparisons and logic

    def __eq__(self: Any, other: object) -> Tensor:  # type: ignore[override]  # elementwise, as numpy's
        return binary("Equal", self, other)

    def __ne__(self: Any, other: object) -> Tensor:  # type: ignore[override]  # elementwise, as numpy's
        return apply1("Not", binary("Equal", self, other))

    def __lt__(self: Any, other: Any) -> Tensor:
        return binary("Less", self, other)

    def __le__(self: Any, other: Any) -> Tensor:
        return binary("LessOrEqual", self, other)

    def __gt__(self: Any, other: Any) -> Tensor:
        return binary("Greater", self, other)

    def __ge__(self: Any, other: Any) -> Tensor:
        return binary("GreaterOrEqual", self, other)

    def __and__(self: Any, other: Any) -> Tensor:
        return logic("And", "BitwiseAnd", self, other)

    def __or__(self: Any, other: Any) -> Tensor:
        return logic("Or", "BitwiseOr", self, other)

    def __xor__(self: Any, other: Any) -> Tensor:
        return logic("Xor", "BitwiseXor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self: Any) -> Tensor:
        return apply1("Not" if self.dtype == dtypes.BOOL else "BitwiseNot", self)

    # Python values: known now for an array, refused for a traced value

    def _concrete(self, what: str) -> Array:
        if self.traced:
            raise TraceError(
                f"{what} at {here()} asks for the value of traced tensor {self.name or self!r}, which is only known "
                "when the graph runs. For a branch write gk.cond(p, f, g, x) or gk.op.Where(p, a, b); for a number, "
                "keep it a Tensor."
            )
        array = self._array
        if isinstance(array, np.ndarray):
            # Here, not where it was made: most values are never looked at, and this costs as much as half an Add.
            array.flags.writeable = False
        return array  # type: ignore[no-any-return]  # an ndarray when not traced

    def numpy(self) -> Array:
        """The values as a read-only numpy array; copy it to write on it."""
        return self._concrete("x.numpy()").view()

    def item(self) -> Any:
        """The one value as a Python scalar."""
        return self._concrete("x.item()").item()

    def tolist(self) -> Any:
        """The values as nested Python lists."""
        return self._concrete("x.tolist()").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._concrete("numpy.asarray(x)")
        return np.array(array, dtype=dtype) if copy or dtype is not None else array.view()

    def __float__(self) -> float:
        return float(self._concrete("float(x)").item())

    def __int__(self) -> int:
        return int(self._concrete("int(x)").item())

    def __index__(self) -> int:
        return self._concrete("an index").__index__()

    def __bool__(self) -> bool:
        return bool(self._concrete("a truth test (if, while, and, or)"))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a rank-0 tensor")
        return self.shape[0].__index__()  # type: ignore[no-any-return]  # int, or a Dim that refuses

    def __iter__(self: Any) -> Iterator[Tensor]:
        for i in range(len(self)):
            yield self[i]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from graphkit.core import Tensor

        return call_ufunc(lambda x: isinstance(x, Tensor), ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return call_function(function, args, kwargs)

    def __getitem__(self: Any, index: Any) -> Tensor:
        from graphkit.indexing import getitem

        return getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            f"tensors are immutable ({here()}): x[i] = v would change values that a gradient needs. Make a new tensor, "
            "with gk.op.Where, gk.op.ScatterElements or gk.op.ScatterND."
        )

    # Reductions

    def sum(self: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Sum over ``axis`` (an integer, several, or all); integers are added up in 64 bits, as numpy's."""
        return accumulate("ReduceSum", self, axis, keepdims)

    def mean(self: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Arithmetic mean over ``axis``; an integer tensor is averaged in float32."""
        x = self if dtypes.is_float(self.dtype) else self.astype("float32")
        return reduced("ReduceMean", x, axis, keepdims)

    def max(self: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Largest value over ``axis``."""
        return reduced("ReduceMax", self, axis, keepdims)

    def min(self: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Smallest value over ``axis``."""
        return reduced("ReduceMin", self, axis, keepdims)

    def prod(self: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Product over ``axis``; integers and booleans are multiplied in 64 bits."""
        return accumulate("ReduceProd", self, axis, keepdims)

    def argmax(self: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Index of the first largest value along ``axis`` (of the flattened tensor for None), int64."""
        return argument("ArgMax", self, axis, keepdims)

    def argmin(self: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Index of the first smallest value along ``axis`` (of the flattened tensor for None), int64."""
        return argument("ArgMin", self, axis, keepdims)

    # What else numpy's arrays have

    def clip(self, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002  # numpy's names
        """The elements kept between two bounds, either of which may be left out."""
        return numpy_function("clip")(self, min, max)  # type: ignore[no-any-return]  # of a Tensor

    def var(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """Variance over ``axis``; ``correction=1`` divides by one less than the count."""
        return numpy_function("var")(self, axis=axis, correction=correction, keepdims=keepdims)  # type: ignore[no-any-return]  # of a Tensor

    def std(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """Standard deviation over ``axis``. Of equal elements it is a Sqrt at 0, whose slope is NaN."""
        return numpy_function("std")(self, axis=axis, correction=correction, keepdims=keepdims)  # type: ignore[no-any-return]  # of a Tensor

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether every element is true (not zero)."""
        return numpy_function("all")(self, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]  # of a Tensor

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether some element is true (not zero)."""
        return numpy_function("any")(self, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]  # of a Tensor

    def cumsum(self, axis: int | None = None) -> Tensor:
        """Running sum along ``axis`` (of the flattened tensor for None)."""
        return numpy_function("cumsum")(self, axis=axis)  # type: ignore[no-any-return]  # of a Tensor

    # Shapes and dtypes

    @property
    def size(self) -> int:
        """The number of elements; refused for a dimension that is only known when the graph runs."""
        total = 1
        for extent in self.shape:
            total *= extent.__index__()
        return total

    @property
    def T(self: Any) -> Tensor:  # noqa: N802  # numpy's and PyTorch's name for it
        """All dimensions reversed."""
        return apply1("Transpose", self)

    @property
    def mT(self: Any) -> Tensor:  # noqa: N802  # the Array API's name for it
        """The last two dimensions exchanged."""
        n = self.ndim
        if n < 2:
            raise OperatorError(f"x.mT needs two dimensions or more, got {n} ({here()})")
        return apply1("Transpose", self, perm=[*range(n - 2), n - 1, n - 2])

    def transpose(self: Any, *perm: Any) -> Tensor:
        """Dimensions in the order ``perm`` (reversed when none is given)."""
        order = perm[0] if len(perm) == 1 and not isinstance(perm[0], int) else perm
        n = self.ndim
        return apply1("Transpose", self, perm=[int(p) % n for p in order]) if order else self.T

    def reshape(self: Any, *shape: Any) -> Tensor:
        """The same elements in another shape; one -1 is inferred, a ``Dim`` or scalar Tensor may stand anywhere."""
        from graphkit.indexing import reshape

        return reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape)

    def ravel(self: Any) -> Tensor:
        """All elements in one dimension."""
        return self.reshape(-1)  # type: ignore[no-any-return]  # self is a Tensor

    def flatten(self: Any, start: int = 0) -> Tensor:
        """All dimensions from ``start`` on as one."""
        shape = self.shape
        kept, merged = shape[:start], shape[start:]
        static = all(isinstance(s, int) for s in merged) and len(merged) > 0
        return self.reshape(*kept, math.prod(merged) if static else -1)  # type: ignore[no-any-return]  # self is a Tensor

    def squeeze(self: Any, axis: Axis = None) -> Tensor:
        """Without the dimensions of extent 1 at ``axis`` (all of them for None)."""
        return apply1("Squeeze", self) if axis is None else apply1("Squeeze", self, constant_ints(axis_list(axis)))

    def unsqueeze(self: Any, axis: int | Sequence[int]) -> Tensor:
        """With a dimension of extent 1 put in at ``axis``."""
        return apply1("Unsqueeze", self, constant_ints(axis_list(axis)))

    def astype(self: Any, dtype: Any) -> Tensor:
        """The values cast to another dtype; the tensor itself when it has that dtype already."""
        wanted = dtypes.as_dtype(dtype)
        if self.dtype == wanted:
            return self  # type: ignore[no-any-return]  # self is a Tensor
        return apply1("Cast", self, to=dtypes.to_onnx(wanted))

    # Gradients and state

    def backward(self: Any, gradient: Any = None, *, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Add the gradient of this scalar to ``.grad`` of every tensor it depends on that requires one.

        Args:
            gradient: the cotangent, needed unless the tensor is a scalar.
            retain_graph: keep what was recorded, for another reverse pass over it.
            create_graph: record the reverse pass too, so that the gradients can be differentiated.

        >>> import graphkit as gk
        >>> w = gk.tensor(3.0, requires_grad=True)
        >>> for _ in range(2):
        ...     (w * w).backward()
        >>> w.grad.item()  # gradients accumulate: 6 + 6
        12.0
        """
        if not BACKWARD:
            importlib.import_module("graphkit.autograd")
        BACKWARD[0](self, gradient, retain_graph, create_graph)

    def zero_grad(self: Any) -> None:
        """Forget the accumulated gradient."""
        self.grad = None

    def detach(self: Any) -> Tensor:
        """The same values, through which no gradient flows."""
        return current().stop_gradient(self)

    def assign(self: Any, value: Any) -> None:
        """Replace the values of a leaf tensor, such as a parameter, keeping dtype and shape.

        Eager replaces them now. Inside a trace the new value becomes the tensor's next state, an output of the graph.
        """
        interpreter = current()
        note(self, lambda: interpreter.state_of(self), lambda state: interpreter.put_back(self, state))
        interpreter.assign(self, value)
