"""Slice: steps of either sign, bounds beyond the ends, empty results, and settings that only the run knows."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
X = np.random.default_rng(0).normal(size=(4, 5))
FAR = 2**63 - 1

SLICES = {
    "front": ([1], [3], [0], None),
    "without axes": ([1, 0], [3, 4], None, None),
    "to the end": ([2], [FAR], [1], None),
    "from the end": ([-3], [-1], [1], None),
    "last": ([-1], [FAR], [1], [1]),
    "whole": ([0], [FAR], [0], None),
    "beyond": ([-100], [100], [1], None),
    "empty": ([3], [1], [0], None),
    "empty at the end": ([9], [20], [1], None),
    "step": ([0], [FAR], [1], [2]),
    "step within": ([1], [4], [1], [2]),
    "flip": ([-1], [-FAR], [0], [-1]),
    "flip both": ([-1, -1], [-FAR, -FAR], [0, 1], [-1, -1]),
    "backwards by two": ([-2], [-FAR], [1], [-2]),
    "backwards within": ([3], [0], [1], [-1]),
    "mixed": ([1, -1], [3, -FAR], [0, 1], [1, -2]),
    "axes backwards": ([1, 2], [5, 4], [-1, -2], None),
}


def _settings(name):
    return [None if s is None else np.array(s, np.int64) for s in SLICES[name]]


@pytest.mark.parametrize("name", SLICES)
def test_known_settings(name):
    starts, ends, axes, steps = _settings(name)
    given = [starts, ends, *([axes] if axes is not None else []), *([steps] if steps is not None else [])]
    check_gradients(lambda x: op.Slice(x, *given), [X], order=2)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("name", SLICES)
def test_bounds_that_only_the_run_knows(name, dtype):
    starts, ends, axes, steps = _settings(name)
    bounds = [np.clip(b, -1000, 1000).astype(dtype) for b in (starts, ends)]
    rest = [] if axes is None else [axes.astype(dtype), *([] if steps is None else [steps.astype(dtype)])]
    layout = [["a", "b"], [len(starts)], [len(ends)]]
    check_gradients(lambda x, s, e: op.Slice(x, s, e, *rest), [X, *bounds], symbolic=layout, numeric=dtype == "int64")


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_a_step_that_only_the_run_knows(step):
    bounds = [np.array([0 if step > 0 else -1]), np.array([100 if step > 0 else -100])]
    check_gradients(lambda x, s, e, d: op.Slice(x, s, e, np.array([1]), d), [X, *bounds, np.array([step])],
                    symbolic=[["a", "b"], [1], [1], [1]])  # fmt: skip


def test_a_batch_of_unknown_size_costs_one_pad():
    model = gk.trace(gk.grad(lambda x: op.Slice(x, [1], [3], [1]).sum()), gk.spec("float32", ["batch", 5]))
    assert [n.op_type for n in model.graph].count("Pad") == 1
    assert not {"Where", "ScatterND", "ScatterElements", "Gather"} & {n.op_type for n in model.graph}


def test_half_precision():
    got = gk.grad(lambda x: op.Slice(x, [0], [4], [1], [2]).sum())(gk.tensor(X).astype("float16"))
    assert gk.dtypes.name(got.dtype) == "float16"
