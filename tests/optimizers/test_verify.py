"""The proof: what the result is compared on, what is said where it cannot be, and how the node at fault is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphkit.errors import InputError, PassError
from graphkit.optimizers import Report, optimize
from graphkit.optimizers.base import Outcome, Pass, _registry
from graphkit.optimizers.context import Context
from graphkit.optimizers.feeds_for import Feeds, candidates
from tests.optimizers.conftest import parse

WEIGHTS = "float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}"


def made_up(text: str, seed: int) -> Feeds:
    model = ir.from_proto(parse(text))
    ctx = Context(model, training=False, slack=0)
    ctx.facts.sweep(ctx.graphs())
    return next(candidates(model, ctx, seed))


def test_two_sizes_for_each_symbolic_dim():
    text = "g (float[N,M,3] x, float[M] y) => (float[N,M,3] z) {z = Mul(x, x)}"
    first, second = made_up(text, 0), made_up(text, 1)
    assert [first["x"].shape, second["x"].shape] == [(2, 3, 3), (3, 4, 3)]
    assert [first["y"].shape, second["y"].shape] == [(3,), (4,)]
    assert (first["x"] < 0).any() and (second["x"] > 0).all()


INDICES = {
    "Gather": ("int64[200] i", "y = Gather(w, i)", 3),
    "Gather, other axis": ("int64[200] i", "y = Gather<axis = 1>(w, i)", 4),
    "Gather, behind moves": ("int32[200,1] i", "a = Cast<to = 7>(i) b = Reshape(a, s) y = Gather(w, b)", 3),
    "Gather from an input": ("int64[200] i, float[N] v", "y = Gather(v, i)", {0: 2, 1: 3}),
    "Gather from two": ("int64[200] i, float[N] v", "a = Concat<axis=0>(v, v) y = Gather(a, i)", {0: 4, 1: 6}),
    "GatherElements": ("int64[200,4] i", "y = GatherElements(w, i)", 3),
    "GatherND": ("int64[200,2] i", "y = GatherND(w, i)", 3),
    "ScatterND": ("int64[200,2] i, float[200] u", "y = ScatterND(w, i, u)", 3),
    "OneHot": ("int64[200] i", "d = Constant<value_int = 5>() y = OneHot(i, d, w)", 5),
    "labels": ("int64[200] i, float[200,7] x", "y = SoftmaxCrossEntropyLoss(x, i)", 7),
    "two readers": ("int64[200] i", "a = Gather<axis = 1>(w, i) y = Gather(w, i)", 3),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", INDICES)
def test_integers_are_valid_indices(name, seed):
    inputs, nodes, bound = INDICES[name]
    text = f"g ({inputs}) => (float[?] y) <{WEIGHTS}, int64[1] s = {{-1}}> {{{nodes}}}"
    limit = bound if isinstance(bound, int) else bound[seed]
    assert set(np.unique(made_up(text, seed)["i"])) == set(range(limit))


def test_the_first_sizes_that_the_model_takes():
    report = Report()
    graph = "g (float[N,1,H,W] x) => (float[A,B,C,D] y) {a = MaxPool<kernel_shape=[20,20]>(x) y = Identity(a)}"
    optimize(parse(graph), report=report)
    assert report.verified


# Where there is nothing to compare with

STRANGER = "g (float[N] x) => (float[N] y) {a = Identity(x) y = my.own.Op(a)}"
NEVER_RUNS = "g (float[2] x) => (float[3] y) <float[3] w = {1,2,3}> {a = Identity(x) y = Add(a, w)}"
UNKNOWN_RANK = "g (float[] x, float[N] z) => (float[N] y) {a = Identity(z) y = Abs(a)}"
ALONE = {
    "no such operator": (STRANGER, "itself does not load in ONNX Runtime: .*Op"),
    "shapes that do not fit": (
        NEVER_RUNS,
        "itself does not (run on any inputs that were made up|load in ONNX Runtime)",
    ),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("options", [{}, {"verify": True}, {"strict": True}], ids=["", "verify", "strict"])
def test_an_original_that_does_not_run(name, options):
    graph, words = ALONE[name]
    model, report = parse(graph, imports=', "my.own": 1'), Report()
    if options:
        with pytest.raises(PassError, match=f"cannot be verified: the original {words}"):
            optimize(model, **options)
    else:
        result = optimize(model, report=report)
        assert len(result.graph.node) == 1
        assert not report.verified
        assert re.search(f"the original {words}", report.note)


def test_inputs_that_do_not_fit():
    with pytest.raises(InputError, match=r"input 'x' takes float32\[N\]"):
        optimize(parse("g (float[N] x) => (float[N] y) {y = Abs(x)}"), inputs={"x": np.zeros((2, 2), np.float32)})


# The node at fault


@pytest.fixture
def wrong_beyond_three() -> Iterator[None]:
    """A pass that takes every Clip for its input, which is wrong where the bound is below what goes in."""

    def rewrite(ctx: Context, node: ir.Node) -> Outcome:
        source = node.inputs[0]
        if source is None or not ctx.replace(node.outputs[0], source):
            return "it is an output"
        ctx.remove(node)
        return True

    _registry["wrong"] = Pass("wrong", "Wrong.", "None.", 0.0, True, frozenset({"inference"}), ("Clip",), rewrite)
    yield
    del _registry["wrong"]


@pytest.mark.parametrize("wrong", [0, 1, 4, 6])
def test_the_node_at_fault_is_named(wrong_beyond_three, wrong):
    bounds = ["1000.0" if number != wrong else "0.5" for number in range(7)]
    constants = ", ".join(f"float b{n} = {{{bound}}}" for n, bound in enumerate(bounds))
    clips = " ".join(f"c{n} = Clip(x, , b{n})" for n in range(7))
    total = f"y = Sum({', '.join(f'c{n}' for n in range(7))})"
    model = parse(f"g (float[N] x) => (float[N] y) <{constants}> {{{clips} {total}}}")
    for number, node in enumerate(model.graph.node[:-1]):
        node.name = f"clip {number}"
    report = Report()
    result = optimize(model, passes=["wrong"], report=report)
    assert f"(at node 'clip {wrong}')" in report.dropped["wrong"]
    assert report.verified
    assert [node.op_type for node in result.graph.node] == ["Clip"] * 7 + ["Sum"]
    with pytest.raises(PassError, match=f"'wrong' changed what the model computes.*'clip {wrong}'"):
        optimize(model, passes=["wrong"], strict=True)


def test_the_original_is_not_changed_by_the_search(wrong_beyond_three):
    model = parse("g (float[N] x) => (float[N] y) <float b = {0.1}> {a = Clip(x, , b) y = Abs(a)}")
    before = model.SerializeToString()
    optimize(model)
    assert model.SerializeToString() == before
    assert onnx.checker.check_model(model) is None
