"""``graphkit train``: from a file and arrays to a trained file."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.cli import main

Train = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Train:
    """Two classes of points apart from each other, and a model with two layers for them."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 200)
    x = (generator.standard_normal((200, 3)) + 3 * labels[:, None]).astype("float32")
    np.savez("train.npz", x=x[:160], labels=labels[:160])
    np.savez("test.npz", x=x[160:], labels=labels[160:])
    model = gk.nn.Sequential(gk.nn.Linear(3, 8), gk.nn.relu, gk.nn.Linear(8, 2))
    gk.export(model, {"x": gk.spec("float32", ["batch", 3])}, "m.onnx")

    def invoke(*arguments: str) -> tuple[int, dict[str, Any], str]:
        with pytest.raises(SystemExit) as stopped:
            main(["train", "m.onnx", *arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, json.loads(out) if out.startswith("{") else {}, err

    return invoke


COMMON = ("--data", "train.npz", "--loss", "cross_entropy", "--lr", "0.02", "--seed", "1")


def test_trains_evaluates_and_writes(train: Train) -> None:
    code, report, err = train(
        *COMMON, "--test", "test.npz", "--epochs", "6", "-o", "out", "--curve", "loss.svg", "--json"
    )
    assert code == 0, err
    assert len(report["losses"]) == 6 * 5
    assert report["losses"][-1] < report["losses"][0]
    assert report["evaluations"][-1]["accuracy"] > 0.9
    assert {"train.onnx", "infer.onnx", "checkpoint.safetensors"} <= {p.name for p in Path("out").iterdir()}
    assert Path("loss.svg").is_file()
    with np.load("test.npz") as loaded:
        test = dict(loaded)
    scores = next(iter(gk.run("out/infer.onnx", {"x": test["x"]}).values()))
    assert (scores.argmax(1) == test["labels"]).mean() == pytest.approx(report["evaluations"][-1]["accuracy"])


@pytest.mark.parametrize("how", [[], ["2"], ["100kB"]], ids=str)
def test_activations_computed_again_change_no_loss(how: list[str], train: Train) -> None:
    common = (*COMMON, "--epochs", "2", "--json", "-o")
    losses = [train(*common, "out", *extra)[1]["losses"] for extra in ([], ["--recompute", *how])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    code, _, err = train(*common, "out", "--recompute", "10")
    assert code == 0, err
    code, _, err = train(*common, "out", "--recompute", "10B")
    assert code == 1
    assert "10 are not enough" in err


@pytest.mark.parametrize("rule", [["--optimizer", "sgd", "--momentum", "0.9"], ["--optimizer", "adamw"]])
def test_a_resumed_run_is_the_continuation_bit_for_bit(rule: list[str], train: Train) -> None:
    common = (*COMMON, *rule, "--batch", "30", "--json")
    whole = train(*common, "--epochs", "4", "-o", "whole")[1]["losses"]
    first = train(*common, "--epochs", "2", "-o", "first")[1]["losses"]
    resumed = ("--epochs", "2", "--resume", "first/checkpoint.safetensors")
    onward = train(*common, *resumed, "-o", "onward")[1]["losses"]
    assert len(whole) == 24
    assert first + onward == whole
    for name in ("checkpoint.safetensors", "infer.onnx"):
        assert Path("onward", name).read_bytes() == Path("whole", name).read_bytes()
    code, _, _ = train(*common, *resumed, "-o", "first")  # in its own place too
    assert code == 0
    assert Path("first/checkpoint.safetensors").read_bytes() == Path("whole/checkpoint.safetensors").read_bytes()


def test_a_run_resumed_within_an_epoch_goes_on_there(train: Train) -> None:
    common = (*COMMON, "--json", "--batch", "40")
    whole = train(*common, "--epochs", "3", "-o", "whole")[1]["losses"]
    graph = gk.training.build("m.onnx", "cross_entropy", gk.optim.AdamW(0.02))
    trainer = gk.Trainer(graph)
    with np.load("train.npz") as loaded:
        data = dict(loaded)
    for epoch, count in ((0, 4), (1, 1)):
        order = np.random.default_rng([1, epoch]).permutation(160)
        for start in range(0, count * 40, 40):
            trainer.step({name: array[order[start : start + 40]] for name, array in data.items()})
    trainer.save("five.safetensors")
    report = train(*common, "--test", "test.npz", "--resume", "five.safetensors", "-o", "onward")[1]
    assert report["losses"] == whole[5:9]
    assert len(report["evaluations"]) == 2


def test_a_failed_save_names_the_folder_and_leaves_nothing(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path("old").mkdir()
    Path("old/infer.onnx").write_bytes(b"old")
    monkeypatch.setattr("os.fsync", full)
    for folder in ("out", "old"):
        code, _, err = train(*COMMON, "-o", folder)
        assert code == 1
        assert f"{folder}/train.onnx could not be written: No space left on device" in err
        assert ".new" not in err
    assert not Path("out").exists()
    assert [path.name for path in Path("old").iterdir()] == ["infer.onnx"]


def test_progress_is_shown_on_stderr(train: Train) -> None:
    code, report, err = train(*COMMON, "-o", "out", "--optimizer", "sgd", "--momentum", "0.9")
    assert (code, report) == (0, {})
    assert "epoch 1" in err


FAILS: dict[str, tuple[list[str], int, list[str]]] = {
    "no such data": (["--data", "no.npz"], 1, ["no.npz cannot be read"]),
    "rows that differ": (["--data", "uneven.npz"], 1, ["uneven.npz", "x: 3, labels: 2"]),
    "no labels": (["--data", "unlabelled.npz"], 1, ["missing input 'labels'"]),
    "labels out of range": (["--data", "wrong.npz"], 1, ["7"]),
    "an unknown loss": (["--loss", "cross_entrpy"], 1, ["cross_entrpy"]),
    "an unknown parameter": (["--trainable", "nothing"], 1, ["nothing"]),
    "momentum for adam": (["--momentum", "0.9"], 2, ["--momentum"]),
    "a learning rate that is no number": (["--lr", "nan"], 2, ["--lr is a number from 0 up, not nan"]),
    "too much momentum": (["--optimizer", "sgd", "--momentum", "2"], 2, ["--momentum is a number from 0 to below 1"]),
    "a model for data": (["--data", "m.onnx"], 2, ["--data takes a .npz file", "not m.onnx"]),
    "a model for tests": (["--test", "m.onnx"], 2, ["--test takes a .npz file", "not m.onnx"]),
    "a negative seed": (["--seed", "-1"], 2, ["--seed"]),
    "an unknown rule": (["--optimizer", "sdg"], 2, ["sdg"]),
    "diverging": (["--lr", "1e30", "--optimizer", "sgd", "--epochs", "3"], 1, ["diverged", "Nothing was written"]),
    "a file in the place of the folder": (["-o", "m.onnx"], 1, ["m.onnx is a file"]),
    "a file above the folder": (["-o", "m.onnx/out"], 1, ["m.onnx is a file"]),
    "a curve of an unknown kind": (["--curve", "c.jpg"], 1, ["c.jpg", ".svg or .png"]),
    "a curve into no folder": (["--curve", "no/c.svg"], 1, ["no/c.svg", "no folder no"]),
    "no such checkpoint": (["--resume", "no.safetensors"], 1, ["no.safetensors"]),
}


@pytest.mark.parametrize("name", FAILS)
def test_failures_are_one_message_and_leave_the_folder(name: str, train: Train) -> None:
    arguments, expected, words = FAILS[name]
    x = np.ones((3, 3), "float32")
    np.savez("uneven.npz", x=x, labels=np.array([0, 1]))
    np.savez("unlabelled.npz", x=x)
    np.savez("wrong.npz", x=x, labels=np.array([0, 1, 7]))
    code, _, err = train(*COMMON, "-o", "out", *arguments)
    assert code == expected, err
    if "-o" in arguments or "--curve" in arguments:
        assert "epoch" not in err  # told before the training, not after it
    for word in words:
        assert word in err
    assert "click" not in err
    assert "clip_norm" not in err
    assert not Path("out").exists()
