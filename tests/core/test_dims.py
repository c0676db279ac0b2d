"""Dimensions: three-valued equality, broadcasting and quotients that never guess."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from graphkit import dims


def test_unknown_equals_unknown_is_unknown() -> None:
    a, b = dims.anonymous(), dims.anonymous()
    assert dims.same(a, b) is None
    assert dims.same(a, a) is True
    assert dims.same(a, 3) is None
    assert dims.same_dims(None, None) is None
    assert dims.same_dims((a,), (b,)) is None
    assert dims.is_anonymous(a)
    assert not dims.is_anonymous("batch")


SAME: list[tuple[Any, Any, bool | None]] = [
    (3, 3, True), (3, 4, False), ("n", "n", True), ("n", "m", None), ("n", 3, None), (0, 0, True),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "expected"), SAME)
def test_same(a: Any, b: Any, expected: bool | None) -> None:
    assert dims.same(a, b) is expected
    assert dims.same(b, a) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [((2, 3), (2, 3), True), ((2, 3), (2,), False), (("n", 3), ("n", 4), False), (("n", 3), ("m", 3), None),
        ((), (), True), (None, (2,), None),
     (("n", 2), ("m", 3), False)],
)  # fmt: skip
def test_same_dims(a: Any, b: Any, expected: bool | None) -> None:
    assert dims.same_dims(a, b) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [((2, 3), (3,), (2, 3)), (("n", 1), (1, "m"), ("n", "m")), (("n", 3), ("n", 3), ("n", 3)), ((), ("n",), ("n",)),
        (("n",), (1,), ("n",)),
     ((4, 1), ("n", 3), (4, 3)), ((0,), (1,), (0,))],
)  # fmt: skip
def test_broadcast(a: Any, b: Any, expected: Any) -> None:
    assert dims.broadcast(a, b) == expected
    assert dims.broadcast(b, a) == expected


def test_broadcast_of_two_names_is_neither() -> None:
    (found,) = dims.broadcast(("n",), ("m",))
    assert dims.is_anonymous(found)


def test_broadcast_agrees_with_numpy() -> None:
    extents = (1, 3, 0)
    for a in itertools.product(extents, repeat=2):
        for b in itertools.product(extents, repeat=2):
            try:
                expected = np.broadcast_shapes(a, b)
            except ValueError:
                continue
            assert dims.broadcast(a, b) == expected


@pytest.mark.parametrize(
    ("whole", "parts", "expected"),
    [(("n", 2, 3), ("n",), 6), (("n", 4), (4,), "n"), (("n", 4), (2,), dims.product(("n", 2))), ((2, 3), (4,), None),
        ((0, 3), (3,), 0), ((0, 3), (0,), None),
     (("n", "m"), ("n",), "m"), (("n", "m"), ("k",), None), (("n", 6), ("n", 2), 3), ((2, 3), (), 6),
     (("n", "n"), ("n",), "n"), (("n",), ("n", "n"), None)],
)  # fmt: skip
def test_quotient(whole: Any, parts: Any, expected: Any) -> None:
    assert dims.quotient(whole, parts) == expected


def test_products_are_known_again() -> None:
    rows = dims.product(("batch", 16))
    assert dims.is_anonymous(rows)
    assert dims.same(rows, dims.product((4, "batch", 4)))
    assert dims.same(rows, dims.product(("batch", 8))) is None
    assert dims.quotient((rows, 32), (16, 32)) == "batch"
    assert dims.quotient((dims.product((rows, "n")), 3), (rows,)) == dims.product(("n", 3))
    assert dims.product((0, "n")) == 0
    assert dims.product(()) == 1
    nameless = dims.anonymous()
    assert dims.quotient((dims.product((nameless, 2)),), (2,)) == nameless


def test_text_and_size() -> None:
    assert dims.text(("batch", 3, dims.anonymous())) == "[batch, 3, ?]"
    assert dims.text(None) == "[...]"
    assert dims.size((2, 3)) == 6
    assert dims.size(("n", 3)) is None
    assert dims.is_static((2, 3))
    assert not dims.is_static(("n",))
    assert not dims.is_static(None)
