"""Layers: convolutions, pools, normalization, products, recurrent ones, random draws, and how old opsets say them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.optimizers.hostile.cases import case, f32, model, node, normal, parsed, tensor, value

IMAGE = normal(1, 2, 5, 5)
W = normal(3, 2, 3, 3, seed=1)
B = normal(3, seed=2)
X4 = [value("x", ["N", 2, 5, 5])]
Y4 = [value("y", ["N", 3, "H", "V"])]


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)


def norm(name: str, source: str, target: str, **attributes):
    return node("BatchNormalization", [source, *(f"{name}{p}" for p in "somv")], [target], **attributes)


def numbers(name: str, count: int, seed: int = 3):
    return [tensor(f"{name}{p}", positive(count, seed=seed + i)) for i, p in enumerate("somv")]


def convolution(*nodes, extra=(), inputs=X4, outputs=Y4, weight=W, **options):
    return model(nodes, inputs, outputs, [tensor("w", weight), tensor("b", B), *extra], **options)


def scaled(scale, weight=W, operator="Mul", channels=3):
    return convolution(
        node("Conv", ["x", "w"], ["c"]), node(operator, ["c", "s"], ["y"]), extra=[tensor("s", scale)], weight=weight
    )


QUANTIZED = model(
    [node("DequantizeLinear", ["q", "s", "z"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
    [value("x", [2, 64])],
    [value("y", [2, 64])],
    [
        tensor("q", np.arange(-2048, 2048).reshape(64, 64) % 127, np.int8),
        tensor("s", 0.02, np.float32),
        tensor("z", 3, np.int8),
    ],
)
GEMM = "g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1,2,3,4,5,6}, float[2] b = {1,-1}, float[2] s = {2,3}"
POOL = "g (float[1,1,4,4] x) => (float[A,B,C,D] y) <int64[8] p = {0,0,1,1,0,0,1,1}, float z = {0}> "
NEGATIVE = -positive(1, 1, 4, 4)

# fmt: off
CASES = [
    # Convolutions
    case("two_norms_one_weight", convolution(node("Conv", ["x", "w", "b"], ["c"]), norm("p", "c", "d"), node("Conv", ["x", "w", "b"], ["e"]),
         norm("q", "e", "f", epsilon=0.1), node("Sub", ["d", "f"], ["y"]), extra=[*numbers("p", 3), *numbers("q", 3, 8)]), {"x": IMAGE}, tolerance=1e-4),
    case("norm_and_another_reader", convolution(node("Conv", ["x", "w"], ["c"]), norm("p", "c", "d"), node("Add", ["c", "d"], ["y"]), extra=numbers("p", 3)),
         {"x": IMAGE}, tolerance=1e-4, kept="BatchNormalization"),
    case("norm_of_an_output", convolution(node("Conv", ["x", "w"], ["c"]), norm("p", "c", "y"), extra=numbers("p", 3), outputs=[*Y4, value("c", ["N", 3, "H", "V"])]),
         {"x": IMAGE}, tolerance=1e-4, kept="BatchNormalization"),
    case("norm_with_negative_variance", convolution(node("Conv", ["x", "w"], ["c"]), norm("p", "c", "y"),
         extra=[*numbers("p", 3)[:3], tensor("pv", f32(-0.5, 1, 1))]), {"x": IMAGE}, tolerance=1e-4),
    case("norm_with_no_variance", convolution(node("Conv", ["x", "w"], ["c"]), norm("p", "c", "y", epsilon=0.0),
         extra=[*numbers("p", 3)[:3], tensor("pv", f32(0, 1, 1))]), {"x": IMAGE}, tolerance=1e-4),
    case("norm_with_an_overridable_scale", convolution(node("Conv", ["x", "w"], ["c"]), norm("p", "c", "y"), extra=numbers("p", 3), inputs=[*X4, value("ps", [3])]),
         {"x": IMAGE}, {"x": IMAGE, "ps": f32(5, -6, 7)}, tolerance=1e-4, kept="BatchNormalization"),
    case("norm_in_training", convolution(node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "ps", "po", "pm", "pv"], ["y", "m", "v"], training_mode=1),
         extra=numbers("p", 3), outputs=[*Y4, value("m", [3]), value("v", [3])]), {"x": IMAGE}, tolerance=1e-4, kept="BatchNormalization"),
    case("norm_of_groups", convolution(node("Conv", ["x", "w"], ["c"], group=2), norm("p", "c", "y"), weight=normal(4, 1, 3, 3), extra=numbers("p", 4), outputs=[value("y", ["N", 4, "H", "V"])]),
         {"x": IMAGE}, tolerance=1e-4, gone="BatchNormalization"),
    case("norm_of_transposed_groups", convolution(node("ConvTranspose", ["x", "w"], ["c"], group=2), norm("p", "c", "y"), weight=normal(2, 2, 3, 3), extra=numbers("p", 4),
         outputs=[value("y", ["N", 4, "H", "V"])]), {"x": IMAGE}, tolerance=1e-4),
    case("scale_that_overflows", scaled(np.float32(1e30), W * np.float32(1e20)), {"x": IMAGE * np.float32(1e-30)}, tolerance=1e-4),
    case("scale_that_underflows", scaled(np.float32(1e-30), W * np.float32(1e-25)), {"x": IMAGE * np.float32(1e30)}, tolerance=1e-4),
    case("scale_per_column_is_no_channel", convolution(node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "s"], ["y"]), extra=[tensor("s", f32(1, 2, 3))]), {"x": IMAGE}, tolerance=1e-4, kept="Mul"),
    case("scale_of_higher_rank", convolution(node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "s"], ["y"]), extra=[tensor("s", np.full((1, 1, 1, 1, 1), 2, np.float32))],
         outputs=[value("y", [1, "N", 3, "H", "V"])]), {"x": IMAGE}, tolerance=1e-4),
    case("scale_before_a_padded_convolution", convolution(node("Add", ["x", "s"], ["a"]), node("Conv", ["a", "w"], ["y"], pads=[1, 1, 1, 1]), extra=[tensor("s", np.float32(2))]),
         {"x": IMAGE}, tolerance=1e-4, kept="Add"),
    case("offset_before_same_padding", convolution(node("Add", ["x", "s"], ["a"]), node("Conv", ["a", "w"], ["y"], auto_pad="SAME_UPPER"), extra=[tensor("s", np.float32(2))]),
         {"x": IMAGE}, tolerance=1e-4, kept="Add"),
    case("scale_by_infinity", scaled(np.float32(np.inf)), {"x": IMAGE}, tolerance=1e-4),
    case("division_by_zero_after", scaled(f32(0, 1, 2).reshape(3, 1, 1), operator="Div"), {"x": IMAGE}, tolerance=1e-4),
    case("bias_given_by_the_caller", convolution(node("Conv", ["x", "w", "k"], ["c"]), node("Mul", ["c", "s"], ["y"]), extra=[tensor("s", np.float32(2))], inputs=[*X4, value("k", [3])]),
         {"x": IMAGE, "k": B}, tolerance=1e-4),
    case("weight_given_by_the_caller", convolution(node("Conv", ["x", "k"], ["c"]), norm("p", "c", "y"), extra=numbers("p", 3), inputs=[*X4, value("k", [3, 2, 3, 3])]),
         {"x": IMAGE, "k": W}, tolerance=1e-4, kept="BatchNormalization"),
    case("weight_that_is_an_output", convolution(node("Conv", ["x", "w"], ["c"]), norm("p", "c", "y"), extra=numbers("p", 3), outputs=[*Y4, value("w", [3, 2, 3, 3])]), {"x": IMAGE}, tolerance=1e-4),
    case("double_convolution_has_no_kernel", parsed("g (double[N,2] x) => (double[N,2] y) <double[2,2] w = {1,2,3,4}, double s = {2}> {a = MatMul(x, w) y = Mul(a, s)}"),
         {"x": normal(3, 2, dtype=np.float64)}, tolerance=1e-12),
    # Padding and pools
    case("pad_before_max_pool", POOL + "{a = Pad(x, p, z) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)}", {"x": NEGATIVE}, kept="Pad"),
    case("pad_before_average_pool", POOL + "{a = Pad(x, p, z) y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(a)}", {"x": NEGATIVE}, kept="Pad", tolerance=1e-6),
    case("pad_before_counting_average_pool", POOL + "{a = Pad(x, p, z) y = AveragePool<kernel_shape=[2,2], strides=[2,2], count_include_pad=1>(a)}", {"x": NEGATIVE}, tolerance=1e-6, gone="Pad"),
    case("pad_by_one_before_convolution", convolution(node("Pad", ["x", "p", "one"], ["a"]), node("Conv", ["a", "w"], ["y"]),
         extra=[tensor("p", [0, 0, 1, 1, 0, 0, 1, 1], np.int64), tensor("one", 1, np.float32)]), {"x": IMAGE}, tolerance=1e-5, kept="Pad"),
    case("pad_of_channels_before_convolution", convolution(node("Pad", ["x", "p"], ["a"]), node("Conv", ["a", "w"], ["y"]), weight=normal(3, 3, 3, 3),
         extra=[tensor("p", [0, 1, 0, 0, 0, 0, 0, 0], np.int64)]), {"x": IMAGE}, tolerance=1e-5, kept="Pad"),
    case("pad_that_cuts", convolution(node("Pad", ["x", "p"], ["a"]), node("Conv", ["a", "w"], ["y"], pads=[1, 1, 1, 1]),
         extra=[tensor("p", [0, 0, -1, 0, 0, 0, 0, -1], np.int64)]), {"x": IMAGE}, tolerance=1e-5, kept="Pad"),
    case("pad_that_mirrors", convolution(node("Pad", ["x", "p"], ["a"], mode="reflect"), node("Conv", ["a", "w"], ["y"]),
         extra=[tensor("p", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)]), {"x": IMAGE}, tolerance=1e-5, kept="Pad"),
    case("pad_by_nothing_with_axes", "g (float[N,3] x) => (float[A,B] y) <int64[2] p = {0,1}, int64[1] k = {0}, float z = {0}> {a = Pad(x, p, z, k) y = Neg(a)}", {"x": normal(2, 3)}, kept="Pad", opset=18),
    case("pool_that_hangs_over", "g (float[1,1,5] x) => (float[A,B,C] y) {a = MaxPool<kernel_shape=[2], strides=[2], ceil_mode=1>(x) y = Neg(a)}", {"x": normal(1, 1, 5)}),
    case("pool_with_indices", "g (float[1,1,4] x) => (float[A,B,C] y, int64[A,B,C] i) {a, i = MaxPool<kernel_shape=[2], strides=[2]>(x) y = Neg(a)}", {"x": normal(1, 1, 4)}),
    case("pool_of_one", "g (float[1,1,4] x) => (float[A,B,C] y) {a = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Neg(a)}", {"x": normal(1, 1, 4)}, kept="MaxPool"),
    case("resize_by_one_that_crops", "g (float[1,1,2,2] x) => (float[A,B,C,D] y) <float[8] r = {0,0,0,0,1,1,0.5,0.5}, float[4] s = {1,1,1,1}> "
         '{a = Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize">(x, r, s) y = Neg(a)}', {"x": normal(1, 1, 2, 2)}, kept="Resize"),
    case("resize_by_one", 'g (float[1,1,H,V] x) => (float[A,B,C,D] y) <float[4] s = {1,1,1,1}> {a = Resize<mode="linear">(x, , s) y = Neg(a)}', {"x": normal(1, 1, 3, 2)}, gone="Resize"),
    case("resize_cubic_by_one", 'g (float[1,1,4,4] x) => (float[A,B,C,D] y) <float[4] s = {1,1,1,1}> {a = Resize<mode="cubic">(x, , s) y = Neg(a)}', {"x": normal(1, 1, 4, 4)}, tolerance=1e-6),
    # Products
    case("gemm_with_beta", GEMM + "> {a = Gemm<beta=0.5>(x, w, b) y = Add(a, b)}", {"x": normal(2, 3)}, tolerance=1e-5),
    case("gemm_with_alpha", GEMM + "> {a = Gemm<alpha=2.0, beta=0.0>(x, w, b) y = Mul(a, s)}", {"x": normal(2, 3)}, tolerance=1e-5),
    case("gemm_whose_bias_is_a_column", "g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1,2,3,4,5,6}, float[2,1] b = {1,-1}, float[2] s = {2,3}> {a = Gemm(x, w, b) y = Mul(a, s)}",
         {"x": normal(2, 3)}, tolerance=1e-5),
    case("product_whose_bias_widens", "g (float[1,3] x) => (float[4,2] y) <float[3,2] w = {1,2,3,4,5,6}, float[4,2] b = {1,2,3,4,5,6,7,8}> {a = MatMul(x, w) y = Add(a, b)}", {"x": normal(1, 3)}, tolerance=1e-6),
    case("product_whose_bias_adds_an_axis", "g (float[N,3] x) => (float[1,N,2] y) <float[3,2] w = {1,2,3,4,5,6}, float[1,1,2] b = {1,2}> {a = MatMul(x, w) y = Add(a, b)}", {"x": normal(2, 3)}, tolerance=1e-6),
    case("product_of_vectors", "g (float[3] x) => (float y) <float[3] w = {1,2,3}, float b = {1}> {a = MatMul(x, w) y = Add(a, b)}", {"x": normal(3)}, tolerance=1e-6),
    case("product_of_batches", "g (float[N,2,3] x) => (float[N,2,2] y) <float[3,2] w = {1,2,3,4,5,6}, float[2] b = {1,2}> {a = MatMul(x, w) y = Add(a, b)}", {"x": normal(2, 2, 3)}, tolerance=1e-6),
    case("product_of_integers", "g (int32[N,3] x) => (int32[N,2] y) <int32[3,2] w = {1,2,3,4,5,6}, int32[2] b = {1,2}> {a = MatMul(x, w) y = Add(a, b)}",
         {"x": np.arange(6, dtype=np.int32).reshape(2, 3)}),
    case("transposed_product_of_old_opset", "g (float[3,N] x) => (float[N,2] y) <float[3,2] w = {1,2,3,4,5,6}> {a = Transpose<perm=[1,0]>(x) y = MatMul(a, w)}", {"x": normal(3, 2)}, tolerance=1e-6, opset=9),
    case("bias_of_old_opset", "g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1,2,3,4,5,6}, float[2] b = {1,2}> {a = MatMul(x, w) y = Add(a, b)}", {"x": normal(2, 3)}, tolerance=1e-6, opset=9),
    case("sum_of_two_biases", GEMM + "> {a = Gemm(x, w, b) c = Add(a, s) y = Sub(c, b)}", {"x": normal(2, 3)}, tolerance=1e-5),
    case("product_with_its_own_sum", "g (float[2,2] x) => (float[2,2] y) {a = MatMul(x, x) y = Add(a, a)}", {"x": normal(2, 2)}, tolerance=1e-6),
    case("einsum_of_a_diagonal", 'g (float[3,3] x) => (float[3] y) {y = Einsum<equation="ii->i">(x)}', {"x": normal(3, 3)}),
    case("einsum_of_nothing", 'g (float[N,3] x) => (float[N,3] y) {a = Einsum<equation="ij->ij">(x) y = Neg(a)}', {"x": normal(2, 3)}),
    # Quantized
    case("quantized_weight_stays", QUANTIZED, {"x": normal(2, 64)}, tolerance=1e-4, kept="DequantizeLinear"),
    case("quantize_and_back_rounds", "g (float[N] x) => (float[N] y) <float s = {0.5}, int8 z = {0}> {q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)}", {"x": f32(0.3, 100, -0.25)}, kept="QuantizeLinear"),
    case("dequantize_and_quantize_with_another_scale", "g (uint8[N] x) => (uint8[N] y) <float s = {0.5}, float t = {0.25}, uint8 z = {128}> {q = DequantizeLinear(x, s, z) y = QuantizeLinear(q, t, z)}",
         {"x": np.array([0, 128, 255, 130], np.uint8)}, kept="QuantizeLinear DequantizeLinear"),
    case("dequantize_and_quantize_of_another_type", "g (uint8[N] x) => (int8[N] y) <float s = {0.5}, uint8 z = {128}, int8 w = {0}> {q = DequantizeLinear(x, s, z) y = QuantizeLinear(q, s, w)}",
         {"x": np.array([0, 128, 255, 130], np.uint8)}, kept="QuantizeLinear"),
    case("integer_product", "g (uint8[N,2] x) => (int32[N,2] y) <uint8[2,2] w = {1,2,3,250}, uint8 z = {128}> {y = MatMulInteger(x, w, z)}", {"x": np.array([[0, 255]], np.uint8)}),
    # Random
    case("two_draws", "g (float[64] x) => (float[64] y) {a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b)}", {"x": normal(64)}, drawn="y", check=lambda runs: bool(np.any(runs[0]["y"]))),
    case("two_draws_of_one_seed", "g (float[64] x) => (float[64] y) {a = RandomNormalLike<seed=3.0>(x) b = RandomNormalLike<seed=3.0>(x) y = Sub(a, b)}", {"x": normal(64)}),
    case("a_draw_without_inputs", "g (float[64] x) => (float[64] y) {a = RandomUniform<shape=[64]>() y = Mul(a, x)}", {"x": np.ones(64, np.float32)}, {"x": np.ones(64, np.float32)}, drawn="y", kept="RandomUniform",
         check=lambda runs: not np.array_equal(runs[0]["y"], runs[1]["y"])),
    case("a_draw_from_constants", "g (float[64] x) => (float[64] y) <float[64] p = {" + ",".join(["0.5"] * 64) + "}> {a = Bernoulli(p) y = Mul(a, x)}", {"x": np.ones(64, np.float32)}, {"x": np.ones(64, np.float32)},
         drawn="y", kept="Bernoulli", check=lambda runs: not np.array_equal(runs[0]["y"], runs[1]["y"])),
    case("dropout_in_training", "g (float[64] x) => (float[64] y) <float r = {0.5}, bool t = {1}> {a = Dropout(x, r, t) b = Dropout(x, r, t) y = Sub(a, b)}", {"x": np.ones(64, np.float32)}, drawn="y", kept="Dropout",
         check=lambda runs: bool(np.any(runs[0]["y"]))),
    case("dropout_whose_mode_is_given", "g (float[N] x, bool t) => (float[N] y) <float r = {0.5}> {a = Dropout(x, r, t) y = Neg(a)}", {"x": f32(1, 2), "t": np.array(False)}, kept="Dropout"),
    case("dropout_whose_mask_is_read", "g (float[N] x) => (float[N] y, bool[N] m) <float r = {0.5}> {a, m = Dropout(x, r) y = Neg(a)}", {"x": f32(1, 2)}),
    case("dropout_of_nothing_in_training", "g (float[N] x) => (float[N] y) <float r = {0.0}, bool t = {1}> {a = Dropout(x, r, t) y = Neg(a)}", {"x": f32(1, 2)}),
    # Recurrent
    case("gru_with_gaps", model([node("GRU", ["x", "w", "r", "", "", "h"], ["", "y"], hidden_size=1)], [value("x", [1, 1, 1])], [value("y", [1, 1, 1])],
         [tensor("w", f32(1, 2, 3).reshape(1, 3, 1)), tensor("r", f32(0.5, -0.5, 0.25).reshape(1, 3, 1)), tensor("h", f32(0.3).reshape(1, 1, 1))]), {"x": f32(0.7).reshape(1, 1, 1)}),
    case("lstm_that_begins_with_zeros", model([node("ConstantOfShape", ["k"], ["z"]), node("LSTM", ["x", "w", "r", "", "", "z", "z"], ["y", "h", ""], hidden_size=1, direction="reverse")],
         [value("x", [2, 1, 1])], [value("y", [2, 1, 1, 1]), value("h", [1, 1, 1])],
         [tensor("w", normal(1, 4, 1)), tensor("r", normal(1, 4, 1, seed=1)), tensor("k", [1, 1, 1], np.int64)]), {"x": normal(2, 1, 1)}, gone="ConstantOfShape"),
    # Old opsets
    case("old_softmax", "g (float[2,3,2] x) => (float[2,3,2] y) {a = Identity(x) y = Softmax<axis=1>(a)}", {"x": normal(2, 3, 2)}, opset=11),
    case("old_log_softmax", "g (float[2,3,2] x) => (float[2,3,2] y) {a = Transpose<perm=[0,2,1]>(x) b = LogSoftmax(a) y = Transpose<perm=[0,2,1]>(b)}", {"x": normal(2, 3, 2)}, opset=9),
    case("old_squeeze", "g (float[N,1,1] x) => (float[N] y) {a = Squeeze<axes=[1]>(x) b = Squeeze<axes=[1]>(a) c = Unsqueeze<axes=[0]>(b) y = Squeeze<axes=[0]>(c)}", {"x": normal(2, 1, 1)}, opset=11),
    case("old_clip", "g (float[N] x) => (float[N] y) {a = Clip<min=-1.0>(x) b = Clip<max=1.0>(a) y = Relu(b)}", {"x": f32(-2, 0.5, 3)}, opset=9),
    case("old_clip_without_bounds", "g (float[N] x) => (float[N] y) {a = Clip(x) y = Neg(a)}", {"x": f32(-2, 0.5)}, opset=7),
    case("old_upsample", 'g (float[1,1,2,2] x) => (float[A,B,C,D] y) {a = Upsample<mode="nearest", scales=[1.0,1.0,2.0,2.0]>(x) b = Upsample<mode="nearest", scales=[1.0,1.0,1.0,1.0]>(a) y = Neg(b)}', {"x": normal(1, 1, 2, 2)}, opset=7),
    case("old_upsample_with_input", 'g (float[1,1,2,2] x) => (float[A,B,C,D] y) <float[4] s = {1,1,2,2}> {a = Upsample<mode="linear">(x, s) y = Neg(a)}', {"x": normal(1, 1, 2, 2)}, opset=9),
    case("old_dropout", "g (float[N] x) => (float[N] y) {a = Dropout<ratio=0.9>(x) y = Neg(a)}", {"x": f32(1, 2)}, opset=10, gone="Dropout"),
    case("old_slice", "g (float[4,4] x) => (float[A,B] y) {a = Slice<axes=[0], starts=[1], ends=[3]>(x) y = Slice<axes=[1], starts=[-2], ends=[100]>(a)}", {"x": normal(4, 4)}, opset=9),
    case("old_pad", "g (float[1,1,4] x) => (float[A,B,C] y) <float[1,1,2] w = {1,2}> {a = Pad<pads=[0,0,1,0,0,1], value=0.0>(x) y = Conv(a, w)}", {"x": normal(1, 1, 4)}, opset=9, tolerance=1e-6),
    case("old_pad_by_one", "g (float[1,1,4] x) => (float[A,B,C] y) <float[1,1,2] w = {1,2}> {a = Pad<pads=[0,0,1,0,0,1], value=1.0>(x) y = Conv(a, w)}", {"x": normal(1, 1, 4)}, opset=9, tolerance=1e-6, kept="Pad"),
    case("old_batch_normalization", parsed("g (float[N,2,3] x) => (float[N,2,3] y) <float[2] s = {1,2}, float[2] o = {1,0}, float[2] m = {0,1}, float[2] v = {1,2}> {a = Identity(x) y = BatchNormalization<epsilon=0.1>(a, s, o, m, v)}", opset=8),
         {"x": normal(2, 2, 3)}, tolerance=1e-6),
    case("old_split", "g (float[4] x) => (float[4] y) {a, b = Split<axis=0, split=[1,3]>(x) c = Concat<axis=0>(a, b) y = Neg(c)}", {"x": f32(1, 2, 3, 4)}, opset=11, gone="Split Concat"),
    case("old_reduce", "g (float[2,3] x) => (float[2] y) {a = ReduceSum<axes=[1], keepdims=1>(x) y = Squeeze<axes=[1]>(a)}", {"x": normal(2, 3)}, opset=11, tolerance=1e-6, gone="Squeeze"),
    case("old_resize", 'g (float[1,1,2,2] x) => (float[A,B,C,D] y) <float[4] s = {1,1,1,1}> {a = Resize<mode="nearest">(x, s) y = Neg(a)}', {"x": normal(1, 1, 2, 2)}, opset=10),
    case("old_hard_swish", "g (float[N] x) => (float[N] y) <float t = {3}, float s = {6}> {a = Add(x, t) c = Clip<min=0.0, max=6.0>(a) m = Mul(x, c) y = Div(m, s)}", {"x": f32(-4, -1, 1, 4)}, opset=9, tolerance=1e-6),
    case("old_one_hot_axis", "g (int64[2] x) => (float[A,B] y) <int64 d = {3}, float[2] v = {0,1}> {y = OneHot<axis=0>(x, d, v)}", {"x": np.array([2, -1])}, opset=9),
    case("old_top_k", "g (float[4] x) => (float[2] y, int64[2] i) {a = Identity(x) y, i = TopK<k=2>(a)}", {"x": f32(3, 1, 4, 2)}, opset=7),
    # Types without kernels, and spectra
    case("old_clip_of_doubles", "g (double[N] x) => (double[N] y) <double p = {-1}, double q = {1}> {a = Max(x, p) y = Min(a, q)}", {"x": np.array([-2, 0.5, 3])}, opset=11),
    case("complex_spectrum", "g (float[1,8,1] x) => (float[A,B,C] y) <int64 a = {1}> {d = DFT(x, , a) y = Neg(d)}", {"x": normal(1, 8, 1)}, opset=20, tolerance=1e-5),
    case("bfloat_sum", model([node("Identity", ["x"], ["a"]), node("Add", ["a", "a"], ["y"])], [value("x", ["N"], TensorProto.BFLOAT16)], [value("y", ["N"], TensorProto.BFLOAT16)]), loads=False, gone="Identity"),
    case("half_layers", "g (float16[N,2] x) => (float16[N,2] y) <float16[2,2] w = {1,2,3,4}, float16[2] b = {1,2}> {a = MatMul(x, w) c = Add(a, b) y = Relu(c)}", {"x": normal(2, 2, dtype=np.float16)}, tolerance=2e-3),
]
# fmt: on
