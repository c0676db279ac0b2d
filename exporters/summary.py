"""What is in a model: operators with their counts and floating-point operations, parameters, inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.inliner
import onnx_ir as ir

from graphkit.dtypes import name as dtype_name
from graphkit.exporters.inputs import check_dims, model_inputs, static_shape, symbolic_dims
from graphkit.modelfile import ModelLike, borrow_model, lowest_ir_version, tensors_of
from graphkit.optimizers import Report
from graphkit.optimizers.base import select
from graphkit.optimizers.flops import node_flops
from graphkit.optimizers.liveness import peak_activation_bytes
from graphkit.optimizers.pipeline import run_passes
from graphkit.runtime import Port
from graphkit.runtime.feeds import port

__all__ = ["OperatorSummary", "Summary", "summarize"]


_FOLDING = ("fold_shapes", "fold_constants", "lift_constants")


@dataclass(slots=True)
class OperatorSummary:
    """One operator of a model: how often it occurs, and its floating-point operations in one run."""

    name: str
    count: int = 0
    flops: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Summary:
    """What ``summarize`` found. ``dims`` are the sizes that symbolic dimensions were counted with.

    ``peak_activation_bytes`` estimates the most that the values computed in one run take at once.
    """

    producer: str
    ir_version: int
    lowest_ir_version: int
    opsets: dict[str, int]
    inputs: list[Port]
    outputs: list[Port]
    parameters: int
    parameter_bytes: int
    parameter_dtypes: dict[str, int]
    nodes: int
    operators: list[OperatorSummary]
    peak_activation_bytes: int
    dims: dict[str, int]
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """Floating-point operations of one run, a multiplication and an addition counted as two."""
        return sum(operator.flops for operator in self.operators)

    @property
    def unknown(self) -> int:
        """The number of nodes whose operations could not be counted, for want of shapes or of a known operator."""
        return sum(operator.unknown for operator in self.operators)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as what JSON holds."""
        return {
            "producer": self.producer,
            "ir_version": self.ir_version,
            "lowest_ir_version": self.lowest_ir_version,
            "opsets": self.opsets,
            "inputs": [_port_dict(one) for one in self.inputs],
            "outputs": [_port_dict(one) for one in self.outputs],
            "parameters": self.parameters,
            "parameter_bytes": self.parameter_bytes,
            "parameter_dtypes": self.parameter_dtypes,
            "nodes": self.nodes,
            "operators": [
                {"name": o.name, "count": o.count, "flops": o.flops, "uncounted": o.unknown} for o in self.operators
            ],
            "flops": self.flops,
            "uncounted_nodes": self.unknown,
            "peak_activation_bytes": self.peak_activation_bytes,
            "dims": self.dims,
            "metadata": self.metadata,
        }


def summarize(model: ModelLike, dims: Mapping[str, int] | None = None) -> Summary:
    """Return what is in a model. Operations are counted for one run, symbolic dimensions as in ``dims``, or 1.

    Matrix products and convolutions count exactly, two operations for a multiplication with its addition; reductions
    one for an element read; other arithmetic one for an element made; moving data none. Bodies of If, Loop and Scan
    count once.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[batch, 4] x, float[4, 3] w) => (float[batch, 3] y) {y = MatMul(x, w)}'''
    >>> summarize(onnx.parser.parse_model(text), {"batch": 2}).flops
    48
    """
    loaded = borrow_model(model)
    graph = loaded.graph
    inputs = model_inputs(loaded)
    check_dims(dims or {}, inputs)
    sizes = {name: (dims or {}).get(name, 1) for name in symbolic_dims(inputs)}
    parameters = [t for g in loaded.graphs() for v in g.initializers.values() if (t := v.const_value) is not None]
    dtypes: Counter[str] = Counter()
    for tensor in parameters:
        dtypes[dtype_name(tensor.dtype.numpy())] += tensor.size
    operators = _count(loaded, _inferred(loaded, sizes))
    return Summary(
        producer=" ".join(filter(None, (loaded.producer_name, loaded.producer_version))),
        ir_version=loaded.ir_version,
        lowest_ir_version=lowest_ir_version(loaded),
        opsets={domain or "ai.onnx": version for domain, version in graph.opset_imports.items()},
        inputs=inputs,
        outputs=[port(value) for value in graph.outputs],
        parameters=sum(tensor.size for tensor in parameters),
        parameter_bytes=sum(t.nbytes for t in tensors_of(loaded) if t.dtype != ir.DataType.STRING),
        parameter_dtypes=dict(dtypes),
        nodes=sum(1 for _ in graph.all_nodes()),
        operators=operators,
        peak_activation_bytes=peak_activation_bytes(loaded, sizes),
        dims=sizes,
        metadata=dict(loaded.metadata_props),
    )


def _port_dict(one: Port) -> dict[str, Any]:
    dtype = None if one.dtype is None else one.type.split("[")[0]
    dims = None if one.dims is None else list(one.dims)
    return {"name": one.name, "type": one.type, "dtype": dtype, "dims": dims, "required": one.required}


def _inferred(model: ir.Model, sizes: Mapping[str, int]) -> ir.Model:
    """Return a model with the same arithmetic, static inputs and all the shapes that follow from them."""
    static = model.clone()
    for value in static.graph.inputs:
        if value.shape is not None and value.name not in static.graph.initializers:
            value.shape = ir.Shape(static_shape(port(value), sizes))
    for graph in static.graphs():
        for node in graph:
            for value in node.outputs:
                value.shape = None  # declared for symbolic sizes; the inferred ones are for these
    try:
        # What is computed from shapes is constant now, and shapes that depend on it are known once it is folded.
        run_passes(static, select("none", _FOLDING, ()), Report(), training=True)
        proto = ir.to_proto(_without_weights(static))
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # noqa: BLE001  # a graph that inference rejects is counted as far as its declared shapes go
        return model
    return ir.from_proto(proto)


def _without_weights(model: ir.Model) -> ir.Model:
    """Replace large weights by names and shapes: inference reads the values of small tensors only."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes > 1024:
                value.const_value = ir.ExternalTensor(
                    "left-out", 0, 0, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
                )
    return model


def _count(model: ir.Model, counted: ir.Model) -> list[OperatorSummary]:
    """Count the operators of ``model``, and their operations in ``counted``, whose shapes are known."""
    found: dict[str, OperatorSummary] = {}
    for node in model.graph.all_nodes():
        found.setdefault(_name(node), OperatorSummary(_name(node))).count += 1
    for node in counted.graph.all_nodes():
        operator = found.setdefault(_name(node), OperatorSummary(_name(node)))
        flops = node_flops(node)
        if flops is None:
            operator.unknown += 1
        else:
            operator.flops += flops
    return sorted(found.values(), key=lambda operator: (-operator.flops, -operator.count, operator.name))


def _name(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
