"""Raw exports of PyTorch models: what comes out computes the same, is no larger, and is left alone by a second run."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import onnx
import pytest

from graphkit.optimizers import Report, optimize
from tests.optimizers.conftest import interface, operators, run

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
models = pytest.importorskip("benchmarks._optimizer_models")

pytestmark = pytest.mark.torch
FAST = ("convnext", "cells", "gpt", "llama", "mobilenet", "swin", "tagger")
SLOW = tuple(name for name in models.FAMILIES if name not in FAST)


def exported(family: str, exporter: str, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models.export(family, exporter, folder)
    return onnx.load(folder / f"{family}-{exporter}.onnx"), dict(np.load(folder / f"{family}.npz"))


def check(model, feeds):
    report = Report()
    made = optimize(model, verify=True, report=report)
    assert report.verified
    assert not report.dropped
    onnx.checker.check_model(made)
    assert interface(made) == interface(model)
    assert operators(made).total() < operators(model).total()
    assert made.ByteSize() <= 1.05 * model.ByteSize()
    for name, expected in run(model, feeds).items():
        got = run(made, feeds)[name]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * np.abs(expected).max(), err_msg=name)
    again = optimize(made, verify=False)
    assert operators(again) == operators(made)


@pytest.mark.parametrize("family", FAST)
def test_exports(family, tmp_path):
    check(*exported(family, "script", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("family", SLOW)
def test_other_exports(family, tmp_path):
    check(*exported(family, "script", tmp_path))


# PyTorch's newer exporter asks for onnxscript, which the tests do not install: benchmarks.optimizers has both.
if importlib.util.find_spec("onnxscript") is not None:

    @pytest.mark.slow
    @pytest.mark.parametrize("family", models.FAMILIES)
    def test_exports_by_dynamo(family, tmp_path):
        check(*exported(family, "dynamo", tmp_path))
