"""A run that must compare with PyTorch fails when it did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MARKED = "import pytest\n@pytest.mark.torch\ndef test_it():\n    pytest.skip('not today')\n"
WHOLE = "import pytest\ntorch = pytest.importorskip('torch.no_such_module')\ndef test_it(): pass\n"
CUDA = "import pytest\n@pytest.mark.cuda\n@pytest.mark.torch\ndef test_it():\n    pytest.skip('no GPU')\n"
OTHER = "import pytest\ndef test_it():\n    pytest.skip('not today')\n"


@pytest.mark.parametrize(
    ("test", "required", "code"),
    [(MARKED, "1", 1), (MARKED, "", 0), (WHOLE, "1", 1), (CUDA, "1", 0), (OTHER, "1", 0)],
    ids=["marked", "marked-optional", "whole-module", "cuda", "unrelated"],
)
def test_skipped_comparisons_fail_the_run_where_they_are_required(tmp_path: Path, test: str, required: str, code: int):
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_one.py").write_text(test)
    (tmp_path / "test_two.py").write_text("def test_another(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    torch\n    cuda\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        env={**os.environ, "GRAPHKIT_REQUIRE_TORCH": required},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout
    assert ("tests against PyTorch were skipped" in done.stdout) == bool(code)
