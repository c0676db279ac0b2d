"""What the proof sees: a pass that is wrong in a sign alone, in zeros and infinities too, and what is said to be unseen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
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
    "of what overflows": f"{X} <float k = {{3e38}}> {{a = Abs(x) m = Add(a, k) r = Mul(m, k) n = Neg(r) y = Identity(n)}}",
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
WHERE = "g (bool[N] c) => (float[N] y, float[N] r)"
NEGATIVE_ZEROS = {
    "Where, no": (f"{WHERE} <float a = {{1}}, float b = {{-0.0}}> {{y = Where(c, a, b) r = Reciprocal(y)}}", {"Where"}),
    "Where, yes": (f"{WHERE} <float a = {{-0.0}}, float b = {{1}}> {{y = Where(c, a, b) r = Reciprocal(y)}}", {"Where"}),
    "Where, 0": (f"{WHERE} <float a = {{1}}, float b = {{0}}> {{y = Where(c, a, b) r = Reciprocal(y)}}", {"Cast"}),
    "Clips that meet in 0": (f"{X} <float l = {{-2}}, float h = {{-1}}> {{c = Clip(x, l, h) y = Relu(c)}}", {"Clip", "Relu"}),
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
