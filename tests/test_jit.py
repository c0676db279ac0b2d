"""jit: the same numbers as without it, one trace a signature, gradients of every order, state, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GradientError, TraceError
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)
X, W = rng.normal(size=(4, 3)).astype("f"), rng.normal(size=(3, 2)).astype("f")

FUNCTIONS = {
    "a product": (lambda x, w: op.Tanh(x @ w), [X, W]),
    "a tree": (lambda x, w: {"y": x @ w, "s": [(x * x).sum(), op.Exp(w)]}, [X, W]),
    "branches": (lambda x, w: gk.cond(x.sum() > 0, lambda: x @ w, lambda: op.Sin(x @ w)), [X, W]),
    "a scan": (lambda x, w: gk.scan(lambda h, e: (op.Tanh(h + e @ w), h), w[0], x)[1], [X, W]),
    "an input as it is": (lambda x, w: (x, x @ w, w), [X, W]),
    "a layer of LSTM": (
        lambda x, r: op.LSTM(op.Unsqueeze(x, [1]), op.Concat(r, r, axis=2), r, hidden_size=2),
        [rng.normal(size=(3, 4)).astype("f"), rng.normal(size=(1, 8, 2)).astype("f")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_without(name):
    f, inputs = FUNCTIONS[name]
    compiled = gk.jit(f)

    def loss(function):
        return lambda *a: sum(((t * t).sum() for t in gk.tree.flatten(function(*a))[0]), gk.tensor(0.0))

    for _ in range(2):
        expected, got = f(*map(gk.tensor, inputs)), compiled(*map(gk.tensor, inputs))
        leaves, structure = gk.tree.flatten(expected)
        mine, my_structure = gk.tree.flatten(got)
        assert structure == my_structure
        for a, b in zip(leaves, mine, strict=True):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-5, atol=1e-6)
        numbers = list(range(len(inputs)))
        one, two = (gk.grad(loss(function), numbers)(*map(gk.tensor, inputs)) for function in (f, compiled))
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-4, atol=1e-5)
    assert compiled.traces == 1


def test_every_order():
    compiled = gk.jit(lambda x, w: (op.Sin(x @ w) * op.Exp(w[0])).sum())
    check_gradients(compiled, [X, W], order=2)
    cube = gk.jit(lambda x: x * x * x)
    assert gk.grad(gk.grad(gk.grad(cube)))(gk.tensor(2.0)).item() == pytest.approx(6.0)
    _, pull = gk.vjp(cube, gk.tensor([1.0, 2.0]))
    assert pull(gk.tensor([1.0, 1.0]))[0].tolist() == [3.0, 12.0]
    assert gk.jit(gk.grad(cube))(gk.tensor(2.0)).item() == pytest.approx(12.0)


def test_signatures():
    calls = []

    @gk.jit
    def f(x, power=1, *, shift=None):
        calls.append(1)
        y = x
        for _ in range(power - 1):
            y = y * x
        return y if shift is None else y + shift

    assert f(gk.tensor([2.0])).tolist() == [2.0]
    assert f(gk.tensor([3.0])).tolist() == [3.0]
    assert f(gk.tensor([3.0]), 2).tolist() == [9.0]
    assert f(np.array([3.0], dtype="f"), 2, shift=gk.tensor(1.0)).tolist() == [10.0]
    assert f(gk.tensor([3.0, 4.0])).tolist() == [3.0, 4.0]
    assert f(gk.tensor([3], dtype="int64")).tolist() == [3]
    assert len(calls) == f.traces == 5


def test_dynamic_axes():
    f = gk.jit(lambda x, w: op.Relu(x @ w), dynamic={0: {0: "batch"}})
    for n in (1, 4, 7):
        x = rng.normal(size=(n, 3)).astype("f")
        np.testing.assert_allclose(f(x, W).numpy(), np.maximum(x @ W, 0), rtol=1e-5, atol=1e-6)
        gk.grad(lambda a: f(a, W).sum())(gk.tensor(x))
    assert f.traces == 1


def test_outer_tensors_are_inputs():
    p = gk.tensor(W, requires_grad=True, name="p")
    f = gk.jit(lambda x: (x @ p).sum())
    first = f(gk.tensor(X))
    first.backward()
    np.testing.assert_allclose(p.grad.numpy(), np.broadcast_to(X.sum(0)[:, None], W.shape), rtol=1e-5)
    p.assign(W * 2)
    assert f(gk.tensor(X)).item() == pytest.approx(2 * first.item(), rel=1e-5)
    assert f.traces == 1


def test_training_loop():
    w = gk.tensor(np.zeros((3, 1), dtype="f"), requires_grad=True)
    target = X @ np.array([[1.0], [-2.0], [0.5]], dtype="f")
    loss = gk.jit(lambda x, y: ((x @ w - y) ** 2).mean())
    for _ in range(300):
        w.zero_grad()
        loss(X, target).backward()
        w.assign(w.numpy() - 0.2 * w.grad.numpy())
    assert loss(X, target).item() < 1e-3


def test_state_is_written_back():
    total = gk.tensor(0.0, name="total")

    @gk.jit
    def add(x):
        total.assign(total + x.sum())
        return total * 1.0

    add(gk.tensor([1.0, 2.0]))
    assert add(gk.tensor([1.0, 2.0])).item() == 6.0
    assert total.item() == 6.0


def test_in_a_trace_it_is_part_of_the_graph():
    f = gk.jit(lambda x: op.Relu(x) * 2.0)
    model = gk.trace(lambda x: f(x) + 1.0, gk.spec("float32", ["n"]))
    assert [n.op_type for n in model.graph] == ["Relu", "Mul", "Add"]


def test_random_draws_are_not_drawn_twice():
    f = gk.jit(lambda x: op.Dropout(x, 0.5, True))
    x = gk.tensor(np.ones(200, dtype="f"), requires_grad=True)
    y = f(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    assert len(np.unique(f(gk.tensor(np.ones(200, dtype="f"))).numpy())) == 2


def test_one_result_twice():
    def both(x):
        y = op.Exp(x)
        return y, y * 2.0, y

    x = gk.tensor([0.5], requires_grad=True)
    a, b, c = gk.jit(both)(x)
    (a + b * 10.0 + c * 100.0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 121 * np.exp([0.5]), rtol=1e-5)


def test_gradient_of_some_results():
    f = gk.jit(lambda x: (op.Exp(x), op.Sin(x)))
    x = gk.tensor([0.5], requires_grad=True)
    f(x)[1].sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.cos([0.5]), rtol=1e-5)


def test_a_modules_mode_is_part_of_the_signature():
    drop = gk.nn.Dropout(0.5)
    f = gk.jit(lambda x: drop(x))
    x = gk.tensor(np.ones(100, dtype="f"))
    assert (f(x).numpy() == 0).any()
    drop.eval()
    np.testing.assert_array_equal(f(x).numpy(), x.numpy())
    drop.train()
    assert (f(x).numpy() == 0).any()
    assert f.traces == 2


def test_a_second_gradient_of_random_draws_is_refused():
    f = gk.jit(lambda x: (op.Dropout(x * x, 0.5, True)).sum())
    x = gk.tensor(np.ones(8, dtype="f"))
    assert gk.grad(f)(x).numpy().shape == (8,)
    with pytest.raises(GradientError, match="draws at random"):
        gk.grad(lambda a: gk.grad(f)(a).sum())(x)


def test_without_a_kernel():
    x = gk.tensor(np.array([0.5, 1.0]), dtype="float64")
    np.testing.assert_allclose(gk.jit(lambda a: op.Asin(a))(x).numpy(), np.arcsin(x.numpy()), rtol=1e-6)


def test_no_gradient_is_kept_where_none_is_asked():
    f = gk.jit(lambda x: x * 2.0)
    x = gk.tensor([1.0], requires_grad=True)
    with gk.no_grad():
        assert not f(x).requires_grad
    assert f(x).requires_grad


def test_errors():
    with pytest.raises(TraceError, match=r"test_jit\.py"):
        gk.jit(lambda x: x if x.sum() > 0 else -x)(gk.tensor([1.0]))
    with pytest.raises(TraceError, match="hashable"):
        gk.jit(lambda x, o: x)(gk.tensor([1.0]), bytearray(b"a"))
