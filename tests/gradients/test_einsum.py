"""Einsum: one to many operands, ellipsis, repeated letters, implicit results."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit.dims import is_anonymous
from graphkit.gradients.einsum import explicit
from graphkit.graph import Graph
from graphkit.testing import check_gradients

op = gk.op
rng = np.random.default_rng(0)

CASES = [
    ("ij,jk->ik", [(2, 3), (3, 4)], 2),
    ("ij,jk", [(2, 3), (3, 4)], 1),
    ("ij->ji", [(2, 3)], 2),
    ("ij->", [(2, 3)], 1),
    ("ij->i", [(2, 3)], 2),
    ("ba", [(2, 3)], 1),
    ("ii->i", [(3, 3)], 2),
    ("ii", [(3, 3)], 2),
    ("iji->j", [(3, 2, 3)], 1),
    ("iii->", [(2, 2, 2)], 1),
    ("i,i->", [(3,), (3,)], 2),
    ("i,j->ij", [(3,), (2,)], 2),
    ("bij,bjk->bik", [(2, 3, 2), (2, 2, 4)], 2),
    ("bhqd,bhkd->bhqk", [(1, 2, 3, 2), (1, 2, 2, 2)], 1),
    ("...ij,...jk->...ik", [(2, 2, 3), (2, 3, 2)], 1),
    ("...i,i->...", [(2, 2, 3), (3,)], 2),
    ("...ij,jk", [(2, 2, 3), (3, 2)], 1),
    ("i...->...", [(3, 2)], 1),
    ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 2)], 2),
    ("i,i,i->i", [(3,), (3,), (3,)], 2),
    ("ij,k->i", [(2, 3), (4,)], 1),
    ("ij,ij->", [(2, 3), (2, 3)], 2),
    ("bi,ij,bj->b", [(2, 3), (3, 3), (2, 3)], 1),
    ("a b , b c -> a c", [(2, 3), (3, 2)], 1),
]


@pytest.mark.parametrize(("equation", "shapes", "order"), CASES, ids=[c[0] for c in CASES])
def test_equations(equation, shapes, order):
    terms, _ = explicit(equation, [len(s) for s in shapes])
    symbolic = [list(t) for t in terms]
    check_gradients(lambda *x: op.Einsum(*x, equation=equation), [rng.normal(size=s) for s in shapes], order=order,
                    symbolic=symbolic)  # fmt: skip


# letters of extent 1 in one operand, whether the result has them or not
BROADCAST = [
    ("ij,ij->ij", [(1, 3), (2, 3)], 2),
    ("ij,ij->j", [(1, 3), (2, 3)], 1),
    ("ij,ij->", [(2, 3), (1, 3)], 1),
    ("ij,kij->k", [(1, 3), (2, 2, 3)], 1),
    ("bij,bjk->bk", [(2, 2, 1), (2, 3, 2)], 1),
    ("bij,bjk->bik", [(2, 2, 1), (2, 3, 2)], 2),
    ("bij,bjk->", [(2, 2, 1), (1, 3, 2)], 1),
    ("ij,jk->ik", [(2, 4), (1, 3)], 1),
    ("i,i,i->", [(1,), (3,), (1,)], 2),
    ("i,i,i->i", [(3,), (1,), (1,)], 1),
    ("ii,i->i", [(1, 1), (3,)], 1),
    ("ii,i->", [(3, 3), (1,)], 1),
    ("ij,ik->jk", [(1, 1), (1, 2)], 1),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (1, 2, 1, 2)], 1),
    ("ab,ba", [(1, 3), (3, 2)], 1),
]


@pytest.mark.parametrize(("equation", "shapes", "order"), BROADCAST, ids=[f"{c[0]} {c[1]}" for c in BROADCAST])
def test_a_letter_that_broadcasts(equation, shapes, order):
    arrays = [rng.normal(size=s) for s in shapes]
    f = lambda *x: op.Einsum(*x, equation=equation)
    check_gradients(f, arrays, order=order)
    named = [[f"d{axis}" for axis in range(len(shapes[0]))], *map(list, shapes[1:])]  # those of the others known
    check_gradients(f, arrays, symbolic=named, numeric=False)


@pytest.mark.parametrize(
    ("a", "b", "known"),
    [
        ("1,3", "2,3", (2, 3)),
        ("M,3", "2,3", (2, 3)),
        ("M,3", "N,3", (None, 3)),
        ("M,3", "M,3", ("M", 3)),
        ("M,3", "1,3", ("M", 3)),
    ],
)
def test_the_dims_of_the_result(a, b, known):
    text = f"""<ir_version: 9, opset_import: ["": 19]>
    g (float[{a}] a, float[{b}] b) => (float[2,3] y) {{ k = Einsum<equation="ij,ij->ij">(a, b) y = Relu(k) }}"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    k = Graph.adopt(model).tensor(model.graph.node(0).outputs[0])
    assert tuple(None if is_anonymous(d) else d for d in k.dims) == known


def test_an_ellipsis_that_broadcasts():
    check_gradients(lambda a, b: op.Einsum(a, b, equation="...ij,...jk->...ik"),
                    [rng.normal(size=(2, 1, 2, 3)), rng.normal(size=(1, 3, 3, 2))], symbolic=False)  # fmt: skip


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        ("ij,jk", [2, 2], (["ij", "jk"], "ik")),
        ("...ij->...ji", [4], (["abij"], "abji")),
        ("b...a", [3], (["bca"], "cab")),
    ],
)
def test_explicit(equation, ranks, expected):
    assert explicit(equation, ranks) == expected


@pytest.mark.torch
@pytest.mark.parametrize(("equation", "shapes"), [(c[0], c[1]) for c in CASES if " " not in c[0]])
def test_as_pytorch(equation, shapes):
    torch = pytest.importorskip("torch")
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    (torch.einsum(equation, *theirs) ** 2).sum().backward()
    ours = gk.grad(lambda *x: (op.Einsum(*x, equation=equation) ** 2).sum(), tuple(range(len(arrays))))
    for mine, other in zip(ours(*[gk.tensor(a) for a in arrays]), theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_half_precision():
    f = gk.grad(lambda x, y: op.Einsum(x, y, equation="ij,jk->ik").sum(), (0, 1))
    model = gk.trace(f, gk.spec("float16", [2, 3]), gk.spec("float16", [3, 2]))
    assert {o.dtype.name for o in model.graph.outputs} == {"FLOAT16"}
