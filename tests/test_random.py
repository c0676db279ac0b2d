"""Random draws: reproducible, traced inside a trace, and a stream of plain operators whose state can be kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import graphkit as gk
from graphkit import random
from graphkit.errors import OperatorError


def test_one_seed_gives_one_sequence():
    random.seed(3)
    first = [random.uniform([4]).numpy(), random.normal([4]).numpy(), random.bernoulli([4], 0.5).numpy()]
    random.seed(3)
    again = [random.uniform([4]).numpy(), random.normal([4]).numpy(), random.bernoulli([4], 0.5).numpy()]
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_draws_have_the_dtype_that_was_asked_for(dtype):
    assert random.uniform([3], dtype=dtype).dtype.name == dtype
    assert random.normal([3], dtype=dtype).dtype.name == dtype


def test_integers_are_refused():
    with pytest.raises(OperatorError, match="random draws are floating, got int64"):
        random.uniform([3], dtype="int64")


def test_uniform_and_normal_have_their_moments():
    random.seed(0)
    u, z = random.uniform([20000], -1.0, 3.0).numpy(), random.normal([20000], 2.0, 0.5).numpy()
    assert (u.min() >= -1, u.max() < 3) == (True, True)
    assert abs(u.mean() - 1.0) < 0.05
    assert abs(z.mean() - 2.0) < 0.02
    assert abs(z.std() - 0.5) < 0.02


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
def test_inside_a_trace_a_random_operator_is_recorded(draw):
    model = gk.trace(lambda x: x * 0.0 + draw([x.shape[0], 2]), gk.spec("float32", ["n", 2]))
    assert any(node.op_type.startswith("Random") for node in model.graph)
    session = gk.runtime.Session(model)
    one, two = (session.run({"x": np.ones((5, 2), "f")})["output"] for _ in range(2))
    assert one.shape == (5, 2)
    assert (one != two).any()


def numpy_mask(key: int, count: int, probability: float) -> np.ndarray:
    """The stream in numpy's own words, with 64-bit integers cut to 32."""

    def wrap(v):
        return (v + 2**31) % 2**32 - 2**31

    x = wrap(wrap(np.arange(count) * -1640531535) + key)
    second = wrap(x + key)
    squared = wrap(wrap(x * x) + x)
    halves = np.sign(squared) * (abs(squared) // 65536)  # ONNX divides towards zero
    turned = wrap(wrap(squared * 65536) + halves)
    return wrap(wrap(turned * turned) + second) < round(probability * 2**32) - 2**31


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_stream_is_what_it_says(probability):
    key = random.new_key(np.random.default_rng(5))
    mask = random.keep_mask(key, gk.tensor(np.zeros((30, 40), "f")), probability).numpy()
    np.testing.assert_array_equal(mask.ravel(), numpy_mask(int(key), 1200, probability))


def test_the_stream_is_balanced_and_moves_on():
    key = random.new_key(np.random.default_rng(1))
    like = gk.tensor(np.zeros((200, 500), "f"))
    masks = []
    for _ in range(5):
        masks.append(random.keep_mask(key, like, 0.8).numpy())
        key = random.advance(key)
    for mask in masks:
        assert abs(mask.mean() - 0.8) < 0.006
        assert abs(mask.mean(0) - 0.8).max() < 0.13
    centred = [(m - 0.8).ravel() for m in masks]
    for a, b in itertools.pairwise(centred):
        assert abs((a * b).mean() / 0.16) < 0.015
    for lag in (1, 2, 7, 500):
        assert abs((centred[0][lag:] * centred[0][:-lag]).mean() / 0.16) < 0.015


def test_the_stream_is_the_same_eagerly_and_traced():
    key = random.new_key(np.random.default_rng(2))
    x = np.zeros((3, 7), "f")
    eager = random.keep_mask(key, gk.tensor(x), 0.5).numpy()
    for dims in (["n", 7], [3, 7], ["n", "m"]):
        model = gk.trace(lambda t: random.keep_mask(key, t, 0.5), gk.spec("float32", dims))
        for optimizations in (False, True):
            np.testing.assert_array_equal(gk.run(model, {"t": x}, optimizations=optimizations)["output"], eager)
