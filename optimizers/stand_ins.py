"""Numbers that are the same at every run in place of random draws, so that two models with draws can be compared."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.context import Context
from graphkit.optimizers.known import is_pure

__all__ = ["without_chance"]

_FLOAT: Final = ir.DataType.FLOAT
# Range and Where with every dtype come with it.
_OLDEST_OPSET: Final = 11
# Element i is drawn as (i * _STRIDE mod _CYCLE + 0.5) / _CYCLE, which is between 0 and 1 and looks spread at random.
_STRIDE: Final = 37
_CYCLE: Final = 101


def without_chance(model: ir.Model) -> ir.Model | None:
    """Return the model with what it draws at random replaced by what follows from the place of an element alone.

    Dropout in training, RandomNormal, RandomUniform (also ``Like``) and Bernoulli keep their ratios, bounds, means and
    dtypes; all draws of one shape are alike. None where nothing could be replaced; operators other than these, and
    those in functions, stay.
    """
    result = model.clone()
    if result.opset_imports.get("", 0) < _OLDEST_OPSET:
        return None
    ctx = Context(result, training=False, slack=0)
    ctx.facts.sweep(ctx.graphs())
    replaced = False
    for node in list(result.graph.all_nodes()):
        make = None if node.domain != "" or is_pure(node) else _MAKERS.get(node.op_type)
        made = None if make is None else make(_Writer(ctx, node), node)
        if made is None:
            continue
        for old, new in zip(node.outputs, made, strict=False):
            new.type, new.shape = old.type, old.shape
            _take_place(old, new)
        graph = node.graph
        assert graph is not None
        graph.remove(node, safe=True)
        replaced = True
    return result if replaced else None


def _take_place(old: ir.Value, new: ir.Value) -> None:
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None if name is None else f"{name}_drawn"
    new.name = name


class _Writer:
    """Puts nodes before a node."""

    def __init__(self, ctx: Context, node: ir.Node) -> None:
        self.ctx, self.node = ctx, node

    def put(self, operator: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        made = ir.Node("", operator, list(inputs), ir.convenience.convert_attributes(attributes))
        assert self.node.graph is not None
        self.node.graph.insert_before(self.node, made)
        made.outputs[0].name = self.ctx.name("stand_in")
        return made.outputs[0]

    def constant(self, content: Any, dtype: Any = np.float32) -> ir.Value:
        return self.put("Constant", value=ir.Tensor(np.asarray(content, dtype)))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self.put("Cast", value, to=int(dtype))

    def spread(self, like: ir.Value) -> ir.Value:
        """Numbers between 0 and 1 in the shape of a value, float32."""
        size = self.put("Size", like)
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        place = self.put("Mul", self.put("Range", zero, size, one), self.constant(_STRIDE, np.int64))
        turn = self.cast(self.put("Mod", place, self.constant(_CYCLE, np.int64)), _FLOAT)
        row = self.put("Div", self.put("Add", turn, self.constant(0.5)), self.constant(_CYCLE))
        return self.put("Reshape", row, self.put("Shape", like))

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The dtype that ``dtype=`` or else a value says."""
        stated = self.node.attributes.get_int("dtype", 0)
        return ir.DataType(stated) if stated else self.ctx.dtype(value)


def _dropout(write: _Writer, node: ir.Node) -> list[ir.Value] | None:
    source = node.inputs[0]
    dtype = write.ctx.dtype(source)
    if source is None or dtype is None:
        return None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    ratio = write.constant(0.5) if given is None else write.cast(given, _FLOAT)
    kept = write.put("Greater", write.spread(source), ratio)
    share = write.cast(write.put("Sub", write.constant(1), ratio), dtype)
    nothing = write.cast(write.constant(0), dtype)
    dropped = write.put("Where", kept, write.put("Div", source, share), nothing)
    trains = node.inputs[2]
    return [write.put("Where", trains, dropped, source), write.put("Or", kept, write.put("Not", trains))]


def _distribution(write: _Writer, node: ir.Node, numbers: ir.Value, dtype: ir.DataType) -> list[ir.Value]:
    """The numbers between 0 and 1, moved to where the operator draws."""
    if "Uniform" in node.op_type:
        low, high = (node.attributes.get_float(name, default) for name, default in (("low", 0.0), ("high", 1.0)))
        offset, scale = low, high - low
    else:
        scale = 4 * node.attributes.get_float("scale", 1.0)  # two standard deviations to either side
        offset = node.attributes.get_float("mean", 0.0) - scale / 2
    moved = write.put("Add", write.put("Mul", numbers, write.constant(scale)), write.constant(offset))
    return [write.cast(moved, dtype)]


def _random_like(write: _Writer, node: ir.Node) -> list[ir.Value] | None:
    source, dtype = node.inputs[0], write.dtype(node.inputs[0])
    return None if source is None or dtype is None else _distribution(write, node, write.spread(source), dtype)


def _random(write: _Writer, node: ir.Node) -> list[ir.Value] | None:
    zeros = write.put("ConstantOfShape", write.constant(list(node.attributes.get_ints("shape", ())), np.int64))
    return _distribution(write, node, write.spread(zeros), write.dtype(None) or _FLOAT)


def _bernoulli(write: _Writer, node: ir.Node) -> list[ir.Value] | None:
    source, dtype = node.inputs[0], write.dtype(node.inputs[0])
    if source is None or dtype is None:
        return None
    return [write.cast(write.put("Greater", write.cast(source, _FLOAT), write.spread(source)), dtype)]


_MAKERS: Final = {
    "Dropout": _dropout,
    "RandomNormalLike": _random_like,
    "RandomUniformLike": _random_like,
    "RandomNormal": _random,
    "RandomUniform": _random,
    "Bernoulli": _bernoulli,
}
