"""Nodes that give out their input are dropped, and those that only look so are not."""

from __future__ import annotations

import pytest

X = "g (float[N,3] x) => (float[N,3] y)"

# name: (graph, operators left)
DROPPED = {
    "identity": (f"{X} {{a = Identity(x) b = Abs(a) y = Identity(b)}}", {"Abs": 1}),
    "identities_in_a_row": (f"{X} {{a = Identity(x) b = Identity(a) c = Identity(b) y = Abs(c)}}", {"Abs": 1}),
    "input_to_output_keeps_identity": (f"{X} {{a = Identity(x) y = Identity(a)}}", {"Identity": 1}),
    "initializer_to_output_keeps_identity": (
        "g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1,2}> {y = Identity(w) z = Add(x, w)}",
        {"Identity": 1, "Add": 1},
    ),
    "one_value_two_outputs": (
        "g (float[N] x) => (float[N] y, float[N] z) {a = Abs(x) y = Identity(a) z = Identity(a)}",
        {"Abs": 1, "Identity": 1},
    ),
    "cast_to_its_own_dtype": (f"{X} {{a = Cast<to=1>(x) y = Abs(a)}}", {"Abs": 1}),
    "cast_to_another": ("g (float[N] x) => (double[N] y) {a = Cast<to=11>(x) y = Abs(a)}", {"Cast": 1, "Abs": 1}),
    "transpose_in_place": (f"{X} {{a = Transpose<perm=[0,1]>(x) y = Abs(a)}}", {"Abs": 1}),
    "transpose_square_is_none": (
        "g (float[3,3] x) => (float[3,3] y) {a = Transpose(x) y = Abs(a)}",
        {"Abs": 1, "Transpose": 1},
    ),
    "reshape_to_zero_minus_one": (f"{X} <int64[2] s = {{0, -1}}> {{a = Reshape(x, s) y = Abs(a)}}", {"Abs": 1}),
    "reshape_static": (
        "g (float[2,3] x) => (float[2,3] y) <int64[2] s = {2, 3}> {a = Reshape(x, s) y = Abs(a)}",
        {"Abs": 1},
    ),
    "reshape_of_symbolic_to_static_stays": (
        "g (float[N,3] x) => (float[3,M] y) <int64[2] s = {3, -1}> {a = Reshape(x, s) y = Abs(a)}",
        {"Abs": 1, "Reshape": 1},
    ),
    "flatten_of_a_matrix": (f"{X} {{a = Flatten<axis=1>(x) y = Abs(a)}}", {"Abs": 1}),
    "pad_by_nothing": (f"{X} <int64[4] p = {{0,0,0,0}}> {{a = Pad(x, p) y = Abs(a)}}", {"Abs": 1}),
    "pad_that_moves": (
        f"{X} <int64[4] p = {{0,1,0,-1}}> {{a = Pad(x, p) y = Abs(a)}}",
        {"Abs": 1, "Pad": 1},
    ),
    "slice_of_all": (
        f"{X} <int64[1] b = {{0}}, int64[1] e = {{9223372036854775807}}, int64[1] k = {{0}}>"
        "{a = Slice(x, b, e, k) y = Abs(a)}",
        {"Abs": 1},
    ),
    "slice_backwards_stays": (
        "g (float[N,3] x) => (float[N,3] y) <int64[1] b = {-1}, int64[1] e = {-9223372036854775807}, int64[1] k = {1}, "
        "int64[1] s = {-1}> {a = Slice(x, b, e, k, s) y = Abs(a)}",
        {"Abs": 1, "Slice": 1},
    ),
    "concat_of_one": (f"{X} {{a = Concat<axis=0>(x) y = Abs(a)}}", {"Abs": 1}),
    "concat_with_an_empty_part": (
        "g (float[N,3] x, float[0,3] z) => (float[M,3] y) {a = Concat<axis=0>(x, z, x) y = Abs(a)}",
        {"Abs": 1, "Concat": 1},
    ),
    "split_into_one": (f"{X} {{a = Split<axis=1>(x) y = Abs(a)}}", {"Abs": 1}),
    "sum_of_one": (f"{X} {{a = Sum(x) b = Mean(a) c = Max(b) d = Min(c) y = Abs(d)}}", {"Abs": 1}),
    "expand_to_ones": (f"{X} <int64[2] s = {{1, 1}}> {{a = Expand(x, s) y = Abs(a)}}", {"Abs": 1}),
    "expand_that_widens": (
        "g (float[2,1] x) => (float[2,2] y) <int64[2] s = {1, 2}> {a = Expand(x, s) y = Abs(a)}",
        {"Abs": 1, "Expand": 1},
    ),
    "expand_that_adds_a_rank": (
        "g (float[2] x) => (float[1,2] y) <int64[2] s = {1, 1}> {a = Expand(x, s) y = Abs(a)}",
        {"Abs": 1, "Expand": 1},
    ),
    "tile_by_one": (f"{X} <int64[2] s = {{1, 1}}> {{a = Tile(x, s) y = Abs(a)}}", {"Abs": 1}),
    "dropout": (f"{X} {{a = Dropout(x) y = Abs(a)}}", {"Abs": 1}),
    "dropout_off": (
        f"{X} <float r = {{0.5}}, bool t = {{0}}> {{a, m = Dropout(x, r, t) y = Abs(a)}}",
        {"Abs": 1},
    ),
    "dropout_whose_mask_is_read": (
        "g (float[N] x) => (float[N] y, bool[N] m) {y, m = Dropout(x)}",
        {"Dropout": 1},
    ),
    "add_minus_zero": (f"{X} <float z = {{-0.0}}> {{a = Add(x, z) y = Neg(a)}}", {"Neg": 1}),
    "add_zero_changes_minus_zero": (
        f"{X} <float z = {{0.0}}> {{a = Add(x, z) y = Reciprocal(a)}}",
        {"Add": 1, "Reciprocal": 1},
    ),
    "add_zero_to_what_is_never_minus_zero": (
        f"{X} <float z = {{0.0}}> {{a = Exp(x) b = Add(z, a) y = Neg(b)}}",
        {"Exp": 1, "Neg": 1},
    ),
    "subtract_zero": (f"{X} <float z = {{0.0}}> {{a = Sub(x, z) y = Neg(a)}}", {"Neg": 1}),
    "subtract_from_zero_stays": (f"{X} <float z = {{0.0}}> {{a = Sub(z, x) y = Exp(a)}}", {"Sub": 1, "Exp": 1}),
    "add_integer_zero": (
        "g (int64[N] x) => (int64[N] y) <int64 z = {0}> {a = Add(z, x) y = Neg(a)}",
        {"Neg": 1},
    ),
    "add_zero_that_widens": (
        "g (int64[2,1] x) => (int64[2,3] y) <int64[1,3] z = {0,0,0}> {a = Add(x, z) y = Neg(a)}",
        {"Add": 1, "Neg": 1},
    ),
    "multiply_by_one": (
        f"{X} <float[1] o = {{1.0}}> {{a = Mul(o, x) b = Div(a, o) c = Pow(b, o) y = Neg(c)}}",
        {"Neg": 1},
    ),
    "multiply_by_one_of_higher_rank": (
        "g (float[3] x) => (float[1,3] y) <float[1,1] o = {1.0}> {a = Mul(o, x) y = Neg(a)}",
        {"Mul": 1, "Neg": 1},
    ),
    "divide_one_by": (f"{X} <float o = {{1.0}}> {{a = Div(o, x) y = Neg(a)}}", {"Div": 1, "Neg": 1}),
    "and_true_or_false": (
        "g (bool[N] x) => (bool[N] y) <bool t = {1}, bool f = {0}> {a = And(x, t) b = Or(f, a) y = Not(b)}",
        {"Not": 1},
    ),
    "double_negation": (f"{X} {{a = Neg(x) b = Neg(a) y = Abs(b)}}", {"Abs": 1}),
    "relu_of_relu": (f"{X} {{a = Relu(x) y = Relu(a)}}", {"Relu": 1}),
    "squeeze_of_unsqueeze": (
        f"{X} <int64[1] k = {{1}}> {{a = Unsqueeze(x, k) b = Squeeze(a, k) y = Abs(b)}}",
        {"Abs": 1},
    ),
    "resize_by_one": (
        "g (float[1,1,H,W] x) => (float[1,1,H,W] y) <float[4] s = {1,1,1,1}>"
        '{a = Resize<mode="linear">(x, , s) y = Abs(a)}',
        {"Abs": 1},
    ),
    "where_always": (
        f"{X} <bool c = {{1}}, float z = {{0.0}}> {{a = Neg(x) b = Where(c, a, z) y = Abs(b)}}",
        {"Neg": 1, "Abs": 1},
    ),
}


@pytest.mark.parametrize(("graph", "left"), DROPPED.values(), ids=DROPPED.keys())
def test_dropped_or_kept(prove, graph, left):
    prove(graph, expected=left)


OLD = {
    "opset_7_dropout_and_pad": (
        7,
        f"{X} {{a = Dropout<ratio=0.5>(x) b = Pad<pads=[0,0,0,0]>(a) y = Abs(b)}}",
        {"Abs": 1},
    ),
    "opset_9_slice": (9, f"{X} {{a = Slice<starts=[0], ends=[2147483647], axes=[0]>(x) y = Abs(a)}}", {"Abs": 1}),
    "opset_11_squeeze": (11, f"{X} {{a = Unsqueeze<axes=[0]>(x) b = Squeeze<axes=[0]>(a) y = Abs(b)}}", {"Abs": 1}),
    "opset_12_split": (12, f"{X} {{a = Split<axis=1, split=[3]>(x) y = Abs(a)}}", {"Abs": 1}),
    "opset_9_upsample": (
        9,
        "g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[4] s = {1,1,1,1}> {a = Upsample(x, s) y = Abs(a)}",
        {"Abs": 1},
    ),
}


@pytest.mark.parametrize(("opset", "graph", "left"), OLD.values(), ids=OLD.keys())
def test_older_forms(prove, opset, graph, left):
    prove(graph, opset=opset, expected=left)


def test_training_keeps_dropout(prove):
    prove(f"{X} {{a = Dropout(x) y = Abs(a)}}", preset="training", expected={"Dropout": 1, "Abs": 1})
