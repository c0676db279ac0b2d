"""Training graphs: what is trained and what is not, files, resuming, micro-batches, and what can be wrong."""

from __future__ import annotations

import doctest
import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import safetensors.numpy

import graphkit as gk
from graphkit import nn, optim
from graphkit.errors import GradientError, GraphkitError, InputError, ModelFileError
from graphkit.training import TrainingGraph, build
from graphkit.training import folders as folders_module
from graphkit.training import graphs as graphs_module
from graphkit.training.states import read_state, write_state

RNG = np.random.default_rng(0)
X3 = gk.spec("float32", ["n", 3])


def module(dropout: float = 0.0) -> nn.Module:
    gk.random.seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.relu, nn.Dropout(dropout), nn.Linear(8, 4))


def batch(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, 3)).astype("f"), "labels": rng.integers(0, 4, rows)}


def graph_of(model: nn.Module | None = None, optimizer: optim.Optimizer | None = None, **settings) -> TrainingGraph:
    return build(model or module(), "cross_entropy", optimizer or optim.AdamW(0.01), inputs={"x": X3}, **settings)


def file_model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text)


LINEAR = """g (float[N, 2] x) => (float[N, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {0.1, 0.2, 0.3}>
{p = MatMul(x, w) y = Add(p, b)}"""


# Steps


@pytest.mark.parametrize(
    "optimizer", [optim.SGD(0.1), optim.SGD(0.1, 0.9, nesterov=True), optim.AdamW(0.01, clip_norm=1.0)]
)
def test_a_step_is_what_the_eager_step_is(optimizer):
    model = module(dropout=0.3)
    trainer = gk.Trainer(graph_of(model, optimizer))
    for n in range(10):
        data = batch(5 + n, seed=n)
        model.zero_grad()
        loss = nn.cross_entropy(model(data["x"]), data["labels"])
        loss.backward()
        optimizer.step(model.parameters())
        np.testing.assert_allclose(trainer.step(data)["loss"], loss.numpy(), rtol=2e-6)
    state = trainer.state()
    for name, value in model.state_dict().items():  # the random state of Dropout among them
        np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-5)


def test_one_graph_serves_every_batch_size(tmp_path):
    graph_of().save(tmp_path)
    trainer = gk.Trainer(TrainingGraph.load(tmp_path))
    for rows in (1, 32, 77):
        data = batch(rows)
        assert np.isfinite(trainer.step(data)["loss"])
        assert trainer.evaluate(data)["output"].shape == (rows, 4)


def test_evaluating_is_inference_with_the_parameters_as_they_are(tmp_path):
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm(8), nn.Dropout(0.5), nn.Linear(8, 4))
    trainer = gk.Trainer(graph_of(model))
    for n in range(3):
        trainer.step(batch(8, n))
    data = batch(6)
    found = trainer.evaluate(data)
    trainer.export_inference(tmp_path / "m.onnx")
    np.testing.assert_allclose(
        gk.run(tmp_path / "m.onnx", {"x": data["x"]})["output"], found["output"], rtol=1e-5, atol=1e-6
    )
    model.load_state_dict({n: v for n, v in trainer.state().items() if n in dict(model.named_tensors())})
    np.testing.assert_allclose(model.eval()(data["x"]).numpy(), found["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nn.cross_entropy(model(data["x"]), data["labels"]).numpy(), found["loss"], rtol=1e-5)
    assert (trainer.state()["1.running_mean"] != 0).all()


def test_building_leaves_the_module_and_its_mode_alone():
    model = module(0.5)
    model[2].training = False
    before = model.state_dict()
    graph_of(model)
    assert [m.training for _, m in model.named_modules()] == [True, True, False, True]
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


# Losses


def test_a_loss_by_the_name_of_an_output():
    model = file_model("""g (float[N, 2] x, float[N] t) => (float[N] y, float loss) <float[2] w = {0.5, -1}>
        {y = MatMul(x, w) d = Sub(y, t) s = Mul(d, d) loss = ReduceMean<keepdims=0>(s)}""")
    trainer = gk.Trainer(build(model, "loss", optim.SGD(0.1)))
    data = {"x": RNG.normal(size=(5, 2)).astype("f"), "t": RNG.normal(size=5).astype("f")}
    losses = [trainer.step(data)["loss"] for _ in range(30)]
    assert losses[-1] < losses[0]
    assert set(trainer.evaluate(data)) == {"loss", "y"}
    made = trainer.graph.inference(trainer.state())
    assert [v.name for v in made.graph.inputs] == ["x"]
    assert [v.name for v in made.graph.outputs] == ["y"]


@pytest.mark.parametrize("name", ["mse", "l1", "huber", "binary_cross_entropy_with_logits"])
def test_a_loss_by_its_own_name_takes_labels_like_the_output(name):
    trainer = gk.Trainer(build(file_model(LINEAR), name, optim.SGD(0.05)))
    data = {"x": RNG.normal(size=(6, 2)).astype("f"), "labels": RNG.uniform(size=(6, 3)).astype("f")}
    losses = [trainer.step(data)["loss"] for _ in range(50)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, labels: ((outputs - labels) ** 2).mean(),
        lambda outputs, labels, scale=1.0: nn.mse(outputs, labels) * scale,
        nn.mse,
        lambda outputs: (outputs * outputs).mean(),
    ],
)
def test_a_loss_that_is_a_function(loss):
    graph = build(file_model(LINEAR), loss, optim.SGD(0.05))
    data = {"x": RNG.normal(size=(6, 2)).astype("f"), "labels": RNG.uniform(size=(6, 3)).astype("f")}
    data = {name: data[name] for name in graph.inputs}
    trainer = gk.Trainer(graph)
    losses = [trainer.step(data)["loss"] for _ in range(20)]
    assert losses[-1] < losses[0]


def test_labels_of_another_kind():
    loss = lambda outputs, labels: nn.cross_entropy(outputs, labels.astype("int64"))
    graph = build(module(), loss, inputs=[X3], labels=gk.spec("int32", ["n"], name="targets"))
    assert graph.inputs == ["x", "targets"]
    gk.Trainer(graph).step({"x": batch(3)["x"], "targets": np.array([0, 1, 2], "int32")})


# What is trained


def test_frozen_batch_norm():
    model = file_model("""g (float[4, 2, 3] x) => (float loss)
        <float[2] s = {1.5, -0.5}, float[2] b = {0.1, 0.2}, float[2] rm = {0.5, -1}, float[2] rv = {2, 0.25}>
        {y = BatchNormalization(x, s, b, rm, rv) z = Tanh(y) loss = ReduceMean<keepdims=0>(z)}""")
    graph = build(model, "loss", optim.SGD(0.1))
    assert graph.trainable == ["s", "b"]
    assert graph.frozen == dict.fromkeys(("rm", "rv"), "running statistics of BatchNormalization")
    trainer = gk.Trainer(graph)
    trainer.step({"x": RNG.normal(size=(4, 2, 3)).astype("f")})
    made = {n: v.const_value.numpy() for n, v in graph.inference(trainer.state()).graph.initializers.items()}
    np.testing.assert_array_equal(made["rm"], [0.5, -1])
    assert (made["s"] != [1.5, -0.5]).all()


def test_a_scale_that_an_exporter_merged_with_a_variance_still_learns():
    model = file_model("""g (float[N, 2] x) => (float[N, 2] z) <float[2] s = {1, 1}, float[2] b = {0, 0}>
        {rm = Identity(b) rv = Identity(s) y = BatchNormalization(x, s, b, rm, rv) z = Tanh(y)}""")
    graph = build(model, "mse", optim.SGD(0.1))
    assert (graph.trainable, sorted(graph.frozen)) == (["s", "b"], ["rm", "rv"])
    trainer = gk.Trainer(graph, threads=1)
    trainer.step({"x": RNG.normal(size=(4, 2)).astype("f"), "labels": np.ones((4, 2), "f")})
    made = {n: v.const_value.numpy() for n, v in graph.inference(trainer.state()).graph.initializers.items()}
    np.testing.assert_array_equal(made["rv"], [1, 1])
    np.testing.assert_array_equal(made["s"], trainer.state()["s"])
    assert (made["s"] != 1).all()


def test_training_batch_norm_of_a_file_moves_its_statistics():
    model = file_model("""g (float[N, 2] x) => (float[N, 2] z)
        <float[2] s = {1.5, -0.5}, float[2] b = {0.1, 0.2}, float[2] rm = {0.5, -1}, float[2] rv = {2, 0.25}>
        {y, m, v = BatchNormalization<training_mode=1>(x, s, b, rm, rv) z = Tanh(y)}""")
    graph = build(model, "mse", optim.SGD(0.1))
    assert (graph.trainable, graph.buffers) == (["s", "b"], ["rm", "rv"])
    trainer = gk.Trainer(graph)
    x = RNG.normal(size=(8, 2)).astype("f")
    trainer.step({"x": x, "labels": np.zeros((8, 2), "f")})
    np.testing.assert_allclose(trainer.state()["rm"], 0.9 * np.array([0.5, -1]) + 0.1 * x.mean(0), rtol=1e-5)


DROPOUT = """g (float[N, 64] x) => (float[N, 64] y, float loss) <float[64] w, float r = {0.25}, bool t = {1}>
{p = Mul(x, w) y, m = Dropout<seed=7>(p, r, t) loss = ReduceSum<keepdims=0>(y)}"""


def dropout_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + DROPOUT.replace("float[64] w, ", ""))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(64, "f"), "w"))
    return model


def test_dropout_of_a_file_uses_one_mask_and_is_resumed(tmp_path):
    def fresh() -> gk.Trainer:
        return gk.Trainer(build(dropout_model(), "loss", optim.SGD(1.0)), threads=1)

    x = np.ones((1, 64), "f")
    straight = fresh()
    before = straight.state()["w"]
    loss = straight.step({"x": x})["loss"]
    gradient = before - straight.state()["w"]
    assert set(np.unique(gradient)) == {np.float32(0), np.float32(4 / 3)}
    np.testing.assert_allclose(gradient.sum(), loss, rtol=1e-6)  # x and w are all ones: the gradient is the output
    assert len(straight.graph.buffers) == 1
    losses = [loss] + [straight.step({"x": x})["loss"] for _ in range(5)]
    first = fresh()
    got = [first.step({"x": x})["loss"] for _ in range(3)]
    first.save(tmp_path / "s.safetensors")
    second = fresh()
    second.load(tmp_path / "s.safetensors")
    assert got + [second.step({"x": x})["loss"] for _ in range(3)] == losses
    np.testing.assert_array_equal(straight.evaluate({"x": x})["y"], x * straight.state()["w"])
    made = straight.graph.inference(straight.state())
    assert not any(node.op_type == "Dropout" and len(node.inputs) > 2 for node in made.graph)


UNUSED = """g (float[2] x) => (float loss, float[2] other)
<float[2] w = {1, 2}, float[2] frozen = {3, 4}, float[2] side = {5, 6}>
{h = Mul(x, w) y = Add(h, frozen) loss = ReduceSum<keepdims=0>(y) other = Mul(x, side)}"""


def test_unused_and_frozen_parameters():
    graph = build(file_model(UNUSED), "loss", optim.SGD(0.1), trainable=lambda name: name != "frozen")
    assert graph.trainable == ["w"]
    assert graph.frozen == {"frozen": "not named in trainable", "side": "the loss does not depend on it"}
    trainer = gk.Trainer(graph)
    trainer.step({"x": np.array([7, 8], "f")})
    np.testing.assert_allclose(trainer.state()["w"], [1 - 0.7, 2 - 0.8], rtol=1e-6)
    values = {n: v.const_value.numpy() for n, v in graph.inference(trainer.state()).graph.initializers.items()}
    np.testing.assert_array_equal(values["frozen"], [3, 4])
    assert build(file_model(UNUSED), "loss").trainable == ["w", "frozen"]
    assert build(file_model(UNUSED), "loss", trainable=["frozen"]).trainable == ["frozen"]


def test_a_parameter_that_is_used_twice_is_one():
    model = file_model("""g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}>
        {p = MatMul(x, w) q = MatMul(p, w) y = Tanh(q)}""")
    graph = build(model, "mse", optim.SGD(0.1))
    assert graph.trainable == ["w"]


def test_a_file_whose_weights_are_all_constant_nodes():
    model = file_model("""g (float[N, 2] x) => (float[N, 2] y)
        {w = Constant<value = float[2, 2] {1, 2, 3, 4}>() b = Constant<value = float[2] {1, 2}>()
         two = Constant<value = float {2}>() p = MatMul(x, w) q = Mul(p, two) y = Add(q, b)}""")
    graph = build(model, "mse", optim.SGD(0.01))
    assert graph.trainable == ["w", "b"]
    trainer = gk.Trainer(graph, threads=1)
    trainer.step({"x": np.ones((3, 2), "f"), "labels": np.zeros((3, 2), "f")})
    made = trainer.graph.inference(trainer.state())
    np.testing.assert_array_equal(made.graph.initializers["w"].const_value.numpy(), trainer.state()["w"])


def test_two_parameters_of_equal_values_stay_two():
    model = file_model("""g (float[N, 2] x) => (float[N, 2] y) <float[2] a = {1, 1}, float[2] b = {1, 1}>
        {p = Mul(x, a) q = Add(p, b) y = Tanh(q)}""")
    trainer = gk.Trainer(build(model, "mse", optim.SGD(0.1)))
    trainer.step({"x": RNG.normal(size=(4, 2)).astype("f"), "labels": np.zeros((4, 2), "f")})
    state = trainer.state()
    assert (state["a"] != state["b"]).any()


WRONG = {
    "vector loss": (lambda: build(file_model(LINEAR), "y"), r"loss 'y' has shape \[N, 3\], and a loss is a scalar"),
    "unknown loss": (
        lambda: build(file_model(LINEAR), "cross_entorpy"),
        "there is no loss 'cross_entorpy'. Did you mean 'cross_entropy'",
    ),
    "function of vectors": (lambda: build(file_model(LINEAR), lambda y, t: y - t), "a loss is a scalar. Reduce it"),
    "two outputs": (lambda: build(file_model(UNUSED), "mse"), r"has 2 \(loss, other\). Write a function: loss=lambda"),
    "not reached": (
        lambda: build(file_model(UNUSED), "loss", trainable=["w", "side"]),
        "does not depend on 'side' by any differentiable",
    ),
    "unknown name": (
        lambda: build(file_model(UNUSED), "loss", trainable=["sied"]),
        "names 'sied'.* Did you mean 'side'",
    ),
    "nothing": (lambda: build(file_model(UNUSED), "loss", trainable=lambda n: False), "nothing to train"),
    "no inputs": (lambda: build(module(), "cross_entropy"), "a module's inputs must be described"),
    "function": (lambda: build(lambda x: x, "mse"), "a plain function owns no parameters"),
    "optimizer": (lambda: build(file_model(UNUSED), "loss", "adam"), "optimizer is a rule of gk.optim"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_built_is_one_clear_error(case):
    call, message = WRONG[case]
    with pytest.raises(GraphkitError, match=message):
        call()


def test_every_missing_gradient_is_named():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "acme.custom": 1]>
        g (float[2, 2] x) => (float loss) <float[2, 2] w = {1, 0, 0, 1}>
        {h = MatMul(x, w) a = acme.custom.Warp(h) b = acme.custom.Bend(a) loss = ReduceSum<keepdims=0>(b)}""")
    with pytest.raises(GradientError, match=r"no gradient rule for .*Bend.*Warp"):
        build(model, "loss")


BAD_BATCHES = {
    "missing": ({"x": np.zeros((2, 3), "f")}, "missing input 'labels'"),
    "unknown": (batch(2) | {"y": np.zeros(2)}, "unknown input 'y'"),
    "dtype": (batch(2) | {"labels": np.zeros(2, "f")}, r"input 'labels' takes int64\[n\], but got float32\[2\]"),
    "rank": (batch(2) | {"labels": np.zeros((2, 1), "int64")}, "rank 2 .* where rank 1 is expected"),
    "size": (batch(2) | {"labels": np.zeros(3, "int64")}, "dimension 'n' is 2 in input 'x' but 3 in input 'labels'"),
    "high": (batch(2) | {"labels": np.array([0, 4])}, "label 4; the model has 4 classes, 0 to 3"),
    "low": (batch(2) | {"labels": np.array([0, -1])}, "label -1; the model has 4 classes"),
    "list": ([batch(2)], "needs a graph built with build"),
    "empty": (batch(0), "input 'x' has no elements"),
    "NaN": (
        batch(2) | {"x": np.full((2, 3), np.nan, "f")},
        "input 'x' holds 6 NaN and 0 infinite values.*was not taken",
    ),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_batch_that_does_not_fit_changes_nothing(case):
    given, message = BAD_BATCHES[case]
    trainer = gk.Trainer(graph_of(), threads=1)
    before = trainer.state()
    with pytest.raises(GraphkitError, match=message):
        trainer.step(given)
    for name, value in trainer.state().items():
        np.testing.assert_array_equal(value, before[name])
    trainer.step(batch(2))


def test_a_step_that_overflows_is_taken_back():
    trainer = gk.Trainer(build(file_model(LINEAR), "mse", optim.SGD(0.1)))
    data = {"x": np.ones((2, 2), "f"), "labels": np.zeros((2, 3), "f")}
    trainer.step(data)
    before = trainer.state()
    with pytest.raises(GraphkitError, match="the loss is inf after 1 steps; this step was not taken"):
        trainer.step(data | {"labels": np.full((2, 3), 1e30, "f")})
    for name, value in trainer.state().items():
        np.testing.assert_array_equal(value, before[name])
    assert trainer.steps == 1
    trainer.step(data | {"labels": np.full((2, 3), 1e18, "f")})  # its loss is finite, and it spoils the next
    trainer.step(data | {"labels": np.full((2, 3), 1e18, "f")})


@pytest.mark.parametrize("case", ["NaN", "empty", "low"])
def test_a_micro_batch_that_does_not_fit_changes_nothing(case):
    given, message = BAD_BATCHES[case]
    trainer = gk.Trainer(graph_of(accumulate=True))
    before = trainer.state()
    with pytest.raises(GraphkitError, match=message):
        trainer.step([batch(3), given])
    for name, value in trainer.state().items():
        np.testing.assert_array_equal(value, before[name])


# Micro-batches


@pytest.mark.parametrize("optimizer", [optim.SGD(1.0), optim.AdamW(0.1, clip_norm=0.5)])
def test_uneven_micro_batches(optimizer):
    x, t = RNG.normal(size=(7, 2)).astype("f"), RNG.normal(size=7).astype("f")
    text = "g (float[N, 2] x) => (float[N] y) <float[2] w = {0.5, -1}> {y = MatMul(x, w)}"
    whole = gk.Trainer(build(file_model(text), "mse", optimizer))
    parts = gk.Trainer(build(file_model(text), "mse", optimizer, accumulate=True))
    again = gk.Trainer(build(file_model(text), "mse", optimizer, accumulate=True))
    data = {"x": x, "labels": t}
    cut = [{"x": x[a:b], "labels": t[a:b]} for a, b in ((0, 3), (3, 6), (6, 7))]
    for _ in range(3):
        losses = [whole.step(data), parts.step(cut), again.step(data, micro_batch=3)]
        for other in losses[1:]:
            np.testing.assert_allclose(other["loss"], losses[0]["loss"], rtol=1e-5)
        for other in (parts, again):
            np.testing.assert_allclose(other.state()["w"], whole.state()["w"], rtol=1e-5)
    assert parts.steps == 3


def test_a_sum_is_added_up_unweighted():
    text = "g (float[N, 2] x) => (float[N] y) <float[2] w = {0.5, -1}> {y = MatMul(x, w)}"
    loss = lambda y, t: nn.mse(y, t, reduction="sum")
    whole = gk.Trainer(build(file_model(text), loss, optim.SGD(0.01), reduction="sum"))
    parts = gk.Trainer(build(file_model(text), loss, optim.SGD(0.01), reduction="sum", accumulate=True))
    data = {"x": RNG.normal(size=(7, 2)).astype("f"), "labels": RNG.normal(size=7).astype("f")}
    np.testing.assert_allclose(parts.step(data, micro_batch=3)["loss"], whole.step(data)["loss"], rtol=1e-5)
    np.testing.assert_allclose(parts.state()["w"], whole.state()["w"], rtol=1e-5)


def test_half_a_step_leaves_nothing_behind():
    trainer = gk.Trainer(graph_of(accumulate=True))
    before = trainer.state()
    with pytest.raises(InputError):
        trainer.step([batch(3), batch(2) | {"labels": np.array([0, 9])}])
    with pytest.raises(InputError):
        trainer.step([batch(3), {"x": batch(2)["x"]}])
    for name, value in trainer.state().items():
        np.testing.assert_array_equal(value, before[name])


# Files


@pytest.mark.parametrize("optimizer", [optim.SGD(0.1, 0.9), optim.AdamW(optim.warm_up(3, optim.cosine(0.1, 20)))])
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, optimizer):
    def fresh() -> gk.Trainer:
        return gk.Trainer(graph_of(module(dropout=0.4), optimizer), threads=1)

    straight = fresh()
    expected = [straight.step(batch(6, n))["loss"] for n in range(10)]
    first = fresh()
    got = [first.step(batch(6, n))["loss"] for n in range(5)]
    first.save(tmp_path / "state.safetensors")
    first.graph.save(tmp_path / "graph")
    for second in (fresh(), gk.Trainer(TrainingGraph.load(tmp_path / "graph"), threads=1)):
        second.load(tmp_path / "state.safetensors")
        assert second.steps == 5
        assert got + [second.step(batch(6, n))["loss"] for n in range(5, 10)] == expected
        for name, value in second.state().items():
            np.testing.assert_array_equal(value, straight.state()[name])


def test_the_folder_holds_what_it_says(tmp_path):
    graph_of(module(0.5)).save(tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "checkpoint.safetensors", "eval.onnx", "infer.onnx", "manifest.json", "train.onnx",
    ]  # fmt: skip
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["inputs"] == [
        {"name": "x", "dtype": "float32", "dims": ["n", 3]}, {"name": "labels", "dtype": "int64", "dims": ["n"]}
    ]  # fmt: skip
    assert manifest["trainable"] == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert manifest["optimizer"]["rule"] == "AdamW"
    assert {one["name"] for one in manifest["state"]} >= {"2.key", "optimizer.step", "0.weight.first_moment"}
    for name in ("train", "eval", "infer"):
        onnx.checker.check_model(str(tmp_path / "out" / f"{name}.onnx"), full_check=True)
        model = onnx.load(tmp_path / "out" / f"{name}.onnx")
        assert {n.domain for n in model.graph.node} == {""}


def test_other_files_of_the_folder_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    graph_of().save(tmp_path)
    graph_of().save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_leaves_the_old_files_whole(tmp_path, monkeypatch):
    graph_of(optimizer=optim.SGD(0.1)).save(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(
        "graphkit.training.graphs.write_state", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(ModelFileError, match="could not be written: No space left"):
        graph_of(optimizer=optim.AdamW(0.1)).save(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_save_that_is_killed_while_files_are_moved_is_finished_by_the_next_reader(tmp_path, monkeypatch):
    graph_of(optimizer=optim.SGD(0.1)).save(tmp_path)
    moved = []

    def killed(self, target):
        if folders_module._READY in str(self):
            if moved:
                raise KeyboardInterrupt
            moved.append(target)
        return replace(self, target)

    replace = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            graph_of(optimizer=optim.AdamW(0.1)).save(tmp_path)
    assert TrainingGraph.load(tmp_path).optimizer["rule"] == "AdamW"
    assert min(p.name for p in tmp_path.iterdir()) == "checkpoint.safetensors"


BAD_FOLDERS = {
    "nothing": (lambda f: [p.unlink() for p in f.iterdir()], "holds no training graph: there is no manifest.json"),
    "manifest": (lambda f: (f / "manifest.json").write_text("{"), "manifest.json cannot be read"),
    "version": (
        lambda f: (f / "manifest.json").write_text('{"version": 99}'),
        "is not the manifest of a training graph of version 1",
    ),
    "checkpoint": (
        lambda f: (f / "checkpoint.safetensors").write_bytes(b"x" * 20),
        "is damaged, cut short or not a .safetensors",
    ),
    "train": (lambda f: (f / "train.onnx").write_bytes(b""), "train.onnx is empty"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_folder_that_is_damaged_is_one_clear_error(tmp_path, case):
    damage, message = BAD_FOLDERS[case]
    graph_of().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelFileError, match=message):
        TrainingGraph.load(tmp_path)


def test_a_state_of_another_graph_is_refused_and_changes_nothing(tmp_path):
    trainer = gk.Trainer(graph_of(optimizer=optim.SGD(0.1)))
    gk.Trainer(graph_of(optimizer=optim.AdamW(0.1))).save(tmp_path / "adam.safetensors")
    before = trainer.state()
    with pytest.raises(InputError, match=r"is not a state of this training graph: .*first_moment' is unknown"):
        trainer.load(tmp_path / "adam.safetensors")
    with pytest.raises(ModelFileError, match="does not exist"):
        trainer.load(tmp_path / "none.safetensors")
    with pytest.raises(ModelFileError, match=r"the folder .* does not exist"):
        trainer.save(tmp_path / "no" / "where.safetensors")
    for name, value in trainer.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_cuda_that_is_not_there_is_an_error():
    if "cuda" in str(gk.runtime.available_devices()):
        pytest.skip("there is a CUDA GPU here")
    with pytest.raises(GraphkitError, match=r"(?i)cuda"):
        gk.Trainer(graph_of(), device="cuda")


def test_the_cuda_benchmark_says_why_it_cannot_run(monkeypatch, capsys):
    if "cuda" in str(gk.runtime.available_devices()):
        pytest.skip("there is a CUDA GPU here")
    from benchmarks import cuda

    monkeypatch.setattr("sys.argv", ["cuda"])
    assert cuda.main() == 2
    assert "benchmarks.cuda needs a CUDA GPU: cuda:0 is not available" in capsys.readouterr().err


def test_the_examples_of_the_guide_run():
    guide = Path(__file__).parent.parent / "docs" / "training.md"
    if not guide.is_file():
        pytest.skip("the source distribution holds no docs")
    failed, tried = doctest.testfile(str(guide), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (failed, tried > 10) == (0, True)


def test_equal_states_are_equal_files_and_older_files_are_read(tmp_path: Path) -> None:
    state = {"w": np.ones((2, 3), "float32"), "b": np.zeros(2, "int64")}
    told = {"format": "graphkit training state", "steps": "7"}
    contents = set()
    for number in range(20):
        order = told if number % 2 else dict(reversed(told.items()))
        write_state(tmp_path / "s.safetensors", state, order)
        contents.add((tmp_path / "s.safetensors").read_bytes())
    assert len(contents) == 1
    assert read_state(tmp_path / "s.safetensors")[1] == told
    (tmp_path / "older.safetensors").write_bytes(safetensors.numpy.save(state, told))
    assert read_state(tmp_path / "older.safetensors")[1] == told
    (tmp_path / "bad.safetensors").write_bytes(safetensors.numpy.save(state, {"graphkit": "{"}))
    with pytest.raises(ModelFileError, match="damaged"):
        read_state(tmp_path / "bad.safetensors")


def test_links_in_a_folder_stay_and_pipes_are_refused(tmp_path: Path) -> None:
    graph, folder = graph_of(), tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoint.safetensors").symlink_to("../kept.safetensors")
    graph.save(folder)
    assert (folder / "checkpoint.safetensors").is_symlink()
    assert (tmp_path / "kept.safetensors").is_file() and not (tmp_path / "kept.safetensors").is_symlink()
    assert sorted(p.name for p in folder.iterdir()) == sorted(graphs_module.FILES)
    np.testing.assert_array_equal(TrainingGraph.load(folder).state["0.weight"], graph.state["0.weight"])
    if hasattr(os, "mkfifo"):
        (folder / "manifest.json").unlink()
        os.mkfifo(folder / "manifest.json")
        with pytest.raises(ModelFileError, match=r"manifest.json could not be written: it is a named pipe"):
            graph.save(folder)
        with pytest.raises(ModelFileError, match=r"manifest.json cannot be read: .*named pipe"):
            TrainingGraph.load(folder)
        assert (folder / "manifest.json").is_fifo()
