"""Networks: modules, layers, activations, losses and first values of parameters.

>>> import graphkit as gk
>>> model = gk.nn.Sequential(gk.nn.Linear(4, 8), gk.nn.relu, gk.nn.Linear(8, 2))
>>> loss = gk.nn.cross_entropy(model(gk.random.normal([3, 4])), gk.tensor([0, 1, 1]))
>>> loss.backward()
>>> [name for name, p in model.named_parameters() if p.grad is not None]
['0.weight', '0.bias', '2.weight', '2.bias']
"""

from __future__ import annotations

from graphkit.nn import initializers
from graphkit.nn.functions import (
    AvgPool,
    MaxPool,
    avg_pool,
    elu,
    flatten,
    gelu,
    global_avg_pool,
    leaky_relu,
    log_softmax,
    max_pool,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from graphkit.nn.layers import Conv, Dropout, Embedding, Linear
from graphkit.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber,
    l1,
    mse,
    nll,
)
from graphkit.nn.module import Module, Sequential
from graphkit.nn.normalization import BatchNorm, LayerNorm

__all__ = [
    "AvgPool", "BatchNorm", "Conv", "Dropout", "Embedding", "LayerNorm", "Linear", "MaxPool", "Module", "Sequential",
    "avg_pool", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "elu", "flatten", "gelu",
    "global_avg_pool", "huber", "initializers", "l1", "leaky_relu", "log_softmax", "max_pool", "mse", "nll", "relu",
    "sigmoid", "silu", "softmax", "softplus", "tanh",
]  # fmt: skip
