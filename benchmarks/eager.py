"""What eager mode costs: one recorded add beside numpy's, and a small tanh network beside HIPS autograd.

Run with ``python -m benchmarks.eager``; ``pip install autograd`` for the second half. Everything is interleaved in one
process and medians are shown, because machines are noisy: read the ratios.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import graphkit as gk

ROUNDS = 15


def microseconds(f: Callable[[], Any], calls: int) -> float:
    """Seconds of one call, in millionths, over a run of ``calls``."""
    start = time.perf_counter()
    for _ in range(calls):
        f()
    return (time.perf_counter() - start) / calls * 1e6


def interleaved(functions: dict[str, Callable[[], Any]], calls: int) -> dict[str, float]:
    """Median microseconds a call of each function, measured in turns."""
    for f in functions.values():
        microseconds(f, calls // 4 + 1)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, f in functions.items():
            times[name].append(microseconds(f, calls))
    return {name: statistics.median(t) for name, t in times.items()}


def one_add() -> dict[str, float]:
    """An 8x8 add: numpy's, ours without and with recording."""
    array = np.ones((8, 8), np.float32)
    plain, recorded = gk.tensor(array), gk.tensor(array, requires_grad=True)
    return interleaved(
        {"numpy": lambda: array + array, "eager": lambda: plain + plain, "eager, recorded": lambda: recorded + plain},
        5000,
    )


def small_network() -> dict[str, float]:
    """Forward and backward of 8-16-16-1, tanh, squared error, batch 32."""
    rng = np.random.default_rng(0)
    shapes = ((8, 16), (16, 16), (16, 1))
    weights = [(rng.normal(size=s).astype("f") * 0.3, np.zeros(s[1], "f")) for s in shapes]
    x, y = rng.normal(size=(32, 8)).astype("f"), rng.normal(size=(32, 1)).astype("f")
    parameters = [(gk.tensor(w, requires_grad=True), gk.tensor(b, requires_grad=True)) for w, b in weights]
    tx, ty = gk.tensor(x), gk.tensor(y)

    def ours() -> Any:
        h = tx
        for w, b in parameters[:-1]:
            h = gk.op.Tanh(h @ w + b)
        w, b = parameters[-1]
        error = h @ w + b - ty
        loss = (error * error).mean()
        loss.backward()
        for w, b in parameters:
            w.grad = b.grad = None
        return loss

    candidates: dict[str, Callable[[], Any]] = {"graphkit": ours}
    if importlib.util.find_spec("autograd"):
        import autograd
        import autograd.numpy as anp

        def theirs_loss(ps: Any) -> Any:
            h = x
            for w, b in ps[:-1]:
                h = anp.tanh(anp.dot(h, w) + b)
            w, b = ps[-1]
            return anp.mean((anp.dot(h, w) + b - y) ** 2)

        both = autograd.value_and_grad(theirs_loss)
        candidates["HIPS autograd"] = lambda: both(weights)
        np.testing.assert_allclose(ours().numpy(), theirs_loss(weights), rtol=1e-5)
    return interleaved(candidates, 200)


def main() -> None:
    """Print both tables."""
    add = one_add()
    for name, value in add.items():
        print(f"{name:18s} {value:8.2f} us")
    print(f"a recorded add costs {add['eager, recorded'] - add['numpy']:.1f} us more than numpy's (target: 15 or less)")
    network = small_network()
    for name, value in network.items():
        print(f"{name:18s} {value:8.1f} us")
    if "HIPS autograd" in network:
        print(f"ratio {network['graphkit'] / network['HIPS autograd']:.2f} (target: 1 or less)")
    else:
        print("HIPS autograd is not installed: pip install autograd")


if __name__ == "__main__":
    main()
