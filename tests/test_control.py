"""cond, while_loop, scan: eager and traced results, trees, and errors that name the user's line."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import OperatorError, TraceError
from graphkit.runtime import run

X = np.array([1.0, -2.0, 3.0], dtype=np.float32)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def collatz(n):
    def step(state):
        value, count = state
        even = value % 2 == 0
        return gk.cond(even, lambda: value // 2, lambda: value * 3 + 1), count + 1

    return gk.while_loop(lambda s: s[0] != 1, step, (n, gk.tensor(0)))[1]


def running(xs):
    def step(carry, x):
        return {"sum": carry["sum"] + x, "count": carry["count"] + 1}, (carry["sum"] * 2, x)

    last, (twice, same) = gk.scan(step, {"sum": gk.tensor(X), "count": gk.tensor(0)}, xs)
    return last["sum"], last["count"], twice, same


CASES = {
    "cond true": (lambda x: gk.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, x), [X]),
    "cond false": (lambda x: gk.cond(x.sum() < 0, lambda a: a * 2, lambda a: a - 1, x), [X]),
    "cond of an outer value": (lambda x: gk.cond(x.sum() > 0, lambda: x, lambda: gk.tensor(X) + x), [X]),
    "cond of a tree": (
        lambda x: gk.cond(x.sum() > 0, lambda d: {"b": d["a"], "c": x}, lambda d: {"b": x, "c": x}, {"a": x * 3})["b"],
        [X],
    ),
    "cond of other shapes": (lambda x: gk.cond(x.sum() > 9, lambda: x, lambda: gk.op.Concat(x, x, axis=0)), [X]),
    "cond of a Python bool": (lambda x: gk.cond(True, lambda: x, lambda: 1 / 0), [X]),
    "nested while and cond": (collatz, [np.array(6)]),
    "while, no turn": (lambda x: gk.while_loop(lambda s: s.sum() > 100, lambda s: s * 2, x), [X]),
    "scan of trees": (running, [ROWS]),
    "scan from behind": (lambda xs: gk.scan(lambda c, x: (c + x, c), gk.tensor(X), xs, reverse=True)[1], [ROWS]),
    "scan without results": (lambda xs: gk.scan(lambda c, x: (c + x, None), gk.tensor(X), xs)[0], [ROWS]),
    "scan without elements": (lambda x: gk.scan(lambda c, _: (c * 2, c), x, None, length=3)[1], [X]),
    "scan of several": (
        lambda a, b: gk.scan(lambda c, x: (c + x["a"] * x["b"], c), gk.tensor(X), {"a": a, "b": b})[1],
        [ROWS, ROWS + 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_traced_as_eager(name, symbolic):
    f, inputs = CASES[name]
    eager = f(*[gk.tensor(a) for a in inputs])
    shapes = [[f"n{n}" if symbolic and a.ndim == 2 and d == 0 else e for d, e in enumerate(a.shape)]
              for n, a in enumerate(inputs)]  # fmt: skip
    model = gk.trace(f, *[gk.spec(a.dtype, s) for a, s in zip(inputs, shapes, strict=True)])
    names = [i.name for i in model.graph.inputs]
    got = list(run(model, dict(zip(names, inputs, strict=True)), optimizations=False).values())
    for mine, theirs in zip(got, eager if isinstance(eager, tuple) else (eager,), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


def test_traced_ops():
    model = gk.trace(running, gk.spec("float32", ["n", 3]))
    assert [n.op_type for n in model.graph if n.op_type in ("If", "Loop", "Scan")] == ["Scan"]
    assert str(model.graph.outputs[2].shape) == "[n,3]"


def test_scan_of_no_elements_in_a_trace():
    model = gk.trace(lambda xs: gk.scan(lambda c, x: (c + x, c), gk.tensor(X), xs), gk.spec("float32", [0, 3]))
    last, stacked = run(model, {"xs": ROWS[:0]}, optimizations=False).values()
    np.testing.assert_array_equal(last, X)
    assert stacked.shape == (0, 3)


WRONG = {
    "structures": (lambda x: gk.cond(x.sum() > 0, lambda: (x, x), lambda: x), "different structures"),
    "dtypes": (
        lambda x: gk.cond(x.sum() > 0, lambda: x, lambda: x.astype("float64")),
        "float32, the false one float64",
    ),
    "not a bool": (lambda x: gk.cond(x.sum(), lambda: x, lambda: x), "the condition is float32"),
    "not one element": (lambda x: gk.cond(x > 0, lambda: x, lambda: x), "reduce it to one element"),
    "carry's dtype": (lambda x: gk.scan(lambda c, e: (c.astype("float64"), c), x, x)[0], "next carry float64"),
    "carry's structure": (lambda x: gk.scan(lambda c, e: ((c, c), c), x, x)[0], "different structures"),
    "no pair": (lambda x: gk.scan(lambda c, e: c, x, x)[0], "returns a pair"),
    "while's dtype": (lambda x: gk.while_loop(lambda s: s.sum() > 0, lambda s: s.astype("int64"), x), "int64"),
    "no length": (lambda x: gk.scan(lambda c, e: (c, c), x, None)[0], "say length=n"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_line(name):
    f, message = WRONG[name]
    with pytest.raises(OperatorError, match=message) as caught:
        gk.trace(f, gk.spec("float32", [3]))
    assert "test_control.py:" in str(caught.value)


def test_a_python_branch_is_refused():
    with pytest.raises(TraceError, match=r"gk\.cond"):
        gk.trace(lambda x: x if x.sum() > 0 else -x, gk.spec("float32", [3]))
