"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def modules() -> list[str]:
    """The modules of the package, and the programs in models/, that have an example."""
    found = []
    for top, prefix in (("graphkit", ""), ("exporters", "graphkit."), ("optimizers", "graphkit."), ("models", "")):
        for path in sorted((ROOT / top).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found.append(prefix + name.removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", modules())
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # an example may write files
    with np.printoptions(precision=4, suppress=True):
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed
