"""Einsum of two operands as the products that it stands for: the runtime's CPU kernel takes twice as long, or more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from graphkit.optimizers.activations import finish
from graphkit.optimizers.base import Outcome, rule
from graphkit.optimizers.context import Context
from graphkit.optimizers.cpu_kernels import SMALL, is_large
from graphkit.optimizers.symbolic import Dim

__all__: list[str] = []

_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(slots=True)
class _Equation:
    """An equation of two operands, its letters by what becomes of them."""

    a: str
    b: str
    out: str

    @property
    def shared(self) -> str:
        """In both operands and the result."""
        return "".join(x for x in self.out if x in self.a and x in self.b)

    @property
    def summed(self) -> str:
        """In both operands only, in the order of the first."""
        return "".join(x for x in self.a if x in self.b and x not in self.out)

    def alone(self, term: str) -> str:
        """In one operand and the result, in the order of the result."""
        other = self.b if term == self.a else self.a
        return "".join(x for x in self.out if x in term and x not in other)


def _read(node: ir.Node) -> _Equation | None:
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if len(terms) != 2 or len(node.inputs) != 2 or not all(term.isalpha() for term in terms):
        return None
    a, b = terms
    if not arrow:
        out = "".join(sorted(x for x in {*a, *b} if left.count(x) == 1))
    if out and not out.isalpha():
        return None
    if any(len(set(term)) != len(term) for term in (a, b, out)):
        return None
    only = {x for x in {*a, *b} if x not in out and not (x in a and x in b)}
    return None if only else _Equation(a, b, out)


@rule("split_einsum", "Einsum", tolerance=1e-6, targets=("inference", "web"))
def split_einsum(ctx: Context, node: ir.Node) -> Outcome:
    """An Einsum of two operands becomes MatMul with Transposes and Reshapes, or Mul and ReduceSum.

    No ellipsis, no letter twice in one operand, none that is summed over in one alone, and the dims that both operands
    have must be known to be the same, so that nothing broadcasts. More than one node only where an operand is known to
    have 256 elements.
    """
    equation = _read(node)
    if equation is None or ctx.dtype(node.outputs[0]) not in _FLOATS or ctx.opset(node) < 13:
        return "it is not a plain product of two float operands"
    shapes = [ctx.shape(value) for value in node.inputs]
    dims: dict[str, Dim] = {}
    for term, shape in zip((equation.a, equation.b), shapes, strict=True):
        if shape is None or len(shape) != len(term):
            return "the ranks are not known"
        for letter, dim in zip(term, shape, strict=True):
            if dims.setdefault(letter, dim) != dim:
                return f"the two dims '{letter}' are not known to be the same"
    a, b = node.inputs
    assert a is not None
    assert b is not None
    maker = _Maker(ctx, node, dims, is_large(ctx, a, 256) or is_large(ctx, b, 256))
    if not equation.alone(equation.a) and not equation.alone(equation.b):
        return maker.elementwise(a, b, equation)
    if not equation.summed:
        return maker.outer(a, b, equation)
    return maker.product(a, b, equation)


@dataclass(slots=True)
class _Maker:
    ctx: Context
    node: ir.Node
    dims: dict[str, Dim]
    large: bool

    def elementwise(self, a: ir.Value, b: ir.Value, equation: _Equation) -> Outcome:
        kept = "".join(x for x in equation.a if x in equation.out)
        if equation.a != equation.b or kept != equation.out:
            return "the operands or the result are in different orders"
        if equation.summed and not self.large:
            return SMALL
        (made,) = self.ctx.add("Mul", [a, b], before=self.node)
        if equation.summed:
            axes = self._ints([equation.a.index(x) for x in equation.summed], "axes")
            (made,) = self.ctx.add("ReduceSum", [made, axes], {"keepdims": 0}, before=self.node)
        return finish(self.ctx, self.node, made)

    def outer(self, a: ir.Value, b: ir.Value, equation: _Equation) -> Outcome:
        terms = (equation.a, equation.b)
        if any("".join(x for x in equation.out if x in term) != term for term in terms):
            return "the operands are in other orders than the result"
        if not self.large:
            return SMALL
        parts = []
        for value, term in zip((a, b), terms, strict=True):
            first = equation.out.index(term[0])
            missing = [at - first for at in range(first, len(equation.out)) if equation.out[at] not in term]
            if missing:
                (value,) = self.ctx.add("Unsqueeze", [value, self._ints(missing, "axes")], before=self.node)
            parts.append(value)
        return finish(self.ctx, self.node, self.ctx.add("Mul", parts, before=self.node)[0])

    def product(self, a: ir.Value, b: ir.Value, equation: _Equation) -> Outcome:
        shared, summed = equation.shared, equation.summed
        left, right = equation.alone(equation.a), equation.alone(equation.b)
        a_term, b_term = equation.a, equation.b
        if left and right and equation.out.index(right[0]) < equation.out.index(left[0]):
            a, b, a_term, b_term, left, right = b, a, b_term, a_term, right, left
        if shared and (len(left) != 1 or len(right) != 1 or len(summed) != 1):
            return "MatMul takes one dim of each kind beside those that both share"
        if len(summed) > 1 or len(right) > 1:
            sizes = [self.dims[x] for x in (*summed, *right)]
            if not right or not all(isinstance(size, int) and size > 0 for size in sizes):
                return "several dims are one in a MatMul, and their sizes are not known"
        have = shared + left + right
        as_written = (a_term, b_term, equation.out) == (shared + left + summed, shared + summed + right, have)
        if not self.large and (not as_written or len(summed) > 1 or len(right) > 1):
            return SMALL
        rows, columns = self._side(a, a_term, shared + left, summed), self._weights(b, b_term, shared, summed, right)
        (made,) = self.ctx.add("MatMul", [rows, columns], before=self.node)
        if len(right) > 1:
            target = [0] * len(left) + [self._size(x) for x in right]
            (made,) = self.ctx.add("Reshape", [made, self._ints(target, "shape")], before=self.node)
        if have != equation.out:
            order = [have.index(x) for x in equation.out]
            (made,) = self.ctx.add("Transpose", [made], {"perm": order}, before=self.node)
        return finish(self.ctx, self.node, made)

    def _side(self, value: ir.Value, term: str, kept: str, summed: str) -> ir.Value:
        value = self._ordered(value, term, kept + summed)
        if len(summed) > 1:
            target = [0] * len(kept) + [int(np.prod([self._size(x) for x in summed]))]
            (value,) = self.ctx.add("Reshape", [value, self._ints(target, "shape")], before=self.node)
        return value

    def _weights(self, value: ir.Value, term: str, shared: str, summed: str, right: str) -> ir.Value:
        value = self._ordered(value, term, shared + summed + right)
        if len(summed) > 1 or len(right) > 1:
            target = [int(np.prod([self._size(x) for x in part])) for part in (summed, right)]
            (value,) = self.ctx.add("Reshape", [value, self._ints(target, "shape")], before=self.node)
        return value

    def _ordered(self, value: ir.Value, term: str, wanted: str) -> ir.Value:
        if term == wanted:
            return value
        return self.ctx.add("Transpose", [value], {"perm": [term.index(x) for x in wanted]}, before=self.node)[0]

    def _size(self, letter: str) -> int:
        size = self.dims[letter]
        assert isinstance(size, int)
        return size

    def _ints(self, numbers: list[int], hint: str) -> ir.Value:
        return self.ctx.constant(np.array(numbers, np.int64), f"{self.node.outputs[0].name}_{hint}", near=self.node)
