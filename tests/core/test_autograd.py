"""backward(): the values people check by hand, what accumulates, what is freed, what is refused, what is kept."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GradientError, OperatorError
from graphkit.optimizers import add_gradients
from graphkit.runtime import run

WORKED = {"w1": (0.5, 14.1), "b1": (0.1, 7.05), "w2": (-1.5, -5.17), "b2": (0.3, -4.7)}


def worked_loss(w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """One hidden relu unit, x = 2, y = 1, squared error."""
    hidden = gk.op.Relu(w1 * 2.0 + b1)
    error = w2 * hidden + b2 - 1.0
    return error * error


def worked_gradients(how: str, values: dict[str, float]) -> tuple[float, dict[str, float]]:
    """Loss and gradients, from Tensors or from the file that add_gradients makes."""
    if how == "eager":
        leaves = {n: gk.tensor(v, requires_grad=True) for n, v in values.items()}
        loss = worked_loss(**leaves)
        loss.backward()
        return loss.item(), {n: 0.0 if t.grad is None else t.grad.item() for n, t in leaves.items()}
    model = gk.trace(worked_loss, *[gk.spec("float32", [])] * 4, output_names=["loss"])
    with_gradients = add_gradients(model, of="loss", wrt=list(values))
    got = run(with_gradients, {n: np.float32(v) for n, v in values.items()}, optimizations=False)
    return float(got["loss"]), {n: float(got[f"{n}_grad"]) for n in values}


@pytest.mark.parametrize("how", ["eager", "file"])
def test_the_worked_example_to_every_printed_digit(how: str) -> None:
    loss, found = worked_gradients(how, {n: v for n, (v, _) in WORKED.items()})
    assert f"{loss:.4f}" == "5.5225"
    assert {n: f"{g:.4f}" for n, g in found.items()} == {
        "w1": "14.1000",
        "b1": "7.0500",
        "w2": "-5.1700",
        "b2": "-4.7000",
    }


@pytest.mark.parametrize("how", ["eager", "file"])
def test_a_dead_unit_has_no_gradient(how: str) -> None:
    loss, found = worked_gradients(how, {"w1": -0.5, "b1": 0.1, "w2": -1.5, "b2": 0.3})
    assert f"{loss:.4f}" == "0.4900"
    assert {n: f"{abs(g):.4f}" for n, g in found.items()} == {
        "w1": "0.0000",
        "b1": "0.0000",
        "w2": "0.0000",
        "b2": "1.4000",
    }


@pytest.mark.parametrize("how", ["eager", "file"])
def test_the_product_of_sum_and_difference(how: str) -> None:
    x, y = np.array([3.0, -1.0], np.float32), np.array([2.0, 0.5], np.float32)
    if how == "eager":
        a, b = gk.tensor(x, requires_grad=True), gk.tensor(y, requires_grad=True)
        ((a + b) * (a - b)).sum().backward()
        assert a.grad is not None
        assert b.grad is not None
        to_x, to_y = a.grad.numpy(), b.grad.numpy()
    else:
        model = gk.trace(lambda x, y: ((x + y) * (x - y)).sum(), *[gk.spec("float32", ["n"])] * 2, output_names=["z"])
        got = run(add_gradients(model, of="z", wrt=["x", "y"]), {"x": x, "y": y})
        to_x, to_y = got["x_grad"], got["y_grad"]
    np.testing.assert_array_equal(to_x, 2 * x)
    np.testing.assert_array_equal(to_y, -2 * y)


def test_gradients_accumulate_until_they_are_zeroed() -> None:
    w = gk.tensor([1.0, 2.0], requires_grad=True)
    for expected in ([2.0, 4.0], [4.0, 8.0], [6.0, 12.0]):
        (w * w).sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == expected
    w.zero_grad()
    assert w.grad is None
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]


def test_one_leaf_by_several_ways_and_a_leaf_that_is_the_loss() -> None:
    x = gk.tensor(3.0, requires_grad=True)
    (x * x + x + x).backward()
    assert x.grad is not None
    assert x.grad.item() == 8.0
    y = gk.tensor(3.0, requires_grad=True)
    y.backward()
    assert y.grad is not None
    assert y.grad.item() == 1.0


# Freed and kept graphs


def test_a_second_backward_needs_retain_graph() -> None:
    x = gk.tensor(3.0, requires_grad=True)
    loss = x * x
    loss.backward()
    with pytest.raises(
        GradientError, match=r"Mul \(.*test_autograd.py:\d+\) was freed by an earlier backward.*retain_graph=True"
    ):
        loss.backward()


def test_a_freed_part_of_another_graph_is_noticed() -> None:
    x = gk.tensor(3.0, requires_grad=True)
    shared = x * x
    (shared * 2.0).backward()
    with pytest.raises(GradientError, match="was freed by an earlier backward"):
        (shared * 3.0).backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0


def test_retain_graph_keeps_it_for_another_pass() -> None:
    x = gk.tensor(3.0, requires_grad=True)
    loss = x * x
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0


def test_create_graph_makes_gradients_that_can_be_differentiated() -> None:
    x = gk.tensor(2.0, requires_grad=True)
    (x * x * x).backward(create_graph=True)
    first = x.grad
    assert first is not None
    assert first.item() == 12.0
    x.zero_grad()
    first.backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0  # 6 x
    x.zero_grad()


# Values that change


def test_assigning_before_backward_is_an_error() -> None:
    w = gk.tensor([1.0], requires_grad=True, name="w")
    loss = (w * w).sum()
    w.assign([5.0])
    with pytest.raises(GradientError, match=r"w was changed by assign\(\) after Mul \(.*test_autograd.py"):
        loss.backward()


def test_assigning_after_backward_is_how_parameters_move() -> None:
    w = gk.tensor([1.0], requires_grad=True)
    for _ in range(3):
        w.zero_grad()
        (w * w).sum().backward()
        assert w.grad is not None
        w.assign(w.detach() - 0.25 * w.grad)
    assert w.tolist() == [0.125]
    assert w.requires_grad


@pytest.mark.parametrize(
    ("value", "message"),
    [([1, 2], "keeps dtype and shape: the tensor is float32.2., the value int64.2."), ([1.0], "the value float32.1.")],
)
def test_assign_keeps_dtype_and_shape(value: Any, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        gk.tensor([1.0, 2.0]).assign(value)


def test_only_leaves_are_assigned_to() -> None:
    x = gk.tensor([1.0], requires_grad=True)
    with pytest.raises(GradientError, match=r"assign.. replaces a leaf tensor, not the result of Mul"):
        (x * x).assign([1.0])


def test_the_users_array_is_copied() -> None:
    data = np.array([1.0, 2.0], np.float32)
    x = gk.tensor(data, requires_grad=True)
    loss = (x * x).sum()
    data[:] = 100
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
    saved = np.array([3.0, 4.0], np.float32)  # an array that meets a Tensor is copied too
    y = (x * saved).sum()
    saved[:] = 0
    x.zero_grad()
    y.backward()
    assert x.grad.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("get", [lambda t: t.numpy(), np.asarray, lambda t: (t * 2).numpy(), lambda t: t.sum().numpy()])
def test_arrays_that_come_out_are_read_only(get: Any) -> None:
    array = get(gk.tensor([1.0, 2.0], requires_grad=True))
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.flags.writeable = True


# What does not flow


def test_no_grad_records_nothing() -> None:
    x = gk.tensor([1.0], requires_grad=True)
    with gk.no_grad():
        y = x * 2
        assert not y.requires_grad
        assert y.record is None
    assert (x * 2).requires_grad


@pytest.mark.parametrize(
    ("name", "f", "expected"),
    [
        ("detach", lambda x: (x.detach() * x).sum(), [1.0, 2.0]),
        ("stop_gradient", lambda x: (gk.stop_gradient(x * x) * x).sum(), [1.0, 4.0]),
        ("floor", lambda x: (gk.op.Floor(x) * x).sum(), [1.0, 2.0]),
        ("comparison", lambda x: gk.op.Where(x > 1.5, x * 3.0, x).sum(), [1.0, 3.0]),
        ("cast to integers", lambda x: (x.astype("int64").astype("float32") * x).sum(), [1.0, 2.0]),
    ],
)
def test_stopped_gradients_eagerly_and_in_files(name: str, f: Any, expected: list[float]) -> None:
    value = np.array([1.0, 2.0], np.float32)
    x = gk.tensor(value, requires_grad=True)
    f(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == expected
    model = gk.trace(f, gk.spec("float32", ["n"]), output_names=["loss"])
    (_, gradient) = run(add_gradients(model, of="loss", wrt=["x"]), {"x": value}).values()
    assert gradient.tolist() == expected


def test_no_grad_holds_in_a_file() -> None:
    def f(x: Any) -> Any:
        with gk.no_grad():
            weight = x * x
        return (weight * x).sum()

    value = np.array([1.0, 3.0], np.float32)
    assert gk.grad(f)(gk.tensor(value)).tolist() == [1.0, 9.0]
    model = gk.trace(f, gk.spec("float32", ["n"]), output_names=["loss"])
    got = run(add_gradients(model, of="loss", wrt=["x"]), {"x": value})
    assert got["x_grad"].tolist() == [1.0, 9.0]


REFUSED = [
    (lambda: gk.tensor([1.0, 2.0], requires_grad=True).backward(), r"needs a scalar, got shape \[2\]"),
    (lambda: gk.tensor(1.0).backward(), "depends on nothing that requires a gradient"),
    (lambda: gk.op.Floor(gk.tensor(1.5, requires_grad=True)).backward(), "every way .* is stopped"),
    (lambda: gk.tensor([1], requires_grad=True), "requires_grad needs a floating dtype, got int64"),
    (lambda: gk.tensor([1.0, 2.0], requires_grad=True).backward([1.0]),
        r"the cotangent has shape \[1\], its output \[2\]"),
    (lambda: gk.trace(lambda x: x.sum().backward(), gk.spec("float32", [2])), "called on a traced tensor.*gk.grad"),
    (lambda: gk.grad(lambda x: x)(gk.tensor([1.0, 2.0])), r"needs a function that returns a scalar, got shape \[2\]"),
    (lambda: gk.grad(lambda x: x)(gk.tensor(1)), "the argument is int64, which has no gradient"),
    (lambda: gk.grad(lambda x: gk.tensor(1.0))(gk.tensor(1.0)), "does not depend on argument 0"),
    (lambda: gk.grad(lambda x, y: x * 2.0, argnums=(0, 1))(gk.tensor(1.0), gk.tensor(1.0)),
        "does not depend on argument 1"),
    (lambda: gk.grad(lambda x: 1.0)(gk.tensor(1.0)), "returns a Tensor, got float"),
    (lambda: gk.grad(lambda x: x, argnums=1)(gk.tensor(1.0)), "grad of argument 1, and 1 were given by place"),
    (lambda: gk.grad(lambda: gk.tensor(1.0))(), "grad of argument 0, and 0 were given by place"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), REFUSED)
def test_what_has_no_gradient_is_an_error_at_the_users_line(attempt: Any, message: str) -> None:
    with pytest.raises(GradientError, match=message) as caught:
        attempt()
    assert "test_autograd.py:" in str(caught.value)


def test_every_missing_rule_is_named_in_one_error() -> None:
    def f(x: Any) -> Any:
        (a,) = gk.apply("NoSuchThing", [x], domain="acme") if x.traced else (x,)
        (b,) = gk.apply("NorThis", [a], domain="acme") if x.traced else (x,)
        return b.sum()

    with pytest.raises(GradientError, match=r"acme.NorThis.*acme.NoSuchThing.*gk.stop_gradient"):
        gk.trace(gk.grad(f), gk.spec("float32", [2]))


def test_a_cotangent_stands_for_the_rest_of_the_computation() -> None:
    x = gk.tensor([1.0, 2.0], requires_grad=True)
    (x * x).backward(np.array([10.0, 0.5], np.float32))
    assert x.grad is not None
    assert x.grad.tolist() == [20.0, 2.0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_gradient_has_its_tensors_dtype(dtype: str) -> None:
    x = gk.tensor(np.array([1.0, 2.0], dtype), requires_grad=True)
    (x.astype("float32") * 2.0 + 1).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype.name == dtype


# Memory


def test_dropping_the_loss_frees_everything_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        w = gk.tensor(np.ones((8, 8), np.float32), requires_grad=True)
        alive = []
        for _ in range(3):
            hidden = gk.op.Tanh(w @ w)
            record = hidden.record
            assert record is not None
            alive.append(weakref.ref(hidden._array))
            loss = (hidden * hidden).sum()
            loss.backward(retain_graph=True)
            del hidden, record, loss
            w.zero_grad()
        assert [r() for r in alive] == [None, None, None]
    finally:
        gc.enable()


def test_backward_lets_go_of_what_it_used() -> None:
    gc.disable()
    try:
        w = gk.tensor(np.ones((8, 8), np.float32), requires_grad=True)
        hidden = gk.op.Tanh(w @ w)
        kept = weakref.ref(hidden._array)
        loss = (hidden * hidden).sum()
        del hidden
        loss.backward()
        assert kept() is None  # although the loss is still here
        assert loss.item() > 0
    finally:
        gc.enable()


def test_forward_alone_keeps_no_records() -> None:
    x = gk.tensor(np.ones(4, np.float32))
    y = x
    for _ in range(50):
        y = gk.op.Tanh(y * 2.0)
    assert y.record is None


def test_a_long_chain_needs_no_deep_recursion() -> None:
    x = gk.tensor(1.0, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y * 1.0
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 1.0


# Threads


def test_threads_have_tapes_traces_and_no_grad_of_their_own() -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            barrier.wait()
            for n in range(10):
                value = np.array([seed, n], np.float32)
                if seed == 0:
                    with gk.no_grad():
                        assert not (gk.tensor(value, requires_grad=True) * 2).requires_grad
                elif seed == 1:
                    model = gk.trace(lambda a: gk.op.Exp(a) * 2.0, gk.spec("float32", ["n"]))
                    assert len(model.graph) == 2
                else:
                    x = gk.tensor(value, requires_grad=True)
                    (x * x * x).sum().backward()
                    assert x.grad is not None
                    np.testing.assert_allclose(x.grad.numpy(), 3 * value * value)
        except BaseException as error:  # noqa: BLE001  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
