"""``graphkit train``: from a file and arrays to a trained file."""

from __future__ import annotations

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


def test_resumed_training_goes_on(train: Train) -> None:
    first = train(*COMMON, "-o", "a", "--json")[1]["losses"]
    again = train(*COMMON, "-o", "b", "--json")[1]["losses"]
    assert first == again
    onward = train(*COMMON, "-o", "c", "--json", "--resume", "a/checkpoint.safetensors")[1]["losses"]
    assert onward[0] < first[0]


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
    "an unknown rule": (["--optimizer", "sdg"], 2, ["sdg"]),
    "diverging": (["--lr", "1e30", "--optimizer", "sgd", "--epochs", "3"], 1, ["diverged", "Nothing was written"]),
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
    for word in words:
        assert word in err
    assert not Path("out").exists()
