"""What the tests before this one add up to."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def whole(request):
    """How many cases of this folder were collected."""
    cases = sum(item.path.parent.name == "gradients" for item in request.session.items)
    if cases < 2000:
        pytest.skip("only part of this folder was run")
    return cases


def test_how_many_operators_are_checked(suite, whole):
    assert whole >= 600
    assert len(suite.checked[2]) >= 60, sorted(suite.checked[2])


def test_every_operator_is_differentiated_as_a_file_too(suite):
    """An operator of the traces that no file had would be one whose loaded gradient nobody compared."""
    assert suite.files >= 100
    assert suite.checked[1] | suite.checked[2] <= suite.operators
