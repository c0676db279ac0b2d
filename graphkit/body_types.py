"""Bodies of If, Loop and Scan that exist: read as Graphs, and the types that come out of them.

A state may change its shape from one iteration to the next. It is assumed to keep its initial dims, the body is read
with them, and what does not come out as it went in is given up, until an iteration keeps what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from graphkit import dims, dtypes
from graphkit.conversion import constant_array
from graphkit.core import Tensor
from graphkit.dims import Dims
from graphkit.graph import Graph
from graphkit.inference import Type

_KEY = "graphkit.body"
BODIES = frozenset({"If", "Loop", "Scan"})


def keep(body: Graph) -> Graph:
    body.graph.meta[_KEY] = body
    return body


def body_of(graph: ir.Graph) -> Graph | None:
    """The Graph of a body that was traced or read before."""
    found = graph.meta.get(_KEY)
    return found if isinstance(found, Graph) and found.graph is graph else None


def forget(body: ir.Graph) -> None:
    """Let go of the Graph of a body that moves to another graph: it is read anew there."""
    body.meta.pop(_KEY, None)


def type_of(t: Tensor) -> Type:
    """What is known of a traced tensor; of an eager one, its dtype and dims."""
    if t.graph is not None and t.value is not None:
        return t.graph.type_of(t.value)
    return Type(t.dtype, t.dims)


def imply(op: str, attributes: Mapping[str, Any], types: Sequence[Type | None]) -> None:
    """Note the rank of an input that the operator takes in no other, where a branch of If left it unknown."""
    if op == "Transpose":
        x, perm = types[0], attributes.get("perm")
        if x is not None and x.dims is None and x.proto is None and perm is not None:
            x.dims = tuple(dims.anonymous() for _ in perm)
        return
    if op not in ("LSTM", "GRU", "RNN", "Conv", "ConvTranspose"):
        return
    x, w = types[0], types[1]
    if op in ("LSTM", "GRU", "RNN"):
        r = types[2]
        size = r.dims[2] if r is not None and r.dims is not None else dims.anonymous()
        for state in types[5:7]:
            if state is not None and state.dims is None:
                state.dims = (dims.anonymous(), dims.anonymous(), size)
    if x is None or x.dims is not None or w is None or w.dims is None:
        return
    anonymous = tuple(dims.anonymous() for _ in w.dims)
    if op == "Conv":
        channels, groups = w.dims[1], int(attributes.get("group", 1))
        middle = channels * groups if isinstance(channels, int) else anonymous[1]
        x.dims = (anonymous[0], middle, *anonymous[2:])
    elif op == "ConvTranspose":
        x.dims = (anonymous[0], w.dims[0], *anonymous[2:])
    else:
        x.dims = (anonymous[0], anonymous[1], w.dims[2])


def merge(a: Dims | None, b: Dims | None) -> Dims | None:
    """The dims of a value that has either of two shapes."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if dims.same(x, y) else dims.anonymous() for x, y in zip(a, b, strict=True))


def weakened(assumed: Dims | None, found: Dims | None, loose: set[str]) -> Dims | None:
    """What an iteration keeps of a state's assumed dims; the others get names of their own, kept in ``loose``."""
    if assumed is None or found is None or len(assumed) != len(found):
        return None
    result = []
    for x, y in zip(assumed, found, strict=True):
        if x in loose or dims.same(x, y):
            result.append(x)
            continue
        name = dims.anonymous()
        loose.add(name)
        result.append(name)
    return tuple(result)


def without(known: Dims | None, axis: int) -> Dims | None:
    """Dims without one axis."""
    if known is None or not known:
        return None
    place = axis % len(known)
    return known[:place] + known[place + 1 :]


def infer_bodies(
    graph: Graph, node: ir.Node, attributes: Mapping[str, Any], inputs: Sequence[Type | None]
) -> list[Type | None] | None:
    """The types of the outputs of If, Loop or Scan, read off their bodies (which are read now, if they were not)."""
    if node.op_type == "If":
        return _infer_if(graph, node, attributes, inputs)
    body = attributes.get("body")
    if not isinstance(body, ir.Graph):
        return None
    if node.op_type == "Loop":
        return _infer_loop(graph, node, body, inputs)
    return _infer_scan(graph, node, attributes, body, inputs)


def _infer_if(
    graph: Graph, node: ir.Node, attributes: Mapping[str, Any], inputs: Sequence[Type | None]
) -> list[Type | None]:
    branches = []
    for name in ("then_branch", "else_branch"):
        branch = attributes[name]
        known_body = body_of(branch)
        if known_body is None or known_body.parent is not graph:
            known_body = read_body(graph, branch, [])
        branches.append(known_body)
    then, other = ([b.type_of(v) for v in b.graph.outputs] for b in branches)
    known = inputs[0].array if inputs and inputs[0] is not None else None
    if known is None and node.inputs and node.inputs[0] is not None:
        known = constant_array(node.inputs[0])
    if known is not None and known.size == 1:
        return [Type(t.dtype, t.dims, proto=t.proto) for t in (then if known.item() else other)]
    return [
        Type(a.dtype, merge(a.dims, b.dims), proto=_merged(a.proto, b.proto)) for a, b in zip(then, other, strict=True)
    ]


def _merged(a: onnx.TypeProto | None, b: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """The type of a sequence or optional of either of two types: of its elements' dims those that are the same."""
    if a is None or b is None or a == b:
        return a if a is not None else b
    result = onnx.TypeProto()
    result.CopyFrom(a)
    first, second = result, b
    while (kind := first.WhichOneof("value")) in ("sequence_type", "optional_type"):
        first = getattr(first, kind).elem_type
        second = getattr(second, kind).elem_type
    if kind == "tensor_type":
        x, y = first.tensor_type, second.tensor_type
        if not y.HasField("shape") or len(x.shape.dim) != len(y.shape.dim):
            x.ClearField("shape")
        for d, e in zip(x.shape.dim, y.shape.dim, strict=False) if x.HasField("shape") else ():
            if d != e:
                d.Clear()
    return result


def _infer_loop(graph: Graph, node: ir.Node, body: ir.Graph, inputs: Sequence[Type | None]) -> list[Type | None]:
    states = [t or Type(dtypes.FLOAT32, None) for t in inputs[2:]]
    fixed = [Type(dtypes.INT64, ()), Type(dtypes.BOOL, ())]
    inner = _settled(graph, body, fixed, states, [], 1)
    results = [inner.type_of(v) for v in body.outputs]
    n = len(states)
    carried: list[Type | None] = [Type(t.dtype, t.dims, proto=t.proto) for t in results[1 : 1 + n]]
    for k, state in enumerate(states):  # with no iteration a state comes out as it went in
        known = carried[k]
        if known is not None:
            known.dims = merge(known.dims, state.dims)
            known.proto = _merged(known.proto, state.proto)
    return [*carried, *(Type(t.dtype, _stacked(t.dims, dims.anonymous(), 0)) for t in results[1 + n :])]


def _infer_scan(
    graph: Graph, node: ir.Node, attributes: Mapping[str, Any], body: ir.Graph, inputs: Sequence[Type | None]
) -> list[Type | None]:
    count = int(attributes["num_scan_inputs"])
    n = len(node.inputs) - count
    axes = attributes.get("scan_input_axes") or [0] * count
    types = [t or Type(dtypes.FLOAT32, None) for t in inputs[: len(node.inputs)]]
    elements = [Type(t.dtype, without(t.dims, a)) for t, a in zip(types[n:], axes, strict=True)]
    inner = _settled(graph, body, [], types[:n], elements, 0)
    results = [inner.type_of(v) for v in body.outputs]
    length: Any = next((t.dims[a % len(t.dims)] for t, a in zip(types[n:], axes, strict=True) if t.dims), None)
    if length is None:
        length = dims.anonymous()
    placed = attributes.get("scan_output_axes") or [0] * (len(results) - n)
    stacked: list[Type | None] = [
        Type(t.dtype, _stacked(t.dims, length, a)) for t, a in zip(results[n:], placed, strict=True)
    ]
    return [*(Type(t.dtype, t.dims) for t in results[:n]), *stacked]


def _stacked(known: Dims | None, length: Any, axis: int) -> Dims | None:
    if known is None:
        return None
    place = axis % (len(known) + 1)
    return (*known[:place], length, *known[place:])


def _settled(
    graph: Graph, body: ir.Graph, before: Sequence[Type], states: Sequence[Type], after: Sequence[Type], skip: int
) -> Graph:
    """The body read with the dims of its states' initial values, or with what of them every iteration keeps."""
    found = body_of(body)
    if found is not None and found.parent is graph:
        return found
    assumed = [t.dims for t in states]
    loose: set[str] = set()
    while True:
        types = [Type(t.dtype, d, proto=t.proto) for t, d in zip(states, assumed, strict=True)]
        inner = read_body(graph, body, [*before, *types, *after])
        results = [inner.type_of(v).dims for v in body.outputs[skip : skip + len(states)]]
        kept = [weakened(a, r, loose) for a, r in zip(assumed, results, strict=True)]
        if kept == assumed:
            return inner
        assumed = kept


def read_body(parent: Graph, body: ir.Graph, inputs: Sequence[Type]) -> Graph:
    """A Graph around a body that exists, with a Record for every node."""
    inner = Graph(body, parent=parent)
    for value, type_ in zip(body.inputs, inputs, strict=False):
        declared = inner._declared(value)
        if type_.proto is not None or declared.proto is not None:
            inner._types[value] = declared if declared.proto is not None else type_
            continue
        inner._types[value] = Type(type_.dtype if value.type is None else declared.dtype, type_.dims)
    for value in body.initializers.values():
        inner._types[value] = inner._declared(value)
    for node in body:
        inner.read(node)
    return keep(inner)
