"""Interfaces: outputs that are inputs, constants or repeated, defaults, metadata, odd names, old files, other domains."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper

from tests.optimizers.hostile.cases import case, f32, model, node, normal, parsed, tensor, value

X = np.array([1, -2, 3], np.float32)
IN, OUT = value("x", [3]), value("y", [3])
ID, ABS = node("Identity", ["x"], ["i"]), node("Abs", ["i"], ["y"])
K = tensor("k", X)


def described() -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "not.used": 3], producer_name: "me", producer_version: "2.1", domain: "some.where", model_version: 7, doc_string: "text"> '
        "g (float[N] x) => (float[N] y) {a = Identity(x) y = Exp(a)}"
    )
    made.graph.doc_string = "of the graph"
    for holder, key in (
        (made, "author"),
        (made.graph, "part"),
        (made.graph.input[0], "unit"),
        (made.graph.output[0], "range"),
    ):
        holder.metadata_props.add(key=key, value="someone\nelse é")
    made.graph.input[0].doc_string = "of the input"
    made.graph.output[0].doc_string = "of the output"
    made.graph.input[0].type.denotation = "IMAGE"
    made.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    return made


def documented() -> onnx.ModelProto:
    """A name that a rewrite hands on: the output's node goes, its documentation stays."""
    made = model([node("Exp", ["x"], ["a"]), node("Identity", ["a"], ["y"])], [IN], [OUT], opset=21, ir=10)
    made.graph.output[0].doc_string = "kept"
    made.graph.output[0].metadata_props.add(key="unit", value="m")
    return made


def quantization_notes() -> onnx.ModelProto:
    made = model([ID, ABS], [IN], [OUT], [tensor("scale", 0.5, np.float32)])
    note = made.graph.quantization_annotation.add(tensor_name="x")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    return made


def custom(operator: str = "Mystery", domain: str = "some.company", inputs=("i",)) -> onnx.ModelProto:
    nodes = [
        ID,
        node(operator, list(inputs), ["m"], domain=domain, level=3),
        node("Identity", ["m"], ["n"]),
        node("Neg", ["n"], ["y"]),
    ]
    return model(nodes, [IN], [OUT], domains={domain: 1})


def unsorted() -> onnx.ModelProto:
    return model([node("Abs", ["b"], ["y"]), node("Identity", ["a"], ["b"]), node("Neg", ["x"], ["a"])], [IN], [OUT])


IR3 = model(
    [
        node("Mul", ["k", "two"], ["m"]),
        node("Add", ["x", "m"], ["a"]),
        node("Identity", ["a"], ["b"]),
        node("Abs", ["b"], ["y"]),
    ],
    [IN, value("k", [3]), value("two", [])],
    [OUT],
    [K, tensor("two", 2.0, np.float32)],
    opset=8,
    ir=3,
)
SEQUENCE = model(
    [node("SequenceAt", ["s", "i"], ["a"]), node("Identity", ["a"], ["b"]), node("Neg", ["b"], ["y"])],
    [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)],
    [value("y", ["N"])],
    [tensor("i", 0, np.int64)],
)
SEQUENCES_OUT = model(
    [node("SequenceConstruct", ["x", "x"], ["s"]), node("Identity", ["s"], ["y"])],
    [IN],
    [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [3])],
)
OPTIONAL = model(
    [node("OptionalHasElement", ["o"], ["h"]), node("Identity", ["h"], ["y"])],
    [
        helper.make_value_info(
            "o", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["N"]))
        )
    ],
    [value("y", [], TensorProto.BOOL)],
    opset=18,
)
EMPTY_NAMES = model(
    [node("Clip", ["x", "", "k"], ["c"]), node("Dropout", ["c", "", ""], ["d", ""]), node("Abs", ["d"], ["y"])],
    [IN],
    [OUT],
    [tensor("k", 1.0, np.float32)],
)
ODD_NAMES = model(
    [node("Identity", ["入力/x:0"], ["a b"], name="n/1"), node("Abs", ["a b"], ['$y^"\\'], name="n/1/é")],
    [value("入力/x:0", [3])],
    [value('$y^"\\', [3])],
)
TWINS = model(
    [
        node("Exp", ["x"], ["a"], name="same"),
        node("Neg", ["a"], ["b"], name="same"),
        node("Identity", ["b"], ["c"], name="same"),
        node("Abs", ["c"], ["y"], name="same"),
    ],
    [IN],
    [OUT],
)
FOLDED_NAMES = model(
    [node("Mul", ["k", "k"], ["k_folded"]), node("Add", ["k_folded", "x_before"], ["y"])],
    [value("x_before", [3])],
    [OUT],
    [K],
)
OLD_BATCH = model(
    [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w", "b"], ["g"], transB=1), node("Identity", ["g"], ["y"])],
    [value("x", ["N", 3, 1]), value("w", [2, 3]), value("b", [2])],
    [value("y", ["N", 2])],
    [tensor("w", normal(2, 3)), tensor("b", normal(2))],
    opset=8,
    ir=3,
)

# fmt: off
CASES = [
    case("output_that_is_an_input", model([node("Abs", ["x"], ["y"])], [IN], [IN, OUT]), {"x": X}),
    case("only_an_input", model([], [IN], [IN]), {"x": X}),
    case("only_an_initializer", model([], [IN], [value("k", [3])], [K]), {"x": X}),
    case("input_under_another_name", model([node("Identity", ["x"], ["y"])], [IN], [OUT]), {"x": X}),
    case("input_under_two_names", model([node("Identity", ["x"], ["y"]), node("Identity", ["x"], ["z"])], [IN], [OUT, value("z", [3])]), {"x": X}),
    case("input_through_two_nodes", model([node("Identity", ["x"], ["i"]), node("Identity", ["i"], ["y"])], [IN], [OUT]), {"x": X}),
    case("output_given_twice", model([ID, ABS], [IN], [OUT, OUT]), {"x": X}, gone="Identity"),
    case("one_value_under_two_names", model([node("Abs", ["x"], ["y"]), node("Identity", ["y"], ["z"])], [IN], [OUT, value("z", [3])]), {"x": X}),
    case("two_outputs_that_are_equal", model([node("Abs", ["x"], ["y"]), node("Abs", ["x"], ["z"])], [IN], [OUT, value("z", [3])]), {"x": X}),
    case("output_that_another_output_reads", model([node("Neg", ["x"], ["y"]), node("Neg", ["y"], ["z"]), node("Neg", ["z"], ["w"])], [IN], [OUT, value("z", [3]), value("w", [3])]), {"x": X}),
    case("output_that_is_an_initializer", model([ID, node("Add", ["i", "k"], ["y"])], [IN], [OUT, value("k", [3])], [K]), {"x": X}),
    case("output_that_folds", model([node("Mul", ["k", "k"], ["y"]), node("Abs", ["x"], ["z"])], [IN], [OUT, value("z", [3])], [K]), {"x": X}, gone="Mul"),
    case("output_that_folds_and_is_read", model([node("Mul", ["k", "k"], ["y"]), node("Add", ["x", "y"], ["z"])], [IN], [OUT, value("z", [3])], [K]), {"x": X}),
    case("output_inside_a_fusion", model([node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])], [value("x", ["N", 3])], [value("y", ["N", 2]), value("p", ["N", 2])],
         [tensor("w", normal(3, 2)), tensor("b", normal(2))]), {"x": normal(2, 3)}, tolerance=1e-6, kept="Add"),
    case("output_between_two_views", "g (float[N,6] x) => (float[N,2,3] y, float[N,3,2] z) <int64[3] s = {0,3,2}, int64[3] t = {0,2,3}> {z = Reshape(x, s) y = Reshape(z, t)}", {"x": normal(2, 6)}),
    case("inputs_that_nobody_reads", model([ID, ABS], [IN, value("u", [2]), value("v", None, TensorProto.INT64)], [OUT]), {"x": X, "u": X[:2], "v": np.array(1)}),
    case("initializer_that_nobody_reads", model([ID, ABS], [IN], [OUT], [tensor("large", normal(1000))]), {"x": X}),
    case("default_that_nobody_reads", model([ID, ABS], [IN, value("k", [3])], [OUT], [K]), {"x": X}, {"x": X, "k": X}),
    case("default_that_may_be_overridden", model([node("Mul", ["k", "two"], ["m"]), node("Add", ["x", "m"], ["y"])], [IN, value("k", [3])], [OUT], [K, tensor("two", 2.0, np.float32)]), {"x": X}, {"x": X, "k": X + 9}),
    case("default_shape_that_may_be_overridden", model([node("Reshape", ["x", "s"], ["a"]), node("Abs", ["a"], ["y"])], [value("x", [6]), value("s", [2], TensorProto.INT64)], [value("y", ["A", "B"])], [tensor("s", [6, 1], np.int64)]),
         {"x": normal(6)}, {"x": normal(6), "s": np.array([2, 3])}, kept="Reshape"),
    case("default_condition_that_may_be_overridden", "g (float[3] x, bool c = {1}) => (float[3] y) {y = If(c) <then_branch = t () => (float[3] r) {r = Neg(x)}, else_branch = e () => (float[3] q) {q = Abs(x)}>}",
         {"x": X}, {"x": X, "c": np.array(False)}, kept="If"),
    case("old_file_with_weights_as_inputs", IR3, {"x": X}, gone="Identity"),
    case("old_file_with_a_product", OLD_BATCH, {"x": normal(2, 3, 1)}),
    case("metadata_everywhere", described(), {"x": X}),
    case("documentation_of_an_output", documented(), {"x": X}, gone="Identity"),
    case("notes_about_quantization", quantization_notes(), {"x": X}),
    case("custom_operator", custom(), loads=False, kept="Mystery"),
    case("custom_operator_of_a_known_name", custom("Identity"), loads=False, kept="Identity"),
    case("custom_operator_of_constants", custom("Mystery", inputs=()), loads=False, kept="Mystery"),
    case("custom_operators_are_not_merged", model([node("Draw", ["x"], ["a"], domain="some.company"), node("Draw", ["x"], ["b"], domain="some.company"), node("Sub", ["a", "b"], ["y"])], [IN], [OUT], domains={"some.company": 1}), loads=False, kept="Draw"),
    case("custom_abs_may_give_minus_zero", model([node("Abs", ["x"], ["a"], domain="some.company"), node("Add", ["a", "z"], ["y"])], [IN], [OUT], [tensor("z", 0.0, np.float32)], domains={"some.company": 1}), loads=False, kept="Add"),
    case("operators_of_the_runtime", model([ID, node("FusedGemm", ["i", "w"], ["a"], domain="com.microsoft", activation="Relu"), node("Identity", ["a"], ["y"])], [value("x", ["N", 3])], [value("y", ["N", 2])], [tensor("w", normal(3, 2))], domains={"com.microsoft": 1}),
         {"x": normal(2, 3)}, tolerance=1e-6),
    case("default_domain_by_its_long_name", model([node("Identity", ["x"], ["i"], domain="ai.onnx"), node("Abs", ["i"], ["y"], domain="ai.onnx")], [IN], [OUT]), {"x": X}),
    case("nodes_out_of_order", unsorted(), loads=False, gone="Identity"),
    case("nodes_of_one_name", TWINS, loads=False, gone="Identity"),
    case("names_that_rewrites_would_choose", FOLDED_NAMES, {"x_before": X}),
    case("names_of_any_letters", ODD_NAMES, {"入力/x:0": X}),
    case("inputs_left_out", EMPTY_NAMES, {"x": X}, gone="Dropout"),
    case("sequence_in", SEQUENCE, {"s": [X]}, gone="Identity"),
    case("sequence_out", SEQUENCES_OUT, {"x": X}),
    case("sequence_through", "g (float[N] x, float[N] z) => (float[M] y) {s = SequenceConstruct(x, z) i = Identity(s) y = ConcatFromSequence<axis=0>(i)}", {"x": X, "z": X}, gone="Identity"),
    case("sequences_that_differ", "g (float[N] x, float[N] z) => (float[M] y) <int64 o = {1}> {s = SequenceConstruct(x, z) t = SequenceErase(s, o) u = SequenceInsert(t, x) y = ConcatFromSequence<axis=0>(u)}", {"x": X, "z": -X}),
    case("sequence_split", "g (float[6] x) => (float[2] y) <int64 l = {2}, int64 i = {-1}> {s = SplitToSequence<axis=0>(x, l) y = SequenceAt(s, i)}", {"x": f32(*range(6))}),
    case("optional_in", OPTIONAL, {"o": None}, {"o": X}),
    case("input_without_a_shape", model([ID, ABS], [value("x", None)], [value("y", None)]), {"x": X}, {"x": np.float32(-2)}, gone="Identity"),
    case("dims_of_minus_one", model([ID, ABS], [value("x", [-1])], [value("y", [-1])]), {"x": X}, gone="Identity"),
    case("dims_of_zero_that_mean_unknown", model([ID, ABS], [value("x", [0])], [value("y", [0])]), {"x": np.zeros(0, np.float32)}, gone="Identity"),
    case("stale_shapes_inside", parsed("g (float[N,3] x) => (float[N,3] y) {a = Identity(x) b = Relu(a) s = Shape(b) y = Reshape(b, s)}"), {"x": normal(4, 3)}),
    case("model_of_trees", model([node("ArrayFeatureExtractor", ["x", "i"], ["a"], domain="ai.onnx.ml"), node("Identity", ["a"], ["y"])], [value("x", ["N", 3])], [value("y", ["N", 1])], [tensor("i", [1], np.int64)], domains={"ai.onnx.ml": 3}), {"x": normal(2, 3)}),
]
# fmt: on
# People change the batch of the inputs and leave the old sizes inside.
stale = next(each for each in CASES if each.name == "stale_shapes_inside").model
stale.graph.value_info.append(value("b", [1, 3]))
stale.graph.value_info.append(value("s", [2], TensorProto.INT64))
