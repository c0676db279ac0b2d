"""The session that carries a state: two buffers that change places, nothing copied, nothing lost on failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from graphkit.errors import GraphkitError, InputError
from graphkit.runtime import Session, StepSession, run, stepping
from graphkit.runtime.devices import Device


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g ' + text)


# w <- w - lr * mean(x), t <- t + 1; the loss is the sum of the old w, and every row's product with it comes out too.
STEP = model(
    """(float[2] w, int64 t, float[2] scale, float[N, 2] x, float lr)
    => (float[2] w_new, int64 t_new, float loss, float[N] rows)
    <int64[1] axis = {0}, int64[1] last = {1}, int64 one = {1}> {
    m = ReduceMean<keepdims = 0>(x, axis) u = Mul(m, lr) v = Mul(u, scale) w_new = Sub(w, v) t_new = Add(t, one)
    loss = ReduceSum<keepdims = 0>(w) p = Mul(x, w) rows = ReduceSum<keepdims = 0>(p, last)}"""
)
READ = model("(float[2] w, float[N, 2] x) => (float[N, 2] y) {y = Mul(x, w)}")
PAIRS = {"w": "w_new", "t": "t_new"}


def start() -> dict[str, Any]:
    return {"w": np.ones(2, "f"), "t": 0, "scale": np.ones(2, "f")}


def batch(rows: int, lr: float = 0.5) -> dict[str, Any]:
    return {"x": np.arange(2 * rows, dtype="f").reshape(rows, 2), "lr": np.array(lr, "f")}


def test_steps_equal_plain_runs_and_the_batch_size_may_change() -> None:
    given = start()
    step = StepSession(STEP, given, PAIRS)
    assert [one.name for one in step.inputs] == ["x", "lr"]
    state = dict(given)
    kept = []
    for rows in (3, 3, 1, 32, 32, 7):
        got = step.run(batch(rows))
        expected = run(STEP, {**state, **batch(rows)})
        assert list(got) == ["loss", "rows"]
        for name, value in got.items():
            np.testing.assert_array_equal(value, expected[name])
        kept.append((got["rows"], expected["rows"]))
        state.update(w=expected["w_new"], t=expected["t_new"])
        for name, value in step.state().items():
            np.testing.assert_array_equal(value, state[name])
    for ours, theirs in kept:  # outputs of earlier steps are not overwritten by later ones
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(given["w"], np.ones(2, "f"))


def test_state_is_copied_out_and_loaded_back() -> None:
    step = StepSession(STEP, start(), PAIRS, outputs=["loss"])
    step.run(batch(2))
    saved = step.state()
    losses = [float(step.run(batch(2))["loss"]) for _ in range(3)]
    assert saved["t"].shape == ()
    assert saved["t"] == 1
    step.load_state(saved)
    assert [float(step.run(batch(2))["loss"]) for _ in range(3)] == losses
    other = StepSession(STEP, saved, PAIRS, outputs=["loss"])
    assert [float(other.run(batch(2))["loss"]) for _ in range(3)] == losses


WRONG_STATE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda s: s.pop("t"), "missing input 't'"),
    "unknown": (lambda s: s.update(z=1), "unknown input 'z'"),
    "dtype": (lambda s: s.update(w=np.ones(2)), "'w' takes float32"),
    "shape": (lambda s: s.update(w=np.ones(3, "f")), "dimension 0 is 3, expected 2"),
}


@pytest.mark.parametrize("name", WRONG_STATE)
def test_a_wrong_state_is_refused_and_changes_nothing(name: str) -> None:
    spoil, words = WRONG_STATE[name]
    step = StepSession(STEP, start(), PAIRS)
    state = step.state()
    spoil(state)
    with pytest.raises(InputError, match=words):
        step.load_state(state)
    assert step.state()["t"] == 0


def test_wrong_batches_are_refused_also_after_right_ones() -> None:
    step = StepSession(STEP, start(), PAIRS)
    step.run(batch(2))
    for wrong, words in [
        ({"x": np.ones((2, 2)), "lr": np.array(1, "f")}, "'x' takes float32"),
        ({"x": np.ones((2, 3), "f"), "lr": np.array(1, "f")}, "dimension 1 is 3"),
        ({"x": np.ones((2, 2), "f")}, "missing input 'lr'"),
        ({**batch(2), "w": np.ones(2, "f")}, "unknown input 'w'"),
    ]:
        with pytest.raises(InputError, match=words):
            step.run(wrong)
    step.run([batch(2)["x"], 0.5])  # in order, and a Python number
    big_endian = {name: value.astype(value.dtype.newbyteorder(">")) for name, value in batch(2).items()}
    assert step.state()["t"] == 2
    step.run(big_endian)
    fortran = batch(2) | {"x": np.asfortranarray(batch(2)["x"])}
    before = step.state()["w"]
    step.run(fortran)
    np.testing.assert_allclose(before - step.state()["w"], 0.5 * batch(2)["x"].mean(axis=0))


def test_a_failed_step_leaves_the_state() -> None:
    failing = model(
        "(float[2] w, float[N] x, int64[1] s) => (float[2] w_new, float[M] y) {w_new = Neg(w) [cut] y = Reshape(x, s)}"
    )
    step = StepSession(failing, {"w": [1, 2]}, {"w": "w_new"})
    for _ in range(2):
        with pytest.raises(GraphkitError, match=r"node 'cut' \(Reshape\)"):
            step.run({"x": [1, 2, 3], "s": [2]})
    np.testing.assert_array_equal(step.state()["w"], np.array([1, 2], "f"))
    step.run({"x": [1, 2, 3], "s": [3]})
    np.testing.assert_array_equal(step.state()["w"], np.array([-1, -2], "f"))


def test_an_evaluation_reads_the_state_that_training_writes() -> None:
    step = StepSession(STEP, start(), PAIRS)
    evaluate = StepSession(READ, step.shared_state, {})
    x = np.ones((1, 2), "f")
    for _ in range(3):
        np.testing.assert_array_equal(evaluate.run({"x": x})["y"][0], step.state()["w"])
        step.run(batch(2))
    with pytest.raises(GraphkitError, match="same parts"):
        StepSession(STEP, step.shared_state, {"w": "w_new"})


def test_what_cannot_be_carried_is_refused() -> None:
    with pytest.raises(InputError, match="no input 'v' to keep a state in"):
        StepSession(STEP, {**start(), "v": 1}, PAIRS)
    with pytest.raises(InputError, match="'x' is to be carried on but is not in the state"):
        StepSession(STEP, start(), {"x": "rows"})
    with pytest.raises(InputError, match=r"no output 'w_nex'\. Did you mean 'w_new'"):
        StepSession(STEP, start(), {"w": "w_nex"})
    with pytest.raises(GraphkitError, match=r"t_new: int64\[\] cannot become the next value of the input w"):
        StepSession(STEP, start(), {"w": "t_new"})


def test_element_types_that_numpy_lacks() -> None:
    half = model(
        "(bfloat16[2] w, bfloat16[N, 2] x) => (bfloat16[2] w_new, bfloat16[N, 2] y) "
        "{w_new = Identity(w) y = Identity(x)}"
    )
    step = StepSession(half, {"w": [1, 2]}, {"w": "w_new"})
    x = np.ones((3, 2), ml_dtypes.bfloat16)
    for _ in range(2):
        assert step.run({"x": x})["y"].dtype == x.dtype
    np.testing.assert_array_equal(step.state()["w"].astype("f"), np.array([1, 2], "f"))
    step.load_state({"w": [3, 4]})
    np.testing.assert_array_equal(step.state()["w"].astype("f"), np.array([3, 4], "f"))


def test_optional_inputs_do_not_keep_their_last_value() -> None:
    proto = model(
        "(float[2] w, float[2] x, float[2] d = {0, 0}) => (float[2] w_new, float[2] y) {w_new = Neg(w) y = Add(x, d)}"
    )
    step = StepSession(proto, {"w": [1, 2]}, {"w": "w_new"})
    assert step.run({"x": [1, 1]})["y"].tolist() == [1, 1]
    assert step.run({"x": [1, 1], "d": [5, 5]})["y"].tolist() == [6, 6]
    assert step.run({"x": [1, 1]})["y"].tolist() == [1, 1]


def test_on_cuda_state_is_placed_there_and_outputs_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed: what is asked of the runtime is recorded and done on the CPU."""
    placed: list[tuple[str, str, int]] = []
    real_value, real_allocate = stepping.to_value, stepping.allocate

    def to_value(array: Any, dtype: Any, device_type: str = "cpu", device_id: int = 0) -> Any:
        placed.append(("value", device_type, device_id))
        return real_value(array, dtype)

    def allocate(shape: Any, dtype: Any, device_type: str = "cpu", device_id: int = 0) -> Any:
        placed.append(("buffer", device_type, device_id))
        return real_allocate(shape, dtype)

    monkeypatch.setattr(stepping, "to_value", to_value)
    monkeypatch.setattr(stepping, "allocate", allocate)
    monkeypatch.setattr(Session, "runtime_device", Device("cuda", 1))
    step = StepSession(STEP, start(), PAIRS)
    assert placed == [("value", "cuda", 1)] * 3 + [("buffer", "cuda", 1)] * 2
    step.run(batch(2))
    assert len(placed) == 5  # a batch is bound as it is; the runtime copies it to the device
    assert step.state()["t"] == 1
