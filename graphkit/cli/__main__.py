"""``python -m graphkit.cli``."""

from graphkit.cli import main

main()
