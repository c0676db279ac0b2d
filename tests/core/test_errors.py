"""Errors: one class a situation, the user's file and line, and what to write instead."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit import errors, source
from graphkit.errors import GraphkitError, InputError, OperatorError, TraceError, did_you_mean

F = np.float32


def test_every_error_is_a_graphkit_error_and_those_about_values_are_value_errors() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) >= 9
    assert all(issubclass(c, GraphkitError) and c.__doc__ for c in classes)
    assert {c.__name__ for c in classes if issubclass(c, ValueError)} == {"InputError", "OperatorError", "PassError"}


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("Cnov", ["Conv", "Relu"], " Did you mean 'Conv'?"),
        ("relu", ["Relu"], " Did you mean 'Relu'?"),
        ("zzz", ["Relu"], ""),
        ("x", [], ""),
    ],
)
def test_did_you_mean(name: str, known: list[str], expected: str) -> None:
    assert did_you_mean(name, known) == expected


# The user's line


def deep(x: Any) -> Any:
    return deeper(x)


def deeper(x: Any) -> Any:
    return x + np.ones(4, F)  # here it goes wrong


def line_with(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line and "line_with" not in line)


@pytest.mark.parametrize(
    "how",
    [
        lambda: deep(gk.tensor(np.ones(3, F))),
        lambda: gk.trace(deep, gk.spec("float32", [3])),
        lambda: gk.grad(lambda x: deep(x).sum())(gk.tensor(np.ones(3, F))),
        lambda: gk.trace(gk.grad(lambda x: deep(x).sum()), gk.spec("float32", [3])),
        lambda: gk.checkpoint(deep)(gk.tensor(np.ones(3, F))),
        lambda: gk.vmap(deep)(gk.tensor(np.ones((2, 3), F))),
    ],
    ids=["eager", "trace", "grad", "grad in a trace", "checkpoint", "vmap"],
)
def test_the_innermost_line_of_the_user_is_named(how: Any) -> None:
    with pytest.raises(OperatorError) as caught:
        how()
    assert f"test_errors.py:{line_with('# here it goes wrong')}" in str(caught.value)


def test_a_line_that_spans_several_is_the_one_of_the_operator() -> None:
    with pytest.raises(OperatorError) as caught:
        (
            gk.tensor([1.0, 2.0]).reshape(2, 1).reshape(3, 1)  # the third
        )
    assert f"test_errors.py:{line_with('# the third')}" in str(caught.value)


def test_records_and_nodes_carry_the_line() -> None:
    x = gk.tensor(1.0, requires_grad=True)
    y = gk.op.Tanh(x)  # recorded here
    assert y.record is not None
    assert y.record.source is not None
    assert source.line_of(y.record.source) == (__file__, line_with("# recorded here"))
    model = gk.trace(lambda x: gk.op.Tanh(x), gk.spec("float32", []))  # traced here
    (node,) = model.graph
    assert source.line_of(node.meta["graphkit.source"])[1] == line_with("# traced here")


def test_lines_of_code_without_a_file() -> None:
    namespace: dict[str, Any] = {"gk": gk, "np": np}
    code: CodeType = compile("x = gk.tensor([1.0])\ny = x.reshape(7)\n", "<console>", "exec")
    with pytest.raises(OperatorError, match=r"<console>:2"):
        exec(code, namespace)  # a notebook cell or console line is run so


def test_a_path_is_shown_relative_where_that_is_shorter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = source.here()
    assert here.rsplit(":", 1)[0].endswith("test_errors.py")
    monkeypatch.chdir(tmp_path)
    assert source.here().startswith(str(Path(__file__).parent))
    assert source.describe(None) == "an unknown line"


# What is said

MESSAGES: list[tuple[Any, type[Exception], list[str]]] = [
    (lambda: gk.tensor(np.ones(3, F)) @ np.ones((4, 2), F), OperatorError, ["MatMul", "float32[3]", "float32[4, 2]"]),
    (lambda: gk.op.Conv(np.ones((1, 3, 8, 8), F), np.ones((4, 2, 3, 3), F)), OperatorError,
        ["Conv", "float32[1, 3, 8, 8]", "float32[4, 2, 3, 3]"]),
    (lambda: gk.op.Gather(np.ones((2, 2), F), [5]), OperatorError, ["Gather", "idx=5"]),
    (lambda: gk.op.Reshape(np.ones(6, F), [4]), OperatorError, ["Reshape", "{6}", "{4}"]),
    (lambda: gk.op.Squeeze(np.ones((2, 2), F), [0]), OperatorError, ["Squeeze"]),
    (lambda: gk.op.Concat(np.ones((2, 2), F), np.ones((2, 3), F), axis=0), OperatorError, ["Concat"]),
    (lambda: gk.run(gk.trace(lambda x: x + 1.0, gk.spec("float32", ["n", 3])), {"x": np.ones((2, 4), F)}),
        InputError, ["x", "3", "4"]),
    (lambda: gk.run(gk.trace(lambda x: x + 1.0, gk.spec("float32", ["n", 3])), {"x": np.ones((2, 3))}), InputError,
        ["x", "float32", "float64"]),
    (lambda: gk.run(gk.trace(lambda x: x + 1.0, gk.spec("float32", ["n", 3])), {"y": np.ones((2, 3), F)}),
        InputError, ["x", "y"]),
    (lambda: gk.run(gk.trace(lambda x: x + 1.0, gk.spec("float32", ["n", 3])), {"x": np.ones(3, F)}), InputError,
        ["x", "rank"]),
    (lambda: gk.trace(lambda x: x if x > 0 else -x, gk.spec("float32", [])), TraceError, ["gk.cond", "gk.op.Where"]),
    (lambda: gk.trace(lambda x: x * int(x.shape[0]), gk.spec("float32", ["n"])), TraceError,
        ["dimension 'n'", "axis 0 of x", "gk.scan"]),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "kind", "parts"), MESSAGES)
def test_a_message_says_what_was_expected_and_got(attempt: Any, kind: type[Exception], parts: list[str]) -> None:
    with pytest.raises(kind) as caught:
        attempt()
    message = str(caught.value)
    assert [p for p in parts if p not in message] == [], message
    assert "onnxruntime_src" not in message
    assert "\n" not in message
    if kind is not InputError:
        assert "test_errors.py:" in message


def test_an_error_has_no_chain_of_inner_ones() -> None:
    with pytest.raises(OperatorError) as caught:
        gk.tensor([1.0, 2.0]) + gk.tensor([1.0, 2.0, 3.0])
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_nan_and_empty_inputs_are_computed_not_refused() -> None:
    model = gk.trace(lambda x: gk.op.Relu(x).mean(), gk.spec("float32", ["n"]))
    (got,) = gk.run(model, {"x": np.array([np.nan, 1.0], F)}).values()
    assert np.isnan(got)
    (got,) = gk.run(model, {"x": np.zeros(0, F)}).values()
    assert got.shape == ()


def test_cuda_that_is_not_there_is_named() -> None:
    from graphkit.runtime import available_devices

    if "cuda" in available_devices():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(errors.DeviceError, match=r"(?i)cuda"):
        gk.run(gk.trace(lambda x: x + 1.0, gk.spec("float32", [1])), {"x": np.ones(1, F)}, device="cuda")


def test_the_frames_of_the_package_are_skipped_even_through_functools() -> None:
    import functools

    with pytest.raises(OperatorError) as caught:
        functools.reduce(lambda a, b: a @ b, [gk.tensor(np.ones((2, 2), F)), np.ones((3, 3), F)])  # reduced here
    assert f"test_errors.py:{line_with('# reduced here')}" in str(caught.value)
    assert source.PACKAGE not in str(caught.value)
    assert sys.exc_info() == (None, None, None)
