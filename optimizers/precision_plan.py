"""Which nodes of a model compute in half precision, and for each of the others why not."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, TypeGuard

import numpy as np
import onnx_ir as ir

from graphkit.errors import PassError, did_you_mean
from graphkit.modelfile.protos import every_node
from graphkit.modelfile.sparse import SparseTensor
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.precision_operators import CHEAP, EXACT, UNTYPED, half_slots, has_kernel, is_sensitive
from graphkit.optimizers.symbolic import size_of

__all__ = ["CONTROL", "Plan", "Planner", "constant_of", "declare_types", "fits", "is_float32", "matches"]

CONTROL: Final = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_FLOAT: Final = ir.DataType.FLOAT
# Constants of up to so many elements must fit element by element; of larger ones, small elements may round to zero.
_SMALL: Final = 64
# A product with a larger constant is a layer, not arithmetic on positions.
_POSITIONS: Final = 4096
# Whose outputs are bounded, however large the inputs.
_BOUNDED: Final = frozenset("Softmax Sigmoid Tanh Erf HardSigmoid Softsign Clip Sign Max Min".split())
_ARITHMETIC: Final = frozenset("MatMul Einsum Pow Exp Log Floor Ceil Round Mod Sin Cos".split())
_COMPARISONS: Final = frozenset("Less LessOrEqual Greater GreaterOrEqual Equal".split())


@dataclass(slots=True)
class Plan:
    """``half`` holds the numbers of the nodes (in the order of ``every_node``) that compute in half precision.

    ``kept`` gives a reason for each node that has float32 tensors and stays.
    """

    half: set[int] = field(default_factory=set)
    kept: dict[int, str] = field(default_factory=dict)


def declare_types(ctx: Context) -> list[ir.Value]:
    """Give values whose dtype follows from others' their type, bodies included; returns those that had none."""
    made: list[ir.Value] = []

    def learn(value: ir.Value, source: ir.Value | ir.DataType | None) -> bool:
        if value.type is not None or source is None:
            return False
        if isinstance(source, ir.Value) and source.type is not None:
            value.type = source.type
        elif (dtype := ctx.facts(source).dtype if isinstance(source, ir.Value) else source) is not None:
            value.type = ir.TensorType(dtype)
        else:
            return False
        made.append(value)
        return True

    changed = True
    while changed:
        ctx.facts.sweep(ctx.graphs())
        changed = False
        for node in every_node(ctx.model.graph):
            for body in subgraphs_of(node):
                for value, source in _tied(node, body):
                    changed |= learn(value, source)
            for value in node.outputs:
                changed |= learn(value, ctx.facts(value).dtype)
    return made


def _tied(node: ir.Node, body: ir.Graph) -> list[tuple[ir.Value, ir.Value | ir.DataType | None]]:
    """Values of a loop's body and of the loop itself that have one type, or a known one."""
    pairs: list[tuple[ir.Value, ir.Value | ir.DataType | None]] = []
    if node.domain != "":
        return pairs
    if node.op_type == "Loop":
        own = (ir.DataType.INT64, ir.DataType.BOOL, *node.inputs[2:])
        pairs += zip(body.inputs, own, strict=False)
        pairs += zip(node.outputs, body.outputs[1:], strict=False)
    elif node.op_type == "Scan":
        pairs += zip(body.inputs, node.inputs, strict=False)
    if node.op_type in ("If", "Scan"):
        pairs += zip(node.outputs, body.outputs, strict=False)
    return pairs


def is_float32(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Whether a value is a tensor of float32, and no sequence of them."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == _FLOAT


def constant_of(value: ir.Value | None, *, ir_version: int) -> ir.TensorProtocol | None:
    """The tensor behind a value that no caller may override: an initializer's or a Constant's."""
    if value is None:
        return None
    if value.is_initializer():
        return value.const_value if ir_version < 4 or not value.is_graph_input() else None
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or producer.domain != "" or len(producer.attributes) != 1:
        return None
    name, attribute = next(iter(producer.attributes.items()))
    if attribute.is_ref():
        return None
    if name == "value":
        tensor: ir.TensorProtocol = attribute.value
        return tensor
    if name in ("value_float", "value_floats"):
        return ir.tensor(np.array(attribute.value, np.float32))
    return None


def fits(tensor: ir.TensorProtocol, half: ir.DataType) -> tuple[bool, str]:
    """Whether a constant's numbers survive in ``half``; if not, in words what happens to them."""
    array = np.asarray(tensor.numpy(), np.float32)
    with np.errstate(all="ignore"):
        rounded = array.astype(half.numpy()).astype(np.float32)
        finite = np.isfinite(array)
        if not np.isfinite(rounded[finite]).all():
            return False, "overflows"
        lost = np.abs(rounded - array)[finite]
        size = np.abs(array)[finite]
    # One rounding is half a unit in the last place: 2^-11 for float16, 2^-8 for bfloat16.
    unit = 2.0**-11 if half == ir.DataType.FLOAT16 else 2.0**-8
    allowed = size if array.size <= _SMALL else size.max(initial=0)
    return bool((lost <= 1.01 * unit * allowed).all()), "underflows"


def matches(keep: Collection[str], node: ir.Node) -> set[str]:
    """Which entries of a keep list name the node: by its name, its operator, or a value that it reads or gives out."""
    names = [node.name or "", node.op_type, *(value.name or "" for value in node.outputs)]
    # A value that is made by a node is kept by keeping that node; only weights and inputs are kept where they are read.
    names += [v.name or "" for v in node.inputs if v is not None and (v.is_initializer() or v.is_graph_input())]
    return {entry for entry in keep if any(name and (name == entry or fnmatchcase(name, entry)) for name in names)}


class Planner:
    """Decides about each node of one model, again and again while the loss check narrows down what must stay."""

    def __init__(self, ctx: Context, half: ir.DataType, keep: Collection[str], *, keep_io: bool) -> None:
        self.ctx = ctx
        self.half = half
        self.keep_io = keep_io
        self._fits: dict[ir.Value, tuple[bool, str]] = {}
        self._matched = [matches(keep, node) for node in every_node(ctx.model.graph)]
        self._foreign = {
            inner
            for node in every_node(ctx.model.graph)
            if node.domain != "" or node.op_type not in CONTROL
            for body in subgraphs_of(node)
            for inner in every_node(body)
        }
        found = set().union(*self._matched)
        unknown = [entry for entry in keep if entry not in found and not _names_input(ctx, entry)]
        if unknown:
            close = did_you_mean(unknown[0], _everything(ctx))
            raise PassError(f"nothing in the model is called '{unknown[0]}' (in keep).{close}")

    def plan(self, forced: Collection[int] = (), large: Collection[ir.Value] = ()) -> Plan:
        """``forced`` nodes stay float32, and so do those that read or make one of the values ``large``."""
        made = Plan()
        positions: set[ir.Value] = set()
        huge: set[ir.Value] = set(large)
        settled: set[ir.Value] = set()  # float32, made by a node that stays for its own sake
        for number, node in enumerate(every_node(self.ctx.model.graph)):
            if node.op_type in CONTROL and node.domain == "":
                continue
            _follow_positions(self.ctx, node, positions)
            if not _has_floats(node) or node.op_type in UNTYPED or node.op_type in ("Constant", "Cast"):
                continue
            own = False
            reason: str | None = None
            if self._matched[number]:
                reason = f"'{min(self._matched[number])}' is on the keep list"
            elif number in forced:
                reason = "the loss check put it on the keep list"
            else:
                reason, own = self._reason(node, huge, positions, settled)
            if reason is None:
                made.half.add(number)
                continue
            made.kept[number] = reason
            if own:
                settled.update(node.outputs)
        for number in self._between(made.half):
            made.half.remove(number)
            made.kept[number] = "it moves numbers between nodes that stay"
        return made

    def _between(self, half: set[int]) -> list[int]:
        """Nodes that only move float32 numbers to readers of float32: in half precision they would round them."""
        nodes = list(every_node(self.ctx.model.graph))
        converted = {nodes[number] for number in half}
        movers = [nodes[number] for number in sorted(half) if nodes[number].op_type in EXACT]
        fed: set[ir.Node] = set()
        for node in movers:
            moving = [v for v in node.inputs if is_float32(v) and not _is_constant(self.ctx, v)]
            if moving and all(self._is_fed(value, converted, fed) for value in moving):
                fed.add(node)
        read: set[ir.Node] = set()
        for node in reversed(movers):
            readers = {use.node for value in node.outputs for use in value.uses()}
            given_out = [value for value in node.outputs if value.is_graph_output()]
            outward = all(self.keep_io and value.graph is self.ctx.model.graph for value in given_out)
            if outward and all(reader not in converted or reader in read for reader in readers):
                read.add(node)
        return [number for number in half if nodes[number] in fed & read]

    def _is_fed(self, value: ir.Value, converted: set[ir.Node], fed: set[ir.Node]) -> bool:
        producer = value.producer()
        if producer is None:
            return self.keep_io or value.graph is not self.ctx.model.graph
        if producer.op_type in CONTROL:
            return False  # what it gives out may be half
        return producer not in converted or producer in fed

    def _reason(
        self, node: ir.Node, huge: set[ir.Value], positions: set[ir.Value], settled: set[ir.Value]
    ) -> tuple[str | None, bool]:
        """Why a node stays float32, and whether what follows it may stay with it."""
        kind, ctx = self.half.name.lower(), self.ctx
        opset = ctx.opset(node)
        if node.domain not in ("", "com.microsoft"):
            return f"operators of {node.domain} are left alone", False
        if node in self._foreign:
            return "it is in the body of an operator that is left alone", False
        slots = half_slots(node, self.half, opset) if has_kernel(node, self.half, opset) else None
        if slots is None:
            return f"{node.op_type} has no {kind} kernel at opset {opset}", False
        if any(v is not None and v.dtype is None for v in (*node.inputs, *node.outputs)):
            return "the type of what it reads or makes is not known", False
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return "its attributes are a caller's", False
        if any(value in huge for value in (*node.inputs, *node.outputs) if value is not None):
            if node.op_type not in _BOUNDED:
                huge.update(node.outputs)
            return f"its numbers leave the range of {kind}", True
        read = [value for i in sorted(slots[0]) if is_float32(value := node.inputs[i])]
        for value in read:
            good, words = self._constant_fits(value)
            if not good:
                if words == "overflows" and node.op_type not in _BOUNDED:
                    huge.update(node.outputs)
                return f"its constant '{value.name}' {words} in {kind}", True
        if node.op_type == "ConstantOfShape" and not _fill_fits(node, self.half):
            return f"its value leaves the range of {kind}", True
        if any(value in positions for value in node.outputs):
            return "it computes positions or sizes", True
        if (why := is_sensitive(node, _reduced(ctx, node))) is not None:
            return why, True
        follows = [value in settled for value in read if not _is_constant(ctx, value)]
        if node.op_type in CHEAP and follows and (all(follows) or (any(follows) and node.op_type in _COMPARISONS)):
            return "it follows a node that stays", True
        return None, False

    def _constant_fits(self, value: ir.Value) -> tuple[bool, str]:
        tensor = constant_of(value, ir_version=self.ctx.model.ir_version)
        if tensor is None:
            return True, ""
        if isinstance(tensor, SparseTensor):
            return False, "is sparse and cannot be written"
        if value not in self._fits:
            self._fits[value] = fits(tensor, self.half)
        return self._fits[value]


def _follow_positions(ctx: Context, node: ir.Node, positions: set[ir.Value]) -> None:
    """Note values that follow from integers alone: positions, sizes, masks. A layer with weights ends that."""
    if node.op_type == "Range":
        positions.update(node.outputs)
    elif node.op_type == "Cast":
        source = node.inputs[0]
        if (source is not None and source.dtype is not None and source.dtype.is_integer()) or source in positions:
            positions.update(node.outputs)
    elif node.op_type in CHEAP or node.op_type in _ARITHMETIC:
        floats = [value for value in node.inputs if is_float32(value)]
        moving = [value for value in floats if not _is_constant(ctx, value)]
        small = all(_size(ctx, value) <= _POSITIONS for value in floats if value not in moving)
        if moving and small and all(value in positions for value in moving):
            positions.update(node.outputs)


def _has_floats(node: ir.Node) -> bool:
    return any(v is not None and v.dtype in (_FLOAT, None) for v in (*node.inputs, *node.outputs))


def _is_constant(ctx: Context, value: ir.Value) -> bool:
    return constant_of(value, ir_version=ctx.model.ir_version) is not None


def _size(ctx: Context, value: ir.Value) -> int:
    tensor = constant_of(value, ir_version=ctx.model.ir_version)
    return 0 if tensor is None else tensor.size


def _fill_fits(node: ir.Node, half: ir.DataType) -> bool:
    attribute = node.attributes.get("value")
    return attribute is None or fits(attribute.value, half)[0]


def _reduced(ctx: Context, node: ir.Node) -> int | None:
    """How many elements go into one of a reduction's results, where that is known."""
    shape, out = ctx.shape(node.inputs[0]), ctx.shape(node.outputs[0])
    if shape is None or out is None:
        return None
    if node.op_type == "GlobalAveragePool":
        return size_of(shape[2:])
    before = [dim for dim in shape if dim not in out or isinstance(dim, int)]
    after = [dim for dim in out if isinstance(dim, int)]
    whole, left = size_of(tuple(before)), size_of(tuple(after))
    return None if whole is None or not left else whole // left


def _names_input(ctx: Context, entry: str) -> bool:
    values = (*ctx.model.graph.inputs, *ctx.model.graph.initializers.values())
    return any(value.name and (value.name == entry or fnmatchcase(value.name, entry)) for value in values)


def _everything(ctx: Context) -> Iterator[str]:
    for node in every_node(ctx.model.graph):
        yield from (name for name in (node.name, node.op_type, *(v.name for v in node.outputs)) if name)
    yield from ctx.model.graph.initializers
    yield from (value.name for value in ctx.model.graph.inputs if value.name)
