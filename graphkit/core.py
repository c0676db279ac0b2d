"""Tensor and Record: a value, and the operator application that made it.

A Tensor holds either a numpy array (made by ``Eager``) or a value of a graph (made by ``Graph``). A Record is one
applied operator. Eager keeps records only where a gradient may flow; a graph is nothing but records. The autograd
tape is therefore an ONNX graph already, and exporting is writing it down.

A Record must not hold the tensors it made, since they hold the Record: a cycle would keep every step's memory until
the garbage collector comes by. It keeps their arrays, and makes Tensors of them when a gradient rule asks. A tensor's
identity for the reverse pass is therefore its ``key``, not its ``id``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphkit import dtypes
from graphkit import source as source_lines
from graphkit.absent import Absent
from graphkit.dimension import DimArithmetic
from graphkit.dims import Dims, Extent
from graphkit.errors import GradientError, OperatorError, TraceError
from graphkit.methods import TensorMethods

if TYPE_CHECKING:
    import onnx_ir as ir

    from graphkit.graph import Graph

Array = npt.NDArray[Any]
Key = int | tuple[int, int]

_sequence = itertools.count()


class Record:
    """One applied operator: what it was, what went in, what came out, and where the user asked for it.

    Attributes:
        op, domain: the ONNX operator.
        inputs: Tensors, None where an optional input was left out; the outer values that a subgraph attribute
            captures follow the operator's own inputs (``captured`` says how many).
        attributes: as given; ``attribute(name)`` falls back on the schema's default.
        outputs: Tensors, made when asked for.
        wants: during a reverse pass, for each input whether its gradient is wanted.
        wild: during a reverse pass, whether the cotangent may be infinite somewhere.
        source: the user's code and instruction offset.
        needs: which reverse passes reach it, one bit each (see ``eager``).
        sequence: grows from record to record, so that the highest first is a reverse topological order.
    """

    __slots__ = (
        "attributes", "captured", "domain", "inputs", "made", "name", "needs", "op", "sequence", "source", "stopped",
        "versions", "wants", "wild",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        domain: str,
        inputs: Sequence[Tensor | None],
        attributes: dict[str, Any],
        made: Sequence[Any],
        source: source_lines.Location | None,
        versions: int = 0,
        name: str = "",
        captured: int = 0,
        needs: int = 0,
    ) -> None:
        self.op = op
        self.domain = domain
        self.inputs: tuple[Tensor | None, ...] = tuple(inputs)
        self.attributes = attributes
        self.made = made
        self.source = source
        self.versions = versions
        self.name = name
        self.captured = captured
        self.needs = needs
        self.stopped = False  # a graph's node through which no gradient flows, by stop_gradient or no_grad
        self.wants: tuple[bool, ...] = ()
        self.wild = False
        self.sequence = next(_sequence)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs as Tensors: views on the arrays that were made (eager), or the graph's own Tensors."""
        if self.made and isinstance(self.made[0], Tensor):
            return tuple(self.made)
        return tuple(Tensor(array, record=self, index=i, needs=self.needs) for i, array in enumerate(self.made))

    def output_key(self, index: int) -> Key:
        made = self.made[index]
        return made.key if isinstance(made, Tensor) else (id(self), index)

    def output_keys(self) -> list[Key]:
        """What identifies each output in a reverse pass."""
        made = self.made
        if made and isinstance(made[0], Tensor):
            return [t.key for t in made]
        own = id(self)
        return [(own, index) for index in range(len(made))]

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute as given, else the schema's default, else ``default``."""
        if name in self.attributes:
            return self.attributes[name]
        from graphkit.schemas import default_of

        found = default_of(self.op, self.domain, name)
        return default if found is None else found

    def input(self, index: int) -> Tensor | None:
        """The input at ``index``, None if it was left out or the operator was given fewer."""
        return self.inputs[index] if index < len(self.inputs) else None

    def wanted(self, index: int) -> bool:
        return index < len(self.wants) and self.wants[index]

    def freed(self) -> bool:
        return self.made is _FREED

    def free(self) -> None:
        """Let go of everything that was kept for the reverse pass; a second pass over it is an error."""
        self.inputs = ()
        self.made = _FREED

    def check_unchanged(self) -> None:
        """Raise if an input was assigned to after it went in here: its gradient would be of another value."""
        if self.freed():
            raise GradientError(
                f"{self.describe()} was freed by an earlier backward() of the same graph. Call "
                "backward(retain_graph=True) the first time if a second reverse pass over it is meant."
            )
        versions = 0
        for t in self.inputs:
            if t is not None:
                versions += t._version
        if versions != self.versions:
            changed = next((t.name for t in self.inputs if t is not None and t._version and t.name), "an input")
            raise GradientError(
                f"{changed} was changed by assign() after {self.describe()} had used it and before the reverse pass; "
                "the gradient would be of the wrong value. Call backward() before assigning, or use x.detach()."
            )

    def describe(self) -> str:
        """``Mul (train.py:12)`` or ``Mul node 'layer1/mul'``."""
        op = f"{self.domain}.{self.op}" if self.domain else self.op
        if self.source is not None:
            return f"{op} ({source_lines.describe(self.source)})"
        return f"{op} node '{self.name}'" if self.name else op

    def __repr__(self) -> str:
        return f"<Record {self.describe()}>"


_FREED: tuple[Any, ...] = ("freed",)


class Tensor(TensorMethods):
    """An n-dimensional value: an array, or a value of the graph that is being traced.

    Made by ``gk.tensor`` and by applying operators, never by calling this class.
    """

    __slots__ = ("_array", "_needs", "_version", "grad", "graph", "index", "literal", "name", "record", "value")
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  # == compares elements: hashed by identity

    def __init__(
        self,
        array: Any,
        record: Record | None = None,
        index: int = 0,
        needs: int = 0,
        name: str | None = None,
        value: ir.Value | None = None,
        graph: Graph | None = None,
        literal: bool = False,
    ) -> None:
        self._array = array
        self.record = record
        self.index = index
        self._needs = needs
        self._version = 0
        self.grad: Tensor | None = None
        self.name = name
        self.value = value
        self.graph = graph
        self.literal = literal  # made from a Python scalar or list: equal ones may share one constant in a graph

    @property
    def traced(self) -> bool:
        """Whether this is a value of a graph, known only when the graph runs."""
        return self.value is not None

    @property
    def key(self) -> Key:
        """What identifies the value in a reverse pass."""
        if self.value is not None:
            return id(self.value)
        return (id(self.record), self.index) if self.record is not None else id(self)

    @property
    def dtype(self) -> dtypes.DType:
        if self.graph is not None and self.value is not None:
            return self.graph.dtype_of(self.value)
        array = self._array
        if not isinstance(array, np.ndarray | Absent):
            array = array[0] if array else np.empty(0, np.float32)  # a sequence's dtype is its elements'
        found: dtypes.DType = array.dtype
        return found

    @property
    def dims(self) -> Dims | None:
        """The shape as gradient rules see it: integers and names, None for an unknown rank."""
        if self.graph is not None and self.value is not None:
            return self.graph.dims_of(self.value)
        return self._array.shape if isinstance(self._array, np.ndarray | Absent) else None

    @property
    def rank(self) -> int | None:
        dims = self.dims
        return None if dims is None else len(dims)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape: integers, and a ``Dim`` for each dimension that is only known when the graph runs."""
        if self.value is None:
            return self._array.shape  # type: ignore[no-any-return]  # of an ndarray
        return tuple(d if isinstance(d, int) else Dim(self, axis, d) for axis, d in enumerate(self._dims("shape")))

    def _dims(self, what: str) -> Dims:
        dims = self.dims
        if dims is None:
            raise TraceError(
                f"x.{what} needs the rank of {self.name or 'this tensor'}, which is unknown in the graph "
                f"({source_lines.here()}). Give the input's dimensions, or Reshape to a known rank first."
            )
        return dims

    @property
    def ndim(self) -> int:
        return len(self._dims("ndim"))

    @property
    def requires_grad(self) -> bool:
        """Whether backward() reaches this tensor."""
        return bool(self._needs & 1)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        if self.value is not None:
            from graphkit.dims import text

            return f"Tensor({self.value.name}: {dtypes.name(self.dtype)}{text(self.dims)})"
        if not isinstance(self._array, np.ndarray):
            return f"Tensor({self._array!r})"
        body = np.array2string(self._array, separator=", ", prefix="Tensor(", precision=4)
        return f"Tensor({body}, dtype={dtypes.name(self.dtype)}{grad})"


class Dim(DimArithmetic):
    """A dimension of a traced tensor that is known only when the graph runs.

    Arithmetic on it is traced (``b * 2`` is a scalar int64 Tensor) and it may stand in a shape (``x.reshape(b, -1)``).
    Asking for its Python value is a TraceError at the user's line, since any answer would be baked into the file.
    """

    __slots__ = ("axis", "extent", "tensor")

    def __init__(self, tensor: Tensor, axis: int, extent: Extent) -> None:
        self.tensor = tensor
        self.axis = axis
        self.extent = extent

    def as_tensor(self) -> Tensor:
        """The extent as a traced scalar, int64 []."""
        assert self.tensor.graph is not None
        return self.tensor.graph.dim_tensor(self.tensor, self.axis)

    def as_vector(self) -> Tensor:
        """The extent as a traced int64 [1], as shape inputs are put together of."""
        assert self.tensor.graph is not None
        return self.tensor.graph.dim_vector(self.tensor, self.axis)

    def _refuse(self, what: str) -> Any:
        from graphkit import dims

        shown = "an unnamed dimension" if dims.is_anonymous(self.extent) else f"dimension '{self.extent}'"
        raise TraceError(
            f"{what} asks for the value of {shown} (axis {self.axis} of {self.tensor.name or 'a traced tensor'}) at "
            f"{source_lines.here()}, but it is only known when the graph runs; baking the example's value would make "
            "the file wrong for every other size. Use it in x.reshape(...) or arithmetic, use gk.scan to loop over "
            "it, or declare it static."
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim) and (other.extent == self.extent):
            return True
        return bool(self._refuse("=="))

    def __hash__(self) -> int:
        return int(self._refuse("a set or a dict"))

    def __format__(self, format_spec: str) -> str:
        return str(self._refuse("text"))

    __str__ = object.__str__  # as repr: messages show names

    def __lt__(self, other: object) -> bool:
        return bool(self._refuse("a comparison"))

    __le__ = __gt__ = __ge__ = __lt__

    def __index__(self) -> int:
        return int(self._refuse("range() or int()"))

    def __int__(self) -> int:
        return int(self._refuse("int()"))

    def __float__(self) -> float:
        return float(self._refuse("float()"))

    def __bool__(self) -> bool:
        return bool(self._refuse("a truth test"))

    def __repr__(self) -> str:
        return str(self.extent)


def as_array(value: Any, dtype: Any = None) -> tuple[Array, bool]:
    """The array that a Python value means, owned by nobody else, and whether it was a literal (scalars, lists)."""
    literal = not isinstance(value, np.ndarray | np.generic)
    try:
        array = np.array(value, dtype=None if dtype is None else dtypes.as_dtype(dtype))
    except (ValueError, OverflowError) as error:
        raise OperatorError(f"a tensor cannot be made of {_shown(value)} at {source_lines.here()}: {error}") from None
    if dtype is None and literal:
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        elif array.dtype == np.complex128:
            array = array.astype(np.complex64)
        elif array.dtype.kind in "iu" and array.dtype != np.int64 and array.size == 0:
            array = array.astype(np.int64)
    if array.dtype.kind in "US":
        array = array.astype(np.object_)
    elif array.dtype.kind == "O" and not all(isinstance(v, str | bytes) for v in array.ravel().tolist()):
        raise OperatorError(
            f"a tensor cannot be made of {_shown(value)} at {source_lines.here()}: its elements must be numbers, "
            "booleans or strings that one dtype holds."
        )
    if array.dtype.byteorder not in "=|":
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = np.array(array, order="C")
    dtypes.to_onnx(array.dtype)
    array.flags.writeable = False
    return array, literal


def holds_tensors(value: Any) -> bool:
    """Whether a list, or one inside it, holds a Tensor or a Dim: taken as numbers, they would lose their history."""
    if not isinstance(value, list | tuple):
        return False
    return any(isinstance(v, Tensor | Dim) or (isinstance(v, list | tuple) and holds_tensors(v)) for v in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def as_tensor(value: Any, dtype: Any = None) -> Tensor:
    """A Tensor for anything that can be one; a Tensor is returned as it is (cast if ``dtype`` differs)."""
    if isinstance(value, Tensor):
        if dtype is not None and value.dtype != dtypes.as_dtype(dtype):
            return value.astype(dtype)
        return value
    if isinstance(value, Dim):
        return as_tensor(value.as_tensor(), dtype)
    if holds_tensors(value):
        from graphkit.methods import stack_scalars

        return as_tensor(stack_scalars(value), dtype)
    array, literal = as_array(value, dtype)
    return Tensor(array, literal=literal)


def tensor(data: Any, dtype: Any = None, *, requires_grad: bool = False, name: str | None = None) -> Tensor:
    """Make a Tensor of numbers, nested lists or a numpy array, whose values are copied.

    Python floats become float32 and Python integers int64; an array keeps its dtype.

    Args:
        data: numbers, nested lists, a numpy array, or a Tensor (whose values are taken, without its history).
        dtype: another dtype, by name or as numpy's.
        requires_grad: whether ``backward()`` accumulates this tensor's gradient into ``.grad``.
        name: shown in errors, and the initializer's name if an export captures the tensor.

    >>> import graphkit as gk
    >>> x = gk.tensor([[1., 2.]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    Tensor([[2., 4.]], dtype=float32)
    """
    if isinstance(data, Tensor | Dim):
        data = as_tensor(data).numpy()
    elif holds_tensors(data):
        data = as_tensor(data).numpy()  # of Tensors known now; a traced one refuses
    array, _ = as_array(data, dtype)
    if requires_grad and not dtypes.is_float(array.dtype):
        raise GradientError(
            f"requires_grad needs a floating dtype, got {dtypes.name(array.dtype)} ({source_lines.here()}). "
            "Write dtype='float32', or floats such as 1.0."
        )
    return Tensor(array, needs=int(requires_grad), name=name)
