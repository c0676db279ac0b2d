"""Operators that move elements: every attribute, run-time settings, unknown dims."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
X = np.random.default_rng(0).normal(size=(2, 3, 4))
IMAGE = np.random.default_rng(1).normal(size=(1, 4, 2, 2))

CASES = {
    "Reshape flat": lambda x: op.Reshape(x, [-1]),
    "Reshape zero": lambda x: op.Reshape(x, [0, 2, -1]),
    "Reshape split": lambda x: op.Reshape(x, [2, 3, 2, 2]),
    "Reshape of a shape": lambda x: op.Reshape(x, op.Concat(op.Shape(x, start=2), [-1], axis=0)),
    "Flatten 0": lambda x: op.Flatten(x, axis=0),
    "Flatten 1": lambda x: op.Flatten(x),
    "Flatten -1": lambda x: op.Flatten(x, axis=-1),
    "Squeeze": lambda x: op.Squeeze(op.Unsqueeze(x, [0, 2]), [0, 2]),
    "Squeeze all": lambda x: op.Squeeze(op.Slice(x, [0, 0], [1, 1], [0, 1])) * 2,
    "Unsqueeze": lambda x: op.Unsqueeze(x, [-1, 0]),
    "Transpose": lambda x: op.Transpose(x),
    "Transpose perm": lambda x: op.Transpose(x, perm=[1, 2, 0]),
    "Transpose back": lambda x: op.Transpose(op.Transpose(x, perm=[2, 0, 1]), perm=[1, 2, 0]),
    "Expand rank": lambda x: op.Expand(x, [5, 1, 1, 1]),
    "Expand one": lambda x: op.Expand(op.Unsqueeze(x, [1]), [2, 2, 3, 4]),
    "Expand not": lambda x: op.Expand(x, [1]),
    "Concat": lambda x: op.Concat(x, x * 2, x, axis=1),
    "Concat last": lambda x: op.Concat(x, np.zeros((2, 3, 1), gk.dtypes.name(x.dtype)), axis=-1),
    "Concat one": lambda x: op.Concat(x, axis=0),
    "Split": lambda x: op.Split(x, [1, 3], axis=2, outputs=2),
    "Split even": lambda x: op.Split(x, axis=-1, num_outputs=2),
    "Split uneven": lambda x: op.Split(x, axis=1, num_outputs=2),
    "Split used once": lambda x: op.Split(x, [1, 1, 1], axis=1, outputs=3)[1],
    "Tile": lambda x: op.Tile(x, [2, 1, 3]),
    "Tile ones": lambda x: op.Tile(x, [1, 1, 1]),
    "Tile none": lambda x: op.Tile(x, [1, 0, 1]).sum() + x.sum(),
    "Trilu": lambda x: op.Trilu(x),
    "Trilu lower": lambda x: op.Trilu(x, upper=0),
    "Trilu k": lambda x: op.Trilu(x, np.array(-1), upper=1),
    "CumSum": lambda x: op.CumSum(x, np.array(1)),
    "CumSum exclusive": lambda x: op.CumSum(x, np.array(-1), exclusive=1),
    "CumSum reverse": lambda x: op.CumSum(x, np.array(0), reverse=1),
    "CumSum both": lambda x: op.CumSum(x, np.array(2), exclusive=1, reverse=1),
    "ReverseSequence": lambda x: op.ReverseSequence(x, np.array([2, 1, 2])),
    "ReverseSequence batch": lambda x: op.ReverseSequence(x, np.array([3, 2]), batch_axis=0, time_axis=1),
    "CenterCropPad": lambda x: op.CenterCropPad(x, [4, 3], axes=[1, 2]),
}
IMAGES = {
    "DepthToSpace": lambda x: op.DepthToSpace(x, blocksize=2),
    "DepthToSpace CRD": lambda x: op.DepthToSpace(x, blocksize=2, mode="CRD"),
    "SpaceToDepth": lambda x: op.SpaceToDepth(x, blocksize=2),
    "SpaceToDepth wide": lambda x: op.SpaceToDepth(op.Concat(x, x, axis=3), blocksize=2),
}


@pytest.mark.parametrize("name", CASES)
def test_dims(name):
    fixed = {"Reshape split", "Split", "Split used once", "Concat last", "Expand one", "CenterCropPad"}
    symbolic = False if name in fixed else [["a", 3, 4]] if name != "ReverseSequence batch" else [[2, "t", 4]]
    check_gradients(CASES[name], [X], order=2, symbolic=symbolic)


@pytest.mark.parametrize(
    "name", [n for n in CASES if n.split()[0] in {"Reshape", "Transpose", "Tile", "Trilu", "CumSum", "Squeeze"}]
)
def test_every_dim_unknown(name):
    if name in {"Reshape split", "Squeeze all"}:
        pytest.skip("the case has dims of its own")
    check_gradients(CASES[name], [X], numeric=False, symbolic=True)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("batch", [1, 2])
def test_images(name, batch):
    check_gradients(IMAGES[name], [np.repeat(IMAGE, batch, axis=0)], order=2)


@pytest.mark.parametrize(
    ("f", "inputs", "layout"),
    [
        (lambda x, s: op.Reshape(x, s), [X, np.array([4, -1])], [["a", "b", "c"], [2]]),
        (lambda x, s: op.Reshape(x, s), [X, np.array([2, 3, 2, 2])], [["a", "b", "c"], ["r"]]),
        (lambda x, s: op.Expand(x, s), [X[:, :1], np.array([5, 2, 3, 4])], [["a", 1, "c"], [4]]),
        (lambda x, s: op.Expand(x, s), [X[:, :1], np.array([2, 3, 4])], [["a", "b", "c"], [3]]),
        (lambda x, s: op.Tile(x, s), [X, np.array([1, 2, 2])], [["a", "b", "c"], [3]]),
        (lambda x, s: op.Split(x, s, axis=2, outputs=2), [X, np.array([3, 1])], [["a", "b", "c"], [2]]),
        (lambda x, k: op.Trilu(x, k), [X, np.array(1)], [["a", "b", "c"], []]),
        (lambda x, a: op.CumSum(x, a), [X, np.array(1)], [["a", "b", "c"], []]),
        (lambda x, a: op.Unsqueeze(x, a), [X, np.array([1])], [["a", "b", "c"], [1]]),
        (lambda x, y: op.Concat(x, y, axis=1), [X, X[:, :1]], [["a", "b", "c"], ["a", "d", "c"]]),
        (lambda x, y: op.Concat(x, y, axis=-1), [X, X[:, :, :1]], [["a", "b", "c"], ["a", "b", "d"]]),
        (lambda x, y: x + y, [X, X[:, :1]], [["a", "b", "c"], ["a", "d", "c"]]),
        (lambda x, y: x * y, [X, X[0]], [["a", "b", "c"], ["b", "c"]]),
        (
            lambda x, n: op.ReverseSequence(x, n, batch_axis=0, time_axis=1),
            [X, np.array([2, 3])],
            [["a", "b", "c"], ["a"]],
        ),
    ],
)
def test_settings_that_only_the_run_knows(f, inputs, layout):
    check_gradients(f, inputs, symbolic=layout)


@pytest.mark.parametrize("values", [(0.0, 5.0, 1.0), (2.0, -1.0, -0.5), (1.0, 1.0, 1.0), (-1.5, 3.2, 0.7)])
def test_range(values):
    """Its length is constant almost everywhere: the start moves every element, the step element i by i."""
    start, limit, step = (np.array(v) for v in values)
    check_gradients(lambda a, d: op.Range(a, limit.astype(gk.dtypes.name(a.dtype)) + 0.01, d), [start, step + 0.003])


def test_types_stay():
    for name, f in CASES.items():
        x = gk.tensor(X).astype("float16")
        got = gk.grad(lambda t: sum((p.sum() for p in f(t)), 0.0) if isinstance(f(t), tuple) else f(t).sum())(x)  # noqa: B023
        assert gk.dtypes.name(got.dtype) == "float16", name
