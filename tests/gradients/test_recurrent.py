"""RNN, GRU and LSTM: all attributes against a float64 program of the standard's equations, and against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.runtime import run
from tests.gradients.loaded import check_traced
from tests.gradients.models import gradient_model, model_of

rng = np.random.default_rng(0)
T, B, N, H = 4, 3, 2, 3
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
HAS_ALPHA = {"affine": 0.0, "leakyrelu": 0.01, "thresholdedrelu": 0.0, "scaledtanh": 0.0, "elu": 1.0,
             "hardsigmoid": 0.2}  # fmt: skip
HAS_BETA = {"affine": 0.0, "scaledtanh": 0.0, "hardsigmoid": 0.5}


def function(name, alphas, betas):
    name = name.lower()
    a = alphas.pop(0) if name in HAS_ALPHA and alphas else HAS_ALPHA.get(name)
    b = betas.pop(0) if name in HAS_BETA and betas else HAS_BETA.get(name)
    return {
        "affine": lambda z: a * z + b, "relu": lambda z: np.maximum(z, 0), "tanh": np.tanh,
        "leakyrelu": lambda z: np.where(z < 0, a * z, z), "thresholdedrelu": lambda z: np.where(z > a, z, 0),
        "scaledtanh": lambda z: a * np.tanh(b * z), "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "hardsigmoid": lambda z: np.clip(a * z + b, 0, 1), "elu": lambda z: np.where(z < 0, a * (np.exp(z) - 1), z),
        "softsign": lambda z: z / (1 + abs(z)), "softplus": lambda z: np.log1p(np.exp(z)),
    }[name]  # fmt: skip


def reference(op, inputs, attributes):
    """[Y, Y_h, Y_c] by the standard's equations."""
    x, w, r, b, lengths, h0, c0, p = (*inputs, *[None] * (8 - len(inputs)))
    direction = attributes.get("direction", "forward")
    ways = [False, True] if direction == "bidirectional" else [direction == "reverse"]
    names = attributes.get("activations") or DEFAULTS[op] * len(ways)
    alphas = list(attributes.get("activation_alpha") or [])
    betas = list(attributes.get("activation_beta") or [])
    functions = [function(n, alphas, betas) for n in names]
    count = len(DEFAULTS[op])
    clip = attributes.get("clip", np.inf)
    lengths = [T] * B if lengths is None else lengths
    y = np.zeros((T, len(ways), B, H))
    last = [np.zeros((len(ways), B, H)), np.zeros((len(ways), B, H))]
    for d, back in enumerate(ways):
        fs = functions[d * count : (d + 1) * count]
        wb, rb = np.split(b[d], 2) if b is not None else (np.zeros(GATES[op] * H), np.zeros(GATES[op] * H))
        for n in range(B):
            h = h0[d, n] if h0 is not None else np.zeros(H)
            c = c0[d, n] if c0 is not None else np.zeros(H)
            for t in range(lengths[n] - 1, -1, -1) if back else range(lengths[n]):
                h, c = cell(op, x[t, n], h, c, w[d], r[d], wb, rb, None if p is None else p[d], fs, clip, attributes)
                y[t, d, n] = h
            last[0][d, n], last[1][d, n] = h, c
    return [y, *last[: 2 if op == "LSTM" else 1]]


def cell(op, x, h, c, w, r, wb, rb, p, fs, clip, attributes):
    cut = lambda z: np.clip(z, -clip, clip)
    if op == "RNN":
        return fs[0](cut(x @ w.T + h @ r.T + wb + rb)), c
    if op == "GRU":
        f, g = fs
        xs, ws = x @ w.T + wb, r
        z = f(cut(xs[:H] + h @ ws[:H].T + rb[:H]))
        reset = f(cut(xs[H : 2 * H] + h @ ws[H : 2 * H].T + rb[H : 2 * H]))
        if attributes.get("linear_before_reset"):
            new = g(cut(xs[2 * H :] + reset * (h @ ws[2 * H :].T + rb[2 * H :])))
        else:
            new = g(cut(xs[2 * H :] + (reset * h) @ ws[2 * H :].T + rb[2 * H :]))
        return (1 - z) * new + z * h, c
    f, g, k = fs
    zi, zo, zf, zg = np.split(x @ w.T + h @ r.T + wb + rb, 4)
    pi, po, pf = np.split(p, 3) if p is not None else (0, 0, 0)
    i = f(cut(zi + pi * c))
    forget = 1 - i if attributes.get("input_forget") else f(cut(zf + pf * c))
    after = forget * c + i * g(cut(zg))
    return f(cut(zo + po * after)) * k(after), after


def inputs_for(op, attributes, *, bias=True, lengths=None, initial=True, peepholes=False, seed=0):
    draw = np.random.default_rng(seed)
    d = 2 if attributes.get("direction") == "bidirectional" else 1
    k = GATES[op]
    found = [draw.normal(size=(T, B, N)), draw.normal(size=(d, k * H, N)), draw.normal(size=(d, k * H, H)) * 0.7,
             draw.normal(size=(d, 2 * k * H)) if bias else None,
             None if lengths is None else np.array(lengths, dtype=np.int32),
             draw.normal(size=(d, B, H)) if initial else None]  # fmt: skip
    if op == "LSTM":
        found += [draw.normal(size=(d, B, H)) if initial else None,
                  draw.normal(size=(d, 3 * H)) if peepholes else None]  # fmt: skip
    return found


def weighted(ys, outputs):
    total = 0.0
    for n in outputs:
        total = total + (ys[n] * (1 + np.cos(np.arange(ys[n].size) + n).reshape(ys[n].shape) / 2)).sum()
    return total


ALL = [0, 1, 2]
NAMES = ["Affine", "Relu", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus",
         "Tanh", "Sigmoid"]  # fmt: skip
BOTH = {"direction": "bidirectional"}
# name: operator, attributes, what of the inputs, outputs that the loss reads
CASES = {
    **{f"RNN {n}": ("RNN", {"activations": [n]}, {}, ALL) for n in NAMES},
    "RNN Affine set": (
        "RNN", {"activations": ["Affine"], "activation_alpha": [0.7], "activation_beta": [0.1]}, {}, ALL),
    "RNN ScaledTanh set": (
        "RNN", {"activations": ["ScaledTanh"], "activation_alpha": [0.7], "activation_beta": [1.2]}, {}, ALL),
    "RNN threshold": ("RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.4]}, {}, ALL),
    **{f"LSTM {n}": ("LSTM", {"activations": ["Sigmoid", n, "Softsign"]}, {}, ALL)
       for n in ("Relu", "HardSigmoid", "Affine")},
    "LSTM hard gates": ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Softsign"]}, {}, ALL),
    "alpha and beta": (
        "LSTM", {"activations": ["HardSigmoid", "ScaledTanh", "Tanh"], "activation_alpha": [0.3, 1.5],
                 "activation_beta": [0.4, 0.7]}, {}, ALL),
    "alphas of two directions": (
        "GRU", BOTH | {"activations": ["HardSigmoid", "LeakyRelu", "Sigmoid", "Elu"],
                       "activation_alpha": [0.3, 0.1, 0.6], "activation_beta": [0.4]}, {}, ALL),
    **{f"{op} plain": (op, {}, {"bias": False, "initial": False}, ALL) for op in GATES},
    **{f"{op} {d}": (op, {"direction": d}, {}, ALL) for op in GATES for d in ("reverse", "bidirectional")},
    **{f"{op} {d} lengths": (op, {"direction": d}, {"lengths": [2, 4, 1]}, ALL)
       for op in GATES for d in ("forward", "reverse", "bidirectional")},
    **{f"{op} lengths, no initial state": (op, BOTH, {"lengths": [2, 4, 3], "initial": False}, ALL)
       for op in GATES},
    **{f"{op} output {n}": (op, {}, {}, [n]) for op in GATES for n in range(3 if op == "LSTM" else 2)},
    **{f"{op} output {n} lengths": (op, {"direction": "reverse"}, {"lengths": [1, 4, 3]}, [n])
       for op in GATES for n in range(3 if op == "LSTM" else 2)},
    **{f"{op} clip": (op, {"clip": 0.6}, {}, ALL) for op in GATES},
    **{f"{op} clip, both ways": (op, BOTH | {"clip": 0.6}, {"lengths": [2, 4, 3]}, ALL) for op in GATES},
    "GRU linear before reset": ("GRU", {"linear_before_reset": 1}, {}, ALL),
    "GRU linear before reset, both ways, lengths": (
        "GRU", BOTH | {"linear_before_reset": 1}, {"lengths": [2, 4, 3]}, ALL),
    "GRU linear before reset, no bias": ("GRU", {"linear_before_reset": 1}, {"bias": False}, ALL),
    "LSTM peepholes": ("LSTM", {}, {"peepholes": True}, ALL),
    "LSTM peepholes, reverse": ("LSTM", {"direction": "reverse"}, {"peepholes": True}, ALL),
    "LSTM peepholes, both ways, lengths": ("LSTM", BOTH, {"peepholes": True, "lengths": [2, 4, 3]}, ALL),
    "LSTM peepholes, clip": ("LSTM", {"clip": 0.8}, {"peepholes": True}, ALL),
    "LSTM input_forget": ("LSTM", {"input_forget": 1}, {}, ALL),
    "LSTM input_forget, peepholes": ("LSTM", {"input_forget": 1}, {"peepholes": True}, ALL),
    "LSTM input_forget, both ways, lengths": ("LSTM", BOTH | {"input_forget": 1}, {"lengths": [2, 4, 3]}, ALL),
}  # fmt: skip


def loss_of(op, attributes, arrays, outputs, count):
    given = [n for n, a in enumerate(arrays) if a is not None]

    def loss(*tensors):
        full = [None] * len(arrays)
        for n, t in zip(given, tensors, strict=True):
            full[n] = t
        ys = getattr(gk.op, op)(*full, hidden_size=H, outputs=count, **attributes)
        total = None
        for n in outputs:
            weights = (1 + np.cos(np.arange(np.prod(SHAPES(n, attributes))) + n) / 2).astype(np.float32)
            part = (ys[n] * weights.reshape(SHAPES(n, attributes))).sum()
            total = part if total is None else total + part
        return total

    return loss, given


def SHAPES(n, attributes):  # noqa: N802  # reads as the table it stands for
    d = 2 if attributes.get("direction") == "bidirectional" else 1
    return (T, d, B, H) if n == 0 else (d, B, H)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name, checks_files):
    op, attributes, settings, outputs = CASES[name]
    arrays = inputs_for(op, attributes, **settings)
    count = 3 if op == "LSTM" else 2
    outputs = [n for n in outputs if n < count]
    loss, given = loss_of(op, attributes, arrays, outputs, max(outputs) + 1)
    narrow = [arrays[n].astype(np.float32) if arrays[n].dtype.kind == "f" else arrays[n] for n in given]
    floating = [k for k, a in enumerate(narrow) if a.dtype.kind == "f"]
    expected = weighted(reference(op, arrays, attributes), outputs)
    np.testing.assert_allclose(loss(*[gk.tensor(a) for a in narrow]).item(), expected, rtol=2e-5)
    eager = gk.grad(loss, floating)(*[gk.tensor(a) for a in narrow])
    names = [f"x{k}" for k in range(len(narrow))]
    static = gk.trace(gk.grad(loss, floating), *narrow, input_names=names)
    shapes = [["T", "B", N] if n == 0 else ["B"] if n == 4 else [a.shape[0], "B", H] if n in (5, 6) else a.shape
              for n, a in zip(given, narrow, strict=True)]  # fmt: skip
    symbolic = gk.trace(
        gk.grad(loss, floating), *[gk.spec(a.dtype, s) for a, s in zip(narrow, shapes, strict=True)], input_names=names
    )
    feeds = dict(zip(names, narrow, strict=True))
    graphs = [list(run(m, feeds, optimizations=False).values()) for m in (static, symbolic)]
    if checks_files or name.endswith("plain"):
        check_traced(loss, narrow, floating, shapes)
    for k, mine, one, two in zip(floating, eager, *graphs, strict=True):
        n = given[k]
        difference = np.zeros(arrays[n].shape)
        for place in np.ndindex(*difference.shape):
            ends = []
            for sign in (1, -1):
                moved = [None if a is None else a.copy() for a in arrays]
                moved[n][place] += sign * 1e-6
                ends.append(weighted(reference(op, moved, attributes), outputs))
            difference[place] = (ends[0] - ends[1]) / 2e-6
        scale = max(1.0, abs(difference).max())
        np.testing.assert_allclose(mine.numpy(), difference, rtol=1e-4, atol=2e-5 * scale, err_msg=f"input {n}, eager")
        np.testing.assert_allclose(one, difference, rtol=1e-4, atol=2e-5 * scale, err_msg=f"input {n}, static")
        np.testing.assert_allclose(two, difference, rtol=1e-4, atol=2e-5 * scale, err_msg=f"input {n}, symbolic")


@pytest.mark.parametrize("op", GATES)
def test_second_order(op):
    """Against differences of the gradient, in float32: there is no kernel for float64."""
    arrays = [a.astype(np.float32) for a in inputs_for(op, {}, initial=False)[:4]]

    def first(*tensors):
        found = gk.grad(lambda *t: (getattr(gk.op, op)(*t, hidden_size=H) ** 2).sum(), range(4))(*tensors)
        return sum(((g * g).sum() for g in found[1:]), (found[0] * found[0]).sum())

    second = gk.grad(first, range(4))(*[gk.tensor(a) for a in arrays])
    traced = run(
        gk.trace(gk.grad(first, range(4)), *arrays, input_names=list("xwrb")), dict(zip("xwrb", arrays, strict=True))
    )
    for n, (g, h) in enumerate(zip(second, traced.values(), strict=True)):
        np.testing.assert_allclose(g.numpy(), h, rtol=1e-3, atol=1e-3 * abs(h).max())
        along = rng.normal(size=arrays[n].shape).astype(np.float32)
        ends = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[n] = arrays[n] + np.float32(sign * 2e-3) * along
            ends.append(float(first(*[gk.tensor(a) for a in moved]).item()))
        np.testing.assert_allclose((g.numpy() * along).sum(), (ends[0] - ends[1]) / 4e-3, rtol=2e-2, atol=2e-2)


def torch_order(a, op, torch):
    """Rows in PyTorch's order of the gates: i, f, g, o and r, z, n."""
    blocks = np.split(np.asarray(a), GATES[op])
    order = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}[op]
    return torch.tensor(np.concatenate([blocks[i] for i in order]))


@pytest.mark.torch
@pytest.mark.parametrize("op", GATES)
def test_as_pytorch(op):
    import torch

    arrays = [a.astype(np.float32) for a in inputs_for(op, {}, initial=False) if a is not None]
    x, w, r, b = [gk.tensor(a, requires_grad=True) for a in arrays]
    attributes = {"linear_before_reset": 1} if op == "GRU" else {}
    y = getattr(gk.op, op)(x, w, r, b, hidden_size=H, **attributes)
    (y * y).sum().backward()
    layer = getattr(torch.nn, op)(N, H)
    halves = np.split(arrays[3][0], 2)
    layer.weight_ih_l0.data, layer.weight_hh_l0.data = (torch_order(a[0], op, torch) for a in arrays[1:3])
    layer.bias_ih_l0.data, layer.bias_hh_l0.data = (torch_order(a, op, torch) for a in halves)
    theirs = torch.tensor(arrays[0], requires_grad=True)
    result, _ = layer(theirs)
    result.square().sum().backward()
    np.testing.assert_allclose(y.numpy()[:, 0], result.detach(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(torch_order(w.grad.numpy()[0], op, torch), layer.weight_ih_l0.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(torch_order(r.grad.numpy()[0], op, torch), layer.weight_hh_l0.grad, rtol=1e-4, atol=1e-5)
    mine = [torch_order(part, op, torch) for part in np.split(b.grad.numpy()[0], 2)]
    np.testing.assert_allclose(mine[0], layer.bias_ih_l0.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine[1], layer.bias_hh_l0.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op):
    """layout=1, which the runtime has no kernel for: read with time first, gradients included."""
    arrays = [a.astype(np.float32) for a in inputs_for(op, {}) if a is not None]
    outputs = 3 if op == "LSTM" else 2
    turned = [a.transpose(1, 0, 2) if n in (0, 4, 5) else a for n, a in enumerate(arrays)]

    def loss(*tensors):
        ys = getattr(gk.op, op)(*tensors[:4], None, *tensors[4:], hidden_size=H, outputs=outputs)
        return sum((gk.op.Sin(y).sum() * (n + 1.0) for n, y in enumerate(ys[1:])), (ys[0] * ys[0]).sum())

    expected = gk.grad(loss, range(len(arrays)))(*map(gk.tensor, arrays))
    names = ["x", "w", "r", "b", "", "h", "c"][: 5 + outputs - 1]
    given = [n for n in names if n]
    inputs = ", ".join(f"float[{', '.join(map(str, a.shape))}] {n}" for n, a in zip(given, turned, strict=True))
    ys = ["y", "yh", "yc"][:outputs]
    parts = "".join(f"s{n} = Sin({y}) p{n} = ReduceSum<keepdims = 0>(s{n}) k{n} = Constant<value = float {{{n}.0}}>() "
                    f"q{n} = Mul(p{n}, k{n}) " for n, y in enumerate(ys) if n)  # fmt: skip
    text = f"""g ({inputs}) => (float loss) {{
      {", ".join(ys)} = {op}<hidden_size = {H}, layout = 1>({", ".join(n or '""' for n in names)})
      q0 = ReduceSumSquare<keepdims = 0>(y) {parts}
      loss = Sum({", ".join(f"q{n}" for n in range(outputs))})
    }}"""
    model = model_of(text)
    feeds = dict(zip(given, turned, strict=True))
    got = run(gradient_model(model, given), feeds, optimizations=False)
    loaded = {n: gk.tensor(a, requires_grad=True) for n, a in feeds.items()}
    gk.load(model)(**loaded).backward()
    for n, g in zip(given, expected, strict=True):
        want = g.numpy().transpose(1, 0, 2) if n in ("x", "h", "c") else g.numpy()
        np.testing.assert_allclose(got[f"{n}_grad"], want, rtol=1e-4, atol=1e-5, err_msg=n)
        np.testing.assert_allclose(loaded[n].grad.numpy(), want, rtol=1e-4, atol=1e-5, err_msg=n)


@pytest.mark.parametrize("op", GATES)
def test_batch_first_called_directly(op):
    arrays = [a.astype(np.float32) for a in inputs_for(op, {}) if a is not None]
    outputs = 3 if op == "LSTM" else 2
    turned = [a.transpose(1, 0, 2) if n in (0, 4, 5) else a for n, a in enumerate(arrays)]

    def layer(layout):
        return lambda *t: getattr(gk.op, op)(*t[:4], None, *t[4:], hidden_size=H, outputs=outputs, layout=layout)

    expected = [y.numpy() for y in layer(0)(*arrays)]
    expected = [y.transpose(perm) for y, perm in zip(expected, ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2]), strict=False)]
    traced = gk.trace(layer(1), *turned)
    results = [[y.numpy() for y in layer(1)(*turned)], list(gk.run(traced, turned).values())]
    for got in results:
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

    def losses(layout):
        return lambda *t: sum((y * y).sum() for y in layer(layout)(*t))

    plain = gk.grad(losses(0), range(len(arrays)))(*map(gk.tensor, arrays))
    for n, g in enumerate(gk.grad(losses(1), range(len(arrays)))(*map(gk.tensor, turned))):
        want = plain[n].numpy()
        want = want.transpose(1, 0, 2) if n in (0, 4, 5) else want
        np.testing.assert_allclose(g.numpy(), want, rtol=1e-5, atol=1e-6)
    names = ["x", "w", "r", "b", "", "h", "c"][: 5 + outputs - 1]
    given = [n for n in names if n]
    inputs = ", ".join(f"float[{', '.join(map(str, a.shape))}] {n}" for n, a in zip(given, turned, strict=True))
    ys = ["y", "yh", "yc"][:outputs]
    shown = ", ".join(f"float[{'?, ' * (3 if y == 'y' else 2)}{H}] {y}" for y in ys)
    model = model_of(f"""g ({inputs}) => ({shown}) {{
      {", ".join(ys)} = {op}<hidden_size = {H}, layout = 1>({", ".join(n or '""' for n in names)}) }}""")
    got = run(model, dict(zip(given, turned, strict=True)))
    for mine, theirs in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
