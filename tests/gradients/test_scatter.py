"""Scattering with every reduction: data and updates, negative and repeated indices, zeros among factors, ties."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.errors import GradientError
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)
X = rng.uniform(0.5, 2, size=(4, 3))
REDUCTIONS = ["none", "add", "mul", "max", "min"]

ELEMENTS = {
    "distinct": (np.array([[0, 1, 2], [1, 2, 3]]), 0),
    "negative": (np.array([[0, -1, 2], [1, 2, -1]]), 0),
    "repeats": (np.array([[1, 1, 2], [1, 1, -2], [1, 0, 2]]), 0),
    "columns": (np.array([[0, 0], [-1, 1]]), 1),
    "one": (np.array([[2]]), 1),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("known", [True, False])
def test_scatter_elements(name, reduction, known):
    indices, axis = ELEMENTS[name]
    updates = rng.uniform(0.5, 2, size=indices.shape)
    attributes = {"axis": axis, "reduction": reduction}
    if known:
        check_gradients(
            lambda x, u: op.ScatterElements(x, indices, u, **attributes), [X, updates], order=2, symbolic=False
        )
    else:
        layout = [["a", "b"], ["c", "d"], ["c", "d"]]
        check_gradients(
            lambda x, i, u: op.ScatterElements(x, i, u, **attributes), [X, indices, updates], symbolic=layout
        )


ROWS = {
    "rows": np.array([[2], [0]]),
    "repeats": np.array([[1], [-3], [1], [3]]),
    "elements": np.array([[0, 1], [3, 2], [0, 1], [-1, -1]]),
    "one": np.array([[1]]),
    "deep": np.array([[[0], [0]], [[1], [2]]]),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("known", [True, False])
def test_scatter_nd(name, reduction, known):
    indices = ROWS[name]
    updates = rng.uniform(0.5, 2, size=(*indices.shape[:-1], *X.shape[indices.shape[-1] :]))
    if known:
        check_gradients(lambda x, u: op.ScatterND(x, indices, u, reduction=reduction), [X, updates], symbolic=False,
                        order=2 if reduction in {"none", "add"} else 1)  # fmt: skip
    else:
        leading = [f"i{n}" for n in range(indices.ndim - 1)]
        layout = [["a", "b"], [*leading, indices.shape[-1]], [*leading, "b"][: updates.ndim]]
        check_gradients(
            lambda x, i, u: op.ScatterND(x, i, u, reduction=reduction), [X, indices, updates], symbolic=layout
        )


@pytest.mark.parametrize("op_name", ["ScatterElements", "ScatterND"])
def test_the_last_write_wins(op_name):
    indices = np.array([[1], [1], [0]]) if op_name == "ScatterND" else np.array([1, 1, 0])
    x, u = gk.tensor([1.0, 2.0, 3.0]), gk.tensor([5.0, 6.0, 7.0])
    c = gk.tensor([10.0, 20.0, 30.0])
    to_x, to_u = gk.grad(lambda a, b: (getattr(op, op_name)(a, indices, b) * c).sum(), (0, 1))(x, u)
    assert to_x.tolist() == [0, 0, 30] and to_u.tolist() == [0, 20, 10]


@pytest.mark.parametrize(
    ("updates", "expected"),
    [([0.0, 3.0, 2.0], [6, 0, 0]), ([0.0, 0.0, 2.0], [0, 0, 0]), ([4.0, 3.0, 2.0], [6, 8, 12])],
)
def test_zeros_among_factors(updates, expected):
    got = gk.grad(lambda u: op.ScatterElements(gk.tensor([1.0, 5.0]), np.array([0, 0, 0]), u, reduction="mul").sum())
    assert got(gk.tensor(updates)).tolist() == expected


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_ties_share(reduction):
    f = lambda x, u: op.ScatterElements(x, np.array([0, 0, 1]), u, reduction=reduction).sum()
    to_x, to_u = gk.grad(f, (0, 1))(gk.tensor([1.0, 7.0]), gk.tensor([1.0, 1.0, 7.0]))
    np.testing.assert_allclose(to_x.numpy(), [1 / 3, 0.5])
    np.testing.assert_allclose(to_u.numpy(), [1 / 3, 1 / 3, 0.5])


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("starts", [[0, 2], [1, 1], None])
def test_tensor_scatter(mode, starts):
    cache, update = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 2, 3))
    if mode == "circular" and starts:
        starts = [3, 1]
    given = [] if starts is None else [np.array(starts)]
    check_gradients(lambda c, u: op.TensorScatter(c, u, *given, mode=mode), [cache, update], order=2)
    other = [np.moveaxis(a, 1, 2) for a in (cache, update)]
    check_gradients(lambda c, u: op.TensorScatter(c, u, *given, mode=mode, axis=2), other)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["ScatterElements", "ScatterND"])
def test_half_precision(name, reduction):
    """A reduction in half precision does not run on the CPU, so that the graph is checked for its types alone."""
    indices = np.zeros((2, 3), np.int64) if name == "ScatterElements" else np.array([[0], [1]])
    f = lambda a, b: getattr(op, name)(a, indices, b, reduction=reduction).sum()
    model = gk.trace(gk.grad(f, (0, 1)), gk.spec("float16", [4, 3]), gk.spec("float16", [2, 3]))
    assert {o.dtype.name for o in model.graph.outputs} == {"FLOAT16"}
    if reduction == "none":
        x, u = gk.tensor(X).astype("float16"), gk.tensor(np.ones((2, 3))).astype("float16")
        assert {gk.dtypes.name(t.dtype) for t in gk.grad(f, (0, 1))(x, u)} == {"float16"}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("axis", "shape", "given"),
    [
        (-1, (3, 4), (3, 5)),
        (-1, (3, 4), (3, 2)),
        (-1, (4,), (3,)),
        (-2, (2, 3, 4), (2, 3, 2)),
        (-3, (2, 2, 2), (3, 2, 2)),
    ],
)
def test_axes_counted_from_the_end(reduction, axis, shape, given):
    x, u = rng.normal(size=shape), rng.normal(size=given)
    indices = rng.integers(-shape[axis], shape[axis], given)
    check_gradients(lambda x, u: op.ScatterElements(x, indices, u, axis=axis, reduction=reduction), [x, u],
                    symbolic=False)  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "mul"])
@pytest.mark.parametrize(("indices", "named"), [("int64[]", "'i'"), ("int64[2,3]", "'u'")])
def test_of_unknown_rank(reduction, indices, named):
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x, {indices} i, float[] u) => (float loss)
    {{ y = ScatterElements<axis=1, reduction="{reduction}">(x, i, u) loss = ReduceSumSquare<keepdims=0>(y) }}"""
    model = onnx.parser.parse_model(text)
    for value in list(model.graph.input)[1:]:
        if not value.type.tensor_type.shape.dim:
            value.type.tensor_type.ClearField("shape")
    if reduction == "none" and named == "'u'":
        gk.optimizers.add_gradients(model, "loss", ["x", "u"])
        return
    with pytest.raises(GradientError, match=f"ScatterElements node 'y' needs the rank of {named}"):
        gk.optimizers.add_gradients(model, "loss", ["x", "u"])
