"""DFT and STFT: real and complex, both directions, lengths that cut and fill, one side, windows."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)
REAL, COMPLEX = rng.normal(size=(2, 5, 1)), rng.normal(size=(2, 5, 2))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("length", [None, 5, 4, 8])
def test_dft(parts, inverse, length):
    x = REAL if parts == 1 else COMPLEX
    given = [None if length is None else np.array(length), np.array(1)]
    check_gradients(lambda t: op.DFT(t, *given, inverse=inverse), [x], symbolic=[["b", "n", parts]])


@pytest.mark.parametrize("axis", [1, 2, -2])
def test_dft_axis(axis):
    check_gradients(lambda t: op.DFT(t, None, np.array(axis)), [rng.normal(size=(2, 3, 4, 2))], order=2,
                    symbolic=[["b", "n", "m", 2]])  # fmt: skip


@pytest.mark.parametrize("length", [None, 5, 4, 6])
def test_dft_of_one_side(length):
    given = [None if length is None else np.array(length), np.array(1)]
    check_gradients(lambda t: op.DFT(t, *given, onesided=1), [REAL], symbolic=[["b", "n", 1]])


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_stft(onesided, step):
    signal, window = rng.normal(size=(2, 10, 1)), rng.uniform(0.5, 1, size=4)
    f = lambda s, w: op.STFT(s, np.array(step), w, np.array(4), onesided=onesided)
    check_gradients(f, [signal, window], symbolic=[["b", "n", 1], [4]])


def test_stft_without_a_window():
    check_gradients(lambda s: op.STFT(s, np.array(2), None, np.array(4)), [rng.normal(size=(1, 8, 1))],
                    symbolic=[["b", "n", 1]])  # fmt: skip


def test_stft_of_a_complex_signal():
    f = lambda s, w: op.STFT(s, np.array(2), w, np.array(4), onesided=0)
    check_gradients(f, [rng.normal(size=(1, 8, 2)), np.ones(4)], symbolic=[["b", "n", 2], [4]])


@pytest.mark.parametrize("length", [None, 8, 9])
def test_dft_back_from_one_side(length):
    """Of lengths that the places are those of: with more or fewer of them ONNX Runtime departs from the standard."""
    given = [None if length is None else np.array(length), np.array(1)]
    f = lambda t: op.DFT(t, *given, inverse=1, onesided=1)
    np.testing.assert_allclose(
        f(gk.tensor(COMPLEX)).numpy()[..., 0], np.fft.irfft(COMPLEX[..., 0] + 1j * COMPLEX[..., 1], length), atol=1e-6
    )
    check_gradients(f, [COMPLEX], order=2 if length == 9 else 1, symbolic=[["b", "n", 2]])


KINDS = {"": {}, "inverse": {"inverse": 1}, "one side": {"onesided": 1}, "back": {"inverse": 1, "onesided": 1}}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_dft_whose_axis_and_parts_only_the_run_knows(kind, parts):
    if (kind == "one side") == (parts == 2) and kind in {"one side", "back"}:
        pytest.skip("of real signals alone, or of complex ones")
    x = rng.normal(size=(2, 4, 3, parts))
    for axis in (1, -2):
        f = lambda t, a: op.DFT(t, None, a, **KINDS[kind])
        check_gradients(f, [x, np.array(axis)], numeric=axis == 1, symbolic=[["b", "n", "m", "parts"], []])


@pytest.mark.parametrize("parts", [1, 2])
def test_stft_whose_parts_only_the_run_knows(parts):
    f = lambda s, w: op.STFT(s, np.array(2), w, np.array(4), onesided=0)
    check_gradients(f, [rng.normal(size=(1, 8, parts)), np.ones(4)], symbolic=[["b", "n", "parts"], [4]])


@pytest.mark.parametrize("length", [5, 7, 10])
def test_dft_back_from_more_or_fewer_places(length):
    """The gradient is that of the standard: the transposed matrix of numpy's transform."""
    weights = rng.normal(size=(2, length, 1))
    f = lambda t: (op.DFT(t, np.array(length), np.array(1), inverse=1, onesided=1) * weights).sum()
    got = gk.grad(f)(gk.tensor(COMPLEX, dtype="float64")).numpy()
    for part in np.ndindex(5, 2):
        unit = np.zeros(5, complex)
        unit[part[0]] = 1j if part[1] else 1
        np.testing.assert_allclose(got[:, *part], weights[..., 0] @ np.fft.irfft(unit, length), atol=1e-9)
