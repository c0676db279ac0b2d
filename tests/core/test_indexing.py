"""x[...] and x.reshape(...) against numpy: values, gradients, traces with static and symbolic dims, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import OperatorError
from graphkit.runtime import run
from graphkit.testing import check_gradients

A = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
ALL, N, E = slice(None), None, ...
BACK = slice(None, None, -1)

INDICES: list[Any] = [
    # integers and slices
    0, -1, slice(1, None), BACK, slice(-1, 0, -2), slice(5, 10), slice(3, 1), slice(-100, 100),
    (slice(None, -1), slice(None, 0, -1)),
    (slice(2, None),), (ALL, slice(None, 0)), (1, 2, 3, 4), (1, 2, 3), np.int64(1), (E, slice(None, None, 2)),
    (E, 0), (0, E, 1), (),
    # new dimensions and ellipses
    E, N, (N, E, N), (ALL, N, 1), (N, 0, N, BACK), (E, N, 0), (N, N, 1, E, N),
    # integer arrays
    [0, 1], [[0, 1], [1, 0]], np.array(1), ([0, 1], [2, 0]), (ALL, [2, 0, 1]), (ALL, [[2, 0], [1, 1]]), [],
    (ALL, []), ([-1, -2],),
    (np.array([1], np.uint8),), (ALL, [0, 1], [1, 2]), ([1, 0], [0, 1], [2, 3], [4, 0]), (ALL, BACK, [0, 3]),
    (E, [0, 1]),
    (ALL, slice(0, 2), [[0], [3]], [1, 2]),
    # integers beside arrays, arrays with something between them
    (0, [1, 2]), (ALL, 0, [1, 2]), (0, ALL, [1, 2]), ([0, 1], ALL, 0), ([0, 1], ALL, [1, 2]),
    (ALL, [0, 1], ALL, [1, 2]), (ALL, 1, ALL, [-1, -2]),
    (0, [0, 1], 0), (ALL, 0, [0, 1], 0), (0, ALL, 0, [0, 1]), ([0, 1], [0, 1], 0),
    # arrays and new dimensions
    (N, [0, 1]), ([0, 1], N), (ALL, N, [0, 1], [1, 2]), ([0], N, [1, 2]), (0, N, [1, 2]), (E, [0, 1], N),
    (ALL, [0, 1], N, ALL, 0),
    # masks
    A[:, 0, 0, 0] > 30, A > 60, (0, A[0] > 30), (ALL, A[0, :, 0, 0] > 15), (ALL, A[0, :, :, 0] > 15),
    (A[:, :, 0, 0] > 25, 0), (0, A[0, :, :, 0] > 25),
    (A[:, :, 0, 0] > 25, ALL, [0]), (ALL, [True, False, True], [0, 1]), ([True, False], [0]),
    (ALL, ALL, [True, False, True, False], slice(None, None, 2)),
    (N, N, A[:, 0, 0, 0] > -1, 0), A > 1000,
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=[str(n) for n in range(len(INDICES))])
def test_an_index_means_what_numpy_says(index: Any) -> None:
    expected = A[index]
    eager = gk.tensor(A)[index]
    assert eager.shape == expected.shape
    np.testing.assert_array_equal(eager.numpy(), expected)
    for dims in (A.shape, ["a", "b", "c", "d"]):
        model = gk.trace(lambda x: x[index], gk.spec("float32", dims))
        (got,) = run(model, {"x": A}, optimizations=False).values()
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("index", INDICES, ids=[str(n) for n in range(len(INDICES))])
def test_the_gradient_of_an_index_adds_to_what_was_read(index: Any) -> None:
    cotangent = np.cos(np.arange(A[index].size, dtype=np.float32)).reshape(A[index].shape)
    expected = np.zeros_like(A)
    np.add.at(expected, index, cotangent)
    x = gk.tensor(A, requires_grad=True)
    (x[index] * cotangent).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), expected, atol=1e-6)
    model = gk.trace(gk.grad(lambda x: (x[index] * cotangent).sum()), gk.spec("float32", ["a", 3, "c", 5]))
    (got,) = run(model, {"x": A}, optimizations=False).values()
    np.testing.assert_allclose(got, expected, atol=1e-6)


REFUSED = [
    (1.5, IndexError, r"an index is an integer, got float 1\.5"),
    ("a", IndexError, "an index is an integer, got str 'a'"),
    (True, IndexError, "True and False are no indices"),
    ((E, E), IndexError, "one ellipsis"),
    (7, IndexError, "index 7 is out of bounds for axis 0 of extent 2"),
    ((0, 0, 0, 0, 0), IndexError, "too many indices: 5 for a tensor of rank 4"),
    (slice(0.5, 1), IndexError, "the bound of a slice is an integer, got float"),
    (slice(None, None, 0), IndexError, "the step of a slice cannot be 0"),
    ([True], IndexError, "the mask's extent 1 is not the tensor's 2 along axis 0"),
    ([0.5], IndexError, "holds integers or booleans, got float"),
    ([5], OperatorError, "Gather.*out of (data )?bounds"),
]


@pytest.mark.parametrize(("index", "kind", "message"), REFUSED)
def test_a_wrong_index_names_itself_and_the_users_line(index: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        gk.tensor(A)[index]
    assert "test_indexing.py:" in str(caught.value)


def test_traced_bounds_and_index_tensors() -> None:
    def f(x: Any, i: Any) -> Any:
        n = x.shape[0]
        return {"head": x[: n // 2], "last": x[n - 1], "picked": x[i], "tail": x[-i[0] :], "mask": x[x[:, 0] > 2.0]}

    model = gk.trace(f, gk.spec("float32", ["n", 3]), gk.spec("int64", [2]))
    for n in (2, 5):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        i = np.array([1, -1])
        got = run(model, {"x": x, "i": i})
        for name, expected in {
            "head": x[: n // 2],
            "last": x[n - 1],
            "picked": x[i],
            "tail": x[-1:],
            "mask": x[x[:, 0] > 2],
        }.items():
            np.testing.assert_array_equal(got[name], expected)


@pytest.mark.parametrize(
    ("shape", "target"),
    [((2, 3), (3, 2)), ((2, 3), (-1,)), ((2, 3), (6, 1, -1)), ((), (1, 1)), ((1,), ()), ((0, 3), (3, 0)),
        ((0, 3), (0, 7)), ((2, 0), (-1, 5)), ((2, 3), ([3, 2],))],
)  # fmt: skip
def test_reshape(shape: tuple[int, ...], target: tuple[Any, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = x.reshape(*target) if target else x.reshape(())
    np.testing.assert_array_equal(gk.tensor(x).reshape(*target).numpy(), expected)
    assert gk.tensor(x).reshape(*target).shape == expected.shape


@pytest.mark.parametrize(
    ("target", "message"),
    [((4, 2), r"cannot reshape \[2, 3\] \(6 elements\) to \[4, 2\]"), ((-1, -1), "one dimension may be -1"),
        ((-2, 3), "one dimension may be -1"),
     ((2.0, 3), "a dimension of reshape is an integer, got float"), ((-1, 4), "cannot reshape")],
)  # fmt: skip
def test_a_wrong_reshape_is_refused(target: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        gk.tensor(np.zeros((2, 3), np.float32)).reshape(*target)
    assert "test_indexing.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "start"), [((2, 3, 4), 0), ((2, 3, 4), 1), ((0, 3), 1), ((3,), 0), ((), 0), ((2, 3), -1)]
)
def test_flatten(shape: tuple[int, ...], start: int) -> None:
    x = gk.tensor(np.zeros(shape, np.float32))
    merged = int(np.prod(shape[start:]))
    assert x.flatten(start).shape == (*shape[:start], merged)


def test_assigning_to_elements_says_what_to_write_instead() -> None:
    with pytest.raises(TypeError, match=r"tensors are immutable \(.*test_indexing.py:\d+\).*ScatterElements"):
        gk.tensor([1.0, 2.0])[0] = 5.0


def test_the_gradient_of_gather_nd_with_batches() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    indices = np.array([[[0, 1], [-1, 1], [0, 1]], [[2, -4], [1, 0], [2, 0]]])
    check_gradients(lambda t: gk.op.GatherND(t, indices, batch_dims=1), [x], order=2)
    check_gradients(lambda t: gk.op.GatherND(t, indices % 2), [x])


def test_the_gradient_of_compress_without_an_axis() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3))
    check_gradients(lambda t: gk.op.Compress(t, np.array([True, False, True, True])), [x])
