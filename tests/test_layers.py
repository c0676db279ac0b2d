"""The house rules that a program can check: import layers, the size of files, the documented layout."""

from __future__ import annotations

import ast
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("graphkit", "exporters", "optimizers")


def modules() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    # pathlib does not follow the links, so each file comes once; __init__ files of empty packages need no rule.
    return sorted({path.resolve() for path in found})


def test_imports_go_down_only():
    pytest.importorskip("importlinter", reason="needs the extra [check]")
    command = [Path(sysconfig.get_path("scripts"), "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_one_file_is_one_room(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 450, "over 450 lines: split it where it holds two things"
    assert path.name not in {"utils.py", "helpers.py", "common.py", "misc.py"}, "name it after what it holds"
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not tree.body, "a module says in a docstring what it is"
