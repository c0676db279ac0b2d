"""lower_training: the training operators of ONNX, which no stock runtime has, as operators that every runtime has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import onnx
import onnx_ir as ir

from graphkit import autograd, interpreter
from graphkit.bodies import emit_again
from graphkit.conversion import attribute_value
from graphkit.core import Key, Record, Tensor
from graphkit.errors import GradientError, did_you_mean
from graphkit.gradients.lowered import LOWERINGS, Call
from graphkit.gradients.shapes import ones_like, zeros_like
from graphkit.gradients.training_domain import DOMAIN
from graphkit.graph import Graph
from graphkit.modelfile import ModelLike, give_back, lowest_ir_version, read_model
from graphkit.schemas import WORKING_OPSET
from graphkit.upgrade import upgrade_model

__all__ = ["has_training_nodes", "lower_training", "lower_training_nodes"]


@overload
def lower_training(model: onnx.ModelProto) -> onnx.ModelProto: ...


@overload
def lower_training(model: ModelLike) -> ir.Model | onnx.ModelProto: ...


def lower_training(model: ModelLike) -> ir.Model | onnx.ModelProto:
    """Return the model with every Gradient, Adam, Adagrad and Momentum of ai.onnx.preview.training written out.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed, and its kind comes back.

    Raises:
        GradientError: where a Gradient names a tensor that the model does not have, or an operator without a rule is
            on the way.

    >>> import onnx.parser
    >>> text = '''<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
    ... g (float a, float b) => (float c, float da) {
    ...     c = Mul(a, b)
    ...     da = ai.onnx.preview.training.Gradient <xs = ["a", "b"], y = "c"> (a, b)}'''
    >>> sorted({n.op_type for n in lower_training(onnx.parser.parse_model(text)).graph.node})
    ['Identity', 'Mul']
    """
    own = read_model(model)
    lower_training_nodes(own)
    return give_back(model, own)


def has_training_nodes(model: ir.Model) -> bool:
    return any(node.domain == DOMAIN for node in model.graph)


def lower_training_nodes(model: ir.Model) -> None:
    """The same in place; a model without such nodes is left as it is."""
    if not has_training_nodes(model):
        return
    if model.opset_imports.get("", WORKING_OPSET) < WORKING_OPSET:
        upgrade_model(model, WORKING_OPSET)
    model.graph.opset_imports.setdefault("", WORKING_OPSET)
    while (node := next((n for n in model.graph if n.domain == DOMAIN), None)) is not None:
        _lower(model, node)  # in order: a Gradient may be of another one's result
    model.graph.opset_imports.pop(DOMAIN, None)
    model.ir_version = max(model.ir_version, lowest_ir_version(model))


def _lower(model: ir.Model, node: ir.Node) -> None:
    graph = Graph.adopt(model)
    inputs = [None if v is None else graph.tensor(v) for v in node.inputs]
    attributes = {a.name: attribute_value(a) for a in node.attributes.values()}
    with interpreter.using(graph):
        if node.op_type == "Gradient":
            made: Sequence[Tensor | None] = _gradient(graph, node, attributes["y"], attributes["xs"],
                                                      attributes.get("zs") or [], inputs)  # fmt: skip
        else:
            found = LOWERINGS.get((node.op_type, DOMAIN))
            if found is None:
                raise GradientError(f"no operator {DOMAIN}.{node.op_type} is known")
            made = list(found(Call(node.op_type, DOMAIN, inputs, attributes, len(node.outputs))))
        for old, new in zip(node.outputs, made, strict=False):
            if old.name and new is not None:
                _replace(model.graph, graph, old, new)
    model.graph.remove(node, safe=True)
    model.graph.sort()


def _replace(main: ir.Graph, graph: Graph, old: ir.Value, new: Tensor) -> None:
    name = old.name
    fresh = graph.apply("Identity", (new,), None, 1, "")[0].value
    assert fresh is not None
    for place, output in enumerate(main.outputs):
        if output is old:
            fresh.type, fresh.shape = old.type or fresh.type, old.shape or fresh.shape
            main.outputs[place] = fresh
    old.replace_all_uses_with(fresh)
    old.name = None
    fresh.name = name


def _gradient(
    graph: Graph, node: ir.Node, y: str, xs: Sequence[str], zs: Sequence[str], inputs: Sequence[Tensor | None]
) -> list[Tensor]:
    """The gradient of the sum of ``y`` with respect to each of ``xs``, all of xs and zs having the given values."""
    main = graph.graph
    values = {v.name: v for v in (*main.inputs, *main.initializers.values())}
    values.update({v.name: v for n in main for v in n.outputs})
    for name in (y, *xs, *zs):
        if name not in values:
            raise GradientError(
                f"Gradient node '{node.name}' names '{name}', which the model does not have."
                f"{did_you_mean(name, [n for n in values if n])}"
            )
    target = graph.tensor(values[y])
    named = [graph.tensor(values[n]) for n in (*xs, *zs)]
    at = dict(zip([t.key for t in named], [t for t in inputs if t is not None], strict=False))
    if any(key != t.key for key, t in at.items()):
        target = _at_other_values(target, {t.key: t for t in named}, at)
    places = [at.get(t.key, t) for t in named[: len(xs)]]
    wanted: dict[Key, Tensor] = {t.key: t for t in places}
    records = autograd.history([target], wanted)
    found = autograd.pullback(records, {target.key: ones_like(target)}, wanted)
    return [found[t.key] if t.key in found else zeros_like(t) for t in places]


def _at_other_values(y: Tensor, named: Mapping[Key, Tensor], at: Mapping[Key, Tensor]) -> Tensor:
    """What ``y`` would be if the named tensors had other values: the nodes between them once more."""
    seen: dict[int, Record] = {}
    stack = [y.record] if y.record is not None and y.key not in named else []
    while stack:
        record = stack.pop()
        if id(record) in seen:
            continue
        seen[id(record)] = record
        stack.extend(t.record for t in record.inputs if t is not None and t.record is not None and t.key not in named)
    env = dict(at)
    for record in sorted(seen.values(), key=lambda r: r.sequence):
        given = [None if t is None else env.get(t.key, t) for t in record.inputs]
        count = len(given) - record.captured
        if all(a is b for a, b in zip(given, record.inputs, strict=True)):
            continue
        if record.captured or record.op in ("If", "Loop", "Scan"):
            outer = {t.value: g for t, g in zip(record.inputs[count:], given[count:], strict=True)
                     if t is not None and t.value is not None}  # fmt: skip
            made: Sequence[Tensor] = emit_again(record.op, given[:count], record.attributes, outer)
        else:
            made = interpreter.apply(record.op, given, record.attributes, len(record.made), record.domain)
        env.update(zip([t.key for t in record.made], made, strict=True))
    return env.get(y.key, y)
