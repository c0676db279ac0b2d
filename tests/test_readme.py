"""The README's Python blocks run, in order, as one program in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) >= 3
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"README.md block {number + 1}", "exec"), names)
    printed = capsys.readouterr().out
    assert "Tensor([[2., 4.]], dtype=float32)" in printed
    assert (tmp_path / "net.onnx").exists()
    assert names["graph"] is not None


def test_every_folder_of_the_layout_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    layout = text.split("## Layout")[1].split("## Design")[0]
    for name in re.findall(r"^  ([a-z_]+(?:\.py|/))", layout, re.MULTILINE):
        assert (ROOT / "graphkit" / name).exists(), name
