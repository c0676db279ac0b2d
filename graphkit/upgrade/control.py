"""Scan, which once ran over a batch of sequences."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphkit.upgrade.adapters import Rewriter, adapter


@adapter(9, "Scan")
def scan_over_batch(node: ir.Node, rewriter: Rewriter) -> None:
    """Opset 8: axis 0 of every input is a batch, axis 1 of a scan input the sequence, the body sees one sample.

    So it is a Scan of today for each sample, inside a Scan over the samples. With ``sequence_lens`` each sample's
    sequences are cut to its own length first, and what it stacked is filled up with zeros afterwards.
    """
    body = node.attributes["body"].as_graph()
    scanned = node.attributes["num_scan_inputs"].as_int()
    directions = node.attributes.get_ints("directions", None)
    lengths, *operands = node.inputs
    states = len(operands) - scanned

    name = rewriter.names.fresh
    samples = [ir.Value(name=name(f"{given.name}_sample"), type=given.type) for given in body.inputs]
    graph = ir.Graph(samples, [], nodes=[], name=name(f"{body.name or 'scan'}_batch"))
    attributes: dict[str, int | list[int] | ir.Graph] = {"num_scan_inputs": scanned, "body": body}
    if directions:
        attributes["scan_input_directions"] = list(directions)
    node.attributes.pop("body")  # a graph belongs to one node
    inside = _Inside(graph, rewriter)
    if lengths is None:
        results = inside.apply("Scan", samples, len(node.outputs), **attributes)
        outer = operands
    else:
        length = ir.Value(name=name(f"{lengths.name}_sample"), type=ir.TensorType(lengths.dtype or ir.DataType.INT64))
        graph.inputs.append(length)
        zero, one = inside.constant([0]), inside.constant([1])
        (long,) = inside.apply("Cast", [length], to=int(ir.DataType.INT64))
        (end,) = inside.apply("Reshape", [long, one])
        cut = [inside.apply("Slice", [sequence, zero, end, zero])[0] for sequence in samples[states:]]
        results = inside.apply("Scan", [*samples[:states], *cut], len(node.outputs), **attributes)
        (longest,) = inside.apply("Shape", [samples[states]], start=0, end=1)
        (missing,) = inside.apply("Sub", [longest, end])
        (pads,) = inside.apply("Concat", [zero, missing], axis=0)
        results[states:] = [inside.apply("Pad", [stacked, pads, None, zero])[0] for stacked in results[states:]]
        outer = [*operands, lengths]
    graph.outputs.extend(results)
    rewriter.replace(
        rewriter.apply("Scan", outer, name=node.name, outputs=len(node.outputs), num_scan_inputs=len(outer), body=graph)
    )


class _Inside:
    """Appends nodes to the body being made."""

    def __init__(self, graph: ir.Graph, rewriter: Rewriter) -> None:
        self._graph = graph
        self._rewriter = rewriter

    def apply(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        outputs: int = 1,
        **attributes: int | list[int] | ir.Graph | ir.TensorProtocol,
    ) -> list[ir.Value]:
        node = ir.Node(
            "",
            operator,
            inputs,
            ir.convenience.convert_attributes(attributes),
            num_outputs=outputs,
            name=self._rewriter.names.fresh(f"{self._rewriter.node.name or 'Scan'}/{operator}"),
            metadata_props=dict(self._rewriter.node.metadata_props),
        )
        for value in node.outputs:
            value.name = self._rewriter.names.fresh(f"{node.name}:{value.index()}")
        self._graph.append(node)
        return list(node.outputs)

    def constant(self, values: list[int]) -> ir.Value:
        return self.apply("Constant", [], value=ir.tensor(values, dtype=ir.DataType.INT64))[0]
