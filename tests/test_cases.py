"""Cases distilled from public reports about gradients, export and training.

They lie beside the repository (``../shared/cases``) and are skipped where they are not. Each is one kind of fault, with
the right numbers; graphkit must give them through its public calls.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GraphkitError
from graphkit.optimizers import add_gradients

FOLDER = Path(__file__).parents[2] / "shared" / "cases"
MODULES = ("b_autograd", "c_export", "e_train")
Case = dict[str, Any]

# Cases that wait for something, each with the reason.
WAITING: dict[str, str] = {}


def cases() -> dict[str, Callable[[], Case]]:
    found: dict[str, Callable[[], Case]] = {}
    if not FOLDER.is_dir():
        return found
    sys.path.insert(0, str(FOLDER))
    try:
        for name in MODULES:
            module = importlib.import_module(name)
            made = {n: f for n, f in vars(module).items() if n.startswith("case_") and f.__module__ == name}
            found.update({n.removeprefix("case_"): f for n, f in made.items()})
    finally:
        sys.path.remove(str(FOLDER))
    return found


CASES = cases()
pytestmark = pytest.mark.skipif(not CASES, reason="the cases are not beside this checkout")


@pytest.mark.parametrize("name", CASES or ["none"])
def test_case(name: str, tmp_path: Path) -> None:
    if name in WAITING:
        pytest.skip(WAITING[name])
    case = CASES[name]()
    special = SPECIAL.get(name)
    if special is not None:
        special(case, tmp_path)
    else:
        CHECKS[case["check"]](case, tmp_path)


def differentiate(case: Case, folder: Path) -> None:
    model, extra, inputs = case["model"], case["extra"], case["inputs"]
    pair = extra.get("grad_equals_output")
    wanted = [*case["expected"], *([pair[0]] if pair else [])]
    graph = add_gradients(model, of="loss", wrt=wanted, unreached="zeros")
    fed = {v.name for v in model.graph.input}
    outputs = gk.run(graph, {k: v for k, v in inputs.items() if k in fed}, optimizations=False)
    groups = [place for group in extra.get("convex", ()) for place in group["members"]]
    for key, expected in case["expected"].items():
        got = outputs[f"{key}_grad"]
        assert got.shape == expected.shape and got.dtype == expected.dtype
        free = np.zeros(expected.shape, bool)
        for member, place in groups:
            if member == key:
                free[place] = True
        close(np.where(free, 0, got), np.where(free, 0, expected), case)
    for group in extra.get("convex", ()):
        shares = [outputs[f"{key}_grad"][place] for key, place in group["members"]]
        assert min(shares) >= 0
        np.testing.assert_allclose(sum(shares), group["total"], rtol=1e-5)
    for key in extra.get("no_grad", ()):
        with pytest.raises(GraphkitError, match=key):
            add_gradients(model, of="loss", wrt=[key])
    for key, expected in extra.get("also", {}).items():
        close(outputs[key], expected, case)
    if pair:
        np.testing.assert_array_equal(outputs[f"{pair[0]}_grad"], outputs[pair[1]])
    for key in (*extra.get("not_trainable", ()), *extra.get("frozen", ())):
        trainable = (
            None if key in extra.get("not_trainable", ()) else [w for w in wanted if w not in fed and w != "side"]
        )
        built = gk.training.build(model, loss="loss", optimizer=gk.optim.SGD(0.1), trainable=trainable)
        assert key not in built.trainable


def close(got: Any, expected: Any, case: Case) -> None:
    rtol, atol = case["tol"]
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)


def export(case: Case, folder: Path) -> None:
    extra, inputs = case["extra"], case["inputs"]
    path = folder / "model.onnx"
    names = extra.get("keep_outputs") or list(case["expected"])
    try:
        gk.export(extra["f"], inputs, path, dynamic=extra.get("dynamic"), output_names=names)
    except GraphkitError:
        if extra.get("clear_error_ok"):
            return
        raise
    runs = [{"inputs": inputs, "expected": case["expected"]}, *extra.get("more_runs", ())]
    for run in runs:
        outputs = gk.run(path, run["inputs"], optimizations=False)
        assert list(outputs) == list(run["expected"])
        for key, expected in run["expected"].items():
            expected = np.asarray(expected)
            assert outputs[key].shape == expected.shape and outputs[key].dtype == expected.dtype
            close(outputs[key], expected, case)
    if "max_bytes" in extra:
        assert path.stat().st_size <= extra["max_bytes"]
        smaller = folder / "optimized.onnx"
        gk.export(gk.load(gk.optimize(path)), inputs, smaller)
        assert smaller.stat().st_size <= extra["max_bytes"]


def batch_size_not_baked(case: Case, folder: Path) -> None:
    """As a user of graphkit writes it: the batch size divides as it is; float() of it is refused at its line."""
    with pytest.raises(GraphkitError, match="batch"):
        gk.export(case["extra"]["f"], case["inputs"], folder / "refused.onnx", dynamic=case["extra"]["dynamic"])
    w = gk.tensor(case["extra"]["consts"]["w"])

    def f(x: Any) -> Any:
        b = x.shape[0]
        return x.reshape(b, -1) @ w + x.sum() / b

    export({**case, "extra": {**case["extra"], "f": f}}, folder)


def shared_weight_written_once(case: Case, folder: Path) -> None:
    """The weight is a Tensor: a numpy array cannot be indexed by a traced value."""
    e = gk.tensor(case["extra"]["consts"]["e"], name="e")

    def f(ids: Any) -> Any:
        return e[ids] @ e.T

    export({**case, "extra": {**case["extra"], "f": f}}, folder)


def refuse(case: Case, folder: Path) -> None:
    wanted = [t.name for t in case["model"].graph.initializer]
    with pytest.raises(GraphkitError) as raised:
        add_gradients(case["model"], of="loss", wrt=wanted)
    message = str(raised.value).lower()
    for group in case["expected"]["must_mention"]:
        assert any(word in message for word in group), message


def compute(case: Case, folder: Path) -> None:
    raise AssertionError("a case that states its mathematics needs a function of its own here")


def adamw_three_steps(case: Case, folder: Path) -> None:
    hyper, inputs = case["extra"]["hyper"], case["inputs"]
    optimizer = gk.optim.AdamW(hyper["lr"], betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"],
                               weight_decay=hyper["weight_decay"])  # fmt: skip
    p = gk.tensor(inputs["p0"], requires_grad=True)
    for step in ("g1", "g2", "g3"):
        p.grad = gk.tensor(inputs[step])
        optimizer.step([p])
    close(p.numpy(), case["expected"]["p"], case)


def uneven_micro_batches(case: Case, folder: Path) -> None:
    x, t, w = (case["inputs"][k] for k in "xtw")
    weight = gk.tensor(w, requires_grad=True, name="w")
    model = gk.trace(lambda x: x @ weight, gk.spec("float32", ["batch", 2]), input_names=["x"])
    labels = gk.spec("float32", ["batch"])
    graph = gk.training.build(model, loss="mse", optimizer=gk.optim.SGD(1.0), labels=labels, accumulate=True)
    trainer = gk.Trainer(graph)
    trainer.step([{"x": x[a:b], "labels": t[a:b]} for a, b in case["extra"]["micro"]])
    close(w - trainer.parameters()["w"], case["expected"]["w"], case)


def eager_mutation_after_save(case: Case, folder: Path) -> None:
    given = case["inputs"]["x"].copy()
    x = gk.tensor(given, requires_grad=True)
    y = gk.op.Exp(x)
    z = (y * y).sum()
    given[:] = 100
    for buffer in (y.numpy(), x.numpy()):
        try:
            buffer[:] = 100
        except ValueError:
            continue
    z.backward()
    close(x.grad.numpy(), case["expected"]["x"], case)


CHECKS = {"grad": differentiate, "export": export, "error": refuse, "run": compute}
SPECIAL = {
    "batch_size_not_baked": batch_size_not_baked,
    "shared_weight_written_once": shared_weight_written_once,
    "adamw_three_steps": adamw_three_steps,
    "uneven_micro_batches": uneven_micro_batches,
    "eager_mutation_after_save": eager_mutation_after_save,
}
