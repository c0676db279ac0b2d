"""Why each pass left a node alone, asked of the passes themselves when none of them finds anything more to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from graphkit.optimizers.base import Pass
from graphkit.optimizers.context import Context
from graphkit.optimizers.report import Explanation, PassReport

__all__ = ["explain_nodes"]


def explain_nodes(
    ctx: Context,
    chosen: Sequence[Pass],
    wanted: Sequence[str],
    accounts: Mapping[str, PassReport],
    is_complete: Callable[[ir.Node, int], bool],
) -> list[Explanation]:
    """Ask every pass about the nodes called so, or which give out values called so: each answers with its reason."""
    found: list[Explanation] = []
    ctx.account = PassReport()
    nodes = [node for graph in ctx.graphs() for node in graph.all_nodes()]
    for name in wanted:
        called = [node for node in nodes if name == node.name or any(name == value.name for value in node.outputs)]
        changed = [by for by, account in accounts.items() if name in account.rewritten]
        found += [Explanation(name, "", by, "it rewrote or removed a node called so") for by in changed]
        if not called and not changed:
            found.append(Explanation(name, "", "", "no node of the result is called so, nor gives out such a value"))
        for node in called:
            operator = node.op_type
            for made, reason in _answers(ctx, chosen, node, is_complete):
                elsewhere = made.run is None and not _looks_at(made, operator, node.domain)
                found.append(Explanation(name, operator, made.name, reason, elsewhere))
    return found


def _looks_at(made: Pass, operator: str, domain: str) -> bool:
    return operator in made.anchors and domain == ""


def _answers(
    ctx: Context, chosen: Sequence[Pass], node: ir.Node, is_complete: Callable[[ir.Node, int], bool]
) -> Iterator[tuple[Pass, str]]:
    for made in chosen:
        if node.graph is None:
            return  # the last answer was a rewrite, which happens only where the rounds ran out
        if made.run is not None:
            yield (
                made,
                made.explain(ctx, node) if made.explain else f"nothing is left to do for it: {made.precondition}",
            )
        elif made.rewrite is None or not _looks_at(made, node.op_type, node.domain):
            yield made, f"it looks at {', '.join(made.anchors)}"
        elif any(attribute.is_ref() for attribute in node.attributes.values()):
            yield made, "an attribute of the node is set by the function's caller"
        elif not is_complete(node, ctx.opset(node)):
            yield made, "the node lacks an input or attribute that its operator must have"
        else:
            outcome = made.rewrite(ctx, node)
            yield made, outcome if isinstance(outcome, str) else "it applies"
