"""Raw exports of PyTorch models by both of its exporters; ``benchmarks.optimizers`` runs it in its own environment.

    python -m benchmarks._optimizer_models FOLDER [FAMILY ...]

The families are written in plain PyTorch (``_torch_text`` and ``_torch_vision``), small, with random weights. Each is
exported as ``FOLDER/FAMILY-script.onnx`` (TorchScript, no constant folding) and ``FOLDER/FAMILY-dynamo.onnx``
(``torch.export``, ``optimize=False``), with sizes that may change where the model allows it, and its inputs as
``FOLDER/FAMILY.npz``.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._torch_text import GPT, Bert, Cells, Llama, Tagger, encoder
from benchmarks._torch_vision import DETR, Segment, Swin, UNet, ViT, convnext, mobilenet, resnet

__all__ = ["EXPORTERS", "FAMILIES", "export"]

EXPORTERS = ("script", "dynamo")


def picture(size: int) -> Tensor:
    return torch.randn(2, 3, size, size)


def ids(length: int, vocabulary: int = 300) -> Tensor:
    return torch.randint(0, vocabulary, (2, length))


def bert_inputs() -> tuple[Tensor, ...]:
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, 18:] = 0
    return ids(24), torch.zeros(2, 24, dtype=torch.int64), mask


Build = Callable[[], nn.Module]
# family: how to make it, its inputs, and which axes may change (by input: axis to name)
FAMILIES: dict[str, tuple[Build, Callable[[], tuple[Tensor, ...]], list[dict[int, str]]]] = {
    "resnet": (resnet, lambda: (picture(96),), [{0: "batch"}]),
    "mobilenet": (mobilenet, lambda: (picture(96),), [{0: "batch"}]),
    "efficientnet": (lambda: mobilenet(nn.SiLU), lambda: (picture(96),), [{}]),
    "vit": (ViT, lambda: (picture(112),), [{0: "batch"}]),
    "bert": (Bert, bert_inputs, [{0: "batch", 1: "length"}] * 3),
    "encoder": (encoder, lambda: (torch.randn(2, 32, 96),), [{0: "batch"}]),
    "gpt": (GPT, lambda: (ids(32),), [{0: "batch", 1: "length"}]),
    "gpt_fused": (lambda: GPT(fused=True), lambda: (ids(32),), [{0: "batch"}]),
    "llama": (Llama, lambda: (ids(32),), [{0: "batch", 1: "length"}]),
    "unet": (UNet, lambda: (picture(64),), [{0: "batch"}]),
    "tagger": (Tagger, lambda: (ids(20),), [{0: "batch"}]),
    "cells": (Cells, lambda: (torch.randn(2, 12, 32),), [{0: "batch"}]),
    "convnext": (convnext, lambda: (picture(64),), [{0: "batch"}]),
    "detr": (DETR, lambda: (picture(96),), [{0: "batch"}]),
    "swin": (Swin, lambda: (picture(56),), [{0: "batch"}]),
    "segment": (Segment, lambda: (picture(64),), [{}]),
}


def export(family: str, exporter: str, folder: Path) -> None:
    """Write one file, and its inputs."""
    make, inputs, changing = FAMILIES[family]
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # TorchScript's exporter knows no fused encoder layer
    module, args = make().eval(), inputs()
    for part in module.modules():
        if isinstance(part, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):  # as training leaves them
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.2)
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 1.5)
    names = [f"x{n}" for n in range(len(args))]
    target = folder / f"{family}-{exporter}.onnx"
    options: dict[str, Any] = {"input_names": names, "opset_version": 18}
    if exporter == "script":
        options |= {"dynamo": False, "do_constant_folding": False}
        options["dynamic_axes"] = {n: axes for n, axes in zip(names, changing, strict=True) if axes}
    else:
        dims = {axis: torch.export.Dim.DYNAMIC for axes in changing for axis in axes}
        shapes = tuple({axis: dims[axis] for axis in axes} for axes in changing)
        options |= {"dynamo": True, "optimize": False, "external_data": False, "dynamic_shapes": shapes}
        del options["opset_version"]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, args, target, verbose=False, **options)
    feeds: dict[str, Any] = dict(zip(names, (a.numpy() for a in args), strict=True))
    np.savez(folder / f"{family}.npz", **feeds)


def main() -> int:
    """Every family by every exporter, those that are not there yet."""
    folder, failed = Path(sys.argv[1]), 0
    folder.mkdir(parents=True, exist_ok=True)
    for family in sys.argv[2:] or FAMILIES:
        for exporter in EXPORTERS:
            if (folder / f"{family}-{exporter}.onnx").exists():
                continue
            try:
                export(family, exporter, folder)
            except Exception:  # noqa: BLE001  # one exporter's failure is not the others'
                failed += 1
                print(f"{family} by {exporter}: {traceback.format_exc(limit=-1)}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
