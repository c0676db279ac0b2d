"""Tensor: what it is made of, what comes out, arithmetic and dtypes as people expect them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GraphkitError, OperatorError
from graphkit.runtime import run

F = np.float32
X = np.array([[1.0, -2.0, 3.0], [4.0, 0.5, -6.0]], F)

MADE: list[tuple[Any, str, Any]] = [
    (1.5, "float32", 1.5),
    (2, "int64", 2),
    (True, "bool", True),
    ([1.0, 2.0], "float32", [1.0, 2.0]),
    ([1, 2], "int64", [1, 2]),
    ([1, 2.5], "float32", [1.0, 2.5]),
    ([], "float32", []),
    ([[True], [False]], "bool", [[True], [False]]),
    ("text", "string", "text"),
    (["a", "b"], "string", ["a", "b"]),
    (np.float64(1.5), "float64", 1.5),
    (np.zeros(2, np.float64), "float64", [0.0, 0.0]),
    (np.zeros(2, np.int8), "int8", [0, 0]),
    (np.array(3, np.uint16), "uint16", 3),
    (np.arange(6).reshape(2, 3).T[:, ::-1], "int64", [[3, 0], [4, 1], [5, 2]]),
    (np.array([1, 2], ">i4"), "int32", [1, 2]),
    (np.array(["a"]), "string", ["a"]),
    (np.ones(2, ml_dtypes.bfloat16), "bfloat16", [1.0, 1.0]),
    (gk.tensor([1.0]), "float32", [1.0]),
    ([gk.tensor(1.0), 2.0], "float32", [1.0, 2.0]),
    (range(3), "int64", [0, 1, 2]),
]


@pytest.mark.parametrize(("data", "dtype", "values"), MADE)
def test_what_a_tensor_is_made_of(data: Any, dtype: str, values: Any) -> None:
    t = gk.tensor(data)
    assert gk.dtypes.name(t.dtype) == dtype
    assert t.tolist() == values
    assert t.shape == np.shape(values)
    assert not t.traced
    assert not t.requires_grad


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (None, None, "a tensor cannot be made of NoneType None"),
        ([[1, 2], [3]], None, r"a tensor cannot be made of list \[\[1, 2\], \[3\]\]"),
        (2**70, None, "a tensor cannot be made of int 1180591620717411303424"),
        ([object()], None, "its elements must be numbers"),
        ({"a": 1}, None, "a tensor cannot be made of dict"),
        ("a", "float32", "could not convert"),
        (300, "int8", "out of bounds"),
    ],
)
def test_what_a_tensor_cannot_be_made_of(data: Any, dtype: Any, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        gk.tensor(data, dtype)
    assert "test_tensor.py:" in str(caught.value)


def test_python_values_that_come_out() -> None:
    t = gk.tensor([[1.5, 2.0]])
    assert (t.ndim, t.size, len(t), t.rank) == (2, 2, 1, 2)
    assert [row.tolist() for row in t] == [[1.5, 2.0]]
    assert (float(t[0, 0]), int(t[0, 1]), bool(t[0, 0] > 1), t[0, 0].item()) == (1.5, 2, True, 1.5)
    assert [10, 20, 30][gk.tensor(2)] == 30
    assert np.asarray(t).dtype == F
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="ambiguous"):
        bool(t > 1)
    with pytest.raises(TypeError, match="rank-0"):
        len(gk.tensor(1.0))
    assert {t: 1}[t] == 1  # hashed by identity
    assert 2.0 in t[0]


def test_how_it_is_shown() -> None:
    assert (
        repr(gk.tensor([[1.0, 2.5]], requires_grad=True)) == "Tensor([[1. , 2.5]], dtype=float32, requires_grad=True)"
    )
    assert repr(gk.tensor(3)) == "Tensor(3, dtype=int64)"
    shown: list[str] = []
    gk.trace(lambda x: shown.append(repr(x)) or x * 2, gk.spec("float32", ["batch", None, 3]))
    assert shown == ["Tensor(x: float32[batch, ?, 3])"]


def test_copies_keep_values_and_pickles_too() -> None:
    t = gk.tensor([1.0, 2.0], requires_grad=True, name="w")
    for twin in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert (twin.tolist(), twin.requires_grad, twin.name) == ([1.0, 2.0], True, "w")
        assert twin is not t


# Arithmetic

OPERATIONS: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "**": lambda a, b: a**b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
# left dtype, right (a dtype, or a Python number) -> result dtype of arithmetic
PROMOTION: list[tuple[str, Any, str]] = [
    ("float32", "float32", "float32"), ("float32", "float64", "float64"), ("float16", "float32", "float32"),
    ("float32", "int64", "float32"),
    ("int64", "float16", "float16"), ("int32", "int64", "int64"), ("uint8", "int8", "int16"),
    ("uint8", "int32", "int32"), ("bool", "int64", "int64"),
    ("bool", "float32", "float32"), ("int8", "int8", "int8"), ("float64", "int8", "float64"),
    # Python numbers are weak
    ("float32", 2, "float32"), ("float32", 2.5, "float32"), ("float16", 2.5, "float16"), ("float64", 2.5, "float64"),
    ("int64", 2, "int64"),
    ("uint8", 2, "uint8"), ("int64", 2.5, "float32"), ("uint8", 2.5, "float32"), ("int64", True, "int64"),
    ("float32", True, "float32"), ("bool", 2, "int64"),
]  # fmt: skip


def operand(dtype: Any) -> Any:
    return gk.tensor(np.array([1, 2, 3]).astype(dtype)) if isinstance(dtype, str) else dtype


@pytest.mark.parametrize(("left", "right", "expected"), PROMOTION)
def test_promotion(left: str, right: Any, expected: str) -> None:
    a, b = operand(left), operand(right)
    for symbol in ("+", "*") if left == "bool" and right is not True else ("+", "-", "*"):
        for one, other in ((a, b), (b, a)):
            assert OPERATIONS[symbol](one, other).dtype.name == expected, symbol
    if isinstance(right, str):
        assert gk.dtypes.promote(a.dtype, b.dtype) == gk.dtypes.promote(b.dtype, a.dtype)
    for symbol in ("<", ">=", "==", "!="):
        assert OPERATIONS[symbol](a, b).dtype.name == "bool"


@pytest.mark.parametrize("symbol", OPERATIONS)
@pytest.mark.parametrize(
    "right", [np.array([2.0, -3.0, 0.5], F), 2, -2.0, X[::-1].copy()], ids=["row", "int", "float", "matrix"]
)
def test_arithmetic_is_numpys(symbol: str, right: Any) -> None:
    operation = OPERATIONS[symbol]
    other = gk.tensor(right) if isinstance(right, np.ndarray) else right
    with np.errstate(all="ignore"):
        for ours, theirs in (
            (operation(gk.tensor(X), other), operation(X, right)),
            (operation(other, gk.tensor(X)), operation(right, X)),
        ):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)
        model = gk.trace(lambda x: operation(x, other), gk.spec("float32", ["n", 3]))
        (traced,) = run(model, {"x": X}, optimizations=False).values()
    np.testing.assert_array_equal(traced, operation(gk.tensor(X), other).numpy())


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "//", "%", "**", "<", "=="])
def test_integer_arithmetic_is_pythons(symbol: str) -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, 3, 4] if symbol == "**" else [2, 2, -2, -2])
    ours = OPERATIONS[symbol](gk.tensor(a), gk.tensor(b))
    theirs = OPERATIONS[symbol](a, b)
    assert ours.dtype == (F if symbol == "/" else theirs.dtype)
    np.testing.assert_array_equal(ours.numpy(), theirs.astype(ours.dtype))


def test_logic_and_signs() -> None:
    a, b = np.array([True, True, False]), np.array([True, False, False])
    p, q = gk.tensor(a), gk.tensor(b)
    assert [(p & q).tolist(), (p | q).tolist(), (p ^ q).tolist(), (~p).tolist()] == [
        (a & b).tolist(),
        (a | b).tolist(),
        (a ^ b).tolist(),
        (~a).tolist(),
    ]
    n = gk.tensor([6, -5])
    assert [(n & 3).tolist(), (n | 1).tolist(), (n ^ 2).tolist(), (~n).tolist(), (3 & n).tolist()] == [
        [2, 3],
        [7, -5],
        [4, -7],
        [-7, 4],
        [2, 3],
    ]
    assert [(-n).tolist(), (+n).tolist(), abs(n).tolist()] == [[-6, 5], [6, -5], [6, 5]]


@pytest.mark.parametrize("exponent", [2, 0.5, -1, 3, 0, 2.0])
def test_powers_and_their_gradients(exponent: float) -> None:
    x = gk.tensor([1.0, 2.0, 4.0], requires_grad=True)
    (x**exponent).sum().backward()
    value = np.array([1.0, 2.0, 4.0])
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), exponent * value ** (exponent - 1.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: gk.tensor([1.0, 2.0]) + gk.tensor([1.0, 2.0, 3.0]), r"Add\(float32\[2\], float32\[3\]\)"),
        (lambda: gk.tensor(["a"]) + 1, "string"),
        (lambda: gk.tensor([1]) + "a", "int64 and string do not combine"),
        (lambda: gk.tensor([1.0]) == None, "cannot be made of NoneType"),  # noqa: E711  # the comparison is the test
        (lambda: gk.tensor(np.array([1], np.uint64)) + gk.tensor(np.array([1])), "no common integer type"),
        (lambda: gk.tensor([1.0]).mT, "needs two dimensions or more"),
        (lambda: gk.tensor([7]) // gk.tensor([0]), "Mod.*by zero"),
        (lambda: gk.tensor([1.0]).sum(axis=3), "ReduceSum.*axis"),
    ],
)
def test_operands_that_do_not_fit(attempt: Any, message: str) -> None:
    with pytest.raises(GraphkitError, match=message) as caught:
        attempt()
    assert f"test_tensor.py:{attempt.__code__.co_firstlineno}" in str(caught.value)


METHODS: dict[str, tuple[Any, Any]] = {
    "sum": (lambda t: t.sum(0), lambda a: a.sum(0)), "mean": (lambda t: t.mean((0, 1)), lambda a: a.mean()),
    "max": (lambda t: t.max(1, keepdims=True), lambda a: a.max(1, keepdims=True)),
    "min": (lambda t: t.min(), lambda a: a.min()), "prod": (lambda t: t.prod(-1), lambda a: a.prod(-1)),
    "argmax": (lambda t: t.argmax(1), lambda a: a.argmax(1)),
    "argmin": (lambda t: t.argmin(), lambda a: a.argmin()), "T": (lambda t: t.T, lambda a: a.T),
    "mT": (lambda t: t[None].mT, lambda a: a.T[None]),
    "transpose": (lambda t: t.transpose(1, 0), lambda a: a.T),
    "transpose a tuple": (lambda t: t.transpose((-1, 0)), lambda a: a.T),
    "sum of no axes": (lambda t: t.sum(()), lambda a: a.sum(())),
    "astype": (lambda t: t.astype("int64"), lambda a: a.astype(int)),
    "squeeze": (lambda t: t[None, :, None].squeeze((0, 2)), lambda a: a),
    "squeeze all": (lambda t: t[None].squeeze(), lambda a: a),
    "unsqueeze": (lambda t: t.unsqueeze((0, -1)), lambda a: a[None, ..., None]),
    "matmul": (lambda t: t @ t.T, lambda a: a @ a.T),
    "matvec": (lambda t: t @ np.ones(3, F), lambda a: a @ np.ones(3, F)),
    "array on the left": (lambda t: np.ones((2, 2), F) @ t, lambda a: np.ones((2, 2), F) @ a),
    "list on the right": (lambda t: t - [1, 2, 3], lambda a: a - np.array([1, 2, 3], F)),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    ours, theirs = METHODS[name]
    expected = theirs(X)
    got = ours(gk.tensor(X))
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    fixed = name in {"squeeze all", "array on the left", "list on the right", "matvec"}  # need to know extents
    model = gk.trace(ours, gk.spec("float32", [2, 3] if fixed else ["n", "m"]))
    (traced,) = run(model, {"t": X}, optimizations=False).values()
    np.testing.assert_array_equal(traced, got.numpy())


def test_sequences_hold_arrays() -> None:
    s = gk.op.SequenceInsert(gk.op.SequenceEmpty(), gk.tensor([1.0, 2.0]))
    assert gk.op.SequenceLength(s).item() == 1
    assert gk.op.SequenceAt(s, 0).tolist() == [1.0, 2.0]
    numbers = gk.op.SequenceInsert(gk.op.SequenceEmpty(dtype="int64"), gk.tensor([1, 2]))
    assert gk.op.SequenceAt(numbers, -1).tolist() == [1, 2]


def test_tensors_inside_lists_keep_their_gradients_and_stay_traced() -> None:
    x = gk.tensor([1.0, 2.0], requires_grad=True)
    rows = gk.array.asarray([x, [x[0], 5.0], [3, 4]])
    assert rows.tolist() == [[1.0, 2.0], [1.0, 5.0], [3.0, 4.0]]
    (rows * rows).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 4.0]
    model = gk.trace(lambda a: gk.array.asarray([[a, 1.0], [2, a]]), gk.spec("float16", []))
    (got,) = run(model, {"a": np.float16(7)}).values()
    assert got.tolist() == [[7.0, 1.0], [2.0, 7.0]]
    assert got.dtype == np.float16  # the numbers are weak
    assert gk.op.Mul(np.ones((2, 1), F), [x, x]).requires_grad


def test_numbers_in_text() -> None:
    assert f"{gk.tensor(3.14159):.2f}" == "3.14"
    assert f"{gk.tensor([1.0])}" == "Tensor([1.], dtype=float32)"


def test_an_array_does_not_take_a_tensors_values_in_place() -> None:
    y = np.zeros(2, F)
    with pytest.raises(
        TypeError, match=r"out of gradients' and traces' reach \(.*test_tensor.py:\d+\); write y = y \+ x"
    ):
        y += gk.tensor([1.0, 2.0])
