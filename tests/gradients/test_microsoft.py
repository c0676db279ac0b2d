"""com.microsoft's operators: what is differentiated is what the kernel computes, and its gradient is right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit import dtypes, interpreter
from graphkit.bodies import apart
from graphkit.errors import GradientError
from graphkit.gradients.lowered import LOWERINGS, Call
from graphkit.inference import Type
from graphkit.interpreter import apply
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.runtime import run
from graphkit.testing import differences
from tests.gradients.loaded import check_loaded

rng = np.random.default_rng(0)
MS = "com.microsoft"


def draw(*shape):
    return rng.normal(size=shape)


X, Y = draw(2, 3, 4), draw(2, 4, 5)
SCALE, SHIFT, BIAS = draw(4), draw(4), draw(4)
Q, K, V = draw(2, 3, 8), draw(2, 5, 8), draw(2, 5, 8)
TOKENS, KINDS = np.array([[0, 2, 1], [4, 4, 3]], dtype=np.int32), np.array([[0, 1, 1], [0, 0, 1]], dtype=np.int32)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=np.int32)
COS, SIN = draw(9, 2), draw(9, 2)
HEADS = {"num_heads": 2}
IMAGE, KERNEL = draw(2, 2, 5, 5), draw(3, 2, 3, 3)

# GroupQueryAttention: 4 heads of queries, 2 of keys and values, each 16 wide; three tokens, five or eight before them.
GQ, GK, GV = draw(2, 3, 64), draw(2, 3, 32), draw(2, 3, 32)
PAST_K, PAST_V = draw(2, 2, 5, 16), draw(2, 2, 5, 16)
LONG_K, LONG_V = draw(2, 2, 8, 16), draw(2, 2, 8, 16)
TURN = (draw(16, 8), draw(16, 8))
GROUPS = {"num_heads": 4, "kv_num_heads": 2}
BUFFER = draw(4, 2, 6, 4), draw(4, 2, 6, 4)
BEAMS = rng.integers(0, 2, size=(2, 2, 6)).astype(np.int32)


def ints(*values):
    return np.array(values, dtype=np.int32)


def grouped(tokens, past, counts, total, *rest, sequences=2, key=True, **attributes):
    """A call with the first ``tokens`` tokens of the first sequences, and with rows of a cache before them."""
    q, k, v = (t[:sequences, :tokens] for t in (GQ, GK, GV))
    if not key:
        q, k, v = np.concatenate([q, k, v], axis=2), None, None
    before = [None, None] if past is None else [p[:sequences] for p in past]
    inputs = [q, k, v, *before, ints(*counts), ints(total), *rest]
    return ("GroupQueryAttention", MS, inputs, GROUPS | attributes, 4 if "qk_output" in attributes else 3)


# name: operator, domain, inputs, attributes, outputs that are compared
CASES = {
    "FusedMatMul": ("FusedMatMul", MS, [X, Y], {"alpha": 0.5}, 1),
    "FusedMatMul, both transposed": ("FusedMatMul", MS, [draw(2, 4, 3), draw(2, 5, 4)], {"transA": 1, "transB": 1}, 1),
    "FusedMatMul, batch transposed": ("FusedMatMul", MS, [draw(3, 2, 4), Y], {"transBatchA": 1}, 1),
    "FusedMatMul, all transposed": (
        "FusedMatMul", MS, [draw(4, 2, 3), Y], {"transBatchA": 1, "transA": 1, "alpha": 2.0}, 1),
    "FusedGemm": ("FusedGemm", MS, [draw(3, 4), draw(4, 5), draw(5)], {"activation": "Relu", "alpha": 0.7}, 1),
    "FusedGemm leaky": (
        "FusedGemm", MS, [draw(3, 4), draw(5, 4), draw(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.2, "transB": 1}, 1),
    "FusedConv": ("FusedConv", MS, [IMAGE, KERNEL, draw(3)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, 1),
    "FusedConv, sum": ("FusedConv", MS, [IMAGE, KERNEL, draw(3), draw(2, 3, 3, 3)], {"activation": "Relu"}, 1),
    "FusedConv, clip": (
        "FusedConv", MS, [IMAGE, KERNEL], {"activation": "Clip", "activation_params": [-0.5, 0.5],
         "strides": [2, 2]}, 1),
    "Gelu": ("Gelu", MS, [X], {}, 1),
    "BiasGelu": ("BiasGelu", MS, [X, BIAS], {}, 1),
    "FastGelu": ("FastGelu", MS, [X], {}, 1),
    "FastGelu, bias": ("FastGelu", MS, [X, BIAS], {}, 1),
    "QuickGelu": ("QuickGelu", MS, [X], {"alpha": 1.3}, 1),
    "Trilu": ("Trilu", MS, [X], {"upper": 0}, 1),
    "SkipLayerNormalization": (
        "SkipLayerNormalization", MS, [X, draw(2, 3, 4), SCALE, SHIFT, BIAS], {"epsilon": 1e-3}, 1),
    "SkipLayerNormalization, sum": ("SkipLayerNormalization", MS, [X, draw(2, 3, 4), SCALE, SHIFT, BIAS], {}, 4),
    "SkipLayerNormalization, no shift": ("SkipLayerNormalization", MS, [X, draw(2, 3, 4), SCALE], {}, 1),
    "SkipSimplifiedLayerNormalization": (
        "SkipSimplifiedLayerNormalization", MS, [X, draw(2, 3, 4), SCALE, BIAS], {"epsilon": 1e-2}, 4),
    "SimplifiedLayerNormalization": ("SimplifiedLayerNormalization", "", [X, SCALE], {"epsilon": 1e-3}, 2),
    "SimplifiedLayerNormalization, two axes": ("SimplifiedLayerNormalization", "", [X, draw(3, 4)], {"axis": 1}, 1),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization", MS, [TOKENS, KINDS, draw(6, 4), draw(5, 4), draw(2, 4), SCALE, SHIFT], {}, 3),
    "EmbedLayerNormalization, positions": (
        "EmbedLayerNormalization", MS, [TOKENS, None, draw(6, 4), draw(5, 4), None, SCALE, SHIFT, None,
                                        np.array([[0, 1, 4], [2, 2, 3]], dtype=np.int32)], {}, 3),
    "MultiHeadAttention": ("MultiHeadAttention", MS, [Q, K, V], HEADS, 1),
    "MultiHeadAttention, biases": ("MultiHeadAttention", MS, [Q, K, V, draw(24), MASK, draw(1, 2, 3, 5)], HEADS, 1),
    "MultiHeadAttention, lengths": (
        "MultiHeadAttention", MS, [Q, K, V, None, np.array([3, 5], dtype=np.int32)], HEADS | {"scale": 0.3}, 1),
    "MultiHeadAttention, causal": (
        "MultiHeadAttention", MS, [Q, K[:, :3], V[:, :3]], HEADS | {"unidirectional": 1}, 1),
    "MultiHeadAttention, other keys": (
        "MultiHeadAttention", MS, [Q, draw(2, 2, 5, 4), draw(2, 2, 5, 4)], HEADS, 1),
    "MultiHeadAttention, cache": (
        "MultiHeadAttention", MS, [Q, K[:, :3], V[:, :3], None, None, None, draw(2, 2, 2, 4), draw(2, 2, 2,
         4)], HEADS, 3),
    "Attention": ("Attention", MS, [X, draw(4, 24), draw(24)], HEADS, 1),
    "Attention, causal": ("Attention", MS, [X, draw(4, 24), draw(24)], HEADS | {"unidirectional": 1}, 1),
    "Attention, mask": (
        "Attention", MS, [X, draw(4, 24), draw(24), MASK[:, 1:4], None, draw(1, 2, 3, 3)], HEADS | {"scale": 0.4}, 1),
    "Attention, sizes": (
        "Attention", MS, [X, draw(4, 20), draw(20)], HEADS | {"qkv_hidden_sizes": [8, 8, 4]}, 1),
    "Attention, cache": ("Attention", MS, [X, draw(4, 24), draw(24), None, draw(2, 2, 2, 2, 4)], HEADS, 2),
    "GroupQueryAttention": (
        "GroupQueryAttention", MS,
        [draw(2, 3, 32), draw(2, 3, 16), draw(2, 3, 16), None, None, np.array([2, 2], dtype=np.int32),
         np.array([3], dtype=np.int32)],
        {"num_heads": 4, "kv_num_heads": 2}, 3),
    "GroupQueryAttention, packed, rotary": (
        "GroupQueryAttention", MS,
        [draw(2, 3, 128), None, None, None, None, np.array([2, 2], dtype=np.int32), np.array([3],
         dtype=np.int32), draw(9, 8), draw(9, 8)],
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 1),
    "GroupQueryAttention, window": (
        "GroupQueryAttention", MS,
        [draw(1, 5, 32), draw(1, 5, 16), draw(1, 5, 16), None, None, np.array([4], dtype=np.int32),
         np.array([5], dtype=np.int32)],
        {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 2, "softcap": 1.5}, 1),
    "GroupQueryAttention, sinks": grouped(3, None, [2, 2], 3, *[None] * 4, draw(4)),
    "GroupQueryAttention, smooth": grouped(3, None, [2, 2], 3, smooth_softmax=1),
    "GroupQueryAttention, scores": grouped(
        3, None, [2, 2], 3, *[None] * 3, draw(1, 4, 3, 3), draw(4), qk_output=1, softcap=1.5),
    "GroupQueryAttention, weights": grouped(
        3, None, [2, 2], 3, *[None] * 3, draw(2, 1, 3, 3), draw(4), qk_output=2, softcap=1.5),
    "GroupQueryAttention, not causal": grouped(3, None, [2, 1], 3, causal=0),
    "GroupQueryAttention, prompt positions": grouped(
        3, None, [2, 2], 3, *TURN, np.array([[4, 9, 2], [1, 1, 3]]), do_rotary=1),
    "GroupQueryAttention, cache": grouped(1, (PAST_K, PAST_V), [5, 5], 6),
    "GroupQueryAttention, cache of several lengths": grouped(1, (PAST_K, PAST_V), [3, 5], 6, local_window_size=3),
    "GroupQueryAttention, cache, not causal": grouped(1, (PAST_K, PAST_V), [3, 5], 6, causal=0),
    "GroupQueryAttention, cache, weights": grouped(
        1, (PAST_K, PAST_V), [5, 5], 6, *[None] * 3, draw(2, 4, 1, 6), draw(4), qk_output=2, scale=0.2),
    "GroupQueryAttention, cache, rotary": grouped(
        1, (PAST_K, PAST_V), [2, 5], 6, *TURN, do_rotary=1, rotary_interleaved=1),
    "GroupQueryAttention, cache, positions": grouped(
        1, (PAST_K, PAST_V), [3, 5], 6, *TURN, np.array([[7], [9]]), do_rotary=1),
    "GroupQueryAttention, cache, packed": grouped(1, (PAST_K, PAST_V), [3, 5], 6, *TURN, key=False, do_rotary=1),
    "GroupQueryAttention, cache, several tokens": grouped(
        3, (PAST_K, PAST_V), [7], 8, *TURN, np.array([[7, 9, 1]]), sequences=1, do_rotary=1),
    "GroupQueryAttention, buffer": grouped(1, (LONG_K, LONG_V), [3, 5], 6, *[None] * 3, draw(2, 4, 1, 6)),
    "GroupQueryAttention, buffer, several tokens": grouped(
        3, (LONG_K, LONG_V), [4], 5, *TURN, sequences=1, do_rotary=1, local_window_size=2),
    "GroupQueryAttention, prompt in a buffer": grouped(
        3, (LONG_K, LONG_V), [2, 2], 3, *TURN, np.array([[4, 9, 2], [1, 1, 3]]), do_rotary=1),
    "GroupQueryAttention, a cache that evicts": grouped(
        1, (PAST_K, PAST_V), [4, 7], 8, *TURN, sliding_window_cache=1, local_window_size=5, do_rotary=1),
    "GroupQueryAttention, a cache that evicts several": grouped(
        1, (PAST_K, PAST_V), [7, 10], 11, *[None] * 3, draw(1, 4, 1, 11), sliding_window_cache=1, local_window_size=3),
    "GroupQueryAttention, a cache that evicts, several tokens": grouped(
        3, (LONG_K, LONG_V), [12], 13, *TURN, sequences=1, sliding_window_cache=1, local_window_size=4, do_rotary=1),
    "MultiHeadAttention, bias and other keys": (
        "MultiHeadAttention", MS, [Q, draw(2, 2, 5, 4), draw(2, 2, 5, 4), draw(24)], HEADS, 1),
    "MultiHeadAttention, mask of every query": (
        "MultiHeadAttention", MS, [Q, K, V, None, rng.integers(0, 2, size=(2, 3, 5)).astype(np.int32)], HEADS, 1),
    "MultiHeadAttention, sums of lengths": (
        "MultiHeadAttention", MS, [Q, K, V, None, ints(3, 4, 0, 3, 6, 0, 3, 7)], HEADS, 1),
    "MultiHeadAttention, cache and lengths": (
        "MultiHeadAttention", MS, [Q, K[:, :3], V[:, :3], None, ints(3, 5), None, draw(2, 2, 2, 4), draw(2, 2, 2, 4)],
        HEADS, 3),
    "MultiHeadAttention, buffer": (
        "MultiHeadAttention", MS, [draw(4, 1, 8), draw(4, 1, 8), draw(4, 1, 8), None, None, draw(1, 2, 1, 4), *BUFFER,
                                   ints(3)], HEADS, 3),
    "MultiHeadAttention, empty buffer": (
        "MultiHeadAttention", MS, [draw(4, 1, 8), draw(4, 1, 8), draw(4, 1, 8), *[None] * 3, *BUFFER, ints(0)],
        HEADS, 3),
    "MultiHeadAttention, buffer, several tokens": (
        "MultiHeadAttention", MS, [*(draw(4, 3, 8) for _ in range(3)), *[None] * 3, *BUFFER, ints(2)], HEADS, 3),
    "MultiHeadAttention, beams": (
        "MultiHeadAttention", MS, [draw(4, 1, 8), draw(4, 1, 8), draw(4, 1, 8), draw(24), None, None, *BUFFER, ints(4),
                                   BEAMS], HEADS, 3),
    "Attention, ends and starts": (
        "Attention", MS, [X, draw(4, 24), draw(24), ints(3, 2, 1, 0)], HEADS, 1),
    "Attention, ends": ("Attention", MS, [X, draw(4, 24), draw(24), ints(2, 3)], HEADS, 1),
    "Attention, sums of lengths": (
        "Attention", MS, [X, draw(4, 24), draw(24), ints(2, 3, 0, 3, 5, 0, 3, 6)], HEADS, 1),
    "Attention, cache, ends and starts": (
        "Attention", MS, [X, draw(4, 24), draw(24), ints(5, 4, 0, 1), draw(2, 2, 2, 2, 4)],
        HEADS | {"unidirectional": 1}, 2),
    "LinearAttention": (  # keys that are short, decays and rates of less than one: the state does not grow
        "LinearAttention", MS, [draw(2, 3, 12), draw(2, 3, 6) / 4, draw(2, 3, 4), draw(2, 2, 3, 2), -abs(draw(2, 3, 2)),
                                rng.uniform(size=(2, 3, 2))], {"q_num_heads": 4, "kv_num_heads": 2}, 2),
    "CausalConvWithState": (
        "CausalConvWithState", MS, [draw(2, 3, 5), draw(3, 1, 3), draw(3), draw(2, 3, 2)], {"activation": "silu"}, 2),
    "CausalConvWithState, dilation": (
        "CausalConvWithState", MS, [draw(2, 3, 5), draw(3, 1, 3), draw(3)], {"dilation": 2}, 2),
    "CausalConvWithState, channels last": (
        "CausalConvWithState", MS, [draw(2, 5, 3), draw(3, 1, 3), None, draw(2, 4, 3)],
        {"dilation": 2, "channels_last": 1}, 2),
    "RotaryEmbedding, packed": (
        "RotaryEmbedding", MS, [draw(2, 3, 12), np.array([[0, 1, 2], [4, 5, 8]]), COS, SIN],
        {"is_packed_batching": 1}, 1),
    "RotaryEmbedding": (
        "RotaryEmbedding", MS, [draw(2, 3, 12), np.array([[0, 1, 2], [4, 5, 8]]), COS, SIN], {}, 1),
    "RotaryEmbedding, first position": (
        "RotaryEmbedding", MS, [draw(2, 3, 12), np.array([3]), COS, SIN], {"interleaved": 1}, 1),
    "RotaryEmbedding, by heads": ("RotaryEmbedding", MS, [draw(2, 3, 4, 4), np.array([2]), COS, SIN], {}, 1),
    "RotaryEmbedding, partial": (
        "RotaryEmbedding", MS, [draw(2, 3, 18), np.array([1]), COS, SIN], {"num_heads": 3,
         "rotary_embedding_dim": 4}, 1),
}  # fmt: skip
# Kernels that only CUDA has: the gradient is that of the lowering, whose values are checked by hand.
GELU = np.vectorize(lambda x: 0.5 * x * (1 + __import__("math").erf(x / 2**0.5)))
CUDA_ONLY = {
    "BiasSplitGelu": (
        "BiasSplitGelu", [draw(2, 3, 8), draw(8)], {}, lambda x, b: (x + b)[..., :4] * GELU((x + b)[..., 4:])),
    "MultiHeadAttention, packed": ("MultiHeadAttention", [draw(2, 3, 2, 3, 4)], HEADS, None),
    "MultiHeadAttention, packed with a bias": (
        "MultiHeadAttention", [draw(2, 3, 2, 3, 4), None, None, draw(24)], HEADS, None),
    "MultiHeadAttention, packed keys": ("MultiHeadAttention", [Q, draw(2, 5, 2, 2, 4)], HEADS, None),
    "BiasSoftmax": ("BiasSoftmax", [draw(2, 3, 4), draw(2, 1, 4)], {"axis": 2, "is_inner_broadcast": 0}, None),
    "BiasSoftmax, two axes": (
        "BiasSoftmax", [draw(2, 3, 4), draw(1, 3, 4)], {"axis": 1, "is_inner_broadcast": 1},
        lambda x, b: np.exp(x + b) / np.exp(x + b).sum((1, 2), keepdims=True)),
    "NhwcConv": (
        "NhwcConv", [IMAGE.transpose(0, 2, 3, 1), KERNEL.transpose(0, 2, 3, 1), draw(3)], {"pads": [1, 0, 1, 0]}, None),
}  # fmt: skip


def floating(arrays):
    return [n for n, a in enumerate(arrays) if a is not None and a.dtype.kind == "f"]


def narrow(arrays):
    return [None if a is None else a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]


def loss_of(f, arrays):
    given = [n for n, a in enumerate(arrays) if a is not None]

    def loss(*tensors):
        full = [None] * len(arrays)
        for n, t in zip(given, tensors, strict=True):
            full[n] = gk.tensor(t) if isinstance(t, np.ndarray) else t
        total = None
        for n, y in enumerate(f(full)):
            if y is not None and y.dtype.name.startswith("float"):
                part = (gk.op.Sin(y) * (n + 1)).sum()
                total = part if total is None else total + part
        return total

    return loss, given


def model_for(op, domain, arrays, attributes, outputs, symbolic=False):
    names = [f"x{n}" if a is not None else "" for n, a in enumerate(arrays)]
    node = onnx.helper.make_node(op, names, [f"y{n}" for n in range(outputs)], domain=domain, **attributes)
    nodes, parts = [node], []
    for n in range(outputs):
        if op == "EmbedLayerNormalization" and n == 1:
            continue
        if op.startswith("Skip") and n in (1, 2):
            continue
        if op == "SimplifiedLayerNormalization" and n == 1:
            continue
        nodes += [onnx.helper.make_node("Sin", [f"y{n}"], [f"s{n}"]),
                  onnx.helper.make_node("ReduceSum", [f"s{n}"], [f"r{n}"], keepdims=0),
                  onnx.helper.make_node("Mul", [f"r{n}", f"k{n}"], [f"m{n}"])]  # fmt: skip
        parts.append(n)
    nodes.append(onnx.helper.make_node("Sum", [f"m{n}" for n in parts], ["loss"]))
    kinds = {"f": 1, "i": 6, "b": 9}
    infos = []
    for n, a in enumerate(arrays):
        if a is None:
            continue
        named = symbolic and n < 3 and a.ndim >= 3 and a.shape[0] == arrays[0].shape[0] and "Conv" not in op
        shape = ["B" if named and k == 0 else e for k, e in enumerate(a.shape)]
        kind = 7 if a.dtype == np.int64 else kinds[a.dtype.kind]
        infos.append(onnx.helper.make_tensor_value_info(f"x{n}", kind, shape))
    constants = [onnx.numpy_helper.from_array(np.float32(n + 1), f"k{n}") for n in parts]
    graph = onnx.helper.make_graph(nodes, "g", infos, [onnx.helper.make_tensor_value_info("loss", 1, [])], constants)
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(MS, 1)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def read_outputs(op, outputs):
    hidden = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2),
              "EmbedLayerNormalization": (1,), "SimplifiedLayerNormalization": (1,)}.get(op, ())  # fmt: skip
    return [n for n in range(outputs) if n not in hidden]


@pytest.mark.parametrize("name", CASES)
def test_forward(name):
    op, domain, arrays, attributes, outputs = CASES[name]
    given = [None if a is None else gk.tensor(a) for a in narrow(arrays)]
    kernel = apply(op, given, attributes, outputs, domain)
    plain = list(LOWERINGS[op, domain](Call(op, domain, given, attributes, outputs)))
    for n in read_outputs(op, outputs):
        np.testing.assert_allclose(plain[n].numpy(), kernel[n].numpy(), rtol=1e-4, atol=1e-5, err_msg=f"output {n}")


def some_differences(loss, values, n):
    """Central differences at some places of an input, at all of a small one: the places, and the slopes."""
    size = values[n].size
    places = np.arange(size) if size <= 32 else np.sort(np.random.default_rng(n).choice(size, 12, replace=False))

    def moved(t):
        array = values[n].copy()
        array.reshape(-1)[places] = t.numpy()
        return loss(*values[:n], gk.tensor(array), *values[n + 1 :])

    return places, differences(moved, [values[n].reshape(-1)[places]], 0, 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name, checks_files):
    op, domain, arrays, attributes, outputs = CASES[name]
    shown = read_outputs(op, outputs)

    def chosen(made):
        return [made[n] if n in shown else None for n in range(outputs)]

    loss, given = loss_of(
        lambda full: chosen(LOWERINGS[op, domain](Call(op, domain, full, attributes, outputs))), arrays
    )
    values = [arrays[n] for n in given]
    wrt = floating(arrays)
    values = [np.ascontiguousarray(a) for a in values]
    exact = {n: some_differences(loss, values, given.index(n)) for n in wrt}
    single, _ = loss_of(lambda full: chosen(apply(op, full, attributes, outputs, domain)), arrays)
    feeds = narrow(arrays)
    eager = gk.grad(single, [given.index(n) for n in wrt])(*[gk.tensor(feeds[n]) for n in given])
    for symbolic in (False, True):
        model = model_for(op, domain, feeds, attributes, outputs, symbolic)
        found = add_gradients(model, of="loss", wrt=[f"x{n}" for n in wrt])
        plain = [n for n in found.graph.node if n.domain]
        assert [n.op_type for n in plain] == ([op] if domain else []), "gradients are of ai.onnx operators"
        got = run(found, {f"x{n}": feeds[n] for n in given}, optimizations=False)
        for n, e in zip(wrt, eager, strict=True):
            places, slopes = exact[n]
            mine = got[f"x{n}_grad"]
            within = {"rtol": 1e-3, "atol": 1e-4 * max(1.0, abs(slopes).max())}
            np.testing.assert_allclose(e.numpy().reshape(-1)[places], slopes, **within, err_msg=f"input {n}, eager")
            np.testing.assert_allclose(mine.reshape(-1)[places], slopes, **within, err_msg=f"input {n}")
            np.testing.assert_allclose(mine, e.numpy(), **within, err_msg=f"input {n}, everywhere")
    if checks_files or "," not in name:
        check_loaded(model.SerializeToString(), {f"x{n}": feeds[n] for n in given}, [f"x{n}" for n in wrt])


@pytest.mark.parametrize("name", CUDA_ONLY)
def test_without_a_kernel_here(name):
    op, arrays, attributes, expected = CUDA_ONLY[name]
    loss, given = loss_of(lambda full: LOWERINGS[op, MS](Call(op, MS, full, attributes, 1)), arrays)
    if expected is not None:
        (y,) = LOWERINGS[op, MS](Call(op, MS, [gk.tensor(a) for a in arrays], attributes, 1))
        np.testing.assert_allclose(y.numpy(), expected(*arrays), atol=1e-6)
    values = [arrays[n] for n in given]
    found = gk.grad(loss, range(len(given)))(*[gk.tensor(a) for a in values])
    for n, g in enumerate(found):
        np.testing.assert_allclose(g.numpy(), differences(loss, values, n, 1e-3), rtol=1e-4, atol=1e-4)


REFUSED = {
    "a quantized cache": grouped(1, (PAST_K, PAST_V), [5, 5], 6, k_quant_type="PER_TENSOR"),
    "a cache that evicts": grouped(
        1, (PAST_K, PAST_V), [5, 5], 6, sliding_window_cache=1, local_window_size=5, qk_output=1),
    "do_rotary": ("Attention", MS, [X, draw(4, 24), draw(24)], HEADS | {"do_rotary": 1}, 1),
    "past_present_share_buffer": (
        "Attention", MS, [X, draw(4, 24), draw(24)], HEADS | {"past_present_share_buffer": 1}, 1),
    "state_window": (
        "LinearAttention", MS, [draw(2, 3, 4)] * 3, {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear",
                                                     "state_window": 2}, 2),
    "ndim": ("CausalConvWithState", MS, [draw(2, 3, 5, 5), draw(3, 1, 3, 3)], {"ndim": 2}, 2),
    "a mask of 7 numbers": ("Attention", MS, [X, draw(4, 24), draw(24), ints(*range(7))], HEADS, 1),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_named(what):
    op, domain, arrays, attributes, outputs = REFUSED[what]
    given = [None if a is None else gk.tensor(a) for a in narrow(arrays)]
    with pytest.raises(GradientError, match=what):
        LOWERINGS[op, domain](Call(op, domain, given, attributes, outputs))


@pytest.mark.parametrize(
    ("op", "known"), [("MultiHeadAttention", [3, None, None]), ("RotaryEmbedding", [3, None, 2, 2])]
)
def test_what_unknown_ranks_leave_open_is_refused(op, known):
    """Keys of three axes or of four, positions given or counted from one: another rank is another meaning."""
    kinds = [dtypes.INT64 if op == "RotaryEmbedding" and n == 1 else dtypes.FLOAT32 for n in range(len(known))]
    types = [Type(kind, None if rank is None else (4,) * rank) for kind, rank in zip(kinds, known, strict=True)]
    graph, inputs = apart(types, 21)
    with interpreter.using(graph), pytest.raises(GradientError, match=f"{op} needs the rank"):
        LOWERINGS[op, MS](Call(op, MS, inputs, HEADS, 1))


def test_packed_is_unpacked():
    """[B, S, heads, 3, D] holds what three inputs hold."""
    packed = draw(2, 3, 2, 3, 4)
    parts = [gk.tensor(packed[:, :, :, n].reshape(2, 3, 8)) for n in range(3)]
    one = LOWERINGS["MultiHeadAttention", MS](Call("MultiHeadAttention", MS, [gk.tensor(packed)], HEADS, 1))[0]
    three = LOWERINGS["MultiHeadAttention", MS](Call("MultiHeadAttention", MS, parts, HEADS, 1))[0]
    np.testing.assert_allclose(one.numpy(), three.numpy())
