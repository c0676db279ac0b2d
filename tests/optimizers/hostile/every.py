"""All hostile graphs, by kind."""

from __future__ import annotations

from tests.optimizers.hostile import arithmetic, control, interfaces, layers, shapes, storage
from tests.optimizers.hostile.cases import Case

KINDS: dict[str, list[Case]] = {
    each.__name__.rpartition(".")[2]: each.CASES for each in (arithmetic, control, interfaces, layers, shapes, storage)
}
CASES: dict[str, Case] = {each.name: each for group in KINDS.values() for each in group}
