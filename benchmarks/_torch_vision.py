"""Networks that look at pictures in plain PyTorch, small, for ``benchmarks.optimizers``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._torch_text import Block

__all__ = ["DETR", "Segment", "Swin", "UNet", "ViT", "convnext", "mobilenet", "resnet"]


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
