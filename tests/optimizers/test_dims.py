"""Dims read from shapes: with fewer nodes, and the same numbers for every size."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.optimizers import optimize
from tests.optimizers.conftest import operators, parse

HEAD = (
    "g (float[N,M,3] x) => ({out} y) <int64 one = {{1}}, int64[1] front = {{0}}, int64[1] second = {{1}}, "
    "int64[2] both = {{0,1}}, int64[2] crossed = {{1,0}}, int64[1] last = {{-1}}, int64[1] two = {{2}}> {{s = Shape(x) "
)
VECTOR, SCALAR = HEAD.format(out="int64[K]"), HEAD.format(out="int64[N]")
ROWS = "<float[9,2] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18}, "

# name: (graph, opset, operators left)
CASES = {
    "an element as a vector": (VECTOR + "d = Gather(s, one) y = Unsqueeze(d, front)}", 17, {"Shape": 1}),
    "an element as a vector, old": (
        VECTOR + "d = Gather(s, one) y = Unsqueeze(d, front)}", 13, {"Shape": 1, "Gather": 1}
    ),
    "an element that is read too": (
        VECTOR + "d = Gather(s, one) e = Unsqueeze(d, front) f = Mul(d, one) g1 = Mul(d, d) h = Add(e, g1) "
        "y = Mul(h, f)}", 17,
        {"Shape": 1, "Gather": 1, "Unsqueeze": 1, "Mul": 2, "Add": 1},
    ),
    "a run of dims": (VECTOR + "y = Gather(s, both)}", 17, {"Shape": 1}),
    "the end": (
        VECTOR + "y = Gather(s, last)}", 17, {"Shape": 1}
    ),
    "dims in another order": (VECTOR + "y = Gather(s, crossed)}", 17, {"Shape": 1, "Gather": 1}),
    "a slice": (VECTOR + "y = Slice(s, front, two)}", 17, {"Shape": 1}),
    "put together again": (
        VECTOR + "a = Shape<start = 0, end = 1>(x) b = Shape<start = 1, end = 2>(x) y = Concat<axis = 0>(a, b, two)}",
        17, {"Shape": 1, "Concat": 1},
    ),
    "put together again, and no more": (
        VECTOR + "a = Shape<start = 0, end = 1>(x) b = Shape<start = 1, end = 2>(x) y = Concat<axis = 0>(a, b)}", 17,
        {"Shape": 1},
    ),
    "the whole shape is read too": (
        VECTOR + "a = Gather(s, front) b = Add(s, s) c = Mul(b, a) y = Slice(c, front, two)}", 17,
        {"Shape": 1, "Gather": 1, "Add": 1, "Mul": 1, "Slice": 1},
    ),
    "a gap": (
        VECTOR + "a = Shape<start = 0, end = 1>(x) b = Shape<start = 2>(x) "
        "y = Concat<axis = 0>(a, b)}", 17, {"Shape": 2, "Concat": 1},
    ),
    "rows by expanded indices": (
        "g (float[N,M,2] x) => (float[N,M,2] y) "
        + ROWS
        + "int64[1] front = {0}, int64 zero = {0}, int64 one = {1}> {s = Shape<start = 0, end = 2>(x) "
        "m = Shape<start = 1, end = 2>(x) n = Squeeze(m, front) i = Range(zero, n, one) "
        "e = Expand(i, s) r = Gather(w, e) y = Add(x, r)}",
        17, {"Shape": 1, "Squeeze": 1, "Range": 1, "Gather": 1, "Add": 1},
    ),
    "rows by expanded indices that widen": (
        "g (float[1,M,2] x, float[N] z) => (float[N,M,2] y) "
        + ROWS
        + "int64[1] front = {0}, int64 zero = {0}, int64 one = {1}> {m = Shape<start = 1, end = 2>(x) l = Shape(z) "
        "s = Concat<axis = 0>(l, m) n = Squeeze(m, front) i = Range(zero, n, one) "
        "e = Expand(i, s) r = Gather(w, e) y = Add(x, r)}",
        17, {"Shape": 2, "Concat": 1, "Squeeze": 1, "Range": 1, "Expand": 1, "Gather": 1, "Add": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "opset", "left"), CASES.values(), ids=CASES.keys())
def test_dims(prove, text, opset, left):
    made = prove(text, opset=opset, grow=80)
    assert dict(operators(made)) == left


@pytest.mark.parametrize("bounds", ["0, 4, 1", "1, 8, 3", "5, 0, -2", "3, 3, 1", "0.5, 2.6, 0.7"])
def test_a_range_of_floats_is_as_long_as_it_is(prove, bounds):
    start, limit, delta = bounds.split(", ")
    text = (
        "g (float[N] x) => (float[N] y, float[K] r) "
        f"<float a = {{{start}}}, float b = {{{limit}}}, float c = {{{delta}}}> "
        "{r = Range(a, b, c) y = Relu(x)}"
    )
    prove(text, {"x": np.ones(2, np.float32)}, grow=80)


def test_names_of_broadcast_dims_stay_short():
    """Each sum below broadcasts what the one before gives with itself: a name twice as long, if names were texts."""
    steps = " ".join(f"a{n + 1} = Add(a{n}, x{n % 2}) b{n + 1} = Mul(a{n + 1}, a{n})" for n in range(60))
    text = f"g (float[N] x0, float[M] x1) => (float[K] y) {{a0 = Add(x0, x1) {steps} y = Abs(b60)}}"
    made = optimize(parse(text), verify=False)
    assert len(made.graph.node) == 63
