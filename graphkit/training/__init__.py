"""Training on stock ONNX Runtime: a model's whole step as one ONNX graph, and the Trainer that runs it.

>>> import graphkit as gk
>>> model = gk.nn.Sequential(gk.nn.Linear(784, 32), gk.nn.relu, gk.nn.Linear(32, 10))
>>> gk.training.build(model, "cross_entropy", gk.optim.SGD(0.1), inputs={"x": gk.spec("float32", ["batch", 784])})
<TrainingGraph of 25,450 parameters, SGD, ... nodes, inputs ['x', 'labels']>
"""

from __future__ import annotations

from graphkit.training.build import build
from graphkit.training.graphs import TrainingGraph
from graphkit.training.losses import LOSSES
from graphkit.training.trainer import Trainer

__all__ = ["LOSSES", "Trainer", "TrainingGraph", "build"]
