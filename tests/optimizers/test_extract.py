"""Parts of models, and models with dims and inputs fixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from graphkit.errors import PassError
from graphkit.modelfile import read_model
from graphkit.optimizers import extract, freeze, optimize
from tests.optimizers.conftest import parse, random_feeds, run

W = "float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = {1,2,3,4}"
NET = (
    f"g (float[N,3] x, float[N,4] z) => (float[N,4] y, float[N] s) <{W}, int64[1] o = {{1}}> "
    "{h = MatMul(x, w) a = Add(h, b) r = Relu(a) c = Mul(r, z) y = Neg(c) s = ReduceSum<keepdims=0>(r, o)}"
)
BRANCHED = (
    f"g (bool p, float[N,3] x) => (float[N,4] y) <{W}> {{h = MatMul(x, w) y = If<then_branch = t () => (float[N,4] q) "
    "{i = Add(h, b) q = Neg(i)}, else_branch = e () => (float[N,4] v) {v = Abs(h)}>(p)}"
)


def names(values) -> list[str]:
    return [value.name for value in values]


def shape(value: onnx.ValueInfoProto) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


# Each: the model, inputs, outputs; the operators left, the inputs and the initializers.
PARTS = {
    "the end": (NET, ["r", "z"], ["y"], ["Mul", "Neg"], ["r", "z"], []),
    "the beginning": (NET, None, ["a"], ["MatMul", "Add"], ["x"], ["w", "b"]),
    "the middle": (NET, ["h"], ["r"], ["Add", "Relu"], ["h"], ["b"]),
    "all of one output": (NET, None, ["s"], ["MatMul", "Add", "Relu", "ReduceSum"], ["x"], ["w", "b", "o"]),
    "two outputs": (NET, ["a"], ["s", "r"], ["Relu", "ReduceSum"], ["a"], ["o"]),
    "a weight as an input": (NET, ["x", "w"], ["h"], ["MatMul"], ["x", "w"], []),
    "everything": (
        NET, None, ["y", "s"], ["MatMul", "Add", "Relu", "Mul", "Neg", "ReduceSum"], ["x", "z"], ["w", "b", "o"],
    ),
    "in this order": (NET, ["z", "r"], ["c"], ["Mul"], ["z", "r"], []),
    "what a branch captures": (BRANCHED, ["h", "p"], ["y"], ["If"], ["h", "p"], ["b"]),
    "before a branch": (BRANCHED, None, ["h"], ["MatMul"], ["x"], ["w"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_parts(name):
    text, inputs, outputs, left, begins, constants = PARTS[name]
    model = parse(text)
    model.metadata_props.add(key="author", value="somebody")
    before = model.SerializeToString(deterministic=True)
    part = extract(model, inputs, outputs)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(part, full_check=True)
    assert [node.op_type for node in part.graph.node] == left
    assert (names(part.graph.input), names(part.graph.output)) == (begins, outputs)
    assert names(part.graph.initializer) == constants
    assert list(part.metadata_props) == list(model.metadata_props)
    assert all(shape(value)[0] in ("N", 3) for value in (*part.graph.input, *part.graph.output) if value.name != "p")
    # The part computes what the whole does there.
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    given = set(names(model.graph.input)) | set(names(model.graph.initializer))
    wanted = [n for n in dict.fromkeys([*outputs, *begins]) if n not in given | set(names(model.graph.output))]
    whole.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
    feeds = random_feeds(model, 2)
    values = run(whole, feeds) | feeds | {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    got = run(part, {n: values[n] for n in begins})
    for output in outputs:
        np.testing.assert_array_equal(got[output], values[output])


WRONG = {
    "an unknown output": (NET, None, ["rr"], r"no value 'rr' \(in outputs\)"),
    "an unknown input": (NET, ["hh"], ["y"], r"no value 'hh' \(in inputs\)"),
    "nearly": (NET, None, ["Y"], "Did you mean 'y'"),
    "an input that is lacking": (NET, ["r"], ["y"], "output 'y' needs the input 'z' of the model, which is not among"),
    "another that is lacking": (NET, ["z"], ["y"], "output 'y' needs the input 'x'"),
    "an idle input": (NET, ["r", "x"], ["s"], "no output needs the input 'x'"),
    "an input behind another": (NET, ["a", "h"], ["r"], "no output needs the input 'h'"),
    "twice": (NET, None, ["y", "y"], "'y' is named twice among the outputs"),
    "both": (NET, ["r"], ["r"], "'r' is among the inputs and among the outputs"),
    "nothing": (NET, ["r"], [], "no outputs are named"),
    "text": (NET, "r", None, "inputs is a list of names"),
    "in a body": (BRANCHED, None, ["i"], "'i' .* stands in a body of the node If, which runs as a whole"),
    "into a body": (BRANCHED, ["i"], ["y"], "stands in a body"),
    "an unknown type": (
        "g (float[N] x) => (float[N] y) {h = own.Odd(x) y = Abs(h)}", ["h"], ["y"], "type of 'h' does not follow",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_cut(name):
    text, inputs, outputs, words = WRONG[name]
    with pytest.raises(PassError, match=words):
        extract(parse(text, imports=', "own": 1' if "own." in text else ""), inputs, outputs)


def test_functions_that_the_part_needs_stay_and_defaults_too(tmp_path: Path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[N] x, float[1] k) => (float[N] y) '
        "<float[1] k = {2}> {a = own.used(x) b = Mul(a, k) y = own.other(b)} "
        '<domain: "own", opset_import: ["": 17, "own": 1]> used (a) => (b) {c = own.inner(a) b = Abs(c)} '
        '<domain: "own", opset_import: ["": 17]> inner (a) => (b) {b = Exp(a)} '
        '<domain: "own", opset_import: ["": 17]> other (a) => (b) {b = Neg(a)}'
    )
    onnx.save(model, tmp_path / "m.onnx")
    part = extract(tmp_path / "m.onnx", ["x"], ["b"])
    assert sorted(identifier[1] for identifier in part.functions) == ["inner", "used"]
    assert names(part.graph.inputs) == ["x", "k"] and list(part.graph.initializers) == ["k"]
    assert names(extract(read_model(model), None, ["a"]).graph.inputs) == ["x"]


DIMS = (
    "g (float[batch,S,12] x, float[S] z, float[?,2] u) => (float[batch,S,3,4] y, float[S] w, float[?,2] v) "
    "<int64[4] t = {0,0,3,4}, float[batch,S,12] i> {i = Abs(x) y = Reshape(i, t) w = Abs(z) v = Abs(u)}"
)
FROZEN = {
    "by name": ({"batch": 2}, {}, [[2, "S", 12], ["S"], ["", 2]]),
    "several": ({"batch": 2, "S": 5}, {}, [[2, 5, 12], [5], ["", 2]]),
    "by place, named": ({"x.1": 5}, {}, [["batch", 5, 12], [5], ["", 2]]),
    "by place, nameless": ({"u.0": 7}, {}, [["batch", "S", 12], ["S"], [7, 2]]),
    "what it is already": ({"u.1": 2}, {}, [["batch", "S", 12], ["S"], ["", 2]]),
    "of numpy": ({"batch": np.int64(2)}, {}, [[2, "S", 12], ["S"], ["", 2]]),
    "a value": ({}, {"z": [1.0, 2.0, 3.0]}, [["batch", 3, 12], ["", 2]]),
    "a value and a dim that agree": ({"S": 3}, {"z": [1.0, 2.0, 3.0]}, [["batch", 3, 12], ["", 2]]),
}


@pytest.mark.parametrize("name", FROZEN)
def test_freeze(name):
    dims, values, shapes = FROZEN[name]
    model = parse(DIMS)
    frozen = freeze(model, dims, values)
    onnx.checker.check_model(frozen, full_check=True)
    assert [shape(value) for value in frozen.graph.input] == [[0 if d == "" else d for d in each] for each in shapes]
    inner = next(value for value in frozen.graph.value_info if value.name == "i")
    assert shape(inner) == shapes[0]
    feeds = random_feeds(frozen, 3)
    right = run(model, feeds | {key: np.array(item, np.float32) for key, item in values.items()})
    for output, array in run(frozen, feeds).items():
        np.testing.assert_array_equal(array, right[output])
    if values:  # what is fixed is computed before the model runs
        assert "w" not in [node.output[0] for node in optimize(frozen).graph.node]


def test_freeze_reaches_into_bodies():
    model = parse(
        "g (bool p, float[batch,3] x) => (float[batch,3] y) {y = If<then_branch = t () => (float[batch,3] q) "
        "<float[batch,3] i> {i = Abs(x) q = Neg(i)}, else_branch = e () => (float[batch,3] v) {v = Abs(x)}>(p)}"
    )
    text = onnx.printer.to_text(freeze(model, {"batch": 4}))
    assert "batch" not in text and text.count("float[4,3]") == 5


EXPRESSIONS = {
    "2*N": 6, "N + 1": 4, "N*N - 2": 7, "(N + 3)//2": 3, "N % 2": 1, "-1 + N": 2, "2*M": "2*M", "N*M": "N*M",
    "f(N)": "f(N)", "N.real": "N.real", "N +": "N +", "N/2": "N/2", "N**2": "N**2", "N - 9": "N - 9", "N//0": "N//0",
}  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_freeze_works_out_expressions(text):
    model = parse("g (float[N] x, float[D] z) => (float[N] y, float[D] w) {y = Abs(x) w = Abs(z)}")
    for value in (model.graph.input[1], model.graph.output[1]):
        value.type.tensor_type.shape.dim[0].dim_param = text
    frozen = freeze(model, {"N": 3})
    assert shape(frozen.graph.input[1]) == shape(frozen.graph.output[1]) == [EXPRESSIONS[text]]


HELD = {
    "int8": ([127, -128], [300, -129, 2.5, float("nan"), float("inf"), "a"]),
    "uint8": ([0, 255, 7.0], [-1, 256]),
    "int64": ([2**63 - 1], [2**63, 2**70, 1e30]),
    "uint64": ([2**64 - 1], [-1, 2**64]),
    "bool": ([True, False, 1, 0], [2, 0.5, "true"]),
    "float16": ([65504, float("inf"), float("nan"), 0.1], [1e9, -1e6, 2**70]),
    "float": ([3e38, 1, True, np.float64(0.1)], [1e39, "x", [1, [2]]]),
    "bfloat16": ([1e38], [1e39]),
}
VALUES = [(kind, value, at == 0) for kind, both in HELD.items() for at, values in enumerate(both) for value in values]


@pytest.mark.parametrize(("kind", "value", "held"), VALUES)
def test_values_that_a_dtype_holds(kind, value, held):
    model = parse(f"g ({kind} s) => ({kind} y) {{y = Identity(s)}}")
    if held:
        got = onnx.numpy_helper.to_array(freeze(model, values={"s": value}).graph.initializer[0])
        np.testing.assert_array_equal(got, np.asarray(value).astype(got.dtype))
    else:
        with pytest.raises(PassError, match=r"'s' is \w+, which does not hold|'s' is not a rectangular list"):
            freeze(model, values={"s": value})


CONTRADICTED = {
    "too large": ({"batch": 2**70}, {}, "larger than any that ONNX can say"),
    "unknown": ({"bacth": 1}, {}, "no input has a dimension 'bacth'. Did you mean 'batch'?"),
    "zero": ({"batch": 0}, {}, "whole number of at least 1, not 0"),
    "a fraction": ({"batch": 1.5}, {}, "whole number of at least 1, not 1.5"),
    "a truth": ({"batch": True}, {}, "not True"),
    "another size": ({"x.2": 13}, {}, "x.2=13 contradicts the model: dimension 2 of 'x' is 12"),
    "two sizes": ({"batch": 2, "x.0": 3}, {}, "x.0=3 contradicts batch=2: both say how large 'batch' is"),
    "a value of another size": ({"S": 2}, {"z": [1.0]}, "the value of 'z' contradicts S=2"),
    "of another rank": ({}, {"z": [[1.0]]}, "'z' has 1 dimensions, and the value has 2"),
    "an unknown input": ({}, {"zz": 1.0}, "no input 'zz'. Did you mean 'z'"),
    "no such place": ({"x.3": 1}, {}, "no input has a dimension 'x.3'"),
}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_contradictions(name):
    dims, values, words = CONTRADICTED[name]
    with pytest.raises(PassError, match=words):
        freeze(parse(DIMS), dims, values)


def test_values_of_other_types_and_defaults():
    model = parse("g (int64[2] i, float[K] k) => (float[2] y) <float[3] k = {1,2,3}> {y = Gather(k, i)}")
    with pytest.raises(PassError, match="'i' is int64, which"):
        freeze(model, values={"i": [0.5, 1]})
    with pytest.raises(PassError, match="K=2 contradicts the model: the default of 'k' has 3"):
        freeze(model, {"K": 2})
    with pytest.raises(PassError, match="nothing is to be fixed"):
        freeze(model)
    fixed = freeze(model, values={"i": [2, 0], "k": [4.0, 5.0, 6.0]})
    assert not fixed.graph.input
    assert onnxruntime.InferenceSession(fixed.SerializeToString()).run(None, {})[0].tolist() == [6, 4]
    words = parse("g (string[N] t) => (string[N] y) {y = Identity(t)}")
    set_ = freeze(words, values={"t": ["a", "ä"]})
    assert onnxruntime.InferenceSession(set_.SerializeToString()).run(None, {})[0].tolist() == ["a", "ä"]
