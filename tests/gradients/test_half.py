"""Gradients in half precision: types kept, files valid, and the numbers of float32, as near as half precision comes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit.interpreter import apply

op = gk.op
rng = np.random.default_rng(0)


def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)


def recurrent(name, gates, **attributes):
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    states = [draw(directions, 2, 3)] * (2 if name == "LSTM" else 1)
    arrays = [
        draw(4, 2, 5),
        draw(directions, gates * 3, 5),
        draw(directions, gates * 3, 3),
        draw(directions, gates * 6),
    ]

    def f(x, w, r, b, *initial):
        return getattr(op, name)(x, w, r, b, None, *initial, hidden_size=3, outputs=2, **attributes)

    return f, [*arrays, *states]


def ints(*values):
    return gk.tensor(np.array(values, dtype=np.int32))


Q, K, V = draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 6)
X, SCALE, SHIFT = draw(2, 3, 8), draw(8), draw(8)
COS, SIN, PLACES = draw(9, 4), draw(9, 4), np.array([[0, 3, 8], [2, 2, 1]])

# name: a function, its inputs
CASES = {
    "Attention": (lambda q, k, v: op.Attention(q, k, v), [Q, K, V]),
    "Attention, causal": (lambda q, k, v: op.Attention(q, k, v, is_causal=1, softcap=2.0), [Q, K, V]),
    "Attention, mask": (lambda q, k, v, m: op.Attention(q, k, v, m, scale=0.3), [Q, K, V, draw(3, 5)]),
    "Attention, bool mask": (lambda q, k, v: op.Attention(q, k, v, np.tril(np.ones((3, 5), bool))), [Q, K, V]),
    "Attention, cache": (
        lambda q, k, v, a, b: op.Attention(q, k, v, None, a, b, outputs=3),
        [Q, K, V, draw(2, 2, 2, 8), draw(2, 2, 2, 6)]),
    "Attention, softmax in float32": (lambda q, k, v: op.Attention(q, k, v, softmax_precision="float32"), [Q, K, V]),
    "GroupQueryAttention, cache and sinks": (
        lambda q, k, v, a, b, s: apply(
            "GroupQueryAttention", [q, k, v, a, b, ints(4, 5), ints(6), *[None] * 4, s],
            {"num_heads": 2, "kv_num_heads": 1}, 3, "com.microsoft"),
        [draw(2, 1, 16), draw(2, 1, 8), draw(2, 1, 8), draw(2, 1, 5, 8), draw(2, 1, 5, 8), draw(2)]),
    "MultiHeadAttention, mask": (
        lambda q, k, v, b: apply(
            "MultiHeadAttention", [q, k, v, None, ints(2, 3), b], {"num_heads": 2}, 1, "com.microsoft")[0],
        [draw(2, 3, 8), draw(2, 3, 8), draw(2, 3, 8), draw(1, 2, 3, 3)]),
    "RotaryEmbedding": (
        lambda x, c, s: op.RotaryEmbedding(x, c, s, PLACES), [draw(2, 4, 3, 8), COS, SIN]),
    "RotaryEmbedding, interleaved": (
        lambda x, c, s: op.RotaryEmbedding(x, c, s, PLACES, num_heads=4, interleaved=1), [draw(2, 3, 32), COS, SIN]),
    "RMSNormalization": (lambda x, s: op.RMSNormalization(x, s, epsilon=1e-3), [X, SCALE]),
    "RMSNormalization, axes": (lambda x, s: op.RMSNormalization(x, s, axis=1), [X, draw(3, 8)]),
    "LayerNormalization": (lambda x, s, b: op.LayerNormalization(x, s, b, epsilon=1e-3), [X, SCALE, SHIFT]),
    "LayerNormalization, statistics": (lambda x, s: op.LayerNormalization(x, s, axis=1, outputs=3), [X, draw(3, 8)]),
    "RNN": recurrent("RNN", 1),
    "GRU": recurrent("GRU", 3),
    "GRU, linear before reset": recurrent("GRU", 3, linear_before_reset=1),
    "LSTM": recurrent("LSTM", 4),
    "LSTM, both ways": recurrent("LSTM", 4, direction="bidirectional"),
    "LinearAttention": (
        lambda q, k, v, d, b: op.LinearAttention(q, k, v, None, d, b, q_num_heads=4, kv_num_heads=2),
        [draw(2, 3, 16), draw(2, 3, 8) / 3, draw(2, 3, 6), -abs(draw(2, 3, 2)), abs(draw(2, 3, 2)) / 3]),
    "CausalConvWithState": (
        lambda x, w, b: op.CausalConvWithState(x, w, b, activation="silu"), [draw(2, 3, 6), draw(3, 1, 3), draw(3)]),
    "SwiGLU": (lambda a, b: op.SwiGLU(a, b), [X, X[::-1].copy()]),
}  # fmt: skip


def gradients_of(f):
    def loss(*tensors):
        made = f(*tensors)
        made = made if isinstance(made, tuple) else (made,)
        # in float32, as a loss of half precision is taken
        return sum((y.astype("float32") ** 2).mean() * (n + 1.0) for n, y in enumerate(made))

    def g(*tensors):
        return gk.grad(loss, range(len(tensors)))(*tensors)

    return g


def in_float32(proto):
    """The model with float32 wherever it says bfloat16."""
    made = onnx.ModelProto.FromString(proto.SerializeToString())

    def widen(graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        for tensor in graph.initializer:
            widen_tensor(tensor)
        for node in graph.node:
            for a in node.attribute:
                if a.name in ("to", "softmax_precision", "stash_type") and a.i == onnx.TensorProto.BFLOAT16:
                    a.i = onnx.TensorProto.FLOAT
                if a.HasField("t"):
                    widen_tensor(a.t)
                if a.HasField("g"):
                    widen(a.g)

    def widen_tensor(tensor):
        if tensor.data_type == onnx.TensorProto.BFLOAT16:
            array = onnx.numpy_helper.to_array(tensor).astype("f")
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))

    widen(made.graph)
    return made


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_types_and_numbers(name, dtype, symbolic):
    f, arrays = CASES[name]
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    given = [a.astype(kind) for a in arrays]
    exact = gradients_of(f)(*[gk.tensor(a.astype("f")) for a in given])
    specs = [gk.spec(dtype, [f"d{n}", *a.shape[1:]] if symbolic and n == 0 else a.shape) for n, a in enumerate(given)]
    model = gk.trace(gradients_of(f), *specs, input_names=[f"x{n}" for n in range(len(given))])
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    number = onnx.helper.np_dtype_to_tensor_dtype(kind)
    assert {o.type.tensor_type.elem_type for o in proto.graph.output} == {number}
    feeds = {f"x{n}": a for n, a in enumerate(given)}
    if dtype == "bfloat16":  # the CPU provider has few kernels for it
        model, feeds = in_float32(proto), {n: a.astype("f") for n, a in feeds.items()}
    found = list(gk.run(model, feeds, optimizations=False).values())
    for n, (mine, wide) in enumerate(zip(found, exact, strict=True)):
        assert mine.dtype == ("float16" if dtype == "float16" else "float32")
        scale = max(0.02, np.abs(wide.numpy()).max())
        np.testing.assert_allclose(mine.astype("f"), wide.numpy(), rtol=1.6e-2, atol=8e-3 * scale, err_msg=f"input {n}")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_slope_of_gelu_far_from_the_origin(approximate):
    x = gk.tensor(np.array([-60000, -300, -41, 41, 300, 60000], "float16"))
    got = gk.grad(lambda x: gk.op.Gelu(x, approximate=approximate).sum())(x).numpy()
    np.testing.assert_array_equal(got, np.array([0, 0, 0, 1, 1, 1], "float16"))


# what onnx's reference evaluator has wrong in bfloat16, or not at all
AS_FLOAT32 = {
    "MaxPool": (lambda x: gk.op.MaxPool(x, kernel_shape=[2, 2])[0], (1, 2, 4, 4)),
    "AveragePool": (lambda x: gk.op.AveragePool(x, kernel_shape=[2, 2]), (1, 2, 4, 4)),
    "Det": (gk.op.Det, (3, 3)),
    "GlobalLpPool": (gk.op.GlobalLpPool, (1, 2, 3, 3)),
    "CumProd": (lambda x: gk.op.CumProd(x, gk.tensor(np.int64(0))), (4,)),
    "ConvTranspose": (lambda x: gk.op.ConvTranspose(x, gk.tensor(np.ones((2, 1, 2, 2))).astype(x.dtype)), (1, 2, 3, 3)),
}


@pytest.mark.parametrize("name", AS_FLOAT32)
def test_bfloat16_is_float32_rounded(name):
    f, shape = AS_FLOAT32[name]
    x = gk.tensor(np.random.default_rng(0).uniform(1, 2, shape)).astype("bfloat16")
    value, gradient = gk.value_and_grad(lambda x: f(x).sum())(x)
    expected, slope = gk.value_and_grad(lambda x: f(x).sum())(x.astype("float32"))
    assert {gk.dtypes.name(value.dtype), gk.dtypes.name(gradient.dtype)} == {"bfloat16"}
    np.testing.assert_allclose(value.astype("float32").numpy(), expected.numpy(), rtol=0.03)
    np.testing.assert_allclose(gradient.astype("float32").numpy(), slope.numpy(), rtol=0.06, atol=0.03)
