"""The passes as a page: what each does, what it asks for, and where it runs."""

from __future__ import annotations

from graphkit.optimizers.base import PRESETS, passes

__all__ = ["markdown"]


def markdown() -> str:
    """Every pass in the order in which the pipeline tries them, as Markdown; ``docs/passes.md`` is this."""
    found = passes()
    counts = {preset: sum(made.in_preset(preset) for made in found.values()) for preset in PRESETS}
    lines = [
        "# The passes",
        "",
        "Written by `python -m graphkit.optimizers`; `graphkit optimize --list` gives the same list. How to use and to",
        "write them: [optimizing.md](optimizing.md).",
        "",
        f"{len(found)} passes; " + ", ".join(f"{preset}: {count}" for preset, count in counts.items()) + ".",
        "",
        "| pass | what it does | when | difference | presets |",
        "|---|---|---|---|---|",
    ]
    for made in found.values():
        difference = f"{made.tolerance:g}" if made.tolerance else "none"
        texts = (text.replace("|", "\\|") for text in (made.summary, made.precondition))
        presets = ", ".join(made.presets) or "by name"
        lines.append(f"| `{made.name}` | {' | '.join(texts)} | {difference} | {presets} |")
    return "\n".join([*lines, ""])
