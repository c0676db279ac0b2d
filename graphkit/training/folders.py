"""Several files of a folder replaced together, or not at all.

New files are written into ``.new`` inside the folder; renaming that to ``.ready`` is the moment from which they are the
folder's content. Then they are moved out. Whoever finds ``.ready`` finishes the moving.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from graphkit.errors import ModelFileError
from graphkit.modelfile.files import replacing, target_of

__all__ = ["check_folder", "finish", "replacing_files"]

_NEW, _READY = ".new", ".ready"


@contextlib.contextmanager
def replacing_files(folder: Path) -> Iterator[Path]:
    """An empty folder whose files take the place of those of ``folder`` when the block ends, if it ends well."""
    check_folder(folder)
    made = not folder.exists()
    new = folder / _NEW
    try:
        folder.mkdir(parents=True, exist_ok=True)
        finish(folder)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        yield new
        for file in new.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
            target_of(folder / file.name)
        new.rename(folder / _READY)
        finish(folder)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            place = str(error.filename or folder).replace(str(new), str(folder))
            raise ModelFileError(f"{place} could not be written: {error.strerror or error}") from error
        if isinstance(error, ModelFileError) and str(new) in str(error):
            raise ModelFileError(str(error).replace(str(new), str(folder))) from error  # .new is nobody's business
        raise


def check_folder(folder: Path) -> None:
    """Raise ``ModelFileError`` where files could not be saved in ``folder``, before there is anything to save."""
    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; a training graph is saved as a folder")
    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not above.is_dir():
        raise ModelFileError(f"{folder} cannot be made: {above} is a file")
    if not os.access(above, os.W_OK):
        raise ModelFileError(f"{folder} cannot be written: {above} may not be written to")


def finish(folder: Path) -> None:
    """Move out the files of a save that was interrupted after it had written all of them."""
    ready = folder / _READY
    if not ready.is_dir():
        return
    for file in sorted(ready.iterdir(), key=lambda path: path.name == "manifest.json"):
        place = folder / file.name
        if place.is_symlink():  # which stays; the file that it leads to may lie on another disk
            with file.open("rb") as content, replacing(place) as copy:
                shutil.copyfileobj(content, copy)
            file.unlink()
        else:
            file.replace(place)
    ready.rmdir()
