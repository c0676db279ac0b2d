"""Give symbolic dimensions a fixed size and inputs a fixed value, for a model that will only ever be run so."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir

from graphkit.errors import PassError, did_you_mean
from graphkit.modelfile import ModelLike, give_back, read_model

__all__ = ["freeze"]

# What a dimension of a file can be.
_LARGEST: Final = 2**63 - 1
# Nothing longer is read as an expression.
_LONGEST: Final = 200
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def freeze(
    model: ModelLike, dims: Mapping[str, Any] | None = None, values: Mapping[str, Any] | None = None
) -> ir.Model | onnx.ModelProto:
    """Return the model with dimensions of its inputs fixed (``{"batch": 1}``), and inputs themselves.

    ``dims`` names dimensions that inputs have (``x.0`` is the first one of input x, named or not); they are fixed
    wherever the name stands, in bodies too, and the runtime then refuses inputs of other sizes. ``values`` gives inputs
    a value for good: they are inputs no more, and what their shape says of named dimensions holds everywhere.
    Dimensions that are sums, differences, products or floor quotients of names (``2*N``, ``N + 1``), as exporters write
    them, are worked out where all their names are fixed. Values are converted to the input's dtype where it holds them.
    ``optimize`` afterwards works out what follows. The kind given comes back; ``model`` is not changed.

    Raises ``PassError`` for a name that no input has, a size that is not a whole number of at least 1, a value that the
    input's dtype does not hold (text, fractions or too large numbers for integers, numbers that would be infinite) or
    of another shape, and for sizes that contradict one another.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[batch,3] x) => (float[batch,3] y) {y = Abs(x)}'
    >>> freeze(onnx.parser.parse_model(text), {"batch": 2}).graph.input[0].type.tensor_type.shape.dim[0].dim_value
    2
    """
    result = read_model(model)
    sizes = _Sizes(result)
    for name, size in (dims or {}).items():
        sizes.give(name, size)
    for name, value in (values or {}).items():
        _set(result, name, value, sizes)
    if dims is None and values is None:
        raise PassError("nothing is to be fixed: give dims or values")
    sizes.check_defaults()
    for graph in (result.graph, *result.graph.subgraphs()):
        produced = [value for node in graph for value in node.outputs]
        for item in (*graph.inputs, *graph.outputs, *produced):
            if item.shape is not None:
                _fix(item, sizes.named)
    return give_back(model, result)


class _Sizes:
    """The sizes that were given, of named dims wherever they stand, and where each came from."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.inputs = {value.name or "": value for value in model.graph.inputs}
        self.named: dict[str | None, int] = {}
        self._sources: dict[str, str] = {}
        self.known = list(
            dict.fromkeys(
                name
                for value in model.graph.inputs
                for axis, dim in enumerate(value.shape or ())
                if (name := _name(value, axis, dim)) is not None
            )
        )

    def give(self, name: str, size: Any) -> None:
        """Fix one dimension, by its name or by its place."""
        try:
            number = operator.index(size)
        except TypeError:
            number = 0
        if isinstance(size, bool) or number < 1:
            raise PassError(f"the dimension '{name}' needs a whole number of at least 1, not {size!r}")
        if number > _LARGEST:
            raise PassError(f"the dimension '{name}' is larger than any that ONNX can say: {size!r}")
        if name in self.known and "." not in name:
            self._fix_name(name, number, f"{name}={number}")
            return
        value, axis = self._place(name)
        if value is None:
            if name not in self.known:
                names = ", ".join(sorted(self.known)) or "none at all"
                raise PassError(
                    f"no input has a dimension '{name}'.{did_you_mean(name, self.known)} The inputs have {names}"
                )
            self._fix_name(name, number, f"{name}={number}")
        else:
            self.fix_place(value, axis, number, f"{name}={number}")

    def _place(self, name: str) -> tuple[ir.Value | None, int]:
        owner, _, place = name.rpartition(".")
        value = self.inputs.get(owner)
        if value is None or value.shape is None or not place.isdecimal() or int(place) >= len(value.shape):
            return None, 0
        return value, int(place)

    def fix_place(self, value: ir.Value, axis: int, size: int, source: str) -> None:
        """Fix a dimension of an input, and its name if it has one."""
        assert value.shape is not None
        dim = value.shape[axis]
        if isinstance(dim, int):
            if dim not in (-1, size):
                raise PassError(f"{source} contradicts the model: dimension {axis} of '{value.name}' is {dim}")
        elif dim.value is not None:
            self._fix_name(dim.value, size, source)
            return
        dims = list(value.shape)
        dims[axis] = size
        denotations = [value.shape.get_denotation(place) for place in range(len(dims))]
        value.shape = ir.Shape(dims, denotations=denotations)

    def _fix_name(self, name: str, size: int, source: str) -> None:
        if self.named.setdefault(name, size) != size:
            raise PassError(f"{source} contradicts {self._sources[name]}: both say how large '{name}' is")
        self._sources.setdefault(name, source)

    def check_defaults(self) -> None:
        """See that defaults of inputs have the sizes that were given."""
        for value in self.model.graph.inputs:
            if value.const_value is None or value.shape is None:
                continue
            for axis, (dim, extent) in enumerate(zip(value.shape, value.const_value.shape, strict=False)):
                size = dim if isinstance(dim, int) else self.named.get(dim.value)
                if size is not None and isinstance(extent, int) and size not in (-1, extent):
                    source = self._sources.get(getattr(dim, "value", ""), f"{value.name}.{axis}={size}")
                    raise PassError(
                        f"{source} contradicts the model: the default of '{value.name}' has {extent} at {axis}"
                    )


def _name(value: ir.Value, axis: int, dim: int | ir.SymbolicDim) -> str | None:
    if isinstance(dim, int):
        return None if dim >= 0 else f"{value.name}.{axis}"
    return f"{value.name}.{axis}" if dim.value is None else dim.value


def _set(model: ir.Model, name: str, given: Any, sizes: _Sizes) -> None:
    value = sizes.inputs.get(name)
    if value is None:
        known = ", ".join(sizes.inputs)
        raise PassError(f"the model has no input '{name}'.{did_you_mean(name, sizes.inputs)} It has {known}")
    if not isinstance(value.type, ir.TensorType) or value.dtype is None:
        raise PassError(f"the input '{name}' is no tensor, so it cannot be set")
    made = _converted(name, value.dtype, given)
    if value.shape is not None:
        if len(value.shape) != made.ndim:
            raise PassError(f"the input '{name}' has {len(value.shape)} dimensions, and the value has {made.ndim}")
        for axis, extent in enumerate(made.shape):
            sizes.fix_place(value, axis, extent, f"the value of '{name}'")
    tensor: ir.TensorProtocol
    if value.dtype == ir.DataType.STRING:
        texts = [str(item).encode() for item in made.reshape(-1)]
        tensor = ir.StringTensor(texts, shape=ir.Shape(made.shape), name=name)
    else:
        tensor = ir.Tensor(made, dtype=value.dtype, name=name)
    model.graph.inputs.remove(value)
    value.const_value, value.shape = tensor, ir.Shape(made.shape)
    if name not in model.graph.initializers:
        model.graph.register_initializer(value)
    model.ir_version = max(model.ir_version, 4)  # before that, every initializer is an input too


def _converted(name: str, dtype: ir.DataType, given: Any) -> np.ndarray[Any, Any]:
    """A value in the dtype of its input; no number that it does not hold becomes another one."""
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise PassError(f"the value of '{name}' is not a rectangular list: its rows have different lengths") from error
    if dtype == ir.DataType.STRING:
        return array.astype(object)
    kind = dtype.name.lower()
    with np.errstate(all="ignore"):
        try:
            made = array.astype(dtype.numpy())
            held = array.dtype.kind not in "US" and _holds(dtype, made, array)
        except (TypeError, ValueError, OverflowError) as error:
            raise PassError(f"the input '{name}' is {kind}, which does not hold {given!r}") from error
    if not held:
        raise PassError(f"the input '{name}' is {kind}, which does not hold {given!r}")
    return made


def _holds(dtype: ir.DataType, made: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    if dtype == ir.DataType.BOOL:
        return bool(((array == 0) | (array == 1)).all())
    if dtype.is_integer():
        # As Python's own integers: numpy compares int64 with uint64 as float64, which rounds.
        pairs = zip(made.reshape(-1).tolist(), array.reshape(-1).tolist(), strict=True)
        return all(int(one) == other for one, other in pairs)
    if not dtype.is_floating_point():
        return True
    finite = np.isfinite(array.astype(np.float64))
    return bool(np.isfinite(made.astype(np.float64))[finite].all())


def _worked_out(text: str, sizes: Mapping[str | None, int]) -> int | None:
    """The size that an expression of names says, where all of them are fixed; None where it is none."""
    if len(text) > _LONGEST:
        return None
    try:
        number = _evaluated(ast.parse(text.strip(), mode="eval").body, sizes)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None
    return number if 0 <= number <= _LARGEST else None


def _evaluated(node: ast.expr, sizes: Mapping[str | None, int]) -> int:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluated(inner, sizes)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _ARITHMETIC:
            return _ARITHMETIC[type(kind)](_evaluated(left, sizes), _evaluated(right, sizes))
    raise ValueError("it is no expression of names and whole numbers")


def _fix(value: ir.Value, sizes: Mapping[str | None, int]) -> None:
    assert value.shape is not None
    fixed: list[int | ir.SymbolicDim] = []
    for dim in value.shape:
        size = None
        if not isinstance(dim, int) and dim.value is not None:
            size = sizes[dim.value] if dim.value in sizes else _worked_out(dim.value, sizes)
        fixed.append(dim if size is None else size)
    if fixed != list(value.shape):
        denotations = [value.shape.get_denotation(axis) for axis in range(len(value.shape))]
        value.shape = ir.Shape(fixed, denotations=denotations)
