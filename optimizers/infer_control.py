"""What is known of a value that one of two branches gives out: whatever both agree on."""

from __future__ import annotations

import onnx_ir as ir

from graphkit.optimizers.facts import Fact, Facts, infers
from graphkit.optimizers.symbolic import fresh, unknown_number


@infers("If")
def if_(facts: Facts, node: ir.Node) -> list[Fact]:
    branches = [node.attributes[name].value for name in ("then_branch", "else_branch")]
    pairs = zip(branches[0].outputs, branches[1].outputs, strict=False)
    return [_both(facts(a), facts(b)) for a, b in pairs]


def _both(a: Fact, b: Fact) -> Fact:
    dtype = a.dtype if a.dtype == b.dtype else None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Fact(dtype)
    shape = tuple(x if x == y else fresh() for x, y in zip(a.shape, b.shape, strict=True))
    content = None
    if a.content is not None and b.content is not None and len(a.content) == len(b.content):
        content = tuple(x if x == y else unknown_number() for x, y in zip(a.content, b.content, strict=True))
    return Fact(dtype, shape, content)
