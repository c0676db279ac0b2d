"""``python -m graphkit.gradients`` writes the list of operators, as in ``docs/gradients.md``."""

from __future__ import annotations

import sys

from graphkit.gradients.coverage import markdown

if __name__ == "__main__":
    sys.stdout.write(markdown())
