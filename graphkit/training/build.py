"""build(): forward, loss, gradients and update as one ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from graphkit import autograd, dtypes, interpreter
from graphkit.core import Array, Key, Tensor, as_tensor
from graphkit.errors import GradientError, GraphkitError, did_you_mean
from graphkit.gradients.shapes import ones_like
from graphkit.graph import Graph
from graphkit.interpreter import apply1
from graphkit.modelfile import lowest_ir_version
from graphkit.optim import AdamW, Optimizer
from graphkit.optimizers.add_updates import NEXT, append_updates, make_constant, make_input, make_output
from graphkit.optimizers.base import select
from graphkit.optimizers.pipeline import run_passes
from graphkit.optimizers.recompute import recompute_in_place
from graphkit.optimizers.report import Report
from graphkit.tracing import Spec
from graphkit.training.attention import cheapen_attention
from graphkit.training.fusion import fuse_updates
from graphkit.training.graphs import TrainingGraph
from graphkit.training.losses import LABELS, LossLike, add_loss
from graphkit.training.lowering import lower_losses
from graphkit.training.sources import FileSource, ModuleSource, Opened, Source, unknown_trainable

__all__ = ["build"]

Reduction = Literal["mean", "sum"]
Recompute: TypeAlias = "bool | int | str | Mapping[str, Any]"

LOSS = "loss"
NOT_REACHED = "the loss does not depend on it"
LEFT_OUT = "not named in trainable"


def build(
    model: Any,
    loss: LossLike = LOSS,
    optimizer: Optimizer | None = None,
    trainable: Sequence[str] | Callable[[str], bool] | None = None,
    inputs: Any = None,
    *,
    labels: Spec | None = None,
    reduction: Reduction = "mean",
    accumulate: bool = False,
    optimize: bool = True,
    recompute: Recompute = False,
) -> TrainingGraph:
    """Build the training graph of a module or of any ONNX model: one run of it is one step.

    Args:
        model: a ``gk.nn.Module``, or a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``. It is not changed.
        loss: the name of a scalar output; "cross_entropy", "mse", "l1", "huber", "binary_cross_entropy" or
            "binary_cross_entropy_with_logits", which add an input ``labels``; or a function on Tensors of the output
            (a tuple of them, if there are several) and the labels, or of the output alone.
        optimizer: the update rule, ``gk.optim.AdamW()`` by default.
        trainable: names of parameters, or a function of a name. By default every floating initializer of rank 1 or
            more (a module: every parameter) that the loss depends on, in the bodies of If, Loop and Scan too, but no
            running statistics of BatchNormalization, which stay as they are in a model that normalizes by them. In a
            file without initializers the Constant nodes are the parameters; elsewhere one is if it is named here.
        inputs: for a module, its inputs by name: ``{"x": gk.spec("float32", ["batch", 784])}``.
        labels: ``gk.spec(...)`` of the labels, where they are not int64 classes or of the shape of the output.
        reduction: whether the loss is a "mean" over the batch or a "sum"; with ``accumulate``, a mean is weighted.
        accumulate: gradients of several runs are added up until one is fed ``apply`` = True (see ``Trainer.step``).
        optimize: whether graphkit's training-safe passes run over the graph.
        recompute: keep fewer activations for the reverse pass and compute the others again, see
            ``graphkit.optimizers.recompute``: True, a number of segments, a limit of memory such as "512MB", or that
            function's arguments by name: ``{"memory": "512MB", "dims": {"batch": 64}}``.

    Raises:
        GradientError: for a loss that is not a scalar, a named parameter that it does not depend on, and operators
            without a gradient rule on the way, all of which one message names.

    >>> import graphkit as gk
    >>> model = gk.nn.Linear(3, 2)
    >>> graph = gk.training.build(model, "cross_entropy", gk.optim.SGD(0.1), inputs={"x": gk.spec("float32", ["n", 3])})
    >>> graph.inputs, graph.trainable
    (['x', 'labels'], ['weight', 'bias'])
    """
    named = [trainable] if isinstance(trainable, str) else [] if callable(trainable) else list(trainable or ())
    source = _source(model, inputs, loss, named)
    rule = optimizer if optimizer is not None else AdamW()
    if not isinstance(rule, Optimizer):
        raise GraphkitError(f"optimizer is a rule of gk.optim, such as gk.optim.AdamW(1e-3), not {rule!r}")
    if reduction not in ("mean", "sum"):
        raise GraphkitError(f"reduction is 'mean' or 'sum', not {reduction!r}")
    opened = source.open(training=True)
    graph = opened.graph
    with interpreter.using(graph):
        loss_tensor, batch = _loss(opened, loss, labels)
        chosen, frozen = _candidates(opened, trainable)
        first = {name: make_input(graph, t) for name, t in chosen.items()}
        found = _gradients(loss_tensor, chosen, trainable is not None and not callable(trainable))
        for name in [n for n in chosen if n not in found]:
            make_constant(graph, chosen.pop(name), first.pop(name))
            frozen[name] = NOT_REACHED
        if not chosen:
            raise GradientError("the loss depends on no parameter that may be trained, so there is nothing to train")
        for name, (t, _) in opened.buffers.items():
            first[name] = make_input(graph, t)
        weight = _weight(batch, reduction) if accumulate else None
        make_output(graph, loss_tensor, LOSS) if loss_tensor.name != LOSS else _own_output(graph, loss_tensor)
        made = append_updates(graph, [(chosen[n], found[n]) for n in chosen], rule, weight, reduction == "mean")
        for name, (_, following) in opened.buffers.items():
            made.pairs[name] = make_output(graph, following, name + NEXT)
    train = _finish(graph, optimize)
    if recompute is not False:
        recompute_in_place(train, **_settings(recompute))
    return TrainingGraph(
        train=train,
        state=first | made.first,
        pairs=made.pairs,
        trainable=list(chosen),
        buffers=list(opened.buffers),
        frozen=frozen,
        optimizer=rule.settings(),
        labels=batch[-1].name if len(batch) > 1 else None,
        reduction=reduction,
        accumulates=accumulate,
        derive=_Derive(source, loss, labels, list(first), optimize),
    )


def _settings(recompute: Recompute) -> dict[str, Any]:
    if recompute is True:
        return {}
    if isinstance(recompute, Mapping):
        known = ("segments", "memory", "keep", "dims")
        for name in recompute:
            if name not in known:
                raise GraphkitError(f"recompute takes {', '.join(known)}, not '{name}'.{did_you_mean(name, known)}")
        return dict(recompute)
    return {"memory" if isinstance(recompute, str) else "segments": recompute}


def _source(model: Any, inputs: Any, loss: LossLike, named: Sequence[str]) -> Source:
    if callable(getattr(model, "named_tensors", None)) and callable(model):
        return ModuleSource(model, inputs, loss)
    if callable(model):
        raise GraphkitError(
            f"build() takes a gk.nn.Module or a model file, not {model!r}: a plain function owns no parameters to train"
        )
    return FileSource(model, inputs, named)


def _loss(opened: Opened, loss: LossLike, labels: Spec | None) -> tuple[Tensor, list[Tensor]]:
    """The loss, and what a batch is counted by: the first input, and the labels if there are any."""
    graph = opened.graph
    before = list(graph.graph.inputs)
    values = {str(v.name): graph.tensor(v) for node in graph.graph for v in node.outputs if v.name}
    found = add_loss(graph, loss, opened.outputs, opened.result, values, labels)
    counted = [graph.tensor(v) for v in before[:1]]
    added = [v for v in graph.graph.inputs if v not in before]
    given = [v for v in before if v.name == LABELS]
    return found, counted + [graph.tensor(v) for v in (added or given)[:1]]


def _candidates(
    opened: Opened, trainable: Sequence[str] | Callable[[str], bool] | None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    frozen = dict(opened.frozen)
    if trainable is None:
        return dict(opened.candidates), frozen
    if isinstance(trainable, str):
        trainable = [trainable]
    chosen: dict[str, Tensor] = {}
    if callable(trainable):
        chosen = {n: t for n, t in opened.candidates.items() if trainable(n)}
    else:
        initializers = opened.graph.graph.initializers
        for name in dict.fromkeys(trainable):
            if name in opened.candidates:
                chosen[name] = opened.candidates[name]
            elif name in initializers and dtypes.is_float(opened.graph.tensor(initializers[name]).dtype):
                chosen[name] = opened.graph.tensor(initializers[name])  # frozen by default, but asked for by name
                frozen.pop(name, None)
            else:
                raise unknown_trainable(name, opened)
    frozen |= {n: LEFT_OUT for n in opened.candidates if n not in chosen}
    return chosen, frozen


def _gradients(loss: Tensor, chosen: Mapping[str, Tensor], named: bool) -> dict[str, Tensor]:
    wanted: dict[Key, Tensor] = {t.key: t for t in chosen.values()}
    records = autograd.history([loss], wanted)
    found = autograd.pullback(records, {loss.key: ones_like(loss)}, wanted)
    missing = [n for n, t in chosen.items() if t.key not in found]
    if missing and named:
        raise GradientError(
            f"the loss '{loss.name}' does not depend on {', '.join(map(repr, missing))} by any differentiable way, so "
            "training would never change it. Leave the name out of trainable"
        )
    return {n: found[t.key] for n, t in chosen.items() if t.key in found}


def _weight(batch: Sequence[Tensor], reduction: Reduction) -> Tensor:
    """What a batch counts when gradients are added up: its labels, or rows, of a mean; each alike of a sum."""
    if reduction == "sum":
        return as_tensor(np.float32(1))
    if len(batch) > 1:
        return apply1("Size", batch[-1]).astype("float32")
    return apply1("Squeeze", apply1("Shape", batch[0], start=0, end=1)).astype("float32")


def _own_output(graph: Graph, loss: Tensor) -> None:
    """Make the value that is called 'loss' already an output under that name."""
    assert loss.value is not None
    graph.graph.outputs.append(loss.value)


def _finish(graph: Graph, optimize: bool) -> ir.Model:
    model = ir.Model(graph.graph, ir_version=10, producer_name="graphkit")
    lower_losses(graph)
    if optimize:
        run_passes(model, select("training", None, ()), Report(), training=True)
        cheapen_attention(graph.graph)
        fuse_updates(graph.graph)
    model.ir_version = lowest_ir_version(model)
    return model


class _Derive:
    """The evaluation and the inference graph, made from the same model when they are asked for."""

    def __init__(
        self, source: Source, loss: LossLike, labels: Spec | None, state: Sequence[str], optimize: bool
    ) -> None:
        self.source, self.loss, self.labels, self.state, self.optimize = source, loss, labels, state, optimize

    def evaluation(self) -> ir.Model:
        """Loss and outputs of the model as it is at inference; the parameters are inputs."""
        opened = self.source.open(training=False)
        graph = opened.graph
        with interpreter.using(graph):
            loss, _ = _loss(opened, self.loss, self.labels)
            _state_inputs(graph, self.state)
            make_output(graph, loss, LOSS) if loss.name != LOSS else _own_output(graph, loss)
            for name, t in opened.outputs.items():
                if name != LOSS and t is not loss:
                    _keep_output(graph, t, name)
        return _finish(graph, self.optimize)

    def inference(self, state: Mapping[str, Array]) -> ir.Model:
        """The model with the values of ``state``, without the loss."""
        model = self.source.inference()
        if model is None:
            opened = self.source.open(training=False)
            for name, t in opened.outputs.items():
                _keep_output(opened.graph, t, name)
            model = ir.Model(opened.graph.graph, ir_version=10, producer_name="graphkit")
        for name, value in model.graph.initializers.items():
            if name in state:
                value.const_value = ir.Tensor(np.array(state[name]), name=name)
        if isinstance(self.loss, str):
            _drop_loss(model, self.loss)
        run_passes(model, select("none", ["prune", "remove_identity"], ()), Report(), training=True)
        model.ir_version = lowest_ir_version(model)
        return model


def _state_inputs(graph: Graph, names: Sequence[str]) -> None:
    for name in names:
        if name in graph.graph.initializers:
            make_input(graph, graph.tensor(graph.graph.initializers[name]))


def _keep_output(graph: Graph, t: Tensor, name: str) -> None:
    if t.name == name and t.value is not None and t.value.producer() is not None and not t.value.is_graph_output():
        graph.graph.outputs.append(t.value)
    else:
        make_output(graph, t, name)


def _drop_loss(model: ir.Model, loss: str) -> None:
    """Leave out the loss and the inputs that only it reads (the labels), if there are such and other outputs."""
    graph = model.graph
    kept = [v for v in graph.outputs if v.name != loss]
    if not kept or len(kept) == len(graph.outputs):
        return
    needed: set[ir.Value] = set(kept)
    for node in reversed(list(graph)):
        if any(v in needed for v in node.outputs):
            needed.update(v for v in node.inputs if v is not None)
            needed.update(v for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH
                          for inner in ir.traversal.RecursiveGraphIterator(a.as_graph()) for v in inner.inputs
                          if v is not None)  # fmt: skip
    if not all(v in needed for v in graph.inputs):
        graph.outputs[:] = kept
        graph.inputs[:] = [v for v in graph.inputs if v in needed]
