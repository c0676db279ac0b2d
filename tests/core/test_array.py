"""gk.array against numpy: values, dtypes, empty arrays, rank 0, infinities and NaN; eagerly and as a traced graph."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit import array as xp
from graphkit.runtime import run

F = np.float32
EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, 3.4e38, np.inf, -np.inf, np.nan], F)
PLAIN = np.array([[0.3, -1.2, 2.0], [4.5, -0.7, 0.0]], F)
POSITIVE = np.array([[0.3, 1.2, 2.0], [4.5, 0.7, 9.0]], F)
UNIT = np.array([-1.0, -0.4, 0.0, 0.9, 1.0], F)
INTEGERS = np.array([[7, -3, 0], [2, -8, 5]], np.int64)
EMPTY = np.zeros((0, 3), F)
SCALAR = np.array(2.5, F)
BOOLS = np.array([[True, False, True], [False, False, True]])


def check(ours: Any, theirs: Any, arrays: tuple[Any, ...], exact_dtype: bool = True, tolerance: float = 2e-6) -> None:
    """Ours on Tensors, eagerly and traced, gives what theirs gives on arrays."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = theirs(*arrays)
    got = ours(*[gk.tensor(a) for a in arrays])
    model = gk.trace(
        ours, *[gk.spec(a.dtype, a.shape) for a in arrays], input_names=[f"x{n}" for n in range(len(arrays))]
    )
    traced = list(run(model, {f"x{n}": a for n, a in enumerate(arrays)}, optimizations=False).values())
    listed = list(expected) if isinstance(expected, tuple | list) else [expected]
    eager = [t.numpy() for t in (got if isinstance(got, tuple | list) else [got])]
    assert len(eager) == len(listed) == len(traced)
    for e, g, t in zip(listed, eager, traced, strict=True):
        e = np.asarray(e)
        assert g.shape == e.shape == t.shape
        if exact_dtype:
            assert g.dtype == (np.float32 if e.dtype == np.float64 else e.dtype)
        assert t.dtype == g.dtype
        np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance, equal_nan=True)
        np.testing.assert_array_equal(t, g, err_msg="the traced graph against eager")


def both(name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The same call for us and for numpy."""
    return (lambda *a: getattr(xp, name)(*a, *args, **kwargs)), (lambda *a: getattr(np, name)(*a, *args, **kwargs))


UNARY = {
    "abs": (EDGES, INTEGERS, EMPTY, SCALAR),
    "acos": (UNIT,), "acosh": (POSITIVE + 1,), "asin": (UNIT,), "asinh": (PLAIN,), "atan": (EDGES,),
    "atanh": (UNIT[1:4],),
    "ceil": (EDGES, INTEGERS), "floor": (EDGES, INTEGERS),
    "round": (np.array([0.5, 1.5, 2.5, -0.5, -1.5], F), INTEGERS),
    "trunc": (EDGES, INTEGERS, SCALAR), "sign": (EDGES, INTEGERS), "signbit": (EDGES[:-1],),
    "cos": (PLAIN, SCALAR, EMPTY), "sin": (PLAIN,), "tan": (PLAIN,), "cosh": (PLAIN,), "sinh": (PLAIN,),
    "tanh": (EDGES,),
    "exp": (EDGES, EMPTY), "expm1": (EDGES, np.array([1e-7, -1e-7, 0.4, -0.6], F)),
    "log": (EDGES, POSITIVE), "log1p": (np.array([1e-7, -1e-7, 0.4, -1.0, np.inf, 0.0, -0.5], F),),
    "log2": (POSITIVE, EDGES), "log10": (POSITIVE, EDGES), "sqrt": (EDGES, EMPTY), "square": (PLAIN, INTEGERS),
    "reciprocal": (EDGES,), "negative": (EDGES, INTEGERS), "positive": (PLAIN,),
    "isnan": (EDGES, INTEGERS), "isinf": (EDGES, INTEGERS), "isfinite": (EDGES, INTEGERS),
    "logical_not": (BOOLS, INTEGERS), "zeros_like": (PLAIN, INTEGERS, EMPTY), "ones_like": (PLAIN, SCALAR, BOOLS),
    "bitwise_invert": (INTEGERS, BOOLS),
}  # fmt: skip


@pytest.mark.parametrize(("name", "x"), [(n, x) for n, xs in UNARY.items() for x in xs])
def test_elementwise_functions_of_one_array(name: str, x: Any) -> None:
    ours, theirs = both(name)
    check(ours, theirs, (x,))


PAIRS = (
    (PLAIN, PLAIN[::-1].copy()), (PLAIN, np.array([[2.0], [-0.5]], F)), (INTEGERS, np.array([3, -2, 4])),
    (EMPTY, np.ones((1, 3), F)),
    (SCALAR, PLAIN), (EDGES, EDGES[::-1].copy()),
)  # fmt: skip
BINARY = {
    "add": PAIRS, "subtract": PAIRS, "multiply": PAIRS, "maximum": PAIRS, "minimum": PAIRS, "equal": PAIRS,
    "not_equal": PAIRS,
    "less": PAIRS, "less_equal": PAIRS, "greater": PAIRS, "greater_equal": PAIRS, "divide": PAIRS[:2] + PAIRS[3:],
    "floor_divide": (PAIRS[1], PAIRS[2], PAIRS[3]), "remainder": (PAIRS[1], PAIRS[2], PAIRS[3]),
    "pow": ((POSITIVE, PLAIN), (INTEGERS, np.array([2, 3, 0])),
        (np.array([-2.0, 0.0, 2.0], F), np.array([3.0, 0.0, -1.0], F))),
    "atan2": ((EDGES[:6], EDGES[5::-1].copy()), (PLAIN, PLAIN[::-1].copy()),
        (np.array([0.0, -0.0, 0.0, -0.0], F), np.array([1.0, 1.0, -1.0, -1.0], F))),
    "hypot": ((PLAIN, PLAIN[::-1].copy()), (np.array([3e38, 0.0], F), np.array([1e38, 0.0], F))),
    "copysign": ((PLAIN, -PLAIN), (np.array([1.0, 2.0], F), np.array([-0.0, 0.0], F))),
    "logaddexp": ((PLAIN, -PLAIN), (np.array([-np.inf, 100.0], F), np.array([-np.inf, 1.0], F))),
    "logical_and": ((BOOLS, ~BOOLS), (INTEGERS, INTEGERS)), "logical_or": ((BOOLS, ~BOOLS),),
    "logical_xor": ((BOOLS, BOOLS[::-1].copy()),),
    "bitwise_and": ((INTEGERS, INTEGERS[::-1].copy()), (BOOLS, ~BOOLS)),
    "bitwise_or": ((INTEGERS, INTEGERS[::-1].copy()),),
    "bitwise_xor": ((INTEGERS, INTEGERS[::-1].copy()),),
    "bitwise_left_shift": ((INTEGERS, np.array([0, 1, 5])),), "bitwise_right_shift": ((INTEGERS, np.array([0, 1, 5])),),
    "matmul": ((PLAIN, PLAIN.T.copy()), (PLAIN, np.array([1.0, 2.0, 3.0], F)), (np.ones((0, 3), F), np.ones((3, 2), F)),
               (np.arange(12, dtype=F).reshape(2, 2, 3), PLAIN.T.copy())),
}  # fmt: skip


@pytest.mark.parametrize(("name", "a", "b"), [(n, *p) for n, pairs in BINARY.items() for p in pairs])
def test_elementwise_functions_of_two_arrays(name: str, a: Any, b: Any) -> None:
    ours, theirs = both(name)
    check(ours, theirs, (a, b), tolerance=5e-6)


@pytest.mark.parametrize("a", [5.5, -5.5, 1e6, 0.0, -0.3])
@pytest.mark.parametrize("b", [3.0, -3.0, 0.7, float("inf")])
def test_the_remainder_is_exact_and_has_the_sign_of_the_divisor(a: float, b: float) -> None:
    x, y = np.array([a], F), np.array([b], F)
    check(lambda p, q: p % q, lambda p, q: p % q, (x, y), tolerance=1e-7)


REDUCTIONS = [
    ("sum", PLAIN, {}), ("sum", PLAIN, {"axis": 0}), ("sum", PLAIN, {"axis": (0, 1), "keepdims": True}),
    ("sum", EMPTY, {"axis": 0}),
    ("sum", EMPTY, {}), ("sum", np.array([200, 100], np.uint8), {}), ("sum", np.array([100, 100], np.int8), {}),
    ("sum", BOOLS, {"axis": 1}),
    ("sum", np.array([2**31 - 1, 1], np.int32), {}), ("prod", np.array([100, 100], np.int8), {}),
    ("prod", PLAIN, {"axis": -1}),
    ("prod", EMPTY, {"axis": 0}), ("sum", SCALAR, {}), ("mean", PLAIN, {"axis": 1}), ("mean", INTEGERS, {}),
    ("max", PLAIN, {}), ("max", INTEGERS, {"axis": 0, "keepdims": True}), ("min", PLAIN, {"axis": 1}),
    ("max", EDGES[:-1], {}), ("min", SCALAR, {}),
    ("var", PLAIN, {}), ("var", PLAIN, {"axis": 0}), ("std", PLAIN, {"axis": 1, "keepdims": True}), ("std", SCALAR, {}),
    ("all", BOOLS, {}), ("all", BOOLS, {"axis": 0}), ("any", BOOLS, {"axis": 1}),
    ("any", np.zeros((0, 2), bool), {"axis": 0}),
    ("all", np.zeros((0, 2), bool), {}), ("all", INTEGERS, {"axis": 1}), ("count_nonzero", INTEGERS, {"axis": 0}),
    ("count_nonzero", BOOLS, {}),
    ("argmax", PLAIN, {"axis": 1}), ("argmax", PLAIN, {}), ("argmin", PLAIN, {"axis": 0, "keepdims": True}),
    ("argmax", np.array([3, 3, 1]), {}),
    ("argmin", PLAIN, {"keepdims": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "options"), REDUCTIONS)
def test_reductions(name: str, x: Any, options: dict[str, Any]) -> None:
    ours, theirs = both(name, **options)
    check(ours, theirs, (x,))


def test_variance_with_a_correction() -> None:
    check(lambda x: xp.var(x, axis=1, correction=1), lambda x: np.var(x, axis=1, ddof=1), (PLAIN,))
    check(lambda x: xp.std(x, correction=1), lambda x: np.std(x, ddof=1), (PLAIN,))


SHAPES = [
    (lambda m, x: m.reshape(x, (3, 2)), PLAIN), (lambda m, x: m.reshape(x, (-1,)), PLAIN),
    (lambda m, x: m.reshape(x, ()), SCALAR),
    (lambda m, x: m.reshape(x, (3, 0)), EMPTY), (lambda m, x: m.reshape(x, (0, 2, 3)), EMPTY),
    (lambda m, x: m.squeeze(x[None], axis=0), PLAIN),
    (lambda m, x: m.expand_dims(x, axis=-1), PLAIN), (lambda m, x: m.expand_dims(x, axis=1), PLAIN),
    (lambda m, x: m.flip(x, axis=0), PLAIN),
    (lambda m, x: m.flip(x), PLAIN), (lambda m, x: m.flip(x), SCALAR), (lambda m, x: m.roll(x, 1, axis=1), PLAIN),
    (lambda m, x: m.roll(x, -4), PLAIN),
    (lambda m, x: m.roll(x, (1, 2), axis=(0, 1)), PLAIN), (lambda m, x: m.roll(x, 1, axis=0), EMPTY),
    (lambda m, x: m.concat([x, x], axis=1), PLAIN),
    (lambda m, x: m.concat([x, x], axis=None), PLAIN), (lambda m, x: m.concat([x, x * 2], axis=-1), EMPTY),
    (lambda m, x: m.stack([x, -x]), PLAIN),
    (lambda m, x: m.stack([x, -x], axis=-1), PLAIN), (lambda m, x: m.stack([x, x], axis=1), SCALAR[None]),
    (lambda m, x: m.permute_dims(x, (1, 0)), PLAIN),
    (lambda m, x: m.moveaxis(x[None], 0, -1), PLAIN), (lambda m, x: m.moveaxis(x[None], (0, 1), (2, 0)), PLAIN),
    (lambda m, x: m.broadcast_to(x, (4, 2, 3)), PLAIN),
    (lambda m, x: m.broadcast_to(x, (3,)), SCALAR), (lambda m, x: m.repeat(x, 2, axis=0), PLAIN),
    (lambda m, x: m.repeat(x, 3), PLAIN),
    (lambda m, x: m.tile(x, (2, 1)), PLAIN), (lambda m, x: m.tile(x, (2, 1, 2)), PLAIN),
    (lambda m, x: m.tile(x, (2,)), PLAIN),
    (lambda m, x: m.matrix_transpose(x), PLAIN), (lambda m, x: m.take(x, np.array([2, 0]), axis=1), PLAIN),
    (lambda m, x: m.take_along_axis(x, np.array([[2], [0]]), axis=1), PLAIN),
    (lambda m, x: m.cumulative_sum(x, axis=1), PLAIN),
    (lambda m, x: m.cumulative_sum(x, axis=0, include_initial=True), PLAIN),
    (lambda m, x: m.cumulative_sum(x, include_initial=True), EDGES[8:]),
    (lambda m, x: m.cumulative_sum(x, axis=0, include_initial=True), EMPTY),
    (lambda m, x: m.cumulative_sum(x), np.array([True, True])),
    (lambda m, x: m.cumulative_prod(x, axis=1), PLAIN),
    (lambda m, x: m.cumulative_sum(x), np.array([100, 100], np.int8)), (lambda m, x: m.diff(x), PLAIN),
    (lambda m, x: m.diff(x, axis=0, n=1), INTEGERS), (lambda m, x: m.sort(x), PLAIN),
    (lambda m, x: m.sort(x, axis=0), INTEGERS),
    (lambda m, x: m.argsort(x, stable=True), np.array([3, 1, 2, 1])), (lambda m, x: m.tril(x), PLAIN),
    (lambda m, x: m.triu(x, k=1), PLAIN),
    (lambda m, x: m.clip(x, -1, 1), PLAIN), (lambda m, x: m.clip(x, None, 2), INTEGERS),
    (lambda m, x: m.where(x > 0, x, 0), PLAIN),
    (lambda m, x: m.where(x > 0, 1, 0), PLAIN), (lambda m, x: m.where(x > 0, x, 0.5), INTEGERS),
    (lambda m, x: m.nonzero(x), INTEGERS),
    (lambda m, x: m.tensordot(x, x, axes=((1,), (1,))), PLAIN), (lambda m, x: m.tensordot(x, x, axes=0), PLAIN),
    (lambda m, x: m.vecdot(x, x), PLAIN),
    (lambda m, x: m.unstack(x), PLAIN), (lambda m, x: m.unstack(x, axis=1), PLAIN),
    (lambda m, x: m.meshgrid(x[0], x[1]), PLAIN),
    (lambda m, x: m.meshgrid(x[0], x[1], indexing="ij"), PLAIN), (lambda m, x: m.broadcast_arrays(x, x[:1]), PLAIN),
    (lambda m, x: m.full_like(x, 3), PLAIN), (lambda m, x: m.full_like(x, 7), INTEGERS),
    (lambda m, x: m.astype(x, np.int64), PLAIN),
]  # fmt: skip


@pytest.mark.parametrize(("function", "x"), SHAPES)
def test_shapes_sorting_and_choosing(function: Any, x: Any) -> None:
    check(lambda t: function(xp, t), lambda a: function(np, a), (x,), exact_dtype=x.dtype != np.int8)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (xp.arange(5), np.arange(5)), (xp.arange(2, 11, 3), np.arange(2, 11, 3)),
        (xp.arange(0.0, 1.0, 0.25), np.arange(0, 1, 0.25, F)),
        (xp.arange(5, 0, -2), np.arange(5, 0, -2)), (xp.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=F)),
        (xp.zeros((2, 3)), np.zeros((2, 3), F)),
        (xp.ones(3, dtype="int32"), np.ones(3, np.int32)), (xp.full((2,), 7), np.full(2, 7)),
        (xp.full((), 1.5), np.full((), 1.5, F)),
        (xp.full((2,), True), np.full(2, True)), (xp.eye(3), np.eye(3, dtype=F)),
        (xp.eye(2, 3, k=1), np.eye(2, 3, k=1, dtype=F)),
        (xp.zeros((0, 3)), np.zeros((0, 3), F)), (xp.full((40, 40), 2.0), np.full((40, 40), 2, F)),
        (xp.asarray([1, 2]), np.array([1, 2])),
    ],
)  # fmt: skip
def test_creation(ours: Any, theirs: Any) -> None:
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours.numpy(), theirs)


def test_unique_functions() -> None:
    x = np.array([[3, 1], [1, 2]])
    found = xp.unique_all(gk.tensor(x))
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for got, want in zip(found, (values, first, inverse.reshape(x.shape), counts), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: np.sum(x, 0), lambda a: a.sum(0)),
        (lambda x: np.sum(x, axis=1, keepdims=True), lambda a: a.sum(1, keepdims=True)),
        (lambda x: np.mean(x, -1), lambda a: a.mean(-1)),
        (lambda x: np.concatenate([x, x], 1), lambda a: np.concatenate([a, a], 1)),
        (lambda x: np.stack((x, x), axis=2), lambda a: np.stack((a, a), 2)),
        (lambda x: np.where(x > 0, x, 0), lambda a: np.where(a > 0, a, F(0))),
        (lambda x: np.transpose(x), lambda a: a.T), (lambda x: np.var(x, ddof=1), lambda a: a.var(ddof=1)),
        (lambda x: np.exp(x), np.exp),
        (lambda x: np.maximum(x, 0.0), lambda a: np.maximum(a, 0)),
        (lambda x: np.clip(x, 0, 1), lambda a: a.clip(0, 1)), (lambda x: np.argmax(x, 1), lambda a: a.argmax(1)),
        (lambda x: np.take(x, np.array([1]), 0), lambda a: a[[1]]),
        (lambda x: np.cumsum(x, 1), lambda a: a.cumsum(1)), (lambda x: np.roll(x, 1, 0), lambda a: np.roll(a, 1, 0)),
        (lambda x: np.ones((2, 3), F) @ x.T, lambda a: np.ones((2, 3), F) @ a.T),
        (lambda x: np.logical_and(x > 0, x < 1), lambda a: (a > 0) & (a < 1)),
        (lambda x: np.sqrt(2) * x, lambda a: a * F(2**0.5)), (lambda x: np.float64(1) / x, lambda a: 1 / a),
        (lambda x: np.float64(3) > x, lambda a: a < 3),
        (lambda x: np.float64(3) - x, lambda a: 3 - a), (lambda x: np.expand_dims(x, 0), lambda a: a[None]),
        (lambda x: np.reshape(x, (3, 2)), lambda a: a.reshape(3, 2)),
    ],
)  # fmt: skip
def test_numpys_own_functions_take_tensors(call: Any, expected: Any) -> None:
    with np.errstate(all="ignore"):
        want = expected(PLAIN)
    got = call(gk.tensor(PLAIN))
    assert isinstance(got, gk.Tensor)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


NUMPY = [
    lambda m, x: np.dot(x, x.T), lambda m, x: np.dot(x[0], x[1]), lambda m, x: np.outer(x[0], x[1]), lambda m,
    x: np.einsum("ij,kj->ik", x, x),
    lambda m, x: np.swapaxes(x[None], 0, 2), lambda m, x: np.ravel(x), lambda m, x: np.split(x, 3, axis=1)[1],
    lambda m, x: np.split(x, [1], axis=1)[1],
    lambda m, x: np.hstack([x, x]), lambda m, x: np.hstack([x[0], x[1]]), lambda m, x: np.vstack([x, x[0]]),
    lambda m, x: np.pad(x, 1),
    lambda m, x: np.pad(x, ((1, 0), (0, 2)), constant_values=3), lambda m,
    x: np.pad(x, ((0, 0), (1, 1)), mode="edge"), lambda m, x: np.linalg.norm(x),
    lambda m, x: np.linalg.norm(x, axis=1), lambda m, x: np.exp2(x), lambda m, x: np.rint(x), lambda m,
    x: x.clip(-1, 1), lambda m, x: x.var(), lambda m, x: x.std(axis=0),
    lambda m, x: (x > 0).any(axis=1), lambda m, x: (x > -9).all(), lambda m, x: x.cumsum(1), lambda m, x: x.cumsum(),
    lambda m, x: x.ravel(), lambda m, x: x * np.ndim(x) + np.shape(x)[1],
]  # fmt: skip


@pytest.mark.parametrize("f", NUMPY)
def test_code_written_for_numpy(f: Any) -> None:
    check(lambda x: f(xp, x), lambda x: f(np, x), (PLAIN,))


def test_a_numpy_function_that_is_missing_says_so() -> None:
    with pytest.raises(TypeError, match=r"no implementation found for 'numpy\.linalg\.svd'"):
        np.linalg.svd(gk.tensor(PLAIN))


def test_python_numbers_come_first_and_stay_weak() -> None:
    small = gk.tensor(np.array([1], np.uint8))
    half = gk.tensor(np.array([1], np.float16))
    for function, value, expected in (
        (xp.add, xp.add(2, small), "uint8"), (xp.multiply, xp.multiply(2.0, half), "float16"),
        (xp.subtract, xp.subtract(2, half), "float16"),
        (xp.maximum, xp.maximum(0.0, half), "float16"), (xp.where, xp.where(half > 0, 0.0, half), "float16"),
        (xp.pow, xp.pow(2.0, half), "float16"),
        (xp.divide, xp.divide(1, half), "float16"), (xp.equal, xp.equal(1, half), "bool"),
        (xp.remainder, xp.remainder(5, small), "uint8"),
    ):  # fmt: skip
        assert value.dtype.name == expected, function


@pytest.mark.parametrize(
    ("dtypes_given", "expected"),
    [(("int32", "float32"), "float32"), (("uint8", "int8"), "int16"), ((np.float32(1), 2.0), "float32"),
        (("int64", 2.0), "float32"), (("bool", 1), "int64")],
)  # fmt: skip
def test_result_type(dtypes_given: tuple[Any, ...], expected: str) -> None:
    assert xp.result_type(*dtypes_given).name == expected


def test_dynamic_extents_run_at_every_size() -> None:
    functions = {
        "roll": (lambda x: xp.roll(x, 3, axis=0), lambda a: np.roll(a, 3, axis=0)),
        "roll back": (lambda x: xp.roll(x, -5), lambda a: np.roll(a, -5)),
        "repeat": (lambda x: xp.repeat(x, 2, axis=0), lambda a: np.repeat(a, 2, axis=0)),
        "var": (lambda x: xp.var(x, axis=0, correction=1), lambda a: np.var(a, axis=0, ddof=1)),
        "full": (lambda x: xp.zeros((x.shape[0], 2)), lambda a: np.zeros((a.shape[0], 2), F)),
        "arange": (lambda x: xp.arange(x.shape[0]), lambda a: np.arange(a.shape[0])),
        "meshgrid": (lambda x: xp.meshgrid(x[:, 0], x[0])[0], lambda a: np.meshgrid(a[:, 0], a[0])[0]),
        "sort": (lambda x: xp.sort(x, axis=0), lambda a: np.sort(a, axis=0)),
        "flip": (lambda x: xp.flip(x), np.flip),
        "broadcast": (lambda x: xp.broadcast_to(x[:, :1], (x.shape[0], 4)),
            lambda a: np.broadcast_to(a[:, :1], (a.shape[0], 4))),
    }  # fmt: skip
    for name, (ours, theirs) in functions.items():
        model = gk.trace(ours, gk.spec("float32", ["n", 3]))
        for size in (2, 5):
            x = np.arange(size * 3, dtype=F).reshape(size, 3) % 4
            got = next(iter(run(model, {"x": x}).values()))
            np.testing.assert_allclose(got, theirs(x), rtol=1e-5, err_msg=name)


def test_the_slope_of_the_deviation_of_equal_elements() -> None:
    x = gk.tensor(np.array([[1.0, 1, 1], [1, 2, 4]]))
    slope = gk.grad(lambda x: x.std(axis=1).sum())(x).numpy()
    assert np.isnan(slope[0]).all() and np.isfinite(slope[1]).all()  # as docs/gradients.md says
    safe = gk.grad(lambda x: gk.op.Sqrt(x.var(axis=1) + 1e-12).sum())(x).numpy()
    np.testing.assert_allclose(safe[0], 0)
