"""grad and its relatives: nested in each other, inside traces, around closures, against what is known by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GradientError
from graphkit.runtime import run
from graphkit.testing import check_gradients

F = np.float32
X = np.array([0.5, -1.5, 2.0], F)


def cube(x: Any) -> Any:
    return (x * x * x).sum()


def everywhere(f: Any, *values: Any, tolerance: float = 1e-6) -> list[Any]:
    """What f gives eagerly; asserted equal from its traces with static and with symbolic dims."""
    eager = [t.numpy() for t in gk.tree.flatten(f(*[gk.tensor(v) for v in values]))[0]]
    names = [f"x{n}" for n in range(len(values))]
    for symbolic in (False, True):
        specs = [
            gk.spec(v.dtype, [f"d{n}{k}" for k in range(v.ndim)] if symbolic else v.shape) for n, v in enumerate(values)
        ]
        model = gk.trace(f, *specs, input_names=names)
        got = run(model, dict(zip(names, values, strict=True)), optimizations=False)
        for e, g in zip(eager, got.values(), strict=True):
            np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance)
    return eager


HAND = [
    ("grad", gk.grad(cube), (X,), [3 * X**2]),
    ("second", gk.grad(lambda x: gk.grad(cube)(x).sum()), (X,), [6 * X]),
    ("third", gk.grad(lambda x: gk.grad(lambda y: gk.grad(cube)(y).sum())(x).sum()), (X,), [np.full(3, 6, F)]),
    ("value_and_grad", gk.value_and_grad(cube), (X,), [(X**3).sum(), 3 * X**2]),
    ("two arguments", gk.grad(lambda x, y: (x * y * y).sum(), argnums=(0, 1)), (X, X + 1),
        [(X + 1) ** 2, 2 * X * (X + 1)]),
    ("the last argument", gk.grad(lambda x, y: (x * y).sum(), argnums=-1), (X, X + 1), [X]),
    ("vjp", lambda x: gk.vjp(lambda y: y * y, x)[1](x)[0], (X,), [2 * X * X]),
    ("jvp", lambda x: gk.jvp(lambda y: y * y * y, [x], [x])[1], (X,), [3 * X**3]),
    ("hvp", lambda x: gk.hvp(cube, [x], [x]), (X,), [6 * X * X]),
    ("grad of hvp", gk.grad(lambda x: gk.hvp(lambda y: (y**4).sum(), [x], [x]).sum()), (X,), [36 * X**2]),
    ("jvp of grad", lambda x: gk.jvp(gk.grad(cube), [x], [x])[1], (X,), [6 * X * X]),
    ("jvp of jvp", lambda x: gk.jvp(lambda y: gk.jvp(lambda z: z * z * z, [y], [x])[1], [x], [x])[1], (X,), [6 * X**3]),
    ("grad of vjp", gk.grad(lambda x: gk.vjp(lambda y: y * y * y, x)[1](x)[0].sum()), (X,), [9 * X**2]),
    ("grad of checkpoint", gk.grad(gk.checkpoint(cube)), (X,), [3 * X**2]),
    ("second through checkpoint", gk.grad(lambda x: gk.grad(gk.checkpoint(cube))(x).sum()), (X,), [6 * X]),
    ("has_aux", gk.grad(lambda x: (cube(x), x * 2), has_aux=True), (X,), [3 * X**2, 2 * X]),
    ("a tree", gk.grad(lambda p: (p["w"] * p["w"]).sum() + p["b"][0].sum() * 3), ({"w": X, "b": [X]},),
        [2 * X, np.full(3, 3, F)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "values", "expected"), HAND, ids=[h[0] for h in HAND])
def test_what_is_known_by_hand(name: str, f: Any, values: Any, expected: list[Any]) -> None:
    if isinstance(values[0], dict):
        got = [t.numpy() for t in gk.tree.flatten(f(gk.tree.map(gk.tensor, values[0])))[0]]
    else:
        got = everywhere(f, *values)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5)


STATIC = [
    ("jacobian", gk.jacobian(lambda x: x[:2] * x[1:]), [[-1.5, 0.5, 0.0], [0.0, 2.0, -1.5]]),
    ("jacobian of a scalar", gk.jacobian(cube), 3 * X**2),
    ("hessian", gk.hessian(cube), np.diag(6 * X)),
    ("hessian of a product", gk.hessian(lambda x: x[0] * x[1] * x[2]), [[0, 2, -1.5], [2, 0, 0.5], [-1.5, 0.5, 0]]),
    ("jacobian of grad", gk.jacobian(gk.grad(cube)), np.diag(6 * X)),
    ("vmap", gk.vmap(lambda x: x * x), X * X),
    ("grad of vmap", gk.grad(lambda x: gk.vmap(lambda y: y * y * y)(x).sum()), 3 * X**2),
    ("vmap of grad", gk.vmap(gk.grad(lambda x: x * x * x)), 3 * X**2),
    ("vmap of vmap", lambda x: gk.vmap(lambda a: gk.vmap(lambda b: a * b)(x))(x), np.outer(X, X)),
    ("vmap of two axes", lambda x: gk.vmap(lambda a, b: a + b, in_axes=(0, None))(x, x), X[:, None] + X),
]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "expected"), STATIC, ids=[s[0] for s in STATIC])
def test_matrices_of_derivatives_and_maps(name: str, f: Any, expected: Any) -> None:
    eager = f(gk.tensor(X)).numpy()
    np.testing.assert_allclose(eager, np.array(expected, F), rtol=1e-6)
    (got,) = run(gk.trace(f, gk.spec("float32", [3])), {"x": X}, optimizations=False).values()
    np.testing.assert_allclose(got, eager, rtol=1e-6)


def test_nested_variables_are_not_confused() -> None:
    # d/dx [x d/dy (x + y)] = d/dx x = 1, where mixing up x and y gives 2
    def f(x: Any) -> Any:
        return x * gk.grad(lambda y: x + y)(x * 1.0)

    assert gk.grad(f)(gk.tensor(3.0)).item() == 1.0
    # d/dx of x * (d/dy x y) = d/dx x^2 = 2 x
    assert gk.grad(lambda x: x * gk.grad(lambda y: x * y)(gk.tensor(2.0)))(gk.tensor(3.0)).item() == 6.0
    (traced,) = run(gk.trace(gk.grad(f), gk.spec("float32", [])), {"x": F(3)}).values()
    assert traced == 1.0
    # the same value for both variables
    assert gk.grad(lambda x: gk.grad(lambda y: x * y * y)(x))(gk.tensor(3.0)).item() == 12.0  # 2 x^2
    (y, dy) = gk.jvp(
        lambda x: x * gk.jvp(lambda z: x + z, [gk.tensor(1.0)], [gk.tensor(1.0)])[1], [gk.tensor(5.0)], [gk.tensor(1.0)]
    )
    assert (y.item(), dy.item()) == (5.0, 1.0)


def test_closures_over_tensors_that_require_gradients() -> None:
    w = gk.tensor([2.0, 3.0], requires_grad=True)
    x = gk.tensor([1.0, 4.0])
    inner = gk.grad(lambda x: (w * x * x).sum())(x)
    assert inner.tolist() == [4.0, 24.0]
    assert w.grad is None  # grad() does not write into .grad
    inner.sum().backward()  # but its result depends on w, as any other
    assert w.grad is not None
    assert w.grad.tolist() == [2.0, 8.0]


def test_gradients_with_respect_to_a_tensor_that_requires_one() -> None:
    w = gk.tensor([2.0, 3.0], requires_grad=True)
    assert gk.grad(cube)(w).tolist() == [12.0, 27.0]
    assert w.grad is None


def test_backward_inside_grad_and_grad_inside_backward() -> None:
    w = gk.tensor(2.0, requires_grad=True)

    def f(x: Any) -> Any:
        (w * w).backward()
        return x * w.detach()

    assert gk.grad(f)(gk.tensor(1.0)).item() == 2.0
    assert w.grad is not None
    assert w.grad.item() == 4.0


def test_no_grad_around_grad_does_not_stop_it() -> None:
    with gk.no_grad():
        g = gk.grad(cube)(gk.tensor(X))
    np.testing.assert_allclose(g.numpy(), 3 * X**2)
    assert not g.requires_grad

    def traced(x: Any) -> Any:
        with gk.no_grad():
            return gk.grad(cube)(x)

    (got,) = run(gk.trace(traced, gk.spec("float32", ["n"])), {"x": X}).values()
    np.testing.assert_allclose(got, 3 * X**2)


def test_a_pullback_serves_many_cotangents_and_outlives_its_function() -> None:
    y, pull = gk.vjp(lambda a, b: (a * b, a.sum()), gk.tensor(X), gk.tensor(X + 1))
    assert [t.tolist() for t in y] == [(X * (X + 1)).tolist(), X.sum().item()]
    for scale in (1.0, 2.0):
        a, b = pull((gk.tensor(X * 0 + F(scale)), gk.tensor(1.0)))
        np.testing.assert_allclose(a.numpy(), scale * (X + 1) + 1)
        np.testing.assert_allclose(b.numpy(), scale * X)
    with pytest.raises(GradientError, match="another structure"):
        pull(gk.tensor(1.0))


def test_jvp_of_a_tree_with_integers_and_a_tangent_for_every_primal() -> None:
    _, dy = gk.jvp(lambda x: {"square": x * x, "whole": x.astype("int64")}, [gk.tensor(X)], [gk.tensor(X)])
    assert dy["square"].tolist() == (2 * X * X).tolist()
    assert (dy["whole"].tolist(), dy["whole"].dtype.name) == ([0, 0, 0], "int64")
    for f in (gk.jvp, gk.hvp):
        with pytest.raises(GradientError, match=r"got 1 tangents for 2 primals \(.*test_transforms.py"):
            f(lambda a, b: (a * b).sum(), [gk.tensor(X), gk.tensor(X)], [gk.tensor(X)])
    with pytest.raises(GradientError, match=r"the cotangent has shape \[2\], its output \[3\]"):
        gk.jvp(lambda x: x * x, [gk.tensor(X)], [gk.tensor(X[:2])])


def test_an_argument_that_vjp_and_jacobian_do_not_reach_has_zeros() -> None:
    _, pull = gk.vjp(lambda a, b: a * 2.0, gk.tensor(X), gk.tensor(X))
    assert pull(gk.tensor(X))[1].tolist() == [0.0, 0.0, 0.0]
    assert gk.jacobian(lambda x: gk.op.Floor(x))(gk.tensor(X)).tolist() == np.zeros((3, 3)).tolist()


# custom_vjp


def clipped(low: float, high: float) -> Any:
    @gk.custom_vjp
    def straight_through(x: Any) -> Any:
        return gk.op.Clip(x, low, high)

    straight_through.defvjp(lambda x: (gk.op.Clip(x, low, high), None), lambda saved, g: (g * 10.0,))
    return straight_through


def test_custom_vjp_is_used_in_every_way() -> None:
    f = clipped(-1.0, 1.0)
    x = gk.tensor(X, requires_grad=True)
    f(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [10.0] * 3
    (got,) = everywhere(gk.grad(lambda x: f(x * 2.0).sum()), X)
    assert got.tolist() == [20.0] * 3
    assert gk.grad(gk.checkpoint(lambda x: f(x).sum()))(gk.tensor(X)).tolist() == [10.0] * 3


def test_custom_vjp_saves_tensors_and_is_differentiated_again() -> None:
    @gk.custom_vjp
    def power(x: Any, n: Any) -> Any:
        return x**3

    power.defvjp(lambda x, n: (x * x * x, x), lambda x, g: (g * 3.0 * x * x, None))
    (first,) = everywhere(gk.grad(lambda x: power(x, gk.tensor(3)).sum()), X)
    np.testing.assert_allclose(first, 3 * X**2, rtol=1e-6)


def test_custom_vjp_without_a_rule_says_what_to_write() -> None:
    @gk.custom_vjp
    def half_done(x: Any) -> Any:
        return x

    with pytest.raises(GradientError, match=r"give the rule first, with half_done\.defvjp"):
        half_done(gk.tensor(1.0))


# checkpoint


def test_checkpoint_keeps_nothing_inside_and_reaches_what_it_closes_over() -> None:
    w = gk.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    calls = []

    def layer(x: Any) -> Any:
        calls.append(1)
        return gk.op.Tanh(gk.op.Tanh(x @ w) @ w)

    x = gk.tensor([[0.1, -0.2]], requires_grad=True)
    y = gk.checkpoint(layer)(x)
    assert y.record is not None
    assert {id(t) for t in y.record.inputs} == {id(x), id(w)}
    y.sum().backward()
    assert len(calls) == 2
    kept = (x.grad, w.grad)
    x.grad = w.grad = None
    layer(x).sum().backward()
    for a, b in zip(kept, (x.grad, w.grad), strict=True):
        assert a is not None
        assert b is not None
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


class Stateful(gk.nn.Module):
    """Something with a state, or that draws, between two maps."""

    def __init__(self, inner: Any, keep: bool) -> None:
        self.first, self.last = gk.nn.Linear(4, 6), gk.nn.Linear(6, 3)
        self.inner = inner if isinstance(inner, gk.nn.Module) else None
        self.function, self.keep = inner, keep

    def forward(self, x: Any) -> Any:
        def body(y: Any) -> Any:
            return gk.op.Tanh(self.function(gk.op.Tanh(self.first(y))))

        return self.last((body if self.keep else gk.checkpoint(body))(x))


STATES: dict[str, Any] = {
    "no state": lambda: gk.op.Sin,
    "dropout": lambda: gk.nn.Dropout(0.4),
    "two draws of dropout": lambda: gk.nn.Sequential(*[gk.nn.Dropout(0.3)] * 2),
    "running statistics": lambda: gk.nn.BatchNorm(6),
    "a random draw": lambda: lambda y: y * gk.random.uniform([6]),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["eager", "a training graph"])
def test_checkpoint_repeats_what_was_drawn_and_changes_nothing_twice(state: str, how: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(F)
    labels = np.array([0, 1, 2, 0, 1])
    found = []
    for keep in (True, False):
        gk.random.seed(3)
        model = Stateful(STATES[state](), keep)
        if how == "eager":
            losses = []
            rule = gk.optim.SGD(0.5)
            for _ in range(3):
                loss = gk.nn.cross_entropy(model(gk.tensor(x)), gk.tensor(labels))
                losses.append(loss.item())
                for p in model.parameters():
                    p.zero_grad()
                loss.backward()
                rule.step(model.parameters())
            found.append((losses, {n: t.numpy() for n, t in model.named_tensors()}))
        else:
            graph = gk.training.build(
                model, "cross_entropy", gk.optim.SGD(0.5), inputs={"x": gk.spec("float32", ["n", 4])}
            )
            trainer = gk.Trainer(graph)
            steps = [float(trainer.step({"x": x, "labels": labels})["loss"]) for _ in range(3)]
            assert set(graph.trainable) == {"first.weight", "first.bias", "last.weight", "last.bias"} | {
                n for n in graph.trainable if n.startswith("inner.")
            }
            found.append((steps, trainer.state()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    assert found[1][1].keys() == found[0][1].keys()
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_checkpoint_and_custom_vjp_in_a_chain_of_checkpoints() -> None:
    f = gk.checkpoint(lambda x: gk.op.Sin(gk.checkpoint(lambda y: gk.op.Exp(y) * y)(x)))
    check_gradients(f, [np.array([0.3, -0.8])], order=2)


# vmap


@pytest.mark.parametrize(
    ("f", "args", "message"),
    [(lambda: gk.vmap(lambda x: x)(gk.tensor(np.zeros((0, 2), F))), (), "static extent of 1 or more"),
     (lambda: gk.vmap(lambda x, y: x)(gk.tensor(X), gk.tensor(X[:2])), (), "maps over one extent, got 2, 3"),
     (lambda: gk.vmap(lambda x: x)(gk.tensor(1.0)), (), "axis 0 of argument 0, which has 0 axes"),
     (lambda: gk.vmap(lambda x: x, in_axes=-3)(gk.tensor(X)), (), "axis -3 of argument 0, which has 1 axes"),
     (lambda: gk.vmap(lambda x: x, in_axes=(0, 1))(gk.tensor(X)), (), "2 in_axes for 1 arguments"),
     (lambda: gk.vmap(lambda x: x, in_axes=(None,))(gk.tensor(X)), (), "no argument to map over"),
     (lambda: gk.trace(gk.vmap(lambda x: x), gk.spec("float32", ["n"])), (),
         "static extent of 1 or more, got n .*gk.scan")],
)  # fmt: skip
def test_vmap_says_what_it_cannot_map_over(f: Any, args: Any, message: str) -> None:
    with pytest.raises(GradientError, match=message):
        f()


def test_vmap_over_the_last_axis_returning_a_tree() -> None:
    x = np.arange(6, dtype=F).reshape(2, 3)
    got = gk.vmap(lambda c: {"sum": c.sum(), "twice": c * 2}, in_axes=-1)(gk.tensor(x))
    np.testing.assert_array_equal(got["sum"].numpy(), x.sum(0))
    np.testing.assert_array_equal(got["twice"].numpy(), x.T * 2)


def test_second_order_of_a_small_network_every_way() -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, 2))
    check_gradients(lambda x, w: gk.op.Tanh(x @ w), [rng.normal(size=(4, 3)), w], order=2)
