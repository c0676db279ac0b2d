"""The pipeline: choose the passes, run them to a fixed point, prove the result, and say what was done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final, overload

import numpy as np
import onnx
import onnx_ir as ir

from graphkit.errors import PassError
from graphkit.modelfile import ModelLike, give_back, read_model
from graphkit.modelfile.files import target_of, write_text
from graphkit.optimizers.base import Pass, select
from graphkit.optimizers.context import Context, graphs_of
from graphkit.optimizers.explain import explain_nodes
from graphkit.optimizers.facts import subgraphs_of
from graphkit.optimizers.flops import node_flops
from graphkit.optimizers.opsets import at_opset
from graphkit.optimizers.report import PassReport, Report, measure
from graphkit.optimizers.steps import check_folder, size_up, take_steps
from graphkit.optimizers.symbolic import value_at
from graphkit.optimizers.web import NEWEST_OPSET, check_for_web
from graphkit.runtime.feeds import port, prepare
from graphkit.schemas import schema_at

__all__ = ["optimize", "run_passes"]

_MAX_ROUNDS: Final = 12
# Below this opset operators mean other things (broadcasting is an attribute), and no runtime is expected to load them.
_OLDEST_OPSET: Final = 7
# What folding may add to the constants in all: a twenty-fifth of them, and no more than this many bytes.
_SLACK_SHARE: Final = 25
_MOST_SLACK: Final = 98_304
_NODE_BYTES: Final = 64
_VERIFY_BELOW: Final = 200_000_000
# A report holds the steps where nodes times passes are no more: about a second.
_CHEAP_STEPS: Final = 6_000
_ANY_OPSET: Final = ("prune", "remove_identity")


@overload
def optimize(
    model: onnx.ModelProto,
    preset: str = ...,
    *,
    passes: Collection[str] | None = ...,
    skip: Collection[str] = ...,
    verify: bool | None = ...,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = ...,
    strict: bool = ...,
    report: Report | str | os.PathLike[str] | None = ...,
    explain: str | Sequence[str] | None = ...,
    log_steps: str | os.PathLike[str] | None = ...,
    opset: int | None = ...,
) -> onnx.ModelProto: ...


@overload
def optimize(
    model: str | os.PathLike[str] | ir.Model,
    preset: str = ...,
    *,
    passes: Collection[str] | None = ...,
    skip: Collection[str] = ...,
    verify: bool | None = ...,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = ...,
    strict: bool = ...,
    report: Report | str | os.PathLike[str] | None = ...,
    explain: str | Sequence[str] | None = ...,
    log_steps: str | os.PathLike[str] | None = ...,
    opset: int | None = ...,
) -> ir.Model: ...


def optimize(
    model: ModelLike,
    preset: str = "inference",
    *,
    passes: Collection[str] | None = None,
    skip: Collection[str] = (),
    verify: bool | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    strict: bool = False,
    report: Report | str | os.PathLike[str] | None = None,
    explain: str | Sequence[str] | None = None,
    log_steps: str | os.PathLike[str] | None = None,
    opset: int | None = None,
) -> ir.Model | onnx.ModelProto:
    """Return a smaller, faster model with the same inputs and outputs, which compute the same.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed, and its kind comes back (a
            path gives an ``onnx_ir.Model``).
        preset: ``inference`` (for the CPU provider), ``training`` (only passes that keep parameters, random draws and
            state), ``web`` (written at opset 21 if it is newer), ``cuda`` (in operators that have CUDA kernels) or
            ``none``.
        passes: Run exactly these instead of the preset's; ``graphkit.optimizers.passes()`` lists them.
        skip: Leave these out.
        verify: Run the result beside the original on generated inputs, on ONNX Runtime with its own optimizations off.
            ``None`` does so for models below 200 MB. A pass whose result differs is taken back, and the report says so
            and names the node. A model that the runtime itself refuses cannot be compared: the report says why, and
            ``True`` makes that an error.
        inputs: Inputs by name to verify with, instead of generated ones.
        strict: Raise ``PassError`` instead of taking back a pass whose result differs, or where something could not be
            compared. With ``verify=False`` that is only where a pass itself fails.
        report: A ``Report`` to fill, or a path to write it to as JSON.
        explain: A node's name, or several: the report then says why each pass left it alone.
        log_steps: A folder in which to keep each step, ``01_remove_identity.onnx`` and so on: the model with the passes
            so far, and without those after them. It costs a run of the pipeline for each pass that did something.
        opset: Write the model at this ``ai.onnx`` opset, older or newer than its own (``change_opset``).

    Raises ``PassError`` for an unknown preset or pass, naming the known ones; ``OperatorError`` for what the opset
    cannot say, naming the nodes and the opset that can.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {a = Identity(x) y = Abs(a)}'
    >>> [node.op_type for node in optimize(onnx.parser.parse_model(text)).graph.node]
    ['Abs']
    """
    chosen = select(preset, passes, skip)
    if report is not None and not isinstance(report, Report):
        _check_writable(report)
    if log_steps is not None:
        check_folder(log_steps)
    account = report if isinstance(report, Report) else Report()
    account.preset, account.detailed = preset, report is not None
    account.by_step |= account is not report and report is not None
    original = read_model(model)
    for graph in graphs_of(original):
        _sort_if_needed(graph)
    account.before = size_up(original) if account.detailed else measure(original)
    too_large = account.before.bytes >= _VERIFY_BELOW
    forced = strict or bool(verify) or inputs is not None
    if inputs is not None:
        inputs = prepare([port(value) for value in original.graph.inputs if not value.is_initializer()], dict(inputs))
    if verify is None:
        verify = not too_large
    training = preset == "training"
    if preset == "web":
        check_for_web(original)
        if opset is None and original.opset_imports.get("", 0) > NEWEST_OPSET:
            opset = NEWEST_OPSET
    if opset is not None:
        original = at_opset(original, opset, verify=verify, training=training, inputs=inputs)
    keep = verify or log_steps is not None or account.by_step
    result = original.clone() if keep else original
    started = time.perf_counter()
    wanted = [explain] if isinstance(explain, str) else list(explain or ())
    while True:
        try:
            run_passes(result, chosen, account, training=training, explain=wanted)
            break
        except _FailedPassError as failure:
            if strict or result is original:
                raise
            # What it had begun is thrown away with it.
            account.dropped[failure.made.name] = failure.said
            account.passes = {}
            chosen = [made for made in chosen if made is not failure.made]
            result = original.clone()
    account.seconds = time.perf_counter() - started
    if verify:
        from graphkit.optimizers.verify import settle

        started = time.perf_counter()
        result = settle(
            original, result, chosen, account, training=training, inputs=inputs, strict=strict, forced=forced
        )
        account.verification_seconds = time.perf_counter() - started
    else:
        account.note = (
            "the model is large; verify=True compares it all the same"
            if too_large
            else "verification was not asked for"
        )
    account.after = size_up(result) if account.detailed else measure(result)
    active = [made for made in chosen if account.did(made.name)]
    if log_steps is not None or (account.by_step and len(active) * account.before.nodes <= _CHEAP_STEPS):
        take_steps(
            original, active, lambda m, some: run_passes(m, some, Report(), training=training), account, log_steps
        )
    if report is not None and not isinstance(report, Report):
        write_text(report, account.to_json() + "\n")
    return give_back(model, result)


def _check_writable(path: str | os.PathLike[str]) -> None:
    """Tell before the work, and not after it, that the report cannot be written."""
    try:
        target_of(path)
    except OSError as error:
        raise PassError(f"the report {os.fspath(path)} cannot be written: {error.strerror or error}") from error


@np.errstate(all="ignore")  # what overflows is looked at where it may, and is no news to the user
def run_passes(
    model: ir.Model, chosen: Sequence[Pass], report: Report, *, training: bool, explain: Sequence[str] = ()
) -> None:
    """Run passes on a model, in place, until none of them changes anything."""
    if not chosen:
        return
    opsets = [model.opset_imports.get("", 1), *(f.opset_imports.get("", 99) for f in model.functions.values())]
    if min(opsets) < _OLDEST_OPSET and "" in model.opset_imports:
        chosen = [made for made in chosen if made.name in _ANY_OPSET]
    before = measure(model)
    slack = min(_MOST_SLACK, before.bytes // _SLACK_SHARE)
    ctx = Context(model, training=training, slack=slack, size=before.bytes + _NODE_BYTES * before.nodes)
    accounts = {made.name: report.passes.setdefault(made.name, PassReport()) for made in chosen}
    rules: dict[str, list[Pass]] = {}
    for made in chosen:
        for operator in made.anchors:
            rules.setdefault(operator, []).append(made)
    sweeps = [made for made in chosen if made.run is not None]
    if report.detailed:
        ctx.weigh = _weigher(ctx)
    for report.rounds in range(1, _MAX_ROUNDS + 1):
        ctx.facts.sweep(ctx.graphs())
        changed = _run_rules(ctx, rules, accounts)
        for made in sweeps:
            changed |= _run_sweep(ctx, made, accounts[made.name])
        if not changed:
            break
    if explain:
        report.explanations = explain_nodes(ctx, chosen, explain, report.passes, _is_complete)


def _weigher(ctx: Context) -> Callable[[ir.Node], int]:
    """The operations of a node as far as shapes are known by then, every symbolic dim taken to be 1."""

    def shape_of(value: ir.Value) -> tuple[int, ...] | None:
        shape = ctx.shape(value)
        if shape is None:
            return None
        dims = [value_at(dim, 1) for dim in shape]
        known = tuple(dim for dim in dims if dim is not None)
        return known if len(known) == len(dims) else None

    return lambda node: node_flops(node, shape_of) or 0


class _FailedPassError(PassError):
    """A pass raised an error: most likely the model breaks a rule of ONNX that the pass relies on."""

    def __init__(self, made: Pass, node: str | None, error: Exception) -> None:
        reason = str(error).splitlines()[0][:200] if str(error) else "no reason given"
        where = f" at node '{node}'" if node else ""
        self.made, self.said = made, f"it failed{where}: {type(error).__name__}: {reason}"
        super().__init__(
            f"the pass '{made.name}' is left out with skip=['{made.name}'] (--skip {made.name}): {self.said}"
        )


@cache
def _least(operator: str, opset: int) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """How many inputs an operator needs, which of them it must be given, and which attributes."""
    schema = schema_at(operator, "", opset)
    if schema is None:
        return 0, (), ()
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    needed = tuple(index for index, item in enumerate(schema.inputs) if item.option == single)
    return schema.min_input, needed, tuple(name for name, item in schema.attributes.items() if item.required)


def _is_complete(node: ir.Node, opset: int) -> bool:
    """Whether a node has the inputs and attributes without which its operator means nothing; rules may rely on them."""
    least, needed, attributes = _least(node.op_type, opset)
    inputs = node.inputs
    if len(inputs) < least or not node.outputs:
        return False
    return all(inputs[index] is not None for index in needed) and all(name in node.attributes for name in attributes)


def _run_rules(ctx: Context, rules: dict[str, list[Pass]], accounts: dict[str, PassReport]) -> bool:
    for graph in ctx.graphs():
        ctx.touch(graph.all_nodes())
    changed = False
    clock = time.perf_counter
    while (node := ctx.next_node()) is not None:
        if node.domain != "" or any(attribute.is_ref() for attribute in node.attributes.values()):
            continue
        if not _is_complete(node, ctx.opset(node)):
            continue
        name = ctx.called(node)
        for made in rules.get(node.op_type, ()):
            assert made.rewrite is not None
            account = ctx.account = accounts[made.name]
            started = clock()
            try:
                outcome = made.rewrite(ctx, node)
            except Exception as error:
                raise _FailedPassError(made, name, error) from error
            account.seconds += clock() - started
            if outcome is True:
                account.rewrites += 1
                account.rewritten.append(name)
                changed = True
                if node.graph is None:
                    break
                ctx.touch((node,))
                break
    return changed


def _run_sweep(ctx: Context, made: Pass, account: PassReport) -> bool:
    assert made.run is not None
    ctx.account = account
    started = time.perf_counter()
    try:
        done = made.run(ctx)
    except Exception as error:
        raise _FailedPassError(made, None, error) from error
    account.seconds += time.perf_counter() - started
    account.rewrites += done
    return done > 0


def _sort_if_needed(graph: ir.Graph) -> None:
    seen: set[ir.Node] = set()

    def in_order(nodes: ir.Graph) -> bool:
        for node in nodes:
            for value in node.inputs:
                producer = None if value is None else value.producer()
                if producer is not None and producer not in seen:
                    return False
            if not all(in_order(body) for body in subgraphs_of(node)):
                return False
            seen.add(node)
        return True

    if not in_order(graph):
        try:
            graph.sort()
        except ValueError as error:
            raise PassError(f"the model's graph is not one: {error}") from error
