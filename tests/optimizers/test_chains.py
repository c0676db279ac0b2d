"""Two nodes that only move, reinterpret or repeat data become one, with exact conditions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimizers.conftest import run

X = "g (float[N,3] x) => (float[A,B] y)"
IMAGE = "g (float[N,3,4] x) => (float[A,B,C] y)"

# name: (graph, operators left)
GRAPHS = {
    "transposes_cancel": (
        f"{IMAGE} {{a = Transpose<perm=[0,2,1]>(x) b = Transpose<perm=[0,2,1]>(a) y = Abs(b)}}",
        {"Abs": 1},
    ),
    "transposes_compose": (
        f"{IMAGE} {{a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[1,2,0]>(a) y = Abs(b)}}",
        {"Abs": 1, "Transpose": 1},
    ),
    "default_orders_cancel": (f"{IMAGE} {{a = Transpose(x) b = Transpose(a) y = Abs(b)}}", {"Abs": 1}),
    "inner_transpose_is_read_twice": (
        f"{IMAGE} {{a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[1,0,2]>(a) c = ReduceMax<keepdims=0>(a) "
        "d = Abs(b) y = Add(d, c)}",
        {"Abs": 1, "Transpose": 2, "ReduceMax": 1, "Add": 1},
    ),
    "reshapes_in_a_row": (
        f"{IMAGE} <int64[2] s = {{-1, 4}}, int64[3] t = {{-1, 2, 2}}> {{a = Reshape(x, s) b = Reshape(a, t) y = "
        f"Abs(b)}}",
        {"Abs": 1, "Reshape": 1},
    ),
    "reshape_zero_means_the_middle_shape": (
        f"{IMAGE} <int64[3] s = {{4, -1, 3}}, int64[3] t = {{0, 3, -1}}> {{a = Reshape(x, s) b = Reshape(a, t) "
        f"y = Abs(b)}}",
        {"Abs": 1, "Reshape": 1},
    ),
    "reshape_and_back": (
        f"{IMAGE} <int64[2] s = {{0, 12}}, int64[3] t = {{0, 3, 4}}> {{a = Reshape(x, s) b = Reshape(a, t) y = "
        f"Abs(b)}}",
        {"Abs": 1},
    ),
    "reshape_with_allowzero": (
        "g (float[0,6,2] x) => (float[A,B,C] y) <int64[3] s = {3,2,-1}, int64[3] t = {0,0,3}>"
        "{a = Reshape(x, s) y = Reshape<allowzero=1>(a, t)}",
        {"Reshape": 2},
    ),
    "unsqueeze_then_reshape": (
        f"{X} <int64[1] k = {{1}}, int64[2] t = {{-1, 1}}> {{a = Unsqueeze(x, k) b = Reshape(a, t) y = Abs(b)}}",
        {"Abs": 1, "Reshape": 1},
    ),
    "concat_in_concat": (
        f"{X} {{a = Concat<axis=0>(x, x) b = Concat<axis=0>(x, a) y = Abs(b)}}",
        {"Abs": 1, "Concat": 1},
    ),
    "concat_along_another_axis": (
        f"{X} {{a = Concat<axis=1>(x, x) b = Concat<axis=0>(a, a) y = Abs(b)}}",
        {"Abs": 1, "Concat": 2},
    ),
    "split_and_concat": (
        f"{X} <int64[2] s = {{1, 2}}> {{a, b = Split<axis=1>(x, s) c = Concat<axis=1>(a, b) y = Abs(c)}}",
        {"Abs": 1},
    ),
    "split_and_concat_swapped": (
        f"{X} <int64[2] s = {{1, 2}}> {{a, b = Split<axis=1>(x, s) c = Concat<axis=1>(b, a) y = Abs(c)}}",
        {"Abs": 1, "Split": 1, "Concat": 1},
    ),
    "concat_and_split": (
        "g (float[2,3] x, float[4,3] z) => (float[2,3] y, float[4,3] w) <int64[2] s = {2, 4}> "
        "{c = Concat<axis=0>(x, z) a, b = Split<axis=0>(c, s) y = Abs(a) w = Neg(b)}",
        {"Abs": 1, "Neg": 1},
    ),
    "concat_and_split_elsewhere": (
        "g (float[2,3] x, float[4,3] z) => (float[A,3] y, float[B,3] w) <int64[2] s = {3, 3}> "
        "{c = Concat<axis=0>(x, z) a, b = Split<axis=0>(c, s) y = Abs(a) w = Neg(b)}",
        {"Abs": 1, "Neg": 1, "Concat": 1, "Split": 1},
    ),
    "slices_of_two_axes": (
        f"{X} <int64[1] p = {{0}}, int64[1] q = {{1}}, int64[1] r = {{2}}> "
        "{a = Slice(x, p, q, p) b = Slice(a, q, r, q) y = Abs(b)}",
        {"Abs": 1, "Slice": 1},
    ),
    "slices_of_one_axis": (
        f"{X} <int64[1] o = {{1}}, int64[1] r = {{3}}> {{a = Slice(x, o, r, o) b = Slice(a, o, r, o) y = Abs(b)}}",
        {"Abs": 1, "Slice": 2},
    ),
    "slice_that_takes_all_from_behind": (
        f"{X} <int64[1] o = {{1}}, int64[1] m = {{-1}}> {{a = Slice(x, o, m, o) b = Slice(a, m, o, o) y = Abs(b)}}",
        {"Abs": 1, "Slice": 1},
    ),
    "needless_expand": (
        "g (float[N,3] x, float[1,3] z) => (float[N,3] y) {s = Shape(x) e = Expand(z, s) y = Mul(x, e)}",
        {"Mul": 1},
    ),
    "expand_that_widens_the_sum": (
        "g (float[1,3] x, float[1,3] z) => (float[4,3] y) <int64[2] s = {4, 3}> {e = Expand(z, s) y = Mul(x, e)}",
        {"Mul": 1, "Expand": 1},
    ),
    "expand_to_unrelated_dims": (
        "g (float[N,3] x, float[1,3] z, float[M,3] w) => (float[A,3] y) {s = Shape(w) e = Expand(z, s) y = Mul(x, e)}",
        {"Mul": 1, "Expand": 1, "Shape": 1},
    ),
    "times_ones_of_its_shape": (
        "g (float[N,3] x) => (float[N,3] y) <float o = {1.0}> {s = Shape(x) e = Expand(o, s) a = Mul(x, e) y = Neg(a)}",
        {"Neg": 1},
    ),
    "times_ones_that_widen": (
        "g (float[1,3] x, float[N,3] z) => (float[N,3] y) <float o = {1.0}> "
        "{s = Shape(z) e = Expand(o, s) a = Mul(x, e) y = Neg(a)}",
        {"Neg": 1, "Shape": 1, "Expand": 1, "Mul": 1},
    ),
    "plus_zeros_of_its_shape": (
        "g (float[N,3] x) => (float[N,3] y) {s = Shape(x) z = ConstantOfShape(s) y = Sub(z, x)}",
        {"Sub": 1},
    ),
    "zero_initial_state": (
        "g (float[T,N,1] x) => (float[T,1,N,1] y) <float[1,3,1] w = {1,-1,0.5}, float[1,3,1] r = {0.5,1,1}, "
        "int64[1] i = {1}, "
        "int64[1] one = {1}> {s = Shape(x) n = Gather(s, i) k = Concat<axis=0>(one, n, one) z = ConstantOfShape(k) "
        "y = GRU<hidden_size=1>(x, w, r, , , z)}",
        {"GRU": 1},
    ),
    "initial_state_of_ones": (
        "g (float[T,N,1] x) => (float[T,1,N,1] y) <float[1,3,1] w = {1,-1,0.5}, float[1,3,1] r = {0.5,1,1}, "
        "int64[1] i = {1}, "
        "int64[1] one = {1}> {s = Shape(x) n = Gather(s, i) k = Concat<axis=0>(one, n, one) "
        "z = ConstantOfShape<value = float[1] {1.0}>(k) y = GRU<hidden_size=1>(x, w, r, , , z)}",
        {"GRU": 1, "Shape": 1, "Concat": 1, "ConstantOfShape": 1},
    ),
    "maximum_over_one": (
        "g (float[N,1] x) => (float[N,1] y) {a = ReduceMax<axes=[1]>(x) y = Neg(a)}",
        {"Neg": 1},
    ),
    "sum_over_one_changes_minus_zero": (
        "g (float[N,1] x) => (float[N,1] y) <int64[1] k = {1}> {a = ReduceSum(x, k) y = Neg(a)}",
        {"Neg": 1, "ReduceSum": 1},
    ),
}


@pytest.mark.parametrize(("graph", "left"), GRAPHS.values(), ids=GRAPHS.keys())
def test_chains(prove, graph, left):
    if "float[0," in graph:
        prove(graph, {"x": np.zeros((0, 6, 2), np.float32)}, expected=left, verify=True, strict=True)
    elif "unrelated" in graph or "float[M,3] w" in graph:
        draw = np.random.default_rng(0).standard_normal
        feeds = {"x": draw((1, 3)), "z": draw((1, 3)), "w": draw((5, 3))}
        prove(graph, {name: array.astype(np.float32) for name, array in feeds.items()}, expected=left)
    else:
        prove(graph, expected=left, verify=True, strict=True, grow=24)


T = "FLOAT16 FLOAT DOUBLE INT8 UINT8 INT32 INT64 BOOL"
NUMBERS = {"FLOAT16": 10, "FLOAT": 1, "DOUBLE": 11, "INT8": 3, "UINT8": 2, "INT32": 6, "INT64": 7, "BOOL": 9}
NAMES = {"FLOAT16": "float16", "FLOAT": "float", "DOUBLE": "double", "BOOL": "bool"}
# first, middle, last, whether one Cast is enough
CASTS = [
    ("FLOAT16", "FLOAT", "FLOAT16", 0),
    ("FLOAT16", "FLOAT", "DOUBLE", 1),
    ("FLOAT", "DOUBLE", "FLOAT16", 1),
    ("INT8", "INT32", "INT64", 1),
    ("INT32", "INT64", "INT8", 1),
    ("INT8", "FLOAT", "BOOL", 1),
    ("BOOL", "FLOAT", "BOOL", 0),
    ("FLOAT", "FLOAT16", "FLOAT", 2),
    ("FLOAT", "INT32", "FLOAT", 2),
    ("FLOAT", "INT32", "BOOL", 2),
    ("INT64", "FLOAT", "INT64", 2),
    ("INT32", "FLOAT", "INT32", 2),
    ("FLOAT", "BOOL", "FLOAT", 2),
    ("INT64", "INT32", "INT64", 2),
    ("FLOAT16", "FLOAT", "UINT8", 2),
]


@pytest.mark.parametrize(("first", "middle", "last", "left"), CASTS)
def test_casts(prove, first, middle, last, left):
    source, target = (NAMES.get(name, name.lower()) for name in (first, last))
    graph = (
        f"g ({source}[5] x) => ({target}[5] y) {{a = Identity(x) b = Cast<to={NUMBERS[middle]}>(a) "
        f"c = Cast<to={NUMBERS[last]}>(b) y = Identity(c)}}"
    )
    dtype = {"FLOAT16": "float16", "FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool"}.get(first, first.lower())
    x = {"x": np.array([0.2, 3.7, 100.25, 0, 1]).astype(dtype)}
    result = prove(graph, x)
    assert sum(node.op_type == "Cast" for node in result.graph.node) == left


@pytest.mark.parametrize(
    "rest", ["y = Unsqueeze(a, zero)", "y = Unsqueeze(a, one)", "b = Relu(a) y = Reshape(b, line)"]
)
def test_a_squeeze_that_may_fail_stays(prove, rest):
    """A Reshape in its place would take what Squeeze refuses."""
    text = (
        "g (float[3,K] x) => (float[A,B] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[2] line = {1, -1}> "
        f"{{a = Squeeze(x, one) {rest}}}"
    )
    made = prove(text, {"x": np.ones((3, 1), np.float32)})
    with pytest.raises(Exception, match="Squeeze"):
        run(made, {"x": np.ones((3, 2), np.float32)})
