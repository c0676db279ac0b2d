"""Writing a file whole or not at all.

Everything graphkit writes goes to a temporary file in the target's folder and is then renamed over it: a full disk, an
exception or a killed process leaves the old file as it was, never half of a new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_readable(path: str | os.PathLike[str]) -> None:
    """Raise ``OSError`` for a device or a pipe: the one may have no end, the other has none yet.

    To be asked before the path is opened, because opening a pipe waits for somebody to write into it.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_kind(Path(path).stat().st_mode, path)


def target_of(path: str | os.PathLike[str]) -> Path:
    """The file that writing to ``path`` replaces: at the end of symbolic links, and a regular file if it exists.

    Raises ``OSError`` for a folder, a device, a pipe, a path that ends in a slash, and where the folder is not
    there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "latest.onnx").symlink_to("v2.onnx")
    ...     target_of(Path(folder, "latest.onnx")).name
    'v2.onnx'
    """
    text = os.fspath(path)
    if Path(path).is_dir():
        raise OSError(errno.EISDIR, "it is a folder; name a file in it", text)
    if text.endswith(("/", os.sep)):
        raise OSError(errno.ENOTDIR, "it ends in a slash, so it names a folder, and a file is written", text)
    target = Path(os.path.realpath(text)) if Path(path).is_symlink() else Path(path)
    if target.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link that leads in a circle", text)
    if not target.parent.is_dir():
        raise OSError(errno.ENOENT, f"there is no folder {target.parent}; make it first", text)
    with contextlib.suppress(FileNotFoundError):
        _check_kind(target.stat().st_mode, path)
    return target


def _check_kind(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of ``path`` when the block ends, and only if it ends well.

    A symbolic link at ``path`` stays, and the file that it leads to is replaced; the permissions of a file that was
    there are kept. Raises ``OSError`` as ``open`` would, and for what is there and is no regular file (``target_of``).
    ``follow=False`` is for a name that the user did not choose: a link there is replaced, so that nothing is written
    outside its folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "a.bin")) as file:
    ...         _ = file.write(b"whole")
    ...     Path(folder, "a.bin").read_bytes()
    b'whole'
    """
    target = target_of(path) if follow or not Path(path).is_symlink() else Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    # Not tempfile.mkstemp: its files are readable by their owner alone, which a model file should not silently become.
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise _naming(error, path) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.is_file() and not target.is_symlink():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            raise _naming(error, path) from error
        raise


def _naming(error: OSError, path: str | os.PathLike[str]) -> OSError:
    """The same error about the file that the user named, and not about the temporary one."""
    return OSError(error.errno, error.strerror, os.fspath(path))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 to ``path``, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
