"""``lower_model``: walks a model and applies the table downward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from graphkit.errors import OperatorError
from graphkit.graph import Graph
from graphkit.inference import Type
from graphkit.modelfile import lowest_ir_version
from graphkit.schemas import WITHOUT_SCHEMA
from graphkit.source import describe
from graphkit.upgrade import lower_math, lower_normalization, lower_resize, lower_shape  # noqa: F401 (fill the table)
from graphkit.upgrade.adapters import Names
from graphkit.upgrade.compatible import MORE_OPTIONS, MORE_TYPES
from graphkit.upgrade.driver import OLDEST, WORKING, upgrade_model
from graphkit.upgrade.lower_body import expand
from graphkit.upgrade.lower_fit import fit, versions, widen
from graphkit.upgrade.lower_table import LOWERERS, Cannot, Lowering


@dataclass(frozen=True)
class _Problem:
    operator: str
    node: str
    where: str  # the user's line, or nothing
    reason: str


def lower_model(model: ir.Model, opset: int) -> None:
    """Rewrite ``model`` in place to an older ``ai.onnx`` opset, 7 or newer, meaning exactly the same.

    A model below opset 21 is first brought there, and one that is at ``opset`` is left as it is. The bodies of If, Loop
    and Scan are rewritten too. Model-local functions are inlined: what reads old opsets reads no functions. Inputs,
    outputs, initializers and metadata are kept, and every value that stays keeps its name; a node that becomes several
    hands its metadata on. The IR version becomes the lowest that serves.

    >>> import onnx.parser
    >>> text = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float y) {y = ReduceMax<keepdims=0>(x)}'
    >>> model = ir.from_proto(onnx.parser.parse_model(text))
    >>> lower_model(model, 13)
    >>> model.opset_imports[""], model.ir_version
    (13, 7)

    Raises OperatorError that names every node that the older opset cannot express, the user's lines where they are
    known, and the lowest opset that serves; the model is then as it was.
    """
    source = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    if source is None or source == opset:
        return
    if not OLDEST <= opset < max(source, WORKING):
        raise ValueError(f"a model of opset {source} can be lowered to {OLDEST} or newer, not to {opset}")
    work = model.clone()
    upgrade_model(work)
    source = work.opset_imports[""]
    if work.functions:
        InlinePass()(work)
    types = _known_types(work)
    lowered, problems = _lowered(work, source, opset, types)
    if problems:
        raise OperatorError(_message(work, source, opset, types, problems))
    lowered.ir_version = max(3, lowest_ir_version(lowered))
    model.graph = lowered.graph
    model.functions.clear()
    model.ir_version = lowered.ir_version


def _known_types(model: ir.Model) -> list[Type | None]:
    """What inference finds of each value of the model, in the order of ``_values``."""
    copy = model.clone()
    graph = Graph.adopt(copy)
    unknown: set[ir.Value] = set()
    declared = {value for value in _values(model.graph) if value.type is not None}
    found: list[Type | None] = []
    for original, value in zip(_values(model.graph), _values(copy.graph), strict=True):
        node = value.producer()
        if (
            node is not None
            and original not in declared
            and (node.domain != "" or any(given in unknown for given in node.inputs))
        ):
            unknown.add(value)  # an operator of another library: nobody knows its types, so nothing is built on them
            found.append(None)
        else:
            found.append(_type_in(graph, value))
    return found


def _type_in(graph: Graph, value: ir.Value) -> Type | None:
    from graphkit.body_types import body_of

    owner = value.graph
    if owner is graph.graph or not isinstance(owner, ir.Graph):
        return graph.type_of(value)
    inner = body_of(owner)
    if inner is not None:
        return inner.type_of(value)
    return graph._declared(value) if value.type is not None else None


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value of a graph and of the bodies in it, in an order that clones share."""
    yield from graph.inputs
    yield from (value for value in graph.initializers.values() if not value.is_graph_input())
    for node in graph:
        yield from node.outputs
        for body in _bodies(node):
            yield from _values(body)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _lowered(
    model: ir.Model, source: int, opset: int, known: list[Type | None], only: Collection[int] | None = None
) -> tuple[ir.Model, dict[int, _Problem]]:
    """A lowered copy of the model, and what stands in the way by the place of the node in the model."""
    result = model.clone()
    types = {v: t for v, t in zip(_values(result.graph), known, strict=True) if t is not None}
    places = {node: place for place, node in enumerate(_nodes(result.graph))}
    dead = {value for value in _values(result.graph) if not value.uses() and not value.is_graph_output()}
    names = Names([result.graph])
    problems: dict[int, _Problem] = {}
    for graph in [result.graph, *(body for node in places for body in _bodies(node))]:
        lowering = Lowering(source, opset, names, types, lambda node: _lower(node, lowering))  # noqa: B023  # used now
        for node in list(graph):
            place = places[node]
            if node.domain == "" and (only is None or place in only):
                node.version = None
                operator = node.op_type
                try:
                    lowering.visit(node)
                except Cannot as cannot:
                    location = node.meta.get("graphkit.source")
                    where = "" if location is None else describe(location)
                    problems[place] = _Problem(operator, node.name or "", where, str(cannot))
    if not problems:
        _drop_constants(result.graph, dead)
    result.graph.opset_imports.pop("ai.onnx", None)
    result.graph.opset_imports[""] = opset
    return result, problems


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in graph:
        yield node
        for body in _bodies(node):
            yield from _nodes(body)


def _lower(node: ir.Node, lowering: Lowering) -> None:
    if node.op_type in WITHOUT_SCHEMA:  # ONNX Runtime's own, the same at every opset
        return
    if not versions(node.op_type):
        raise Cannot("ai.onnx has no such operator")
    if widen(node, lowering):
        return
    reached = lowering.source + 1
    while True:
        # An entry may have renamed the operator (Resize to Upsample), so the next one is looked up by today's name.
        changes = versions(node.op_type)
        version = next((v for v in changes if lowering.target < v < reached), None)
        if version is None:
            break
        reached = version
        entry = LOWERERS.get((node.op_type, version))
        if entry is not None:
            if entry(node, lowering) is None:
                return
        elif version == changes[-1]:
            expand(node, lowering)
            return
        elif (node.op_type, version) not in MORE_TYPES | MORE_OPTIONS:
            raise Cannot(f"what opset {version} changed about it is not known here")
    fit(node, lowering)


def _drop_constants(graph: ir.Graph, dead: Collection[ir.Value]) -> None:
    """Take out the constants that became attributes; what nobody used before is not ours to remove."""
    for node in list(graph):
        for body in _bodies(node):
            _drop_constants(body, dead)
    for node in reversed(list(graph)):
        value = node.outputs[0] if node.outputs else None
        if node.op_type == "Constant" and node.domain == "" and value is not None and _unused(value, dead):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if _unused(value, dead) and not value.is_graph_input():
            del graph.initializers[name]


def _unused(value: ir.Value, dead: Collection[ir.Value]) -> bool:
    return not value.uses() and not value.is_graph_output() and value not in dead


def _message(model: ir.Model, source: int, opset: int, types: list[Type | None], problems: dict[int, _Problem]) -> str:
    needed = dict.fromkeys(problems, source)
    left = set(problems)
    for tried in range(opset + 1, source):
        still = set(_lowered(model, source, tried, types, only=left)[1])
        for place in left - still:
            needed[place] = tried
        left &= still
        if not left:
            break
    groups: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    for place, problem in problems.items():
        named = f"node '{problem.node}'" if problem.node else "a node without a name"
        at = f"{problem.where} ({named})" if problem.where else named
        groups[problem.operator, needed[place], problem.reason].append(at)
    asked = f", and opset {opset} was asked for"
    parts = []
    for (operator, version, reason), nodes in groups.items():
        parts.append(f"{operator} at {', '.join(nodes)} needs opset {version}{asked}: {reason}. ")
        asked = ""
    return f"{''.join(parts)}Write opset={max(needed.values())} or newer."
