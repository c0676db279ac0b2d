"""How large the gradients of a model's parameters are: whether they vanish or explode on their way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphkit.errors import GradientError
from graphkit.exporters.inputs import random_inputs
from graphkit.modelfile import ModelLike, read_model
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.runtime import Session

__all__ = ["GradientNorm", "gradient_norms"]


@dataclass(frozen=True, slots=True)
class GradientNorm:
    """The Euclidean norms of one parameter and of the gradient with respect to it."""

    name: str
    shape: tuple[int, ...]
    parameter: float
    gradient: float


def gradient_norms(
    model: ModelLike,
    of: str = "loss",
    inputs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
) -> list[GradientNorm]:
    """Return the norm of the gradient of the scalar ``of`` for every floating initializer, in the model's order.

    Inputs that are not given are drawn from ``seed``. A parameter that ``of`` does not depend on has norm 0. Raises
    ``GradientError`` for what cannot be differentiated.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float loss) <float[2] w = {3, 4}>
    ... {p = Mul(x, w) loss = ReduceSum<keepdims = 0>(p)}'''
    >>> gradient_norms(onnx.parser.parse_model(text), inputs={"x": np.array([3, 4], "float32")})
    [GradientNorm(name='w', shape=(2,), parameter=5.0, gradient=5.0)]
    """
    loaded = read_model(model)
    tensors = {
        name: value.const_value
        for name, value in loaded.graph.initializers.items()
        if value.const_value is not None and value.const_value.dtype.is_floating_point()
    }
    if not tensors:
        raise GradientError("the model has no floating-point initializers, so there are no gradients to measure")
    with_gradients = add_gradients(loaded, of, list(tensors), unreached="zeros")
    session = Session(with_gradients)
    wanted = [f"{name}_grad" for name in tensors]
    found = session.run(random_inputs(loaded, dims, seed, inputs), wanted)
    return [
        GradientNorm(name, tuple(tensor.shape.numpy()), _norm(tensor), _norm(found[f"{name}_grad"]))
        for name, tensor in tensors.items()
    ]


def _norm(value: ir.TensorProtocol | np.ndarray[Any, Any]) -> float:
    array = value if isinstance(value, np.ndarray) else value.numpy()
    return float(np.linalg.norm(array.astype(np.float64)))
