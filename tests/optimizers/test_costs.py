"""Rewrites that go round slow kernels: the same numbers at every edge, where tensors are large, for the CPU alone."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.optimizers import Report, optimize, passes
from graphkit.optimizers.base import PRESETS
from tests.optimizers.conftest import assert_same, operators, parse, run

NEW = (
    *("split_einsum", "softmax_in_three_dims", "split_log_sum_exp", "split_softplus", "split_mish", "split_prelu"),
    "power_by_products",
)
EDGES = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3.4e38, -3.4e38, 88.8, -88.8, 104, -104, 20, -20, 1e-7],
    np.float32,
)  # fmt: skip

X = "g (float[N,64,64] x) => (float[A,B,C] y)"
SMALL_X = "g (float[N] x) => (float[N] y)"
AXES = "int64[1] last = {-1}, int64[1] mid = {1}, int64[2] two = {0, 2}"
# name: (opset, graph, the pass, whether it applies)
GRAPHS = {
    "log-sum-exp, last": (21, f"{X} <{AXES}> {{y = ReduceLogSumExp(x, last)}}", "split_log_sum_exp", True),
    "log-sum-exp, middle": (18, f"{X} <{AXES}> {{y = ReduceLogSumExp(x, mid)}}", "split_log_sum_exp", True),
    "log-sum-exp, dims dropped": (
        18,
        f"g (float[N,64,64] x) => (float[A,B] y) <{AXES}> {{y = ReduceLogSumExp<keepdims = 0>(x, last)}}",
        "split_log_sum_exp",
        True,
    ),
    "log-sum-exp, axes as attribute": (17, f"{X} {{y = ReduceLogSumExp<axes = [1, 2]>(x)}}", "split_log_sum_exp", True),
    "log-sum-exp, of all": (
        18,
        "g (float[64,64] x) => (float[1,1] y) {y = ReduceLogSumExp(x)}",
        "split_log_sum_exp",
        True,
    ),
    "log-sum-exp, of none": (
        18,
        "g (float[64,64] x) => (float[A,B] y) {y = ReduceLogSumExp<noop_with_empty_axes = 1>(x)}",
        "split_log_sum_exp",
        False,
    ),
    "log-sum-exp, a dim of any size": (18, f"{X} <{AXES}> {{y = ReduceLogSumExp(x, two)}}", "split_log_sum_exp", False),
    "log-sum-exp, float64": (
        18,
        f"g (double[N,64,64] x) => (double[A,B,C] y) <{AXES}> {{y = ReduceLogSumExp(x, last)}}",
        "split_log_sum_exp",
        False,
    ),
    "log-sum-exp, small": (
        18,
        f"g (float[N,8,8] x) => (float[A,B,C] y) <{AXES}> {{y = ReduceLogSumExp(x, last)}}",
        "split_log_sum_exp",
        False,
    ),
    "softplus": (17, f"{X} {{y = Softplus(x)}}", "split_softplus", True),
    "softplus, small": (17, "g (float[N,8] x) => (float[N,8] y) {y = Softplus(x)}", "split_softplus", False),
    "mish": (18, f"{X} {{y = Mish(x)}}", "split_mish", True),
    "mish in parts": (17, f"{X} {{s = Softplus(x) t = Tanh(s) y = Mul(x, t)}}", "split_mish", True),
    "mish in parts, turned": (17, f"{X} {{s = Softplus(x) t = Tanh(s) y = Mul(t, x)}}", "split_mish", True),
    "mish of another": (17, f"{X} {{n = Neg(x) s = Softplus(x) t = Tanh(s) y = Mul(n, t)}}", "split_mish", False),
    "mish, small": (18, "g (float[N,8] x) => (float[N,8] y) {y = Mish(x)}", "split_mish", False),
    "prelu": (17, f"{X} <float[64,1] s> {{y = PRelu(x, s)}}", "split_prelu", False),
    "prelu, large": (
        17,
        "g (float[N,64,256] x) => (float[N,64,256] y) <float[64,1] s> {y = PRelu(x, s)}",
        "split_prelu",
        True,
    ),
    "prelu, slopes given": (
        17,
        "g (float[N,64,256] x, float[64,1] s) => (float[N,64,256] y) {y = PRelu(x, s)}",
        "split_prelu",
        False,
    ),
    "power -1": (17, f"{X} <float p = {{-1.0}}> {{y = Pow(x, p)}}", "power_by_products", True),
    "power -2": (17, f"{X} <int64[1] p = {{-2}}> {{y = Pow(x, p)}}", "power_by_products", True),
    "power 4": (13, f"{X} <float p = {{4.0}}> {{y = Pow(x, p)}}", "power_by_products", True),
    "power 3/2, known": (17, f"{X} <float p = {{1.5}}> {{a = Mul(x, x) y = Pow(a, p)}}", "power_by_products", True),
    "power 3/2": (17, f"{X} <float p = {{1.5}}> {{y = Pow(x, p)}}", "power_by_products", False),
    "power 4, small": (13, f"{SMALL_X} <float p = {{4.0}}> {{y = Pow(x, p)}}", "power_by_products", False),
    "power -1, small": (13, f"{SMALL_X} <float p = {{-1.0}}> {{y = Pow(x, p)}}", "power_by_products", True),
    "power 3": (17, f"{X} <float p = {{3.0}}> {{y = Pow(x, p)}}", "power_by_products", False),
    "power that widens": (
        17,
        "g (float[N] x) => (float[1,N] y) <float[1,1] p = {4.0}> {y = Pow(x, p)}",
        "power_by_products",
        False,
    ),
}  # fmt: skip


def weighted(graph: str, opset: int):
    model = parse(graph, opset)
    rng = np.random.default_rng(0)
    import onnx

    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del model.graph.value_info[:]
    return model


def feeds_of(model, size: int, *, edges: bool):
    rng = np.random.default_rng(size)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or size for dim in tensor.shape.dim]
        drawn = rng.standard_normal(shape) * 4
        feeds[value.name] = drawn.astype(np.float64 if tensor.elem_type == 11 else np.float32)
        if edges:
            feeds[value.name].reshape(-1)[: EDGES.size] = EDGES[: feeds[value.name].size]
    return feeds


@pytest.mark.parametrize("name", GRAPHS)
def test_large_tensors_go_round_slow_kernels(prove, name):
    opset, graph, by, applies = GRAPHS[name]
    model = weighted(graph, opset)
    given = [feeds_of(model, size, edges=False) for size in (1, 3)]
    report = Report()
    prove(model, *given, opset=opset, tolerance=3e-6, report=report, grow=2000)
    assert report.did(by) == applies


SPECIAL = [name for name, (_, graph, _, applies) in GRAPHS.items() if applies and "[N,64," in graph]


@pytest.mark.parametrize("name", SPECIAL)
def test_special_numbers(name):
    opset, graph, by, _ = GRAPHS[name]
    model = weighted(graph, opset)
    result = optimize(model, passes=[by], verify=False)
    feeds = feeds_of(model, 3, edges=True)
    x = feeds["x"].reshape(3, 64, -1)
    x[1, :4], x[1, 4:8, 5] = -np.inf, np.inf  # whole rows, and rows of which one element is infinite
    x[2, :2, 3], x[2, 2:4] = np.nan, -3e38
    assert_same(run(result, feeds), run(model, feeds), 3e-6)


@pytest.mark.parametrize("kind", ["Softplus", "Mish"])
def test_digits_near_zero_are_kept(kind):
    model = parse(f"{X} {{y = {kind}(x)}}", 18)
    result = optimize(model, verify=False)
    assert kind not in operators(result)
    x = np.linspace(-80, 30, 64 * 64, dtype=np.float32).reshape(1, 64, 64)
    got, right = run(result, {"x": x})["y"], run(model, {"x": x})["y"]
    np.testing.assert_allclose(got, right, rtol=2e-6, atol=0)


SOFTMAX = {
    "four dims": (13, "Softmax<axis = 1>", "N,7,8,9", True),
    "five dims": (13, "Softmax<axis = 2>", "N,2,7,8,9", True),
    "negative axis": (21, "LogSoftmax<axis = -3>", "N,7,8,9", True),
    "first of three": (13, "Softmax<axis = 0>", "7,8,9", True),
    "last but one": (13, "Softmax<axis = -2>", "N,7,8,9", False),
    "last": (13, "Softmax", "N,7,8,9", False),
    "a dim of any size": (13, "Softmax<axis = 1>", "N,7,M,9", False),
    "old": (11, "Softmax<axis = 1>", "N,7,8,9", False),
    "small": (13, "Softmax<axis = 1>", "N,2,3,4", False),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_in_three_dims(prove, name):
    opset, operator, shape, applies = SOFTMAX[name]
    report = Report()
    graph = f"g (float[{shape}] x) => (float[{shape}] y) {{y = {operator}(x)}}"
    prove(graph, opset=opset, report=report, grow=400)  # bit for bit
    assert report.did("softmax_in_three_dims") == applies
    model = parse(graph, opset)
    feeds = feeds_of(model, 2, edges=True)
    feeds["x"].reshape(-1)[-60:] = -np.inf
    assert_same(run(optimize(model, verify=False), feeds), run(model, feeds), 0)


EQUATIONS = {
    "bhid,bhjd->bhij": ("2,3,4,32 2,3,5,32", {"Transpose": 1, "MatMul": 1}),
    "bqhd,bkhd->bhqk": ("2,4,3,32 2,5,3,32", {"Transpose": 2, "MatMul": 1}),
    "bhqk,bkhd->bqhd": ("2,3,4,5 2,5,3,32", {"Transpose": 2, "MatMul": 1}),
    "bid,bjd->bji": ("2,4,32 2,5,32", {"Transpose": 1, "MatMul": 1}),
    "bid,de->bie": ("2,4,8 8,5", {"MatMul": 1}),
    "bid,ed->bie": ("2,4,32 5,32", {"Transpose": 1, "MatMul": 1}),
    "bid,dhe->bihe": ("2,4,32 32,3,5", {"Reshape": 2, "MatMul": 1}),
    "bihe,hed->bid": ("2,4,3,32 3,32,8", {"Reshape": 2, "MatMul": 1}),
    "ij,j->i": ("4,5 5", {"MatMul": 1}),
    "j,jk->k": ("5 5,3", {"MatMul": 1}),
    "de,bid->bie": ("8,5 2,4,8", {"MatMul": 1}),
    "ij,jk": ("4,5 5,3", {"MatMul": 1}),
    "ij,ij->i": ("4,64 4,64", {"Mul": 1, "ReduceSum": 1}),
    "ij,ij->": ("4,64 4,64", {"Mul": 1, "ReduceSum": 1}),
    "ij,ij->ij": ("4,5 4,5", {"Mul": 1}),
    "i,j->ij": ("4 500", {"Unsqueeze": 1, "Mul": 1}),
    "bi,bj->bij": ("2,4 2,500", {"Unsqueeze": 2, "Mul": 1}),
    "bid,bjd->bij": ("2,4,8 2,5,8", {"Einsum": 1}),
    "ji,ji->j": ("4,5 4,5", {"Einsum": 1}),
    "ij,ji->i": ("4,500 500,4", {"Einsum": 1}),
    "ii,ij->j": ("40,40 40,5", {"Einsum": 1}),
    "ij,k->k": ("4,500 3", {"Einsum": 1}),
    "...ij,jk->...ik": ("2,4,50 50,3", {"Einsum": 1}),
    "bij,bij->jb": ("2,3,400 2,3,400", {"Einsum": 1}),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(prove, equation):
    shapes, left = EQUATIONS[equation]
    a, b = shapes.split()
    rank = len(equation.split("->")[1].replace("...", "B")) if "->" in equation else 2
    result = f"float[{','.join('?' * rank)}]" if rank else "float"
    graph = f'g (float[{a}] a, float[{b}] b) => ({result} y) {{y = Einsum<equation = "{equation}">(a, b)}}'
    prove(graph, opset=17, tolerance=5e-6, expected=left, grow=600)


def test_einsum_dims_that_may_broadcast_stay(prove):
    graph = 'g (float[N,4,80] a, float[M,5,80] b) => (float[K,4,5] y) {y = Einsum<equation = "bid,bjd->bij">(a, b)}'
    prove(graph, tolerance=2e-6, expected={"Einsum": 1})
    graph = graph.replace("[M,", "[N,")
    prove(graph, tolerance=2e-6, expected={"Transpose": 1, "MatMul": 1}, grow=200)


ON_THE_WEB_TOO = {"split_einsum", "softmax_in_three_dims", "split_softplus", "split_mish", "power_by_products"}


@pytest.mark.parametrize("name", NEW)
def test_only_where_it_was_measured(name):
    made = passes()[name]
    assert made.presets == ("inference", "training", *(["web"] if name in ON_THE_WEB_TOO else []))
    assert set(made.presets) <= set(PRESETS)


# the axis that is summed over, of extent 1 in one of them; MatMul would refuse it
@pytest.mark.parametrize(("a", "b"), [("2,1", "3,4"), ("2,K", "L,4"), ("2,3", "1,4")])
def test_einsum_whose_summed_axis_may_broadcast_stays(prove, a, b):
    graph = f'g (float[{a}] a, float[{b}] b) => (float[2,4] y) {{y = Einsum<equation = "ij,jk->ik">(a, b)}}'
    prove(graph, expected={"Einsum": 1})
