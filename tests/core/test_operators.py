"""gk.op: every operator of the standard, what its arguments may be, and what is said about wrong ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit import op_stub, schemas
from graphkit.errors import OperatorError
from graphkit.runtime import run

F = np.float32
X = np.array([[1.0, -2.0], [3.0, -4.0]], F)


@pytest.mark.parametrize("name", schemas.names())
def test_every_operator_is_there_and_refuses_what_it_does_not_take(name: str) -> None:
    operator = getattr(gk.op, name)
    schema = schemas.schema(name)
    assert name in dir(gk.op)
    assert operator.__name__ == name
    assert operator.__doc__.startswith(f"ONNX {name} (opset ")
    assert [p for p in inspect.signature(operator).parameters if p != "outputs"] == [
        *(i.name for i in schema.inputs),
        *(a.name for a in sorted(schema.attributes.values(), key=lambda a: (not a.required, a.name))),
    ]
    enough = [np.ones(2, F)] * schema.min_input
    attempts = [lambda: operator(*enough, nonsense=1)]
    if schema.max_input < 100:
        attempts.append(lambda: operator(*[np.ones(2, F)] * (schema.max_input + 1)))
    if schema.min_input:
        attempts.append(operator)
    attempts.extend(
        lambda key=key: operator(*enough, **{key: object()})
        for key, a in schema.attributes.items()
        if str(a.type)[9:] in ("INT", "FLOATS", "STRING", "INTS")
    )
    for attempt in attempts:
        with pytest.raises((OperatorError, TypeError)) as caught:
            attempt()
        message = str(caught.value)
        if isinstance(caught.value, OperatorError):
            assert name in message
            assert "test_operators.py:" in message


def test_an_operator_that_no_runtime_loads_has_no_opset_to_be_written_at() -> None:
    with pytest.raises(OperatorError, match=r"SwiGLU first appears after opset 26.*test_operators.py"):
        schemas.opset_for("SwiGLU")


WRONG: list[tuple[Any, str]] = [
    (lambda: gk.op.Rleu(X), r"ONNX has no operator Rleu \(.*\)\. Did you mean 'Relu'\?"),
    (lambda: gk.op.Relu(X, alpha=0.1), "Relu .* has no attribute or input 'alpha'"),
    (lambda: gk.op.Conv(X, X, stride=[1]), "Conv .* has no attribute or input 'stride'.*Did you mean 'strides'"),
    (lambda: gk.op.Conv(X, X, strides=2), "Conv .*attribute 'strides' is a list of integers, got int 2"),
    (lambda: gk.op.Conv(X, X, strides=[1, 2.5]), "'strides' is a list of integers, but holds float 2.5"),
    (lambda: gk.op.LeakyRelu(X, alpha="0.1"), "'alpha' is a float, got str '0.1'"),
    (lambda: gk.op.Upsample(X), "no operator Upsample"),
    (lambda: gk.op.Conv(X, X, auto_pad=3), "'auto_pad' is a string, got int 3"),
    (lambda: gk.op.Concat(X, X), "Concat .* needs the attribute 'axis'"),
    (lambda: gk.op.MatMul(X), "MatMul .* needs the input 'B'"),
    (lambda: gk.op.MatMul(X, A=X), "MatMul .* got input A twice"),
    (lambda: gk.op.Relu(X, X), "Relu .* takes at most 1 inputs, got 2"),
    (lambda: gk.op.Conv(X.astype(int), X), "Conv .*input 'X' is int64; it takes .*float.*Cast it with x.astype"),
    (lambda: gk.op.Add(X, np.array([1, 2])), r"'A' \(float32\) and 'B' \(int64\) must have one dtype.*x.astype"),
    (lambda: gk.op.Where(X, X, X), "input 'condition' is float32; it takes bool"),
    (lambda: gk.op.Reshape(X, [4.0]), "input 'shape' is float32; it takes int64"),
    (lambda: gk.op.Add(X, np.ones(3, F)), r"Add\(float32\[2, 2\], float32\[3\]\) at .* failed"),
    (lambda: gk.op.MatMul(X, np.ones((3, 2), F)),
        r"MatMul\(float32\[2, 2\], float32\[3, 2\]\) at .* failed.*dimension"),
    (lambda: gk.op.Split(X), "Split .*num_outputs= or outputs="),
    (lambda: gk.op.TopK(X, [1], outputs=5), "TopK .* has 2 to 2 outputs, not 5"),
    (lambda: gk.op.Softmax(X, axis=5), r"Softmax\(float32\[2, 2\]\) at .* failed"),
    (lambda: gk.op.Cast(X, to="flot32"), "is not a dtype"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), WRONG)
def test_a_wrong_call_names_operator_argument_and_line(attempt: Any, message: str) -> None:
    with pytest.raises((OperatorError, AttributeError, TypeError), match=message) as caught:
        attempt()
    if not isinstance(caught.value, TypeError):
        assert f"test_operators.py:{attempt.__code__.co_firstlineno}" in str(caught.value)


RIGHT: list[tuple[Any, Any]] = [
    (lambda: gk.op.Add(X, 1), X + 1),
    (lambda: gk.op.Add(1, X), X + 1),
    (lambda: gk.op.Mul(X, np.float64(2)), X * 2),
    (lambda: gk.op.Mul(np.float64(2), X), X * 2),
    (lambda: gk.op.Add(X, [1, 2]), X + np.array([1, 2], F)),
    (lambda: gk.op.Concat([X, X], axis=0), np.concatenate([X, X])),
    (lambda: gk.op.Concat(X, X, axis=0), np.concatenate([X, X])),
    (lambda: gk.op.Transpose(X, perm=(1, 0)), X.T),
    (lambda: gk.op.Transpose(X, perm=range(2)), X),
    (lambda: gk.op.Transpose(X, perm=np.array([1, 0])), X.T),
    (lambda: gk.op.Cast(X, to="int64"), X.astype(int)),
    (lambda: gk.op.Cast(X, to=np.int64), X.astype(int)),
    (lambda: gk.op.Cast(X, to=7), X.astype(int)),
    (lambda: gk.op.EyeLike(X, dtype="int64"), np.eye(2, dtype=int)),
    (lambda: gk.op.Clip(X, None, 0), X.clip(None, 0)),
    (lambda: gk.op.Clip(X, max=0), X.clip(None, 0)),
    (lambda: gk.op.Clip(input=X, min=0), X.clip(0)),
    (lambda: gk.op.ReduceSum(X, [1], keepdims=False), X.sum(1)),
    (lambda: gk.op.ReduceSum(X, axes=[1], keepdims=0), X.sum(1)),
    (lambda: gk.op.Reshape(X, [-1]), X.ravel()),
    (lambda: gk.op.Split(X, [1, 1], axis=1)[1], X[:, 1:]),
    (lambda: gk.op.Split(X, num_outputs=2)[0], X[:1]),
    (lambda: gk.op.Split(X, num_outputs=1)[0], X),
    (lambda: gk.op.TopK(X, [1])[0], X.max(1, keepdims=True)),
    (lambda: gk.op.MaxPool(X[None, None], kernel_shape=[2, 2]), [[[[3]]]]),
    (lambda: gk.op.MaxPool(X[None, None], kernel_shape=[2, 2], outputs=2)[1], [[[[2]]]]),
    (lambda: gk.op.Constant(value=X), X),
    (lambda: gk.op.Constant(value_ints=[1, 2]), [1, 2]),
    (lambda: gk.op.ConstantOfShape([2], value=gk.tensor([7])), [7, 7]),
    (lambda: gk.op.Where(X > 0, X, 0.0), X.clip(0)),
    (lambda: gk.op.Pow(X, 2), X**2),
    (lambda: gk.op.Gelu(X, approximate="tanh")[1, 0], F(2.9963627)),
    (lambda: gk.op.SequenceAt(gk.op.SequenceConstruct(X, X + 1), np.int64(1)), X + 1),
    (lambda: gk.op.StringConcat(np.array(["a", "b"], object), ["x", "y"]), np.array(["ax", "by"], object)),
    (lambda: gk.op.RMSNormalization(X, np.ones(2, F), epsilon=0.0)[0], X[0] / np.sqrt(F(2.5))),  # opset 23
    (lambda: gk.op.Mod(X.astype(int), 3), X.astype(int) % 3),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected"), RIGHT)
def test_what_arguments_may_be(call: Any, expected: Any) -> None:
    got = call()
    assert isinstance(got, gk.Tensor)
    if np.asarray(expected).dtype == object:
        assert got.tolist() == expected.tolist()
    else:
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    traced = next(
        iter(
            run(gk.trace(lambda x: call(), gk.spec("float32", [1])), {"x": np.ones(1, F)}, optimizations=False).values()
        )
    )
    np.testing.assert_array_equal(traced, got.numpy())


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "int16", "int32", "uint64", "bfloat16"])
def test_operators_run_on_dtypes_without_a_kernel(dtype: str) -> None:
    a = gk.tensor([1.0, 2.0, 3.0]).astype(dtype)
    assert (a + a).dtype.name == dtype
    assert (a + a).astype("float32").tolist() == [2.0, 4.0, 6.0]
    assert (a * 2).astype("float32").tolist() == [2.0, 4.0, 6.0]


def test_erf_in_double_precision_is_as_exact_as_double() -> None:
    x = np.linspace(-3, 3, 7)
    from math import erf

    np.testing.assert_allclose(gk.op.Erf(x).numpy(), [erf(v) for v in x], rtol=1e-14)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [("Dropout", (X,), 1), ("LayerNormalization", (X, np.ones(2, F)), 1), ("LayerNormalization", (X, np.ones(2, F)), 2),
     ("BatchNormalization", (X, np.ones(2, F), np.ones(2, F), np.ones(2, F), np.ones(2, F)), 1),
     ("MaxPool", (X[None, None],), 1)],
)  # fmt: skip
def test_as_many_outputs_come_back_as_were_asked_for(op: str, inputs: Any, outputs: int) -> None:
    attributes = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
    for requires_grad in (False, True):
        tensors = [gk.tensor(i, requires_grad=requires_grad) for i in inputs]
        assert len(gk.apply(op, tensors, attributes, outputs)) == outputs


# The stub


def test_the_stub_is_up_to_date() -> None:
    assert op_stub.STUB.read_text(encoding="utf-8") == op_stub.stub(), "run python -m graphkit.op_stub"


def test_the_stub_has_a_function_for_every_operator() -> None:
    text = op_stub.stub()
    for name in schemas.names():
        assert f"def {name}(" in text
    assert (
        "def Conv(X: TensorLike, W: TensorLike, B: TensorLike | None = None, *, auto_pad: str | None = 'NOTSET'" in text
    )
    assert "def Concat(*inputs: TensorLike, axis: int) -> Tensor: ..." in text
    assert "def Cast(input: TensorLike, *, to: DType" in text


@pytest.mark.slow
def test_type_checkers_understand_the_stub(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import graphkit as gk\nfrom graphkit import op\n"
        "x: gk.Tensor = op.Relu(gk.tensor([1.0]))\ny, z = op.TopK(x, [1], axis=0)\n"
        "w: gk.Tensor = op.MaxPool(x, kernel_shape=[2])\n"
        "both = op.MaxPool(x, kernel_shape=[2], outputs=2)\nfirst: gk.Tensor = both[0]\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout
