"""What an optimization did: sizes before and after, seconds, and every rewrite by pass."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from rich.table import Table

__all__ = ["Explanation", "PassReport", "Report", "Size", "measure"]


@dataclass(slots=True)
class Size:
    """How large a model is: its nodes (subgraphs and functions included) and the bytes of its constants."""

    nodes: int = 0
    bytes: int = 0


@dataclass(slots=True)
class PassReport:
    """What one pass did. ``nodes`` is the change it made to the number of nodes; ``rewritten`` names the nodes."""

    rewrites: int = 0
    nodes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    rewritten: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Explanation:
    """Why a pass left a node alone."""

    node: str
    operator: str
    by_pass: str
    reason: str


@dataclass
class Report:
    """The account of one call of ``optimize``.

    ``verified`` is True where the result was run beside the original and agreed, False where it was not run (``note``
    says why). ``dropped`` maps each pass that was taken back, because its result differed, to what was seen.
    """

    preset: str = "inference"
    before: Size = field(default_factory=Size)
    after: Size = field(default_factory=Size)
    seconds: float = 0.0
    verification_seconds: float = 0.0
    rounds: int = 0
    passes: dict[str, PassReport] = field(default_factory=dict)
    verified: bool = False
    note: str = ""
    largest_difference: float = 0.0
    dropped: dict[str, str] = field(default_factory=dict)
    explanations: list[Explanation] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries, lists, numbers and text."""
        return {
            "preset": self.preset,
            "before": {"nodes": self.before.nodes, "bytes": self.before.bytes},
            "after": {"nodes": self.after.nodes, "bytes": self.after.bytes},
            "seconds": self.seconds,
            "verification_seconds": self.verification_seconds,
            "rounds": self.rounds,
            "verified": self.verified,
            "note": self.note,
            "largest_difference": self.largest_difference,
            "dropped": self.dropped,
            "passes": {
                name: {
                    "rewrites": entry.rewrites,
                    "nodes": entry.nodes,
                    "bytes": entry.bytes,
                    "seconds": entry.seconds,
                    "rewritten": entry.rewritten,
                }
                for name, entry in self.passes.items()
            },
            "explanations": [
                {"node": e.node, "operator": e.operator, "pass": e.by_pass, "reason": e.reason}
                for e in self.explanations
            ],
        }

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def table(self) -> Table:
        """The report as a rich table: one line for each pass that did something."""
        title = (
            f"{self.before.nodes:,} → {self.after.nodes:,} nodes, "
            f"{self.before.bytes:,} → {self.after.bytes:,} bytes, {self.seconds:.2f} s"
        )
        state = "verified" if self.verified else f"not verified: {self.note}"
        table = Table(title=title, caption=state)
        table.add_column("pass")
        for heading in ("rewrites", "nodes", "bytes", "seconds"):
            table.add_column(heading, justify="right")
        for name, entry in self.passes.items():
            if entry.rewrites:
                numbers = (f"{entry.rewrites:,}", f"{entry.nodes:+,}", f"{entry.bytes:+,}", f"{entry.seconds:.3f}")
                table.add_row(name, *numbers)
        for name, why in self.dropped.items():
            table.add_row(name, "dropped", "", "", "", style="red")
            table.caption = f"{table.caption}; {name} was taken back: {why}"
        return table


def measure(model: ir.Model) -> Size:
    """Count a model's nodes and the bytes of its constants; a tensor that is used twice counts once."""
    size = Size()
    seen: set[int] = set()

    def weigh(tensor: ir.TensorProtocol | None) -> None:
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            size.bytes += tensor.nbytes

    functions = model.functions.values()
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            weigh(value.const_value)
    for nodes in (model.graph.all_nodes(), *(function.all_nodes() for function in functions)):
        for node in nodes:
            size.nodes += 1
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    weigh(attribute.value)
    return size
