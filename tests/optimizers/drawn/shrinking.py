"""Make a graph that fails as small as it can be while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tests.optimizers.drawn.drawing import ELEMENTS, Array, captured, typed
from tests.optimizers.hostile.cases import run

Feeds = Sequence[dict[str, Array]]


def cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without the nodes, constants and inputs that no output needs."""
    graph = model.graph
    wanted = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            kept.append(node)
            wanted.update(captured(node))
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for items, chosen in (
        (made.graph.node, kept[::-1]),
        (made.graph.initializer, [each for each in graph.initializer if each.name in wanted]),
        (made.graph.input, [each for each in graph.input if each.name in wanted]),
    ):
        copies = [type(each).FromString(each.SerializeToString()) for each in chosen]
        del items[:]
        items.extend(copies)
    return made


def every_value(model: onnx.ModelProto, feeds: Feeds) -> list[dict[str, Array]]:
    """What every node gives out, so that it can be given instead."""
    open_model = onnx.ModelProto()
    open_model.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    names = dict.fromkeys(name for node in model.graph.node for name in node.output if name and name not in known)
    open_model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return run(open_model, feeds)


def shrunk(model: onnx.ModelProto, feeds: Feeds, fails: Callable[[onnx.ModelProto, Feeds], bool]) -> onnx.ModelProto:
    """The smallest model found that still fails: fewer outputs, and inputs in the place of nodes."""
    values = [{**given, **made} for given, made in zip(feeds, every_value(model, feeds), strict=True)]

    def still_fails(candidate: onnx.ModelProto) -> bool:
        names = [value.name for value in candidate.graph.input]
        try:
            given = [{name: each[name] for name in names} for each in values]
            run(candidate, given)
            return fails(candidate, given)
        except Exception:  # noqa: BLE001 - it lost something that it needs
            return False

    best = cleaned(model)
    for value in best.graph.output:
        candidate = onnx.ModelProto()
        candidate.CopyFrom(best)
        del candidate.graph.output[:]
        candidate.graph.output.append(value)
        if still_fails(smaller := cleaned(candidate)):
            best = smaller
            break
    progress = True
    while progress:
        progress = False
        tries = [without_output(best, index, values) for index in range(len(best.graph.output))]
        tries += [without(best, node, values) for node in reversed(list(best.graph.node))]
        for candidate in tries:
            if candidate is not None and still_fails(candidate):
                best, progress = candidate, True
                break
    return best


def without_output(model: onnx.ModelProto, index: int, values: Sequence[dict[str, Any]]) -> onnx.ModelProto | None:
    """The model that gives out what the node of an output reads, in the place of that output."""
    name = model.graph.output[index].name
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.output[index]
    made_by = {output: node for node in model.graph.node for output in node.output}
    kept = {value.name for value in made.graph.output}
    for read in captured(made_by[name]) if name in made_by else ():
        array = values[0].get(read)
        if read in made_by and read not in kept and isinstance(array, np.ndarray) and array.dtype in ELEMENTS:
            made.graph.output.append(typed(read, array, [f"{read}_{axis}" for axis in range(array.ndim)]))
    return cleaned(made) if made.graph.output else None


def without(model: onnx.ModelProto, node: onnx.NodeProto, values: Sequence[dict[str, Any]]) -> onnx.ModelProto | None:
    """The model with inputs in the place of what a node gives out."""
    outputs = {value.name for value in model.graph.output}
    if outputs & set(node.output):
        return None
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.node.remove(node)
    for name in node.output:
        arrays = [each.get(name) for each in values]
        if not all(isinstance(array, np.ndarray) and array.dtype in ELEMENTS for array in arrays):
            return None
        sizes = zip(*(array.shape for array in arrays if array is not None), strict=True)
        dims = [size[0] if len(set(size)) == 1 else f"{name}_{axis}" for axis, size in enumerate(sizes)]
        made.graph.input.append(typed(name, arrays[0], dims))  # type: ignore[arg-type]
    return cleaned(made)
