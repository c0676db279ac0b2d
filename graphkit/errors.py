"""The errors graphkit raises.

Every message says what happened, where (the user's file and line, or the node and the file), and what to write
instead. Each class names one kind of situation, so that a program can tell them apart; all derive from
``GraphkitError``, which is what the command line catches.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GraphkitError(Exception):
    """Base of every error that graphkit raises on purpose."""


class ModelFileError(GraphkitError):
    """A model file, or a file beside it, cannot be read or written.

    Raised for a missing, empty, truncated or non-ONNX file, an opset or IR version that the runtime does not load,
    external data that is absent or lies outside the model's folder.
    """


class InputError(GraphkitError, ValueError):
    """What was fed to a model does not fit it: a missing or unknown name, a wrong dtype, rank or dimension."""


class OperatorError(GraphkitError, ValueError):
    """An operator was applied to inputs or attributes it does not take.

    The message names the operator, the input or attribute, what was expected and got, and the user's line.
    """


class TraceError(GraphkitError):
    """A Python value was asked of a tensor whose value is only known when the traced graph runs.

    ``if x.sum() > 0:`` inside a traced function is the usual cause: write ``gk.cond`` or ``gk.op.Where`` instead.
    """


class GradientError(GraphkitError):
    """A gradient cannot be computed: no rule, no path, a freed graph, or a value that changed since it was recorded."""


class DeviceError(GraphkitError):
    """A device was asked for that this machine, or this build of ONNX Runtime, cannot provide."""


class PassError(GraphkitError, ValueError):
    """An optimizer pass does not exist, or its result did not agree with the model it was given."""


class VerificationError(GraphkitError):
    """Two models, or a function and its export, that should agree do not."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the known name closest to ``name``, or an empty string.

    >>> did_you_mean("Cnov", ["Conv", "Relu"])
    " Did you mean 'Conv'?"
    """
    known = list(known)
    lowered = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    return f" Did you mean '{lowered[close[0]]}'?" if close else ""
