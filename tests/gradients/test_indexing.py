"""Gathering: repeated and negative indices, every axis and rank, few and many rows, any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.gradients import rows
from graphkit.runtime import Session, run
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)
X = rng.normal(size=(4, 5, 3))

GATHERS = {
    "repeats": (np.array([[0, 0], [-1, 2]]), 0),
    "distinct": (np.array([2, 0]), 0),
    "neighbours": (np.array([1, 2]), 1),
    "all backwards": (np.array([4, 3, 2, 1, 0]), 1),
    "scalar": (np.array(1), 1),
    "negative scalar": (np.array(-1), -1),
    "last axis": (np.array([0, -1, 0, 1]), -1),
    "middle axis": (np.array([[1, 1], [-3, 4]], np.int32), 1),
    "one": (np.array([3]), 0),
    "empty": (np.zeros(0, np.int64), 0),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gather_by_a_constant(name):
    indices, axis = GATHERS[name]
    check_gradients(lambda x: op.Gather(x, indices, axis=axis), [X], order=2)


@pytest.mark.parametrize("name", [n for n in GATHERS if n != "empty"])
def test_gather_by_an_input(name):
    indices, axis = GATHERS[name]
    layout = [["a", "b", "c"], [f"i{n}" for n in range(indices.ndim)]]
    order = 2 if name in {"repeats", "scalar"} else 1
    check_gradients(lambda x, i: op.Gather(x, i, axis=axis), [X, indices], symbolic=layout, order=order)


@pytest.fixture(params=["few rows", "narrow", "one block", "blocks", "unknown count"])
def way(request, monkeypatch):
    """Each way of adding rows up, on small numbers."""
    monkeypatch.setattr(rows, "FEW_ROWS", 1000 if request.param == "few rows" else 0)
    monkeypatch.setattr(rows, "NARROW", 1000 if request.param == "narrow" else 0)
    monkeypatch.setattr(rows, "FEW_INDICES", 1000 if request.param == "one block" else 0)
    monkeypatch.setattr(rows, "BLOCK", 2 if request.param == "unknown count" else 4)
    return request.param


@pytest.mark.parametrize("indices", ["zipf", "one row", "distinct", "long run", "length of one"])
def test_every_way_of_adding_rows(way, indices):
    table = {
        "zipf": np.array([3, 0, 0, 5, 1, 0, 3, 3, 0, 1, 0, 0, 2]), "one row": np.full(17, 4),
        "distinct": np.arange(6)[::-1],
        "long run": np.array([0] * 9 + [5] * 3), "length of one": np.array([2]),
    }  # fmt: skip
    where = table[indices]
    g = rng.normal(size=(len(where), 3))
    expected = np.zeros((7, 3))
    np.add.at(expected, where, g)
    names = ["n", 3] if way == "unknown count" else list(g.shape)
    model = gk.trace(
        lambda u, i: rows.add_rows(u, i, 7),
        gk.spec("float32", names),
        gk.spec("int64", names[:1]),
        input_names=["u", "i"],
    )
    got = next(iter(run(model, {"u": g.astype(np.float32), "i": where}, optimizations=False).values()))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    eager = rows.add_rows(gk.tensor(g).astype("float64"), gk.tensor(where), 7).numpy()
    np.testing.assert_allclose(eager, expected, rtol=1e-12, atol=1e-12)


def test_every_way_has_a_gradient(way):
    where = np.array([3, 0, 0, 5, 1, 0])
    check_gradients(lambda u: rows.add_rows(u, gk.tensor(where), 7) ** 2, [rng.normal(size=(6, 2))], numeric=False)


def test_a_large_embedding_is_the_same_in_200_runs_for_any_number_of_threads():
    """Zipf-distributed tokens, so that some rows are read hundreds of times."""
    tokens = np.minimum(rng.zipf(1.3, size=(8, 256)) - 1, 1999)
    weights = rng.normal(size=(2000, 32)).astype(np.float32)
    model = gk.trace(gk.grad(lambda w, t: (op.Gather(w, t) ** 2).sum()), gk.spec("float32", [2000, 32]),
                     gk.spec("int64", ["b", "t"]), input_names=["w", "t"])  # fmt: skip
    assert "ScatterND" not in {n.op_type for n in model.graph}
    expected = np.zeros((2000, 32))
    np.add.at(expected, tokens, 2 * weights[tokens].astype(np.float64))
    first = None
    for threads, runs in ((1, 1), (4, 200)):
        session = Session(model, threads=threads)
        for _ in range(runs):
            (got,) = session.run({"w": weights, "t": tokens}).values()
            first = got if first is None else first
            assert (got == first).all()
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65])
def test_any_number_of_indices_known_to_the_run_alone(count):
    model = gk.trace(gk.grad(lambda w, t: (op.Gather(w, t) ** 2).sum() + w.sum()), gk.spec("float32", [1000, 20]),
                     gk.spec("int64", ["n"]), input_names=["w", "t"])  # fmt: skip
    weights, tokens = rng.normal(size=(1000, 20)).astype(np.float32), rng.integers(-1000, 1000, size=count)
    expected = np.ones((1000, 20))
    np.add.at(expected, tokens, 2 * weights[tokens].astype(np.float64))
    (got,) = run(model, {"w": weights, "t": tokens}, optimizations=False).values()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_gather_elements(axis, width):
    shape = list(X.shape)
    shape[axis] = width
    indices = np.random.default_rng(width).integers(-3, 3, size=shape)
    check_gradients(lambda x, i: op.GatherElements(x, i, axis=axis), [X, indices], order=2 if width == 2 else 1)


@pytest.mark.parametrize(
    ("shape", "indices", "batch"),
    [
        ((4, 5, 3), [[0, 1], [0, 1], [-1, -2]], 0), ((4, 5, 3), [[1], [1]], 0),
        ((4, 5, 3), [[[0, 1, 2]], [[0, 1, 2]]], 0),
        ((2, 5, 3), [[[1], [1]], [[-1], [0]]], 1), ((2, 3, 4), [[[0], [0], [1]], [[2], [3], [2]]], 2),
        ((2, 2, 4), [[1, 1], [-1, 0]], 1),
    ],
)  # fmt: skip
def test_gather_nd(shape, indices, batch):
    x, where = rng.normal(size=shape), np.array(indices)
    f = lambda x, i: op.GatherND(x, i, batch_dims=batch)
    layout = [
        [f"x{n}" for n in range(x.ndim)],
        [f"x{n}" if n < batch else f"i{n}" for n in range(where.ndim - 1)] + [where.shape[-1]],
    ]
    check_gradients(f, [x, where], symbolic=layout, order=2 if batch < 2 else 1)


@pytest.mark.parametrize(("axis", "largest"), [(-1, 1), (0, 0), (1, 1)])
def test_top_k(axis, largest):
    check_gradients(lambda x: op.TopK(x, np.array([2]), axis=axis, largest=largest)[0], [X], order=2)


def test_top_k_of_ties_gives_all_to_those_picked():
    got = gk.grad(lambda x: op.TopK(x, np.array([2]))[0].sum())(gk.tensor([1.0, 2.0, 2.0, 2.0])).numpy()
    assert got.sum() == 2 and sorted(got.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("axis", "condition"),
    [(1, [True, False, True]), (0, [False, True]), (None, [True, False, True, True]), (-1, [False] * 3)],
)
def test_compress(axis, condition):
    given = {} if axis is None else {"axis": axis}
    check_gradients(
        lambda x, c: op.Compress(x, c, **given), [X, np.array(condition)], symbolic=[["a", "b", "c"], ["n"]]
    )


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_values(axis):
    indices = np.array([[0, 2], [-1, 9]])
    check_gradients(lambda v: op.OneHot(indices, np.array(3), v, axis=axis), [np.array([0.3, 1.7])], order=2)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique(axis, ordered):
    x = np.array([[3.0, 1.0, 3.0], [2.0, 1.0, 2.0], [3.0, 1.0, 3.0]])
    given = {} if axis is None else {"axis": axis}
    got = gk.grad(lambda t: (op.Unique(t, sorted=ordered, **given) ** 2).sum())(gk.tensor(x)).numpy()
    values, first = np.unique(x, axis=axis, return_index=True)
    expected = np.zeros_like(x)
    if axis is None:
        expected.ravel()[first] = 2 * values
    else:
        np.moveaxis(expected, axis, 0)[first] = 2 * np.moveaxis(values, axis, 0)
    np.testing.assert_allclose(got, expected)


HALVES = {
    "Gather": lambda t: op.Gather(t, np.array([0, 0, 1])), "TopK": lambda t: op.TopK(t, np.array([2]))[0],
    "GatherElements": lambda t: op.GatherElements(t, np.zeros((2, 5, 3), np.int64)),
    "GatherND": lambda t: op.GatherND(t, np.array([[0], [0]])),
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_half_precision(name):
    got = gk.grad(lambda t: HALVES[name](t).sum())(gk.tensor(X).astype("float16"))
    assert gk.dtypes.name(got.dtype) == "float16"
