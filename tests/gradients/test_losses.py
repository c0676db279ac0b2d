"""The two loss operators: label types, weights, ignored labels, reductions, extra dims, both outputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import graphkit as gk
from graphkit.gradients import losses
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)
REDUCTIONS = ["none", "mean", "sum"]
IGNORED = [None, 1, -1]


def _inputs(extra=(), ignored=None, weighted=False, labels="int64"):
    scores = rng.normal(size=(4, 3, *extra))
    classes = rng.integers(0, 3, size=(4, *extra)).astype(labels)
    if ignored == -1:
        classes.flat[0] = -1
    return [scores, classes, *([np.array([0.5, 1.5, 2.0])] if weighted else [])]


def _attributes(reduction, ignored):
    return {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})


SETTINGS = list(itertools.product(REDUCTIONS, IGNORED, [False, True]))
CASES = list(itertools.product(REDUCTIONS, IGNORED, [False, True], [(), (3,), (2, 2)]))


@pytest.mark.parametrize(("reduction", "ignored", "weighted", "extra"), CASES, ids=str)
@pytest.mark.parametrize("name", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_every_setting(name, reduction, ignored, weighted, extra):
    inputs = _inputs(extra, ignored, weighted)
    f = lambda *x: getattr(op, name)(*x, **_attributes(reduction, ignored))
    simple = extra == (3,) and ignored != 1
    layout = [["n", 3, *(f"d{n}" for n in range(len(extra)))], ["n", *(f"d{n}" for n in range(len(extra)))], [3]]
    traced = simple or (not extra and weighted)
    check_gradients(f, inputs, order=2 if simple else 1, float32=traced, symbolic=layout[: len(inputs)])


@pytest.mark.parametrize(
    ("reduction", "ignored", "weighted"), list(itertools.product(REDUCTIONS, IGNORED, [False, True]))
)
def test_the_second_output_too(reduction, ignored, weighted):
    inputs = _inputs((2,), ignored, weighted)
    f = lambda *x: op.SoftmaxCrossEntropyLoss(*x, outputs=2, **_attributes(reduction, ignored))
    check_gradients(f, inputs, float32=ignored is None)
    check_gradients(lambda *x: f(*x)[1], inputs, wrt=[0], float32=False)


@pytest.mark.parametrize("labels", ["int32", "int64"])
@pytest.mark.parametrize("classes", ["known", "unknown"])
def test_label_types_and_unknown_classes(labels, classes):
    inputs = _inputs((2,), None, True, labels)
    layout = [["n", 3 if classes == "known" else "c", 2], ["n", 2], [3 if classes == "known" else "c"]]
    check_gradients(lambda *x: op.SoftmaxCrossEntropyLoss(*x), inputs, symbolic=layout)


@pytest.mark.parametrize(("reduction", "ignored", "weighted"), SETTINGS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_way_of_many_classes(reduction, ignored, weighted, outputs, monkeypatch):
    monkeypatch.setattr(losses, "LITERAL_CLASSES", 0)
    inputs = _inputs((2,), ignored, weighted)
    f = lambda *x: op.SoftmaxCrossEntropyLoss(*x, outputs=outputs, **_attributes(reduction, ignored))
    layout = [["n", 3, "d"], ["n", "d"], [3]][: len(inputs)]
    order = 2 if outputs == 1 and ignored == -1 else 1
    check_gradients(f, inputs, wrt=[0], order=order, symbolic=layout, float32=outputs == 1)


def test_many_classes():
    scores, classes = rng.normal(size=(2, 1500)), np.array([3, 1499])
    got = gk.grad(lambda x: op.SoftmaxCrossEntropyLoss(x, classes))(gk.tensor(scores).astype("float64")).numpy()
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected[[0, 1], classes] -= 1
    np.testing.assert_allclose(got, expected / 2, atol=1e-12)


def test_a_batch_of_ignored_labels_changes_nothing():
    f = lambda x: op.SoftmaxCrossEntropyLoss(x, np.array([1, 1]), ignore_index=1)
    assert gk.grad(f)(gk.tensor([[0.0, 1.0], [2.0, 3.0]])).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("ignored", [None, -1])
def test_half_precision_counts_beyond_2048(ignored):
    n = 3000
    scores, classes = np.zeros((n, 2), np.float16), np.zeros(n, np.int64)
    f = lambda x: (
        op.SoftmaxCrossEntropyLoss(x * np.float16(1), classes, **_attributes("mean", ignored)) * np.float16(1000)
    )
    got = gk.grad(f)(gk.tensor(scores)).numpy()
    assert got.dtype == np.float16
    np.testing.assert_allclose(got[:, 0], -0.5 * 1000 / n, rtol=2e-3)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("reduction", "ignored", "weighted"), list(itertools.product(REDUCTIONS, [None, 1], [False, True]))
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_as_pytorch(reduction, ignored, weighted, dtype):
    torch = pytest.importorskip("torch")
    scores, classes, *weights = _inputs((3,), ignored, weighted)
    scores = scores.astype(dtype)
    theirs = torch.tensor(scores.astype(np.float32), requires_grad=True)
    weight = torch.tensor(weights[0], dtype=torch.float32) if weights else None
    loss = torch.nn.functional.cross_entropy(theirs, torch.tensor(classes), weight, reduction=reduction,
                                             ignore_index=-100 if ignored is None else ignored)  # fmt: skip
    loss.sum().backward()
    given = [gk.tensor(w.astype(dtype)) for w in weights]
    f = lambda x: (
        op.SoftmaxCrossEntropyLoss(x, classes, *given, **_attributes(reduction, ignored)).astype("float32").sum()
    )
    ours = gk.grad(f)(gk.tensor(scores)).numpy()
    assert ours.dtype == dtype
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=tolerance, atol=tolerance)


def test_few_nodes():
    f = gk.grad(lambda x, y: op.SoftmaxCrossEntropyLoss(x, y))
    fixed = gk.trace(f, gk.spec("float32", [32, 10]), gk.spec("int64", [32]))
    free = gk.trace(f, gk.spec("float32", ["n", 10]), gk.spec("int64", ["n"]))
    assert len(fixed.graph) <= 9 and len(free.graph) <= 12


LAYOUTS = {"rows": ((0, 5), -1), "steps": ((2, 0, 5), -1), "pictures": ((0, 5, 2, 3), 1)}


@pytest.mark.parametrize("settings", [{}, {"ignore_index": 1}, {"weight": np.ones(5, np.float32)}])
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_no_samples(layout, reduction, settings):
    shape, axis = LAYOUTS[layout]
    labels = np.zeros([d for n, d in enumerate(shape) if n != axis % len(shape)], np.int64)
    f = lambda x: gk.nn.cross_entropy(x, labels, axis=axis, reduction=reduction, **settings)
    x = gk.tensor(np.zeros(shape, np.float32))
    assert f(x).sum().item() == 0
    assert f(x).shape == (labels.shape if reduction == "none" else ())
    assert gk.grad(lambda x: f(x).sum())(x).shape == shape


@pytest.mark.parametrize("name", ["nll", "mse", "l1", "huber", "binary_cross_entropy_with_logits"])
def test_a_graph_of_no_samples(name):
    labels = gk.spec("int64", ["n"]) if name == "nll" else gk.spec("float32", ["n", 5])
    loss = lambda x, y: getattr(gk.nn, name)(x, y, reduction="sum")
    model = gk.trace(
        lambda x, y: (loss(x, y), gk.grad(loss)(x, y)), gk.spec("float32", ["n", 5]), labels, input_names=["x", "y"]
    )
    feeds = {"x": np.zeros((0, 5), np.float32), "y": np.zeros((0,) if name == "nll" else (0, 5), labels.dtype)}
    value, gradient = gk.run(model, feeds, optimizations=False).values()
    assert value == 0
    assert gradient.shape == (0, 5)
