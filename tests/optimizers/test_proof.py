"""What the proof sees: a pass that is wrong in a sign alone, or behind a random draw; and what it says it does not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from graphkit.errors import PassError
from graphkit.exporters.verify import compare_outputs
from graphkit.optimizers import Report, optimize
from graphkit.optimizers.base import Outcome, Pass, _registry
from graphkit.optimizers.context import Context
from graphkit.optimizers.no_operation import drop
from tests.optimizers.conftest import assert_same, operators, parse, run


@pytest.fixture
def drops_neg() -> Iterator[None]:
    """A pass that takes every Neg for its input."""

    def rewrite(ctx: Context, node: ir.Node) -> Outcome:
        return drop(ctx, node, node.inputs[0])

    _registry["drop_neg"] = Pass("drop_neg", "Wrong.", "None.", 0.0, True, frozenset(), ("Neg",), rewrite)
    yield
    del _registry["drop_neg"]


X = "g (float[N] x) => (float[N] y)"
ZERO = "<float z = {0}>"
ONLY_A_SIGN = {
    "of zeros": f"{X} {ZERO} {{a = Abs(x) m = Min(a, z) n = Neg(m) y = Mul(n, a)}}",
    "of zeros, from a difference": f"{X} {{z = Sub(x, x) n = Neg(z) y = Identity(n)}}",
    "of one over zero": f"{X} {ZERO} {{a = Abs(x) m = Min(a, z) n = Neg(m) y = Reciprocal(n)}}",
    "of infinities": f"{X} {ZERO} {{a = Abs(x) m = Min(a, z) r = Reciprocal(m) n = Neg(r) y = Identity(n)}}",
    "of a logarithm of zero": f"{X} {ZERO} {{a = Abs(x) m = Min(a, z) r = Log(m) n = Neg(r) y = Identity(n)}}",
    "of what overflows": (
        f"{X} <float k = {{3e38}}> {{a = Abs(x) m = Add(a, k) r = Mul(m, k) n = Neg(r) y = Identity(n)}}"
    ),
    "of infinities among others": (
        f"g (float[N] x) => (float[M] y) {ZERO} "
        "{a = Abs(x) m = Min(a, z) r = Reciprocal(m) n = Neg(r) y = Concat<axis = 0>(n, x)}"
    ),
    "where it makes NaN": f"{X} {{a = Abs(x) n = Neg(a) y = Log(n)}}",
    "of float16 infinities": (
        "g (float16[N] x) => (float16[N] y) {a = Sub(x, x) r = Reciprocal(a) n = Neg(r) y = Identity(n)}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", [False, True], ids=["made up", "given"])
@pytest.mark.parametrize("name", ONLY_A_SIGN)
def test_a_sign_is_seen(drops_neg, name, given):
    model, report = parse(ONLY_A_SIGN[name]), Report()
    dtype = np.float16 if "float16" in name else np.float32
    inputs = {"x": np.array([0, -0.0, 1, -2], dtype)} if given else None
    result = optimize(model, passes=["drop_neg"], inputs=inputs, report=report)
    assert list(report.dropped) == ["drop_neg"]
    assert report.verified
    assert operators(result)["Neg"] == 1
    with pytest.raises(PassError, match="'drop_neg' changed what the model computes"):
        optimize(model, passes=["drop_neg"], inputs=inputs, strict=True)


@pytest.mark.parametrize(
    ("got", "agrees"),
    [(np.inf, True), (-np.inf, False), (np.nan, False), (1.0, False)],
)
def test_infinities_that_are_compared(got, agrees):
    (found,) = compare_outputs({"y": np.full(2, np.inf)}, {"y": np.full(2, got)})
    assert found.agrees is agrees


@pytest.mark.parametrize(("tolerance", "agrees"), [(None, True), (1e-9, True), (0.0, False)])
def test_the_sign_of_a_zero_counts_without_tolerance(tolerance, agrees):
    (found,) = compare_outputs({"y": np.zeros(2)}, {"y": -np.zeros(2)}, rtol=tolerance, atol=tolerance)
    assert found.agrees is agrees


# Constants that are -0.0, and rewrites that would lose it

SIGNED = np.array([-3, -1.5, -0.0, 0, 0.5, 1.5, 3, np.inf, -np.inf, np.nan, -1e-40, 1e-40] * 2, np.float32)
R = "y = Where(c, a, b) r = Reciprocal(y)"
WHERE = "g (bool[N] c) => (float[N] y, float[N] r)"
NEGATIVE_ZEROS = {
    "Where, no": (f"{WHERE} <float a = {{1}}, float b = {{-0.0}}> {{{R}}}", {"Where"}),
    "Where, yes": (f"{WHERE} <float a = {{-0.0}}, float b = {{1}}> {{{R}}}", {"Where"}),
    "Where, 0": (f"{WHERE} <float a = {{1}}, float b = {{0}}> {{{R}}}", {"Cast"}),
    "Clips that meet in 0": (
        f"{X} <float l = {{-2}}, float h = {{-1}}> {{c = Clip(x, l, h) y = Relu(c)}}",
        {"Clip", "Relu"},
    ),
    "Clips that meet in -0.0": (
        f"{X} <float l = {{1}}, float h = {{2}}, float k = {{-1}}, float i = {{-0.0}}> "
        "{c = Clip(x, l, h) y = Clip(c, k, i)}",
        {"Clip"},
    ),
    "Clips that meet in 1": (
        f"{X} <float l = {{2}}, float h = {{3}}, float k = {{-1}}, float i = {{1}}> "
        "{c = Clip(x, l, h) y = Clip(c, k, i)}",
        {"Clip"},
    ),
    "Add of 0": (f"{X} {ZERO} {{y = Add(x, z)}}", {"Add"}),
    "Sub of -0.0": (f"{X} <float z = {{-0.0}}> {{y = Sub(x, z)}}", {"Sub"}),
}  # fmt: skip


@pytest.mark.parametrize("preset", ["inference", "training", "web", "cuda"])
@pytest.mark.parametrize("name", NEGATIVE_ZEROS)
def test_the_sign_of_a_zero_stays(name, preset):
    text, kept = NEGATIVE_ZEROS[name]
    model = parse(text)
    result = optimize(model, preset, verify=False)
    assert kept <= set(operators(result))
    for feeds in ({"x": SIGNED}, {"x": SIGNED[2:3]}) if "x" in text[:16] else ({"c": np.array([True, False])},):
        assert_same(run(result, feeds), run(model, feeds), 0.0)


# Random draws: stand-ins take their place, and what has none is named

DRAWS = {
    "uniform": f"{X} {{r = RandomUniformLike(x) a = Neg(x) y = Add(a, r)}}",
    "uniform, seeded": f"{X} {{r = RandomUniformLike<seed = 1.0>(x) a = Neg(x) y = Add(a, r)}}",
    "uniform, bounds": f"{X} {{r = RandomUniformLike<low = 2.0, high = 5.0>(x) a = Neg(r) y = Add(x, a)}}",
    "normal, another dtype": f"{X} {{r = RandomNormalLike<dtype = 11>(x) a = Neg(r) y = Cast<to = 1>(a)}}",
    "normal, a shape": (
        "g (float[2,3] x) => (float[2,3] y) {r = RandomNormal<shape = [2, 3]>() a = Neg(r) y = Add(x, a)}"
    ),
    "uniform, a scalar": f"{X} {{r = RandomUniform<shape = [1]>() a = Neg(r) y = Mul(x, a)}}",
    "bernoulli": f"{X} {{s = Sigmoid(x) b = Bernoulli(s) a = Neg(x) y = Mul(a, b)}}",
    "beside what is certain": (
        "g (float[N] x) => (float[N] y, float[N] z) {r = RandomUniformLike(x) a = Neg(x) y = Add(a, r) z = Exp(x)}"
    ),
    "Dropout in training": (
        "g (float[N,4] x, float[4,4] w) => (float loss) <float r = {0.5}, bool t = {1}> "
        "{d, m = Dropout(x, r, t) c = MatMul(d, w) a = Neg(c) e = Exp(a) loss = ReduceMean<keepdims = 0>(e)}"
    ),
    "before a Dropout": f"{X} <float r = {{0.3}}, bool t = {{1}}> {{a = Neg(x) y, m = Dropout(a, r, t)}}",
    "a Dropout's mask": (
        f"{X} <float r = {{0.3}}, bool t = {{1}}> "
        "{d, m = Dropout(x, r, t) c = Cast<to = 1>(m) a = Neg(c) y = Exp(a)}"
    ),
    "the input says whether to train": (
        "g (float[N] x, bool t) => (float[N] y) {d = Dropout(x, , t) a = Neg(d) y = Exp(a)}"
    ),
    "in a body": (
        "g (float[N] x, bool p) => (float[N] y) <float r = {0.5}, bool t = {1}> "
        "{y = If<then_branch = a () => (float[N] u) {d = Dropout(x, r, t) n = Neg(d) u = Exp(n)}, "
        "else_branch = b () => (float[N] v) {v = Abs(x)}>(p)}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_what_random_draws_decide_is_compared(drops_neg, name):
    model, report = parse(DRAWS[name]), Report()
    optimize(model, passes=["drop_neg"], report=report)
    assert (list(report.dropped), report.not_compared, report.verified) == (["drop_neg"], [], True)
    sound = Report()
    optimize(model, "training", report=sound, strict=True)
    assert (sound.dropped, sound.note, sound.verified) == ({}, "", True)


MULTINOMIAL = "r = Multinomial<sample_size = 3>(x) s = Cast<to = 1>(r) b = Identity(s) y = Exp(b)"
CALL = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[N] x) => (float[N] y)
{a = f.own(x) b = Neg(a) y = Exp(b)} <domain: "f", opset_import: ["": 17]> own (x) => (y) {%s}"""
CALLS = {"that draws": ("y = RandomUniformLike(x)", ["y"], []), "that does not": ("y = Abs(x)", [], ["drop_neg"])}


@pytest.mark.parametrize("name", CALLS)
def test_a_function(drops_neg, name):
    body, unseen, dropped = CALLS[name]
    report = Report()
    optimize(onnx.parser.parse_model(CALL % body), passes=["drop_neg"], report=report)
    assert (report.not_compared, list(report.dropped)) == (unseen, dropped)


UNSEEN = {
    "all": (f"g (float[2,4] x) => (float[2,3] y) {{{MULTINOMIAL}}}", False),
    "one of two": (f"g (float[2,4] x) => (float[2,3] y, float[2,4] z) {{{MULTINOMIAL} z = Abs(x)}}", True),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_outputs_that_nothing_is_compared_of_are_named(name):
    text, verified = UNSEEN[name]
    report = Report()
    optimize(parse(text), report=report)
    assert (report.not_compared, report.verified) == (["y"], verified)
    assert report.to_dict()["not_compared"] == ["y"]
    assert "random draws that have no stand-in decide them: y" in report.remarks()[0]
    for strict in (True, False):
        with pytest.raises(PassError, match=r"cannot be verified as a whole: not compared.*: y"):
            optimize(parse(text), strict=strict, verify=True)
