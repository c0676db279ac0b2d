"""Which bodies of a model (branches of If, bodies of Loop and Scan) some inputs run, and which none of them does."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from graphkit.modelfile.external import embedded
from graphkit.modelfile.protos import every_node, to_proto
from graphkit.optimizers.evaluate import open_session, run_in_time
from graphkit.optimizers.feeds_for import Feeds

__all__ = ["unreached"]

_MARK = "graphkit reach "
_EVENT = "_kernel_time"


def unreached(model: ir.Model, feeds: Sequence[Feeds]) -> list[str]:
    """Name the bodies that none of the inputs runs, as ONNX Runtime's profile shows; those within them go unnamed.

    Raises what ONNX Runtime raises where the model does not run.
    """
    trial = model.clone()
    called: list[str] = []
    for number, node in enumerate(every_node(trial.graph)):
        called.append(f"'{node.name or ', '.join(value.name or '' for value in node.outputs)}' ({node.op_type})")
        node.name = f"{_MARK}{number}"
    bodies: list[tuple[str, set[str]]] = []
    for node, name in zip(every_node(trial.graph), called, strict=True):
        for key, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                inside = every_node(attribute.as_graph())
                # What is constant leaves no trace of its run.
                bodies.append((f"{key} of {name}", {one.name or "" for one in inside if one.op_type != "Constant"}))
    if not bodies:
        return []
    seen = _ran(trial, feeds)
    missed = [(told, names) for told, names in bodies if names and not names & seen]
    return [told for told, names in missed if not any(names < other for _, other in missed)]


def _ran(trial: ir.Model, feeds: Sequence[Feeds]) -> set[str]:
    """The names of the nodes that ran."""
    outputs = [value.name or "" for value in trial.graph.outputs]
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(to_proto(embedded(trial)).SerializeToString(), profile=str(Path(folder) / "run"))
        try:
            for each in feeds:
                run_in_time(session, outputs, each)
        finally:
            file = session.end_profiling()
        events = json.loads(Path(file).read_text(encoding="utf-8"))
    return {event["name"].removesuffix(_EVENT) for event in events if event.get("name", "").endswith(_EVENT)}
