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

import onnx
import onnx_ir as ir

from graphkit.errors import PassError, did_you_mean
from graphkit.modelfile import ModelLike, give_back, lowest_ir_version, read_model
from graphkit.optimizers.liveness import ValueBytes
from graphkit.optimizers.recompute_forward import Forward
from graphkit.optimizers.recompute_plan import Choice
from graphkit.optimizers.recompute_rewrite import is_recomputed, rewrite

__all__ = ["LOSS", "recompute", "recompute_in_place"]

LOSS: Final = "loss"
# The size of a dim that has none: who wants to save memory has more in activations than in parameters.
_LARGE: Final = 1024
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
            one for each; otherwise those without one are taken to be large.

    Raises:
        PassError: for a value that the model has not, a model without a reverse pass or one that computes again
            already, and for a ``memory`` that no choice keeps to, naming the least that one does.

    >>> import graphkit as gk, graphkit.optimizers
    >>> from graphkit.optimizers.liveness import peak_activation_bytes
    >>> net = gk.nn.Sequential(*[layer for _ in range(64) for layer in (gk.nn.Linear(8, 8), gk.nn.relu)])
    >>> graph = gk.training.build(net, "mse", gk.optim.SGD(0.1), inputs={"x": gk.spec("float32", ["batch", 8])})
    >>> less = graphkit.optimizers.recompute(graph.train, dims={"batch": 1000})
    >>> before, after = (peak_activation_bytes(m, {"batch": 1000}) for m in (graph.train, less))
    >>> before > 1.5 * after
    True
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
    names = sorted(
        {d.value for v in model.graph.inputs for d in v.shape or () if isinstance(d, ir.SymbolicDim) and d.value}
    )
    if limit is not None:
        _check_sizes(names, dims or {})
    size = ValueBytes(model, dict.fromkeys(names, _LARGE) | dict(dims or {}))
    forward = _taken_apart(model, of, size)
    kept = {_named(model.graph, name) for name in keep}
    if limit is not None:
        choice = _within(forward, kept, limit)
    else:
        choice = _least(forward, kept) if segments is None else _of_count(forward, kept, segments)
    return rewrite(model, choice) if choice.again else 0


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


# Choosing


def _check_sizes(names: Collection[str], dims: Mapping[str, int]) -> None:
    missing = [name for name in names if name not in dims]
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


def _least(forward: Forward, keep: Collection[ir.Value]) -> Choice:
    """The choice that is estimated to keep least, of about the square root of as many segments as there could be."""
    middle = isqrt(len(forward.cuts(forward.finest())) + 1)
    cuts = {forward.cuts(max(2, count)): None for count in (middle // 2, middle, middle * 2, middle * 4)}
    choices = [Choice(forward, peak=forward.peak), *(Choice.of(forward, each, keep) for each in cuts)]
    return min(choices, key=lambda choice: (choice.peak, choice.cost))


def _of_count(forward: Forward, keep: Collection[ir.Value], count: int) -> Choice:
    """The choice of that many segments, or the nearest to it that there is."""
    if count == 1:
        return Choice(forward)
    tried = {forward.cuts(asked) for asked in range(max(count - 2, 2), count + 3)}
    return Choice.of(forward, min(tried, key=lambda cuts: (abs(len(cuts) + 1 - count), len(cuts))), keep)


def _within(forward: Forward, keep: Collection[ir.Value], limit: int) -> Choice:
    """The choice that is estimated to be the cheapest of those that keep to the limit."""
    before = forward.peak
    if before <= limit:
        return Choice(forward, peak=before)
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
