"""What a hostile graph is, and what is asked of whoever optimizes it.

The graphs are shared by the tests and by ``benchmarks.hostile``, which puts them to other optimizers. Each is small and
legal, and each has been rewritten wrongly by a program that people use, or looks as if it could be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Any]
node = helper.make_node
VERDICTS = ("unloadable", "wrong", "interface", "metadata", "growth", "operators")
# What a fair optimizer may add to the tensors of a file: the axes, sizes and shapes of what it writes anew.
SPARE_BYTES = 256


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One graph, its inputs, and what must hold after optimizing.

    ``expected`` are outputs worked out by hand (numpy) where the runtime is not to be the judge; elsewhere the
    original, run with the runtime's own optimizations off, is right. ``tolerance`` 0 compares bit for bit, the signs of
    zeros included. ``gone`` and ``kept`` name operators that must not, or must, be left. ``drawn`` names outputs that
    follow from a random draw, ``check`` judges a list of runs by itself; ``loads`` is False for what no stock runtime
    runs: then only interface, metadata and size are looked at.
    """

    name: str
    model: onnx.ModelProto
    feeds: tuple[Feeds, ...]
    expected: tuple[Feeds, ...] = ()
    tolerance: float = 0.0
    gone: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    drawn: frozenset[str] = frozenset()
    check: Callable[[list[dict[str, Any]]], bool] | None = None
    loads: bool = True
    training: bool = False  # a graph that is being trained: the preset "training" is the one that applies


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def parsed(text: str, opset: int = 17, ir: int | None = None, imports: str = "") -> onnx.ModelProto:
    """A model from the text form of ONNX: the graph, and functions after it."""
    version = ir if ir is not None else 8 if opset < 19 else 9 if opset < 21 else 10 if opset < 23 else 11
    return onnx.parser.parse_model(f'<ir_version: {version}, opset_import: ["": {opset}{imports}]> {text}')


def case(
    name: str,
    model: onnx.ModelProto | str,
    *feeds: Feeds,
    expected: Feeds | Sequence[Feeds] = (),
    tolerance: float = 0.0,
    gone: str = "",
    kept: str = "",
    drawn: str = "",
    check: Callable[[list[dict[str, Any]]], bool] | None = None,
    loads: bool = True,
    training: bool = False,
    **text: Any,
) -> Case:
    """A case; a model given as text is parsed, with ``opset``, ``ir`` and ``imports``."""
    made = parsed(model, **text) if isinstance(model, str) else model
    right = (expected,) if isinstance(expected, Mapping) else tuple(expected)
    return Case(name, made, feeds, right, tolerance, words(gone), words(kept), words(drawn), check, loads, training)


def value(name: str, shape: Sequence[Any] | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, array: Any, dtype: Any = None) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] | None = None,
    **parts: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir, **parts)


def f32(*numbers: Any) -> Array:
    return np.array(numbers, np.float32)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Judging


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> list[dict[str, Any]]:
    running = session(model)
    names = [output.name for output in model.graph.output]
    return [dict(zip(names, running.run(names, {k: _fed(v) for k, v in each.items()}), strict=True)) for each in feeds]


def _fed(given: Any) -> Any:
    return np.asarray(given) if isinstance(given, np.generic) else given


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The graph, its bodies, and the functions with theirs."""

    def visit(graph: Any) -> Iterator[Any]:
        yield graph
        for each in graph.node:
            for attribute in each.attribute:
                for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                    yield from visit(body)

    for root in (model.graph, *model.functions):
        yield from visit(root)


def operators(model: onnx.ModelProto) -> Counter[str]:
    """How often each operator stands in a model; a Constant is storage, not work, and is not counted."""
    return Counter(each.op_type for graph in graphs(model) for each in graph.node if each.op_type != "Constant")


def stored_bytes(model: onnx.ModelProto) -> int:
    """The bytes of all tensors in the file."""
    total = 0
    for graph in graphs(model):
        for each in getattr(graph, "initializer", ()):
            total += each.ByteSize()
        for each in getattr(graph, "sparse_initializer", ()):
            total += each.ByteSize()
        for each in graph.node:
            total += sum(attribute.t.ByteSize() for attribute in each.attribute if attribute.HasField("t"))
    return total


def interface(model: onnx.ModelProto) -> list[Any]:
    """What a caller sees: names, order, types and dims of inputs and outputs, and which inputs may be left out."""
    given = {each.name for each in model.graph.initializer}
    return [
        [(each.name, each.type.SerializeToString(deterministic=True)) for each in model.graph.input],
        [(each.name, each.type.SerializeToString(deterministic=True)) for each in model.graph.output],
        sorted({each.name for each in model.graph.input} & given),
    ]


def names_and_types(model: onnx.ModelProto) -> list[Any]:
    """A looser interface: other optimizers write output dims as they infer them, which is not held against them."""
    given = {each.name for each in model.graph.initializer}

    def described(each: onnx.ValueInfoProto, dims: bool) -> tuple[Any, ...]:
        plain = each.type.tensor_type
        fixed = [d.dim_value if d.HasField("dim_value") else None for d in plain.shape.dim] if dims else None
        return each.name, each.type.WhichOneof("value"), plain.elem_type, fixed

    return [
        [described(each, dims=True) for each in model.graph.input],
        [described(each, dims=False) for each in model.graph.output],
        sorted({each.name for each in model.graph.input} & given),
    ]


def metadata(model: onnx.ModelProto) -> list[Any]:
    """What people wrote into the model about itself, its graph, its inputs and outputs."""

    def entries(items: Any) -> list[tuple[str, str]]:
        return sorted((entry.key, entry.value) for entry in items)

    values = [*model.graph.input, *model.graph.output]
    return [
        (model.producer_name, model.producer_version, model.domain, model.model_version, model.doc_string),
        (model.graph.name, model.graph.doc_string),
        entries(model.metadata_props),
        entries(model.graph.metadata_props),
        [(each.name, each.doc_string, entries(each.metadata_props)) for each in values],
        [each.SerializeToString(deterministic=True) for each in model.graph.quantization_annotation],
    ]


def lost_entries(result: onnx.ModelProto, original: onnx.ModelProto) -> bool:
    """Whether any of what people wrote is gone; what an optimizer adds to it is not held against it."""

    def flat(items: Any) -> list[Any]:
        return [leaf for item in items for leaf in (flat(item) if isinstance(item, (list, tuple)) else [item])]

    written = Counter(item for item in flat(metadata(original)) if item)
    return bool(written - Counter(flat(metadata(result))))


def same(got: Any, right: Any, tolerance: float) -> bool:
    """Whether two outputs agree: type, dtype, shape and numbers."""
    if isinstance(right, list):
        pairs = isinstance(got, list) and len(got) == len(right)
        return pairs and all(same(a, b, tolerance) for a, b in zip(got, right, strict=True))
    got, right = (np.asarray(each) if isinstance(each, np.generic) else each for each in (got, right))
    if not isinstance(right, np.ndarray) or not isinstance(got, np.ndarray):
        return type(got) is type(right) and bool(got == right)
    if (got.dtype, got.shape) != (right.dtype, right.shape):
        return False
    if right.dtype.kind not in "fc":
        return bool(np.array_equal(got, right))
    if tolerance:
        largest = float(np.abs(right[np.isfinite(right)]).max(initial=0))
        return bool(np.allclose(got, right, rtol=tolerance, atol=tolerance * largest, equal_nan=True))
    zeros = right == 0
    return bool(np.array_equal(got, right, equal_nan=True)) and bool(
        np.array_equal(np.signbit(got)[zeros], np.signbit(right)[zeros])
    )


def judged(given: Case, result: onnx.ModelProto, *, strict: bool = True) -> dict[str, str]:
    """What is wrong with an optimized model: verdict and reason; empty where nothing is.

    ``strict`` is what graphkit promises: the interface to the byte, a file that is no larger, and operators that had
    to go or to stay. Others are judged by what anybody would call wrong.
    """
    found: dict[str, str] = {}
    original = given.model
    if given.loads:
        try:
            got = run(result, given.feeds)
        except Exception as error:  # noqa: BLE001 - whatever the runtime says, the result is no good
            return {"unloadable": (str(error) or type(error).__name__).splitlines()[0][:300]}
        expected = run(original, given.feeds)
        for turn, (mine, right) in enumerate(zip(got, expected, strict=True)):
            hand = given.expected[turn] if turn < len(given.expected) else {}
            for name in right:
                if name in given.drawn:
                    continue
                # What is worked out by hand counts; a rounding of the runtime's own is then no fault.
                reference, allowed = (
                    (hand[name], max(given.tolerance, 1e-6)) if name in hand else (right[name], given.tolerance)
                )
                if not strict:
                    allowed = max(allowed, 1e-5)
                if name not in mine or not same(mine[name], reference, allowed):
                    found["wrong"] = f"{name}: {mine.get(name)!r} instead of {reference!r}"[:600]
        if given.check is not None and not given.check(got):
            found["wrong"] = f"what was drawn is not as it should be: {got}"[:600]
    look = interface if strict else names_and_types
    if look(result) != look(original):
        found["interface"] = f"{look(result)} instead of {look(original)}"
    if metadata(result) != metadata(original) and (strict or lost_entries(result, original)):
        found["metadata"] = f"{metadata(result)} instead of {metadata(original)}"
    before, after = operators(original), operators(result)
    if sum(after.values()) > sum(before.values()):
        found["growth"] = f"{sum(after.values())} nodes instead of {sum(before.values())}"
    if stored_bytes(result) > stored_bytes(original) + SPARE_BYTES:
        found["growth"] = f"{stored_bytes(result):,} bytes of tensors instead of {stored_bytes(original):,}"
    if strict and result.ByteSize() > max(original.ByteSize() + 64, int(original.ByteSize() * 1.05)):
        found["growth"] = f"a file of {result.ByteSize():,} bytes instead of {original.ByteSize():,}"
    if strict and (left := given.gone & set(after)):
        found["operators"] = f"{sorted(left)} should be gone: {dict(after)}"
    if strict and (lost := given.kept - set(after)):
        found["operators"] = f"{sorted(lost)} should be kept: {dict(after)}"
    return found
