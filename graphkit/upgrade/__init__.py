"""Old models in today's form: every ``ai.onnx`` node of opset 7 to 20 rewritten at the working opset, meaning the same.

Everything else in graphkit knows one form of each operator, the one of opset 21. ``upgrade_model`` brings a model
there: an attribute that became an input is moved, a default that changed is written out, an operator that was renamed
is renamed, and one whose meaning changed (a ``Softmax`` that flattens, a ``Scan`` with a batch axis) becomes the nodes
that say the same today.

The rewrites are in tables: ``adapters.py`` says how one is registered, the files beside it hold one family each, and
``compatible.py`` lists the versions that only added types or options, so that no change passes unnoticed.

``lower_model`` goes the other way, for runtimes that read older files: the tables are in ``lower_*.py``, and every node
is held against the schema of the opset to be written. ``make_runnable`` is that walk from what the standard has and
the runtime has not yet.
"""

from __future__ import annotations

from graphkit.upgrade.driver import NEWEST, OLDEST, WORKING, upgrade_model
from graphkit.upgrade.layout import batchwise, time_major
from graphkit.upgrade.lower import has_no_kernel, lower_model, make_runnable

__all__ = [
    "NEWEST",
    "OLDEST",
    "WORKING",
    "batchwise",
    "has_no_kernel",
    "lower_model",
    "make_runnable",
    "time_major",
    "upgrade_model",
]
