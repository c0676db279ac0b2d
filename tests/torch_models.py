"""The models of models/ in PyTorch, with the same names of parameters, for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["mirrored"]


def mirrored(torch: Any, name: str, model: Any) -> Any:
    """A PyTorch module with the parameters of ``model``."""
    family = next(kind for kind in ("mlp", "gpt", "lenet", "resnet", "lstm") if kind in name)
    made = {"mlp": _mlp, "lenet": _lenet, "resnet": _resnet, "gpt": _gpt, "lstm": _lstm}[family](torch, model)
    state = {n: torch.tensor(np.array(v)) for n, v in model.state_dict().items()}
    missing = set(dict(made.named_parameters())) - set(state)
    assert not missing, missing
    made.load_state_dict(state, strict=False)
    return made


def _mlp(torch: Any, model: Any) -> Any:
    nn = torch.nn

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(*layer.weight.shape[::-1]) for layer in model.layers)

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x))
            return self.layers[-1](x)

    return MLP()


def _lenet(torch: Any, model: Any) -> Any:
    nn = torch.nn

    class LeNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6)
            self.conv2, self.norm2 = nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16)
            self.head = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

        def forward(self, x):
            x = x.reshape(-1, 1, 28, 28)
            for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
                x = torch.max_pool2d(torch.relu(norm(conv(x))), 2)
            return self.head(x.flatten(1))

    return LeNet()


def _lstm(torch: Any, model: Any) -> Any:
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self, width, inputs):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, 4 * width, inputs))
            self.recurrent = nn.Parameter(torch.zeros(1, 4 * width, width))
            self.bias = nn.Parameter(torch.zeros(1, 8 * width))

        def forward(self, x):
            width = self.recurrent.shape[2]
            offset = self.bias[0, : 4 * width] + self.bias[0, 4 * width :]
            state = memory = torch.zeros(x.shape[1], width)
            states = []
            for row in x:
                gates = row @ self.weight[0].T + state @ self.recurrent[0].T + offset
                enter, leave, forget, cell = gates.split(width, 1)
                memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(cell)
                state = torch.sigmoid(leave) * torch.tanh(memory)
                states.append(state)
            return torch.stack(states)

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer(layer.width, layer.weight.shape[2]) for layer in model.layers)
            self.head = nn.Linear(model.layers[-1].width, 10)

        def forward(self, x):
            x = x.reshape(-1, model.side, model.side).transpose(0, 1)
            for layer in self.layers:
                x = layer(x)
            return self.head(x[-1])

    return Rows()


def _resnet(torch: Any, model: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, block):
            super().__init__()
            outputs, inputs = block.conv1.weight.shape[:2]
            stride = block.conv1.stride[0]
            self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
            self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
            self.shortcut = None
            if block.shortcut is not None:
                straight = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.shortcut = nn.Sequential(straight, nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
            return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            width, channels = model.stem.weight.shape[:2]
            self.stem, self.norm = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.stages = nn.Sequential(*(Block(b) for b in model.stages.parts))
            self.head = nn.Linear(*model.head.weight.shape[::-1])

        def forward(self, x):
            if x.ndim == 2:
                x = x.reshape(-1, 1, 28, 28)
            return self.head(self.stages(torch.relu(self.norm(self.stem(x)))).mean((2, 3)))

    return ResNet()


def _gpt(torch: Any, model: Any) -> Any:
    nn = torch.nn
    width = model.norm.weight.shape[0]

    class Attention(nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (f(x).reshape(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(b, t, c))

    class Layer(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention(layer.attention.heads)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(*model.tokens.weight.shape)
            self.places = nn.Embedding(*model.places.weight.shape)
            self.layers = nn.ModuleList(Layer(layer) for layer in model.layers)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, model.head.weight.shape[0], bias=False)
            if model.head.weight is model.tokens.weight:
                self.head.weight = self.tokens.weight

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return GPT()
