'''What a pass is, and the table of passes.

A pass is one small rewrite. Most are *rules*: a function of one node, the **last** of the nodes it replaces, that
either rewrites and returns ``True``, or returns in words why it does not apply (``optimize(..., explain=...)``
shows them). The pipeline calls a rule only for nodes of its ``anchors``, from a worklist, so the cost is linear. The
few that must see the whole model at once (pruning, common subexpressions) are *sweeps* and return what they did.

To add a pass, write the function and decorate it; nothing else has to know::

    @rule("drop_double_negation", "Neg")
    def double_negation(ctx: Context, node: ir.Node) -> Outcome:
        """Neg of Neg is the value itself.

        Always exact.
        """
'''

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import onnx_ir as ir

from graphkit.errors import PassError, did_you_mean

if TYPE_CHECKING:
    from graphkit.optimizers.context import Context

__all__ = ["PRESETS", "Outcome", "Pass", "passes", "rule", "select", "sweep"]

# True: rewritten. A string: the reason why the rule does not apply.
Outcome: TypeAlias = "Literal[True] | str"
Rule: TypeAlias = "Callable[[Context, ir.Node], Outcome]"
Sweep: TypeAlias = "Callable[[Context], int]"

PRESETS = ("inference", "training", "web", "cuda", "none")
# What pays on the CPU provider pays in training too, which runs there unless somebody says otherwise.
_TRAINS_ON = "inference"


@dataclass(frozen=True, slots=True)
class Pass:
    """One named rewrite.

    ``tolerance`` is the relative difference it may cause (0: none, bit for bit); ``training`` says that it keeps
    parameters, random draws and state as they are, so that it may run on a graph that is being trained; ``targets``
    names the presets that it pays in (none: it runs only where it is asked for by name). The target of ``inference``
    and ``training`` is the runtime's CPU provider, that of ``web`` its WASM build, and that of ``cuda`` its CUDA
    provider.
    """

    name: str
    summary: str
    precondition: str
    tolerance: float
    training: bool
    targets: frozenset[str]
    anchors: tuple[str, ...] = ()
    rewrite: Rule | None = None
    run: Sweep | None = None
    explain: Callable[[Context, ir.Node], str] | None = None

    def in_preset(self, preset: str) -> bool:
        """Whether the pass belongs to ``preset``."""
        if preset == "training":
            return self.training and _TRAINS_ON in self.targets
        return preset in self.targets

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets that the pass belongs to."""
        return tuple(preset for preset in PRESETS if self.in_preset(preset))

    def to_dict(self) -> dict[str, Any]:
        """What the pass says about itself, as JSON holds it."""
        return {
            "name": self.name,
            "summary": self.summary,
            "precondition": self.precondition,
            "tolerance": self.tolerance,
            "training_safe": self.training,
            "presets": list(self.presets),
            "operators": list(self.anchors),
        }


_registry: dict[str, Pass] = {}
_EVERYWHERE = ("inference", "web", "cuda")


def _register(made: Pass) -> None:
    if made.name in _registry:
        raise PassError(f"two passes are called '{made.name}'")
    _registry[made.name] = made


def _texts(function: Callable[..., object]) -> tuple[str, str]:
    summary, _, rest = (function.__doc__ or "").strip().partition("\n\n")
    return " ".join(summary.split()), " ".join(rest.split())


def rule(
    name: str,
    *anchors: str,
    tolerance: float = 0.0,
    training: bool = True,
    targets: tuple[str, ...] = _EVERYWHERE,
) -> Callable[[Rule], Rule]:
    """Register a function as the pass ``name``, called for nodes whose operator is one of ``anchors``."""

    def decorate(function: Rule) -> Rule:
        summary, precondition = _texts(function)
        _register(Pass(name, summary, precondition, tolerance, training, frozenset(targets), anchors, rewrite=function))
        return function

    return decorate


def sweep(
    name: str,
    *,
    tolerance: float = 0.0,
    training: bool = True,
    targets: tuple[str, ...] = _EVERYWHERE,
    explain: Callable[[Context, ir.Node], str] | None = None,
) -> Callable[[Sweep], Sweep]:
    """Register a function of the whole model as the pass ``name``; it returns the number of its rewrites.

    ``explain`` says in words why the pass left a node alone.
    """

    def decorate(function: Sweep) -> Sweep:
        summary, precondition = _texts(function)
        made = Pass(name, summary, precondition, tolerance, training, frozenset(targets), run=function, explain=explain)
        _register(made)
        return function

    return decorate


def passes() -> dict[str, Pass]:
    """Every pass by name, in the order in which the pipeline tries them.

    >>> import graphkit.optimizers
    >>> graphkit.optimizers.passes()["prune"].tolerance
    0.0
    """
    return dict(_registry)


def select(preset: str, chosen: Collection[str] | None, skip: Collection[str]) -> list[Pass]:
    """The passes of ``preset``, or exactly those ``chosen``, without those of ``skip``, in pipeline order."""
    if not isinstance(preset, str):
        raise PassError(f"a preset is the text {' or '.join(map(repr, PRESETS))}, not {preset!r}")
    if preset not in PRESETS:
        raise PassError(
            f"there is no preset '{preset}'.{did_you_mean(preset, PRESETS)} The presets are {', '.join(PRESETS)}"
        )
    for group, names in (("passes", chosen or ()), ("skip", skip)):
        if isinstance(names, str):
            raise PassError(f"{group} is a list of names of passes, not the text {names!r}")
        for name in names:
            if name not in _registry:
                raise PassError(
                    f"there is no pass '{name}' (in {group}).{did_you_mean(name, _registry)} "
                    f"The passes are {', '.join(_registry)}"
                )
    return [
        made
        for made in _registry.values()
        if made.name not in skip and (made.in_preset(preset) if chosen is None else made.name in chosen)
    ]
