"""The gradient of every operator.

``rule_for`` finds an operator's rule; ``coverage`` lists, for every operator, whether it has one, or why gradients stop
there. Importing this package registers every family of rules.
"""

from __future__ import annotations

import importlib
import pkgutil

from graphkit.gradients.coverage import Coverage, coverage
from graphkit.gradients.quantize import straight_through
from graphkit.gradients.table import (
    NOT_DIFFERENTIABLE,
    RULES,
    Rule,
    gradient,
    not_differentiable,
    reason_against,
    rule_for,
)

for _module in pkgutil.iter_modules(__path__):
    if _module.name == "__main__":
        continue
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "NOT_DIFFERENTIABLE", "RULES", "Coverage", "Rule", "coverage", "gradient", "not_differentiable", "reason_against",
    "rule_for", "straight_through",
]  # fmt: skip
