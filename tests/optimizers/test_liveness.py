"""The estimate of what a run's values take, from producer to last reader, views and in-place writes included."""

from __future__ import annotations

import pytest

from graphkit.optimizers.liveness import live_bytes, peak_activation_bytes
from tests.optimizers.conftest import parse

# A float[N, 10] at N = 1 takes 40 bytes.
PEAKS = {
    "one node": ("{y = Abs(x)}", {}, 40),
    "a chain holds two": ("{a = Softmax(x) b = Softmax(a) y = Softmax(b)}", {}, 80),
    "in place": ("{a = Softmax(x) b = Exp(a) c = Exp(b) y = Softmax(c)}", {}, 80),
    "not over an input that is read again": ("{a = Softmax(x) b = Exp(a) y = Add(a, b)}", {}, 80),
    "not over one of another size": ("{s = ReduceSum(x) y = Add(x, s)}", {}, 44),
    "read late": ("{a = Softmax(x) b = Softmax(a) c = Softmax(b) d = Softmax(c) y = Add(a, d)}", {}, 120),
    "inputs do not count": ("{a = Softmax(x) y = Add(x, a)}", {}, 40),
    "a view": ("{a = Softmax(x) s = Shape(a) b = Reshape(a, s) y = Softmax(b)}", {}, 80),
    "a view of an input": ("{a = Flatten(x) y = Softmax(a)}", {}, 40),
    "what a view shows lives on": (
        "{a = Softmax(x) b = Flatten(a) c = Softmax(x) d = Softmax(c) y = Add(b, d)}", {}, 120,
    ),
    "unread outputs go": ("{a, b = Split<axis = 1, num_outputs = 2>(x) y = Concat<axis = 1>(a, a)}", {}, 60),
    "a named dim": ("{a = Softmax(x) y = Softmax(a)}", {"N": 100}, 8000),
    "another dim's size": ("{a = Softmax(x) y = Softmax(a)}", {"M": 100}, 80),
    "a computed dim": ("{a = Concat<axis = 0>(x, x) b = Softmax(a) y = ReduceSum(b)}", {"N": 100}, 16_000),
    "another dtype": ("{a = Cast<to = 11>(x) y = Cast<to = 1>(a)}", {}, 120),
    "a constant is no activation": ("{c = Constant<value_floats = [1., 2.]>() r = ReduceSum(c) y = Add(x, r)}", {}, 44),
    "a branch counts while it runs": (
        "{k = Softmax(x) s = ReduceSum<keepdims = 0>(k) c = Cast<to = 9>(s) r = If(c) <"
        "then_branch = t () => (float[N, 10] u) {p = Softmax(k) q = Softmax(p) u = Softmax(q)}, "
        "else_branch = e () => (float[N, 10] v) {v = Abs(k)}> y = Softmax(r)}", {}, 161,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "dims", "expected"), PEAKS.values(), ids=PEAKS)
def test_peaks_counted_by_hand(body: str, dims: dict[str, int], expected: int) -> None:
    outputs = "float y" if body.endswith("y = ReduceSum(b)}") else "float[N, 10] y"
    assert peak_activation_bytes(parse(f"g (float[N, 10] x) => ({outputs}) {body}", 18), dims) == expected


def test_parts_are_counted_apart() -> None:
    model = parse(
        "g (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {a = Exp(x) y = MatMul(a, w)}"
    )
    found = live_bytes(model, {"N": 3})
    assert (found.inputs, found.initializers, found.outputs, found.activations, found.node) == (48, 32, 24, 72, "y")


def test_outputs_stay_to_the_end() -> None:
    early = parse(
        "g (float[10] x) => (float[10] a, float[10] y) {a = Softmax(x) b = Softmax(x) c = Softmax(b) y = Softmax(c)}"
    )
    late = parse(
        "g (float[10] x) => (float[10] y, float[10] a) {b = Softmax(x) c = Softmax(b) y = Softmax(c) a = Softmax(x)}"
    )
    assert (peak_activation_bytes(early), peak_activation_bytes(late)) == (120, 80)
