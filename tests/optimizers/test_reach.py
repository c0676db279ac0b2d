"""Bodies that no made-up input runs are named by the checks of precision and of quantization."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from graphkit.optimizers import PrecisionReport, QuantizationReport, quantize_weights, to_precision
from graphkit.optimizers.reach import unreached
from tests.optimizers.conftest import parse

IF = "If<then_branch = t () => (float[N] o) {o = Neg(x)}, else_branch = e () => (float[N] p) {p = Abs(x)}>(c)"
INNER = f"y = If<then_branch = a () => (float[N] u) {{u = {IF}}}, else_branch = b () => (float[N] v) {{v = Exp(x)}}>(d)"
LOOP = (
    "y = Loop<body = l (int64 i, bool g, float[N] s) => (bool h, float[N] r) {h = Identity(g) r = Add(s, x)}>(n, c, x)"
)
SIGNATURE = "g (float[N] x, bool c, bool d, int64 n) => (float[N] y)"
# Each: the nodes, c, d and n, and what is not reached.
BODIES = {
    "one branch": (f"y = {IF}", (True, False, 1), ["else_branch of 'y' (If)"]),
    "the other": (f"y = {IF}", (False, False, 1), ["then_branch of 'y' (If)"]),
    "within another": (INNER, (True, True, 1), ["else_branch of 'y' (If)", "else_branch of 'u' (If)"]),
    "all within what is not reached": (INNER, (True, False, 1), ["then_branch of 'y' (If)"]),
    "a loop": (LOOP, (True, False, 2), []),
    "a loop of no turns": (LOOP, (True, False, 0), ["body of 'y' (Loop)"]),
    "a loop that is told to stop": (LOOP, (False, False, 2), ["body of 'y' (Loop)"]),
    "no bodies": ("y = Abs(x)", (True, True, 1), []),
}


@pytest.mark.parametrize("name", BODIES)
def test_unreached(name):
    nodes, (c, d, n), expected = BODIES[name]
    feeds = {"x": np.ones(3, np.float32), "c": np.array(c), "d": np.array(d), "n": np.array(n)}
    model = ir.from_proto(parse(f"{SIGNATURE} {{{nodes}}}"))
    assert unreached(model, [feeds]) == expected


SEVERAL = [
    {"x": np.ones(2, np.float32), "c": np.array(c), "d": np.array(d), "n": np.array(1)}
    for c, d in ((True, True), (False, True), (False, False))
]


def test_several_inputs_together():
    model = ir.from_proto(parse(f"{SIGNATURE} {{{INNER}}}"))
    assert unreached(model, SEVERAL) == []
    assert unreached(model, SEVERAL[:1]) == ["else_branch of 'y' (If)", "else_branch of 'u' (If)"]


RATE = """g (float[N,64] x, int64 sr) => (float[N,64] y) <int64 k = {16000}> {
c = Equal(sr, k) y = If<then_branch = t () => (float[N,64] o) {o = MatMul(x, w)},
else_branch = e () => (float[N,64] p) {p = Abs(x)}>(c)}"""


@pytest.mark.parametrize("given", [False, True])
def test_the_checks_say_so(given):
    model = parse(RATE)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    inputs = {"x": np.ones((2, 64), np.float32), "sr": np.array(16000)} if given else None
    expected = [f"{'else' if given else 'then'}_branch of 'y' (If)"]
    quantized, half = QuantizationReport(), PrecisionReport()
    quantize_weights(model, report=quantized, inputs=inputs)
    to_precision(model, "float16", report=half, inputs=inputs)
    for report in (quantized, half):
        assert report.not_reached == report.to_dict()["not_reached"] == expected
        assert f"NOT CHECKED, since no input ran it: {expected[0]}" in report.checked
