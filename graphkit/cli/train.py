"""``graphkit train``."""

from __future__ import annotations

import click


@click.command("train")
def command() -> None:
    """Train a model's parameters."""
