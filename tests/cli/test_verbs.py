"""The command line: what it prints, its exit codes, and that a failure is one message and leaves files as they were."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import onnx
import pytest

from graphkit import optim
from graphkit.cli import VERBS, _message, main
from graphkit.errors import GraphkitError
from graphkit.exporters import write_test_vectors
from graphkit.modelfile import write_model

Invoke = Callable[..., tuple[int, str, str]]

MODELS = {
    "neg": "(float[batch, 2] x) => (float[batch, 2] y) {y = Neg(x)}",
    "double": "(float[batch, 2] x) => (float[batch, 2] y) {y = Add(x, x)}",
    "twice": "(float[batch, 2] x) => (float[batch, 2] y) <float two = {2}> {y = Mul(x, two)}",
    "two": "(float[N] x, float lr) => (float[N] a, float[N] b) {a = Mul(x, lr) b = Neg(x)}",
    "words": "(string[N] words) => (string[N] out) {out = Identity(words)}",
    "half": "(bfloat16[N] x) => (bfloat16[N] y) {y = Identity(x)}",
    "pieces": "(float[4] x) => (seq(float[2]) y) {y = SplitToSequence<axis = 0>(x, s)}",
    "loss": "(float[N, 2] x) => (float loss) <float[2] w = {1, 2}> {p = Mul(x, w) loss = ReduceSum<keepdims = 0>(p)}",
    "side": "(float[2] x) => (float loss, float[2] v) <float[2] w = {1, 2}, float[2] u = {1, 2}, float s = {2}> {"
    "p = Mul(x, w) q = Mul(p, s) loss = ReduceSum<keepdims = 0>(q) v = Neg(u)}",
    "unfit": "(float[3, 5] x) => (float loss) <float[2] w = {1, 2}> {p = Add(x, w) loss = ReduceSum<keepdims = 0>(p)}",
    "lookup": "(int64[N] ids) => (float[N, 1] y) <float[3, 1] table = {1, 2, 3}> {y = Gather(table, ids)}",
}
MODELS["pieces"] = MODELS["pieces"].replace(" {y", " <int64 s = {2}> {y")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODELS.items():
        proto = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g ' + text)
        (tmp_path / f"{name}.onnx").write_bytes(proto.SerializeToString())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def graphkit(models: Path, capfd: pytest.CaptureFixture[str]) -> Invoke:
    def invoke(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, out, err

    return invoke


X = np.array([[1, 2], [3, 4]], "float32")


def _saved(path: str) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def test_run_from_npy_to_npz(graphkit: Invoke) -> None:
    np.save("x.npy", X)
    code, out, err = graphkit("run", "neg.onnx", "--input", "x=x.npy", "-o", "out.npz")
    assert (code, err) == (0, "")
    assert "float32[2, 2]" in out
    assert "written to out.npz" in out
    np.testing.assert_array_equal(_saved("out.npz")["y"], -X)


def test_run_from_npz_and_json_and_values(graphkit: Invoke) -> None:
    np.savez("feeds.npz", x=X)
    assert graphkit("run", "neg.onnx", "--inputs", "feeds.npz", "-o", "out.npy")[0] == 0
    np.testing.assert_array_equal(np.load("out.npy"), -X)
    Path("feeds.json").write_text(json.dumps({"x": [1, 2.5]}))
    code, out, _ = graphkit("run", "two.onnx", "--inputs", "feeds.json", "--input", "lr=0.5", "--json", "--output", "a")
    assert code == 0
    report = json.loads(out)
    assert report["outputs"] == {"a": {"type": "float32[2]", "shape": [2], "data": [0.5, 1.25]}}
    assert report["device"] == "cpu"


def test_run_on_test_vectors(graphkit: Invoke) -> None:
    folder = write_test_vectors(".", {"x": X}, {"y": -X})
    code, out, _ = graphkit("run", "neg.onnx", "--inputs", str(folder), "--json")
    assert (code, json.loads(out)["outputs"]["y"]["data"]) == (0, (-X).tolist())
    code, out, _ = graphkit("run", "neg.onnx", "--input", f"x={folder}/input_0.pb", "--json")
    assert (code, json.loads(out)["outputs"]["y"]["data"]) == (0, (-X).tolist())


def test_run_on_made_up_inputs_is_repeatable(graphkit: Invoke) -> None:
    results = [
        graphkit("run", "neg.onnx", "--random", "--dim", "batch=4", "--seed", seed, "--json")[1]
        for seed in ("1", "1", "2")
    ]
    data = [json.loads(out)["outputs"]["y"]["data"] for out in results]
    assert len(data[0]) == 4
    assert data[0] == data[1] != data[2]
    assert graphkit("run", "lookup.onnx", "--random", "--dim", "N=50")[0] == 0


def test_text_goes_in_and_out_without_pickle(graphkit: Invoke) -> None:
    words = ["Käse", "", "\U0001f40d"]
    Path("words.json").write_text(json.dumps({"words": words}), encoding="utf-8")
    code, out, _ = graphkit("run", "words.onnx", "--inputs", "words.json", "--json")
    assert (code, json.loads(out)["outputs"]["out"]["data"]) == (0, words)
    assert graphkit("run", "words.onnx", "--inputs", "words.json", "-o", "out.npz")[0] == 0
    assert _saved("out.npz")["out"].tolist() == words
    np.save("w.npy", np.array(words))
    assert graphkit("run", "words.onnx", "--input", "words=w.npy")[0] == 0


def test_element_types_that_numpy_files_lack_are_widened(graphkit: Invoke) -> None:
    assert graphkit("run", "half.onnx", "--input", "x=[1, 2.5]", "-o", "out.npz")[0] == 0
    saved = _saved("out.npz")["y"]
    assert (saved.dtype, saved.tolist()) == (np.float32, [1, 2.5])
    np.save("x.npy", saved)
    assert graphkit("run", "half.onnx", "--input", "x=x.npy")[0] == 1
    assert graphkit("run", "half.onnx", "--input", "x=x.npy", "--cast")[0] == 0
    assert ml_dtypes.bfloat16 is not None


def test_numbers_that_json_lacks(graphkit: Invoke) -> None:
    np.save("x.npy", np.array([[np.nan, np.inf]], "float32"))
    code, out, _ = graphkit("run", "neg.onnx", "--input", "x=x.npy", "--json")
    assert (code, json.loads(out)["outputs"]["y"]["data"]) == (0, [["NaN", "-Infinity"]])
    Path("feeds.json").write_text(json.dumps({"x": [["NaN", "-Infinity"]]}))
    code, out, _ = graphkit("run", "neg.onnx", "--inputs", "feeds.json", "--json")
    assert (code, json.loads(out)["outputs"]["y"]["data"]) == (0, [["NaN", "Infinity"]])
    code, _, err = graphkit("run", "neg.onnx", "--input", "x=x.npy", "--check-finite")
    assert code == 1
    assert "'x' holds 1 NaN" in err


def test_lists_go_to_json(graphkit: Invoke) -> None:
    assert graphkit("run", "pieces.onnx", "--input", "x=[1,2,3,4]", "-o", "out.json")[0] == 0
    assert json.loads(Path("out.json").read_text()) == {"y": [[1, 2], [3, 4]]}
    code, _, err = graphkit("run", "pieces.onnx", "--input", "x=[1,2,3,4]", "-o", "out.npz")
    assert code == 1
    assert "write a .json file" in err


FAILS: dict[str, tuple[list[str], int, list[str]]] = {
    "no such model": (["run", "nge.onnx", "--random"], 1, ["nge.onnx does not exist", "Did you mean 'neg.onnx'"]),
    "no inputs": (["run", "neg.onnx"], 1, ["x: float32[batch, 2]", "--random"]),
    "unknown input": (["run", "neg.onnx", "--input", "z=1"], 1, ["'z'", "missing input 'x'"]),
    "no such file": (["run", "neg.onnx", "--input", "x=no.npy"], 1, ["no.npy cannot be read"]),
    "damaged npy": (["run", "neg.onnx", "--input", "x=bad.npy"], 1, ["bad.npy"]),
    "damaged npz": (["run", "neg.onnx", "--inputs", "bad.npz"], 1, ["bad.npz"]),
    "objects in npy": (["run", "words.onnx", "--input", "words=objects.npy"], 1, ["objects.npy", "unpickled"]),
    "damaged json": (["run", "neg.onnx", "--inputs", "bad.json"], 1, ["bad.json is not JSON"]),
    "json without names": (["run", "neg.onnx", "--inputs", "list.json"], 1, ["list.json", "by name"]),
    "a value that is nothing": (["run", "neg.onnx", "--input", "x=abc"], 1, ["'x'", "'abc'"]),
    "unknown dimension": (["run", "neg.onnx", "--random", "--dim", "bach=2"], 1, ["'bach'", "Did you mean 'batch'"]),
    "unknown output": (["run", "neg.onnx", "--random", "--output", "z"], 1, ["no output 'z'"]),
    "unknown device": (["run", "neg.onnx", "--random", "--device", "tpu"], 1, ["'tpu'", "cuda"]),
    "an output that cannot be written": (["run", "neg.onnx", "--random", "-o", "no/out.npz"], 1, ["no/out.npz"]),
    "two arrays into npy": (["run", "two.onnx", "--random", "-o", "out.npy"], 1, ["out.npy", ".npz"]),
    "an unknown kind of output file": (["run", "neg.onnx", "--random", "-o", "out.csv"], 2, [".npz"]),
    "an unknown kind of input file": (["run", "neg.onnx", "--inputs", "x.csv"], 2, [".npz"]),
    "a dim without random": (["run", "neg.onnx", "--dim", "batch=2"], 2, ["--random"]),
    "a dim that is no number": (["run", "neg.onnx", "--random", "--dim", "batch=x"], 2, ["whole number"]),
    "an input twice": (["run", "neg.onnx", "--input", "x=a", "--input", "x=b"], 2, ["x is given twice", "'a'", "'b'"]),
    "a report on the model": (["optimize", "neg.onnx", "-o", "o", "--report", "./o"], 2, ["name the same file"]),
    "an input without a value": (["run", "neg.onnx", "--input", "x"], 2, ["NAME=VALUE"]),
    "no model": (["run"], 2, ["MODEL"]),
    "unknown option": (["run", "neg.onnx", "--rnadom"], 2, ["--rnadom"]),
    "unknown command": (["optimise", "neg.onnx"], 2, ["Did you mean 'optimize'"]),
    "unknown pass": (["optimize", "neg.onnx", "-o", "o.onnx", "--passes", "FuseConsecutive"], 1, ["FuseConsecutive"]),
    "inspect a folder": (["inspect", "."], 1, ["is a folder", "neg.onnx"]),
    "compare what differs": (["compare", "neg.onnx", "double.onnx"], 1, ["disagree in y"]),
    "compare what does not fit": (["compare", "neg.onnx", "two.onnx"], 1, ["'lr'"]),
    "view as a strange file": (["view", "neg.onnx", "-o", "g.jpg"], 1, [".svg or .png"]),
    "export nothing": (["export", "nothing", "-o", "m.onnx"], 2, ["PKG.MODULE:NAME"]),
    "export a missing module": (["export", "no_such:f", "-o", "m.onnx"], 1, ["no_such cannot be imported"]),
    "export a missing name": (["export", "json:dmps", "-o", "m.onnx"], 1, ["Did you mean 'dumps'"]),
    "export with a bad input": (["export", "json:dumps", "--input", "x[2]", "-o", "m.onnx"], 2, ["NAME:DTYPE[DIMS]"]),
    "export without dims": (["export", "json:dumps", "--input", "x:float32", "-o", "m.onnx"], 2, ["x:float32[] for a"]),
    "a gradient twice": (["grad", "loss.onnx", "--wrt", "w,w", "-o", "g.onnx"], 2, ["--wrt names 'w' twice"]),
    "a gradient of nothing": (["grad", "side.onnx", "--wrt", "u", "-o", "g.onnx"], 1, ["ask for zeros with --zeros"]),
    "export with a bad dtype": (["export", "json:dumps", "--input", "x:float23[2]", "-o", "m.onnx"], 2, ["float23"]),
}


@pytest.mark.parametrize("name", FAILS)
def test_failures_are_one_message(name: str, graphkit: Invoke) -> None:
    arguments, expected, words = FAILS[name]
    Path("bad.npy").write_bytes(b"\x93NUMPY\x01\x00")
    Path("bad.npz").write_bytes(b"PK\x03\x04 nothing")
    np.save("objects.npy", np.array(["a", 1], object), allow_pickle=True)
    Path("bad.json").write_text("{")
    Path("list.json").write_text("[1]")
    before = {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    code, out, err = graphkit(*arguments)
    assert code == expected, err
    for word in words:
        assert word in err
    assert err.count("Error: ") == 1
    assert {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    if code == 2:
        assert out == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are in the file system of Unix only")
def test_pipes_are_neither_read_nor_replaced(graphkit: Invoke) -> None:
    for name in ("p.onnx", "p.npz", "p.npy", "p.json", "p.pb", "p.svg"):
        os.mkfifo(name)
    for arguments in (
        ["inspect", "p.onnx"],
        *(["run", "neg.onnx", "--inputs", f"p.{kind}"] for kind in ("npz", "json")),
        *(["run", "neg.onnx", "--input", f"x=p.{kind}"] for kind in ("npy", "pb")),
        *(["run", "neg.onnx", "--random", "-o", f"p.{kind}"] for kind in ("npz", "json", "npy")),
        ["optimize", "neg.onnx", "-o", "p.onnx"],
        ["view", "neg.onnx", "-o", "p.svg"],
    ):
        code, _, err = graphkit(*arguments)
        assert (code, err.count("Error: ")) == (1, 1), err
        assert "it is a named pipe, not a regular file" in err
    assert all(path.is_fifo() for path in Path().glob("p.*"))


def test_an_old_output_survives_a_failure(graphkit: Invoke) -> None:
    Path("out.npz").write_bytes(b"old")
    assert graphkit("run", "pieces.onnx", "--input", "x=[1,2,3,4]", "-o", "out.npz")[0] == 1
    assert Path("out.npz").read_bytes() == b"old"
    Path("out.onnx").write_bytes(b"old")
    Path("bad.onnx").write_bytes(Path("neg.onnx").read_bytes()[:-10])
    assert graphkit("optimize", "bad.onnx", "-o", "out.onnx")[0] == 1
    assert Path("out.onnx").read_bytes() == b"old"


def test_inspect(graphkit: Invoke) -> None:
    code, out, _ = graphkit("inspect", "lookup.onnx")
    assert code == 0
    for word in ("ids: int64[N]", "y: float32[N, 1]", "ai.onnx 21", "Gather", "3 (12 B"):
        assert word in out
    report = json.loads(graphkit("inspect", "double.onnx", "--dim", "batch=8", "--json")[1])
    assert report["flops"] == 16
    assert report["operators"] == [{"name": "Add", "count": 1, "flops": 16, "uncounted": 0}]
    assert report["inputs"][0] | {"type": None} == {
        "name": "x", "type": None, "dtype": "float32", "dims": ["batch", 2], "required": True,
    }  # fmt: skip
    assert "Add(x, x)" in graphkit("inspect", "double.onnx", "--text")[1]


def test_inspect_gradients(graphkit: Invoke) -> None:
    code, out, _ = graphkit("inspect", "loss.onnx", "--gradients", "loss", "--input", "x=[[3, 4]]", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["parameters"] == [{"name": "w", "shape": [2], "norm": pytest.approx(5**0.5), "gradient_norm": 5}]
    out = graphkit("inspect", "loss.onnx", "--gradients", "loss", "--dim", "N=3")[1]
    assert "gradient norm" in out
    code, _, err = graphkit("inspect", "loss.onnx", "--gradients", "los")
    assert (code, "los" in err) == (1, True)
    code, _, err = graphkit("inspect", "neg.onnx", "--gradients", "y")
    assert (code, "no floating-point initializers" in err) == (1, True)
    assert graphkit("inspect", "loss.onnx", "--input", "x=[[3, 4]]")[0] == 2


def test_optimize(graphkit: Invoke) -> None:
    code, out, err = graphkit("optimize", "twice.onnx", "-o", "o.onnx", "--report", "r.json")
    assert (code, err) == (0, "")
    assert "written to o.onnx" in out
    assert json.loads(Path("r.json").read_text())["preset"] == "inference"
    code, out, _ = graphkit("optimize", "twice.onnx", "-o", "o.onnx", "--json", "--skip", "prune")
    assert json.loads(out)["output"] == "o.onnx"


def test_optimize_lists_the_passes(graphkit: Invoke) -> None:
    code, out, _ = graphkit("optimize", "--list")
    assert (code, "remove_identity" in out, "exact" in out) == (0, True, True)
    code, out, _ = graphkit("optimize", "--list", "--json")
    listed = {one["name"]: one for one in json.loads(out)}
    assert listed["remove_dropout"]["training_safe"] is False
    assert listed["prune"]["presets"] == ["inference", "training", "web", "cuda"]
    assert all(one["summary"] and one["precondition"] for one in listed.values())


def test_optimize_with_inputs_explanations_and_steps(graphkit: Invoke) -> None:
    np.savez("feeds.npz", x=np.ones((2, 2), np.float32))
    code, out, err = graphkit(
        *("optimize", "twice.onnx", "-o", "o.onnx", "--inputs", "feeds.npz", "--explain", "y", "--explain", "no"),
        *("--log-steps", "steps"),
    )
    assert (code, err) == (0, "")
    assert "a graph gives out 'y'" in out and "no node of the result is called so" in out and "kept in steps" in out
    assert Path("steps/00_original.onnx").exists()
    np.savez("bad.npz", x=np.ones((2, 2), np.float64))
    code, _, err = graphkit("optimize", "twice.onnx", "-o", "o.onnx", "--inputs", "bad.npz")
    assert (code, "input 'x' takes float32" in err) == (1, True)
    assert graphkit("optimize", "twice.onnx", "-o", "o.onnx", "--inputs", "feeds.npz", "--no-verify")[0] == 2
    assert graphkit("optimize", "twice.onnx")[0] == 2
    assert graphkit("optimize", "-o", "o.onnx")[0] == 2


@pytest.mark.parametrize(("preset", "files"), [("cuda", ["o.onnx", "o.onnx.data"]), ("web", ["o.onnx"])])
def test_optimize_for_the_web_writes_one_file(
    graphkit: Invoke, monkeypatch: pytest.MonkeyPatch, preset: str, files: list[str]
) -> None:
    def write(model: Any, path: str, external_above: int) -> None:
        write_model(model, path, external_above=1 if external_above < 2**30 else external_above)  # as if it were large

    monkeypatch.setattr("graphkit.modelfile.write_model", write)
    graph = onnx.parser.parse_graph("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {y = Add(x, w)}")
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), "weights.onnx")
    code, _, err = graphkit("optimize", "weights.onnx", "-o", "o.onnx", "--preset", preset)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in Path().glob("o.onnx*")) == files


@pytest.mark.parametrize("option", [None, "--verify", "--strict"])
def test_optimize_a_model_that_does_not_run_itself(graphkit: Invoke, option: str | None) -> None:
    stranger = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "my.own": 1]> g (float[N] x) => (float[N] y) {y = my.own.Op(x)}'
    )
    onnx.save(stranger, "stranger.onnx")
    code, out, err = graphkit("optimize", "stranger.onnx", "-o", "o.onnx", *([option] if option else []))
    assert code == (1 if option else 0)
    assert "the original itself does not load in ONNX Runtime" in (err if option else out)
    assert Path("o.onnx").exists() == (option is None)


def test_optimize_writes_the_model_and_its_report_or_neither(graphkit: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(Path().iterdir())
    for report, words in (("no/r.json", "there is no folder no"), (".", "it is a folder"), ("r.json/", "slash")):
        code, out, err = graphkit("optimize", "twice.onnx", "-o", "o.onnx", "--report", report)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"{report} could not be written: {words}" in err or f"{report} could not be written: it ends" in err
    code, _, err = graphkit("optimize", "twice.onnx", "-o", "no/o.onnx", "--report", "r.json")
    assert (code, "no/o.onnx could not be written: there is no folder no" in err) == (1, True)
    assert sorted(Path().iterdir()) == before

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = graphkit("optimize", "twice.onnx", "-o", "o.onnx", "--report", "r.json")
    assert (code, ".tmp" in err, "o.onnx could not be written: No space left" in err) == (1, False, True)
    assert sorted(Path().iterdir()) == before


def test_a_folder_that_may_not_be_written_to_is_named_by_the_file(
    graphkit: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_open = os.open

    def denied(path: Any, *rest: Any, **options: Any) -> int:
        if str(path).endswith(".tmp"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return true_open(path, *rest, **options)

    monkeypatch.setattr(os, "open", denied)
    code, _, err = graphkit("optimize", "twice.onnx", "-o", "o.onnx", "--report", "r.json")
    assert (code, err) == (1, "Error: r.json: Permission denied\n")


def test_compare(graphkit: Invoke) -> None:
    code, out, err = graphkit("compare", "double.onnx", "twice.onnx", "--dim", "batch=3")
    assert (code, err) == (0, "")
    assert "agrees" in out
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[rows, 2] x) => (float[rows, 2] y) {y = Add(x, x)}'
    )
    onnx.save(proto, "rows.onnx")
    assert graphkit("compare", "double.onnx", "rows.onnx", "--dim", "batch=3")[0] == 0
    assert graphkit("bench", "double.onnx", "rows.onnx", "--dim", "batch=3", "--repeat", "2")[0] == 0
    code, out, _ = graphkit("compare", "double.onnx", "neg.onnx", "--json")
    report = json.loads(out)
    assert (code, report["agree"], report["outputs"][0]["agrees"]) == (1, False, False)


def test_bench(graphkit: Invoke) -> None:
    code, out, _ = graphkit("bench", "double.onnx", "twice.onnx", "--repeat", "3", "--dim", "batch=2", "--json")
    report = json.loads(out)
    assert code == 0
    assert [row["model"] for row in report["models"]] == ["double.onnx", "twice.onnx"]
    assert all(row["least_ms"] > 0 for row in report["models"])
    assert "ratio" in graphkit("bench", "double.onnx", "--repeat", "2")[1]


def test_view(graphkit: Invoke) -> None:
    assert graphkit("view", "loss.onnx", "-o", "g.svg")[0] == 0
    assert "ReduceSum" in Path("g.svg").read_text()


def test_doctor(graphkit: Invoke) -> None:
    code, out, _ = graphkit("doctor")
    assert code == 0
    assert "Models run" in out
    report = json.loads(graphkit("doctor", "--json")[1])
    assert "cpu" in report["devices"]
    assert report["problems"] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, graphkit: Invoke) -> None:
    code, out, err = graphkit(verb, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: graphkit {verb}" in out
    assert "\\b" not in out


def test_help_and_version(graphkit: Invoke) -> None:
    code, out, _ = graphkit("--help")
    assert code == 0
    assert all(verb in out for verb in VERBS)
    assert graphkit("--version")[1].startswith("graphkit ")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom graphkit.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'rich', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def seconds(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = os.times()  # the processor's time, which a busy machine does not stretch as it does the clock's
        return after.children_user + after.children_system - before.children_user - before.children_system

    bare, help_page = [], []
    for _ in range(10):  # the least of several, and the first that is quick will do
        bare.append(seconds("-c", "pass"))
        help_page.append(seconds("-m", "graphkit.cli", "--help"))
        if min(help_page) - min(bare) < 0.2:
            return
    pytest.fail(f"the help page took {min(help_page) - min(bare):.3f} s longer than nothing")


def test_a_fault_of_ours_is_a_message_too(graphkit: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("graphkit.exporters.picture.draw", broken)
    code, _, err = graphkit("view", "neg.onnx", "-o", "g.svg")
    assert code == 1
    assert "unexpected RuntimeError: boom" in err
    monkeypatch.setenv("GRAPHKIT_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="boom"):
        main(["view", "neg.onnx", "-o", "g.svg"])


def test_a_closed_pipe_is_no_traceback(models: Path) -> None:
    command = f"{sys.executable} -m graphkit.cli inspect neg.onnx --text | true"
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", command], cwd=models, env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""


NET = """
import graphkit as gk

def forward(x):
    return gk.op.Relu(x)

def loss(w, x):
    return ((x * w) ** 2).sum()

def broken(x):
    return undefined_name + x

class Net:
    def __call__(self, x):
        return x * 2

class Needy:
    def __init__(self, size):
        self.size = size

number = 3
"""


@pytest.fixture
def net(graphkit: Invoke, models: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    (models / "my_net.py").write_text(NET)
    monkeypatch.delitem(sys.modules, "my_net", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return graphkit


def test_export(net: Invoke) -> None:
    code, out, err = net("export", "my_net:forward", "--input", "x:float32[batch,3]", "-o", "m.onnx", "--test-vectors")
    assert (code, err) == (0, "")
    assert "1 nodes written to m.onnx" in out
    assert Path("test_data_set_0/gradient_0.pb").is_file()
    code, out, _ = net("run", "m.onnx", "--input", "x=[[-1, 2, 3], [4, 5, -6]]", "--json")
    assert json.loads(out)["outputs"]["output"]["data"] == [[0, 2, 3], [4, 5, 0]]
    code, out, _ = net("export", "my_net:Net", "--input", "x:float32[2]", "-o", "n.onnx", "--json", "--opset", "22")
    assert (code, json.loads(out)["inputs"]) == (0, ["x"])
    assert onnx.load("n.onnx").opset_import[0].version == 22


EXPORT_FAILS = {
    "a function that raises": ("my_net:broken", ["NameError", "my_net.py:11"]),
    "no such function": ("my_net:forwrad", ["Did you mean 'forward'"]),
    "a class with arguments": ("my_net:Needy", ["without arguments"]),
    "a number": ("my_net:number", ["is a int, not a function"]),
}


@pytest.mark.parametrize("name", EXPORT_FAILS)
def test_failures_of_export(name: str, net: Invoke) -> None:
    what, words = EXPORT_FAILS[name]
    Path("m.onnx").write_bytes(b"old")
    code, _, err = net("export", what, "--input", "x:float32[3]", "-o", "m.onnx")
    assert code == 1
    for word in words:
        assert word in err
    assert Path("m.onnx").read_bytes() == b"old"


def test_grad(net: Invoke) -> None:
    code, _, err = net("export", "my_net:loss", "--input", "w:float32[2]", "--input", "x:float32[N,2]", "-o", "l.onnx")
    assert (code, err) == (0, "")
    code, out, _ = net("grad", "l.onnx", "--of", "output", "--wrt", "w,x", "-o", "g.onnx")
    assert code == 0
    assert "w_grad, x_grad added" in out
    out = net("run", "g.onnx", "--input", "w=[1, 2]", "--input", "x=[[3, 4]]", "--json")[1]
    assert json.loads(out)["outputs"]["w_grad"]["data"] == [18, 64]
    code, out, _ = net("grad", "loss.onnx", "--wrt", "*", "-o", "g.onnx", "--json", "--no-optimize")
    assert (code, json.loads(out)["gradients"]) == (0, ["w_grad"])
    code, out, _ = net("grad", "loss.onnx", "--loss", "mean_square", "--of", "ms", "--wrt", "all", "-o", "g.onnx")
    assert (code, "ms" in out, "w_grad added" in out) == (0, False, True)
    code, _, err = net("grad", "loss.onnx", "--loss", "mean_squares", "--of", "ms", "--wrt", "all", "-o", "g.onnx")
    assert (code, "mean_square" in err) == (1, True)
    Path("g.onnx").write_bytes(b"old")
    for of, wrt, word in [("output", "v", "'v'"), ("outptu", "w", "outptu"), ("output", "", "--wrt")]:
        code, _, err = net("grad", "l.onnx", "--of", of, "--wrt", wrt, "-o", "g.onnx")
        assert (code, word in err) == (1 if wrt else 2, True), err
    assert Path("g.onnx").read_bytes() == b"old"


def test_grad_of_all_names_the_weights_that_are_left_out(graphkit: Invoke) -> None:
    code, out, err = graphkit("grad", "side.onnx", "--wrt", "all", "-o", "g.onnx")
    assert (code, "w_grad added" in out) == (0, True)
    assert err == (
        "left out, because 'loss' does not depend on them: u\n"
        "all means rank 1 or more; of rank 0, to be had by name: 1 (s)\n"
    )
    report = json.loads(graphkit("grad", "side.onnx", "--wrt", "all", "-o", "g.onnx", "--json")[1])
    assert (report["gradients"], report["left_out"], report["scalars"]) == (["w_grad"], ["u"], ["s"])
    report = json.loads(graphkit("grad", "side.onnx", "--wrt", "all", "--zeros", "-o", "g.onnx", "--json")[1])
    assert (report["gradients"], report["left_out"]) == (["w_grad", "u_grad"], [])
    assert "s_grad added" in graphkit("grad", "side.onnx", "--wrt", "s", "-o", "g.onnx")[1]


def _same_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "same"


FAULTY: dict[str, tuple[str, Callable[[onnx.ModelProto], None], str]] = {
    "an input twice": ("loss", lambda model: model.graph.input.append(model.graph.input[0]), "site for (x)"),
    "names twice": ("loss", _same_names, "two nodes with same node name (same)"),
    "shapes that do not fit": ("unfit", lambda _: None, "Incompatible dimensions"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_grad_writes_no_file_that_does_not_load(name: str, graphkit: Invoke) -> None:
    model, spoil, words = FAULTY[name]
    proto = onnx.load(f"{model}.onnx")
    spoil(proto)
    Path("faulty.onnx").write_bytes(proto.SerializeToString())
    code, out, err = graphkit("grad", "faulty.onnx", "--wrt", "w", "-o", "g.onnx")
    assert (code, out, err.startswith("Error: "), err.count("\n"), Path("g.onnx").exists()) == (1, "", True, 1, False)
    assert "does not load faulty.onnx: " in err
    assert words in err


def test_a_line_of_click_is_no_line_of_the_user() -> None:
    context = click.Context(click.Command("verb"))
    with pytest.raises(GraphkitError) as raised:
        context.invoke(optim.SGD, -1.0)
    assert _message(raised.value) == "learning_rate is a number from 0 up, not -1.0"
