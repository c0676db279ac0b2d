"""The patterns that benchmarks.patterns times are all rewritten, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit.optimizers
from benchmarks.patterns import PATTERNS, measure
from graphkit.optimizers import Report
from tests.optimizers.conftest import operators, run


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_is_rewritten(name):
    pattern, report = PATTERNS[name](), Report()
    result = graphkit.optimizers.optimize(pattern.model, report=report, strict=True)
    assert operators(result) != operators(pattern.model)
    assert not report.dropped
    plain, better = (run(model, pattern.feeds)["y"] for model in (pattern.model, result))
    np.testing.assert_allclose(better, plain, rtol=1e-4, atol=1e-5)


def test_what_is_measured():
    row = measure(PATTERNS["leaky"](), 2)
    assert row["nodes_after"] < row["nodes_before"]
    assert row["ratio"] > 0
    assert row["largest_difference"] == 0
