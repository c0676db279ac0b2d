"""Nothing passes through by accident: the table against the standard's own history of its operators."""

from __future__ import annotations

import itertools
from collections import defaultdict

import onnx.defs
import pytest

import graphkit.upgrade  # noqa: F401 (fills the table)
from graphkit.upgrade.adapters import ADAPTERS
from graphkit.upgrade.compatible import MORE_OPTIONS, MORE_TYPES


def history() -> dict[str, list[onnx.defs.OpSchema]]:
    """For each operator the forms that a model of opset 7 to 26 can use, oldest first."""
    found = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].append(schema)
    for name, schemas in found.items():
        schemas.sort(key=lambda schema: schema.since_version)
        oldest = max((s.since_version for s in schemas if s.since_version <= 7), default=0)
        found[name] = [s for s in schemas if oldest <= s.since_version <= 26]
    return found


CHANGES = [(name, old, new) for name, forms in history().items() for old, new in itertools.pairwise(forms)]


def test_every_change_is_rewritten_or_declared_compatible():
    changed = {(name, new.since_version) for name, _, new in CHANGES}
    assert len(changed) > 300
    handled = ADAPTERS.keys() | MORE_TYPES | MORE_OPTIONS
    assert sorted(changed - handled) == []
    assert sorted(handled - changed) == []


def test_each_is_handled_once():
    assert not MORE_TYPES & MORE_OPTIONS
    assert not ADAPTERS.keys() & (MORE_TYPES | MORE_OPTIONS)


@pytest.mark.parametrize(
    ("name", "old", "new"), [pytest.param(n, a, b, id=f"{n}-{b.since_version}") for n, a, b in CHANGES]
)
def test_what_is_declared_compatible_reads_old_nodes(name: str, old: onnx.defs.OpSchema, new: onnx.defs.OpSchema):
    if (name, new.since_version) in ADAPTERS:
        return
    assert not new.deprecated
    for attribute, was in old.attributes.items():
        now = new.attributes[attribute]
        assert now.type == was.type
        assert now.default_value.SerializeToString() == was.default_value.SerializeToString(), attribute
        assert was.required or not now.required, attribute
    added = [new.attributes[attribute] for attribute in new.attributes.keys() - old.attributes.keys()]
    assert not any(attribute.required for attribute in added)
    assert bool(added or len(new.inputs) > len(old.inputs) or len(new.outputs) > len(old.outputs)) <= (
        (name, new.since_version) in MORE_OPTIONS
    )
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for was_formal, now_formal in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        assert all(now.option in {was.option, optional} for was, now in zip(was_formal, now_formal, strict=False))
        assert all(formal.option == optional for formal in now_formal[len(was_formal) :])
    if name != "Erf":  # its integers went, see compatible.py
        for was_formal, now_formal in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
            for was, now in zip(was_formal, now_formal, strict=False):
                assert was.types <= now.types, was.name
