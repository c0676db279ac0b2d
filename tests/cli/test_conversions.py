"""Precision, quantization, fixed dims and parts from the command line, and the commands of docs/precision.md."""

from __future__ import annotations

import doctest
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from graphkit.cli import main

GUIDE = Path(__file__).parents[2] / "docs" / "precision.md"
TEXT = (
    '<ir_version: 10, opset_import: ["": 21]> g (float[batch,64] x, float scale) => (float[batch,64] y) '
    "{hidden = MatMul(x, w) h = Mul(hidden, scale) r = Relu(h) y = MatMul(r, w)}"
)
Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def graphkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    model = onnx.parser.parse_model(TEXT)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, out, err

    return invoke


def test_the_commands_of_the_guide(graphkit: Invoke) -> None:
    block = re.search(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    commands = block[1].strip().splitlines()
    assert len(commands) == 5
    for line in commands:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "graphkit"
        code, out, err = graphkit(*arguments)
        assert code == 0, out + err
    half, fixed, part, old = (onnx.load(f"{name}.onnx") for name in ("half", "fixed", "part", "old"))
    assert {t.data_type for t in half.graph.initializer} == {TensorProto.FLOAT16}
    assert Path("small.onnx").stat().st_size < 0.3 * Path("m.onnx").stat().st_size
    assert [value.name for value in fixed.graph.input] == ["x"]
    assert fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    assert [value.name for value in part.graph.input] == ["hidden", "scale"]
    assert old.opset_import[0].version == 13


def test_the_guide_itself() -> None:
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False)
    assert tried >= 10 and not failed


def test_both_and_their_reports(graphkit: Invoke) -> None:
    code, out, _ = graphkit(
        *("optimize", "m.onnx", "-o", "o.onnx", "--quantize", "8", "--precision", "float16", "--keep", "Relu"),
        *("--report", "r.json", "--tolerance", "0.1"),
    )
    assert code == 0 and "1 weights in 8 bits" in out and "checked: each float16 node" in out
    report = json.loads(Path("r.json").read_text())
    assert report["quantization"]["quantized"] == ["w"] and "Relu" in str(report["precision"]["kept"])
    code, out, _ = graphkit("optimize", "m.onnx", "-o", "o.onnx", "--precision", "bfloat16", "--no-keep-io", "--json")
    assert code == 0 and json.loads(out)["precision"]["dtype"] == "bfloat16"
    assert onnx.load("o.onnx").graph.input[0].type.tensor_type.elem_type == TensorProto.BFLOAT16
    code, out, _ = graphkit("optimize", "m.onnx", "-o", "o.onnx", "--quantize", "4", "--block", "16", "--no-verify")
    assert code == 0 and "not checked: it was not asked for" in out


WRONG = {
    "keep alone": (["optimize", "m.onnx", "-o", "o.onnx", "--keep", "Relu"], 2, "go with --precision or --quantize"),
    "block alone": (["optimize", "m.onnx", "-o", "o.onnx", "--block", "16"], 2, "goes with --quantize"),
    "precision": (["optimize", "m.onnx", "-o", "o.onnx", "--precision", "float8"], 2, "float8"),
    "keep": (["optimize", "m.onnx", "-o", "o.onnx", "--precision", "float16", "--keep", "Rellu"], 1, "mean 'Relu'"),
    "dim": (["optimize", "m.onnx", "-o", "o.onnx", "--dim", "bach=1"], 1, "Did you mean 'batch'"),
    "dim twice": (["optimize", "m.onnx", "-o", "o.onnx", "--dim", "batch=1", "--dim", "x.0=2"], 1, "contradicts"),
    "set": (["optimize", "m.onnx", "-o", "o.onnx", "--set", "scale=[1,2]"], 1, "'scale' has 0 dimensions"),
    "set unknown": (["optimize", "m.onnx", "-o", "o.onnx", "--set", "scal=1"], 1, "Did you mean 'scale'"),
    "set too large": (["optimize", "m.onnx", "-o", "o.onnx", "--set", "scale=1e39"], 1, "which does not hold 1e+39"),
    "set ragged": (["optimize", "m.onnx", "-o", "o.onnx", "--set", "scale=[[1,2],[3]]"], 1, "not a rectangular list"),
    "types alone": (["optimize", "m.onnx", "-o", "o.onnx", "--no-keep-io"], 2, "--no-keep-io goes with --precision"),
    "strict, unseen": (["optimize", "m.onnx", "-o", "o.onnx", "--strict", "--no-verify"], 2, "leave out --no-verify"),
    "4 bits": (["optimize", "m.onnx", "-o", "o.onnx", "--quantize", "4", "--opset", "18"], 1, "(--opset 21)"),
    "web": (
        ["optimize", "m.onnx", "-o", "o.onnx", "--preset", "web", "--precision", "bfloat16", "--no-keep-io"],
        1,
        "JavaScript has no such tensors, so the model cannot be run on the web: input 'x' is bfloat16",
    ),
    "no ends": (["extract", "m.onnx", "-o", "o.onnx"], 2, "--inputs A,B, --outputs C,D"),
    "no such value": (["extract", "m.onnx", "-o", "o.onnx", "--outputs", "hiden"], 1, "Did you mean 'hidden'"),
    "lacking": (["extract", "m.onnx", "-o", "o.onnx", "--inputs", "hidden"], 1, "needs the input 'scale'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_goes_wrong(name: str, graphkit: Invoke) -> None:
    arguments, expected, words = WRONG[name]
    code, _, err = graphkit(*arguments)
    assert code == expected and words in err and not Path("o.onnx").exists()


def test_in_how_many_bits_each_weight_is(graphkit: Invoke) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1,16,9,9] x) => (float[1,7,7,8] y) '
        "{c = Conv(x, k) t = Transpose<perm = [0, 2, 3, 1]>(c) y = MatMul(t, w)}"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("k", (64, 16, 3, 3)), ("w", (64, 64))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    model.graph.output[0].type.tensor_type.shape.dim[3].dim_value = 64
    onnx.save(model, "c.onnx")
    arguments = ("optimize", "c.onnx", "-o", "o.onnx", "--quantize", "4", "--block", "16")
    code, out, _ = graphkit(*arguments)
    assert code == 0 and "1 weights in 4 bits, 1 weights in 8 bits, 0 left" in out
    code, out, _ = graphkit(*arguments, "--json")
    assert sorted(json.loads(out)["quantization"]["in_bits"].values()) == [4, 8]


def test_bfloat16_is_fed(graphkit: Invoke) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (bfloat16[N] x) => (float[N] y) {a = Identity(x) y = Cast<to=1>(a)}'
    )
    onnx.save(onnx.parser.parse_model(text), "b.onnx")
    code, out, _ = graphkit("optimize", "b.onnx", "-o", "o.onnx", "--json")
    assert code == 0 and json.loads(out)["verified"]


def test_steps_of_an_earlier_model_go(graphkit: Invoke) -> None:
    folder = Path("steps")
    folder.mkdir()
    ours = ("00_original.onnx", "01_remove_identity.onnx", "99_prune.onnx", "03_prune.onnx.data")
    others = ("01_mine.onnx", "prune.onnx", "a.txt", "01_prune.txt")
    for name in (*ours, *others):
        (folder / name).write_bytes(b"")
    code, out, _ = graphkit("optimize", "m.onnx", "-o", "o.onnx", "--log-steps", "steps")
    assert code == 0 and "steps kept in steps" in out
    left = {file.name for file in folder.iterdir()}
    assert left - {name for name in left if (folder / name).stat().st_size} == set(others)


def test_extract(graphkit: Invoke) -> None:
    code, out, _ = graphkit("extract", "m.onnx", "-o", "o.onnx", "--inputs", "hidden,scale", "--outputs", "r", "--json")
    found = json.loads(out)
    assert code == 0 and (found["inputs"], found["outputs"], found["nodes_after"]) == (["hidden", "scale"], ["r"], 2)
    code, out, _ = graphkit("extract", "m.onnx", "-o", "o.onnx", "--outputs", "hidden")
    assert code == 0 and "x to hidden: 1 of 4 nodes" in out
