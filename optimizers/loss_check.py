"""What a model loses by coarser numbers: run beside the original on the same inputs, one number an output."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import onnx_ir as ir

from graphkit.errors import PassError
from graphkit.modelfile.external import embedded
from graphkit.modelfile.protos import to_proto
from graphkit.optimizers.context import Context
from graphkit.optimizers.evaluate import open_session
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.feeds_for import Feeds, candidates
from graphkit.optimizers.precision_operators import EXACT
from graphkit.optimizers.reach import unreached
from graphkit.optimizers.report import measure

__all__ = ["LossCheck", "LossReport", "inlined", "name_of", "relative_error", "worst_first"]

# A session is made from the bytes of a model, of which protobuf takes less than 2 GiB.
_LARGEST: Final = 1_900_000_000
_PATIENCE: Final = 20.0
# Seconds after which no single items at fault are looked for any more, but stretches of them.
_SEARCH: Final = 60.0
# So many items are found one by one; after that ever more before the next look.
_SINGLY: Final = 8
T = TypeVar("T")


@dataclass(slots=True)
class LossReport:
    """What a conversion to coarser numbers kept as it was, and what it lost.

    ``kept`` gives a reason for each thing that stays, ``by_check`` those of them that the loss check found;
    ``error`` is the largest relative error of any output, and ``checked`` says of what, or why nothing was checked.
    ``not_reached`` names the bodies (branches of If, bodies of Loop and Scan) that no input ran: their loss is unknown,
    and ``inputs`` that run them would show it.
    """

    kept: dict[str, str] = field(default_factory=dict)
    by_check: list[str] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0
    error: float | None = None
    worst_output: str = ""
    tolerance: float = 0.0
    checked: str = ""
    not_reached: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries, lists, numbers and text."""
        return asdict(self)


# What gives out numbers of one range whatever goes in: errors are relative to that and not to how little came out.
_UNIT_RANGE: Final = frozenset("Sigmoid Softmax Tanh HardSigmoid Erf Softsign".split())


def relative_error(got: Any, expected: Any, least: float = 0.0) -> float:
    """The largest difference over the largest number of what was expected; for other types, the share that differs.

    ``least`` is the least that it is divided by. Infinite where shapes differ, or NaN or infinity stand elsewhere.

    >>> relative_error(np.array([1.0, 3.0]), np.array([1.0, 4.0]))
    0.25
    """
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return float("inf")
        return max((relative_error(a, b, least) for a, b in zip(got, expected, strict=True)), default=0.0)
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return 0.0 if got is expected or got == expected else float("inf")
    if got.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind in "biuOUS":
        return float(np.mean(got != expected))
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    scale = max(least, float(np.abs(b[finite]).max(initial=0))) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale


class LossCheck:
    """The original's outputs on given or generated inputs, to hold others beside.

    ``why_not`` says why there are none: then nothing can be checked.
    """

    def __init__(self, original: ir.Model, inputs: Mapping[str, np.ndarray[Any, Any]] | None) -> None:
        self.original = original
        self.names = [value.name or "" for value in original.graph.outputs]
        self.least = [1.0 if _is_unit(value) else 0.0 for value in original.graph.outputs]
        self.feeds: list[Feeds] = []
        self.expected: list[list[Any]] = []
        self.worst_output = ""
        self.why_not = ""
        if measure(original).bytes > _LARGEST:
            self.why_not = "the model is too large to be run from memory"
            return
        try:
            session = open_session(_bytes(original))
        except Exception as error:  # noqa: BLE001 - an operator of another library, a dtype without a kernel
            self.why_not = f"the original does not run: {_first_line(error)}"
            return
        self._collect(session, inputs)

    def _collect(self, session: Any, inputs: Mapping[str, np.ndarray[Any, Any]] | None) -> None:
        if inputs is not None:
            try:
                self.expected.append(session.run(self.names, dict(inputs)))
            except Exception as error:
                raise PassError(
                    f"the model does not run on the inputs that were given: {_first_line(error)}"
                ) from error
            self.feeds.append(dict(inputs))
            return
        ctx = Context(self.original, training=False, slack=0)
        ctx.facts.sweep(ctx.graphs())
        started = time.perf_counter()
        self.why_not = "no generated inputs were accepted; give some"
        for seed in (0, 1):
            try:
                for feeds in candidates(self.original, ctx, seed):
                    try:
                        self.expected.append(session.run(self.names, feeds))
                    except Exception as error:  # noqa: BLE001 - these sizes do not fit; the next may
                        self.why_not = f"no generated inputs were accepted: {_first_line(error)}"
                        continue
                    self.feeds.append(feeds)
                    break
            except ValueError as error:
                self.why_not = str(error)
                return
            if time.perf_counter() - started > _PATIENCE:
                break
        if self.feeds:
            self.why_not = ""

    def error(self, changed: ir.Model) -> float:
        """The worst relative error of any output of another model on the same inputs.

        Raises what ONNX Runtime raises where that model does not load or run.
        """
        session = open_session(_bytes(changed))
        worst, self.worst_output = 0.0, ""
        kinds = {one.name: one.type for one in session.get_inputs()}
        for feeds, expected in zip(self.feeds, self.expected, strict=True):
            fitting = {name: _fitting(array, kinds.get(name, "")) for name, array in feeds.items()}
            results = session.run(self.names, fitting)
            for name, got, right, least in zip(self.names, results, expected, self.least, strict=True):
                error = relative_error(got, right, least)
                if error > worst:
                    worst, self.worst_output = error, name
        return worst

    def unreached(self) -> list[str]:
        """The bodies of the original that none of the inputs runs, so that nothing is known of their loss."""
        try:
            return unreached(self.original, self.feeds)
        except Exception:  # noqa: BLE001 - the check itself ran; this asks for more
            return []

    def ranges(self, values: list[ir.Value]) -> dict[ir.Value, float]:
        """The largest finite magnitude of each of the original's own values (not those in bodies), where they ran."""
        model = self.original.clone()
        own = {value.name: value for value in (*model.graph.inputs, *(v for n in model.graph for v in n.outputs))}
        filtered = model.opset_imports.get("", 1) >= 10
        zero = ir.Value(
            name="graphkit range zero", const_value=ir.tensor(np.float32(0), name="graphkit range zero"),
            type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]),
        )  # fmt: skip
        model.graph.register_initializer(zero)
        wanted: list[str] = []
        kept: list[ir.Value] = []
        for value in values:
            source = own.get(value.name)
            if source is None:
                continue
            size = _append(model, "Abs", source)
            if filtered:  # an infinity is the same in every precision
                size = _append(model, "Where", _append(model, "IsInf", source), zero, size)
            size = _append(model, "ReduceMax", size, keepdims=0)
            size.name = f"graphkit range {len(wanted)}"
            size.type = ir.TensorType(ir.DataType.FLOAT)
            model.graph.outputs.append(size)
            wanted.append(size.name)
            kept.append(value)
        found: dict[ir.Value, float] = {}
        try:
            session = open_session(_bytes(model))
            for feeds in self.feeds:
                for value, top in zip(kept, session.run(wanted, feeds), strict=True):
                    found[value] = max(found.get(value, 0.0), float(np.nan_to_num(top)))
        except Exception:  # noqa: BLE001 - an empty tensor has no maximum; the check itself still sees what overflows
            return {}
        return found


def worst_first(items: Sequence[T], trial: Callable[[Sequence[T]], float]) -> Iterator[Sequence[T]]:
    """Yield items to leave as they were, those that do most harm first; ``trial`` is the error of some items alone.

    The worst stretch of items is halved again and again. One fault is found in some 2 log2(items) trials; where the
    error is everybody's, ever more items are given at once, and whole stretches when it takes too long.
    """
    started = time.perf_counter()
    count = itertools.count()  # so that equal errors are not settled by comparing items
    stretches: list[tuple[float, int, Sequence[T]]] = [(0.0, next(count), items)]
    batch: list[T] = []
    given = 0
    while stretches:
        _, _, worst = heapq.heappop(stretches)
        if len(worst) > 1 and time.perf_counter() - started < _SEARCH:
            middle = len(worst) // 2
            for part in (worst[:middle], worst[middle:]):
                heapq.heappush(stretches, (-trial(part), next(count), part))
            continue
        batch += worst
        given += 1
        if given <= _SINGLY or given & (given - 1) == 0 or not stretches:
            yield batch
            batch = []


def _is_unit(value: ir.Value, depth: int = 0) -> bool:
    """Whether a value is what a sigmoid, softmax or tanh gave out, moved about."""
    node = value.producer()
    if node is None or depth > 20:
        return False
    if node.op_type in _UNIT_RANGE:
        return True
    if node.op_type == "If":
        index = value.index() or 0
        return all(_is_unit(body.outputs[index], depth + 1) for body in subgraphs_of(node))
    moved = [
        item for item in node.inputs if item is not None and item.dtype == value.dtype and not item.is_initializer()
    ]
    return node.op_type in EXACT and bool(moved) and all(_is_unit(item, depth + 1) for item in moved)


def _append(model: ir.Model, operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
    node = ir.node(operator, inputs, attributes)
    node.outputs[0].name = f"graphkit {operator} of {inputs[0].name}"
    model.graph.append(node)
    return node.outputs[0]


def _fitting(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """The array in the type of an input that changed between float32 and float16."""
    wanted = {"tensor(float)": np.float32, "tensor(float16)": np.float16}.get(kind)
    return array if wanted is None or array.dtype.kind != "f" or array.dtype.itemsize > 4 else array.astype(wanted)


def _bytes(model: ir.Model) -> bytes:
    content = to_proto(embedded(model)).SerializeToString()
    assert isinstance(content, bytes)
    return content


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]


def inlined(model: ir.Model) -> ir.Model:
    """The model with its functions' nodes in the places of their calls; as it is, where they are of another opset."""
    if not model.functions:
        return model
    from onnx_ir.passes.common import InlinePass

    try:
        made = InlinePass()(model.clone()).model
    except ValueError:  # their calls are then operators that are left alone
        return model
    assert isinstance(made, ir.Model)
    return made


def name_of(node: ir.Node) -> str:
    """What a report calls a node."""
    return node.name or f"{node.op_type} ({', '.join(value.name or '' for value in node.outputs)})"
