"""The programs of models/: worked examples to every digit, and eager, graph and PyTorch in step with each other."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit import nn, optim
from graphkit.optimizers import add_gradients
from models import demo, fashion_mnist, gpt, gradient_flow, lenet, lstm, mlp, program, resnet

# The worked example: x = 2, y = 1, w1 = 0.5, b1 = 0.1, w2 = -1.5, b2 = 0.3, relu, squared error

PRINTED = {"w1": "14.1000", "b1": "7.0500", "w2": "-5.1700", "b2": "-4.7000"}
DEAD = {"w1": "0.0000", "b1": "0.0000", "w2": "0.0000", "b2": "-1.4000"}


def worked(w1: float) -> dict[str, gk.Tensor]:
    return {
        n: gk.tensor(v, requires_grad=True, name=n) for n, v in {"w1": w1, "b1": 0.1, "w2": -1.5, "b2": 0.3}.items()
    }


def worked_loss(p: dict[str, gk.Tensor], x: gk.Tensor, y: gk.Tensor) -> gk.Tensor:
    hidden = nn.relu(p["w1"] * x + p["b1"])
    error = p["w2"] * hidden + p["b2"] - y
    return error * error


@pytest.mark.parametrize(("w1", "loss", "printed"), [(0.5, "5.5225", PRINTED), (-0.5, "0.4900", DEAD)])
def test_the_worked_example(tmp_path, w1, loss, printed):
    p = worked(w1)
    x, y = gk.tensor(2.0), gk.tensor(1.0)
    value = worked_loss(p, x, y)
    value.backward()
    assert f"{value.item():.4f}" == loss
    assert {n: f"{abs(t.grad.item()) if not t.grad.item() else t.grad.item():.4f}" for n, t in p.items()} == printed

    names = list(p)
    model = gk.trace(
        lambda *args: worked_loss(dict(zip(names, args[:4], strict=True)), *args[4:]),
        *(gk.spec("float32", []) for _ in range(6)), input_names=[*names, "x", "y"], output_names=["loss"],
    )  # fmt: skip
    from graphkit.modelfile import write_model

    write_model(add_gradients(model, "loss", names), tmp_path / "g.onnx")
    found = gk.run(tmp_path / "g.onnx", {n: t.numpy() for n, t in p.items()} | {"x": np.float32(2), "y": np.float32(1)})
    assert f"{found['loss']:.4f}" == loss
    assert {n: f"{g or 0.0:.4f}" for n in names for g in [float(found[f"{n}_grad"])]} == printed


def test_sum_times_difference():
    x, y = gk.tensor(3.0, requires_grad=True), gk.tensor(2.0, requires_grad=True)
    ((x + y) * (x - y)).backward()
    assert (x.grad.item(), y.grad.item()) == (6.0, -4.0)  # 2x and -2y
    spec = gk.spec("float32", [])
    model = gk.trace(lambda x, y: (x + y) * (x - y), spec, spec, output_names=["loss"])
    assert [n.op_type for n in model.graph] == ["Add", "Sub", "Mul"]
    found = gk.run(add_gradients(model, "loss", ["x", "y"]), {"x": np.float32(3), "y": np.float32(2)})
    assert (found["x_grad"], found["y_grad"]) == (6.0, -4.0)


def test_gradients_accumulate_until_they_are_forgotten():
    w = gk.tensor(3.0, requires_grad=True)
    for count in (1, 2, 3):
        (w * w).backward()
        assert w.grad.item() == 6.0 * count
    w.zero_grad()
    (w * w).backward()
    assert w.grad.item() == 6.0


# The models


def images(rng: np.random.Generator) -> np.ndarray:
    return fashion_mnist.load().train_images[rng.integers(0, 6000, 16)]


SMALL = {
    "mlp": (lambda: mlp.MLP((784, 32, 10)), images, 10),
    "deep mlp": (lambda: mlp.MLP(mlp.DEEP), images, 10),
    "lenet": (lenet.LeNet, images, 10),
    "resnet": (lambda: resnet.ResNet((4, 8)), images, 10),
    "resnet 32": (
        lambda: resnet.ResNet((4, 8), channels=3),
        lambda rng: rng.uniform(size=(8, 3, 32, 32)).astype("f"),
        10,
    ),
    "gpt": (lambda: gpt.GPT(64, 32, 2, 4, 16), lambda rng: rng.integers(0, 64, (4, 16)), 64),
    "lstm": (lambda: lstm.Rows(8), images, 10),
    "tied gpt": (lambda: gpt.GPT(64, 32, 1, 2, 16, tied=True), lambda rng: rng.integers(0, 64, (4, 16)), 64),
}


def data_of(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = SMALL[name][1](rng)
    rows = x.shape if x.dtype.kind == "i" else x.shape[:1]
    return x, rng.integers(0, SMALL[name][2], rows)


def made(name: str) -> nn.Module:
    gk.random.seed(1)
    return SMALL[name][0]()


def spec_of(x: np.ndarray) -> dict[str, object]:
    return {"x": gk.spec(x.dtype, ["batch", *x.shape[1:]])}


def test_the_published_number_of_parameters():
    assert sum(p.size for p in mlp.MLP().parameters()) == 203_530


@pytest.mark.parametrize("name", SMALL)
def test_the_eager_gradient_is_the_graphs(name):
    model = made(name)
    x, labels = data_of(name)
    loss = nn.cross_entropy(model(x), labels)
    loss.backward()
    expected = {n: p.grad.numpy() for n, p in model.named_parameters()}
    wrapped = _WithLoss(model)
    specs = [gk.spec(x.dtype, ["batch", *x.shape[1:]]), gk.spec("int64", ["batch", *labels.shape[1:]])]
    traced = gk.trace(wrapped, *specs, output_names=["loss"])
    found = gk.run(add_gradients(traced, "loss", list(expected)), {"x": x, "labels": labels}, optimizations=False)
    np.testing.assert_allclose(found["loss"], loss.numpy(), rtol=1e-6)
    # A bias in front of BatchNormalization has the gradient 0: what is left is the rounding of the others' sums.
    largest = max(float(abs(g).max()) for g in expected.values())
    for n, g in expected.items():
        own = float(abs(g).max())
        scale = own if own > 1e-5 * largest else largest
        np.testing.assert_allclose(found[f"{n}_grad"], g, rtol=1e-6, atol=1e-6 * max(scale, 1e-3), err_msg=n)


class _WithLoss:
    def __init__(self, model):
        self.model = model
        self.named_tensors = model.named_tensors

    def __call__(self, x, labels):
        return nn.cross_entropy(self.model(x), labels)

    forward = __call__


RULES = {
    # Slow enough for rounding not to grow: at 0.05 PyTorch's own float32 and float64 part by 1.3e-4 on the first resnet
    # (where graphkit is 1e-7 from float64), and graphkit's and float64 by 2.4e-4 on the second (PyTorch's: 4e-6).
    "sgd": (lambda: optim.SGD(0.01, 0.9), lambda t, p: t.optim.SGD(p, 0.01, momentum=0.9)),
    "adamw": (lambda: optim.AdamW(1e-3), lambda t, p: t.optim.AdamW(p, 1e-3)),
}


def eager_losses(
    model: nn.Module, optimizer: optim.Optimizer, x: np.ndarray, labels: np.ndarray, steps: int
) -> list[float]:
    return [program.eager_step(model, optimizer, x, labels) for _ in range(steps)]


def graph_losses(name: str, optimizer: optim.Optimizer, x: np.ndarray, labels: np.ndarray, steps: int) -> list[float]:
    graph = gk.training.build(made(name), "cross_entropy", optimizer, inputs=spec_of(x))
    trainer = gk.Trainer(graph, threads=1)  # threads that spin between such short steps only disturb one another
    return [float(trainer.step({"x": x, "labels": labels})["loss"]) for _ in range(steps)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SMALL)
def test_twenty_steps_eagerly_and_as_a_graph(name, rule):
    x, labels = data_of(name)
    eager = eager_losses(made(name), RULES[rule][0](), x, labels, 20)
    graph = graph_losses(name, RULES[rule][0](), x, labels, 20)
    assert eager[-1] < eager[0]
    np.testing.assert_allclose(graph, eager, rtol=1e-4)


@pytest.mark.torch
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SMALL)
def test_twenty_steps_are_pytorchs(name, rule):
    torch = pytest.importorskip("torch")
    from tests.torch_models import mirrored

    torch.set_num_threads(1)
    model = made(name)
    theirs = mirrored(torch, name, model)
    x, labels = data_of(name)
    optimizer = RULES[rule][1](torch, theirs.parameters())
    expected = []
    for _ in range(20):
        optimizer.zero_grad()
        logits = theirs(torch.tensor(x))
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.tensor(labels).reshape(-1))
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(graph_losses(name, RULES[rule][0](), x, labels, 20), expected, rtol=1e-4)
    np.testing.assert_allclose(eager_losses(model, RULES[rule][0](), x, labels, 20), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet", "gpt", "lstm"])
def test_one_training_file_serves_batches_of_1_32_and_77(tmp_path, name):
    x, labels = data_of(name)
    gk.training.build(made(name), "cross_entropy", optim.SGD(0.01), inputs=spec_of(x)).save(tmp_path)
    trainer = gk.Trainer(gk.training.TrainingGraph.load(tmp_path), threads=1)
    for rows in (1, 32, 77):
        take = np.arange(rows) % len(x)
        model = made(name)
        model.load_state_dict({n: v for n, v in trainer.state().items() if n in dict(model.named_tensors())})
        expected = nn.cross_entropy(model(x[take]), labels[take]).item()
        got = trainer.step({"x": np.ascontiguousarray(x[take]), "labels": np.ascontiguousarray(labels[take])})
        np.testing.assert_allclose(got["loss"], expected, rtol=2e-5)


# The programs


def test_a_causal_model_does_not_look_ahead():
    model = made("gpt").eval()
    x, _ = data_of("gpt")
    other = x.copy()
    other[:, 10:] = (other[:, 10:] + 1) % 64
    a, b = model(x).numpy(), model(other).numpy()
    np.testing.assert_array_equal(a[:, :10], b[:, :10])
    assert (a[:, 10:] != b[:, 10:]).any()


def test_gpt_with_a_length_that_differs_from_run_to_run():
    model = made("gpt").eval()
    traced = gk.trace(model, gk.spec("int64", ["batch", "time"]))
    x, _ = data_of("gpt")
    for rows, length in ((1, 3), (4, 16)):
        part = np.ascontiguousarray(x[:rows, :length])
        np.testing.assert_allclose(gk.run(traced, [part])["output"], model(part).numpy(), rtol=1e-4, atol=1e-5)


def test_the_gradient_flow_table(tmp_path, capsys):
    ratios = gradient_flow.main(["--plot", str(tmp_path / "flow.svg")])
    assert 0.1 <= ratios["relu"] <= 10
    assert ratios["sigmoid"] > 10_000
    assert (tmp_path / "flow.svg").read_text().startswith("<")
    data = fashion_mnist.load()
    norms = gradient_flow.gradient_norms("relu", data.train_images[:128], data.train_labels[:128])
    assert len(norms) == 7
    assert all(2e-3 <= n <= 3e-2 for n in norms.values())


def test_the_demo(tmp_path, capsys):
    score = demo.main(["--epochs", "4", "--output", str(tmp_path)])
    assert score >= 0.80
    made_files = {p.name for p in tmp_path.iterdir()}
    assert made_files == {
        "model.onnx",
        "model.optimized.onnx",
        "training",
        "loss.svg",
        "accuracy.svg",
        "model.svg",
        "training.svg",
    }
    assert str(tmp_path / "loss.svg") in capsys.readouterr().out.replace("\n", "")


def test_a_program_exports_the_same_model_either_way(tmp_path, capsys):
    paths = [tmp_path / "eager.onnx", tmp_path / "graph.onnx"]
    for path, extra in zip(paths, (["--eager"], []), strict=True):
        mlp.main(["--epochs", "1", "--batch", "500", "--export", str(path), *extra])
    assert capsys.readouterr().out.count("epoch 1: loss") == 2
    x = fashion_mnist.load().test_images[:20]
    eager, graph = (gk.run(path, [x])["output"] for path in paths)
    np.testing.assert_allclose(eager, graph, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("module", [mlp, lenet, resnet, gpt, lstm, demo, gradient_flow])
def test_every_program_says_what_it_takes(module, capsys):
    with pytest.raises(SystemExit) as left:
        module.main(["--help"])
    assert left.value.code == 0
    assert "usage" in capsys.readouterr().out
