"""What the presets do differently: operators with CUDA kernels, models that the web can load, CPU kernels avoided."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import OperatorError, PassError
from graphkit.optimizers import Report, optimize, passes
from tests.optimizers.conftest import assert_same, operators, parse, random_feeds, run

KERNELS = json.loads((Path(__file__).parents[1] / "gradients" / "kernels.json").read_text())
X = "g (float[N,3] x) => (float[N,3] y)"
IMAGE = "g (float[N,2,7,7] x) => (float[N,2,A,B] y)"

# name: (graph, operators in the preset cuda)
CUDA = {
    "mean of two": ("g (float[N,3] x, float[N,3] z) => (float[N,3] y) {y = Mean(x, z)}", {"Sum": 1, "Mul": 1}),
    "mean that broadcasts": (
        "g (float[N,3] x, float[1,3] z, float[N,1] w) => (float[N,3] y) {y = Mean(x, z, w)}",
        {"Sum": 1, "Mul": 1},
    ),
    "tangent": (f"{X} {{y = Tan(x)}}", {"Sin": 1, "Cos": 1, "Div": 1}),
    "hyperbolic cosine": (f"{X} {{y = Cosh(x)}}", {"Abs": 1, "Mul": 3, "Exp": 1, "Div": 2, "Add": 1}),
    "hyperbolic sine": (f"{X} {{y = Sinh(x)}}", {"Abs": 1, "Mul": 4, "Exp": 1, "Div": 2, "Add": 1, "Tanh": 1}),
    "celu": (f"{X} {{y = Celu<alpha = 2.0>(x)}}", {"Div": 1, "Elu": 1, "Mul": 1}),
    "celu of a small slope": (
        f"{X} {{y = Celu<alpha = 0.5>(x)}}",
        {"Relu": 1, "Min": 1, "Div": 1, "Elu": 1, "Mul": 1, "Add": 1},
    ),
    "celu of slope 1": (f"{X} {{y = Celu(x)}}", {"Elu": 1}),
    "norm pool": (
        f"{IMAGE} {{y = LpPool<kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1]>(x)}}",
        {"Mul": 2, "AveragePool": 1, "Sqrt": 1},
    ),
    "norm pool of p 1": (
        f"{IMAGE} {{y = LpPool<kernel_shape = [3, 3], p = 1>(x)}}",
        {"Abs": 1, "AveragePool": 1, "Mul": 1},
    ),
    "global norm pool": (f"{IMAGE} {{y = GlobalLpPool(x)}}", {"ReduceL2": 1}),
    "global norm pool of p 1": (f"{IMAGE} {{y = GlobalLpPool<p = 1>(x)}}", {"ReduceL1": 1}),
    "mean and variance": (
        f"{IMAGE} {{y = MeanVarianceNormalization(x)}}",
        {"ReduceMean": 2, "Sub": 1, "Mul": 1, "Sqrt": 1, "Add": 1, "Div": 1},
    ),
    "hard swish": (f"{X} {{h = HardSigmoid<alpha = 0.16666667>(x) y = Mul(x, h)}}", {"HardSwish": 1}),
}
STAYS = {
    "norm pool of p 3": f"{IMAGE} {{y = LpPool<kernel_shape = [3, 3], p = 3>(x)}}",
    "norm pool, dilated": f"{IMAGE} {{y = LpPool<kernel_shape = [3, 3], dilations = [2, 2]>(x)}}",
    "norm pool, ceil_mode": f"{IMAGE} {{y = LpPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)}}",
    "inverse tangent": f"{X} {{y = Atan(x)}}",
    "hard swish of another slope": f"{X} {{h = HardSigmoid<alpha = 0.2>(x) y = Mul(x, h)}}",
}


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("name", CUDA)
def test_cuda(prove, name, opset):
    graph, left = CUDA[name]
    prove(graph, opset=opset, preset="cuda", tolerance=2e-5, expected=left, grow=2000, verify=True, strict=True)


@pytest.mark.parametrize("name", CUDA)
def test_only_cuda(name):
    model = parse(CUDA[name][0], 21)
    for preset in ("inference", "training", "web"):
        assert operators(optimize(model, preset, verify=False)) == operators(model)


@pytest.mark.parametrize("name", CUDA)
def test_whatever_it_writes_has_a_cuda_kernel(name):
    model = parse(CUDA[name][0], 21)
    lacking = [op for op in operators(model) if op not in KERNELS["CUDA"]]
    assert lacking or name == "hard swish"
    for operator in operators(optimize(model, "cuda", verify=False)):
        kernels = KERNELS["CUDA"][operator]
        assert any(low <= 21 <= high and "float" in types["T"] for low, high, types in kernels), operator


@pytest.mark.parametrize("name", STAYS)
def test_what_cuda_cannot_say_stays(name):
    model = parse(STAYS[name], 21)
    assert operators(optimize(model, "cuda", verify=False)) == operators(model)


@pytest.mark.parametrize("operator", ["Tan", "Sinh", "Cosh", "Celu", "Celu<alpha = 0.5>", "Celu<alpha = 2.0>"])
def test_special_numbers_on_cuda(operator):
    model = parse(f"{X} {{y = {operator}(x)}}", 21)
    x = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-8, -1e-8, 89.2, -89.2, 1e-40, 0.5, -0.5, 20, -20, 1.5]
    feeds = {"x": np.array(x, np.float32).reshape(-1, 3)}
    got, right = run(optimize(model, "cuda", verify=False), feeds)["y"], run(model, feeds)["y"]
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=1e-38)
    if "Celu" in operator:
        huge = {"x": np.array([[3e38, -3e38, 1e38]], np.float32)}
        np.testing.assert_array_equal(run(optimize(model, "cuda", verify=False), huge)["y"], run(model, huge)["y"])
    else:  # Celu makes 0.0 of -0.0, and Elu keeps it
        np.testing.assert_array_equal(np.signbit(got[1]), np.signbit(right[1]))


def test_passes_for_one_kernel_library_are_in_no_other_preset():
    for name, made in passes().items():
        targets = made.targets
        if "inference" not in targets:
            assert "training" not in made.presets, name
        if targets == {"cuda"}:
            assert made.presets == ("cuda",)
        assert targets <= {"inference", "web", "cuda"}


# The web

NEW = (
    "g (float[2,4,8] x, float[8] s) => (float[2,4,8] y, float[2,4,8] z) "
    "{y = RMSNormalization(x, s) q = Swish(x) z = Attention<q_num_heads = 2, kv_num_heads = 2>(q, y, y)}"
)


def test_the_web_gets_an_opset_that_old_builds_load():
    model = parse(NEW, 24)
    result = optimize(model, "web", verify=False)
    assert {entry.domain: entry.version for entry in result.opset_import}[""] == 21
    feeds = random_feeds(model, 2)
    assert_same(run(result, feeds), run(model, feeds), 1e-5)
    assert {entry.domain: entry.version for entry in optimize(model, "web", opset=23, verify=False).opset_import}[
        ""
    ] == 23
    old = parse(f"{X} {{y = Neg(x)}}", 13)
    assert optimize(old, "web", verify=False).opset_import[0].version == 13
    assert optimize(model, "inference", verify=False).opset_import[0].version == 24


def test_what_old_opsets_cannot_say_is_named():
    model = parse("g (float[N,3] x, int64 a) => (float[N,3] y) {y = CumProd(x, a)}", 26)
    with pytest.raises(OperatorError, match="CumProd"):
        optimize(model, "web")


@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "complex64"])
def test_tensors_that_javascript_lacks(kind):
    model = parse(f"g ({kind}[N] x) => ({kind}[N] y) {{y = Identity(x)}}", 21)
    with pytest.raises(PassError, match=f"input 'x' is {kind}, output 'y' is {kind}"):
        optimize(model, "web")
    assert optimize(model, "cuda", report=Report()) is not None


AVOIDED = {
    "Softplus": ("g (float[64,64] x) => (float[64,64] y) {y = Softplus(x)}", {"inference", "web"}),
    "ReduceLogSumExp": ("g (float[64,64] x) => (float[1,1] y) {y = ReduceLogSumExp(x)}", {"inference"}),
}


@pytest.mark.parametrize("operator", AVOIDED)
def test_slow_kernels_are_avoided_where_they_are_slow(operator):
    graph, presets = AVOIDED[operator]
    model = parse(graph, 21)
    found = {preset for preset in ("inference", "web", "cuda") if operator not in operators(optimize(model, preset))}
    assert found == presets
