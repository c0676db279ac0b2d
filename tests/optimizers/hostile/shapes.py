"""Shapes: dims that are 1 only today, zeros in Reshape, empty tensors, names that stand for nothing, blow-ups."""

from __future__ import annotations

import numpy as np

from tests.optimizers.hostile.cases import case, f32, model, node, normal, tensor, value

N3 = normal(2, 3)
EMPTY = np.zeros((0, 3), np.float32)
BIG = 60

# fmt: off
CASES = [
    # Reshape
    case("reshape_zero_copies", "g (float[N,3] x) => (float[N,3] y) <int64[2] s = {0, 3}> {a = Reshape(x, s) y = Neg(a)}", {"x": N3}, {"x": EMPTY}, gone="Reshape"),
    case("reshape_zero_means_zero", "g (float[0,6,2] x) => (float[a,b,c] y) <int64[3] s = {3,2,-1}, int64[3] t = {0,0,3}> "
         "{a = Reshape(x, s) y = Reshape<allowzero=1>(a, t)}", {"x": np.zeros((0, 6, 2), np.float32)}, expected={"y": np.zeros((0, 0, 3), np.float32)}, opset=18),
    case("reshape_zero_means_zero_first", "g (float[0,3] x) => (float[a,b] y) <int64[2] s = {0,5}, int64[2] t = {0,7}> "
         "{a = Reshape<allowzero=1>(x, s) y = Reshape(a, t)}", {"x": EMPTY}, expected={"y": np.zeros((0, 7), np.float32)}),
    case("reshape_zeros_of_another_rank", "g (float[A,B,C] x) => (float[P,Q] y) <int64[1] f = {-1}, int64[3] s = {0,0,0}, int64[2] t = {0,-1}> "
         "{a = Reshape(x, s) b = Reshape(a, t) y = Neg(b)}", {"x": normal(2, 3, 4)}, {"x": normal(1, 1, 5)}),
    case("reshape_zero_after_another", "g (float[4,6] x) => (float[P,Q] y) <int64[2] s = {6,4}, int64[2] t = {0,-1}> {a = Reshape(x, s) y = Reshape(a, t)}",
         {"x": normal(4, 6)}),
    case("reshape_chain_over_zero_rows", "g (float[N,4] x) => (float[P,Q] y) <int64[3] s = {-1,2,2}, int64[2] t = {-1,4}> {a = Reshape(x, s) b = Relu(a) y = Reshape(b, t)}",
         {"x": normal(3, 4)}, {"x": np.zeros((0, 4), np.float32)}),
    case("reshape_by_a_computed_shape", "g (float[N,M] x) => (float[P,Q] y) {s = Shape(x) r = Gather<axis=0>(s, i) n = Unsqueeze(r, k) t = Concat<axis=0>(n, m) y = Reshape(x, t)}"
         .replace(") {s", ") <int64 i = {0}, int64[1] k = {0}, int64[1] m = {-1}> {s"), {"x": N3}, {"x": normal(1, 4)}, gone="Shape Gather Concat Unsqueeze"),
    case("reshape_by_a_product", "g (float[A,B,4] x) => (float[P,Q] y) <int64[1] z = {0}, int64[1] o = {1}, int64[1] t = {2}, int64[1] f = {4}> "
         "{s = Shape(x) a = Slice(s, z, o) b = Slice(s, o, t) p = Mul(a, b) u = Concat<axis=0>(p, f) y = Reshape(x, u)}", {"x": normal(2, 3, 4)}, {"x": normal(1, 1, 4)},
         gone="Shape Slice Mul Concat"),
    case("reshape_by_another_values_shape", "g (float[N,3] x, float[M,3] z) => (float[P,Q] y) {s = Shape(z) y = Reshape(x, s)}",
         {"x": N3, "z": N3}, kept="Reshape"),
    case("reshape_swaps_equal_looking_dims", "g (float[A,B] x) => (float[B,A] y) <int64[2] p = {1,0}> {s = Shape(x) t = Gather(s, p) y = Reshape(x, t)}",
         {"x": N3}, {"x": normal(3, 3)}, kept="Reshape"),
    case("reshape_of_a_transpose", "g (float[2,2] x) => (float[2,2] y) <int64[2] s = {2,2}> {a = Transpose<perm=[1,0]>(x) b = Reshape(a, s) y = Neg(b)}",
         {"x": normal(2, 2)}, gone="Reshape", kept="Transpose"),
    case("flatten_at_minus_one", "g (float[A,B,C] x) => (float[P,Q] y) {a = Flatten<axis=-1>(x) y = Neg(a)}", {"x": normal(2, 3, 4)}, kept="Flatten", opset=13),
    case("flatten_at_zero", "g (float[A,B] x) => (float[1,Q] y) {a = Flatten<axis=0>(x) y = Neg(a)}", {"x": N3}),
    case("flatten_of_two_is_nothing", "g (float[A,B] x) => (float[A,B] y) {a = Flatten(x) y = Neg(a)}", {"x": N3}, gone="Flatten"),
    # Squeeze, Unsqueeze, Transpose
    case("squeeze_of_all_ones_today", "g (float[A,B,1] x) => (float[a] y) {y = Squeeze(x)}", {"x": normal(1, 3, 1)}, kept="Squeeze"),
    case("squeezes_count_anew", "g (float[1,3,1,1] x) => (float[3,1] y) <int64[1] z = {0}, int64[1] o = {1}> {a = Squeeze(x, z) b = Squeeze(a, o) y = Neg(b)}",
         {"x": normal(1, 3, 1, 1)}),
    case("squeezes_from_the_end", "g (float[1,3,1,1] x) => (float[1,3] y) <int64[1] m = {-1}> {a = Squeeze(x, m) b = Squeeze(a, m) y = Neg(b)}", {"x": normal(1, 3, 1, 1)}),
    case("unsqueezes_out_of_order", "g (float[N] x) => (float[1,N,1] y) <int64[2] k = {2,0}> {a = Unsqueeze(x, k) y = Neg(a)}", {"x": f32(1, 2)}),
    case("unsqueeze_then_squeeze_elsewhere", "g (float[1,N] x) => (float[a,b] y) <int64[1] z = {0}, int64[1] o = {1}> {a = Unsqueeze(x, z) y = Squeeze(a, o)}",
         {"x": normal(1, 3)}, expected={"y": normal(1, 3)}),
    case("transpose_reverses_by_default", "g (float[A,B,C] x) => (float[a,b,c] y) {a = Transpose(x) b = Transpose(a) y = Neg(b)}", {"x": normal(2, 3, 4)}, gone="Transpose"),
    case("transposes_that_do_not_cancel", "g (float[A,B,C] x) => (float[a,b,c] y) {a = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[1,2,0]>(a)}",
         {"x": normal(2, 3, 4)}, expected={"y": normal(2, 3, 4).transpose(2, 0, 1)}),
    case("transpose_past_a_row", "g (float[A,3] x) => (float[A,3] y) <float[1] k = {2}, float[3,1] r = {1,2,3}> "
         "{a = Transpose<perm=[1,0]>(x) b = Mul(a, k) c = Add(b, r) y = Transpose<perm=[1,0]>(c)}", {"x": N3}),
    case("transpose_past_softmax", "g (float[A,B] x) => (float[A,B] y) {a = Transpose<perm=[1,0]>(x) b = Softmax<axis=-1>(a) y = Transpose<perm=[1,0]>(b)}",
         {"x": N3}, tolerance=1e-6),
    # Broadcasting
    case("expand_that_widens_today", "g (float[N,3] x, float[M,3] z) => (float[A,3] y) {s = Shape(z) e = Expand(x, s) y = Add(e, x)}",
         {"x": normal(1, 3), "z": normal(4, 3)}, {"x": normal(1, 3), "z": normal(1, 3)}, kept="Expand"),
    case("expand_that_is_needless", "g (float[N,3] x) => (float[N,3] y) <float[3] r = {1,2,3}> {s = Shape(x) e = Expand(r, s) y = Add(x, e)}", {"x": N3}, gone="Expand Shape"),
    case("expand_to_less", "g (float[3,N] x) => (float[3,N] y) <int64[1] o = {1}> {a = Expand(x, o) y = Neg(a)}", {"x": normal(3, 2)}, gone="Expand"),
    case("expand_past_a_greater_rank", "g (float[3] x) => (float[1,1,3] y) <int64[3] o = {1,1,1}> {y = Expand(x, o)}", {"x": f32(1, 2, 3)}, kept=""),
    case("ones_that_widen", "g (float[N,1] x) => (float[N,3] y) <float[1,3] o = {1,1,1}> {y = Mul(x, o)}", {"x": normal(2, 1)}, kept="Mul"),
    case("ones_that_add_an_axis", "g (float[N] x) => (float[1,N] y) <float[1,1] o = {1}> {y = Mul(x, o)}", {"x": f32(1, 2)}),
    case("zeros_of_another_shape", "g (float[N,1] x) => (float[N,3] y) <int64[2] s = {1,3}> {z = ConstantOfShape(s) y = Sub(x, z)}", {"x": normal(2, 1)}),
    case("ones_of_no_rows", "g (float[N,3] x) => (float[0,3] y) <float[0,3] o = {}> {y = Mul(x, o)}", {"x": normal(1, 3)}),
    case("names_that_are_one_today", "g (float[N] x, float[M] z) => (float[A] y) {a = Add(x, z) b = Shape(a) c = Expand(x, b) y = Add(c, z)}",
         {"x": f32(1), "z": f32(1, 2, 3)}, {"x": f32(1, 2, 3), "z": f32(1)}),
    case("names_like_inner_names", 'g (float["?0",3] x, float["?1",3] z, float["?2",3] w) => (float[A,3] y, float[B,3] v) '
         "{n = NonZero(x) m = Transpose(n) f = Cast<to=1>(m) s = Shape(f) t = Shape(w) c = Equal(s, t) q = Cast<to=1>(c) r = ReduceSum(q) "
         "a = Shape(z) e = Expand(x, a) y = Mul(e, r) v = Neg(z)}", {"x": normal(1, 3), "z": normal(4, 3), "w": normal(2, 3)}),
    case("names_of_nothing", 'g (float["",3] x, float["?",3] z) => (float[A,3] y) {s = Shape(z) e = Expand(x, s) y = Sub(e, z)}',
         {"x": normal(1, 3), "z": normal(4, 3)}, kept="Expand"),
    case("one_name_in_two_places", "g (float[N,N] x) => (float[A,B] y) {a = Transpose(x) s = Shape(x) b = Reshape(a, s) y = Add(b, x)}", {"x": normal(3, 3)}),
    # Slices, splits, gathers
    case("slice_of_all", "g (float[N,3] x) => (float[N,3] y) <int64[1] z = {0}, int64[1] e = {9223372036854775807}> {a = Slice(x, z, e) y = Neg(a)}", {"x": N3}, gone="Slice"),
    case("slice_up_to_a_large_number", "g (float[N] x) => (float[M] y) <int64[1] z = {0}, int64[1] e = {2}> {a = Slice(x, z, e) y = Neg(a)}", {"x": f32(1)}, {"x": f32(1, 2, 3)}, kept="Slice"),
    case("slice_backwards", "g (float[N] x) => (float[N] y) <int64[1] z = {-1}, int64[1] e = {-9223372036854775808}, int64[1] k = {0}, int64[1] m = {-1}> "
         "{a = Slice(x, z, e, k, m) b = Slice(a, z, e, k, m) y = Neg(b)}", {"x": f32(1, 2, 3)}),
    case("slices_of_one_axis", "g (float[8] x) => (float[M] y) <int64[1] a = {1}, int64[1] b = {7}, int64[1] c = {-3}, int64[1] d = {-1}> {p = Slice(x, a, b) y = Slice(p, c, d)}",
         {"x": f32(*range(8))}, expected={"y": f32(4, 5)}),
    case("slice_past_the_end", "g (float[4] x) => (float[M] y) <int64[1] a = {2}, int64[1] b = {1}> {y = Slice(x, a, b)}", {"x": f32(1, 2, 3, 4)}, expected={"y": f32()}),
    case("slices_that_overlap", "g (float[6] x) => (float[4] y) <int64[1] z = {0}, int64[1] t = {2}, int64[1] f = {4}, int64[1] s = {6}> "
         "{a = Slice(x, z, f) b = Slice(x, t, s) y = Add(a, b)}", {"x": f32(*range(6))}),
    case("slices_of_bytes", "g (int8[6] x) => (int8[6] y) <int64[1] z = {0}, int64[1] t = {3}, int64[1] s = {6}> {a = Slice(x, z, t) b = Slice(x, t, s) y = Concat<axis=0>(b, a)}",
         {"x": np.arange(6, dtype=np.int8)}),
    case("split_in_uneven_parts", "g (float[7] x) => (float[3] y, float[1] z) {a, b, c = Split<axis=0, num_outputs=3>(x) y = Neg(a) z = Neg(c)}", {"x": f32(*range(7))}, opset=18),
    case("split_then_concat_the_other_way", "g (float[4] x) => (float[4] y) <int64[2] s = {2,2}> {a, b = Split<axis=0>(x, s) c = Concat<axis=0>(b, a) y = Neg(c)}",
         {"x": f32(1, 2, 3, 4)}, expected={"y": f32(-3, -4, -1, -2)}),
    case("split_then_concat_elsewhere", "g (float[2,2] x) => (float[A,B] y) <int64[2] s = {1,1}> {a, b = Split<axis=0>(x, s) y = Concat<axis=1>(a, b)}",
         {"x": normal(2, 2)}, kept="Split Concat"),
    case("concat_of_one", "g (float[N] x) => (float[N] y) {a = Concat<axis=0>(x) y = Neg(a)}", {"x": f32(1, 2)}, gone="Concat"),
    case("concat_with_nothing", "g (float[N,3] x) => (float[N,3] y) <float[0,3] o = {}> {a = Concat<axis=0>(x, o) y = Neg(a)}", {"x": N3}, gone="Concat"),
    case("gather_with_negative_indices", "g (float[3,N] x) => (float[N] y) <int64 i = {-1}> {a = Gather<axis=0>(x, i) y = Neg(a)}", {"x": normal(3, 2)}),
    case("gather_keeps_an_axis", "g (float[3,N] x) => (float[1,N] y) <int64[1] i = {1}> {a = Gather<axis=0>(x, i) y = Neg(a)}", {"x": normal(3, 2)}),
    case("gather_from_a_scalar_shape", "g (float x) => (int64[0] y) {y = Shape(x)}", {"x": np.float32(2)}, expected={"y": np.array([], np.int64)}),
    case("shape_of_a_part", "g (float[N,3,4] x) => (int64[2] y) {y = Shape<start=-2, end=9>(x)}", {"x": normal(2, 3, 4)}, expected={"y": np.array([3, 4])}, opset=15),
    case("size_of_nothing", "g (float[0,N] x) => (int64 y) {y = Size(x)}", {"x": np.zeros((0, 3), np.float32)}, expected={"y": np.array(0)}),
    case("tile_by_one_and_two", "g (float[N,3] x) => (float[A,B] y) <int64[2] o = {1,1}, int64[2] t = {2,1}> {a = Tile(x, o) y = Tile(a, t)}", {"x": N3}),
    # Reductions
    case("sum_over_no_axes", "g (float[N,3] x) => (float[N,3] y) <int64[0] k = {}> {a = ReduceSum<noop_with_empty_axes=1>(x, k) y = Neg(a)}", {"x": N3}, gone="ReduceSum"),
    case("sum_over_no_axes_is_all", "g (float[N,3] x) => (float[1,1] y) <int64[0] k = {}> {a = ReduceSum(x, k) y = Neg(a)}", {"x": N3}, kept="ReduceSum"),
    case("max_of_no_rows", "g (float[0,3] x) => (float[3] y) <int64[1] k = {0}> {a = ReduceSum<keepdims=0>(x, k) y = Neg(a)}", {"x": EMPTY}),
    case("reductions_in_a_row", "g (float[2,3,4] x) => (float[a] y) <int64[1] z = {0}> {a = ReduceSum<keepdims=0>(x, z) y = ReduceSum<keepdims=0>(a, z)}",
         {"x": normal(2, 3, 4)}, tolerance=1e-6),
    case("mean_of_means", "g (float[2,3] x) => (float y) {a = ReduceMean<axes=[1], keepdims=0>(x) b = ReduceMean<axes=[0], keepdims=0>(a) y = Neg(b)}", {"x": N3}, tolerance=1e-6),
    case("arg_max_of_ties", "g (float[2,3] x) => (int64[2] y) <int64[1] o = {1}> {a = ArgMax<axis=1, keepdims=1, select_last_index=1>(x) y = Squeeze(a, o)}",
         {"x": f32([1, 1, 0], [2, 3, 3])}, expected={"y": np.array([1, 2])}),
    # Blow-ups: what is small as a computation and large as a constant
    case("constant_of_shape_blows_up", "g (float[1] x) => (float[A,B] y) <int64[2] s = {2000,50}> {o = ConstantOfShape<value = float[1] {3}>(s) y = Mul(x, o)}", {"x": f32(2)}),
    case("expand_blows_up", "g (float[1,50] x) => (float[A,B] y) <float[1,50] r = {" + ",".join("1" * 50) + "}, int64[2] s = {2000,50}> {o = Expand(r, s) y = Mul(x, o)}",
         {"x": normal(1, 50)}),
    case("tile_blows_up", "g (float[1] x) => (float[A] y) <float[2] r = {1,2}, int64[1] s = {5000}> {o = Tile(r, s) y = Mul(x, o)}", {"x": f32(2)}, kept="Tile"),
    case("range_blows_up", "g (int64[1] x) => (int64[A] y) <int64 a = {0}, int64 b = {20000}, int64 c = {1}> {o = Range(a, b, c) y = Mul(x, o)}", {"x": np.array([2])}, kept="Range"),
    case("one_hot_blows_up", "g (float[1] x) => (float[A,B] y) <int64[50] i = {" + ",".join(map(str, range(50))) + "}, int64 d = {500}, float[2] v = {0,1}> "
         "{o = OneHot(i, d, v) y = Mul(x, o)}", {"x": f32(2)}, kept="OneHot"),
    case("eye_blows_up", "g (float[1] x) => (float[A,B] y) <float[1,1] r = {1}, int64[2] s = {200,200}> {e = Expand(r, s) o = EyeLike(e) y = Mul(x, o)}", {"x": f32(2)}),
    case("pad_blows_up", "g (float[1] x) => (float[A] y) <float[2] r = {1,2}, int64[2] p = {5000,5000}> {o = Pad(r, p) y = Mul(x, o)}", {"x": f32(2)}, kept="Pad"),
    case("resize_blows_up", 'g (float[1] x) => (float[A,B,C,D] y) <float[1,1,2,2] r = {1,2,3,4}, float[4] s = {1,1,60,60}> {o = Resize<mode="nearest">(r, , s) y = Mul(x, o)}',
         {"x": f32(2)}, kept="Resize"),
    case("cast_to_double_blows_up", model([node("Cast", ["w"], ["d"], to=11), node("Mul", ["x", "d"], ["y"])], [value("x", [1], 11)], [value("y", [1000], 11)],
         [tensor("w", normal(1000))]), {"x": np.ones(1)}, kept="Cast"),
    case("concat_of_one_weight_twice", model([node("Concat", ["w", "w", "w"], ["d"], axis=0), node("Mul", ["x", "d"], ["y"])], [value("x", [1])], [value("y", ["A"])],
         [tensor("w", normal(1000))]), {"x": f32(2)}, kept="Concat"),
    case("outer_product_blows_up", model([node("MatMul", ["u", "v"], ["d"]), node("Mul", ["x", "d"], ["y"])], [value("x", [1])], [value("y", ["A", "B"])],
         [tensor("u", normal(200, 1)), tensor("v", normal(1, 200))]), {"x": f32(2)}, kept="MatMul"),
    case("blow_up_that_ends_small", "g (float[1] x) => (float[1] y) <int64[2] s = {2000,50}, int64[2] k = {0,1}> "
         "{o = ConstantOfShape<value = float[1] {1}>(s) r = ReduceSum<keepdims=0>(o) y = Mul(x, r)}", {"x": f32(2)}, expected={"y": f32(200000)}, gone="ConstantOfShape ReduceSum"),
    case("shared_weight_two_scales", model([node("Mul", ["w", "s"], ["a"]), node("Mul", ["w", "t"], ["b"]), node("Mul", ["x", "a"], ["p"]), node("Mul", ["x", "b"], ["q"]),
         node("Add", ["p", "q"], ["y"])], [value("x", [BIG, BIG])], [value("y", [BIG, BIG])], [tensor("w", normal(BIG, BIG)), tensor("s", 2.0, np.float32), tensor("t", 3.0, np.float32)]),
         {"x": normal(BIG, BIG)}, tolerance=1e-6),
]
# fmt: on
