"""One training step, beside PyTorch and JAX: a ratio for each network, measured in one run.

    python -m benchmarks.training_speed [--rounds 30] [--models mlp,wide,gpt] [--threads 2]

Each contestant takes a few steps in turn, over and over, so that what else the machine does strikes all alike; times
are medians over the rounds. All take the same batch, the same first parameters and plain SGD. Peers that are not
installed are left out and named (``pip install torch``, ``pip install jax``).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

# (what, the goal of the note on speed as a ratio to the best peer)
GOALS = {"mlp": 0.7, "wide": 1.05, "gpt": 1.15}
ROWS = {"mlp": 32, "wide": 1024, "gpt": 8}


def contestants(name: str, threads: int) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """A step of each, which returns the loss; and what is missing."""
    import numpy as np

    import graphkit as gk
    from models import gpt, mlp

    gk.random.seed(0)
    rng = np.random.default_rng(0)
    if name == "gpt":
        model: gk.nn.Module = gpt.GPT(256, 256, 4, 8, 128)
        x: Any = rng.integers(0, 256, (ROWS[name], 128))
        labels = rng.integers(0, 256, (ROWS[name], 128))
        spec = gk.spec("int64", ["batch", 128])
    else:
        model = mlp.MLP((784, 128, 10) if name == "mlp" else (784, 512, 512, 10))
        x = rng.uniform(size=(ROWS[name], 784)).astype("float32")
        labels = rng.integers(0, 10, ROWS[name])
        spec = gk.spec("float32", ["batch", 784])
    trainer = gk.Trainer(
        gk.training.build(model, "cross_entropy", gk.optim.SGD(0.01), inputs={"x": spec}), threads=threads
    )
    batch = {"x": x, "labels": labels}
    found: dict[str, Callable[[], float]] = {"graphkit": lambda: float(trainer.step(batch)["loss"])}
    missing = []
    try:
        found["PyTorch"] = _torch_step(name, model, x, labels, threads)
    except ImportError:
        missing.append("PyTorch")
    try:
        found["jax.jit"] = _jax_step(name, model, x, labels)
    except ImportError:
        missing.append("JAX")
    return found, missing


def _torch_step(name: str, model: Any, x: Any, labels: Any, threads: int) -> Callable[[], float]:
    import torch

    from tests.torch_models import mirrored

    torch.set_num_threads(threads)
    theirs = mirrored(torch, "gpt" if name == "gpt" else "mlp", model)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.01)
    inputs, targets = torch.tensor(x), torch.tensor(labels).reshape(-1)

    def step() -> float:
        optimizer.zero_grad()
        logits = theirs(inputs)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def _jax_step(name: str, model: Any, x: Any, labels: Any) -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    state = {n: jnp.asarray(v) for n, v in model.state_dict().items()}

    def linear(p: Any, path: str, h: Any) -> Any:
        y = h @ p[f"{path}.weight"].T
        return y + p[f"{path}.bias"] if f"{path}.bias" in p else y

    def norm(p: Any, path: str, h: Any) -> Any:
        centred = h - h.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return scaled * p[f"{path}.weight"] + p[f"{path}.bias"]

    def attention(p: Any, path: str, h: Any) -> Any:
        b, t, c = h.shape
        names = ("query", "key", "value")
        q, k, v = (linear(p, f"{path}.{n}", h).reshape(b, t, 8, -1).transpose(0, 2, 1, 3) for n in names)
        scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(q.shape[-1]) + jnp.triu(jnp.full((t, t), -1e9), 1)
        return linear(p, f"{path}.out", (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, c))

    def forward(p: Any, inputs: Any) -> Any:
        if name != "gpt":
            for n in range(len(model.layers) - 1):
                inputs = jax.nn.relu(linear(p, f"layers.{n}", inputs))
            return linear(p, f"layers.{len(model.layers) - 1}", inputs)
        h = p["tokens.weight"][inputs] + p["places.weight"]
        for n in range(len(model.layers)):
            h = h + attention(p, f"layers.{n}.attention", norm(p, f"layers.{n}.norm1", h))
            wide = jax.nn.gelu(linear(p, f"layers.{n}.wide", norm(p, f"layers.{n}.norm2", h)), approximate=False)
            h = h + linear(p, f"layers.{n}.narrow", wide)
        return linear(p, "head", norm(p, "norm", h))

    def loss_of(p: Any, inputs: Any, targets: Any) -> Any:
        logs = jax.nn.log_softmax(forward(p, inputs))
        return -jnp.take_along_axis(logs, targets[..., None], -1).mean()

    @jax.jit
    def update(p: Any, inputs: Any, targets: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(p, inputs, targets)
        return {n: v - 0.01 * gradients[n] for n, v in p.items()}, loss

    def step() -> float:
        nonlocal state
        state, loss = update(state, x, labels)
        return float(loss)

    return step


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--models", default=",".join(GOALS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu with one thread: on a busy machine"
    )
    options = parser.parse_args()
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    flags = f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={options.threads}"
    os.environ.setdefault("XLA_FLAGS", flags)
    for name in options.models.split(","):
        steps, missing = contestants(name, options.threads)
        if missing:
            print(f"{name}: without {' and '.join(missing)}, not installed")
        first = {who: step() for who, step in steps.items()}
        assert max(first.values()) - min(first.values()) < 1e-3 * max(first.values()), first
        each = {"mlp": 50, "wide": 3, "gpt": 1}[name]
        times: dict[str, list[float]] = {who: [] for who in steps}
        for turn in range(options.rounds + 3):
            for who, step in steps.items():
                time.sleep(0.05)  # the others' threads spin for a while after their last step
                step()
                started = clock()
                for _ in range(each):
                    step()
                if turn >= 3:
                    times[who].append((clock() - started) / each)
        medians = {who: 1e3 * statistics.median(values) for who, values in times.items()}
        shown = ", ".join(f"{who} {value:.3f} ms" for who, value in medians.items())
        peers = [value for who, value in medians.items() if who != "graphkit"]
        ratio = f"; ratio to the best peer {medians['graphkit'] / min(peers):.2f} (goal {GOALS[name]})" if peers else ""
        print(f"{name}: {shown}{ratio}", flush=True)


if __name__ == "__main__":
    main()
