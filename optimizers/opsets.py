"""change_opset(): a model in the words of another opset, older or newer."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any, Final, overload

import numpy as np
import onnx
import onnx_ir as ir

from graphkit.errors import OperatorError, PassError
from graphkit.modelfile import ModelLike, borrow_model, give_back, read_model
from graphkit.modelfile.external import embedded
from graphkit.modelfile.protos import every_node, to_proto
from graphkit.optimizers.evaluate import open_session
from graphkit.optimizers.known import RANDOM
from graphkit.optimizers.report import Report, measure
from graphkit.upgrade import NEWEST, OLDEST, WORKING, lower_model, upgrade_model

__all__ = ["at_opset", "change_opset"]

# ONNX Runtime 1.31 has kernels for these up to this opset on the CPU; the standard gave them new versions after it.
_LAST_DRAWS: Final = 21
# What is as large as this is not loaded to see whether it can be.
_CHECKED_BELOW: Final = 200_000_000
_DRAWS: Final = frozenset(RANDOM)


@overload
def change_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto: ...


@overload
def change_opset(model: str | os.PathLike[str] | ir.Model, opset: int) -> ir.Model: ...


def change_opset(model: ModelLike, opset: int) -> ir.Model | onnx.ModelProto:
    """Return the model at another ``ai.onnx`` opset, 7 to 26, meaning exactly the same.

    Newer is always possible, but for random draws, which ONNX Runtime's CPU provider has up to opset 21; older where
    that opset can say it: attributes instead of inputs, several nodes instead of one that did not exist yet. Names of
    inputs, outputs and parameters, metadata and initializers are kept, and the IR version is the lowest that serves.
    The model that is given is not changed, and its kind comes back (a path gives an ``onnx_ir.Model``).

    One thing differs: the mask of a Dropout before opset 12, which the standard left open, and which ONNX Runtime makes
    false throughout, is written as the mask of today, which is true throughout.

    Raises ``OperatorError`` that names every node for which the opset has no words, and the lowest opset that serves,
    or says why ONNX Runtime no longer loads the model;
    ``ModelFileError`` for a model older than opset 7; ``PassError`` for an opset that is not 7 to 26.

    >>> import graphkit as gk
    >>> model = gk.trace(lambda x: gk.op.Mish(x), gk.spec("float32", ["n", 3]))
    >>> [node.op_type for node in change_opset(model, 17).graph]
    ['Softplus', 'Tanh', 'Mul']
    """
    result = read_model(model)
    _to_opset(result, opset)
    _check_loads(model, result, opset)
    return give_back(model, result)


def at_opset(
    model: ir.Model, opset: int, *, verify: bool, training: bool, inputs: Mapping[str, np.ndarray[Any, Any]] | None
) -> ir.Model:
    """The model at another opset, and run beside the original: passes then work in the words of that opset."""
    result = model.clone() if verify else model
    _to_opset(result, opset)
    if verify:
        from graphkit.optimizers.verify import settle

        try:
            settle(model, result, [], Report(), training=training, inputs=inputs, strict=True)
        except PassError as error:
            raise PassError(f"at opset {opset} the model would not compute what it does: {error}") from error
    return result


def _to_opset(model: ir.Model, opset: int) -> None:
    if isinstance(opset, bool) or not isinstance(opset, (int, np.integer)):
        raise PassError(f"an opset is a whole number, {OLDEST} to {NEWEST}, not {opset!r}")
    if not OLDEST <= opset <= NEWEST:
        raise PassError(f"opset {opset} was asked for; graphkit writes opsets {OLDEST} to {NEWEST}")
    if opset > _LAST_DRAWS >= model.opset_imports.get("", 1):
        _refuse_draws(model, opset)
    upgrade_model(model, max(opset, WORKING))
    lower_model(model, opset)


def _refuse_draws(model: ir.Model, opset: int) -> None:
    nodes = itertools.chain(every_node(model.graph), *map(every_node, model.functions.values()))
    found = [node for node in nodes if node.domain == "" and node.op_type in _DRAWS]
    if found:
        names = ", ".join(f"'{node.name}' ({node.op_type})" if node.name else node.op_type for node in found[:5])
        raise OperatorError(
            f"at opset {opset} ONNX Runtime's CPU provider draws no random numbers, as {names} "
            f"{'do' if len(found) > 1 else 'does'}; opset {_LAST_DRAWS} serves"
        )


def _check_loads(given: ModelLike, result: ir.Model, opset: int) -> None:
    """Refuse what ONNX Runtime does not load, if it loads what was given: old forms lack kernels for some dtypes."""
    if measure(result).bytes >= _CHECKED_BELOW:
        return
    try:
        open_session(to_proto(embedded(result)).SerializeToString())
    except Exception as error:
        try:
            open_session(to_proto(embedded(borrow_model(given))).SerializeToString())
        except Exception:  # noqa: BLE001 - then what was given is the cause
            return
        reason = str(error).split(" : ", 2)[-1].splitlines()[0]
        raise OperatorError(f"at opset {opset} ONNX Runtime does not load the model: {reason}") from error
