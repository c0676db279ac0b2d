"""Attention 23 and 24, RotaryEmbedding: every attribute and input, against differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.gradients.lowered import LOWERINGS, Call
from graphkit.runtime import run
from graphkit.testing import check_gradients
from tests.gradients.models import gradient_model, model_of

op = gk.op
rng = np.random.default_rng(0)


def draw(*shape):
    return rng.normal(size=shape)


Q, K, V = draw(2, 4, 3, 5), draw(2, 4, 6, 5), draw(2, 4, 6, 2)
K2, V2 = draw(2, 2, 6, 5), draw(2, 2, 6, 2)
KS, VS = draw(2, 4, 3, 5), draw(2, 4, 3, 2)
PAST_K, PAST_V = draw(2, 4, 2, 5), draw(2, 4, 2, 2)
PAST_K2, PAST_V2 = draw(2, 2, 2, 5), draw(2, 2, 2, 2)
FLAT_Q, FLAT_K, FLAT_V = draw(2, 3, 20), draw(2, 6, 20), draw(2, 6, 8)
FLAT_K2, FLAT_V2 = draw(2, 6, 10), draw(2, 6, 4)
BOOL = rng.random((3, 6)) > 0.4
BOOL[:, 0] = True
BOOL4 = rng.random((2, 4, 3, 6)) > 0.4
BOOL4[..., 1] = True
DEAD = BOOL.copy()
DEAD[1] = False
FLOAT, FLOAT4 = draw(3, 6), draw(2, 1, 3, 6)

# name: inputs, attributes
CASES = {
    "plain": ([Q, K, V], {}),
    "scale": ([Q, K, V], {"scale": 0.3}),
    "softcap": ([Q, K, V], {"softcap": 0.8}),
    "causal, square": ([Q, KS, VS], {"is_causal": 1}),
    "causal, more keys": ([Q, K, V], {"is_causal": 1}),
    "bool mask": ([Q, K, V, BOOL], {}),
    "bool mask of every head": ([Q, K, V, BOOL4], {}),
    "bool mask, causal": ([Q, K, V, BOOL], {"is_causal": 1}),
    "float mask": ([Q, K, V, FLOAT], {}),
    "float mask of every batch": ([Q, K, V, FLOAT4], {"softcap": 1.5}),
    "float mask, causal": ([Q, KS, VS, FLOAT[:, :3]], {"is_causal": 1}),
    "float mask with -inf": ([Q, K, V, np.where(BOOL, FLOAT, -np.inf)], {}),
    "groups": ([Q, K2, V2], {}),
    "groups, one key head": ([Q, K2[:, :1], V2[:, :1]], {"is_causal": 1}),
    "groups, masks": ([Q, K2, V2, FLOAT4], {"is_causal": 1, "softcap": 2.0}),
    "flat": ([FLAT_Q, FLAT_K, FLAT_V], {"q_num_heads": 4, "kv_num_heads": 4}),
    "flat groups": ([FLAT_Q, FLAT_K2, FLAT_V2], {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1}),
    "flat, float mask": ([FLAT_Q, FLAT_K, FLAT_V, FLOAT4], {"q_num_heads": 4, "kv_num_heads": 4, "scale": 0.2}),
    "softmax in another dtype": ([Q, K, V], {"softmax_precision": 1}),
}  # fmt: skip
CACHED = {
    "cache": ([Q, KS, VS, None, PAST_K, PAST_V], {}),
    "cache, causal": ([Q, KS, VS, None, PAST_K, PAST_V], {"is_causal": 1}),
    "cache, groups, mask": ([Q, K2[:, :, :3], V2[:, :, :3], FLOAT[:, :5], PAST_K2, PAST_V2], {"is_causal": 1}),
    "cache, flat": (
        [FLAT_Q, FLAT_K[:, :3], FLAT_V[:, :3], None, PAST_K, PAST_V], {"q_num_heads": 4, "kv_num_heads": 4},
    ),
}  # fmt: skip


def positions_of(arrays):
    return [n for n, a in enumerate(arrays) if a is not None and a.dtype.kind == "f"]


def applied(arrays, attributes, outputs=1):
    given = [n for n, a in enumerate(arrays) if a is not None]

    def f(*tensors):
        full = [None] * len(arrays)
        for n, t in zip(given, tensors, strict=True):
            full[n] = t
        if tensors[0].dtype.name == "float32":
            return op.Attention(*full, outputs=outputs, **attributes)[:outputs]
        # no runtime computes float64 in every case: take differences of what it is lowered to
        return LOWERINGS["Attention", ""](Call("Attention", "", full, attributes, outputs))[:outputs]

    return f, [arrays[n] for n in given]


def check_forward(arrays, attributes, outputs):
    """What is differentiated is what the runtime computes."""
    full = [None if a is None else gk.tensor(a.astype("f") if a.dtype.kind == "f" else a) for a in arrays]
    mine = LOWERINGS["Attention", ""](Call("Attention", "", full, attributes, outputs))[:outputs]
    for a, b in zip(mine, op.Attention(*full, outputs=outputs, **attributes), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def symbols(arrays):
    """Batch and sequence symbolic, heads and their sizes known."""
    found = []
    for n, a in enumerate(arrays):
        if n < 3 and a.ndim == 4:
            found.append(["B", a.shape[1], "S" if n == 0 else "T", a.shape[3]])
        elif n < 3:
            found.append(["B", "S" if n == 0 else "T", a.shape[2]])
        else:
            found.append(list(a.shape))
    return found


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    arrays, attributes = CASES[name]
    f, given = applied(arrays, attributes)
    wrt = [n for n in positions_of(given) if not np.isinf(given[n]).any()]
    exact = "softmax_precision" not in attributes
    check_gradients(f, given, wrt=wrt, symbolic=symbols(given), numeric=exact)
    check_forward(arrays, attributes, 1)


@pytest.mark.parametrize("name", CACHED)
def test_cache(name):
    arrays, attributes = CACHED[name]
    f, given = applied(arrays, attributes, 3)
    check_gradients(f, given, symbolic=False)
    check_forward(arrays, attributes, 3)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_the_scores_are_an_output(mode):
    f, given = applied([Q, K, V, FLOAT], {"softcap": 2.0, "qk_matmul_output_mode": mode}, 4)
    check_gradients(lambda *a: [f(*a)[0], f(*a)[3]], given, symbolic=False, float32=mode in (0, 3))


def test_a_query_without_keys():
    """Its result is zero, and so is everything that comes back from it."""
    g = gk.grad(lambda q: op.Attention(q, K.astype("f"), V.astype("f"), DEAD).sum())(gk.tensor(Q.astype("f"))).numpy()
    assert np.isfinite(g).all()
    assert not g[:, :, 1].any()
    v = gk.grad(lambda v: (op.Attention(Q.astype("f"), K.astype("f"), v, DEAD)[:, :, 1]).sum())(
        gk.tensor(V.astype("f"))
    )
    assert not v.numpy().any()


@pytest.mark.parametrize("causal", [0, 1])
def test_valid_lengths(causal):
    """nonpad_kv_seqlen, which opset 24 has: in float32, against differences of what the runtime computes."""
    text = f"""<ir_version: 10, opset_import: ["": 24]>
    g (float[2, 4, 3, 5] q, float[2, 4, 6, 5] k, float[2, 4, 6, 2] v, int64[2] n) => (float loss) {{
      y = Attention<is_causal = {causal}>(q, k, v, "", "", "", n)
      loss = ReduceSumSquare<keepdims = 0>(y)
    }}"""
    feeds = {"q": Q.astype("f"), "k": K.astype("f"), "v": V.astype("f"), "n": np.array([4, 6])}
    model = model_of(text)
    got = run(gradient_model(model, ["q", "k", "v"]), feeds, optimizations=False)
    for name in "qkv":
        along = rng.normal(size=feeds[name].shape).astype("f")
        ends = [run(model, {**feeds, name: feeds[name] + np.float32(s * 1e-2) * along}, optimizations=False)["loss"]
                for s in (1, -1)]  # fmt: skip
        np.testing.assert_allclose(
            (got[f"{name}_grad"] * along).sum(), (ends[0] - ends[1]) / 2e-2, rtol=2e-3, atol=2e-3
        )


def test_the_opset_follows_the_inputs():
    """Opset 23 has no nonpad_kv_seqlen: given by place or by name, it makes the graph one of opset 24."""
    lengths = np.array([4, 6])
    arrays = [a.astype("f") for a in (Q, K, V)]
    by_place = op.Attention(*arrays, None, None, None, lengths)
    np.testing.assert_array_equal(op.Attention(*arrays, nonpad_kv_seqlen=lengths).numpy(), by_place.numpy())
    f = gk.grad(lambda q, k, v: op.Attention(q, k, v, nonpad_kv_seqlen=lengths).sum(), (0, 1, 2))
    model = gk.trace(f, *arrays)
    assert model.opset_imports[""] == 24
    traced = run(model, dict(zip("qkv", arrays, strict=True)), optimizations=False)
    for mine, theirs in zip(traced.values(), f(*map(gk.tensor, arrays)), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_second_order():
    check_gradients(lambda q, k, v: op.Attention(q, k, v, is_causal=1), [Q[:1, :2], K[:1, :2], V[:1, :2]], order=2,
                    symbolic=False)  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [False, True])
def test_as_pytorch(causal, groups):
    import torch

    arrays = [a.astype(np.float32) for a in ((Q, K2[:, :, :3], V2[:, :, :3]) if groups else (Q, KS, VS))]
    mine = [gk.tensor(a, requires_grad=True) for a in arrays]
    (op.Attention(*mine, is_causal=int(causal)) ** 2).sum().backward()
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    torch.nn.functional.scaled_dot_product_attention(
        *theirs, is_causal=causal, enable_gqa=groups
    ).square().sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad, rtol=1e-4, atol=1e-5)


COS, SIN = draw(7, 2), draw(7, 2)
IDS = np.array([[0, 2, 4], [6, 6, 1]])
ROTARY = {
    "halves": ([draw(2, 3, 3, 4), draw(2, 3, 2), draw(2, 3, 2)], {}),
    "neighbours": ([draw(2, 3, 3, 4), draw(2, 3, 2), draw(2, 3, 2)], {"interleaved": 1}),
    "by position": ([draw(2, 3, 3, 4), COS, SIN, IDS], {}),
    "by position, neighbours": ([draw(2, 3, 3, 4), COS, SIN, IDS], {"interleaved": 1}),
    "partial": ([draw(2, 3, 3, 6), COS, SIN, IDS], {"rotary_embedding_dim": 4}),
    "partial, neighbours": ([draw(2, 3, 3, 6), COS, SIN, IDS], {"rotary_embedding_dim": 4, "interleaved": 1}),
    "flat": ([draw(2, 3, 12), COS, SIN, IDS], {"num_heads": 3}),
    "flat, partial": ([draw(2, 3, 18), COS, SIN, IDS], {"num_heads": 3, "rotary_embedding_dim": 4}),
}


@pytest.mark.parametrize("wrt", [[0], [0, 1, 2]])
@pytest.mark.parametrize("name", ROTARY)
def test_rotary(name, wrt):
    arrays, attributes = ROTARY[name]
    names = [["B", "H", "S", arrays[0].shape[3]] if arrays[0].ndim == 4 else ["B", "S", arrays[0].shape[2]],
             *(list(a.shape) if a.ndim == 2 and a.dtype.kind == "f" else ["B", "S", *a.shape[2:]]
               for a in arrays[1:])]  # fmt: skip

    def f(*tensors):
        if tensors[0].dtype.name == "float32":
            return op.RotaryEmbedding(*tensors, **attributes)
        # the standard has no float64 form: take differences of what it is lowered to
        return LOWERINGS["RotaryEmbedding", ""](Call("RotaryEmbedding", "", tensors, attributes, 1))

    check_gradients(f, arrays, wrt=wrt, symbolic=names)
