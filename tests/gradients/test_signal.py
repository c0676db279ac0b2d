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
