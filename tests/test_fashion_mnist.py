"""The sample in the repository, and the reader of the full set on files that are not what they should be."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import InputError
from models import fashion_mnist


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


def folder(path: Path, **replaced: bytes | None) -> Path:
    """Two images and labels a part, as the full set lays them out; ``replaced`` by file name, None to leave one out."""
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        files = {
            f"{part}-images-idx3-ubyte": gzip.compress(idx(rng.integers(0, 256, (2, 28, 28)))),
            f"{part}-labels-idx1-ubyte": gzip.compress(idx(np.array([3, 9]))),
        }
        for name, whole in files.items():
            content = replaced.get(name.replace("-", "_"), whole)
            if content is not None:
                (path / f"{name}.gz").write_bytes(content)
    return path


def test_sample():
    data = fashion_mnist.load()
    assert [a.shape for a in data] == [(6000, 784), (6000,), (1000, 784), (1000,)]
    assert [a.dtype for a in data] == [np.float32, np.int64] * 2
    assert (np.bincount(data.train_labels).tolist(), np.bincount(data.test_labels).tolist()) == ([600] * 10, [100] * 10)
    for images in (data.train_images, data.test_images):
        assert (images.min(), images.max()) == (0, 1)
        assert 0.2 < images.mean() < 0.35


def test_sample_is_small():
    assert fashion_mnist.SAMPLE.stat().st_size < 5_000_000


def test_full_set(tmp_path: Path):
    data = fashion_mnist.load(folder(tmp_path))
    assert data.train_images.shape == (2, 784)
    assert data.test_labels.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train_images_idx3_ubyte", None, "train-images-idx3-ubyte.gz is missing"),
        ("t10k_labels_idx1_ubyte", b"", "is not an idx file"),
        ("t10k_labels_idx1_ubyte", b"not gzip", "cannot be read"),
        ("train_images_idx3_ubyte", gzip.compress(idx(np.zeros((2, 28, 28))))[:-12], "cannot be read"),
        ("train_images_idx3_ubyte", gzip.compress(idx(np.zeros((2, 28, 28)))[:-1]), "cut short"),
        ("train_images_idx3_ubyte", gzip.compress(idx(np.zeros((2, 27, 28)))), "27x28 images, expected 28x28"),
        ("train_images_idx3_ubyte", gzip.compress(idx(np.zeros((3, 28, 28)))), "3 train images but 2 train labels"),
        ("train_labels_idx1_ubyte", gzip.compress(idx(np.array([3, 10]))), "label 10, expected 0..9"),
        ("train_labels_idx1_ubyte", gzip.compress(idx(np.zeros((2, 28, 28)))), "not an idx file .* with 1 dims"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes | None, message: str):
    with pytest.raises(InputError, match=message):
        fashion_mnist.load(folder(tmp_path, **{name: content}))


def test_no_folder(tmp_path: Path):
    with pytest.raises(InputError, match=r"no folder .*absent"):
        fashion_mnist.load(tmp_path / "absent")
