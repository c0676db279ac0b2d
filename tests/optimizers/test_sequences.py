"""Tensors that are taken apart into known parts, or put together from them, in fewer nodes."""

from __future__ import annotations

import pytest

from tests.optimizers.conftest import operators


def test_parts_of_a_sequence_become_a_split(prove):
    text = """g (float[N,6] x) => (float[N,4] y, float[N,2] z) <int64 n = {4}, int64 a = {0}, int64 b = {-1}> {
        s = SplitToSequence<axis=1>(x, n) p = SequenceAt(s, a) y = Abs(p) q = SequenceAt(s, b) z = Neg(q)}"""
    prove(text, expected={"Split": 1, "Abs": 1, "Neg": 1})


def test_a_sequence_that_is_read_as_one_stays(prove):
    text = """g (float[N,6] x) => (float[N,6] y) <int64 n = {4}> {
        s = SplitToSequence<axis=1>(x, n) y = ConcatFromSequence<axis=1>(s)}"""
    prove(text, expected={"SplitToSequence": 1, "ConcatFromSequence": 1})


def test_stacked_steps_out_of_order_stay(prove):
    text = """g (float[2,3] x) => (float[2,3] y) <int64 a = {0}, int64 b = {1}, int64[1] o = {0}> {
        p = Gather(x, b) q = Gather(x, a) r = Unsqueeze(p, o) s = Unsqueeze(q, o) y = Concat<axis=0>(r, s)}"""
    assert operators(prove(text, opset=17))["Gather"] == 2


def test_stacked_steps_are_the_value(prove):
    text = """g (float[2,3] x) => (float[3,2] y) <int64 a = {0}, int64 b = {1}, int64[1] o = {1}> {
        e = Exp(x) p = Gather(e, a) q = Gather(e, b) r = Unsqueeze(p, o) s = Unsqueeze(q, o)
        y = Concat<axis=1>(r, s)}"""
    prove(text, opset=17, expected={"Exp": 1, "Transpose": 1})


PACKED = """g (float[N,2,6] x) => (float[N,2,2] q, float[N,2,2] k, float[N,2,2] v) <int64[5] view = {1,-1,2,3,2},
    int64[1] three = {3}, int64 a = {0}, int64 b = {1}, int64 c = {2}> {
    e = Exp(x) r = Reshape(e, view) t = Transpose<perm=[3,1,2,0,4]>(r) s = Squeeze(t, three)
    i = Gather(s, a) j = Gather(s, b) l = Gather(s, c) q = Neg(i) k = Abs(j) v = Sin(l) }"""


def test_queries_keys_and_values_become_a_split(prove):
    prove(PACKED, expected={"Exp": 1, "Split": 1, "Neg": 1, "Abs": 1, "Sin": 1}, grow=60, verify=True, strict=True)


CHANGES = {
    "a place twice": ("l = Gather(s, c)", "l = Gather(s, b)"),
    "a product between": ("s = Squeeze(t, three)", "u = Mul(t, t) s = Squeeze(u, three)"),
    "axes in another order": ("perm=[3,1,2,0,4]", "perm=[3,2,1,0,4]"),
    "another axis": ("i = Gather(s, a)", "i = Gather<axis=1>(s, a)"),
    "the whole is read too": ("q = Neg(i)", "m = ReduceSum(r) p = Neg(i) q = Mul(p, m)"),
}


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES.keys())
def test_other_gathers_stay(prove, old, new):
    text = PACKED.replace(old, new).replace("float[N,2,2]", "float[A,B,C]")
    text = text.replace(", int64 c = {2}", "") if "(s, c)" not in text else text
    assert not operators(prove(text, tolerance=1e-6, grow=60))["Split"]
