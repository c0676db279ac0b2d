"""Whether a graph hangs together: what every node reads is made somewhere, and everything has a name that is text.

onnx_ir reads a graph that does not, with a warning on stderr, and stumbles over it later; a file with a few damaged
bytes is the usual cause.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import onnx_ir as ir

from graphkit.errors import ModelFileError
from graphkit.modelfile.protos import every_graph

__all__ = ["check_well_formed", "quiet_reading"]


def check_well_formed(model: ir.Model, where: str) -> None:
    """Raise ``ModelFileError`` naming the first node or output that is not connected, or a name that is no text."""
    _check_names(where, (model.producer_name, model.producer_version, model.domain))
    for graph in every_graph(model.graph):
        _check_names(where, (graph.name, *graph.initializers, *(value.name for value in graph.inputs)))
        for value in graph.outputs:
            _check_names(where, (value.name,))
            if _is_loose(value):
                raise ModelFileError(f"{where} is damaged: nothing makes its output '{value.name}'")
        for node in graph:
            _check_node(node, where)


@contextlib.contextmanager
def quiet_reading() -> Iterator[None]:
    """Keep onnx_ir's warnings about such graphs off stderr: ``check_well_formed`` raises what they say."""
    logger = logging.getLogger("onnx_ir.serde")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_node(node: ir.Node, where: str) -> None:
    _check_names(where, (node.name, node.op_type, node.domain, *node.attributes, *(v.name for v in node.outputs)))
    for value in node.inputs:
        if value is not None and _is_loose(value):
            loose = f"reads '{value.name}', which nothing makes"
            raise ModelFileError(f"{where} is damaged: node {_described(node)} {loose}")
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.UNDEFINED and not attribute.is_ref():
            raise ModelFileError(
                f"{where} is damaged: the attribute '{attribute.name}' of node {_described(node)} has no type"
            )


def _described(node: ir.Node) -> str:
    return f"'{node.name}' ({node.op_type})" if node.name else f"{node.op_type} (without a name)"


def _is_loose(value: ir.Value) -> bool:
    return value.producer() is None and not value.is_graph_input() and not value.is_initializer()


def _check_names(where: str, names: tuple[object, ...]) -> None:
    for name in names:
        if name is not None and not isinstance(name, str):
            raise ModelFileError(f"{where} is damaged: it holds the name {name!r}, which is not text")
