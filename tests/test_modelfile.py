"""Reading and writing model files: what is refused and how it is said, and that a write is whole or nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit import modelfile
from graphkit.errors import ModelFileError
from graphkit.modelfile import give_back, lowest_ir_version, read_model, write_model


def affine(opset: int = 17, ir_version: int = 8, dtype: int = TensorProto.FLOAT, size: int = 2) -> onnx.ModelProto:
    """scores = x @ w + b, with x float32[N, 3]."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["scores"])],
        "affine",
        [helper.make_tensor_value_info("x", dtype, ["N", 3])],
        [helper.make_tensor_value_info("scores", dtype, ["N", size])],
        [
            numpy_helper.from_array(np.arange(3 * size, dtype="f").reshape(3, size), "w"),
            numpy_helper.from_array(np.ones(size, "f"), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def externally(folder: Path, location: str, content: bytes | None, length: int = 24, offset: int = 0) -> Path:
    """Write ``m.onnx`` whose ``w`` lies at ``location``, and ``content`` into ``folder/w.bin``."""
    folder.mkdir(exist_ok=True)
    if content is not None:
        (folder / "w.bin").write_bytes(content)
    model = affine()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": str(offset), "length": str(length)}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def changed(model: onnx.ModelProto, field: str, value: object = None) -> bytes:
    if value is None:
        model.ClearField(field)
    else:
        setattr(model, field, value)
    return model.SerializeToString()


REFUSED = {
    "zero bytes": (b"", ["m.onnx", "empty", "0 bytes"]),
    "cut short": (affine().SerializeToString()[:-20], ["m.onnx", "cut short", "bytes)"]),
    "text": (b"hello world, this is a note\n", ["m.onnx", "not an ONNX model"]),
    "zip": (b"PK\x03\x04....", ["m.onnx", "PyTorch"]),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", ["git lfs pull"]),
    "web page": (b"<!DOCTYPE html><html>", ["web page"]),
    "no graph": (changed(affine(), "graph"), ["m.onnx", "no graph"]),
    "no IR version": (changed(affine(), "ir_version"), ["m.onnx", "no IR version"]),
    "no opset": (changed(affine(), "opset_import"), ["m.onnx", "no opset"]),
    "IR too new": (changed(affine(), "ir_version", 99), ["m.onnx", "IR version 99", "IR version 13"]),
    "opset too new": (affine(opset=29).SerializeToString(), ["m.onnx", "opset 29", "up to 28"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_model_is_refused(name: str, tmp_path: Path) -> None:
    content, words = REFUSED[name]
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        read_model(path)
    for word in words:
        assert word in str(caught.value)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    content = affine().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match=r"m\.onnx"):
            read_model(path)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(affine().SerializeToString())
    with pytest.raises(ModelFileError, match=r"modle\.onnx does not exist\. Did you mean 'model\.onnx'"):
        read_model(tmp_path / "modle.onnx")
    with pytest.raises(ModelFileError, match="there is no folder"):
        read_model(tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(ModelFileError, match=r"is a folder, not a model file; it holds model\.onnx"):
        read_model(str(tmp_path))
    with pytest.raises(ModelFileError, match=r"not builtins\.int"):
        read_model(3)  # type: ignore[arg-type]  # the mistake under test


def test_damaged_bytes_are_refused_or_harmless(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What one wrong byte can do: an error of ours, or a model that can be written again. Nothing on stderr."""
    content = affine().SerializeToString()
    generator = np.random.default_rng(0)
    path = tmp_path / "m.onnx"
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[generator.integers(len(content))] = generator.integers(256)
        path.write_bytes(damaged)
        try:
            write_model(read_model(path), tmp_path / "again.onnx")
        except ModelFileError:
            refused += 1
    assert refused > 80
    assert capfd.readouterr().err == ""


DISCONNECTED = {
    "a node that reads what nothing makes": (lambda g: g.node[0].input.__setitem__(1, "v"), ["MatMul", "'v'"]),
    "an output that nothing makes": (lambda g: setattr(g.output[0], "name", "z"), ["'z'", "output"]),
    "an attribute without a type": (lambda g: g.node[0].attribute.add(name="axis"), ["'axis'", "no type"]),
    "a weight without an element type": (lambda g: setattr(g.initializer[0], "data_type", 0), ["'w'", "element type"]),
}


@pytest.mark.parametrize("name", DISCONNECTED)
def test_graphs_that_do_not_hang_together_are_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, words = DISCONNECTED[name]
    proto = affine()
    spoil(proto.graph)
    with pytest.raises(ModelFileError, match="is damaged") as caught:
        read_model(proto)
    for word in words:
        assert word in str(caught.value)
    assert capfd.readouterr().err == ""


EXTERNAL = {
    "missing": ("w.bin", None, {}, ["w.bin", "missing"]),
    "above the folder": ("../w.bin", b"\0" * 24, {}, ["outside", "../w.bin"]),
    "absolute": ("/etc/hostname", b"\0" * 24, {}, ["outside", "/etc/hostname"]),
    "no place": ("", b"\0" * 24, {}, ["outside"]),
    "the folder itself": (".", b"\0" * 24, {}, ["missing"]),
    "too short": ("w.bin", b"\0" * 20, {}, ["cut short", "20 bytes", "24"]),
    "too short behind an offset": ("w.bin", b"\0" * 24, {"offset": 8}, ["cut short", "32"]),
    "a length that does not fit the shape": ("w.bin", b"\0" * 24, {"length": 12}, ["damaged", "12 bytes"]),
}


@pytest.mark.parametrize("name", EXTERNAL)
def test_external_data_that_cannot_be_right_is_refused(name: str, tmp_path: Path) -> None:
    location, content, more, words = EXTERNAL[name]
    path = externally(tmp_path / "models", location, content, **more)
    with pytest.raises(ModelFileError) as caught:
        read_model(path)
    for word in ["m.onnx", "'w'", *words]:
        assert word in str(caught.value)


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_not(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 24)
    path = externally(tmp_path / "models", "w.bin", None)
    (path.parent / "w.bin").symlink_to(secret)
    with pytest.raises(ModelFileError, match="outside"):
        read_model(path)
    (path.parent / "w.bin").unlink()
    (path.parent / "real.bin").write_bytes(np.arange(6, dtype="f").tobytes())
    (path.parent / "w.bin").symlink_to("real.bin")
    tensor = read_model(path).graph.initializers["w"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), np.arange(6, dtype="f").reshape(3, 2))


def test_external_data_is_found_from_any_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    externally(tmp_path / "models", "w.bin", np.arange(6, dtype="f").tobytes())
    monkeypatch.chdir(tmp_path / "models")
    tensor = read_model("m.onnx").graph.initializers["w"].const_value
    assert tensor is not None and tensor.numpy()[2, 1] == 5
    with pytest.raises(ModelFileError, match="in memory has no folder"):
        read_model(onnx.load("m.onnx", load_external_data=False))


def test_what_was_given_is_not_changed_and_its_kind_comes_back() -> None:
    proto = affine()
    before = proto.SerializeToString()
    model = read_model(proto)
    model.graph.inputs[0].name = "other"
    assert proto.SerializeToString() == before
    assert isinstance(give_back(proto, model), onnx.ModelProto)
    again = read_model(model)
    again.graph.inputs[0].name = "third"
    assert model.graph.inputs[0].name == "other"
    assert give_back(model, again) is again and give_back("m.onnx", again) is again


def test_an_ir_version_the_content_does_not_need_is_lowered() -> None:
    assert read_model(affine(opset=21, ir_version=14)).ir_version == 10


IR_VERSIONS = [
    (affine(opset=8, ir_version=14), 4),
    (affine(opset=17), 8),
    (affine(opset=21), 10),
    (affine(opset=26), 13),
    (affine(opset=17, dtype=TensorProto.BFLOAT16), 8),
    (affine(opset=17, dtype=TensorProto.FLOAT8E4M3FN), 9),
    (affine(opset=17, dtype=TensorProto.INT4), 10),
    (affine(opset=17, dtype=TensorProto.FLOAT4E2M1), 11),
]


@pytest.mark.parametrize(("model", "expected"), IR_VERSIONS)
def test_lowest_ir_version(model: onnx.ModelProto, expected: int) -> None:
    assert lowest_ir_version(ir.from_proto(model)) == expected


def test_written_small_models_are_one_file_that_the_runtime_loads(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    model = read_model(affine(opset=21, ir_version=14))
    model.ir_version = 13
    write_model(model, path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx"]
    assert onnx.load(path).ir_version == 10 and model.ir_version == 13
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_large_weights_go_to_one_file_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    proto = affine(size=1000)
    write_model(proto, path, external_above=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    assert path.stat().st_size < 1000
    x = np.ones((2, 3), "f")
    (scores,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(scores, x @ numpy_helper.to_array(proto.graph.initializer[0]) + 1)

    # Over itself, from its own mapped data: the old data file goes when the new model is in place, and only then.
    write_model(read_model(path), path, external_above=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data2"]
    write_model(read_model(path), path, external_above=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    # A data file that a killed write left behind is written over, not the one in use.
    write_model(read_model(path), path, external_above=1000)
    (tmp_path / "out.onnx.data").write_bytes(b"left behind")
    write_model(read_model(path), path, external_above=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    write_model(read_model(path), path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx"]
    for before, after in zip(proto.graph.initializer, onnx.load(path).graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(before), numpy_helper.to_array(after))


def test_a_failed_write_leaves_the_old_files_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.onnx"
    write_model(affine(size=1000), path, external_above=1000)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for external_above in (1000, 10**9):
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ModelFileError, match=r"out\.onnx could not be written: No space left on device"):
            write_model(affine(size=1001), path, external_above=external_above)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    monkeypatch.undo()
    monkeypatch.setattr(modelfile, "lowest_ir_version", full)
    with pytest.raises(ModelFileError, match="unchanged"):
        write_model(affine(size=1001), path, external_above=1000)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_killed_write_leaves_the_old_model_loadable(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    write_model(affine(size=1000), path, external_above=1000)
    before = path.read_bytes()
    script = f"""
        import os, signal, onnx
        from graphkit import modelfile
        model = modelfile.read_model({str(path)!r})
        modelfile.lowest_ir_version = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        modelfile.write_model(model, {str(path)!r}, external_above=1000)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert read_model(path).graph.initializers["w"].const_value is not None


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist; make it first"):
        write_model(affine(), tmp_path / "nowhere" / "m.onnx")
    with pytest.raises(ModelFileError, match="is a folder"):
        write_model(affine(), tmp_path)


def test_a_target_that_ends_in_a_slash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="slash"):
        write_model(affine(), f"{tmp_path / 'm.onnx'}/")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are in the file system of Unix only")
def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "m.onnx"
    os.mkfifo(pipe)
    (tmp_path / "link.onnx").symlink_to(pipe)
    for path in (pipe, tmp_path / "link.onnx"):
        with pytest.raises(ModelFileError, match="it is a named pipe, not a regular file"):
            read_model(path)  # before it is opened, which would wait for a writer
        with pytest.raises(ModelFileError, match="it is a named pipe, not a regular file"):
            write_model(affine(), path)
        with pytest.raises(OSError, match="named pipe"):
            modelfile.files.write_text(path, "text")
    assert pipe.is_fifo()


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_devices_are_neither_read_nor_replaced(kind: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    true_stat = os.stat

    def as_device(at: Any, **options: Any) -> os.stat_result:
        found = true_stat(at, **options)
        return os.stat_result((kind | 0o666, *found[1:])) if str(at) == str(path) else found

    monkeypatch.setattr(os, "stat", as_device)
    for check in (modelfile.files.check_readable, modelfile.files.target_of):
        with pytest.raises(OSError, match="it is a device, not a regular file"):
            check(path)
