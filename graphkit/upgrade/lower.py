"""``lower_model``: walks a model and applies the table downward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from graphkit.errors import ModelFileError, OperatorError
from graphkit.graph import Graph
from graphkit.inference import Type
from graphkit.modelfile import lowest_ir_version
from graphkit.newer import PREVIEW, WITHOUT_KERNEL
from graphkit.schemas import WITHOUT_SCHEMA
from graphkit.source import describe
from graphkit.statistics import keep_apart
from graphkit.upgrade import (  # noqa: F401 (fill the table)
    lower_data,
    lower_math,
    lower_newer,
    lower_normalization,
    lower_resize,
    lower_shape,
)
from graphkit.upgrade.adapters import Names
from graphkit.upgrade.compatible import BEYOND, MORE_OPTIONS, MORE_TYPES
from graphkit.upgrade.driver import NEWEST, OLDEST, WORKING, upgrade_model
from graphkit.upgrade.layout import time_major
from graphkit.upgrade.lower_body import expand
from graphkit.upgrade.lower_fit import fit, versions, widen
from graphkit.upgrade.lower_newer import write_out
from graphkit.upgrade.lower_table import LOWERERS, Cannot, Lowering

_COMPATIBLE = MORE_TYPES | MORE_OPTIONS | BEYOND
_OWN = ("", PREVIEW)  # domains of which every operator is known
_SHOWN = 50  # nodes of one kind that an error names


@dataclass(frozen=True)
class _Problem:
    operator: str
    node: str
    where: str  # the user's line, or nothing
    reason: str

    @property
    def place(self) -> str:
        named = f"node '{self.node}'" if self.node else "a node without a name"
        return f"{self.where} ({named})" if self.where else named


def lower_model(model: ir.Model, opset: int | None) -> None:
    """Rewrite ``model`` in place to an older ``ai.onnx`` opset, 7 or newer, meaning exactly the same.

    A model below opset 21 is first brought there, and one that is at ``opset`` is left as it is, but for what no
    runtime loads at it; so is any model for an ``opset`` of None. The bodies of If, Loop
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
    source = _opset_of(model)
    if source is None:
        return
    if has_no_kernel(model):
        make_runnable(model)
        source = min(source, NEWEST)
    if opset is None or source == opset:
        return
    if not OLDEST <= opset < max(source, WORKING):
        raise ValueError(f"a model of opset {source} can be lowered to {OLDEST} or newer, not to {opset}")
    work = _prepared(model, opset)
    types = _known_types(work)
    problems = _lower_graphs(work, opset, types)
    if problems:
        raise OperatorError(_message(model, opset, types, problems))
    _take(model, work)


def make_runnable(model: ir.Model, where: str = "the model") -> None:
    """Write out, in place, what ONNX Runtime does not load: opsets 27 and 28, FlexAttention, Swish of opset 25 and 26.

    The model is then of opset 26, or of its own where that is older, and its model-local functions are inlined.

    >>> import onnx.parser
    >>> text = '<ir_version: 13, opset_import: ["": 28]> g (float[N] a, float[N] b) => (float[N] y) {y = SwiGLU(a, b)}'
    >>> model = ir.from_proto(onnx.parser.parse_model(text))
    >>> make_runnable(model)
    >>> model.opset_imports[""], [node.op_type for node in model.graph]
    (26, ['Sigmoid', 'Mul', 'Mul'])

    Raises ModelFileError that names every node which has no form there, as one of an element type that came later.
    """
    if not model.functions and not _has_newer_forms(model):
        model.graph.opset_imports[""] = NEWEST
        model.ir_version = max(3, lowest_ir_version(model))
        return
    _level(model)
    work = _prepared(model, NEWEST)
    opset = min(work.opset_imports.setdefault("", NEWEST), NEWEST)
    problems = _lower_graphs(work, opset, _known_types(work))
    if problems:
        parts = [f"{p.operator} at {p.place}: {p.reason}" for p in list(problems.values())[:_SHOWN]]
        raise ModelFileError(
            f"{where} is of opset {max(_opsets(model))}; ONNX Runtime loads up to {NEWEST}, which has no words for "
            f"{'; '.join(parts)}"
        )
    work.opset_imports.pop(PREVIEW, None)
    _take(model, work)


def has_no_kernel(model: ir.Model) -> bool:
    """Whether a model is of a newer opset than the runtime loads, or holds operators that it does not at that opset."""
    opset = _opset_of(model) or 0
    if max(_opsets(model), default=0) > NEWEST or PREVIEW in model.opset_imports:
        return True
    if opset < min(WITHOUT_KERNEL.values()):
        return False
    return any(node.op_type in WITHOUT_KERNEL and not node.domain for node in model.graph.all_nodes())


def _opsets(model: ir.Model) -> list[int]:
    """Those of a model and of its functions."""
    imports = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    return [found[name] for found in imports for name in ("", "ai.onnx") if name in found]


def _level(model: ir.Model) -> None:
    """Bring a model to the opset of a function that is newer than what the runtime loads."""
    highest = max(_opsets(model), default=0)
    if not model.functions or highest <= NEWEST or _opset_of(model) == highest:
        return
    upgrade_model(model, NEWEST)
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        if scope.opset_imports.get("", highest) < highest:
            scope.opset_imports[""] = highest  # what came after reads a node of before as it stands
    model.graph.opset_imports.setdefault("", highest)


def _has_newer_forms(model: ir.Model) -> bool:
    """Whether any node of a model may say more than it would at the newest opset that the runtime loads."""
    if PREVIEW in model.opset_imports or "" not in model.opset_imports:
        return True
    kinds = {node.op_type for node in model.graph.all_nodes() if not node.domain}
    return any(kind in WITHOUT_KERNEL or max(versions(kind), default=NEWEST + 1) > NEWEST for kind in kinds)


def _opset_of(model: ir.Model) -> int | None:
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx"))


def _take(model: ir.Model, work: ir.Model) -> None:
    model.graph = work.graph
    model.functions.clear()
    model.ir_version = max(3, lowest_ir_version(work))


def _prepared(model: ir.Model, opset: int) -> ir.Model:
    """A copy at the working opset or above, without functions, and without layouts that the opset lacks."""
    copy = model.clone()
    upgrade_model(copy)
    if copy.functions:
        InlinePass()(copy)
    if opset < 14:
        time_major(copy)
    keep_apart(copy.graph)  # as adopting the graph for its types would do, after its values have been counted
    return copy


def _known_types(model: ir.Model) -> list[Type | None]:
    """What inference finds of each value of the model, in the order of ``_values``."""
    values = list(_values(model.graph))
    declared = [(value.type, value.shape) for value in values]
    graph = Graph.adopt(model)
    unknown: set[ir.Value] = set()
    found: list[Type | None] = []
    for value, (type_, _) in zip(values, declared, strict=True):
        node = value.producer()
        foreign = node is not None and node.domain not in _OWN
        if node is not None and type_ is None and (foreign or any(given in unknown for given in node.inputs)):
            unknown.add(value)  # an operator of another library: nobody knows its types, so nothing is built on them
            found.append(None)
        else:
            found.append(_type_in(graph, value))
    for value, (type_, shape) in zip(values, declared, strict=True):  # the file declares what it declared
        value.type, value.shape = type_, shape
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


def _lower_graphs(
    model: ir.Model, opset: int, known: list[Type | None], only: Collection[int] | None = None
) -> dict[int, _Problem]:
    """Lower the nodes of a model in place; what stands in the way, by the node's place in the model."""
    source = model.opset_imports[""]
    types = {v: t for v, t in zip(_values(model.graph), known, strict=True) if t is not None}
    places = {node: place for place, node in enumerate(_nodes(model.graph))}
    dead = {value for value in _values(model.graph) if not value.uses() and not value.is_graph_output()}
    names = Names([model.graph])
    problems: dict[int, _Problem] = {}
    for graph in _rewritten(model.graph):
        lowering = Lowering(source, opset, names, types, lambda node: _lower(node, lowering))  # noqa: B023  # used now
        for node in list(graph):
            place = places[node]
            if node.domain in _OWN and (only is None or place in only):
                node.version = None
                operator = node.op_type
                try:
                    lowering.visit(node)
                except Cannot as cannot:
                    location = node.meta.get("graphkit.source")
                    where = "" if location is None else describe(location)
                    problems[place] = _Problem(operator, node.name or "", where, str(cannot))
    if not problems:
        _drop_constants(model.graph, dead)
    model.graph.opset_imports[""] = opset
    return problems


def _rewritten(graph: ir.Graph) -> list[ir.Graph]:
    """A graph and the bodies in it; but not those of an operator that takes them apart when it is written out."""
    bodies = [body for node in graph if node.domain != PREVIEW for body in _bodies(node)]
    return [graph, *(inner for body in bodies for inner in _rewritten(body))]


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in graph:
        yield node
        for body in _bodies(node):
            yield from _nodes(body)


def _lower(node: ir.Node, lowering: Lowering) -> None:
    if node.op_type in WITHOUT_SCHEMA:  # ONNX Runtime's own, the same at every opset
        return
    if node.domain == PREVIEW or WITHOUT_KERNEL.get(node.op_type, lowering.target + 1) <= lowering.target:
        write_out(node, lowering)
        return
    if not versions(node.op_type):
        raise Cannot("ai.onnx has no such operator")
    if not any(lowering.target < version <= lowering.source for version in versions(node.op_type)):
        return
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
        elif (node.op_type, version) not in _COMPATIBLE:
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


def _message(model: ir.Model, opset: int, types: list[Type | None], problems: dict[int, _Problem]) -> str:
    source = max(model.opset_imports.get("", WORKING), WORKING)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, problem in problems.items():
        groups[problem.operator, problem.reason].append(place)
    # One node of each kind is tried at every opset, and all of them at the one that is said to serve.
    needed = dict.fromkeys(groups, source)
    left = set(groups)
    for tried in range(opset + 1, source):
        still = _lower_graphs(_prepared(model, tried), tried, types, only={groups[kind][0] for kind in left})
        solved = {kind for kind in left if groups[kind][0] not in still}
        needed.update(dict.fromkeys(solved, tried))
        left -= solved
        if not left:
            break
    lowest = max(needed.values())
    while lowest < source and _lower_graphs(_prepared(model, lowest), lowest, types, only=problems.keys()):
        lowest += 1
    asked = f", and opset {opset} was asked for"
    parts = []
    for (operator, reason), places in groups.items():
        shown = [problems[place].place for place in places[:_SHOWN]]
        if len(places) > _SHOWN:
            shown.append(f"{len(places) - _SHOWN:,} more")
        parts.append(f"{operator} at {', '.join(shown)} needs opset {needed[operator, reason]}{asked}: {reason}. ")
        asked = ""
    return f"{''.join(parts)}Write opset={lowest} or newer."
