"""Old models in today's form: every ``ai.onnx`` node of opset 7 to 20 rewritten at the working opset, meaning the same.

Everything else in graphkit knows one form of each operator, the one of opset 21. ``upgrade_model`` brings a model
there: an attribute that became an input is moved, a default that changed is written out, an operator that was renamed
is renamed, and one whose meaning changed (a ``Softmax`` that flattens, a ``Scan`` with a batch axis) becomes the nodes
that say the same today.

The rewrites are in tables: ``adapters.py`` says how one is registered, the files beside it hold one family each, and
``compatible.py`` lists the versions that only added types or options, so that no change passes unnoticed.

``lower_model`` goes the other way, for runtimes that read older files: the tables are in ``lower_*.py``, and every node
is held against the schema of the opset to be written.
"""

from __future__ import annotations

from graphkit.upgrade.driver import NEWEST, OLDEST, WORKING, upgrade_model
from graphkit.upgrade.lower import lower_model

__all__ = ["NEWEST", "OLDEST", "WORKING", "lower_model", "upgrade_model"]
