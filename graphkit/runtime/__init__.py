"""Running models on ONNX Runtime.

``run`` is one call; ``Session`` keeps what ONNX Runtime prepared for the next call; ``StepSession`` keeps a state (a
model's parameters, an optimizer's moments) on the device from run to run. ``available_devices`` says what there is to
run on.
"""

from __future__ import annotations

from .devices import available_devices
from .feeds import Port
from .session import Session, run
from .stepping import State, StepSession

__all__ = ["Port", "Session", "State", "StepSession", "available_devices", "run"]
