"""Cases distilled from public reports about running models, from Python and from the command line.

They lie beside the repository (``../shared/cases``) and are skipped where they are not.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit.optimizers
from graphkit.cli import main
from graphkit.errors import GraphkitError
from graphkit.runtime import devices, run

FOLDER = Path(__file__).parents[3] / "shared" / "cases"
Case = dict[str, Any]


def cases() -> dict[str, Callable[[], Case]]:
    if not (FOLDER / "d_run.py").is_file():
        return {}
    sys.path.insert(0, str(FOLDER))
    try:
        module = importlib.import_module("d_run")
    finally:
        sys.path.remove(str(FOLDER))
    return {name: make for name, make in vars(module).items() if name.startswith("case_")}


CASES = cases()
pytestmark = pytest.mark.skipif(not CASES, reason="the cases are not beside this checkout")


def source(case: Case, folder: Path) -> Any:
    make_files = case["extra"].get("make_files")
    return make_files(folder) if make_files else case["model"]


def skip_if_cuda(case: Case) -> None:
    if case["extra"].get("device") == "cuda" and devices.cuda_problem() is None:
        pytest.skip("CUDA starts here")


@pytest.mark.parametrize("name", CASES or ["none"])
def test_from_python(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    skip_if_cuda(case)
    model, extra = source(case, tmp_path), case["extra"]

    def work() -> Any:
        if "passes" in extra:
            return graphkit.optimizers.optimize(model, passes=extra["passes"])
        return run(model, case["inputs"], device=extra.get("device", "cpu"))

    if case["check"] == "run":
        got = work()
        for output, expected in case["expected"].items():
            assert (got[output].dtype, got[output].shape) == (expected.dtype, expected.shape)
            if expected.dtype == object:
                assert got[output].tolist() == expected.tolist()
            else:
                np.testing.assert_allclose(got[output], expected, *case["tol"])
        return
    with pytest.raises(GraphkitError) as caught:
        work()
    _mentions(case, str(caught.value))


@pytest.mark.parametrize("name", CASES or ["none"])
def test_from_the_command_line(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]()
    skip_if_cuda(case)
    model, extra = source(case, tmp_path), case["extra"]
    if not isinstance(model, Path):
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        model = path
    if any(array.dtype == object for array in case["inputs"].values()):
        feeds = tmp_path / "feeds.json"
        feeds.write_text(json.dumps({name: array.tolist() for name, array in case["inputs"].items()}))
    else:
        feeds = tmp_path / "feeds.npz"
        np.savez(feeds, **case["inputs"])
    old = tmp_path / "out.onnx"
    old.write_bytes(b"old")
    if "passes" in extra:
        arguments = ["optimize", str(model), "-o", str(old), "--passes", ",".join(extra["passes"])]
    else:
        arguments = ["run", str(model), "--inputs", str(feeds), "--json", "--device", extra.get("device", "cpu")]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    if case["check"] == "run":
        assert stopped.value.code == 0
        outputs = json.loads(out)["outputs"]
        for output, expected in case["expected"].items():
            got = np.array(outputs[output]["data"], expected.dtype)
            assert got.tolist() == expected.tolist()
    else:
        assert stopped.value.code == 1
        _mentions(case, err)
        assert old.read_bytes() == b"old"


def _mentions(case: Case, message: str) -> None:
    for group in case["expected"]["must_mention"]:
        assert any(word.lower() in message.lower() for word in group), (group, message)
