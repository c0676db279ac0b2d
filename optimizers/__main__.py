"""``python -m graphkit.optimizers`` writes the list of passes, as in ``docs/passes.md``."""

from __future__ import annotations

import sys

from graphkit.optimizers.listing import markdown

if __name__ == "__main__":
    sys.stdout.write(markdown())
