"""Writing a file whole or not at all.

Everything graphkit writes goes to a temporary file in the target's folder and is then renamed over it: a full disk, an
exception or a killed process leaves the old file as it was, never half of a new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of ``path`` when the block ends, and only if it ends well.

    A symbolic link at ``path`` is replaced, not followed, so nothing is written outside its folder; the permissions of
    a file that was there are kept. Raises ``OSError`` as ``open`` would.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "a.bin")) as file:
    ...         _ = file.write(b"whole")
    ...     Path(folder, "a.bin").read_bytes()
    b'whole'
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder")
    # Not tempfile.mkstemp: its files are readable by their owner alone, which a model file should not silently become.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.is_file() and not target.is_symlink():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 to ``path``, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
