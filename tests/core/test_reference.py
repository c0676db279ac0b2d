"""What runs where ONNX Runtime has no kernel for a dtype gives what its kernels give in single precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import OperatorError

op = gk.op
rng = np.random.default_rng(0)


def _rnn(count: int) -> list[np.ndarray]:
    return [rng.standard_normal(s) for s in [(4, 3, 2), (count, 3, 2), (count, 3, 3), (count, 6), (count, 3, 3)]]


def _run_rnn(lengths: list[int] | None, **given: Any) -> Callable[..., Any]:
    known = None if lengths is None else gk.tensor(np.array(lengths, np.int32))
    return lambda x, w, r, b, h: op.RNN(x, w, r, b, known, h, hidden_size=3, **given)


PICTURE = [rng.standard_normal((1, 2, 7, 6))]
CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "RNN": (_run_rnn(None), _rnn(1)),
    "RNN lengths": (_run_rnn([4, 1, 2]), _rnn(1)),
    "RNN reversed, lengths": (_run_rnn([4, 0, 2], direction="reverse"), _rnn(1)),
    "RNN both ways, clipped": (_run_rnn([2, 1, 4], direction="bidirectional", clip=0.4), _rnn(2)),
    "RNN Relu": (_run_rnn(None, activations=["Relu"], clip=0.4), _rnn(1)),
    **{
        f"LpPool {given}": (lambda x, given=given: op.LpPool(x, kernel_shape=[3, 2], **given), PICTURE)
        for given in [
            {}, {"strides": [2, 2], "ceil_mode": 1}, {"pads": [1, 0, 1, 1]}, {"auto_pad": "SAME_LOWER"},
            {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"dilations": [2, 1]}, {"p": 3}, {"auto_pad": "VALID"},
            {"p": 1, "pads": [1, 1, 1, 1], "ceil_mode": 1, "strides": [2, 3]},
        ]
    },
    **{
        f"Resize {how} {rounding}": (
            lambda x, how=how, rounding=rounding: op.Resize(
                x, None, gk.tensor(np.array([1, 1, 0.5, 1.7], "f4")), mode="nearest", nearest_mode=rounding,
                coordinate_transformation_mode=how,
            ),
            PICTURE,
        )
        for how in ("align_corners", "half_pixel", "asymmetric", "pytorch_half_pixel")
        for rounding in ("round_prefer_floor", "ceil")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_double_precision_is_as_single(name: str) -> None:
    f, arrays = CASES[name]

    def results(dtype: str) -> list[np.ndarray]:
        made = f(*[gk.tensor(a.astype(dtype)) for a in arrays])
        return [t.numpy() for t in (made if isinstance(made, tuple | list) else [made])]

    for wide, narrow in zip(results("float64"), results("float32"), strict=True):
        assert wide.dtype == np.float64
        np.testing.assert_allclose(wide, narrow, rtol=1e-4, atol=1e-5)


def test_an_activation_that_is_not_there() -> None:
    with pytest.raises(OperatorError, match="the activation Elu is not computed in double precision"):
        _run_rnn(None, activations=["Elu"])(*map(gk.tensor, _rnn(1)))
