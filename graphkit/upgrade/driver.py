"""``upgrade_model``: walks a model and applies the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import onnx_ir as ir
from onnx import helper
from onnx_ir.passes.common import InlinePass

from graphkit.errors import ModelFileError
from graphkit.modelfile.versions import MAX_OPSETS
from graphkit.schemas import READABLE_OPSET
from graphkit.upgrade import control, elementwise, normalization, resize, shape, signal  # noqa: F401 (fill the table)
from graphkit.upgrade.adapters import ADAPTERS, Adapter, Names, Rewriter
from graphkit.upgrade.undeclared import undeclared_shapes

OLDEST = 7  # before it, broadcasting, batch normalization and the recurrent operators meant something else
NEWEST = MAX_OPSETS[""]
WORKING = 21  # the opset that the rules, passes and rewrites of graphkit are written for

Steps = dict[str, list[tuple[int, Adapter]]]


def upgrade_model(model: ir.Model, opset: int = WORKING) -> None:
    """Rewrite ``model`` in place from its own ``ai.onnx`` opset, 7 or newer, to ``opset`` (21 to 26).

    A model that is at ``opset`` or above is left as it is. The bodies of If, Loop and Scan and model-local functions
    are rewritten too, a function from the opset that it imports itself. Inputs, outputs, initializers and every value
    that stays keep their names; nodes keep their names and metadata, and a node that becomes several hands its metadata
    on.
    The IR version is raised where ``opset`` needs it; before IR 4 initializers were listed among the inputs and were
    constants all the same, so they are taken off that list, or the new IR version would let callers override them.

    >>> import onnx.parser
    >>> text = '<ir_version: 6, opset_import: ["": 9]> g (float[2] x) => (float[2, 1] y) {y = Unsqueeze<axes=[1]>(x)}'
    >>> model = ir.from_proto(onnx.parser.parse_model(text))
    >>> upgrade_model(model)
    >>> model.opset_imports[""], [node.op_type for node in model.graph], len(model.graph[-1].inputs)
    (21, ['Constant', 'Unsqueeze'], 2)

    Raises ModelFileError where the model's opset is older than 7 or newer than 28, or where a node uses what no newer
    operator offers (naming the node).
    """
    if not WORKING <= opset <= MAX_OPSETS[""]:
        raise ValueError(f"the working opset is {WORKING} to {MAX_OPSETS['']}, not {opset}")
    imported = [_check_imports(scope.opset_imports, what) for scope, what in _scopes(model)]
    opset = max(opset, imported[0] or 0)  # a function of a newer model is brought to the model's own opset
    if all(version is None or version >= opset for version in imported):
        return
    if 0 < model.ir_version < 4:
        inputs = [value for value in model.graph.inputs if not value.is_initializer()]
        model.graph.inputs.clear()
        model.graph.inputs.extend(inputs)
    _inline_parametrized(model, opset)
    names = Names([scope for scope, _ in _scopes(model)])
    shapes = undeclared_shapes(model)
    for scope, _ in _scopes(model):
        version = scope.opset_imports.get("")
        if version is not None and version < opset:
            _upgrade(scope, _steps(version, opset), names, shapes)
            scope.opset_imports[""] = opset
    model.ir_version = max(model.ir_version, helper.OP_SET_ID_VERSION_MAP["ai.onnx", opset])


def _scopes(model: ir.Model) -> Iterator[tuple[ir.Graph | ir.Function, str]]:
    yield model.graph, "the model"
    for function in model.functions.values():
        yield function, f"the model-local function {function.domain}::{function.name}"


def _check_imports(imports: dict[str, int], what: str) -> int | None:
    if "ai.onnx" in imports:  # the domain's long name
        imports.setdefault("", imports.pop("ai.onnx"))
    version = imports.get("")
    if version is not None and not OLDEST <= version <= READABLE_OPSET:
        remedy = "export it again at" if version < OLDEST else "export or convert it to"
        raise ModelFileError(
            f"{what} uses opset {version} of ai.onnx; graphkit reads {OLDEST} to {READABLE_OPSET}: "
            f"{remedy} an opset in that range"
        )
    return version


def _steps(version: int, opset: int) -> Steps:
    """The entries that lie between two versions, in order, by operator."""
    steps: Steps = defaultdict(list)
    for (operator, since), function in sorted(ADAPTERS.items(), key=lambda item: item[0]):
        if version < since <= opset:
            steps[operator].append((since, function))
    return steps


def _upgrade(graph: ir.Graph | ir.Function, steps: Steps, names: Names, shapes: Mapping[ir.Value, ir.Shape]) -> None:
    rewriter = Rewriter(names, shapes)
    for node in list(graph):
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                _upgrade(attribute.as_graph(), steps, names, shapes)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for nested in attribute.as_graphs():
                    _upgrade(nested, steps, names, shapes)
        if node.domain == "":
            node.version = None
            rewriter.visit(node)
            _adapt(node, steps, rewriter)


def _adapt(node: ir.Node, steps: Steps, rewriter: Rewriter) -> None:
    reached = 0
    while True:
        # An entry may have renamed the operator (Upsample to Resize), so the next one is looked up by today's name.
        following = next((step for step in steps.get(node.op_type, ()) if step[0] > reached), None)
        if following is None:
            return
        reached, function = following
        kept = function(node, rewriter)
        if kept is None:
            return
        node = kept


def _inline_parametrized(model: ir.Model, opset: int) -> None:
    """Inline the functions in which a node to rewrite takes an attribute from the function's caller.

    The table turns attributes into inputs and decides by their values, and such a value is known at each call only.
    """
    wanted = {name for name, function in model.functions.items() if _is_parametrized(function, opset)}
    if not wanted:
        return
    version = model.graph.opset_imports.get("")
    for name in wanted:
        own = model.functions[name].opset_imports.get("")
        if own != version:
            raise ModelFileError(
                f"the model-local function {name[0]}::{name[1]} is of opset {own}, its model of opset {version}, and "
                "its nodes take attributes from the caller; write both at one opset, or inline the function"
            )
    InlinePass(criteria=lambda function: function.identifier() in wanted)(model)


def _is_parametrized(function: ir.Function, opset: int) -> bool:
    version = function.opset_imports.get("")
    if version is None or version >= opset:
        return False
    steps = _steps(version, opset)
    return any(
        node.domain == "" and node.op_type in steps and any(a.is_ref() for a in node.attributes.values())
        for node in function.all_nodes()
    )
