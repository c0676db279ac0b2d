"""recompute: a training graph that keeps fewer activations, and computes the others again where they are read.

ONNX Runtime frees a value when its last reader has run, so what the forward makes for the reverse pass stays. Written
twice, each half is freed early, if two things are prevented: that the runtime merges the copies with the originals, and
that it runs them before their turn. Both are, by what the copies start from: the values kept, with a zero added that is
not known before the gradients of the segments behind are computed (``graphkit.ordering``). That is in the file, so
that it holds in every binding and at every level of the runtime's optimizations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import isqrt
from typing import Final, overload

import numpy as np
import onnx
import onnx_ir as ir

from graphkit import interpreter
from graphkit.conversion import constant_array
from graphkit.core import Tensor, as_tensor
from graphkit.errors import PassError, did_you_mean
from graphkit.graph import Graph
from graphkit.interpreter import apply1
from graphkit.modelfile import ModelLike, give_back, lowest_ir_version, read_model
from graphkit.optimizers.base import sweep
from graphkit.optimizers.context import Context
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.liveness import ValueBytes, peak_activation_bytes
from graphkit.optimizers.recompute_plan import Choice, Forward, is_masked, schedule
from graphkit.ordering import after, false_after
from graphkit.statistics import keep_apart

__all__ = ["recompute", "recompute_in_place"]

MARK: Final = "graphkit.recomputed"
LOSS: Final = "loss"
_UNITS: Final = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1024, "MI": 1024**2, "GI": 1024**3}


@overload
def recompute(
    model: onnx.ModelProto, segments: int | None = ..., memory: int | str | None = ..., *, of: str = ...,
    keep: Collection[str] = ..., dims: Mapping[str, int] | None = ...,
) -> onnx.ModelProto: ...  # fmt: skip


@overload
def recompute(
    model: ModelLike, segments: int | None = ..., memory: int | str | None = ..., *, of: str = ...,
    keep: Collection[str] = ..., dims: Mapping[str, int] | None = ...,
) -> ir.Model | onnx.ModelProto: ...  # fmt: skip


def recompute(
    model: ModelLike,
    segments: int | None = None,
    memory: int | str | None = None,
    *,
    of: str = LOSS,
    keep: Collection[str] = (),
    dims: Mapping[str, int] | None = None,
) -> ir.Model | onnx.ModelProto:
    """Return a training graph that keeps fewer activations for its reverse pass and computes the others again.

    The forward is cut into segments where few bytes cross. Of each but the last, only what other segments read is kept,
    and the rest is computed again just before the reverse pass reads it (Chen et al., 2016, "Training deep nets with
    sublinear memory cost"). The results are the same; random numbers are drawn once, and running statistics updated
    once. Nodes with bodies (If, Loop, Scan) are not computed again.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model`` with a loss and its gradients, such as
            ``add_gradients`` and ``training.build`` make; it is not changed, and its kind comes back.
        segments: Into about how many segments to cut; by default the square root of how many there could be. Few large
            ones and many small ones both keep more than those between; many small ones take the least time.
        memory: Instead, the most bytes that activations may take, a number or a text such as "512MB": the cheapest
            choice whose estimate (``peak_activation_bytes``) is within it is made.
        of: The value that the gradients are of.
        keep: Names of values to keep in any case.
        dims: The sizes of symbolic dims by name that the estimates go by, such as ``{"batch": 32}``. ``memory`` needs
            one for each.

    Raises:
        PassError: for a value that the model has not, a model without a reverse pass or one that computes again
            already, and for a ``memory`` that no choice keeps to, naming the least that one does.

    >>> import graphkit as gk, graphkit.optimizers
    >>> net = gk.nn.Sequential(*[layer for _ in range(64) for layer in (gk.nn.Linear(8, 8), gk.nn.relu)])
    >>> graph = gk.training.build(net, "mse", gk.optim.SGD(0.1), inputs={"x": gk.spec("float32", ["batch", 8])})
    >>> less = graphkit.optimizers.recompute(graph.train, dims={"batch": 1000})
    >>> [peak_activation_bytes(m, {"batch": 1000}) // 2**20 for m in (graph.train, less)]
    [2, 0]
    """
    own = read_model(model)
    recompute_in_place(own, segments, memory, of=of, keep=keep, dims=dims)
    own.ir_version = max(own.ir_version, lowest_ir_version(own))
    return give_back(model, own)


def recompute_in_place(
    model: ir.Model,
    segments: int | None = None,
    memory: int | str | None = None,
    *,
    of: str = LOSS,
    keep: Collection[str] = (),
    dims: Mapping[str, int] | None = None,
) -> int:
    """The same on a model that is the caller's own; returns how many nodes are computed again."""
    limit = None if memory is None else byte_count(memory)
    if segments is not None and limit is not None:
        raise PassError("recompute takes segments or memory, not both: segments follow from the memory")
    if segments is not None and (isinstance(segments, bool) or segments < 1):
        raise PassError(f"segments is a whole number, 1 or more, not {segments!r}")
    if is_recomputed(model.graph):
        raise PassError("the model computes activations again already; start from the one that does not")
    if limit is not None:
        _check_sizes(model, dims or {})
    size = ValueBytes(model, dims)
    forward = _taken_apart(model, of, size)
    kept = {_named(model.graph, name) for name in keep}
    if limit is not None:
        choice = _within(forward, kept, limit, peak_activation_bytes(model, dims))
    else:
        count = isqrt(len(forward.cuts(forward.finest())) + 1) if segments is None else segments
        choice = _of_count(forward, kept, max(count, 1))
    return _rewrite(model, choice) if choice.again else 0


def byte_count(memory: int | str) -> int:
    """A number of bytes as such, or written with a unit: "512MB", "1.5 GiB".

    >>> byte_count("1.5kB")
    1500
    """
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?)B?\s*", memory, re.IGNORECASE)
        unit = found and _UNITS.get(found[2].upper())
        if not found or unit is None:
            raise PassError(f"memory is a number of bytes or a text such as '512MB' or '2GiB', not {memory!r}")
        memory = int(float(found[1]) * unit)
    if isinstance(memory, bool) or memory < 1:
        raise PassError(f"memory is a number of bytes, 1 or more, not {memory!r}")
    return memory


def is_recomputed(graph: ir.Graph) -> bool:
    """Whether a graph computes activations again already."""
    return any(MARK in node.metadata_props for node in graph)


@sweep("recompute", training=False, targets=())
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
    return done


# Choosing


def _check_sizes(model: ir.Model, dims: Mapping[str, int]) -> None:
    names = {d.value for v in model.graph.inputs for d in v.shape or () if not isinstance(d, int) and d.value}
    missing = sorted(name for name in names if name not in dims)
    if missing:
        example = ", ".join(f'"{name}": 32' for name in missing)
        raise PassError(f"how much memory activations take depends on {', '.join(missing)}: give dims={{{example}}}")


def _taken_apart(model: ir.Model, of: str, size: ValueBytes) -> Forward:
    loss = _named(model.graph, of)
    if loss.producer() is None:
        raise PassError(f"'{of}' is not computed in the model, so there are no gradients of it")
    forward = Forward(model.graph, loss, size)
    if not forward.first_read:
        raise PassError(f"nothing behind '{of}' reads what it was computed from, so the model has no gradients of it")
    return forward


def _named(graph: ir.Graph, name: str) -> ir.Value:
    made = {v.name: v for node in graph for v in node.outputs if v.name}
    found = made.get(name) or next((v for v in graph.inputs if v.name == name), None)
    if found is None:
        raise PassError(f"the model computes no value '{name}'.{did_you_mean(name, [n for n in made if n])}")
    return found


def _of_count(forward: Forward, keep: Collection[ir.Value], count: int) -> Choice:
    """The choice of that many segments, or the nearest to it that there is."""
    if count == 1:
        return Choice(forward)
    tried = {forward.cuts(asked) for asked in range(max(count - 2, 2), count + 3)}
    return Choice.of(forward, min(tried, key=lambda cuts: (abs(len(cuts) + 1 - count), len(cuts))), keep)


def _within(forward: Forward, keep: Collection[ir.Value], limit: int, before: int) -> Choice:
    """The choice that is estimated to be the cheapest of those that keep to the limit."""
    unchanged = Choice(forward, peak=before)
    if before <= limit:
        return unchanged
    finest = len(forward.cuts(forward.finest())) + 1
    counts = sorted({max(2, round(finest / 2 ** (step / 2))) for step in range(64) if 2 ** (step / 2) < 2 * finest})
    choices = [Choice.of(forward, cuts, keep) for cuts in {forward.cuts(count): None for count in counts}]
    fitting = [choice for choice in choices if choice.peak <= limit]
    if not fitting:
        least = min((choice.peak for choice in choices), default=before)
        raise PassError(
            f"the activations take {before:,} bytes and, computing them again, at least {min(least, before):,} by "
            f"estimate; {limit:,} are not enough"
        )
    best = [_keeping_more(choice, keep, limit) for choice in sorted(fitting, key=lambda c: c.cost)[:4]]
    return min(best, key=lambda choice: choice.cost)


def _keeping_more(choice: Choice, keep: Collection[ir.Value], limit: int) -> Choice:
    """The same, but what takes most time for its bytes is kept while there is room."""
    forward = choice.forward
    made = [(forward.cost(node) / max(1, sum(forward.size(v) for v in node.outputs)), node) for node in choice.nodes()]
    dear = [node for _, node in sorted(made, key=lambda pair: -pair[0])]
    low, high, best = 0, len(dear), choice
    while low < high:
        middle = (low + high + 1) // 2
        more = {v for node in dear[:middle] for v in node.outputs} | set(keep)
        found = Choice.of(forward, choice.cuts, more)
        if found.peak <= limit:
            low = middle
            best = found if found.cost < best.cost else best
        else:
            high = middle - 1
    return best


# Rewriting


def _rewrite(model: ir.Model, choice: Choice) -> int:
    forward = choice.forward
    actions = list(schedule(choice))
    behind = set(forward.after)
    graph = Graph.around(model)
    model.graph.remove(forward.after)
    current: dict[ir.Value, ir.Value] = {}
    with interpreter.using(graph):
        for action in actions:
            if action.kind == "wait":
                never = false_after(_typed(graph, forward, v) for v in action.sinks)
                for value in action.waiting:
                    waiting = after(_typed(graph, forward, current.get(value, value), value), never)
                    current[value] = _made(waiting, value)
            elif action.node in behind:
                assert action.node is not None
                _rebind(action.node, current)
                model.graph.append(action.node)
            elif action.kind == "again":
                assert action.node is not None
                _repeat(graph, action.node, current)
    keep_apart(model.graph)
    return sum(1 for _ in choice.nodes())


def _typed(graph: Graph, forward: Forward, value: ir.Value, like: ir.Value | None = None) -> Tensor:
    """The value's Tensor, with a dtype and a rank, which passes need not have written down."""
    known = like if like is not None else value
    if value.type is None or value.dtype is None:
        dtype = forward.dtype(known)
        assert dtype is not None
        value.type = ir.TensorType(dtype)
    if value.shape is None:
        shape = forward.size.shape(known)
        value.shape = None if shape is None else ir.Shape([None] * len(shape))
    return graph.tensor(value)


def _made(t: Tensor, like: ir.Value) -> ir.Value:
    value = t.value
    assert value is not None
    value.type, value.shape = like.type, like.shape
    node = value.producer()
    assert node is not None
    node.metadata_props[MARK] = "1"
    return value


def _repeat(graph: Graph, node: ir.Node, current: dict[ir.Value, ir.Value]) -> None:
    if is_masked(node):
        _drop_again(graph, node, current)
        return
    made = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else current.get(v, v) for v in node.inputs],
        list(node.attributes.values()),
        overload=node.overload,
        num_outputs=len(node.outputs),
        name=graph.unique(f"{node.name or node.op_type}_again"),
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props) | {MARK: "1"},
    )
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name = graph.unique(f"{old.name}_again") if old.name else ""
        new.type, new.shape = old.type, old.shape
        current[old] = new
    graph.graph.append(made)


def _drop_again(graph: Graph, node: ir.Node, current: dict[ir.Value, ir.Value]) -> None:
    """Dropout by the mask that was drawn, as the runtime's kernel does it."""
    x, mask = node.inputs[0], node.outputs[1]
    assert x is not None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    ratio = None if given is None else constant_array(given)
    probability = np.float32(0.5) if ratio is None else np.float32(ratio.reshape(()))
    t = graph.tensor(current.get(x, x))
    scale = np.float32(1) / (np.float32(1) - probability)
    kept = apply1("Mul", graph.tensor(current.get(mask, mask)).astype(t.dtype), t)
    dropped = apply1("Mul", kept, as_tensor(np.asarray(scale, dtype=t.dtype)))
    current[node.outputs[0]] = _made(dropped, node.outputs[0])


def _rebind(node: ir.Node, current: Mapping[ir.Value, ir.Value]) -> None:
    """Let a node, and its bodies, read the values that stand for others now."""
    for index, value in enumerate(node.inputs):
        if value is not None and value in current:
            node.replace_input_with(index, current[value])
    for body in subgraphs_of(node):
        for inner in body:
            _rebind(inner, current)
        for index, value in enumerate(body.outputs):
            if value in current:
                body.outputs[index] = current[value]
