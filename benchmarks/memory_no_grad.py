"""Peak memory of a forward pass, with and without recording.

    python -m benchmarks.memory_no_grad

A network of 14.2 million parameters (57 MB) on a batch of 1,024. While gradients may be asked for, every activation is
kept; under ``gk.no_grad()`` each is freed as soon as the next layer has read it. Each case runs in a process of its
own, and what is shown is the growth of its largest resident size over the pass.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

SIZES = (784, *[1056] * 13, 10)
ROWS = 1024


def peak() -> float:
    """The largest resident size of this process so far, MB."""
    with Path("/proc/self/status").open(encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


def measure(recording: bool) -> None:
    """One case; prints MB at first and at most."""
    import numpy as np

    import graphkit as gk
    from models.mlp import MLP

    model = MLP(SIZES)
    x = gk.tensor(np.ones((ROWS, SIZES[0]), "float32"))
    context: Any = contextlib.nullcontext() if recording else gk.no_grad()
    with gk.no_grad():
        model(gk.tensor(np.ones((1, SIZES[0]), "float32")))  # sessions and their threads are made once
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from what is resident now
    before = peak()
    with context:
        y = model(x)
    print(before, peak() - before, sum(p.size for p in model.parameters()), y.requires_grad)


def main() -> None:
    """Both cases, each in a process of its own."""
    if len(sys.argv) > 1:
        measure(sys.argv[1] == "recording")
        return
    for case in ("no_grad", "recording"):
        command = [sys.executable, "-m", "benchmarks.memory_no_grad", case]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        _, grown, parameters, _ = done.stdout.split()
        print(f"{case}: {int(parameters) * 4e-6:.0f} MB of parameters + {float(grown):.0f} MB")


if __name__ == "__main__":
    main()
