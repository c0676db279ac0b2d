"""Recomputation as a pass of the pipeline, which runs where it is asked for by name."""

from __future__ import annotations

from graphkit.errors import PassError
from graphkit.optimizers.base import sweep
from graphkit.optimizers.context import Context
from graphkit.optimizers.recompute import LOSS, recompute_in_place
from graphkit.optimizers.recompute_rewrite import is_recomputed

__all__: list[str] = []


@sweep("recompute", targets=())
def _recompute(ctx: Context) -> int:
    """Activations that a reverse pass reads are computed again instead of kept: less memory for more time.

    Only where it is asked for by name, and in a graph with an output or value called "loss" and nodes behind it; see
    ``graphkit.optimizers.recompute``, which also takes a number of segments or a limit of memory.
    """
    graph = ctx.model.graph
    if is_recomputed(graph) or not any(v.name == LOSS for node in graph for v in node.outputs):
        return 0
    try:
        done = recompute_in_place(ctx.model)
    except PassError:
        return 0
    ctx.account.nodes += done
    ctx.take_names(graph)
    return done
