"""Every hostile graph, through every preset: right, loadable, the same interface and metadata, no larger, settled."""

from __future__ import annotations

import onnx
import pytest

from graphkit.errors import GraphkitError
from graphkit.optimizers import Report, optimize
from tests.optimizers.hostile.cases import SPARE_BYTES, interface, judged, operators, run, same, stored_bytes
from tests.optimizers.hostile.every import CASES, KINDS
from tests.optimizers.hostile.variants import VARIANTS


def test_there_are_enough_and_their_names_differ():
    assert len(CASES) == sum(map(len, KINDS.values())) >= 130


def settled(name: str, preset: str) -> onnx.ModelProto:
    given = CASES[name]
    before = given.model.SerializeToString(deterministic=True)
    result = optimize(given.model, preset, verify=False)
    assert given.model.SerializeToString(deterministic=True) == before, "the model that was given changed"
    again = optimize(result, preset, verify=False)
    assert operators(again) == operators(result), "a second run changed something"
    assert len(again.graph.initializer) == len(result.graph.initializer)
    return result


@pytest.mark.parametrize("name", CASES)
def test_nothing_goes_wrong_without_verification(name):
    # The passes themselves must be right; verification only proves it.
    assert not judged(CASES[name], settled(name, "inference"))


@pytest.mark.parametrize("name", CASES)
def test_nothing_goes_wrong_in_training(name):
    found = judged(CASES[name], settled(name, "training"))
    found.pop("operators", None)  # what must go is said of inference
    assert not found


# What the web cannot run at all is refused, and why.
NOT_ON_THE_WEB = {"bfloat_sum": "JavaScript has no such tensors", "float4_weight": "needs opset 23"}


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["inference", "web", "cuda", "training", "none"])
@pytest.mark.parametrize("name", CASES)
def test_verification_takes_nothing_back(name, preset):
    report = Report()
    if preset == "web" and name in NOT_ON_THE_WEB:
        with pytest.raises(GraphkitError, match=NOT_ON_THE_WEB[name]):
            optimize(CASES[name].model, preset)
        return
    found = judged(CASES[name], optimize(CASES[name].model, preset, report=report))
    found.pop("operators", None)
    assert not found
    assert not report.dropped


def check_variant(name: str, kind: str, preset: str) -> None:
    """What the graph computes, said in another way: compared with what it computes itself."""
    given = CASES[name]
    made = VARIANTS[kind](given.model) if given.loads else None
    if made is None:
        return
    result = optimize(made, preset, verify=False)
    assert operators(optimize(result, preset, verify=False)) == operators(result), "a second run changed something"
    assert sum(operators(result).values()) <= sum(operators(made).values())
    assert stored_bytes(result) <= stored_bytes(made) + SPARE_BYTES
    assert interface(result) == interface(made)
    got, right = run(result, given.feeds), run(given.model, given.feeds)
    for mine, original in zip(got, right, strict=True):
        for output, array in mine.items():
            place = output.removeprefix("second_given_")
            twin = output if place == output else given.model.graph.output[int(place)].name
            assert twin in given.drawn or same(array, original[twin], given.tolerance), output
    assert given.check is None or given.check(got)


@pytest.mark.parametrize("name", CASES)
def test_said_in_another_way(name):
    kinds = list(VARIANTS)
    check_variant(name, kinds[list(CASES).index(name) % len(kinds)], "inference")


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["inference", "training"])
@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_said_in_every_way(name, kind, preset):
    if (name, kind) == ("sparse_constant", "in_function"):
        pytest.skip("a function holds no sparse constants: one clear error")
    check_variant(name, kind, preset)


WORKED_OUT = [name for name, each in CASES.items() if each.expected]


@pytest.mark.parametrize("name", WORKED_OUT)
def test_the_runtime_agrees_with_what_is_worked_out_by_hand(name):
    given = CASES[name]
    for got, right in zip(run(given.model, given.feeds), given.expected, strict=False):
        assert all(same(got[key], array, max(given.tolerance, 1e-6)) for key, array in right.items())
