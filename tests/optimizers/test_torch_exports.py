"""What PyTorch writes out in pieces, and how little of it is left: recurrent cells, rotary attention, packed heads."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import graphkit.optimizers
from graphkit.optimizers import Report
from tests.optimizers.conftest import assert_same, operators, run

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
nn = torch.nn


class CellLoop(nn.Module):
    """A recurrent cell called step by step, all states stacked."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        c, states = h, []
        for t in range(6):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
            states.append(h)
        return torch.stack(states, 1)


class Rotary(nn.Module):
    """Root mean square norm, rotary positions, grouped queries under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.rand(32) + 0.5)
        self.q, self.k, self.v = (nn.Linear(32, width, bias=False) for width in (32, 16, 16))
        self.register_buffer("angles", torch.outer(torch.arange(12).float(), 1e-4 ** (torch.arange(4) / 4)))

    def turned(self, x: Any) -> Any:
        both = torch.cat((self.angles, self.angles), -1)
        first, second = x[..., :4], x[..., 4:]
        return x * both.cos() + torch.cat((-second, first), -1) * both.sin()

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        y = self.norm * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        q, k, v = (f(y).view(batch, length, -1, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        k, v = (t[:, :, None].expand(batch, 2, 2, length, 8).reshape(batch, 4, length, 8) for t in (k, v))
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(8) + mask, -1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, 32)


def exported(module: Any, shape: tuple[int, ...], *, batch: bool) -> onnx.ModelProto:
    """The module as PyTorch's exporter writes it, unfolded."""
    torch.manual_seed(0)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated, and says so; it is the one without dependencies
        torch.onnx.export(
            module.eval(), (torch.randn(*shape),), file, dynamo=False, opset_version=17, do_constant_folding=False,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}} if batch else None,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


ATTENTION = {"RMSNormalization": 1, "RotaryEmbedding": 2, "Attention": 1}
# name: (module, shape of its input, whether the batch is open, opset, how many nodes are left at most, what must be)
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], bool, int | None, int, dict[str, int]]] = {
    "lstm cells": (lambda: CellLoop(nn.LSTMCell(5, 8)), (2, 6, 5), False, None, 4, {"LSTM": 1}),
    "lstm cells, open batch": (lambda: CellLoop(nn.LSTMCell(5, 8)), (2, 6, 5), True, None, 12, {"LSTM": 1}),
    "gru cells": (lambda: CellLoop(nn.GRUCell(5, 8)), (2, 6, 5), False, None, 4, {"GRU": 1}),
    "gru cells, open batch": (lambda: CellLoop(nn.GRUCell(5, 8)), (2, 6, 5), True, None, 12, {"GRU": 1}),
    "rotary attention": (Rotary, (2, 12, 32), False, 23, 26, ATTENTION | {"Expand": 0}),
    "packed heads": (lambda: nn.MultiheadAttention(32, 4), (6, 2, 32), False, None, 30, {"Split": 1}),
}


@pytest.mark.parametrize("name", MODELS)
def test_little_is_left(name):
    make, shape, batch, opset, most, wanted = MODELS[name]
    module = make()
    if name == "packed heads":
        inner = module
        module = nn.Module()
        module.inner = inner
        module.forward = lambda x: inner(x, x, x, need_weights=False)[0]
    model, report = exported(module, shape, batch=batch), Report()
    result = graphkit.optimizers.optimize(model, opset=opset, report=report, strict=True)
    found = operators(result)
    assert len(result.graph.node) <= most, found
    assert {operator: found[operator] for operator in wanted} == wanted
    for size in (2, 5) if batch else (shape[0],):
        feeds = {"x": np.random.default_rng(size).standard_normal((size, *shape[1:])).astype(np.float32)}
        assert_same(run(result, feeds), run(model, feeds), 1e-5)
