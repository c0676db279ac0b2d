"""Models and their weights behind symbolic links, read and written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit import modelfile
from graphkit.errors import ModelFileError
from graphkit.modelfile import read_model, write_model


def affine(size: int = 2) -> onnx.ModelProto:
    """scores = x @ w, with x float32[N, 3]."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"])],
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", size])],
        [numpy_helper.from_array(np.arange(3 * size, dtype="f").reshape(3, size), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_link_at_the_target_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    real = tmp_path / "v2.onnx"
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "m.onnx").symlink_to("../v2.onnx")
    for _ in range(2):  # the first time the link leads nowhere
        write_model(affine(), folder / "m.onnx")
        assert (folder / "m.onnx").is_symlink() and not real.is_symlink()
        assert read_model(real).graph.name == "affine"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["models", "v2.onnx"]
    (folder / "round.onnx").symlink_to("round.onnx")
    with pytest.raises(ModelFileError, match="circle"):
        write_model(affine(), folder / "round.onnx")


def test_weights_go_beside_the_file_a_link_leads_to_and_readers_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "models", tmp_path / "store"
    folder.mkdir()
    store.mkdir()
    (folder / "m.onnx").symlink_to("../store/v2.onnx")
    (store / "latest.onnx").symlink_to("v2.onnx")

    def files() -> list[str]:
        return sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if not p.is_dir())

    def written(at: Path, data: str) -> None:
        write_model(affine(size=400), at, external_above=100)
        for path in (folder / "m.onnx", store / "v2.onnx", store / "latest.onnx"):
            assert onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()
            tensor = read_model(path).graph.initializers["w"].const_value
            assert tensor is not None and tensor.numpy()[2, 399] == 1199
        links = ["models/m.onnx", f"models/{data}", "store/latest.onnx"]
        assert files() == sorted([*links, "store/v2.onnx", f"store/{data}"])
        assert all((tmp_path / link).is_symlink() for link in links)

    written(folder / "m.onnx", "v2.onnx.data")
    written(folder / "m.onnx", "v2.onnx.data2")  # the old model stays whole until the new one has taken its place
    before = (store / "v2.onnx").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(modelfile, "to_proto", lambda model: model.missing)
        with pytest.raises(ModelFileError):
            write_model(affine(size=400), folder / "m.onnx", external_above=100)
    assert (store / "v2.onnx").read_bytes() == before and "store/v2.onnx.data" not in files()
    assert read_model(folder / "m.onnx").graph.name == "affine"
    (folder / "v2.onnx.data").write_bytes(b"another model's")
    with pytest.raises(ModelFileError, match=r"a symbolic link to .*v2.onnx, .* is in the way"):
        write_model(affine(size=400), folder / "m.onnx", external_above=100)
    assert (folder / "v2.onnx.data").read_bytes() == b"another model's" and "store/v2.onnx.data" not in files()
    write_model(affine(), folder / "m.onnx")
    assert files() == ["models/m.onnx", "models/v2.onnx.data", "store/latest.onnx", "store/v2.onnx"]


def test_a_model_and_its_weights_may_be_links_into_one_folder(tmp_path: Path) -> None:
    """As download caches lay them out."""
    for name in ("blobs", "snapshot"):
        (tmp_path / name).mkdir()
    write_model(affine(size=400), tmp_path / "blobs" / "h1", external_above=100)
    for name, blob in (("model.onnx", "h1"), ("h1.data", "h1.data")):
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{blob}")
    model = read_model(tmp_path / "snapshot" / "model.onnx")
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None and tensor.numpy()[2, 399] == 1199
    write_model(model, tmp_path / "copy.onnx")
    assert onnx.load(tmp_path / "copy.onnx").graph.initializer[0].raw_data == tensor.tobytes()
    (tmp_path / "secret.data").write_bytes(tensor.tobytes())
    (tmp_path / "snapshot" / "h1.data").unlink()
    (tmp_path / "snapshot" / "h1.data").symlink_to("../secret.data")
    with pytest.raises(ModelFileError, match="outside the model's folder"):
        read_model(tmp_path / "snapshot" / "model.onnx")


def test_a_link_at_the_data_file_is_replaced_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.bin"
    outside.write_bytes(b"precious")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "m.onnx.data").symlink_to(outside)
    write_model(affine(size=400), folder / "m.onnx", external_above=100)
    assert outside.read_bytes() == b"precious" and not (folder / "m.onnx.data").is_symlink()
