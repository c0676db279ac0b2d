"""Imported models whose inputs declare neither shape nor rank: a kernel, or an axis counted from the end, is enough."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import graphkit as gk
from graphkit.optimizers.add_gradients import add_gradients
from tests.gradients.models import check_model

RANDOM = np.random.default_rng(7)


def draw(*shape):
    return RANDOM.uniform(0.5, 1.5, shape).astype(np.float32)


PICTURE = (2, 3, 6, 5)
WEIGHT, VECTOR = (4, 3, 3, 3), (4,)


def node(op, inputs, outputs=("h",), **attributes):
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


# nodes that lead from x to h, and the shapes of x and of the parameters
MODELS = {
    "Conv": ([node("Conv", "xwb", pads=[1, 0, 1, 1], strides=[2, 1])], {"x": PICTURE, "w": WEIGHT, "b": VECTOR}),
    "Conv, same": (
        [node("Conv", "xw", auto_pad="SAME_LOWER", strides=[2, 2])], {"x": PICTURE, "w": WEIGHT},
    ),
    "Conv, groups": ([node("Conv", "xw", group=3)], {"x": PICTURE, "w": (6, 1, 2, 2)}),
    "ConvTranspose": ([node("ConvTranspose", "xw", strides=[2, 2])], {"x": PICTURE, "w": (3, 2, 3, 3)}),
    "Conv, BatchNormalization, Relu, MaxPool": (
        [
            node("Conv", "xw", "c"), node("BatchNormalization", "csbmv", "d"), node("Relu", "d", "e"),
            node("MaxPool", "e", kernel_shape=[2, 2], strides=[2, 2]),
        ],
        {"x": PICTURE, "w": WEIGHT, "s": VECTOR, "b": VECTOR, "m": VECTOR, "v": VECTOR},
    ),
    "Conv, InstanceNormalization": (
        [node("Conv", "xw", "c"), node("InstanceNormalization", "csb")],
        {"x": PICTURE, "w": WEIGHT, "s": VECTOR, "b": VECTOR},
    ),
    "MaxPool": ([node("MaxPool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 1])], {"x": PICTURE}),
    "AveragePool": ([node("AveragePool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 1])], {"x": PICTURE}),
    "LpPool": ([node("LpPool", "x", kernel_shape=[3, 2])], {"x": PICTURE}),
    "GlobalAveragePool": ([node("GlobalAveragePool", "x")], {"x": PICTURE}),
    "GlobalMaxPool": ([node("GlobalMaxPool", "x")], {"x": PICTURE}),
    "LayerNormalization": ([node("LayerNormalization", "xs")], {"x": PICTURE, "s": (5,)}),
    "LayerNormalization, two axes": ([node("LayerNormalization", "xs", axis=-2)], {"x": PICTURE, "s": (6, 5)}),
    "Dropout": ([node("Dropout", "x")], {"x": PICTURE}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_nothing_declared(name):
    nodes, shapes = MODELS[name]
    arrays = {k: draw(*s) if k != "x" else RANDOM.standard_normal(s).astype(np.float32) for k, s in shapes.items()}

    def model(declared):
        infos = [helper.make_tensor_value_info(k, 1, s if declared or k != "x" else None) for k, s in shapes.items()]
        loss = node("ReduceSumSquare", "h", ["loss"], keepdims=0)
        graph = helper.make_graph([*nodes, loss], "g", infos, [helper.make_tensor_value_info("loss", 1, [])])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    results = []
    for declared in (True, False):
        whole = add_gradients(model(declared), "loss", list(shapes))
        assert isinstance(whole, onnx.ModelProto)
        results.append(gk.run(whole, arrays, optimizations=False))
    for key, want in results[0].items():
        np.testing.assert_allclose(results[1][key], want, rtol=1e-4, atol=1e-4 * abs(want).max())


# functions of a batch of nothing, whose own kernels take one, and the extents behind the batch
NOTHING = {
    "Gather": (lambda x: gk.op.Gather(x, np.array([0, 1]), axis=1), (4,)),
    "LRN": (lambda x: gk.op.LRN(x, size=3), (3, 4, 4)),
    "Conv": (lambda x: gk.op.Conv(x, W, pads=[1] * 4), (3, 6, 6)),
    "ConvTranspose": (lambda x: gk.op.ConvTranspose(x, W, strides=[2, 2]), (3, 6, 6)),
    "MaxPool": (lambda x: gk.op.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), (3, 6, 6)),
    "AveragePool": (lambda x: gk.op.AveragePool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), (3, 6, 6)),
    "LayerNormalization": (lambda x: gk.op.LayerNormalization(x, np.ones(5, np.float32)), (4, 5)),
    "ReduceMean": (lambda x: gk.op.ReduceMean(x, [0]), (4,)),
    "ReduceProd": (lambda x: gk.op.ReduceProd(x, [0]), (4,)),
    "CumProd": (lambda x: gk.op.CumProd(x, np.array(1)), (4,)),
    "Softmax": (lambda x: gk.op.Softmax(x, axis=0), (4,)),
    "MatMul": (lambda x: x @ np.ones((4, 3), np.float32), (4,)),
}  # fmt: skip
W = draw(3, 3, 3, 3)


@pytest.mark.parametrize("name", NOTHING)
def test_a_batch_of_nothing(name):
    f, rest = NOTHING[name]
    gradient = gk.grad(lambda x: (f(x) * 1.5).sum())
    x = np.zeros((0, *rest), np.float32)
    assert gradient(gk.tensor(x)).shape == x.shape
    model = gk.trace(gradient, gk.spec("float32", ["n", *rest]), input_names=["x"])
    (found,) = gk.run(model, {"x": x}, optimizations=False).values()
    assert found.shape == x.shape


@pytest.mark.parametrize("name", ["Resize", "GridSample"])
def test_a_batch_of_nothing_where_the_rule_has_no_kernel_for_it(name):
    """Eagerly nothing is asked of a kernel."""
    grid = gk.tensor(np.zeros((0, 2, 2, 2), np.float32))
    scales = np.array([1, 1, 2, 2], np.float32)
    f = {
        "Resize": lambda x: gk.op.Resize(x, None, scales, mode="linear"),
        "GridSample": lambda x: gk.op.GridSample(x, grid),
    }
    x = gk.tensor(np.zeros((0, 3, 4, 4), np.float32))
    assert gk.grad(lambda x: f[name](x).sum())(x).shape == (0, 3, 4, 4)


# what only the run knows: the model, and what it is fed beside x
GIVEN = {
    "axes of a slice": (
        "double[n, m] x, int64[k] a", "s = Constant<value = int64[1] {1}>() y = Slice(x, s, e, a, t)", {"a": [-1]},
    ),
    "axes of a slice backwards": (
        "double[n, m] x, int64[k] a", "s = Constant<value = int64[1] {-1}>() y = Slice(x, s, b, a, u)", {"a": [0]},
    ),
    "rank of a slice": (
        "double[n, m] x, int64[k] a",
        "h = Reshape(x, a) s = Constant<value = int64[1] {1}>() l = Constant<value = int64[1] {-1}>() "
        "y = Slice(h, s, e, l, t)", {"a": [2, 3, 2]},
    ),
    "axes of a pad": ("double[n, m] x, int64[k] a", "w = Constant<value = int64[2] {1, -1}>() z = Identity(one) "
                      "y = Pad(x, w, z, a)", {"a": [1]}),
    "rank of a pad": (
        "double[n, m] x, int64[k] a",
        "h = Reshape(x, a) w = Constant<value = int64[2] {1, 2}>() l = Constant<value = int64[1] {-1}>() "
        "y = Pad(h, w, , l)", {"a": [4, 3]},
    ),
    "width of the places of rows": (
        "double[n, m] x, int64[j, k] a", "w = GatherND(x, c) y = ScatterND(x, a, w)", {"a": [[1], [0], [1]]},
    ),
    "width of the places of elements": (
        "double[n, m] x, int64[j, k] a", 'w = GatherND(x, d) y = ScatterND<reduction = "mul">(x, a, w)',
        {"a": [[1, 0], [0, 2], [1, 0]]},
    ),
}  # fmt: skip
SHARED = """e = Constant<value = int64[1] {9}>() t = Constant<value = int64[1] {1}>()
  b = Constant<value = int64[1] {-9}>() u = Constant<value = int64[1] {-2}>() one = Constant<value = double {1}>()
  c = Constant<value = int64[3, 1] {0, 1, 2}>() d = Constant<value = int64[3, 2] {0, 1, 1, 1, 2, 2}>()"""


@pytest.mark.parametrize("name", GIVEN)
def test_what_only_the_run_knows(name):
    inputs, body, fed = GIVEN[name]
    text = (
        f"g ({inputs}) => (double loss) {{ {SHARED} {body} q = Mul(y, y) p = Sin(q) loss = ReduceSum<keepdims=0>(p) }}"
    )
    feeds = {"x": RANDOM.standard_normal((3, 4)), **{n: np.array(v) for n, v in fed.items()}}
    check_model(text, feeds, ["x"])


GUARDED = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,2,L] x, bool p) => (float loss) <float[1,2,3] w = {1,2,3,4,5,6}> {
    loss = If<
        then_branch = t () => (float a) {
            c = Conv(x, w) s = Shape(c) one = Constant<value = int64[1] {1}>() d = Gather(s, one) q = Equal(d, one)
            r = If<then_branch = u () => (float[M,K] y) { y = Squeeze(c, one) },
                   else_branch = v () => (float[M,C,K] z) { z = Identity(c) }>(q)
            m = Mul(r, r) a = ReduceSum<keepdims = 0>(m) },
        else_branch = e () => (float b) { o = Mul(x, x) b = ReduceSum<keepdims = 0>(o) }>(p) }"""


def test_dims_of_a_branch_are_not_those_around_it():
    """A Squeeze that an If guards: the cotangent has one rank in the branch that was taken, another in the other."""
    model = add_gradients(onnx.parser.parse_model(GUARDED), "loss", ["x", "w"])
    x, w = np.random.default_rng(0).standard_normal((2, 2, 5)).astype("f"), np.arange(1, 7, dtype="f").reshape(1, 2, 3)
    windows = np.stack([x[:, :, k : k + 3] for k in range(3)], axis=3)  # [batch, channel, tap, place]
    y = np.einsum("bctk,ct->bk", windows, w[0])
    for graph in (model, gk.optimize(model, "training", verify=False)):
        found = gk.run(graph, {"x": x, "p": np.array(True)}, optimizations=False)
        np.testing.assert_allclose(found["w_grad"], 2 * np.einsum("bctk,bk->ct", windows, y)[None], rtol=1e-5)
        found = gk.run(graph, {"x": x, "p": np.array(False)}, optimizations=False)
        np.testing.assert_allclose(found["x_grad"], 2 * x, rtol=1e-6)
