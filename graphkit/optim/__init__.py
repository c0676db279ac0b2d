"""How parameters follow their gradients: update rules, learning-rate schedules, gradient clipping.

A rule is written once, on Tensors. ``optimizer.step(parameters)`` runs it eagerly; ``graphkit.optimizers.add_updates``
records the same rule into a training graph. (Not to be confused with ``graphkit.optimizers``, which rewrites graphs.)

>>> import graphkit as gk
>>> w = gk.tensor([1.0, 2.0], requires_grad=True)
>>> optimizer = gk.optim.SGD(0.1)
>>> (w * w).sum().backward()
>>> optimizer.step([w])
>>> w.tolist()
[0.8..., 1.6...]
"""

from __future__ import annotations

from graphkit.optim.clipping import clip_by_global_norm, global_norm
from graphkit.optim.optimizer import Optimizer
from graphkit.optim.rules import SGD, Adam, AdamW
from graphkit.optim.schedules import constant, cosine, exponential, step_decay, warm_up

__all__ = [
    "SGD", "Adam", "AdamW", "Optimizer", "clip_by_global_norm", "constant", "cosine", "exponential", "global_norm",
    "step_decay", "warm_up",
]  # fmt: skip
