"""Raw exports of PyTorch models by both of its exporters; ``benchmarks.optimizers`` runs it in its own environment.

    python _optimizer_models.py FOLDER

The families are written here in plain PyTorch, small, with random weights. Each is exported as
``FOLDER/FAMILY-script.onnx`` (TorchScript, no constant folding) and ``FOLDER/FAMILY-dynamo.onnx`` (``torch.export``,
``optimize=False``), with sizes that may change where the model allows it, and its inputs as ``FOLDER/FAMILY.npz``.
"""

from __future__ import annotations

import math
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["EXPORTERS", "FAMILIES", "export"]

EXPORTERS = ("script", "dynamo")


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        straight = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = straight if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [Residual(a, b, s) for a, b, s in ((32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """Expand, depthwise, project."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        inner = inputs * 4
        self.skip = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), activation(),
            nn.Conv2d(inner, inner, 5, stride, 2, groups=inner, bias=False), nn.BatchNorm2d(inner), activation(),
            Squeeze(inner), nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.skip else y


def mobilenet(activation: type[nn.Module] = nn.Hardswish) -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), activation()]
    blocks = [Inverted(a, b, s, activation) for a, b, s in ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 128), activation(), nn.Dropout(0.2)]
    return nn.Sequential(*stem, *blocks, *head, nn.Linear(128, 100))


class Attend(nn.Module):
    """Attention written by hand, as in nanoGPT and timm."""

    def __init__(self, width: int, heads: int, fused: bool, causal: int = 0) -> None:
        super().__init__()
        self.heads, self.fused, self.causal = heads, fused, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if causal:
            self.register_buffer("mask", torch.tril(torch.ones(causal, causal)).view(1, 1, causal, causal))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=bool(self.causal))
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            if self.causal:
                scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A transformer block with the normalization first."""

    def __init__(self, width: int, heads: int, fused: bool, causal: int = 0, gelu: str = "none") -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = Attend(width, heads, fused, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token, learned positions that are resized."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, width, 7, 7))
        self.blocks = nn.Sequential(*(Block(width, 4, fused=True) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x + F.interpolate(self.positions, size=x.shape[-2:], mode="bilinear")
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        y: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return y


class Bert(nn.Module):
    """Embeddings, encoder layers of PyTorch's own, padding mask, pooled."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.kinds, self.places = nn.Embedding(500, width), nn.Embedding(2, width), nn.Embedding(64, width)
        self.norm = nn.LayerNorm(width)
        self.heads = 4
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    **{name: nn.Linear(width, width) for name in ("q", "k", "v", "o")},
                    "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
                    "norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width),
                }
            ) for _ in range(3)
        )  # fmt: skip
        self.pool = nn.Linear(width, width)

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0).expand(ids.shape)
        x = self.norm(self.words(ids) + self.kinds(kinds) + self.places(places))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer["norm1"](x + self.attend(layer, x, bias))
            x = layer["norm2"](x + layer["down"](F.gelu(layer["up"](x))))
        return x, torch.tanh(self.pool(x[:, 0]))

    def attend(self, layer: nn.ModuleDict, x: Tensor, bias: Tensor) -> Tensor:
        split = (x.shape[0], -1, self.heads, x.shape[2] // self.heads)
        q, k, v = (layer[name](x).view(split).transpose(1, 2) for name in ("q", "k", "v"))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + bias
        mixed = torch.matmul(F.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        y: Tensor = layer["o"](mixed.view(*mixed.shape[:2], x.shape[2]))
        return y


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


class GPT(nn.Module):
    """Causal, the mask a buffer, tanh GELU, logits of the tied embedding."""

    def __init__(self, width: int = 128, fused: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(500, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 4, fused, 64, "tanh") for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


class RMSNorm(nn.Module):
    """As Llama writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotated(x: Tensor) -> Tensor:
    """Half of it, negated, before the other half."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class LlamaLayer(nn.Module):
    """Rotary positions, grouped queries, SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, t, c = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, t, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(b, t, self.groups, self.size).transpose(1, 2)
        v = self.v(h).view(b, t, self.groups, self.size).transpose(1, 2)
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        times = self.heads // self.groups
        k, v = (
            y[:, :, None].expand(b, self.groups, times, t, self.size).reshape(b, self.heads, t, self.size)
            for y in (k, v)
        )
        weights = F.softmax(q @ k.transpose(2, 3) / math.sqrt(self.size) + mask, dim=-1, dtype=torch.float32)
        x = x + self.o((weights.to(q.dtype) @ v).transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Three layers, the tables of positions computed on the way."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(500, width), nn.Linear(width, 500, bias=False)
        self.layers = nn.ModuleList(LlamaLayer(width, 4, 2) for _ in range(3))
        self.norm = RMSNorm(width)
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 32, 2).float() / 32))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        places = torch.arange(ids.shape[1], device=ids.device)
        angles = places[:, None].float() * self.frequencies[None, :]
        table = torch.cat((angles, angles), dim=-1)[None, None]
        cos, sin = table.cos(), table.sin()
        mask = torch.triu(torch.full((ids.shape[1], ids.shape[1]), -10000.0), diagonal=1)[None, None]
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        y: Tensor = self.head(self.norm(x))
        return y


def double(inputs: int, outputs: int) -> nn.Module:
    conv1, conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
    return nn.Sequential(conv1, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1), conv2, nn.GroupNorm(4, outputs), nn.SiLU())


class UNet(nn.Module):
    """Down by pools, up by a transposed convolution and by nearest interpolation, crops to fit."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([double(3, 16), double(16, 32), double(32, 64)])
        self.up = nn.ConvTranspose2d(64, 32, 2, 2)
        self.join1, self.join2, self.out = double(64, 32), double(48, 16), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        c = self.up(self.down[2](F.max_pool2d(b, 2)))
        c = F.pad(c, [0, b.shape[3] - c.shape[3], 0, b.shape[2] - c.shape[2]])
        d = F.interpolate(self.join1(torch.cat([b, c], 1)), size=a.shape[2:], mode="nearest")
        return torch.sigmoid(self.out(self.join2(torch.cat([a, d], 1))))


class Tagger(nn.Module):
    """A bidirectional LSTM, a GRU, and log-probabilities of tags."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(300, 48)
        self.lstm = nn.LSTM(48, 64, 2, batch_first=True, bidirectional=True)
        self.gru, self.head = nn.GRU(128, 48, batch_first=True), nn.Linear(48, 12)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.gru(self.lstm(self.words(ids))[0])
        return F.log_softmax(self.head(x), dim=-1)


class Cells(nn.Module):
    """An LSTM cell in a Python loop, which exporters unroll."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(32, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 48)
        c = h
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        y: Tensor = self.head(h)
        return y


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of a picture, by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNextBlock(nn.Module):
    """Depthwise 7x7, then an MLP over the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    stem = [nn.Conv2d(3, 32, 4, 4), ChannelNorm(32), ConvNextBlock(32), ConvNextBlock(32)]
    rest = [ChannelNorm(32), nn.Conv2d(32, 64, 2, 2), ConvNextBlock(64), ConvNextBlock(64)]
    return nn.Sequential(*stem, *rest, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 100))


class DETR(nn.Module):
    """Convolutions, sine positions, PyTorch's Transformer, learned queries, boxes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(), Residual(32, width, 2))
        self.transformer = nn.Transformer(width, 4, 2, 2, 128, batch_first=True)
        self.queries = nn.Parameter(torch.randn(20, width))
        self.rows, self.columns = nn.Parameter(torch.rand(50, width // 2)), nn.Parameter(torch.rand(50, width // 2))
        self.kinds, self.boxes = nn.Linear(width, 11), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.backbone(x)
        height, width = h.shape[-2:]
        columns = self.columns[:width].unsqueeze(0).repeat(height, 1, 1)
        places = torch.cat([columns, self.rows[:height].unsqueeze(1).repeat(1, width, 1)], dim=-1).flatten(0, 1)
        source = places.unsqueeze(0) + 0.1 * h.flatten(2).permute(0, 2, 1)
        y = self.transformer(source, self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1))
        return self.kinds(y), self.boxes(y).sigmoid()


class Swin(nn.Module):
    """Windows, shifted by a roll, with a bias of relative positions."""

    def __init__(self, width: int = 64, window: int = 7) -> None:
        super().__init__()
        self.window, self.heads = window, 4
        self.patches, self.norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, self.heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("apart", apart[..., 0] * (2 * window - 1) + apart[..., 1])
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        for shift, qkv in zip((0, self.window // 2), self.qkv, strict=True):
            x = x + self.attend(torch.roll(self.norm(x), (-shift, -shift), (1, 2)), qkv).roll((shift, shift), (1, 2))
        y: Tensor = self.head(x.mean((1, 2)))
        return y

    def attend(self, x: Tensor, qkv: nn.Module) -> Tensor:
        b, height, width, c = x.shape
        w = self.window
        x = x.view(b, height // w, w, width // w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)
        q, k, v = qkv(x).reshape(-1, w * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.apart.view(-1)].view(w * w, w * w, -1).permute(2, 0, 1)
        y = ((q * c**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1) @ v
        y = y.transpose(1, 2).reshape(-1, height // w, width // w, w, w, c).permute(0, 1, 3, 2, 4, 5)
        return y.reshape(b, height, width, c)


class Segment(nn.Module):
    """Pooled context, bilinear interpolation, and a picture moved by a predicted grid."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.PReLU(24), Residual(24, 32, 2))
        self.context, self.atrous = nn.Conv2d(32, 16, 1), nn.Conv2d(32, 16, 3, padding=2, dilation=2)
        self.out, self.flow = nn.Conv2d(32, 5, 1), nn.Conv2d(32, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        context = F.interpolate(self.context(h.mean((2, 3), keepdim=True)), h.shape[-2:], mode="bilinear")
        h = torch.cat([context.clamp(min=0), self.atrous(h).clamp(0, 6)], 1)
        across = torch.linspace(-1, 1, h.shape[-1])
        grid = torch.stack(torch.meshgrid(across, across, indexing="xy"), -1).unsqueeze(0)
        moved = F.grid_sample(self.out(h), grid + 0.1 * self.flow(h).permute(0, 2, 3, 1), align_corners=False)
        return F.interpolate(moved, scale_factor=4, mode="bilinear", align_corners=False).softmax(1)


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
    np.savez(folder / f"{family}.npz", **dict(zip(names, (a.numpy() for a in args), strict=True)))


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
