"""Update rules: AdamW's numbers to the last digit, PyTorch's formulas, schedules, clipping, the rule in a graph."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit import optim
from graphkit.errors import GradientError, GraphkitError
from graphkit.optimizers import add_gradients, add_updates

RULES = {
    "sgd": (lambda: optim.SGD(0.1), lambda t, p: t.optim.SGD(p, 0.1)),
    "decay": (lambda: optim.SGD(0.1, weight_decay=0.2), lambda t, p: t.optim.SGD(p, 0.1, weight_decay=0.2)),
    "momentum": (lambda: optim.SGD(0.1, 0.9), lambda t, p: t.optim.SGD(p, 0.1, momentum=0.9)),
    "dampening": (
        lambda: optim.SGD(0.1, 0.9, 0.3, weight_decay=0.1),
        lambda t, p: t.optim.SGD(p, 0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    ),
    "nesterov": (
        lambda: optim.SGD(0.1, 0.9, nesterov=True),
        lambda t, p: t.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (lambda: optim.Adam(0.01), lambda t, p: t.optim.Adam(p, 0.01)),
    "adam decay": (lambda: optim.Adam(0.01, weight_decay=0.1), lambda t, p: t.optim.Adam(p, 0.01, weight_decay=0.1)),
    "adamw": (lambda: optim.AdamW(0.01), lambda t, p: t.optim.AdamW(p, 0.01)),
    "adamw betas": (
        lambda: optim.AdamW(0.1, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.3),
        lambda t, p: t.optim.AdamW(p, 0.1, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.3),
    ),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("name", RULES)
def test_ten_steps_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    mine, theirs = RULES[name]
    rng = np.random.default_rng(0)
    first, x = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    w, v = gk.tensor(first, requires_grad=True), torch.tensor(first, requires_grad=True)
    optimizer, other = mine(), theirs(torch, [v])
    for _ in range(10):
        w.zero_grad()
        other.zero_grad()
        gk.op.Tanh(gk.tensor(x) @ w.T).sum().backward()
        torch.tanh(torch.tensor(x) @ v.T).sum().backward()
        optimizer.step([w])
        other.step()
    assert w.dtype == np.float64
    np.testing.assert_allclose(w.numpy(), v.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-7), ("float32", 1e-6)])
def test_adamw_three_steps(dtype, tolerance):
    """Steps count from 1, decay takes the old weight, eps comes after the correction, no gradient still decays."""
    p0 = np.array([1.0, -2.0, 0.5])
    gs = [np.array([0.1, 0.0, 1e-9]), np.array([-0.2, 0.3, 0.0]), np.array([0.05, 0.3, 0.0])]
    lr, b1, b2, eps, wd = 0.1, 0.9, 0.99, 1e-8, 0.04
    q = p0 * (1 - lr * wd) - lr * gs[0] / (np.abs(gs[0]) + eps)
    q = q * (1 - lr * wd) - lr * ((b1 * gs[0] + gs[1]) / (1 + b1)) / (
        np.sqrt((b2 * gs[0] ** 2 + gs[1] ** 2) / (1 + b2)) + eps
    )
    q = q * (1 - lr * wd) - lr * ((b1**2 * gs[0] + b1 * gs[1] + gs[2]) / (1 + b1 + b1**2)) / (
        np.sqrt((b2**2 * gs[0] ** 2 + b2 * gs[1] ** 2 + gs[2] ** 2) / (1 + b2 + b2**2)) + eps
    )
    p = gk.tensor(p0, dtype, requires_grad=True)
    optimizer = optim.AdamW(lr, betas=(b1, b2), eps=eps, weight_decay=wd)
    for g in gs:
        p.grad = gk.tensor(g, dtype)
        optimizer.step([p])
    np.testing.assert_allclose(p.numpy(), q, rtol=tolerance)


def model_of_two() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x) => (float loss)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {0.1, 0.2, 0.3}>
        {p = MatMul(x, w) q = Add(p, b) t = Tanh(q) loss = ReduceSum<keepdims=0>(t)}"""
    )


@pytest.mark.parametrize("name", [*RULES, "schedule", "clipped"])
def test_the_rule_in_a_graph_is_the_eager_rule(name):
    extra = {
        "schedule": lambda: optim.SGD(optim.warm_up(2, optim.cosine(0.3, 4)), 0.5),
        "clipped": lambda: optim.AdamW(0.1, clip_norm=0.5),
    }
    make = extra[name] if name in extra else RULES[name][0]
    model = model_of_two()
    step = add_updates(add_gradients(model, "loss", ["w", "b"]), {"w": "w_grad", "b": "b_grad"}, make())
    pairs = json.loads({p.key: p.value for p in step.metadata_props}["graphkit.state"])
    session = gk.runtime.Session(step, optimizations=False)
    loaded, optimizer, state = gk.load(model), make(), {}
    parameters = loaded.parameters()
    x = np.random.default_rng(1).normal(size=(4, 2)).astype("f")
    for _ in range(6):
        results = session.run({"x": x, **state})
        state = {name: results[following] for name, following in pairs.items()}
        for p in parameters.values():
            p.zero_grad()
        loss = loaded(x)
        loss.backward()
        optimizer.step(parameters.values())
        np.testing.assert_allclose(results["loss"], loss.numpy(), rtol=1e-6)
        for key in ("w", "b"):
            np.testing.assert_allclose(state[key], parameters[key].numpy(), rtol=2e-6, atol=1e-7)


@pytest.mark.torch
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping_is_pytorchs(limit):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype("f") for s in ((3, 2), (4,))]
    theirs = [torch.nn.Parameter(torch.zeros(a.shape)) for a in arrays]
    for p, a in zip(theirs, arrays, strict=True):
        p.grad = torch.tensor(a)
    norm = torch.nn.utils.clip_grad_norm_(theirs, limit)
    mine = optim.clip_by_global_norm([gk.tensor(a) for a in arrays], limit)
    np.testing.assert_allclose(optim.global_norm([gk.tensor(a) for a in arrays]).item(), norm.item(), rtol=1e-6)
    for p, g in zip(theirs, mine, strict=True):
        np.testing.assert_allclose(g.numpy(), p.grad.numpy(), rtol=1e-6)


def test_half_precision_gradients_do_not_overflow_the_norm():
    g = gk.tensor(np.full(4, 300.0, "float16"))
    assert optim.global_norm([g]).item() == 600.0
    assert optim.clip_by_global_norm([g], 1.0)[0].dtype == np.float16


SCHEDULES = {
    "constant": (optim.constant(0.3), lambda n: 0.3),
    "cosine": (optim.cosine(0.3, 7, 0.1), lambda n: 0.1 + 0.1 * (1 + math.cos(math.pi * min(n, 7) / 7))),
    "step decay": (optim.step_decay(0.3, 3, 0.5), lambda n: 0.3 * 0.5 ** (n // 3)),
    "exponential": (optim.exponential(0.3, 0.9), lambda n: 0.3 * 0.9**n),
    "warm-up": (optim.warm_up(4, 0.3), lambda n: 0.3 * min((n + 1) / 4, 1)),
    "warm-up, step decay": (
        optim.warm_up(2, optim.step_decay(0.3, 3)),
        lambda n: 0.3 * min((n + 1) / 2, 1) * 0.1 ** (max(n - 2, 0) // 3),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_eagerly_and_traced(name):
    schedule, expected = SCHEDULES[name]
    model = gk.trace(schedule, gk.spec("float32", []))
    session = gk.runtime.Session(model)
    for n in (*range(12), 99):
        rate = schedule(gk.tensor(float(n)))
        assert rate.dtype == np.float32
        np.testing.assert_allclose(rate.item(), expected(n), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(session.run([np.float32(n)])["output"], expected(n), rtol=1e-5, atol=1e-7)


@pytest.mark.torch
def test_cosine_counts_steps_as_pytorch_does():
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], 0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
    schedule = optim.cosine(0.3, 7)
    for n in range(7):
        np.testing.assert_allclose(
            schedule(gk.tensor(float(n))).item(), optimizer.param_groups[0]["lr"], rtol=1e-5, atol=1e-8
        )
        optimizer.step()
        scheduler.step()


def test_only_parameters_with_a_gradient_move():
    used, unused = gk.tensor([1.0], requires_grad=True), gk.tensor([2.0], requires_grad=True)
    (used * used).sum().backward()
    optim.AdamW(0.1).step([used, unused])
    assert (used.item() < 1, unused.item()) == (True, 2.0)
    with pytest.raises(GradientError, match=r"no parameter has a gradient at .*test_optim.py:\d+; call loss.backward"):
        optim.AdamW(0.1).step([unused])


def test_the_state_goes_out_and_in():
    def run(steps, save_at=None):
        w = gk.tensor([1.0, 2.0], requires_grad=True)
        optimizer = optim.AdamW(0.1)
        for n in range(steps):
            if n == save_at:
                saved = optimizer.state_dict([("w", w)])
                optimizer = optim.AdamW(0.1)
                optimizer.load_state_dict([("w", w)], saved)
            w.zero_grad()
            (w * w).sum().backward()
            optimizer.step([w])
        return w.numpy()

    np.testing.assert_array_equal(run(6), run(6, save_at=3))


BAD = {
    "rate": (lambda: optim.SGD(-1.0), "learning_rate is a number from 0 up, not -1.0"),
    "momentum": (lambda: optim.SGD(0.1, 1.0), "momentum is from 0 to below 1"),
    "nesterov": (lambda: optim.SGD(0.1, nesterov=True), "needs momentum and no dampening"),
    "beta": (lambda: optim.Adam(betas=(0.9, 1.0)), "beta2 is from 0 to below 1, not 1.0"),
    "clip": (lambda: optim.Adam(clip_norm=0.0), "clip_norm is above 0"),
    "rate that is text": (lambda: optim.SGD("a"), "learning_rate is a number from 0 up, not 'a'"),  # type: ignore[arg-type]
    "rate of a schedule": (lambda: optim.cosine(-1.0, 10), "rate is a number from 0 up, not -1.0"),
    "factor": (lambda: optim.exponential(0.1, float("nan")), "factor is a number from 0 up, not nan"),
    "swapped": (lambda: optim.warm_up(optim.constant(0.1), 9), "steps is a number of steps, 1 or more, not <function"),  # type: ignore[arg-type]
    "swapped numbers": (lambda: optim.warm_up(0.1, 100), "steps is a number of steps, 1 or more, not 0.1"),  # type: ignore[arg-type]
    "steps": (lambda: optim.cosine(0.1, 0), "steps is a number of steps, 1 or more, not 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_make_no_sense(name):
    make, message = BAD[name]
    with pytest.raises(GraphkitError, match=message):
        make()


def test_add_updates_refuses_what_is_no_parameter():
    step = add_gradients(model_of_two(), "loss", ["w", "x"])
    with pytest.raises(GradientError, match="'x' is no parameter"):
        add_updates(step, {"x": "x_grad"}, optim.SGD(0.1))
    with pytest.raises(GradientError, match=r"no value 'w_grda'\. Did you mean 'w_grad'"):
        add_updates(step, {"w": "w_grda"}, optim.SGD(0.1))
    with pytest.raises(GradientError, match="cannot be the gradient of 'b'"):
        add_updates(step, {"b": "w_grad"}, optim.SGD(0.1))
