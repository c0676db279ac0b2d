"""What would otherwise be baked into a file, end the process, or be taken for a weight."""

from __future__ import annotations

import threading

import numpy as np
import onnx.parser
import pytest

import graphkit as gk
from graphkit.errors import GradientError, InputError, OperatorError, TraceError
from graphkit.interpreter import apply
from graphkit.optimizers import add_gradients, optimize
from graphkit.optimizers.lift_weights import float_weights


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x if x.shape[0] in {1, 2, 3} else -x,
        lambda x: x if {7: True}.get(x.shape[0]) else -x,
        lambda x: x if f"{x.shape[0]}" == "7" else -x,
        lambda x: x if x.shape[0] in (1, 2) else -x,
    ],
)
def test_a_dimension_s_value_is_not_baked(f) -> None:
    with pytest.raises(TraceError, match=r"test_refusals\.py"):
        gk.trace(f, gk.spec("float32", ["n"]))


def test_recurrent_operators_refuse_nothing() -> None:
    w = np.zeros((1, 16, 4), "f")
    run = lambda x: gk.op.LSTM(x, w, w, hidden_size=4, outputs=3)[0]
    with pytest.raises(OperatorError, match="empty"):
        run(np.zeros((0, 2, 4), "f"))
    model = gk.trace(run, gk.spec("float32", ["time", "batch", 4]), input_names=["x"])
    with pytest.raises(InputError, match="'x' is empty"):
        gk.run(model, {"x": np.zeros((3, 0, 4), "f")})
    assert gk.run(model, {"x": np.zeros((3, 2, 4), "f")})["output"].shape == (3, 1, 2, 4)


SETTINGS = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x) => (float[n,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, int64[1] one = {1}> {
    s = Shape(w) d = Gather<axis = 0>(s, one) f = Cast<to = 1>(d) r = Sqrt(f)
    h = MatMul(x, w) t = Tanh(h) y = Div(t, r)
}"""


def test_a_folded_setting_is_no_weight() -> None:
    small = optimize(onnx.parser.parse_model(SETTINGS))
    assert len(small.graph.initializer) == 2
    from graphkit.modelfile import read_model

    assert float_weights(read_model(small)) == ["w"]
    graph = gk.training.build(small, loss=lambda y: (y * y).mean(), optimizer=gk.optim.SGD(0.1))
    assert list(graph.trainable) == ["w"]


def test_a_name_given_twice() -> None:
    with pytest.raises(GradientError, match="'w' twice"):
        add_gradients(onnx.parser.parse_model(SETTINGS), of="y", wrt=["w", "w"])


def test_threads_add_up() -> None:
    w = gk.tensor(np.ones(3, "f"), requires_grad=True)

    def work() -> None:
        for _ in range(100):
            (w * 2.0).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), 800.0)


D = np.ones((1, 1, 3, 3))
ONES = np.ones(1)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("com.microsoft.Gelu", lambda: apply("Gelu", [gk.tensor(D)], domain="com.microsoft")),
        ("com.microsoft.FusedConv", lambda: apply("FusedConv", [gk.tensor(D)] * 2, domain="com.microsoft")),
        ("MaxRoiPool", lambda: gk.op.MaxRoiPool(gk.tensor(D), gk.tensor(np.zeros((1, 5))), pooled_shape=[1, 1])),
    ],
)
def test_an_operator_without_a_kernel_for_its_dtype(name, call) -> None:
    with pytest.raises(OperatorError, match=f"{name} at .* has no kernel for float64 on a CPU"):
        call()


def test_batch_normalization_that_trains_has_three_results() -> None:
    with pytest.raises(OperatorError, match="call it with outputs=3"):
        gk.op.BatchNormalization(gk.tensor(D), *[gk.tensor(ONES)] * 4, training_mode=1)
