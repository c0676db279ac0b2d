"""Scaling and adding inside a matrix product: above all, the update of a weight where its gradient is made.

A Gemm computes alpha A B + beta C, so ``w - rate * Gemm(dy, x)`` and ``momentum * b + Gemm(dy, x)`` are one Gemm each:
two passes over the weight fewer. Only a gradient that nothing else reads can go this way.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

__all__ = ["fuse_updates"]


def fuse_updates(graph: ir.Graph) -> int:
    """Rewrite what can be, in place; returns how many products took an update in."""
    done = 0
    for node in list(graph):
        if node.domain == "" and node.op_type in ("Add", "Sub") and node.graph is graph:
            done += _fuse(graph, node)
        elif node.domain == "" and node.op_type == "Gemm" and len(node.inputs) == 3:
            done += _scale_addend(graph, node)
        elif node.domain == "" and node.op_type == "Mul":
            done += _scale_product(graph, node)
    return done


def _scale_product(graph: ir.Graph, node: ir.Node) -> bool:
    """A product times a constant, perhaps with its shape changed in between: the constant is part of its alpha."""
    scaled = _scaled(node.outputs[0])
    if scaled is None or scaled[2] is None or node.outputs[0].is_graph_output():
        return False
    matrix, factor, _ = scaled
    value: ir.Value | None = matrix
    while value is not None and _read_once(value):
        gemm = value.producer()
        if gemm is None or gemm.domain or gemm.op_type not in ("Gemm", "Reshape", "Transpose"):
            return False
        if gemm.op_type == "Gemm":
            for key in ("alpha", "beta") if len(gemm.inputs) == 3 else ("alpha",):
                gemm.attributes[key] = ir.AttrFloat32(key, factor * gemm.attributes.get_float(key, 1.0))
            ir.convenience.replace_all_uses_with(node.outputs[0], matrix)
            graph.remove(node, safe=True)
            return True
        value = gemm.inputs[0]
    return False


def _scale_addend(graph: ir.Graph, gemm: ir.Node) -> bool:
    """A product with ``momentum * b`` added already: the factor is its beta."""
    addend = _scaled(gemm.inputs[2])
    if addend is None:
        return False
    matrix, factor, scaling = addend
    if scaling is None or not _read_once(scaling.outputs[0]):
        return False
    gemm.replace_input_with(2, matrix)
    gemm.attributes["beta"] = ir.AttrFloat32("beta", factor * gemm.attributes.get_float("beta", 1.0))
    graph.remove(scaling, safe=True)
    return True


def _fuse(graph: ir.Graph, node: ir.Node) -> bool:
    """One Add or Sub: of a scaled product that nobody else reads, and a scaled matrix of its shape."""
    for place in (1, 0):
        taken = _scaled(node.inputs[place])
        added = _scaled(node.inputs[1 - place])
        if taken is None or added is None:
            continue
        product, alpha, between = taken
        other, beta, scaling = added
        gemm = product.producer()
        if (
            gemm is None or gemm.op_type != "Gemm" or gemm.domain or len([v for v in gemm.inputs if v is not None]) != 2
            or other.producer() is gemm or gemm.graph is not graph or not _same_matrix(product, other)
            or not _read_once(product) or (between is not None and not _read_once(between.outputs[0]))
        ):  # fmt: skip
            continue
        if scaling is not None and not _read_once(scaling.outputs[0]):
            other, beta, scaling = scaling.outputs[0], 1.0, None
        if node.op_type == "Sub":
            alpha, beta = (-alpha, beta) if place == 1 else (alpha, -beta)
        attributes: dict[str, Any] = {key: 1 for key in ("transA", "transB") if gemm.attributes.get_int(key, 0)}
        attributes["alpha"] = alpha * gemm.attributes.get_float("alpha", 1.0)
        attributes["beta"] = beta
        fused = ir.Node("", "Gemm", [gemm.inputs[0], gemm.inputs[1], other], name=gemm.name, num_outputs=1,
                        attributes=[ir.convenience.convert_attribute(k, v) for k, v in attributes.items()])  # fmt: skip
        old, new = node.outputs[0], fused.outputs[0]
        new.type, new.shape = old.type, old.shape
        graph.insert_before(node, fused)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        new.name, old.name = old.name, None
        graph.remove([n for n in (node, between, gemm, scaling) if n is not None], safe=True)
        return True
    return False


def _scaled(value: ir.Value | None) -> tuple[ir.Value, float, ir.Node | None] | None:
    """A value as a matrix times a constant: the matrix, the constant, and the Mul between them if there is one."""
    if value is None:
        return None
    node = value.producer()
    if node is not None and node.op_type == "Mul" and not node.domain:
        for place in (0, 1):
            factor, matrix = _constant(node.inputs[place]), node.inputs[1 - place]
            if factor is not None and matrix is not None:
                return matrix, factor, node
    return value, 1.0, None


def _constant(value: ir.Value | None) -> float | None:
    if value is None or value.is_graph_input() or value.const_value is None or value.const_value.size != 1:
        return None
    number = float(value.const_value.numpy().reshape(()))
    return number if math.isfinite(number) else None


def _same_matrix(a: ir.Value, b: ir.Value) -> bool:
    if a.shape is None or b.shape is None or len(a.shape) != 2 or a.dtype != b.dtype:
        return False
    return a.shape.is_static() and b.shape.is_static() and tuple(a.shape) == tuple(b.shape)


def _read_once(value: ir.Value) -> bool:
    return not value.is_graph_output() and len(value.uses()) == 1
