"""Products at zeros: every derivative is a product of other factors, and none of it goes through a division."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.testing import check_gradients

VALUES = {
    "one zero": [0.0, 2.0, 3.0],
    "two zeros": [0.0, 0.0, 3.0],
    "three zeros": [0.0, 0.0, 0.0],
    "none": [1.5, -2.0, 3.0],
    "twenty factors, two zeros": [0.0, *np.linspace(0.5, 1.5, 18), 0.0],
}


def _second(values: np.ndarray) -> np.ndarray:
    n = len(values)
    expected = np.zeros((n, n))
    for i, j in itertools.permutations(range(n), 2):
        expected[i, j] = math.prod(values[k] for k in range(n) if k not in (i, j))
    return expected


@pytest.mark.parametrize("name", VALUES)
def test_the_second_derivative_of_a_product(name: str) -> None:
    values = np.array(VALUES[name])
    found = gk.hessian(lambda x: gk.op.ReduceProd(x, keepdims=0))(gk.tensor(values)).numpy()
    np.testing.assert_allclose(found, _second(values), atol=1e-12)


@pytest.mark.parametrize("axes", [[0, 1], [2, 0], [0, 1, 2], None])
def test_a_product_over_several_axes(axes: list[int] | None) -> None:
    values = np.linspace(0.6, 1.4, 24).reshape(2, 3, 4)
    values[0, 1, 2] = values[1, 0, 0] = 0
    taken = [axes] if axes is not None else []
    f = lambda x: (gk.op.ReduceProd(x, *taken, keepdims=1) ** 2 + gk.op.ReduceProd(x, *taken, keepdims=1)).sum()
    found = gk.hessian(f)(gk.tensor(values)).numpy().reshape(24, 24)
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    step = 1e-5
    for place in (6, 12, 5):
        ends = []
        for sign in (1, -1):
            moved = values.copy().ravel()
            moved[place] += sign * step
            ends.append(gk.grad(f)(gk.tensor(moved.reshape(2, 3, 4))).numpy().ravel())
        np.testing.assert_allclose(found[place], (ends[0] - ends[1]) / (2 * step), atol=1e-8)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_the_second_derivative_of_running_products(exclusive: int, reverse: int) -> None:
    values = [0.0, 0.5, 0.0, -0.3]

    def by_hand(x: gk.Tensor) -> gk.Tensor:
        total, product = None, None
        for i in reversed(range(4)) if reverse else range(4):
            before = product
            product = x[i] if product is None else product * x[i]
            term = before if exclusive else product
            if term is not None:
                total = term if total is None else total + term
        assert total is not None
        return total

    f = lambda x: gk.op.CumProd(x, 0, exclusive=exclusive, reverse=reverse).sum()
    np.testing.assert_allclose(
        gk.hessian(f)(gk.tensor(values)).numpy(), gk.hessian(by_hand)(gk.tensor(values)).numpy(), atol=1e-6
    )


# Where only the run knows how many factors there are, or which axes: x of any extents, with zeros in its rows.
ROWS = np.array([[0.0, 0.5, 0.0, -0.3, 1.2], [0.7, 0.0, 2.0, 1.1, -0.4], [1.0, 2.0, 0.5, -1.5, 0.9]])
UNKNOWN = {
    "rows": lambda x: gk.op.ReduceProd(x, [1], keepdims=0),
    "both": lambda x: gk.op.ReduceProd(x + 1.0, [0, 1], keepdims=0),
    **{
        f"running, {e}, {r}": lambda x, e=e, r=r: gk.op.CumProd(x, 1, exclusive=e, reverse=r)
        for e, r in itertools.product((0, 1), (0, 1))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_of_an_unknown_extent(name: str) -> None:
    check_gradients(UNKNOWN[name], [ROWS], order=2)


PLACES = {
    "few": np.array([[0, 1, 1, 0, -1], [1, 1, 1, -2, 0], [0, 0, 0, 0, 0]]),
    "many": np.random.default_rng(0).integers(-4, 4, (2, 18)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", PLACES)
def test_scattered_factors(name: str, axis: int) -> None:
    places = PLACES[name]
    draw = np.random.default_rng(1)
    updates = np.where(draw.random(places.shape) < 0.3, 0, draw.uniform(0.5, 1.5, places.shape))
    data = draw.uniform(0.5, 1.5, (len(places), 4))
    data[:, 0] = 0
    if axis == 0:
        places, updates, data = places.T, updates.T, data.T
    f = lambda x, u, i: gk.op.ScatterElements(x, i, u, axis=axis, reduction="mul")
    check_gradients(f, [data, updates, places], order=2)


def test_scattered_rows() -> None:
    places = np.array([[0], [2], [0], [-1], [0]])
    updates = np.random.default_rng(2).uniform(0.5, 1.5, (5, 2))
    updates[0, 0] = updates[2, 0] = updates[3, 1] = 0
    f = lambda x, u, i: gk.op.ScatterND(x, i, u, reduction="mul")
    check_gradients(f, [ROWS[:, :2], updates, places], order=2, symbolic=[["n", 2], ["m", 2], ["m", 1]])


def second_of_text(inputs: str, body: str, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of half the gradient's sum of squares, by the graph and by differences of the gradient."""
    head = '<ir_version: 10, opset_import: ["": 21]>'
    model = onnx.parser.parse_model(
        f"{head} g ({inputs}) => (double loss) {{ {body} loss = ReduceSumSquare<keepdims = 0>(y) }}"
    )
    if not model.graph.input[0].type.tensor_type.shape.dim:
        model.graph.input[0].type.tensor_type.ClearField("shape")
    first = add_gradients(model, "loss", ["x"])
    first.graph.node.append(onnx.helper.make_node("ReduceSumSquare", ["x_grad"], ["twice"], keepdims=0))
    first.graph.output.append(onnx.helper.make_tensor_value_info("twice", onnx.TensorProto.DOUBLE, []))
    found = gk.run(add_gradients(first, "twice", ["x"], suffix="_second"), feeds)["x_second"]
    x = feeds["x"]
    expected = np.zeros(x.shape)
    for place in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * 1e-6
            ends.append(gk.run(first, {**feeds, "x": moved})["twice"].item())
        expected[place] = (ends[0] - ends[1]) / 2e-6
    return found, expected


# the inputs, the operator, and the axes of the run
SECOND = {
    "no rank": ("double x", "y = ReduceProd(x)", None),
    "no rank, axes": ("double x, int64[k] a", "y = ReduceProd(x, a)", [-1, 0]),
    "no rank, no axes": ("double x, int64[k] a", "y = ReduceProd<noop_with_empty_axes = 1>(x, a)", []),
    "axes": ("double[n, m, 2] x, int64[k] a", "y = ReduceProd<keepdims = 0>(x, a)", [-1, 0]),
    "axes, all": ("double[n, m, 2] x, int64[k] a", "y = ReduceProd(x, a)", []),
    "axes, none": ("double[n, m, 2] x, int64[k] a", "y = ReduceProd<noop_with_empty_axes = 1>(x, a)", []),
    "no extent": ("double[n, m, 2] x", "y = ReduceProd(x)", None),
}


LONGER = {"no rank, axes", "no rank, no axes", "axes, none"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONGER else n for n in SECOND])
def test_what_only_the_run_knows(name: str) -> None:
    inputs, body, axes = SECOND[name]
    x = np.array([[0.0, 0.5, 2.0], [1.5, 0.0, -1.0]]).reshape(2, 3, 1)
    feeds = {"x": np.concatenate([x, x + 0.5], axis=2)}
    if axes is not None:
        feeds["a"] = np.array(axes, np.int64)
    found, expected = second_of_text(inputs, body, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_of_no_factor() -> None:
    found, _ = second_of_text("double[n] x", "y = ReduceProd(x)", {"x": np.zeros(0)})
    assert found.shape == (0,)
