"""Models written at other opsets: hostile graphs load and compute the same there, or are refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from graphkit.errors import OperatorError
from graphkit.optimizers import change_opset
from tests.optimizers.conftest import parse
from tests.optimizers.hostile.every import KINDS


def session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def results(model: Any, feeds: Any) -> list[Any]:
    return session(model).run(None, {k: v if isinstance(v, list) else np.asarray(v) for k, v in feeds.items()})


def assert_same(got: Any, right: Any) -> None:
    if isinstance(right, list):
        assert len(got) == len(right)
        for a, b in zip(got, right, strict=True):
            assert_same(a, b)
    elif np.asarray(right).dtype.kind == "f":
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, right)


def runs(case: Any) -> bool:
    """Whether stock ONNX Runtime takes the case as it is, and what it gives follows from the inputs."""
    if not case.loads or case.drawn or case.check is not None:
        return False
    try:
        for feeds in case.feeds:
            results(case.model, feeds)
    except Exception:  # noqa: BLE001 - its errors share no class
        return False
    return bool(case.feeds)


def hold(case: Any, opset: int) -> None:
    try:
        made = change_opset(case.model, opset)
    except OperatorError as error:
        if f"opset {opset}" not in str(error):
            raise
        return
    for feeds in case.feeds:
        assert_same(results(made, feeds), results(case.model, feeds))


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_graphs_at_another_opset(kind):
    for number, case in enumerate(KINDS[kind]):
        if number % 4 == 0 and runs(case):
            hold(case, (11, 13, 18, 26)[number // 4 % 4])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 15, 17, 18, 20, 21, 22, 23, 24, 25, 26])
def test_hostile_graphs_at_every_opset(kind, opset):
    for case in KINDS[kind]:
        if runs(case):
            hold(case, opset)


DRAWS = {
    "RandomNormal": "g (float[3] x) => (float[3] y) {r = RandomNormal<shape=[3]>() y = Add(x, r)}",
    "RandomUniformLike": "g (float[3] x) => (float[3] y) {y = RandomUniformLike(x)}",
    "Bernoulli": "g (float[3] x) => (float[3] y) {y = Bernoulli(x)}",
    "Multinomial": "g (float[1,3] x) => (int32[1,1] y) {y = Multinomial(x)}",
}


@pytest.mark.parametrize("operator", DRAWS)
def test_draws_go_no_further_than_the_runtime(operator):
    model = parse(DRAWS[operator])
    session(change_opset(model, 21))
    with pytest.raises(OperatorError, match=f"at opset 22 .* {operator} does; opset 21 serves"):
        change_opset(model, 22)


def test_text_among_the_constants_is_named_and_not_stumbled_over():
    model = parse('g (string[N] t) => (string[N] y) <string[1] k = {"ä"}> {y = StringConcat(t, k)}', 20)
    with pytest.raises(OperatorError, match=r"StringConcat .* needs opset 20"):
        change_opset(model, 17)
    kept = parse('g (float[2] x) => (float[2] y, string[1] z) <string[1] k = {"ä"}> {y = Abs(x) z = Identity(k)}', 20)
    assert results(change_opset(kept, 17), {"x": np.ones(2, np.float32)})[1].tolist() == ["ä"]
