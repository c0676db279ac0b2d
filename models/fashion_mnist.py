"""Fashion-MNIST: the sample that lies in models/data, or the full set read from a folder.

    python -m models.fashion_mnist [DIR]        # print what is there

The full set is four files (``train-images-idx3-ubyte.gz`` and so on), as the authors publish them and as Debian's
package ``dataset-fashion-mnist`` installs them under /usr/share/datasets/fashion-mnist.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from graphkit.errors import InputError

SAMPLE = Path(__file__).parent / "data" / "fashion_mnist_sample.npz"
CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
PIXELS = 28 * 28


class FashionMNIST(NamedTuple):
    """Images are float32 [n, 784] in 0..1, labels int64 [n] in 0..9."""

    train_images: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]


def load(data: str | os.PathLike[str] | None = None) -> FashionMNIST:
    """Return the data set: the sample of 6,000 + 1,000 images, or the full 60,000 + 10,000 from the folder ``data``.

    >>> train_images, train_labels, test_images, test_labels = load()
    >>> train_images.shape, train_images.dtype, test_labels.shape, test_labels.dtype
    ((6000, 784), dtype('float32'), (1000,), dtype('int64'))

    Raises InputError, naming the file, where one is missing, cut short or not what its name says.
    """
    if data is None:
        with np.load(SAMPLE, allow_pickle=False) as sample:
            arrays = [sample[name] for name in FashionMNIST._fields]
    else:
        folder = Path(data)
        if not folder.is_dir():
            raise InputError(
                f"no folder {str(folder)!r} to read Fashion-MNIST from: give the folder that holds "
                "train-images-idx3-ubyte.gz and its three sisters, or no folder for the sample"
            )
        arrays = []
        for part in ("train", "t10k"):
            images = _read_idx(folder / f"{part}-images-idx3-ubyte.gz", rank=3)
            labels = _read_idx(folder / f"{part}-labels-idx1-ubyte.gz", rank=1)
            if images.shape[1:] != (28, 28):
                shape = "x".join(map(str, images.shape[1:]))
                raise InputError(f"{folder / part}-images-idx3-ubyte.gz holds {shape} images, expected 28x28")
            if len(images) != len(labels):
                raise InputError(f"{folder}: {len(images)} {part} images but {len(labels)} {part} labels")
            if labels.size and labels.max() > 9:
                raise InputError(f"{folder / part}-labels-idx1-ubyte.gz holds label {labels.max()}, expected 0..9")
            arrays += [images.reshape(-1, PIXELS), labels]
    train_images, train_labels, test_images, test_labels = arrays
    return FashionMNIST(
        train_images.astype(np.float32) / np.float32(255),
        train_labels.astype(np.int64),
        test_images.astype(np.float32) / np.float32(255),
        test_labels.astype(np.int64),
    )


def _read_idx(path: Path, rank: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes: the bytes 0, 0, 8, rank; each dim as a big-endian int32; the data."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path} is missing: Fashion-MNIST is four idx.gz files, all of them needed") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    header = 4 + 4 * rank
    if len(raw) < header or raw[:4] != bytes([0, 0, 8, rank]):
        raise InputError(f"{path} is not an idx file of unsigned bytes with {rank} dims (starts with {raw[:4].hex()})")
    shape = np.frombuffer(raw, dtype=">i4", count=rank, offset=4).tolist()
    if len(raw) - header != np.prod(shape, dtype=np.int64):
        raise InputError(f"{path} holds {len(raw) - header} bytes of data, its header says {shape}: cut short?")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def main(arguments: list[str]) -> None:
    """Print the size and the balance of the classes."""
    data = load(*arguments[:1])
    for part, labels in (("train", data.train_labels), ("test", data.test_labels)):
        counts = np.bincount(labels, minlength=len(CLASSES)).tolist()
        print(f"{part}: {len(labels)} images; {', '.join(f'{c} {n}' for c, n in zip(CLASSES, counts, strict=True))}")


if __name__ == "__main__":
    main(sys.argv[1:])
