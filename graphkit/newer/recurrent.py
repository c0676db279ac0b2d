"""RNN, GRU and LSTM with the batch first, which the runtime's kernels refuse, with time first, between transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphkit.core import Tensor
from graphkit.interpreter import apply, apply1
from graphkit.newer.table import Call, newer

# The inputs that have a batch axis and no gates: x and the initial states; how they and the states turn either way, and
# how each output turns back.
TURNED_INPUTS: Final = (0, 5, 6)
STATES: Final = [1, 0, 2]
TURNED_OUTPUTS: Final = ([2, 0, 1, 3], STATES, STATES)


@newer(14, "RNN", "GRU", "LSTM")
def time_first(c: Call) -> Sequence[Tensor] | None:
    if not c.attribute("layout", 0):
        return None
    inputs = [
        t if t is None or n not in TURNED_INPUTS else apply1("Transpose", t, perm=STATES)
        for n, t in enumerate(c.inputs)
    ]
    attributes = {name: value for name, value in c.attributes.items() if name != "layout"}
    made = apply(c.op, inputs, attributes, c.count)
    return [apply1("Transpose", t, perm=perm) for t, perm in zip(made, TURNED_OUTPUTS, strict=False)]
