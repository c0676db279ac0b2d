"""Drawn graphs of any operator: every pass by itself and every preset keep what they compute.

Exact passes are held to every bit but those that the runtime's own order of summation decides; presets that may round
are compared on smooth graphs, where a last bit stays a last bit. A graph that fails is cut down and its text is shown:
kept in ``drawn/regressions`` it is checked for ever after.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from graphkit.optimizers import optimize, passes
from graphkit.optimizers.differences import difference
from tests.optimizers.conftest import random_feeds
from tests.optimizers.drawn.drawing import SIZES, feeds_of
from tests.optimizers.drawn.layer_moves import draw
from tests.optimizers.drawn.shrinking import Feeds, shrunk
from tests.optimizers.hostile.cases import interface, operators, run

REGRESSIONS = sorted((Path(__file__).parent / "drawn" / "regressions").glob("*.txt"))
EXACT = [name for name, made in passes().items() if made.tolerance == 0]
ROUNDING = [name for name in passes() if name not in EXACT]
# What the amplification of a pass's tolerance may come to in a smooth graph.
LOOSE = 2e-3


def problem(model: onnx.ModelProto, feeds: Feeds, tolerance: float, settled: bool = True, **options: Any) -> str:
    """What is wrong with the optimized model; empty where nothing is."""
    expected = run(model, feeds)
    result = optimize(model, verify=False, **options)
    try:
        got = run(result, feeds)
    except Exception as error:  # noqa: BLE001 - whatever the runtime says
        return f"it does not run: {error}"
    for mine, right in zip(got, expected, strict=True):
        for name, array in right.items():
            found, _ = difference(mine[name], array, tolerance)
            if found is not None:
                return f"output {name}: {found}"
    if interface(result) != interface(model):
        return "its interface changed"
    if "Loop" not in operators(model) and sum(operators(result).values()) > sum(operators(model).values()):
        return "it grew"  # a Loop of a few turns may be written out
    again = optimize(result, verify=False, **options)
    return "" if not settled or operators(again) == operators(result) else "a second run changed something"


def check(seed: int, alone: int) -> None:
    """All passes that are exact, ``alone`` passes each by itself, and on smooth graphs the presets.

    With no pass alone, what takes longest is left out too: the preset "training" there, and what "cuda" adds.
    """
    with np.errstate(all="ignore"):
        model = draw(seed)
    if model is None:
        return
    names = [value.name for value in model.graph.input]
    feeds = [{name: feeds_of(turn)[name] for name in names} for turn in range(len(SIZES))]
    try:
        run(model, feeds)
    except Exception:  # noqa: BLE001 - together, the nodes ask the runtime for a shape that it does not allow
        return
    rng = np.random.default_rng(seed)
    smooth = seed % 3 == 0
    tries: list[tuple[float, dict[str, Any]]] = [
        (0.0, {"passes": EXACT}),
        *([(0.0, {"preset": "training", "skip": ROUNDING})] if alone else []),
        *(
            (0.0, {"passes": [str(name), "prune"], "settled": False})
            for name in rng.choice(EXACT, alone, replace=False)
        ),
    ]
    if smooth:
        tries += [(LOOSE, {"preset": preset}) for preset in ("inference", "training", "cuda")[: 3 if alone else 1]]
        tries += [
            (LOOSE, {"passes": [str(name), "prune"], "settled": False})
            for name in rng.choice(ROUNDING, min(alone, len(ROUNDING)))
        ]
    for tolerance, options in tries:
        if said := problem(model, feeds, tolerance, **options):
            small = shrunk(model, feeds, lambda m, f: bool(problem(m, f, tolerance, **options)))  # noqa: B023
            pytest.fail(f"seed {seed}, {options}: {said}\n{onnx.printer.to_text(small)}")


@pytest.mark.parametrize("seed", range(100))
def test_drawn_graph(seed):
    check(seed, alone=0)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(40))
def test_many_drawn_graphs(block):
    for seed in range(100 + 50 * block, 150 + 50 * block):
        check(seed, alone=6)


@pytest.mark.parametrize("path", REGRESSIONS, ids=[path.stem for path in REGRESSIONS])
def test_graph_that_failed_once(path):
    model = onnx.parser.parse_model(path.read_text())
    feeds = [random_feeds(model, size) for size in SIZES]
    assert not problem(model, feeds, 0.0, passes=EXACT)
    assert not problem(model, feeds, LOOSE, preset="inference")
    assert not problem(model, feeds, LOOSE, preset="training")


def test_a_graph_that_fails_is_cut_down():
    model = next(
        made for made in map(draw, range(20, 200)) if made is not None and {"MatMul", "Conv"} <= set(operators(made))
    )
    names = [value.name for value in model.graph.input]
    feeds = [{name: feeds_of(turn)[name] for name in names} for turn in range(len(SIZES))]
    small = shrunk(model, feeds, lambda m, _: "MatMul" in operators(m))
    assert [node.op_type for node in small.graph.node if node.op_type != "Constant"] == ["MatMul"]
