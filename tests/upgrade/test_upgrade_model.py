"""Whole models: bodies, functions, names, versions, and the forms that no runtime runs any more."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from graphkit.errors import ModelFileError
from graphkit.upgrade import upgrade_model

rng = np.random.default_rng(0)
X = rng.standard_normal((2, 3, 4)).astype(np.float32)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def upgraded(proto: onnx.ModelProto, opset: int = 21) -> onnx.ModelProto:
    model = ir.from_proto(proto)
    upgrade_model(model, opset)
    return ir.to_proto(model)


def run(proto: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def same(proto: onnx.ModelProto, **feeds: np.ndarray) -> onnx.ModelProto:
    new = upgraded(proto)
    for got, want in zip(run(new, **feeds), run(proto, **feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return new


def test_bodies_within_bodies():
    proto = parsed("""<ir_version: 6, opset_import: ["": 9]>
    g (bool c, float[2, 3, 4] x) => (float[A, B, C] y) {
        f = Constant <value = bool[1] {1}> ()
        y = If (c) <
            then_branch = t () => (float[A, B, C] ty) { ty = Softmax (x) },
            else_branch = e () => (float[A, B, C] ey) {
                d = Squeeze <axes = [0]> (f)
                ey = If (d) <
                    then_branch = tt () => (float[A, B, C] tty) { r = ReduceSum <axes = [1]> (x) tty = Add (x, r) },
                    else_branch = ee () => (float[A, B, C] eey) { eey = Clip <min = 0.0> (x) }
                >
            }
        >
    }""")
    for condition in (True, False):
        new = same(proto, c=np.array(condition), x=X)
    assert [value.name for value in new.graph.output] == ["y"]
    (node,) = (node for node in new.graph.node if node.op_type == "If")
    assert [branch.g.output[0].name for branch in node.attribute] == ["ty", "ey"]


def test_loop_and_scan_bodies():
    proto = parsed("""<ir_version: 6, opset_import: ["": 10]>
    g (int64 n, bool c, float[2, 3, 4] x) => (float[A, B, C] y, float[S, A, B, C] s, float[D, E] z, float[F, G] w) {
        y, s = Loop (n, c, x) <
            body = b (int64 i, bool k, float[2, 3, 4] a) => (bool ko, float[2, 3, 4] o, float[2, 3, 4] t) {
                ko = Identity (k)
                o = Softmax <axis = 1> (a)
                t = LogSoftmax <axis = 0> (a)
            }
        >
        start = Constant <value = float[4] {1, 2, 3, 4}> ()
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        rows = Slice (x, zero, one, zero)
        row = Squeeze <axes = [0]> (rows)
        last, z = Scan <
            num_scan_inputs = 1,
            body = sb (float[4] q, float[4] r) => (float[4] qo, float[4] ro) {
                qo = Add (q, r)
                ru = Unsqueeze <axes = [0]> (r)
                rs = Softmax <axis = 1> (ru)
                ro = Squeeze <axes = [0]> (rs)
            }
        > (start, row)
        w = Unsqueeze <axes = [0]> (last)
    }""")
    same(proto, n=np.array(3), c=np.array(True), x=X)


FUNCTIONS = """<ir_version: 8, opset_import: ["": 12, "local": 1]>
g (float[2, 3, 4] x) => (float[A, B, C] y, float[D] z) {{
    y = local.soft {attribute} (x)
    s = local.soft {attribute} (y)
    z = local.total (s)
}}
<domain: "local", opset_import: ["": {version}]>
soft {parameter} (a) => (b) {{ b = Softmax <axis{reference} = {value}> (a) }}
<domain: "local", opset_import: ["": 12]> total (a) => (b) {{ b = ReduceSum <axes = [0, 1], keepdims = 0> (a) }}
"""


def test_functions_stay_functions():
    text = FUNCTIONS.format(attribute="", version=12, parameter="", reference="", value=1)
    new = same(parsed(text), x=X)
    assert sorted(function.name for function in new.functions) == ["soft", "total"]
    assert all(entry.version == 21 for function in new.functions for entry in function.opset_import)


def test_functions_with_an_opset_of_their_own():
    text = FUNCTIONS.format(attribute="", version=13, parameter="", reference="", value=1)
    (y, _) = run(upgraded(parsed(text)), x=X)
    e = np.exp(X - X.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)  # 13: along axis 1, not over what follows it


def test_functions_that_take_attributes_are_inlined():
    text = FUNCTIONS.format(attribute="<k = 0>", version=12, parameter="<k>", reference=": int", value="@k")
    new = same(parsed(text), x=X)
    assert [function.name for function in new.functions] == ["total"]


def test_functions_that_take_attributes_at_another_opset():
    text = FUNCTIONS.format(attribute="<k = 0>", version=11, parameter="<k>", reference=": int", value="@k")
    with pytest.raises(ModelFileError, match="local::soft is of opset 11, its model of opset 12"):
        upgraded(parsed(text))


def test_names_metadata_and_outputs_stay():
    nodes = [
        helper.make_node("Softmax", ["x"], ["soft"], name="first", doc_string="why", axis=1),
        helper.make_node("Unsqueeze", ["soft"], ["taken"], name="first/Flatten", axes=[0]),
        helper.make_node("Add", ["soft", "w"], ["y"], name="last"),
    ]
    for node in nodes:
        node.metadata_props.append(onnx.StringStringEntryProto(key="layer", value=node.name))
    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", "C", "D"])
    weight = onnx.numpy_helper.from_array(np.ones((1, 1, 4), np.float32), "w")
    unsqueezed = helper.make_tensor_value_info("taken", onnx.TensorProto.FLOAT, [1, "N", "C", "D"])
    outputs = [value("y"), value("soft"), unsqueezed]
    graph = helper.make_graph(nodes, "named", [value("x")], outputs, [weight], value_info=[])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    new = same(proto, x=X)
    onnx.checker.check_model(new, full_check=True)
    assert new.graph.name == "named"
    assert [v.name for v in new.graph.output] == ["y", "soft", "taken"]
    assert [w.name for w in new.graph.initializer] == ["w"]
    assert [n.name for n in new.graph.node if n.name in {"first", "first/Flatten", "last"}] == [
        "first", "first/Flatten", "last",
    ]  # fmt: skip
    assert len({n.name for n in new.graph.node}) == len(new.graph.node)
    layers = {n.op_type: {entry.value for entry in n.metadata_props} for n in new.graph.node}
    assert layers["Flatten"] == layers["Reshape"] == layers["Softmax"] == {"first"}
    assert [dim.dim_param for dim in new.graph.output[1].type.tensor_type.shape.dim] == ["N", "C", "D"]


def test_undeclared_shapes_are_inferred_and_not_declared():
    proto = parsed("""<ir_version: 6, opset_import: ["": 11]> g (float[N, 3, 4] x, bool c) => (float[A, B, C] y) {
        a = Relu (x)
        y = If (c) <
            then_branch = t () => (float[A, B, C] u) { s = Softmax <axis = 2> (a) u = Neg (s) },
            else_branch = e () => (float[A, B, C] v) { s = Abs (x) v = Softmax <axis = 1> (s) }
        >
    }""")
    model = ir.from_proto(proto)
    upgrade_model(model)
    assert [node.op_type for node in model.graph.all_nodes()] == [
        "Relu", "If", "Softmax", "Neg", "Abs", "Flatten", "Softmax", "Shape", "Reshape",
    ]  # fmt: skip
    assert model.graph[0].outputs[0].shape is None
    same(proto, x=X, c=np.array(True))
    same(proto, x=X, c=np.array(False))


def test_one_constant_serves_many_nodes():
    body = "".join(f"y{i + 1} = Unsqueeze <axes = [0]> (y{i}) " for i in range(20))
    text = f'<ir_version: 6, opset_import: ["": 9]> g (float[N] y0) => (float y20) {{ {body} }}'
    new = upgraded(parsed(text))
    assert [node.op_type for node in new.graph.node].count("Constant") == 1


@pytest.mark.parametrize("version", [22, 24, 26])
def test_newer_models_are_left(version: int):
    proto = parsed(f'<ir_version: 10, opset_import: ["": {version}]> g (float[N] x) => (float[N] y) {{ y = Abs (x) }}')
    assert upgraded(proto) == ir.to_proto(ir.from_proto(proto))


@pytest.mark.parametrize(("opset", "ir_version"), [(21, 10), (23, 11), (26, 13)])
def test_versions_are_set(opset: int, ir_version: int):
    proto = parsed('<ir_version: 6, opset_import: ["": 12]> g (float[N] x) => (float[N] y) { y = Abs (x) }')
    new = upgraded(proto, opset)
    assert ([entry.version for entry in new.opset_import], new.ir_version) == ([opset], ir_version)
    run(new, x=X[0, 0])


def test_the_long_name_of_the_domain():
    proto = parsed('<ir_version: 6, opset_import: ["ai.onnx": 9]> g (float[N] x) => (float[N] y) { y = Clip (x) }')
    new = upgraded(proto)
    assert [(entry.domain, entry.version) for entry in new.opset_import] == [("", 21)]


@pytest.mark.parametrize(("version", "remedy"), [(1, "export it again"), (6, "export it again"), (29, "export or")])
def test_out_of_range(version: int, remedy: str):
    proto = parsed(f'<ir_version: 6, opset_import: ["": {version}]> g (float[N] x) => (float[N] y) {{ y = Abs (x) }}')
    with pytest.raises(ModelFileError, match=rf"uses opset {version} of ai.onnx; graphkit reads 7 to 28: {remedy}"):
        upgraded(proto)


def test_out_of_range_function():
    text = FUNCTIONS.format(attribute="", version=5, parameter="", reference="", value=1)
    with pytest.raises(ModelFileError, match="function local::soft uses opset 5"):
        upgraded(parsed(text))


def test_the_working_opset_is_checked():
    proto = parsed('<ir_version: 6, opset_import: ["": 12]> g (float[N] x) => (float[N] y) { y = Abs (x) }')
    with pytest.raises(ValueError, match="21 to 26, not 17"):
        upgraded(proto, 17)


def test_scales_that_may_be_overridden_are_not_read():
    text = """<ir_version: 6, opset_import: ["": 10]>
    g (float[1, 1, 4, 4] x, float[4] s = {1, 1, 2, 2}) => (float[A, B, C, D] y) { y = Resize (x, s) }"""
    proto, x = parsed(text), X.ravel()[:16].reshape(1, 1, 4, 4)
    same(proto, x=x)
    same(proto, x=x, s=np.array([1, 1, 0.6, 1.4], np.float32))


def test_what_could_not_be_overridden_still_cannot():
    proto = parsed("""<ir_version: 3, opset_import: ["": 10]>
    g (float[1, 1, 4, 4] x, float[4] s = {1, 1, 2, 2}) => (float[A, B, C, D] y) { y = Resize (x, s) }""")
    new = same(proto, x=X.ravel()[:16].reshape(1, 1, 4, 4))
    assert [value.name for value in new.graph.input] == ["x"]
    assert [tensor.name for tensor in new.graph.initializer] == ["s"]
    assert [node.op_type for node in new.graph.node] == ["Resize"]


def test_function_of_an_older_opset_in_a_newer_model():
    text = FUNCTIONS.format(attribute="", version=12, parameter="", reference="", value=1)
    text = text.replace("ir_version: 8", "ir_version: 11").replace('"": 12, "local"', '"": 23, "local"')
    new = upgraded(parsed(text))
    assert [entry.version for entry in new.opset_import if entry.domain == ""] == [23]
    assert {entry.version for function in new.functions for entry in function.opset_import} == {23}
    (y, _) = run(new, x=X)
    assert y.shape == X.shape


# Forms that ONNX Runtime no longer runs, against the formulas of the standard.

CHANNELS = [rng.standard_normal(3).astype(np.float32) for _ in range(3)] + [np.array([0.5, 1, 2], np.float32)]


def batch_normalization(attributes: str, outputs: str, opset: int = 9, shape: str = "3") -> onnx.ModelProto:
    inputs = ", ".join(f"float[{shape}] {name}" for name in "sbmv")
    declared = ", ".join(f"float {name}" for name in outputs.split(", ")[:3])
    return parsed(
        f'<ir_version: 6, opset_import: ["": {opset}]> g (float[2, 3, 4] x, {inputs}) => ({declared}) '
        f"{{ {outputs} = BatchNormalization {attributes} (x, s, b, m, v) }}"
    )


@pytest.mark.parametrize("opset", [7, 8])
def test_batch_normalization_per_element(opset: int):
    s, b, m = rng.standard_normal((3, 3, 4)).astype(np.float32)
    v = np.abs(rng.standard_normal((3, 4))).astype(np.float32)
    (y,) = run(
        upgraded(batch_normalization("<spatial = 0, epsilon = 0.01>", "y", opset, "3, 4")), x=X, s=s, b=b, m=m, v=v
    )
    np.testing.assert_allclose(y, (X - m) / np.sqrt(v + 0.01) * s + b, rtol=1e-5, atol=1e-5)


def test_batch_normalization_that_trains():
    s, b, m, v = CHANNELS
    new = upgraded(batch_normalization("<momentum = 0.8>", "y, mean, var, saved_mean, saved_var"))
    assert [value.name for value in new.graph.output] == ["y", "mean", "var"]
    y, mean, variance = run(new, x=X, s=s, b=b, m=m, v=v)
    batch_mean, batch_variance = X.mean((0, 2)), X.var((0, 2))
    column = lambda a: a[:, None]
    expected = (X - column(batch_mean)) / np.sqrt(column(batch_variance) + 1e-5) * column(s) + column(b)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, m * 0.8 + batch_mean * 0.2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, v * 0.8 + batch_variance * 0.2, rtol=1e-5, atol=1e-6)


def test_batch_normalization_whose_saved_statistics_are_read():
    proto = batch_normalization("", "y, mean, var, saved_mean, saved_var")
    proto.graph.node[0].name = "norm"
    proto.graph.output[1].name = "saved_mean"
    with pytest.raises(ModelFileError, match="saved mean or variance of the BatchNormalization node 'norm'"):
        upgraded(proto)


@pytest.mark.parametrize(("opset", "dtype"), [(7, "float"), (9, "float"), (10, "bool"), (11, "bool")])
def test_dropout_mask(opset: int, dtype: str):
    text = f'<ir_version: 6, opset_import: ["": {opset}]> g (float[N] x) => (float[N] y, {dtype}[N] mask)'
    new = upgraded(parsed(text + "{ y, mask = Dropout <ratio = 0.4> (x) }"))
    y, mask = run(new, x=X[0, 0])
    np.testing.assert_array_equal(y, X[0, 0])
    assert mask.dtype == {"float": np.float32, "bool": np.bool_}[dtype]
    assert mask.all()


def test_twenty_thousand_nodes():
    nodes, previous = [], "x"
    for index in range(5_000):
        names = [f"{kind}{index}" for kind in ("a", "b", "c", "d")]
        nodes += [
            helper.make_node("Unsqueeze", [previous], [names[0]], axes=[0]),
            helper.make_node("Softmax", [names[0]], [names[1]], axis=1),
            helper.make_node("Squeeze", [names[1]], [names[2]], axes=[0]),
            helper.make_node("Clip", [names[2]], [names[3]], min=0.0, max=float(index)),
        ]
        previous = names[3]
    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 4])
    graph = helper.make_graph(nodes, "g", [value("x")], [value(previous)])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=6))
    start = time.process_time()  # which a busy machine does not stretch
    upgrade_model(model)
    assert time.process_time() - start < 30
    assert len(model.graph) > 30_000
