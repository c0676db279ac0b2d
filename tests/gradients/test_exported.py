"""Transformers as PyTorch's older exporter writes them: without shapes inside, and nothing folded."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit.optimizers.add_gradients import add_gradients

pytestmark = pytest.mark.torch


def attention(torch):
    class Alone(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.heads(x, x, x, need_weights=False)[0]

    return Alone()


def encoder(torch):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, norm_first=True, activation="gelu")
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def causal(torch):
    class Causal(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.split, self.join = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

        def forward(self, x):
            parts = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.split(x).chunk(3, -1))
            y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            return self.join(y.transpose(1, 2).flatten(2))

    return Causal()


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("make", [attention, encoder, causal])
def test_every_weight(make, folded):
    import torch

    torch.manual_seed(0)
    module = make(torch).train()
    x = torch.randn(2, 5, 8)
    y = module(x)
    y.square().mean().backward()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x,), file, dynamo=False, do_constant_folding=folded, opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "batch", 1: "time"}},
        )  # fmt: skip
    model = onnx.load_from_string(file.getvalue())
    del model.graph.value_info[:]
    model.graph.node.append(onnx.helper.make_node("Mul", ["y", "y"], ["squares"]))
    model.graph.node.append(onnx.helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    found = gk.run(add_gradients(model, "loss", "all"), {"x": x.numpy()}, optimizations=False)
    np.testing.assert_allclose(found["y"], y.detach(), atol=1e-5)
    for name, p in module.named_parameters():
        close = lambda g, p=p: np.allclose(g, p.grad, rtol=1e-3, atol=1e-6)
        if f"{name}_grad" in found:
            assert close(found[f"{name}_grad"]), name
        else:  # folding transposed it, and gave it another name
            turned = [g.T for n, g in found.items() if n.startswith("onnx::") and g.shape == tuple(p.shape[::-1])]
            assert any(map(close, turned)), name
