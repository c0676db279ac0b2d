"""TrainingGraph, what build() makes: three models, the state that one of them carries on, a folder to keep them in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from graphkit import dtypes
from graphkit.core import Array
from graphkit.dims import is_anonymous
from graphkit.errors import ModelFileError
from graphkit.modelfile import read_model, write_model
from graphkit.modelfile.files import check_readable
from graphkit.runtime.feeds import port
from graphkit.training.folders import finish, replacing_files
from graphkit.training.states import read_state, write_state

__all__ = ["TrainingGraph"]

VERSION = 1
FILES = ("train.onnx", "eval.onnx", "infer.onnx", "checkpoint.safetensors", "manifest.json")


class Derive(Protocol):
    """Where the evaluation and the inference graph come from."""

    def evaluation(self) -> ir.Model: ...
    def inference(self, state: Mapping[str, Array]) -> ir.Model: ...


@dataclass
class TrainingGraph:
    """A model's training step as one ONNX graph, and what belongs to it.

    Attributes:
        train: forward, loss, gradients and update; every part of the state is an input and an output.
        state: the first value of every state input: parameters, buffers, the optimizer's moments and step.
        pairs: for each state input, the output that is its next value.
        trainable, buffers: the names of the parameters, and of other tensors that change at every step.
        frozen: floating initializers that do not change, and why.
        optimizer: the rule's name and settings.
        labels: the name of the labels' input, None if there is none.
        reduction: whether the loss is a "mean" or a "sum" over the batch.
        accumulates: whether gradients are added up over several runs, see ``build``.
    """

    train: ir.Model
    state: dict[str, Array]
    pairs: dict[str, str]
    trainable: list[str]
    buffers: list[str]
    frozen: dict[str, str]
    optimizer: dict[str, Any]
    labels: str | None
    reduction: str
    accumulates: bool
    derive: Derive = field(repr=False)

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs that a batch has, the labels last."""
        return [str(v.name) for v in self.train.graph.inputs if v.name not in self.state and v.name != "apply"]

    @cached_property
    def evaluation(self) -> ir.Model:
        """Loss and outputs as at inference; the parameters are inputs, called as those of ``train``."""
        return self.derive.evaluation()

    def inference(self, state: Mapping[str, Array] | None = None) -> ir.Model:
        """The model for inference, with the parameters of ``state`` (the first ones by default) inside."""
        return self.derive.inference(self.state if state is None else state)

    def manifest(self) -> dict[str, Any]:
        """What a program that trains with the files must know, as JSON."""
        ports = {str(v.name): port(v) for v in self.train.graph.inputs}

        def described(name: str) -> dict[str, Any]:
            one = ports[name]
            assert one.dtype is not None
            extents = None if one.dims is None else [None if is_anonymous(d) else d for d in one.dims]
            return {"name": name, "dtype": dtypes.name(one.dtype), "dims": extents}

        return {
            "format": "graphkit training graph", "version": VERSION,
            "files": dict(zip(("train", "eval", "infer", "checkpoint"), FILES, strict=False)),
            "inputs": [described(name) for name in self.inputs],
            "labels": self.labels, "loss": "loss", "reduction": self.reduction, "accumulates": self.accumulates,
            "outputs": [str(v.name) for v in self.evaluation.graph.outputs],
            "state": [described(name) | {"next": self.pairs[name]} for name in self.state],
            "trainable": self.trainable, "buffers": self.buffers, "frozen": self.frozen, "optimizer": self.optimizer,
        }  # fmt: skip

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder: train.onnx, eval.onnx, infer.onnx, checkpoint.safetensors and manifest.json.

        The files take the place of older ones together: until all of them are written the old ones are whole, and a
        process that is killed while they are moved leaves a folder that ``load`` completes. Other files in the folder
        stay.

        Raises:
            ModelFileError: if the folder cannot be written.
        """
        path = Path(folder)
        with replacing_files(path) as new:
            write_model(self.train, new / FILES[0])
            write_model(self.evaluation, new / FILES[1])
            write_model(self.inference(), new / FILES[2])
            write_state(new / FILES[3], self.state, {"format": "graphkit state"})
            (new / FILES[4]).write_text(json.dumps(self.manifest(), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> TrainingGraph:
        """Read a folder that ``save`` wrote.

        Raises:
            ModelFileError: naming what is missing or damaged.
        """
        path = Path(folder)
        finish(path)
        try:
            check_readable(path / FILES[4])
            manifest = json.loads((path / FILES[4]).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelFileError(f"{path} holds no training graph: there is no {FILES[4]} in it") from None
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path / FILES[4]} cannot be read: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
            raise ModelFileError(f"{path / FILES[4]} is not the manifest of a training graph of version {VERSION}")
        state = read_state(path / FILES[3])[0]
        pairs = {one["name"]: one["next"] for one in manifest["state"]}
        missing = [name for name in pairs if name not in state]
        if missing:
            raise ModelFileError(f"{path / FILES[3]} lacks {', '.join(missing)}, which {FILES[4]} lists")
        return TrainingGraph(
            train=read_model(path / FILES[0]), state={name: state[name] for name in pairs}, pairs=pairs,
            derive=_Files(path), **{key: manifest[key] for key in (
                "trainable", "buffers", "frozen", "optimizer", "labels", "reduction", "accumulates")},
        )  # fmt: skip

    def __repr__(self) -> str:
        count = sum(int(np.prod(self.state[name].shape)) for name in self.trainable)
        rule = self.optimizer.get("rule")
        return f"<TrainingGraph of {count:,} parameters, {rule}, {len(self.train.graph)} nodes, inputs {self.inputs}>"


class _Files:
    """The other two models of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def evaluation(self) -> ir.Model:
        return read_model(self.folder / FILES[1])

    def inference(self, state: Mapping[str, Array]) -> ir.Model:
        model = read_model(self.folder / FILES[2])
        for name, value in model.graph.initializers.items():
            if name in state:
                value.const_value = ir.Tensor(np.array(state[name]), name=name)
        return model
