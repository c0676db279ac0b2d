"""What an optimization did: sizes before and after, seconds, and every rewrite by pass."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from rich.table import Table

__all__ = ["Explanation", "PassReport", "Report", "Size", "Step", "measure"]


@dataclass(slots=True)
class Size:
    """How large a model is: its nodes (subgraphs and functions included) and the bytes of its constants.

    ``flops`` and ``peak_activation_bytes`` are estimates for one run, with every symbolic dim taken to be 1; None where
    they were not asked for, or nothing is known. ``uncounted`` nodes have no known shape or operator, so that the
    operations are at least ``flops``.
    """

    nodes: int = 0
    bytes: int = 0
    flops: int | None = None
    uncounted: int = 0
    peak_activation_bytes: int | None = None

    def to_dict(self) -> dict[str, int | None]:
        """The sizes by name."""
        return {
            "nodes": self.nodes,
            "bytes": self.bytes,
            "flops": self.flops,
            "uncounted_nodes": self.uncounted,
            "peak_activation_bytes": self.peak_activation_bytes,
        }


@dataclass(slots=True)
class PassReport:
    """What one pass did.

    ``nodes``, ``bytes`` and ``flops`` are the changes that it made itself; ``rewritten`` names the nodes.
    """

    rewrites: int = 0
    nodes: int = 0
    bytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    rewritten: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """The model with the passes up to and including ``by_pass``, and without those after it; ``file`` if it is kept."""

    by_pass: str
    size: Size
    file: str | None = None


@dataclass(slots=True)
class Explanation:
    """Why a pass left a node alone; ``elsewhere`` where it looks at other operators only."""

    node: str
    operator: str
    by_pass: str
    reason: str
    elsewhere: bool = False


@dataclass
class Report:
    """The account of one call of ``optimize``.

    ``verified`` is True where the result was run beside the original and agreed, False where it was not run, or no
    output could be compared (``note`` says why); ``not_compared`` names the outputs that random draws decide.
    ``detailed`` asks for the estimates of operations and of memory, ``by_step`` for ``steps`` where they are
    cheap. ``dropped`` maps each pass that was taken back, because its result differed, to what was seen and where.
    ``steps`` holds the sizes of the model as one pass after another joins in.
    """

    preset: str = "inference"
    detailed: bool = False
    by_step: bool = False
    before: Size = field(default_factory=Size)
    after: Size = field(default_factory=Size)
    seconds: float = 0.0
    verification_seconds: float = 0.0
    rounds: int = 0
    passes: dict[str, PassReport] = field(default_factory=dict)
    verified: bool = False
    note: str = ""
    not_compared: list[str] = field(default_factory=list)
    largest_difference: float = 0.0
    dropped: dict[str, str] = field(default_factory=dict)
    explanations: list[Explanation] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def did(self, name: str) -> bool:
        """Whether a pass did anything."""
        return name in self.passes and self.passes[name].rewrites > 0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries, lists, numbers and text."""
        return {
            "preset": self.preset,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "seconds": self.seconds,
            "verification_seconds": self.verification_seconds,
            "rounds": self.rounds,
            "verified": self.verified,
            "note": self.note,
            "not_compared": self.not_compared,
            "largest_difference": self.largest_difference,
            "dropped": self.dropped,
            "passes": {
                name: {
                    "rewrites": entry.rewrites,
                    "nodes": entry.nodes,
                    "bytes": entry.bytes,
                    "flops": entry.flops,
                    "seconds": entry.seconds,
                    "rewritten": entry.rewritten,
                }
                for name, entry in self.passes.items()
            },
            "explanations": [
                {"node": e.node, "operator": e.operator, "pass": e.by_pass, "reason": e.reason}
                for e in self.explanations
            ],
            "steps": [{"pass": step.by_pass, "file": step.file} | step.size.to_dict() for step in self.steps],
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
        for name, before, after in (
            ("FLOPs", _flops_text(self.before), _flops_text(self.after)),
            ("bytes of activations at the peak", *(_count_text(s.peak_activation_bytes) for s in self._ends())),
        ):
            if before and after:
                title += f"\n{before} → {after} {name}"
        caption = "verified" if self.verified else "not verified"
        if self.verified and self.not_compared:
            caption += f", but for {len(self.not_compared)} outputs"
        table = Table(title=title, caption=caption)
        table.add_column("pass")
        peaks = self._peaks()
        for heading in ("rewrites", "nodes", "bytes", "FLOPs", *(("peak",) if peaks else ()), "seconds"):
            table.add_column(heading, justify="right")
        for name, entry in self.passes.items():
            if entry.rewrites:
                numbers = [f"{entry.rewrites:,}", f"{entry.nodes:+,}", f"{entry.bytes:+,}", f"{entry.flops:+,}"]
                if peaks:
                    numbers.append(f"{peaks[name]:+,}" if name in peaks else "")
                table.add_row(name, *numbers, f"{entry.seconds:.3f}")
        for name in self.dropped:
            table.add_row(name, "dropped", style="red")
        return table

    def remarks(self) -> list[str]:
        """What there is to say beside the table: why nothing was verified, and what was taken back."""
        said = [f"{'' if self.verified else 'not verified: '}{self.note}"] if self.note else []
        return said + [f"{name} was taken back: {why}" for name, why in self.dropped.items()]

    def _ends(self) -> tuple[Size, Size]:
        return self.before, self.after

    def _peaks(self) -> dict[str, int]:
        """How the peak of activations changed as each pass joined in."""
        found: dict[str, int] = {}
        before = self.before.peak_activation_bytes
        for step in self.steps:
            peak = step.size.peak_activation_bytes
            if peak is not None and before is not None:
                found[step.by_pass] = peak - before
            before = peak
        return found


def _count_text(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _flops_text(size: Size) -> str:
    return _count_text(size.flops) and ("at least " if size.uncounted else "") + _count_text(size.flops)


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
