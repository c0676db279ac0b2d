"""Where in the user's program an operator was applied.

Every record keeps its line, so finding it must cost next to nothing: the code object and the instruction offset are
kept as they are, and turned into a file and a line only when somebody reads them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import CodeType, FrameType
from typing import Final

Location = tuple[CodeType, int]

PACKAGE: Final[str] = os.path.dirname(os.path.abspath(__file__)) + os.sep
# numpy's frames lie between the user's and ours when its functions are given Tensors and Dims.
_NUMPY: Final = importlib.util.find_spec("numpy")
_CLICK: Final = importlib.util.find_spec("click")
# What click calls was called from a command line, and above it there is no line that a user wrote.
_COMMAND_LINE: Final = tuple(place + os.sep for place in (_CLICK and _CLICK.submodule_search_locations) or ())
_SKIPPED: Final = (PACKAGE, *(place + os.sep for place in (_NUMPY and _NUMPY.submodule_search_locations) or ()))


def user_location() -> Location | None:
    """The innermost frame that is not graphkit's own; None when there is none (on the command line, say)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_SKIPPED):
            if code.co_filename.startswith(_COMMAND_LINE):
                return None
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def line_of(location: Location) -> tuple[str, int]:
    """The file name and line number of a location."""
    code, offset = location
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
            break
    return code.co_filename, line


def describe(location: Location | None) -> str:
    """``train.py:12``, relative to the working directory where that is shorter; "an unknown line" for None."""
    if location is None:
        return "an unknown line"
    path, line = line_of(location)
    if os.path.isabs(path):
        try:
            relative = os.path.relpath(path)
        except ValueError:  # another drive on Windows
            relative = path
        path = relative if not relative.startswith("..") else path
    return f"{path}:{line}"


def here() -> str:
    """The user's line, described."""
    return describe(user_location())
