"""Numbers: signed zeros, infinities, casts, integers beyond floats, bounds that do not meet, look-alikes of norms."""

from __future__ import annotations

import numpy as np

from tests.optimizers.hostile.cases import case, f32, normal

INF, NAN = np.float32(np.inf), np.float32(np.nan)
ODD = f32(-np.inf, -2.5, -1, -0.0, 0.0, 1e-40, 0.5, 3, np.inf, np.nan)
SIGNS = f32(-0.0, 0.0, -1, 2)
WHOLE = np.array([-(2**63), -(2**53) - 1, -3, 0, 7, 2**53 + 1, 2**62 + 1], np.int64)
X = normal(2, 3)


def unary(dims: str, body: str, constants: str = "", dtype: str = "float") -> str:
    return f"g ({dtype}[{dims}] x) => ({dtype}[{dims}] y) {constants and f'<{constants}>'} {{{body}}}"


LAYER = "m = ReduceMean<axes=[-1], keepdims=1>(x) d = Sub(x, m) q = Mul(d, d)"
SCALES = "float e = {0.00001}, float[3] s = {1,2,3}, float[3] b = {1,0,1}"

# fmt: off
CASES = [
    # Signed zeros
    case("plus_zero_turns_minus_zero", unary("N", "y = Add(x, z)", "float z = {0.0}"), {"x": SIGNS}, kept="Add"),
    case("plus_minus_zero_is_nothing", unary("N", "a = Add(x, z) y = Neg(a)", "float z = {-0.0}"), {"x": SIGNS}, gone="Add"),
    case("minus_zero_is_nothing", unary("N", "a = Sub(x, z) y = Neg(a)", "float z = {0.0}"), {"x": SIGNS}, gone="Sub"),
    case("minus_minus_zero_is_something", unary("N", "y = Sub(x, z)", "float z = {-0.0}"), {"x": SIGNS}, kept="Sub"),
    case("zero_minus_is_not_neg", unary("N", "y = Sub(z, x)", "float z = {0.0}"), {"x": SIGNS}),
    case("zero_times_is_not_zero", unary("N", "y = Mul(x, z)", "float z = {0.0}"), {"x": ODD}, kept="Mul"),
    case("minus_itself_is_not_zero", unary("N", "y = Sub(x, x)"), {"x": ODD}, kept="Sub"),
    case("by_itself_is_not_one", unary("N", "y = Div(x, x)"), {"x": ODD}, kept="Div"),
    case("zero_over_is_not_zero", unary("N", "y = Div(z, x)", "float z = {0.0}"), {"x": ODD}, kept="Div"),
    case("power_zero_of_nan", unary("N", "y = Pow(x, z)", "float z = {0.0}"), {"x": ODD}),
    case("double_reciprocal", unary("N", "a = Reciprocal(x) y = Reciprocal(a)"), {"x": ODD}, kept="Reciprocal"),
    case("square_of_root", unary("N", "a = Sqrt(x) y = Mul(a, a)"), {"x": ODD}, kept="Sqrt Mul"),
    case("root_of_square", unary("N", "a = Mul(x, x) y = Sqrt(a)"), {"x": ODD}, kept="Sqrt"),
    case("log_of_exp", unary("N", "a = Exp(x) y = Log(a)"), {"x": f32(-200, -1, 0, 200)}, kept="Exp Log"),
    case("sum_of_one_zero_row", "g (float[1,3] x) => (float[1,3] y) {a = ReduceSum<keepdims=1>(x, k) y = Neg(a)} "
         .replace("=> (float[1,3] y) {", "=> (float[1,3] y) <int64[1] k = {0}> {"), {"x": f32([-0.0, 0.0, 1])}, kept="ReduceSum"),
    case("max_with_minus_zero", unary("N", "a = Max(x, z) y = Min(a, t)", "float z = {0.0}, float t = {1.0}"), {"x": ODD}),
    case("max_with_zeros_made_at_run_time", "g (float[N,2] x, float[N,2] z) => (float[N,2] y, float[N,2] w) <float o = {0.0}> {s = Shape(x) c = ConstantOfShape(s) y = Max(c, z) e = Expand(o, s) w = Min(z, e)}",
         {"x": normal(2, 2), "z": f32([-0.0, 0.0], [-1, 2])}),
    case("half_power_of_minus_zero", unary("N", "y = Pow(x, h)", "float h = {0.5}"), {"x": ODD}),
    case("sign_of_zero_through_where", unary("N", "c = Equal(x, z) y = Where(c, z, x)", "float z = {0.0}"), {"x": ODD}, kept="Where"),
    case("abs_then_plus_zero", unary("N", "a = Abs(x) b = Add(a, z) y = Neg(b)", "float z = {0.0}"), {"x": SIGNS}, gone="Add"),
    # Associativity that floats do not have
    case("sums_that_lose_digits", unary("N", "a = Add(x, p) y = Sub(a, p)", "float p = {100000000.0}"), {"x": f32(1, 3, 5)}),
    case("factors_that_overflow", unary("N", "a = Mul(x, p) y = Mul(a, q)", "float p = {1e30}, float q = {1e-30}"),
         {"x": f32(1, 1e20, 1e-20)}),
    case("factors_that_underflow", unary("N", "a = Mul(x, p) y = Div(a, p)", "float p = {1e-30}"), {"x": f32(1e-20, 1, 1e20)}),
    case("distribution_over_infinity", "g (float[N] x, float[N] z) => (float[N] y) {a = Mul(x, z) b = Mul(x, x) y = Sub(a, b)}",
         {"x": ODD, "z": ODD[::-1].copy()}),
    # Casts
    case("cast_through_int32", unary("N", "i = Cast<to=6>(x) y = Cast<to=1>(i)"), {"x": f32(-2.7, -0.2, 0.9, 300.6)}, kept="Cast",
         expected={"y": f32(-2, -0.0, 0, 300) + 0}),
    case("cast_through_int8", unary("N", "i = Cast<to=3>(x) y = Cast<to=7>(i)", dtype="int64"), {"x": np.array([1, 127, 128, 300])}, kept="Cast",
         expected={"y": np.array([1, 127, -128, 44])}),
    case("cast_through_bool", unary("N", "i = Cast<to=9>(x) y = Cast<to=1>(i)"), {"x": f32(-2.7, -0.0, 0.2, 3)}, kept="Cast",
         expected={"y": f32(1, 0, 1, 1)}),
    case("cast_through_half", unary("N", "i = Cast<to=10>(x) y = Cast<to=1>(i)"), {"x": f32(1.0001, 70000, 1e-8, -0.0)}, kept="Cast"),
    case("cast_through_double", unary("N", "i = Cast<to=11>(x) a = Cast<to=1>(i) y = Neg(a)"), {"x": ODD}, gone="Cast"),
    case("cast_int64_through_double", unary("N", "i = Cast<to=11>(x) y = Cast<to=7>(i)", dtype="int64"), {"x": WHOLE[1:-1]}, kept="Cast",
         expected={"y": np.array([-(2**53), -3, 0, 7, 2**53])}),
    case("cast_int64_through_float", unary("N", "i = Cast<to=1>(x) y = Cast<to=7>(i)", dtype="int64"),
         {"x": np.array([2**24 + 1, -3])}, kept="Cast", expected={"y": np.array([2**24, -3])}),
    case("cast_int32_through_float", unary("N", "i = Cast<to=1>(x) y = Cast<to=6>(i)", dtype="int32"),
         {"x": np.array([2**24 + 1, -3], np.int32)}, kept="Cast"),
    case("cast_int32_through_double", unary("N", "i = Cast<to=11>(x) a = Cast<to=6>(i) y = Neg(a)", dtype="int32"),
         {"x": np.array([2**31 - 1, -(2**31)], np.int32)}, gone="Cast"),
    case("cast_unsigned", "g (uint8[N] x) => (int32[N] y) {i = Cast<to=3>(x) y = Cast<to=6>(i)}",
         {"x": np.array([0, 127, 128, 255], np.uint8)}, kept="Cast", expected={"y": np.array([0, 127, -128, -1], np.int32)}),
    case("cast_double_to_half_rounds_once", "g (double[N] x) => (float16[N] y) {i = Cast<to=1>(x) y = Cast<to=10>(i)}",
         {"x": np.array([1 + 2**-11 + 2**-40, 1.5])}, kept="Cast"),
    case("cast_bool_through_float", "g (bool[N] x) => (bool[N] y) {i = Cast<to=1>(x) a = Cast<to=9>(i) y = Not(a)}",
         {"x": np.array([True, False])}, gone="Cast"),
    case("cast_to_the_same", unary("N", "a = Cast<to=1>(x) y = Abs(a)"), {"x": ODD}, gone="Cast"),
    case("cast_like_of_another", "g (float[N] x, double[1] t) => (double[N] y) {a = CastLike(x, t) y = Abs(a)}",
         {"x": ODD, "t": np.ones(1)}),
    # Integers
    case("whole_numbers_beyond_doubles", unary("N", "a = Sub(b, o) c = Add(a, o) y = Sub(x, c)",
         "int64 b = {9007199254740993}, int64 o = {1}", "int64"), {"x": WHOLE[1:]}, expected={"y": WHOLE[1:] - (2**53 + 1)}),
    case("whole_numbers_that_wrap", unary("N", "a = Mul(b, b) y = Add(x, a)", "int64 b = {4294967297}", "int64"), {"x": WHOLE[2:5]},
         expected={"y": WHOLE[2:5] + np.array(4294967297) * np.array([4294967297])}),
    case("small_integers_that_wrap", unary("N", "a = Add(b, o) y = Add(x, a)", "int32 b = {2147483647}, int32 o = {1}", "int32"),
         {"x": np.array([0, 5], np.int32)}, expected={"y": np.array([-(2**31), 5 - 2**31], np.int32)}),
    case("shape_times_large", "g (float[N] x) => (int64[1] y) <int64 b = {4611686018427387904}> {s = Shape(x) y = Mul(s, b)}",
         {"x": f32(1, 2, 3)}, expected={"y": np.array([3 * 2**62 - 2**64], np.int64)}),
    case("shape_as_int32_times_large", "g (float[N] x) => (int32[1] y) <int32 b = {2147483647}> {s = Shape(x) t = Cast<to=6>(s) y = Mul(t, b)}",
         {"x": f32(1, 2, 3)}),
    case("division_truncates", unary("N", "a = Div(x, t) y = Mul(a, t)", "int64 t = {2}", "int64"), {"x": np.array([-3, -1, 3, 4])},
         kept="Div Mul", expected={"y": np.array([-2, 0, 2, 4])}),
    case("constant_division_truncates", unary("N", "a = Div(m, t) y = Add(x, a)", "int64 m = {-7}, int64 t = {2}", "int64"),
         {"x": np.array([0, 1])}, expected={"y": np.array([-3, -2])}),
    case("integer_modulo_of_negatives", unary("N", "a = Mod(m, t) y = Add(x, a)", "int64 m = {-7}, int64 t = {3}", "int64"),
         {"x": np.array([0, 1])}, expected={"y": np.array([2, 3])}),
    case("negative_shift_of_bits", unary("N", 'a = BitShift<direction="LEFT">(x, z) y = BitShift<direction="RIGHT">(a, o)',
         "uint8 z = {0}, uint8 o = {1}", "uint8"), {"x": np.array([255, 3], np.uint8)}),
    case("int_power", unary("N", "a = Pow(x, o) y = Pow(a, t)", "float o = {1.0}, float t = {2.0}", "int64"), {"x": np.array([-3, 4])}),
    # Bounds
    case("clips_that_do_not_meet", unary("N", "a = Clip(x, p, q) y = Clip(a, r, s)", "float p = {0}, float q = {1}, float r = {2}, float s = {3}"),
         {"x": ODD[:-1]}, expected={"y": np.full(9, 2, np.float32)}),
    case("clip_with_bounds_swapped", unary("N", "a = Clip(x, p, q) y = Abs(a)", "float p = {3}, float q = {-3}"), {"x": ODD[:-1]}),
    case("clip_of_nothing", unary("N", "a = Clip(x) y = Abs(a)"), {"x": f32(-1, 2)}),
    case("clip_keeps_nan", unary("N", "a = Relu(x) y = Clip(a, p, q)", "float p = {0}, float q = {6}"), {"x": ODD}),
    case("clip_computed_bound", "g (float[N] x, float m) => (float[N] y) <float p = {0}> {a = Clip(x, p, m) y = Relu(a)}", {"x": ODD, "m": np.float32(-1)}),
    case("min_of_max_swapped", unary("N", "a = Max(x, p) y = Min(a, q)", "float p = {3}, float q = {-3}"), {"x": ODD[:-1]}),
    case("min_and_max_that_widen", "g (float[N,1] x) => (float[N,2] y) <float[2] p = {-1,-2}, float[2] q = {1,2}> {a = Max(x, p) y = Min(a, q)}",
         {"x": normal(3, 1)}),
    case("relu_six_in_halves", "g (float16[N] x) => (float16[N] y) <float16 p = {0}, float16 q = {6}> {a = Relu(x) y = Clip(a, p, q)}",
         {"x": ODD.astype(np.float16)}),
    case("relu_then_clip_of_doubles", "g (double[N] x) => (double[N] y) <double p = {0}, double q = {6}> {a = Relu(x) y = Clip(a, p, q)}",
         {"x": ODD[:-1].astype(np.float64)}),
    case("integer_clip", unary("N", "a = Clip(x, p, q) y = Clip(a, r, q)", "int64 p = {-3}, int64 q = {9007199254740993}, int64 r = {0}", "int64"), {"x": WHOLE}),
    # Norms and activations that only look like it
    case("layer_norm", "g (float[N,3] x) => (float[N,3] y) "
         f"<{SCALES}> {{{LAYER} v = ReduceMean<axes=[-1], keepdims=1>(q) a = Add(v, e) r = Sqrt(a) n = Div(d, r) t = Mul(n, s) y = Add(t, b)}}",
         {"x": X}, tolerance=1e-5, gone="ReduceMean Sqrt"),
    case("layer_norm_without_keeping", "g (float[3,3] x) => (float[3,3] y) "
         f"<{SCALES}> {{m = ReduceMean<axes=[-1], keepdims=0>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1], keepdims=0>(q) "
         "a = Add(v, e) r = Sqrt(a) n = Div(d, r) t = Mul(n, s) y = Add(t, b)}", {"x": normal(3, 3)}, tolerance=1e-5, kept="ReduceMean"),
    case("layer_norm_of_another_axis", "g (float[N,3,3] x) => (float[N,3,3] y) "
         f"<{SCALES}> {{{LAYER.replace('-1', '1')} v = ReduceMean<axes=[1], keepdims=1>(q) a = Add(v, e) r = Sqrt(a) n = Div(d, r) t = Mul(n, s) y = Add(t, b)}}",
         {"x": normal(2, 3, 3)}, tolerance=1e-5, kept="ReduceMean"),
    case("layer_norm_whose_scale_widens", "g (float[N,1] x) => (float[N,3] y) "
         f"<{SCALES}> {{{LAYER} v = ReduceMean<axes=[-1], keepdims=1>(q) a = Add(v, e) r = Sqrt(a) n = Div(d, r) t = Mul(n, s) y = Add(t, b)}}",
         {"x": normal(2, 1)}, tolerance=1e-5),
    case("layer_norm_whose_scale_is_per_row", "g (float[3,3] x) => (float[3,3] y) <float e = {0.00001}, float[3,1] s = {1,2,3}, float[3] b = {1,0,1}> "
         f"{{{LAYER} v = ReduceMean<axes=[-1], keepdims=1>(q) a = Add(v, e) r = Sqrt(a) n = Div(d, r) t = Mul(n, s) y = Add(t, b)}}",
         {"x": normal(3, 3)}, tolerance=1e-5),
    case("layer_norm_with_an_epsilon_per_row", "g (float[2,3] x) => (float[2,3] y) <float[2,1] e = {0.1, 0.5}, float[3] s = {1,2,3}, float[3] b = {1,0,1}> "
         f"{{{LAYER} v = ReduceMean<axes=[-1], keepdims=1>(q) a = Add(v, e) r = Sqrt(a) n = Div(d, r) t = Mul(n, s) y = Add(t, b)}}",
         {"x": X}, tolerance=1e-5),
    case("layer_norm_of_two_values", "g (float[N,3] x, float[N,3] z) => (float[N,3] y) "
         f"<{SCALES}> {{{LAYER} v = ReduceMean<axes=[-1], keepdims=1>(q) a = Add(v, e) r = Sqrt(a) f = Sub(z, m) n = Div(f, r) t = Mul(n, s) y = Add(t, b)}}",
         {"x": X, "z": normal(2, 3, seed=1)}, tolerance=1e-5, kept="ReduceMean"),
    case("root_mean_square_scale_that_widens", "g (float[N,1] x) => (float[N,2] y) <float e = {0.000001}, float[2] s = {2,3}, float t = {2.0}> "
         "{q = Pow(x, t) m = ReduceMean<axes=[-1]>(q) a = Add(m, e) r = Sqrt(a) n = Div(x, r) y = Mul(n, s)}".replace("ReduceMean<axes=[-1]>(q)", "ReduceMean(q, k)")
         .replace("<float e", "<int64[1] k = {-1}, float e"), {"x": f32([4], [-5])}, tolerance=1e-5, expected={"y": f32([2, 3], [-2, -3])}, opset=23),
    case("root_mean_square_cubed", "g (float[N,3] x) => (float[N,3] y) <int64[1] k = {-1}, float e = {0.1}, float[3] s = {2,3,4}, float t = {3.0}> "
         "{q = Pow(x, t) p = Abs(q) m = ReduceMean(p, k) a = Add(m, e) r = Sqrt(a) n = Div(x, r) y = Mul(n, s)}", {"x": X}, tolerance=1e-5, opset=23, kept="ReduceMean"),
    case("gelu_with_other_constants", unary("N", "a = Mul(x, c) b = Erf(a) d = Add(b, o) e = Mul(x, d) y = Mul(e, h)",
         "float c = {0.70}, float o = {1}, float h = {0.5}"), {"x": f32(-3, -0.5, 1, 2)}, kept="Erf", tolerance=1e-6, opset=20),
    case("gelu_of_two_values", "g (float[N] x, float[N] z) => (float[N] y) <float c = {0.70710678}, float o = {1}, float h = {0.5}> "
         "{a = Mul(x, c) b = Erf(a) d = Add(b, o) e = Mul(z, d) y = Mul(e, h)}", {"x": f32(-3, 1), "z": f32(1, 2)}, kept="Erf", opset=20),
    case("hard_swish_with_other_bounds", unary("N", "a = Add(x, t) c = Clip(a, z, f) m = Mul(x, c) y = Div(m, s)",
         "float t = {3}, float z = {0}, float f = {5}, float s = {6}"), {"x": f32(-4, -1, 1, 4)}, kept="Clip", tolerance=1e-6),
    case("leaky_slope_above_one", unary("N", "a = Mul(x, k) y = Max(x, a)", "float k = {1.5}"), {"x": ODD}, kept="Max"),
    case("leaky_slope_below_zero", unary("N", "a = Mul(x, k) y = Max(x, a)", "float k = {-0.5}"), {"x": ODD}, kept="Max"),
    case("leaky_slope_per_channel", "g (float[N,2] x) => (float[N,2] y) <float[2] k = {0.5, 0.25}> {a = Mul(x, k) y = Max(x, a)}", {"x": normal(3, 2)}),
    case("swish_of_two_values", "g (float[N] x, float[N] z) => (float[N] y) {s = Sigmoid(z) y = Mul(x, s)}", {"x": f32(-3, 1), "z": f32(1, 2)}, kept="Sigmoid"),
    case("softmax_of_large_numbers", unary("N", "e = Exp(x) s = ReduceSum(e, k) y = Div(e, s)", "int64[1] k = {0}"), {"x": f32(90, 1, 2)}),
    case("mean_as_sum_over_count", "g (float[N,4] x) => (float[N,1] y) <int64[1] k = {1}, float c = {3}> {s = ReduceSum(x, k) y = Div(s, c)}",
         {"x": normal(2, 4)}, kept="Div"),
    # Cancelling
    case("neg_of_neg", unary("N", "a = Neg(x) b = Neg(a) y = Abs(b)"), {"x": ODD}, gone="Neg"),
    case("not_of_three_nots", unary("N", "a = Not(x) b = Not(a) y = Not(b)", dtype="bool"), {"x": np.array([True, False])}),
    case("round_is_not_floor", unary("N", "a = Floor(x) y = Round(a)"), {"x": f32(-1.5, 0.5, 2.5)}),
    case("reciprocal_times", "g (float[N] x, float[N] z) => (float[N] y) {a = Reciprocal(z) y = Mul(x, a)}", {"x": ODD, "z": ODD}),
    case("mod_is_not_fmod", unary("N", "a = Mod<fmod=1>(x, t) y = Neg(a)", "float t = {2}"), {"x": f32(-3.5, 3.5, 0)}),
    case("where_with_nan_not_taken", unary("N", "c = Greater(x, z) l = Log(x) y = Where(c, l, z)", "float z = {0}"), {"x": ODD[:-1]}, kept="Where"),
    case("masked_by_infinity", "g (float[N] x, bool[N] c) => (float[N] y) <float i = {-1e38}> {a = Where(c, x, i) y = Softmax<axis=0>(a)}",
         {"x": f32(1, 2, 3), "c": np.array([True, False, True])}, {"x": f32(1, 2, 3), "c": np.array([False, False, False])}, tolerance=1e-6),
    case("where_that_widens", "g (float[N,1] x) => (float[N,3] y) <bool[1,3] c = {1,1,1}, float z = {0}> {y = Where(c, x, z)}", {"x": normal(2, 1)}),
    case("equal_with_itself_is_not_true", "g (float[N] x) => (bool[N] y) {y = Equal(x, x)}", {"x": ODD}, kept="Equal"),
    case("commuted_comparison", "g (float[N] x, float[N] z) => (bool[N] y) {a = Greater(x, z) b = Greater(z, x) y = Or(a, b)}",
         {"x": f32(1, 2, 3), "z": f32(3, 2, 1)}, kept="Greater Or"),
    case("prelu_of_equal_slopes", "g (float[N,2] x) => (float[N,2] y) <float[2] s = {0.5, 0.5}> {y = PRelu(x, s)}", {"x": normal(3, 2)}),
]
# fmt: on
