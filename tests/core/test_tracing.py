"""Traces: what becomes part of the graph, what is refused and at which line; names, dims and opsets of files."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphkit as gk
from graphkit.errors import OperatorError, TraceError
from graphkit.optimizers import add_gradients
from graphkit.runtime import run

F = np.float32
SPEC = gk.spec("float32", ["n", 3])


def line_of(f: Callable[..., Any], text: str) -> int:
    """The line of this file where ``text`` stands in the source of f."""
    lines, first = inspect.getsourcelines(f)
    return first + next(n for n, line in enumerate(lines) if text in line)


# Python values


def value_of_a_branch(x: Any) -> Any:
    if x.sum() > 0:  # refused
        return x
    return -x


def value_of_a_loop(x: Any) -> Any:
    total = x[0]
    for t in range(x.shape[0]):  # refused
        total = total + x[t]
    return total


REFUSED: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: x * float(x.sum()),
    "int": lambda x: x * int(x.shape[0]),
    "item": lambda x: x.sum().item() + x,
    "numpy": lambda x: x.numpy() + x,
    "asarray": lambda x: np.asarray(x) + x,
    "tolist": lambda x: x * x[0].tolist(),
    "len": lambda x: x * len(x),
    "iteration": lambda x: sum(row for row in x),
    "size": lambda x: x * x.size,
    "equality of a dimension": lambda x: x if x.shape[0] == 1 else -x,
    "inequality of a dimension": lambda x: x if x.shape[0] != 1 else -x,
    "order of a dimension": lambda x: x if x.shape[0] > 1 else -x,
    "membership": lambda x: x if x.shape[0] in (1, 2) else -x,
    "truth of a dimension": lambda x: x if x.shape[0] else -x,
    "max of two": lambda x: max(x.sum(), x.mean()),
    "shape of a numpy array": lambda x: x + np.zeros(x.shape, F),
    "Python's range": lambda x: x * list(range(x.shape[0])),
    "tensor of a shape": lambda x: x * gk.tensor(x.shape[0]),
    "shape into gk.tensor": lambda x: x * gk.tensor([x.shape[0], 1, 1]),
    "parity": lambda x: x if x.shape[0] % 2 == 0 else -x,
    "and": lambda x: x if (x > 0) and (x < 1) else -x,
    "a static attribute": lambda x: gk.op.TopK(x, gk.tensor([1]), axis=x.shape[0]),
    "numpy's own loops": lambda x: x * np.linspace(0, 1, x.shape[0]).sum(),
    "unnamed equal to unnamed": lambda x: x if x[x[:, 0] > 0].shape[0] == x[x[:, 1] > 0].shape[0] else -x,
}  # fmt: skip


@pytest.mark.parametrize("f", [*REFUSED.values(), value_of_a_branch, value_of_a_loop], ids=[*REFUSED, "branch", "loop"])
def test_a_python_value_of_a_traced_tensor_is_refused_at_its_line(f: Callable[[Any], Any]) -> None:
    with pytest.raises((TraceError, OperatorError)) as caught:
        gk.trace(f, SPEC)
    assert isinstance(caught.value, TraceError), caught.value
    line = line_of(f, "# refused") if f.__name__ != "<lambda>" else f.__code__.co_firstlineno
    assert f"test_tracing.py:{line}" in str(caught.value)


def test_a_dimension_equals_itself_and_static_ones_are_integers() -> None:
    def f(x: Any, y: Any) -> Any:
        assert x.shape[0] == y.shape[0]  # the same name
        assert x.shape[1] == 3
        assert isinstance(x.shape[1], int)
        assert x.shape[1:] == (3,)
        assert f"{x.shape}" == "(n, 3)"
        return x + y

    gk.trace(f, SPEC, SPEC)


DYNAMIC: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "reshape to the batch": (lambda x: x.reshape(x.shape[0], -1), lambda a: a.reshape(len(a), -1)),
    "two dims in one": (lambda x: x.reshape(x.shape[0] * x.shape[1]), lambda a: a.ravel()),
    "a dimension as a number": (lambda x: x / x.shape[0], lambda a: a / F(len(a))),
    "reversed arithmetic": (lambda x: (10 - x.shape[0]) + 2 * x.shape[0] + x, lambda a: 10 + len(a) + a),
    "floor division and remainder": (lambda x: x[: x.shape[0] // 2] * (x.shape[0] % 4),
        lambda a: a[: len(a) // 2] * (len(a) % 4)),
    "true division": (lambda x: x * (x.shape[0] / 2), lambda a: a * F(len(a) / 2)),
    "a power": (lambda x: x * x.shape[0] ** 2, lambda a: a * len(a) ** 2),
    "zeros": (lambda x: gk.array.zeros((x.shape[0], 2)), lambda a: np.zeros((len(a), 2), F)),
    "mean": (lambda x: x.mean(0), lambda a: a.mean(0)),
    "eye": (lambda x: gk.array.eye(x.shape[0], k=1), lambda a: np.eye(len(a), k=1, dtype=F)),
    "flatten": (lambda x: x[None].flatten(1), lambda a: a.reshape(1, -1)),
    "stacked dims": (lambda x: gk.op.Expand(x[:1], [x.shape[0] + 1, 3]), lambda a: np.repeat(a[:1], len(a) + 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_what_depends_on_a_dimension_is_recorded(name: str) -> None:
    f, expected = DYNAMIC[name]
    model = gk.trace(f, SPEC)
    for n in (1, 2, 5):
        a = np.arange(3 * n, dtype=F).reshape(n, 3)
        (got,) = run(model, {"x": a}).values()
        np.testing.assert_allclose(got, expected(a), rtol=1e-6)


NAMED_DIMS = [
    (lambda x: x.reshape(x.shape[0], -1), ["batch", 2, 3], "[batch,6]"),
    (lambda x: gk.op.MatMul(x, np.zeros((3, 5), F)), ["batch", "time", 3], "[batch,time,5]"),
    (lambda x: x.sum(1), ["batch", "time", 3], "[batch,3]"),
    (lambda x: gk.op.Conv(x, np.zeros((4, 3, 3, 3), F), pads=[1, 1, 1, 1]), ["batch", 3, 8, 8], "[batch,4,8,8]"),
    (lambda x: gk.op.Softmax(x.transpose(1, 0)), ["a", "b"], "[b,a]"),
    (lambda x: x.reshape(x.shape[0] * 1, x.shape[1]), ["a", "b"], "[a,b]"),
    (lambda x: x[:, None] + x, ["a", 3], "[a,a,3]"),
    (lambda x: gk.op.Concat(x, x, axis=1), ["a", 3], "[a,6]"),
    (lambda x: gk.array.zeros((x.shape[1], x.shape[0])), ["a", "b"], "[b,a]"),
    (lambda x: x.unsqueeze(0).squeeze(0), ["a", "b"], "[a,b]"),
    (lambda x: gk.grad(lambda y: (y * y).sum())(x), ["a", "b"], "[a,b]"),
]  # fmt: skip


@pytest.mark.parametrize(("f", "dims", "expected"), NAMED_DIMS)
def test_every_symbolic_dim_survives(f: Callable[[Any], Any], dims: list[Any], expected: str) -> None:
    model = gk.trace(f, gk.spec("float32", dims))
    assert str(model.graph.inputs[0].shape) == "[" + ",".join(map(str, dims)) + "]"
    assert str(model.graph.outputs[0].shape) == expected


def test_unknown_dims_of_two_origins_are_not_equal() -> None:
    def f(x: Any) -> Any:
        a, b = x[x[:, 0] > 0], x[x[:, 1] > 0]
        assert gk.dims.same(a.dims[0], a.dims[0]) is True
        assert gk.dims.same(a.dims[0], b.dims[0]) is None
        return gk.op.Concat(a, b, axis=0)

    model = gk.trace(f, SPEC)
    assert str(model.graph.outputs[0].shape) == "[None,3]"


# Constants, draws, leaks


def test_constants_are_baked_by_value_when_the_trace_is_made() -> None:
    table = np.array([1.0, 2.0, 3.0], F)
    model = gk.trace(lambda x: x + gk.tensor(table) + [1.0, 1.0, 1.0], SPEC)
    table[:] = 100
    (got,) = run(model, {"x": np.zeros((1, 3), F)}).values()
    assert got.tolist() == [[2.0, 3.0, 4.0]]


def test_random_operators_are_nodes_that_draw_at_every_run() -> None:
    model = gk.trace(lambda x: x + gk.op.RandomNormal(shape=[3]), SPEC)
    assert [n.op_type for n in model.graph] == ["RandomNormal", "Add"]
    from graphkit.runtime import Session

    session = Session(model)
    first, second = (next(iter(session.run({"x": np.zeros((1, 3), F)}).values())) for _ in range(2))
    assert first.tolist() != second.tolist()


def test_two_draws_stay_two() -> None:
    model = gk.trace(lambda x: gk.op.RandomNormal(shape=[3]) - gk.op.RandomNormal(shape=[3]) + x, SPEC)
    assert [n.op_type for n in model.graph].count("RandomNormal") == 2


def test_a_leaked_tensor_is_refused_wherever_it_is_used() -> None:
    kept: list[Any] = []
    gk.trace(lambda x: kept.append(x) or x * 2, SPEC)
    (leaked,) = kept
    with pytest.raises(
        TraceError, match=r"Add at .*test_tracing.py:\d+ got a tensor of a trace that is over.*Return it"
    ):
        leaked + 1
    with pytest.raises(TraceError, match=r"a tensor of another trace \(x\) is used at .*test_tracing.py"):
        gk.trace(lambda y: y + leaked, SPEC)
    with pytest.raises(TraceError, match="another trace"):
        gk.trace(lambda y: leaked, SPEC)
    with pytest.raises(TraceError, match="which is only known"):
        leaked.numpy()


def test_a_trace_inside_a_trace_cannot_use_the_outer_ones_tensors() -> None:
    with pytest.raises(TraceError, match="another trace"):
        gk.trace(lambda x: gk.trace(lambda y: y + x, SPEC) and x, SPEC)
    assert gk.tensor(1.0).traced is False  # and the interpreter is Eager again


def test_an_error_in_a_trace_leaves_eager_current() -> None:
    with pytest.raises(ZeroDivisionError):
        gk.trace(lambda x: 1 // 0, SPEC)
    assert (gk.tensor(1.0) + 1.0).item() == 2.0


# Outputs


def names_of(values: Any) -> list[str]:
    return [v.name for v in values]


def test_inputs_constants_and_repeats_can_be_outputs() -> None:
    weight = gk.tensor([5.0], name="weight")

    def f(x: Any) -> Any:
        y = x * 2.0
        return x, x, y, y, weight, 3.0

    model = gk.trace(f, gk.spec("float32", [1]))
    assert names_of(model.graph.inputs) == ["x"]
    outputs = names_of(model.graph.outputs)
    assert outputs == ["output", *(f"output_{n}" for n in range(1, 6))]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    got = run(model, {"x": np.array([1], F)})
    assert [float(np.ravel(v)[0]) for v in got.values()] == [1.0, 1.0, 2.0, 2.0, 5.0, 3.0]


def test_outputs_take_the_names_of_a_dict_or_those_that_are_given() -> None:
    model = gk.trace(lambda x: {"relu": gk.op.Exp(gk.op.Relu(x)), "mul": x * x, "total": x.sum()}, SPEC)
    assert names_of(model.graph.outputs) == ["relu", "mul", "total"]  # although nodes' values are called so too
    model = gk.trace(lambda x: gk.op.Relu(gk.op.Add(x, x)), SPEC, output_names=["add"])
    assert names_of(model.graph.outputs) == ["add"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    got = run(model, {"x": np.ones((1, 3), F)})
    assert got["add"].tolist() == [[2.0] * 3]


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: gk.trace(lambda x: (x, x), SPEC, output_names=["y"]), "returns 2 tensors, 1 names were given"),
        (lambda: gk.trace(lambda x: (x, x * 1.0), SPEC, output_names=["y", "y"]), "two outputs are called 'y'"),
        (lambda: gk.trace(lambda x: x * 1.0, SPEC, output_names=["x"]), "'x' names an output and an input"),
        (lambda: gk.trace(lambda x: x, SPEC, input_names=["a", "b"]), "1 inputs were described and 2 named"),
        (lambda: gk.trace(lambda x, y: x + y, SPEC, SPEC, input_names=["a", "a"]), "two inputs are called 'a'"),
        (lambda: gk.trace(lambda x: None, SPEC), "returned nothing"),
        (lambda: gk.trace(lambda x: x, "float32"), "argument 'x' is described by a str"),
        (lambda: gk.trace(lambda x: x.assign(1.0) or x, SPEC), "assign.. .*parameters and buffers"),
    ],
)
def test_what_cannot_be_traced_says_why(attempt: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        attempt()
    assert "test_tracing.py:" in str(caught.value)


@pytest.mark.parametrize("dim", [-1, True, 1.5, "", "?0"])
def test_a_spec_takes_integers_and_names(dim: Any) -> None:
    with pytest.raises(TypeError, match=r"a dimension is an integer.*test_tracing.py"):
        gk.spec("float32", [dim, 3])


def test_one_dimension_needs_no_list() -> None:
    assert gk.spec("float32", "batch").shape == ("batch",)
    assert gk.spec("float32", 3).shape == (3,)


def test_arguments_name_the_inputs() -> None:
    def f(image: Any, *rest: Any) -> Any:
        return image + rest[0] + rest[1]

    assert names_of(gk.trace(f, SPEC, SPEC, SPEC).graph.inputs) == ["image", "rest_0", "rest_1"]
    assert names_of(gk.trace(f, SPEC, gk.spec("float32", [3], name="bias"), SPEC).graph.inputs) == [
        "image",
        "bias",
        "rest_1",
    ]
    tree = gk.trace(lambda state: state["a"] + state["b"], {"a": SPEC, "b": SPEC})
    assert names_of(tree.graph.inputs) == ["state_0", "state_1"]
    example = gk.trace(lambda x: x, np.zeros((2, 3), np.float64))
    assert (str(example.graph.inputs[0].shape), example.graph.inputs[0].dtype) == ("[2,3]", ir.DataType.DOUBLE)


# Parameters


class Tied:
    """What a module looks like to a trace."""

    def __init__(self) -> None:
        self.first = gk.tensor(np.ones((3, 3), F), requires_grad=True)
        self.second = gk.tensor(np.ones((3, 3), F), requires_grad=True)
        self.matmul = gk.tensor(np.ones((3, 3), F), requires_grad=True)

    def named_tensors(self) -> Any:
        return [("layer.first", self.first), ("layer.second", self.second), ("matmul", self.matmul)]

    def __call__(self, x: Any) -> Any:
        return (x @ self.first @ self.second @ self.first.T) @ self.matmul


def test_attribute_paths_name_parameters_equal_ones_stay_two_a_shared_one_stays_one() -> None:
    model = gk.trace(Tied(), SPEC)
    assert sorted(model.graph.initializers) == ["layer.first", "layer.second", "matmul"]
    assert names_of(model.graph.inputs) == ["x"]
    with_gradients = add_gradients(
        gk.trace(lambda x: Tied()(x).sum(), SPEC, output_names=["loss"]), of="loss", wrt=["x"]
    )
    onnx.checker.check_model(ir.to_proto(with_gradients), full_check=True)


FIRST, SECOND = Tied(), Tied()


def loss_of(module: Any, x: Any) -> Any:
    return module(x).sum()


def test_a_function_that_uses_a_module_keeps_its_names() -> None:
    module = Tied()
    expected = ["layer.first", "layer.second", "matmul"]
    for f in (lambda x: module(x).sum(), module.__call__, functools.partial(module), gk.checkpoint(lambda x: module(x)),
              lambda x: loss_of(FIRST, x), functools.partial(loss_of, FIRST)):  # fmt: skip
        model = gk.trace(f, SPEC, input_names=["x"])
        assert sorted(n for n in model.graph.initializers if not n.startswith("constant")) == expected
    both = gk.trace(lambda x: FIRST(x) + SECOND(x), SPEC)
    assert sorted(both.graph.initializers) == [f"{m}.{n}" for m in ("FIRST", "SECOND") for n in expected]


def test_a_tensors_own_name_and_equal_names() -> None:
    a, b = (gk.tensor(np.ones(3, F), name="scale") for _ in range(2))
    model = gk.trace(lambda x: x * a + b * a, SPEC)
    assert sorted(model.graph.initializers) == ["scale", "scale_1"]


def test_equal_python_numbers_share_a_constant_and_strings_are_told_apart() -> None:
    model = gk.trace(lambda x: x * 2.0 + 2.0, SPEC)
    assert len(model.graph.initializers) == 1
    model = gk.trace(
        lambda x: {"a": gk.op.StringConcat(x, ["left"]), "b": gk.op.StringConcat(x, ["right"])}, gk.spec("string", [1])
    )
    got = run(model, {"x": np.array(["-"], object)})
    assert [v.tolist() for v in got.values()] == [["-left"], ["-right"]]


def test_zeros_of_both_signs_stay_apart() -> None:
    model = gk.trace(lambda x: {"a": x * 0.0, "b": x * -0.0}, gk.spec("float32", [1]))
    got = run(model, {"x": np.array([1], F)}, optimizations=False)
    assert np.signbit(got["b"]).tolist() == [True]
    assert np.signbit(got["a"]).tolist() == [False]


# Opsets and IR versions


def opset_of(model: ir.Model) -> int | None:
    return model.opset_imports.get("")


def test_the_opset_is_21_and_rises_only_when_an_operator_needs_it() -> None:
    assert opset_of(gk.trace(gk.op.Relu, SPEC)) == 21
    newer = gk.trace(lambda x: gk.op.RMSNormalization(x, np.ones(3, F)), SPEC)
    assert opset_of(newer) == 23
    assert opset_of(gk.trace(lambda x: gk.op.Cast(x, to="float16", saturate=1), SPEC)) == 21


@pytest.mark.parametrize("opset", [7, 13, 20, 21, 22, 24, 26])
def test_an_opset_that_was_asked_for_is_kept(opset: int) -> None:
    model = gk.trace(gk.op.Relu, SPEC, opset=opset)
    assert opset_of(model) == opset
    assert names_of(model.graph.inputs) == ["X"]  # what the operator calls it
    run(model, {"X": np.ones((1, 3), F)})


def test_an_operator_that_the_opset_lacks_is_refused_at_its_line() -> None:
    with pytest.raises(OperatorError, match=r"^Erf at .*test_tracing.py:\d+ .* needs opset 9, and opset 8 was"):
        gk.trace(lambda x: gk.op.Erf(x), SPEC, opset=8)


@pytest.mark.parametrize(("opset", "ir_version"), [(9, 4), (15, 8), (21, 10), (23, 11), (24, 12), (25, 13), (26, 13)])
def test_the_ir_version_is_the_lowest_that_serves(opset: int, ir_version: int) -> None:
    assert gk.trace(gk.op.Relu, SPEC, opset=opset).ir_version == ir_version


@pytest.mark.parametrize("opset", [6, 27, 99])
def test_opsets_that_graphkit_does_not_write(opset: int) -> None:
    with pytest.raises(TraceError, match=f"opset {opset}.*7 to 26"):
        gk.trace(gk.op.Relu, SPEC, opset=opset)


# Shapes that do not fit

MISFITS = [
    (lambda x: x + np.ones(4, F), r"Add\(float32\[n, 3\], float32\[4\]\) at .*: the shapes do not broadcast"),
    (lambda x: x @ np.ones((4, 2), F), "MatMul.*inner dimensions"),
    (lambda x: gk.op.Gemm(x, np.ones((4, 2), F), transB=1), "Gemm.*inner dimensions"),
    (lambda x: gk.op.Conv(x, np.ones((1, 1, 3), F)), "Conv"),
    (lambda x: gk.op.Concat(x, np.ones((2, 4), F), axis=0), "Concat"),
    (lambda x: gk.op.Softmax(x, axis=2), "Softmax.*axis 2 is not one of a tensor of rank 2"),
    (lambda x: x.transpose(0, 1, 2), "Transpose.*perm"),
    (lambda x: gk.op.Where(x > 0, x, np.ones((5, 2), F)), "Where.*do not broadcast"),
    (lambda x: x.unsqueeze(7), "Unsqueeze"),
]  # fmt: skip


@pytest.mark.parametrize(("f", "message"), MISFITS)
def test_shapes_that_cannot_go_together_are_refused_while_tracing(f: Any, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        gk.trace(f, SPEC)
    assert f"test_tracing.py:{f.__code__.co_firstlineno}" in str(caught.value)
