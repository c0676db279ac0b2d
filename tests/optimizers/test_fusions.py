"""Pieces that an operator stands for become that operator; look-alikes do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

X = "g (float[N,4] x) => (float[N,4] y)"
IMAGE = "g (float[N,2,6,6] x) => (float[N,A,B,C] y)"
W = ",".join(str(round(math.sin(i), 3)) for i in range(36))
WEIGHT = f"float[2,2,3,3] w = {{{W}}}"
ROOT = 1 / math.sqrt(2)
TANH = math.sqrt(2 / math.pi)
CENTERED = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m)"
NORM = "v = ReduceMean<axes=[-1]>(q) e = Add(v, p) r = Sqrt(e) n = Div(d, r) s = Mul(n, g) y = Add(s, b)"
PARAMETERS = "float p = {0.001}, float[4] g = {1,2,3,4}, float[4] b = {0.5,1,1,2}, float two = {2.0}"

# name: (opset, graph, operators left, tolerance)
GRAPHS = {
    "relu_then_clip": (
        17,
        f"{X} <float l = {{-1.0}}, float h = {{2.0}}> {{a = Relu(x) y = Clip(a, l, h)}}",
        {"Clip": 1},
        0,
    ),
    "clip_then_relu": (
        17,
        f"{X} <float l = {{-1.0}}, float h = {{2.0}}> {{a = Clip(x, l, h) y = Relu(a)}}",
        {"Clip": 1},
        0,
    ),
    "clip_wider_is_none": (
        17,
        f"{X} <float l = {{-1.0}}, float h = {{2.0}}, float k = {{-3.0}}, float i = {{5.0}}> {{a = Clip(x, l, "
        f"h) b = Clip(a, k, i) y = Neg(b)}}",
        {"Clip": 1, "Neg": 1},
        0,
    ),
    "disjoint_clips": (
        17,
        f"{X} <float l = {{-1.0}}, float h = {{1.0}}, float k = {{2.0}}, float i = {{5.0}}> {{a = Clip(x, l, h) "
        f"y = Clip(a, k, i)}}",
        {"Clip": 1},
        0,
    ),
    "clip_whose_bounds_are_reversed": (
        17,
        f"{X} <float l = {{-1.0}}, float h = {{1.0}}> {{a = Clip(x, h, l) y = Clip(a, l, h)}}",
        {"Clip": 2},
        0,
    ),
    "old_clips": (9, f"{X} {{a = Clip<min=0.5>(x) y = Clip<max=1.0>(a)}}", {"Clip": 1}, 0),
    "min_of_max": (17, f"{X} <float l = {{-1.0}}, float h = {{2.0}}> {{a = Max(x, l) y = Min(h, a)}}", {"Clip": 1}, 0),
    "max_with_zero_stays": (
        17,
        f"{X} <float l = {{0.0}}, float h = {{2.0}}> {{a = Max(x, l) b = Min(a, h) y = Reciprocal(b)}}",
        {"Max": 1, "Min": 1, "Reciprocal": 1},
        0,
    ),
    "hard_sigmoid": (
        11,
        f"{X} <float t = {{3.0}}, float z = {{0.0}}, float s = {{6.0}}> {{a = Add(x, t) b = Clip(a, z, s) y = "
        f"Div(b, s)}}",
        {"HardSigmoid": 1},
        1e-6,
    ),
    "hard_swish": (
        14,
        f"{X} <float t = {{3.0}}, float z = {{0.0}}, float s = {{6.0}}> {{a = Add(x, t) b = Clip(a, z, s) c = "
        f"Mul(x, b) y = Div(c, s)}}",
        {"HardSigmoid": 1, "Mul": 1},
        1e-6,
    ),
    "old_hard_swish": (
        10,
        f"{X} <float t = {{3.0}}, float s = {{6.0}}> {{a = Add(x, t) b = Clip<min=0.0, max=6.0>(a) c = Mul(x, "
        f"b) y = Div(c, s)}}",
        {"HardSigmoid": 1, "Mul": 1},
        1e-6,
    ),
    "hard_swish_of_another": (
        14,
        "g (float[N,4] x, float[N,4] u) => (float[N,4] y) <float t = {3.0}, float z = {0.0}, float s = {6.0}> "
        "{a = Add(u, t) b = Clip(a, z, s) c = Mul(x, b) y = Div(c, s)}",
        {"Add": 1, "Clip": 1, "Mul": 1, "Div": 1},
        0,
    ),
    "leaky_relu": (17, f"{X} <float a = {{0.1}}> {{m = Mul(x, a) y = Max(m, x)}}", {"LeakyRelu": 1}, 0),
    "slope_above_one": (17, f"{X} <float a = {{1.5}}> {{m = Mul(x, a) y = Max(m, x)}}", {"Mul": 1, "Max": 1}, 0),
    "gelu_erf": (
        20,
        f"{X} <float r = {{{ROOT}}}, float o = {{1.0}}, float h = {{0.5}}> "
        "{a = Mul(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)}",
        {"Gelu": 1},
        1e-6,
    ),
    "gelu_tanh": (
        20,
        f"{X} <float k = {{0.044715}}, float t = {{{TANH}}}, float o = {{1.0}}, float h = {{0.5}}> "
        "{q = Mul(x, x) c = Mul(q, x) a = Mul(c, k) b = Add(x, a) d = Mul(t, b) e = Tanh(d) f = Add(e, o) "
        "i = Mul(h, x) y = Mul(i, f)}",
        {"Gelu": 1},
        1e-5,
    ),
    "gelu_before_opset_20": (
        17,
        f"{X} <float r = {{{ROOT}}}, float o = {{1.0}}, float h = {{0.5}}> "
        "{a = Mul(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)}",
        {"Mul": 3, "Erf": 1, "Add": 1},
        0,
    ),
    "layer_normalization": (
        17,
        f"{X} <{PARAMETERS}> {{{CENTERED} q = Mul(d, d) {NORM}}}",
        {"LayerNormalization": 1},
        1e-5,
    ),
    "layer_normalization_by_pow": (
        17,
        f"{X} <{PARAMETERS}> {{{CENTERED} q = Pow(d, two) {NORM}}}",
        {"LayerNormalization": 1},
        1e-5,
    ),
    "norm_over_another_axis": (
        17,
        "g (float[4,4] x) => (float[4,4] y) <float p = {0.001}, float[4] g = {1,2,3,4}, float[4] b = {1,2,3,4}> "
        "{m = ReduceMean<axes=[0]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[0]>(q) e = Add(v, p) r "
        "= Sqrt(e) "
        "n = Div(d, r) s = Mul(n, g) y = Add(s, b)}",
        {"ReduceMean": 2, "Sub": 1, "Mul": 2, "Add": 2, "Sqrt": 1, "Div": 1},
        0,
    ),
    "norm_whose_scale_widens": (
        17,
        "g (float[N,1] x) => (float[N,2] y) <float p = {0.001}, float[2] g = {1,2}, float[2] b = {1,2}> "
        "{m = ReduceMean<axes=[1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[1]>(q) e = Add(v, p) r "
        "= Sqrt(e) "
        "n = Div(d, r) s = Mul(n, g) y = Add(s, b)}",
        {"ReduceMean": 2, "Sub": 1, "Mul": 2, "Add": 2, "Sqrt": 1, "Div": 1},
        0,
    ),
    "norm_that_keeps_no_axis": (
        17,
        "g (float[4,4] x) => (float[4,4] y) <float p = {0.001}, float[4] g = {1,2,3,4}, float[4] b = {1,2,3,4}> "
        "{m = ReduceMean<axes=[1], keepdims=0>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[1], keepdims=0>(q) "
        "e = Add(v, p) r = Sqrt(e) n = Div(d, r) s = Mul(n, g) y = Add(s, b)}",
        {"ReduceMean": 2, "Sub": 1, "Mul": 2, "Add": 2, "Sqrt": 1, "Div": 1},
        0,
    ),
    "root_mean_square": (
        17,
        f"{X} <float p = {{0.001}}, float two = {{2.0}}, float h = {{-0.5}}> "
        "{q = Pow(x, two) v = ReduceMean<axes=[1]>(q) e = Add(v, p) r = Pow(e, h) y = Mul(x, r)}",
        {"Pow": 1, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1},
        1e-5,
    ),
    "root_mean_square_by_product": (
        17,
        f"{X} <float p = {{0.001}}, float[4] g = {{1,2,3,4}}> {{q = Mul(x, x) v = ReduceMean<axes=[-1]>(q) "
        "e = Add(v, p) r = Sqrt(e) i = Reciprocal(r) n = Mul(x, i) y = Mul(g, n)}",
        {"Pow": 1, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1, "Mul": 1},
        1e-5,
    ),
    "root_mean_square_by_product_whose_scale_widens": (
        17,
        "g (float[N,1] x) => (float[N,4] y) <float p = {0.001}, float[4] g = {1,2,3,4}> {q = Mul(x, x) "
        "v = ReduceMean<axes=[-1]>(q) e = Add(v, p) r = Sqrt(e) n = Div(x, r) y = Mul(g, n)}",
        {"ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1, "Mul": 2},
        1e-6,
    ),
    "root_mean_square_over_another_axis": (
        17,
        "g (float[4,4] x) => (float[4,4] y) <float p = {0.001}, float[4] g = {1,2,3,4}> {q = Mul(x, x) "
        "v = ReduceMean<axes=[0]>(q) e = Add(v, p) r = Sqrt(e) n = Div(x, r) y = Mul(g, n)}",
        {"ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1, "Mul": 2},
        1e-6,
    ),
    "root_of_what_may_be_negative": (17, f"{X} <float h = {{0.5}}> {{y = Pow(x, h)}}", {"Pow": 1}, 0),
    "reduce_and_squeeze": (
        17,
        "g (float[N,4] x) => (float[N] y) <int64[1] k = {1}, int64[1] m = {-1}> {a = ReduceSum(x, k) y = "
        "Squeeze(a, m)}",
        {"ReduceSum": 1},
        0,
    ),
    "reduce_and_squeeze_another": (
        17,
        "g (float[1,4] x) => (float[1] y) <int64[1] k = {1}, int64[1] m = {0}> {a = ReduceSum(x, k) y = Squeeze(a, m)}",
        {"ReduceSum": 1, "Squeeze": 1},
        0,
    ),
    "pad_and_conv": (
        17,
        f"{IMAGE} <{WEIGHT}, int64[8] p = {{0,0,1,0,0,0,2,1}}> {{a = Pad(x, p) y = Conv<pads=[0,1,0,1]>(a, w)}}",
        {"Conv": 1},
        1e-6,
    ),
    "pad_by_a_number_and_conv": (
        17,
        f"{IMAGE} <{WEIGHT}, int64[8] p = {{0,0,1,0,0,0,2,1}}, float v = {{1.0}}> {{a = Pad(x, p, v) y = Conv(a, w)}}",
        {"Pad": 1, "Conv": 1},
        0,
    ),
    "pad_of_channels_and_conv": (
        17,
        f"g (float[N,1,6,6] x) => (float[N,A,B,C] y) <{WEIGHT}, int64[8] p = {{0,1,0,0,0,0,0,0}}> "
        "{a = Pad(x, p) y = Conv(a, w)}",
        {"Pad": 1, "Conv": 1},
        0,
    ),
    "pad_and_max_pool": (
        17,
        f"{IMAGE} <int64[8] p = {{0,0,1,1,0,0,1,1}}> {{a = Abs(x) n = Neg(a) b = Pad(n, p) y = "
        f"MaxPool<kernel_shape=[2,2]>(b)}}",
        {"Abs": 1, "Neg": 1, "Pad": 1, "MaxPool": 1},
        0,
    ),
    "pad_and_average": (
        17,
        f"{IMAGE} <int64[8] p = {{0,0,1,1,0,0,1,1}}> {{b = Pad(x, p) y = AveragePool<kernel_shape=[2,2], "
        f"count_include_pad=1>(b)}}",
        {"AveragePool": 1},
        1e-6,
    ),
    "pad_and_average_without_padding": (
        17,
        f"{IMAGE} <int64[8] p = {{0,0,1,1,0,0,1,1}}> {{b = Pad(x, p) y = AveragePool<kernel_shape=[2,2]>(b)}}",
        {"Pad": 1, "AveragePool": 1},
        0,
    ),
    "affine_and_conv": (
        17,
        f"{IMAGE} <{WEIGHT}, float[1,2,1,1] s = {{2,-3}}, float t = {{0.5}}> {{a = Mul(x, s) b = Add(t, a) y = "
        f"Conv(b, w)}}",
        {"Conv": 1},
        1e-4,
    ),
    "offset_and_padded_conv": (
        17,
        f"{IMAGE} <{WEIGHT}, float t = {{0.5}}> {{b = Add(t, x) y = Conv<pads=[1,1,1,1]>(b, w)}}",
        {"Add": 1, "Conv": 1},
        0,
    ),
    "factor_and_padded_conv": (
        17,
        f"{IMAGE} <{WEIGHT}, float t = {{0.5}}> {{b = Div(x, t) y = Conv<pads=[1,1,1,1]>(b, w)}}",
        {"Conv": 1},
        1e-5,
    ),
    "transposes_around_activations": (
        17,
        f"{IMAGE} <float h = {{0.5}}> {{a = Transpose<perm=[0,2,3,1]>(x) b = Relu(a) c = Mul(b, h) y = "
        f"Transpose<perm=[0,3,1,2]>(c)}}",
        {"Relu": 1, "Mul": 1},
        0,
    ),
    "transposes_around_softmax": (
        17,
        f"{IMAGE} {{a = Transpose<perm=[0,2,3,1]>(x) b = Softmax(a) y = Transpose<perm=[0,3,1,2]>(b)}}",
        {"Transpose": 2, "Softmax": 1},
        0,
    ),
    "root_mean_square_normalization": (
        23,
        f"{X} <float p = {{0.001}}, float[4] g = {{1,2,3,4}}, int64[1] k = {{-1}}> {{q = Mul(x, x) v = "
        f"ReduceMean(q, k) "
        "e = Add(v, p) r = Sqrt(e) n = Div(x, r) y = Mul(g, n)}",
        {"RMSNormalization": 1},
        1e-5,
    ),
    "two_reshapes_and_a_sum": (
        17,
        "g (float[N,4] x) => (float[M,2] y) <int64[2] s = {-1, 2}> "
        "{a = Exp(x) b = Reshape(x, s) c = Reshape(a, s) d = Add(b, c) y = Softmax(d)}",
        {"Exp": 1, "Add": 1, "Reshape": 1, "Softmax": 1},
        1e-6,
    ),
    "two_transposes_and_a_product": (
        17,
        "g (float[N,4] x) => (float[4,N] y) {a = Exp(x) b = Transpose<perm=[1,0]>(x) c = "
        "Transpose<perm=[1,0]>(a) y = Mul(b, c)}",
        {"Exp": 1, "Mul": 1, "Transpose": 1},
        0,
    ),
    "transposes_that_differ": (
        17,
        "g (float[3,3,3] x) => (float[3,3,3] y) {a = Exp(x) b = Transpose<perm=[1,0,2]>(x) c = "
        "Transpose<perm=[2,1,0]>(a) y = Mul(b, c)}",
        {"Exp": 1, "Mul": 1, "Transpose": 2},
        0,
    ),
    "where_one_or_zero": (
        17,
        "g (float[N,4] x) => (float[N,4] y) <float o = {1.0}, float z = {0.0}> {c = Greater(x, z) y = Where(c, o, z)}",
        {"Greater": 1, "Cast": 1},
        0,
    ),
    "where_zero_or_one": (
        17,
        "g (float[N,4] x) => (int64[N,4] y) <int64 o = {1}, int64 i = {0}, float z = {0.0}> {c = Greater(x, "
        "z) y = Where(c, i, o)}",
        {"Greater": 1, "Not": 1, "Cast": 1},
        0,
    ),
    "where_that_widens": (
        17,
        "g (float[N,4] x) => (float[1,N,4] y) <float[1,1,1] o = {1.0}, float z = {0.0}> {c = Greater(x, z) y "
        "= Where(c, o, z)}",
        {"Greater": 1, "Where": 1},
        0,
    ),
    "einsum_that_is_a_product": (
        17,
        'g (float[2,3,4] x, float[2,4,5] z) => (float[2,3,5] y) {y = Einsum<equation="bij,bjk->bik">(x, z)}',
        {"MatMul": 1},
        1e-6,
    ),
    "einsum_that_transposes": (
        17,
        'g (float[2,3,4] x, float[2,5,4] z) => (float[2,3,5] y) {y = Einsum<equation="bij,bkj->bik">(x, z)}',
        {"Einsum": 1},
        0,
    ),
    "slices_are_a_split": (
        17,
        "g (float[N,6] x) => (float[N,2] y, float[N,4] z) <int64[1] k = {1}, int64[1] p = {0}, int64[1] q "
        "= {2}, "
        "int64[1] r = {9223372036854775807}> {a = Slice(x, q, r, k) b = Slice(x, p, q, k) y = Neg(b) z = Abs(a)}",
        {"Split": 1, "Neg": 1, "Abs": 1},
        0,
    ),
    "slices_that_leave_a_gap": (
        17,
        "g (float[N,6] x) => (float[N,2] y, float[N,3] z) <int64[1] k = {1}, int64[1] p = {0}, int64[1] q = {2}, "
        "int64[1] o = {3}, int64[1] r = {6}> {a = Slice(x, o, r, k) b = Slice(x, p, q, k) y = Neg(b) z = Abs(a)}",
        {"Slice": 2, "Neg": 1, "Abs": 1},
        0,
    ),
}


@pytest.mark.parametrize(("opset", "graph", "left", "tolerance"), GRAPHS.values(), ids=GRAPHS.keys())
def test_fused_or_kept(prove, opset, graph, left, tolerance):
    prove(graph, opset=opset, expected=left, tolerance=tolerance, verify=True, strict=True, grow=40)


@pytest.mark.parametrize("name", ["relu_then_clip", "disjoint_clips", "min_of_max", "leaky_relu", "old_clips"])
def test_special_numbers(prove, name):
    opset, graph, _, _ = GRAPHS[name]
    row = np.array([[np.nan, np.inf, -np.inf, -0.0], [0.0, 1e-40, 3e38, -3e38]], np.float32)
    prove(graph, {"x": np.tile(row, (3, 1))}, opset=opset)
