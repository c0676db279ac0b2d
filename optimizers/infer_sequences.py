"""What is known of a tensor that is taken out of a sequence: PyTorch's exporter passes every ``split`` through one."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from graphkit.optimizers.facts import Fact, Facts, infers
from graphkit.optimizers.symbolic import fresh

__all__ = ["part_sizes"]

# More parts than this are not followed one by one.
_MOST: Final = 256


def part_sizes(facts: Facts, node: ir.Node) -> tuple[int, tuple[int, ...]] | None:
    """The axis of a SplitToSequence that keeps it, and the lengths of its parts; None where they are not known."""
    shape = facts(node.inputs[0]).shape
    if not shape or len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    length, sizes, rank = shape[axis], facts.ints(node.inputs[1]), facts(node.inputs[1]).shape
    if not isinstance(length, int) or not sizes or rank is None:
        return None
    if rank == ():
        if sizes[0] < 1:
            return None
        sizes = tuple(min(sizes[0], length - start) for start in range(0, length, sizes[0]))
    return (axis, sizes) if sum(sizes) == length and 1 <= len(sizes) <= _MOST and min(sizes) >= 0 else None


@infers("SequenceAt")
def sequence_at(facts: Facts, node: ir.Node) -> list[Fact]:
    value, place = node.inputs[0], facts.ints(node.inputs[1])
    maker = None if value is None else value.producer()
    if maker is None or maker.op_type != "SplitToSequence" or maker.domain != "":
        return [Fact(node.outputs[0].dtype)]
    source, parts = facts(maker.inputs[0]), part_sizes(facts, maker)
    if source.shape is None or parts is None:
        return [Fact(source.dtype)]
    axis, sizes = parts
    known = place is not None and -len(sizes) <= place[0] < len(sizes)
    dim = sizes[place[0]] if known and place is not None else sizes[0] if len(set(sizes)) == 1 else fresh()
    return [Fact(source.dtype, (*source.shape[:axis], dim, *source.shape[axis + 1 :]))]
