"""The pages about optimizing are true: the list of passes is up to date, and the examples run."""

from __future__ import annotations

import doctest
from pathlib import Path

from graphkit.optimizers import passes
from graphkit.optimizers.listing import markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_of_passes_is_up_to_date():
    page = (DOCS / "passes.md").read_text()
    assert page == markdown(), "write it again: python -m graphkit.optimizers > docs/passes.md"
    assert all(f"| `{name}` |" in page for name in passes())


def test_the_examples_run():
    ran = doctest.testfile(str(DOCS / "optimizing.md"), module_relative=False)
    assert ran.attempted > 5
    assert ran.failed == 0
