"""Transformers, recurrent networks and their parts in plain PyTorch, small, for ``benchmarks.optimizers``."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["GPT", "Bert", "Block", "Cells", "Llama", "Tagger", "encoder"]


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
