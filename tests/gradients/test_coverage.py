"""Every operator is accounted for, and the page says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx.defs
import pytest

import graphkit as gk
from graphkit.gradients import reason_against, rule_for
from graphkit.gradients.coverage import coverage
from graphkit.gradients.expansion import expands

PAGE = Path(__file__).parents[2] / "docs" / "gradients.md"


def test_every_operator_is_listed_once():
    listed = [(c.op, c.domain) for c in coverage()]
    assert len(listed) == len(set(listed))
    names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    assert names <= {op for op, _ in listed}


def test_nothing_is_refused():
    assert [c.op for c in coverage() if c.how == "refused"] == []


def test_whatever_the_standard_calls_differentiable_is():
    """Hardmax is tagged differentiable, and constant almost everywhere."""
    tag = onnx.defs.OpSchema.DifferentiationCategory.Differentiable
    tagged = {
        s.name
        for s in onnx.defs.get_all_schemas()
        if s.domain == "" and any(i.differentiation_category == tag for i in s.inputs)
    }
    how = {c.op: c for c in coverage() if not c.domain}
    stops = {op for op in tagged if how[op].how == "not differentiable"}
    assert stops <= {"Hardmax"}


def test_a_reason_is_given_wherever_gradients_stop():
    assert all(c.why for c in coverage() if c.how in {"not differentiable", "lowered", "refused"})


@pytest.mark.parametrize(
    ("op", "how"), [("Mul", "rule"), ("ArgMax", "not differentiable"), ("Upsample", "lowered"), ("SwiGLU", "lowered")]
)
def test_how(op, how):
    assert {c.op: c.how for c in gk.gradients.coverage()}[op] == how


def test_the_table_agrees_with_the_list():
    for c in coverage():
        if c.how == "rule":
            assert rule_for(c.op, c.domain) is not None and reason_against(c.op, c.domain) is None
        elif c.how == "expanded":
            assert expands(c.op)


def test_the_page_is_up_to_date():
    # In a process of its own: other tests register rules of theirs.
    page = subprocess.run(
        [sys.executable, "-m", "graphkit.gradients"], cwd=PAGE.parents[1], capture_output=True, check=True
    )
    assert PAGE.read_text() == page.stdout.decode(), "write it again: python -m graphkit.gradients > docs/gradients.md"
