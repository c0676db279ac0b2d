"""The reverse pass of a jitted call: a graph beside the forward graph, which is asked to hand over what it reads."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from graphkit import dtypes
from graphkit.autograd import history, pullback
from graphkit.core import Key, Tensor
from graphkit.errors import ModelFileError
from graphkit.gradients.reverse import Reverse
from graphkit.gradients.shapes import zeros_like
from graphkit.graph import Graph
from graphkit.interpreter import apply1, using
from graphkit.modelfile import lowest_ir_version
from graphkit.runtime import Session

Settings = tuple[bool, str, int | None]


class ReverseRoot(Reverse):
    """A graph of its own for the reverse pass over another graph, ``forward``.

    Attributes:
        reads: the forward graph's inputs that it reads, by place.
        saved: the forward graph's other values that it reads.
    """

    stacking = False

    def __init__(self, forward: Graph) -> None:
        Graph.__init__(self)
        self.forward = forward
        self._read: dict[Key, Tensor] = {}
        self._fixed: dict[ir.Value, bool] = {}
        self._again = {}
        self._steady = set()
        self.reads: list[int] = []
        self.saved: list[ir.Value] = []

    def read_saved(self, t: Tensor) -> Tensor:
        value = t.value
        assert value is not None
        if value.is_graph_input():
            self.reads.append(next(n for n, v in enumerate(self.forward.graph.inputs) if v is value))
            return self.input(f"x{self.reads[-1]}", t.dtype, t.dims)
        self.saved.append(value)
        return self.input(f"saved{len(self.saved) - 1}", t.dtype, t.dims)


def add_output(graph: Graph, t: Tensor, name: str) -> str:
    """Every output has a node of its own and a name of its own."""
    value = t.value
    assert value is not None
    if value.producer() is None or value.is_graph_output() or value.is_graph_input() or value.is_initializer():
        value = graph.apply("Identity", (t,), None, 1, "")[0].value
        assert value is not None
    value.name = graph.unique(name)
    graph.graph.outputs.append(value)
    return value.name


class Runner:
    """A traced graph as a session: arrays in and out in the graph's order."""

    def __init__(self, graph: Graph, outputs: Sequence[str], settings: Settings) -> None:
        self.names = [str(v.name) for v in graph.graph.inputs]
        self.outputs = list(outputs)
        model = ir.Model(graph.graph, ir_version=10, producer_name="graphkit")
        model.ir_version = lowest_ir_version(model)
        optimize, device, threads = settings
        if optimize:
            # the passes stand above this module, so they are asked for by name, once they are needed
            model = importlib.import_module("graphkit.optimizers").optimize(model, preset="training", verify=False)
        self._kept = {v.name for v in model.graph.inputs}
        kinds = [graph.dtype_of(v) for v in (*graph.graph.inputs, *graph.graph.outputs)]
        self._plain = all(dtypes.to_onnx(d) != 16 and dtypes.to_onnx(d) < 17 for d in kinds)
        self.session: Session | None = None
        try:
            self.session = Session(model, device, threads)
        except ModelFileError as error:
            if "no kernel" not in str(error):
                raise  # an operator without a kernel for a dtype has another way eagerly; anything else is an error

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        session = self.session
        assert session is not None
        feeds = {n: a for n, a in zip(self.names, arrays, strict=True) if n in self._kept}
        if not self._plain:
            found = session.run(feeds)
            return [found[n] for n in self.outputs]
        try:
            made: Any = session.runtime_session.run(self.outputs, feeds)
        except Exception as error:  # noqa: BLE001  # ONNX Runtime's errors share no base class
            raise session.explain(error, feeds) from None
        arrays_made: list[Any] = list(made)
        for array in arrays_made:
            array.flags.writeable = False
        return arrays_made


class ReversePass:
    """Two sessions: the forward graph with what the reverse pass reads as more outputs, and the reverse pass.

    Attributes:
        forward: gives the forward graph's own outputs, then the saved values.
        places: which of the forward outputs have a cotangent, the floating ones.
    """

    def __init__(
        self, graph: Graph, results: Sequence[Tensor], outputs: Sequence[str], wanted: Sequence[int], settings: Settings
    ) -> None:
        reverse = ReverseRoot(graph)
        self.places = [n for n, t in enumerate(results) if dtypes.is_float(t.dtype)]
        inputs = [graph.tensor(graph.graph.inputs[n]) for n in wanted]
        targets = {t.key: t for t in inputs}
        with using(reverse):
            start: dict[Key, Tensor] = {}
            for n in self.places:
                y = results[n]
                g = reverse.input(f"g{n}", y.dtype, y.dims)
                start[y.key] = apply1("Add", start[y.key], g) if y.key in start else g
            found = pullback(history([results[n] for n in self.places], targets), start, targets)
            made = [reverse.capture(found[k] if k in found else zeros_like(t)) for k, t in targets.items()]
            names = [add_output(reverse, t, f"dx{n}") for n, t in zip(wanted, made, strict=True)]
        saved = [add_output(graph, graph.tensor(v), f"saved{n}") for n, v in enumerate(reverse.saved)]
        self.forward = Runner(graph, [*outputs, *saved], settings)
        self._inputs = [str(v.name) for v in reverse.graph.inputs]
        self._reads = {f"x{n}": n for n in reverse.reads}
        self._backward = Runner(reverse, names, settings)
        self.usable = self.forward.session is not None and self._backward.session is not None

    def __call__(self, inputs: Sequence[Any], saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The cotangents of the wanted inputs; those of ``places`` are given, all arrays."""
        given = {f"g{n}": g for n, g in zip(self.places, cotangents, strict=True)}
        given |= {f"saved{n}": a for n, a in enumerate(saved)}
        given |= {name: inputs[n] for name, n in self._reads.items()}
        return self._backward([given[n] for n in self._inputs])
