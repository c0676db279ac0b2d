"""Constants of every kind: strings, sub-byte and 8-bit floats, sparse ones, NaN, tied and equal weights, raw and typed."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.optimizers.hostile.cases import case, f32, model, node, normal, parsed, tensor, value

X = [value("x", ["N", 3])]
Y = [value("y", ["A", "B"])]
ONE = normal(1, 3)


def sub_byte(kind: int, count: int = 6) -> onnx.ModelProto:
    weight = helper.make_tensor("w", kind, [2, 3], [1, 0, 1, 1, 0, 1][:count])
    scale = tensor("s", 0.5, np.float32)
    zero = helper.make_tensor("z", kind, [], [0])
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["d"]),
        node("Identity", ["d"], ["e"]),
        node("Add", ["x", "e"], ["y"]),
    ]
    opset, ir = (23, 11) if kind == getattr(TensorProto, "FLOAT4E2M1", -1) else (21, 10)
    return model(nodes, [value("x", [1, 3])], Y, [weight, scale, zero], opset=opset, ir=ir)


def sparse(nodes, *sparse_tensors, inputs=X) -> onnx.ModelProto:
    made = model(nodes, inputs, Y, ir=8)
    made.graph.sparse_initializer.extend(sparse_tensors)
    return made


def sparse_tensor(name: str) -> onnx.SparseTensorProto:
    values = helper.make_tensor(name, TensorProto.FLOAT, [2], [2.0, -3.0])
    places = helper.make_tensor(f"{name}_places", TensorProto.INT64, [2], [1, 3])
    return helper.make_sparse_tensor(values, places, [3, 2])


def repeated(name: str, times: int) -> onnx.TensorProto:
    """Numbers in the typed field, as old writers do, and not in raw bytes."""
    return onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[3], float_data=[1.0, 2.0, float(times)])


TEXTS = model(
    [node("StringConcat", ["x", "k"], ["a"]), node("Identity", ["a"], ["y"])],
    [value("x", ["N"], TensorProto.STRING)],
    [value("y", ["N"], TensorProto.STRING)],
    [helper.make_tensor("k", TensorProto.STRING, [1], [b"-\xc3\xa9"])],
    opset=20,
    ir=9,
)
NORMALIZED = model(
    [
        node("Constant", [], ["k"], value_strings=[b"Aa", b"the"]),
        node("Concat", ["k", "k"], ["c"], axis=0),
        node("Equal", ["x", "c"], ["y"]),
    ],
    [value("x", ["N"], TensorProto.STRING)],
    [value("y", ["N"], TensorProto.BOOL)],
    opset=19,
    ir=9,
)

# fmt: off
CASES = [
    case("strings", TEXTS, {"x": np.array(["a", "b"], object)}, gone="Identity"),
    case("strings_in_constants", NORMALIZED, {"x": np.array(["Aa", "the", "aa", "the"], object)}),
    case("string_cast", model([node("Cast", ["k"], ["f"], to=1), node("Add", ["x", "f"], ["y"])], X, Y, [helper.make_tensor("k", TensorProto.STRING, [3], [b"1.5", b"-0", b"inf"])]), {"x": ONE}),
    case("int4_weight", sub_byte(TensorProto.INT4), {"x": ONE}, kept="DequantizeLinear", gone="Identity"),
    case("uint4_weight", sub_byte(TensorProto.UINT4), {"x": ONE}, kept="DequantizeLinear", gone="Identity"),
    case("float8_weight", sub_byte(TensorProto.FLOAT8E4M3FN), {"x": ONE}, kept="DequantizeLinear", gone="Identity"),
    case("float8_other_weight", sub_byte(TensorProto.FLOAT8E5M2FNUZ), {"x": ONE}, kept="DequantizeLinear", gone="Identity"),
    case("float4_weight", sub_byte(TensorProto.FLOAT4E2M1), {"x": ONE}, kept="DequantizeLinear", loads=False),
    case("int4_cast", model([node("Cast", ["w"], ["d"], to=1), node("Add", ["x", "d"], ["y"])], [value("x", [1, 3])], Y,
         [helper.make_tensor("w", TensorProto.INT4, [3], [-8, 7, 1])], opset=21, ir=10), {"x": ONE}),
    case("bfloat_weight", model([node("Cast", ["w"], ["d"], to=1), node("Add", ["x", "d"], ["y"])], X, Y, [helper.make_tensor("w", TensorProto.BFLOAT16, [3], [1.5, -2, 3])], opset=17), {"x": ONE}),
    case("sparse_weight", sparse([node("Identity", ["x"], ["a"]), node("MatMul", ["a", "w"], ["y"])], sparse_tensor("w")), {"x": ONE}, gone="Identity", tolerance=1e-6),
    case("two_sparse_weights", sparse([node("Add", ["w", "v"], ["a"]), node("MatMul", ["x", "a"], ["y"])], sparse_tensor("w"), sparse_tensor("v")), {"x": ONE}, tolerance=1e-6),
    case("sparse_weight_not_read", sparse([node("Identity", ["x"], ["a"]), node("Neg", ["a"], ["y"])], sparse_tensor("w")), {"x": ONE}, gone="Identity"),
    case("sparse_constant", model([node("Constant", [], ["w"], sparse_value=sparse_tensor("")), node("MatMul", ["x", "w"], ["y"])], X, Y), {"x": ONE}, tolerance=1e-6),
    case("nan_and_infinity", model([node("Add", ["k", "l"], ["a"]), node("Add", ["x", "a"], ["y"])], X, Y, [tensor("k", f32(np.nan, np.inf, -np.inf)), tensor("l", f32(1, -np.inf, 1))]), {"x": ONE}),
    case("nan_in_attributes", "g (float[N] x) => (float[N] y) <int64[1] s = {3}> {a = ConstantOfShape<value = float[1] {nan}>(s) b = ConstantOfShape<value = float[1] {nan}>(s) c = Add(a, b) y = Add(x, c)}", {"x": f32(1, 2, 3)}),
    case("equal_bytes_other_types", model([node("Cast", ["i"], ["f"], to=1), node("Add", ["x", "k"], ["a"]), node("Add", ["a", "f"], ["y"])], X, Y,
         [tensor("k", f32(0, 0, 0)), tensor("i", [0, 0, 0], np.int32)]), {"x": ONE}),
    case("equal_bytes_other_shapes", model([node("Reshape", ["x", "s"], ["a"]), node("Tile", ["a", "t"], ["y"])], [value("x", [2, 3])], Y, [tensor("s", [3, 2], np.int64), tensor("t", [3, 2], np.int64)]), {"x": normal(2, 3)}),
    case("zeros_of_two_signs", model([node("Add", ["x", "p"], ["a"]), node("Add", ["x", "q"], ["b"]), node("Concat", ["a", "b"], ["y"], axis=0)], X, Y, [tensor("p", f32(0, 0, 0)), tensor("q", f32(-0.0, -0.0, -0.0))]), {"x": f32([-0.0, 0.0, 1])}),
    case("equal_constants_of_two_signs", "g (float[N] x) => (float[N] y) {p = Constant<value = float {0.0}>() q = Constant<value = float {-0.0}>() a = Div(x, p) b = Div(x, q) c = Abs(x) d = Max(a, c) e = Min(b, c) y = Concat<axis=0>(d, e)}"
         .replace("(float[N] y)", "(float[M] y)"), {"x": f32(1, -2, 3)}),
    case("tied_weights", model([node("MatMul", ["x", "w"], ["a"]), node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["a", "t"], ["y"])], [value("x", ["N", 40])], Y, [tensor("w", normal(40, 50))]), {"x": normal(2, 40)}, tolerance=1e-4),
    case("numbers_in_typed_fields", model([node("Add", ["x", "k"], ["a"]), node("Add", ["a", "l"], ["b"]), node("Neg", ["b"], ["y"])], X, Y, [repeated("k", 3), repeated("l", 4)]), {"x": ONE}),
    case("half_in_typed_fields", model([node("Cast", ["k"], ["a"], to=1), node("Add", ["x", "a"], ["y"])], X, Y, [onnx.TensorProto(name="k", data_type=TensorProto.FLOAT16, dims=[3], int32_data=[0x3C00, 0x8000, 0x7C00])]), {"x": ONE}),
    case("constants_of_every_attribute", "g (float[N] x) => (float[N] y) {a = Constant<value_float=1.5>() b = Constant<value_ints=[1]>() c = Constant<value_int=2>() d = Cast<to=1>(b) e = Cast<to=1>(c) f = Mul(a, d) h = Mul(f, e) y = Add(x, h)}", {"x": f32(1, 2)}, gone="Mul Cast"),
    case("weight_without_elements", model([node("Concat", ["x", "k"], ["a"], axis=0), node("Neg", ["a"], ["y"])], X, Y, [tensor("k", np.zeros((0, 3), np.float32))]), {"x": ONE}, gone="Concat"),
    case("scalar_and_row_of_one", model([node("Mul", ["x", "k"], ["a"]), node("Mul", ["a", "l"], ["y"])], [value("x", [])], [value("y", ["A"])], [tensor("k", 2.0, np.float32), tensor("l", [2.0], np.float32)]), {"x": np.float32(3)}),
    case("weight_with_documentation", model([node("MatMul", ["x", "w"], ["y"])], X, Y, [numpy_helper.from_array(normal(3, 2), "w")]), {"x": ONE}, tolerance=1e-6),
    case("double_weights_in_a_single_model", parsed("g (float[N] x) => (float[N] y) <double k = {0.1}> {d = Cast<to=11>(x) a = Mul(d, k) y = Cast<to=1>(a)}"), {"x": f32(1, 3, 7)}, kept="Cast"),
    case("unsigned_weights", "g (uint8[N] x) => (uint8[N] y) <uint8 k = {200}, uint8 l = {100}> {a = Add(k, l) y = Add(x, a)}", {"x": np.array([1, 250], np.uint8)}, loads=False),
    case("unsigned_64_bits", "g (uint64[N] x) => (uint64[N] y) <uint64 k = {18446744073709551615}, uint64 l = {2}> {a = Mul(k, l) y = Add(x, a)}", {"x": np.array([5], np.uint64)}, loads=False),
]
# fmt: on
CASES[-4].model.graph.initializer[0].doc_string = "what it was trained on"
