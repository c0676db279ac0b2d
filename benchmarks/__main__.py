"""``python -m benchmarks``: what can be measured, one line a script."""

from __future__ import annotations

import ast
from pathlib import Path


def main() -> None:
    """List the scripts with the first line of what they say of themselves."""
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        print(f"python -m benchmarks.{path.stem:18s} {said.splitlines()[0] if said else ''}")


if __name__ == "__main__":
    main()
