"""Trainer: take steps with a training graph on ONNX Runtime, evaluate, save, resume, export."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit.core import Array
from graphkit.errors import GraphkitError, InputError, did_you_mean
from graphkit.modelfile import write_model
from graphkit.runtime import StepSession
from graphkit.runtime.feeds import check_feeds_finite, prepare
from graphkit.training.graphs import TrainingGraph
from graphkit.training.states import read_state, write_state

__all__ = ["Trainer"]

FORMAT = "graphkit training state"
Batch = Mapping[str, Any]


class Trainer:
    """Trains a ``TrainingGraph``; the state stays on the device, and one step is one run.

    Args:
        graph: of ``gk.training.build`` or ``TrainingGraph.load``.
        device: "cpu" or "cuda".
        threads: of one operator; None for as many as there are cores.

    >>> import numpy as np, graphkit as gk
    >>> x = gk.spec("float32", ["n", 3])
    >>> graph = gk.training.build(gk.nn.Linear(3, 2), "cross_entropy", gk.optim.SGD(0.5), inputs={"x": x})
    >>> trainer = gk.Trainer(graph)
    >>> batch = {"x": np.eye(3, dtype="float32"), "labels": np.array([0, 1, 1])}
    >>> losses = [float(trainer.step(batch)["loss"]) for _ in range(20)]
    >>> losses[-1] < losses[0], sorted(trainer.evaluate(batch))
    (True, ['loss', 'output'])
    """

    def __init__(self, graph: TrainingGraph, device: str = "cpu", threads: int | None = None) -> None:
        self.graph = graph
        self._device, self._threads = device, threads
        self._session = StepSession(graph.train, graph.state, graph.pairs, ["loss"], device, threads)
        self._evaluation: StepSession | None = None
        self._classes = _classes(graph)
        self._count = 0

    @property
    def steps(self) -> int:
        """How many updates were made, those before a resumed state included."""
        return self._count

    def step(self, batch: Batch | Sequence[Batch], micro_batch: int | None = None) -> dict[str, Array]:
        """Make one update and return ``{"loss": ...}``, the loss before it.

        Args:
            batch: arrays by input name, "labels" among them; or, for a graph built with ``accumulate=True``, a list of
                such micro-batches, whose gradients make one update together, each weighted by its number of labels.
            micro_batch: cut the batch into micro-batches of this many rows (the last may be smaller).

        Raises:
            InputError: naming every input that is missing, unknown, of another dtype or shape, labels out of range,
                an empty batch, and inputs that hold NaN or infinite values where the loss shows it.
            GraphkitError: if the loss is NaN or infinite otherwise. Whatever is raised, no parameter was changed.
        """
        if micro_batch is None and not self.graph.accumulates:
            if not isinstance(batch, Mapping):
                raise GraphkitError(
                    f"a batch is a dict by input name ({', '.join(self.graph.inputs)}), got a {type(batch).__name__}. "
                    "(A list of micro-batches needs a graph built with build(..., accumulate=True).)"
                )
            self._check_batch(batch)
            result = self._session.run(batch)
            if not math.isfinite(result["loss"]):
                self._session.shared_state.side ^= 1  # the other buffer of each pair holds the state before
                raise self._not_finite(result["loss"], batch)
            self._count += 1
            return result
        return self._accumulate(batch, micro_batch)

    def _accumulate(self, batch: Batch | Sequence[Batch], micro_batch: int | None) -> dict[str, Array]:
        if not self.graph.accumulates:
            raise GraphkitError("micro-batches need a graph built with build(..., accumulate=True)")
        parts = [batch] if isinstance(batch, Mapping) else list(batch)
        ports = [one for one in self._session.inputs if one.name != "apply"]
        checked = [prepare(ports, part) for part in parts]
        if micro_batch is not None:
            checked = [piece for part in checked for piece in _cut(part, micro_batch)]
        if not checked:
            raise InputError("a step needs one micro-batch or more")
        for part in checked:
            self._check_batch(part)
        losses, weights = [], []
        before = self._session.state()
        try:
            for n, part in enumerate(checked):
                last = np.array(n == len(checked) - 1)
                losses.append(self._run_part({**part, "apply": last}))
                weights.append(self._weight(part))
        except Exception:
            self._session.load_state(before)  # gradients of half a step would be added to the next one's
            raise
        self._count += 1
        mean = np.average(np.stack(losses).astype(np.float64), axis=0, weights=weights)
        total = mean if self.graph.reduction == "mean" else mean * len(losses)
        return {"loss": np.array(total, dtype=losses[0].dtype)}

    def _run_part(self, part: Batch) -> Array:
        loss = self._session.run(part)["loss"]
        if not math.isfinite(loss):
            raise self._not_finite(loss, part)
        return loss

    def _not_finite(self, loss: Array, batch: Batch) -> GraphkitError:
        """What to raise for a step whose loss is NaN or infinite, and which was taken back."""
        try:
            check_feeds_finite({name: np.asarray(array) for name, array in batch.items()})
        except InputError as error:
            return InputError(f"{error}; the loss is {loss}, and the step was not taken")
        spoiled = [name for name, array in self.parameters().items() if not np.isfinite(array).all()]
        if spoiled:
            return GraphkitError(
                f"the loss is {loss} after {self._count} steps: an earlier step made {', '.join(spoiled[:5])} infinite "
                "or NaN. Load the last saved state, and lower the learning rate or set clip_norm"
            )
        return GraphkitError(
            f"the loss is {loss} after {self._count} steps; this step was not taken, and the parameters are as before. "
            "Lower the learning rate, or set clip_norm"
        )

    def _weight(self, part: Batch) -> float:
        if self.graph.reduction == "sum":
            return 1.0
        if self.graph.labels is not None:
            return float(np.size(part[self.graph.labels]))
        return float(len(part[self.graph.inputs[0]]))

    def evaluate(self, batch: Batch) -> dict[str, Array]:
        """The loss and the model's outputs on a batch, as at inference, with the parameters as they are now."""
        if self._evaluation is None:
            self._evaluation = StepSession(
                self.graph.evaluation, self._session.shared_state, {}, None, self._device, self._threads
            )
        self._check_batch(batch)
        return self._evaluation.run(batch)

    def state(self) -> dict[str, Array]:
        """Copies of the parameters, buffers and the optimizer's state, by name."""
        return self._session.state()

    def parameters(self) -> dict[str, Array]:
        """Copies of the trained parameters, by name."""
        state = self.state()
        return {name: state[name] for name in self.graph.trainable}

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything a later ``load`` needs to go on bit for bit: one .safetensors file, whole or not at all."""
        write_state(path, self.state(), {"format": FORMAT, "steps": str(self._count)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that ``save`` wrote (or from a training graph's checkpoint.safetensors).

        Raises:
            ModelFileError: for a file that is missing or damaged.
            InputError: naming what does not fit this training graph; the state is then as it was.
        """
        arrays, metadata = read_state(path)
        mine = self.graph.state
        problems = [f"'{name}' is missing" for name in mine if name not in arrays]
        problems += [f"'{name}' is unknown.{did_you_mean(name, mine)}" for name in arrays if name not in mine]
        problems += [
            f"'{name}' is {found.dtype}{list(found.shape)}, expected {mine[name].dtype}{list(mine[name].shape)}"
            for name, found in arrays.items()
            if name in mine and (found.dtype != mine[name].dtype or found.shape != mine[name].shape)
        ]
        if problems:
            shown = "; ".join(problems[:10]) + (f"; and {len(problems) - 10} more" if len(problems) > 10 else "")
            raise InputError(f"{os.fspath(path)} is not a state of this training graph: {shown}")
        self._session.load_state(arrays)
        self._count = int(metadata.get("steps", 0))

    def export_inference(self, path: str | os.PathLike[str]) -> ir.Model:
        """Write the model for inference with the parameters as they are now; returns it."""
        model = self.graph.inference(self.state())
        write_model(model, path)
        return model

    # What the runtime would not notice

    def _check_batch(self, batch: Batch) -> None:
        """A negative label would silently pick from the end, where the runtime counts so; and a batch has rows."""
        for name, array in batch.items():
            if type(array) is np.ndarray and not array.size:
                raise InputError(f"input '{name}' has no elements: {list(array.shape)}. A batch has one row or more")
        if self._classes is None or self.graph.labels is None:
            return
        labels = batch.get(self.graph.labels)
        if not isinstance(labels, np.ndarray) or not labels.size or labels.dtype.kind != "i":
            return
        low, high = labels.min(), labels.max()
        if low < 0 or high >= self._classes:
            wrong = low if low < 0 else high
            raise InputError(
                f"input '{self.graph.labels}' holds the label {wrong}; the model has {self._classes} classes, "
                f"0 to {self._classes - 1}"
            )

    def __repr__(self) -> str:
        return f"<Trainer of {self.graph!r} on {self._session.session.device} after {self._count} steps>"


def _classes(graph: TrainingGraph) -> int | None:
    """How many classes there are, where the labels pick from a LogSoftmax."""
    names = {graph.labels}
    for node in graph.train.graph:
        if node.op_type in ("Unsqueeze", "Reshape") and node.inputs[0] is not None and node.inputs[0].name in names:
            names.add(node.outputs[0].name)
        if node.op_type == "GatherElements" and len(node.inputs) > 1:
            scores, picked = node.inputs[0], node.inputs[1]
            if picked is not None and picked.name in names and scores is not None and scores.shape is not None:
                extent = scores.shape[node.attributes.get_int("axis", 0)]
                return extent if isinstance(extent, int) else None
    return None


def _cut(part: dict[str, Any], rows: int) -> list[dict[str, Any]]:
    if rows < 1:
        raise InputError(f"micro_batch is a number of rows, 1 or more, not {rows}")
    lengths = {name: len(array) for name, array in part.items() if np.ndim(array)}
    if len(set(lengths.values())) != 1:
        raise InputError(f"micro_batch cuts every input along its first axis, and they differ: {lengths}")
    count = next(iter(lengths.values()))
    return [
        {name: array[start : start + rows] if np.ndim(array) else array for name, array in part.items()}
        for start in range(0, count, rows)
    ]
