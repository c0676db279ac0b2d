"""check_gradients: is a function's gradient right, eagerly and as a graph, against differences in float64?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit import dtypes, transforms, tree
from graphkit.autograd import no_grad
from graphkit.core import Array, Tensor, as_tensor
from graphkit.gradients.shapes import ones_like, zeros_like
from graphkit.tracing import Spec, trace

Function = Callable[..., Any]


def check_gradients(
    f: Function,
    inputs: Sequence[Any],
    *,
    wrt: Sequence[int] | None = None,
    order: int = 1,
    symbolic: bool | Sequence[Sequence[str | int] | None] = True,
    numeric: bool = True,
    float32: bool = True,
    tolerance: tuple[float, float] = (1e-4, 1e-5),
    step: float = 1e-5,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless f's gradient agrees every way it can be computed.

    The gradient is that of ``sum(c * y)`` over every floating output y, with fixed random weights c:

    - in float64, eagerly, against central differences;
    - in float32, eagerly, against float64;
    - in float32 as a traced graph, with static dims and with symbolic ones, run by ONNX Runtime with its own
      optimizations off, against the eager float32;
    - with ``order=2``, the gradient of the gradient likewise; and, in float64, jvp against central differences and
      against the derivative of the pullback at a cotangent of 0.

    Args:
        f: takes Tensors, returns a Tensor or a tree of them.
        inputs: arrays; the floating ones are cast as needed.
        wrt: which inputs to differentiate, by default all floating ones.
        order: 1 or 2.
        symbolic: whether the graph with symbolic dims is tried too; or, for each input, its dims.
        numeric: whether to take differences (not where f is not smooth enough for them).
        float32: whether to compute in float32 and trace at all (operators without such kernels).
        tolerance: relative and absolute, of float32 against float64; differences use ten times as much in float64.
        step: of the central differences.
        seed: of the weights.

    >>> import graphkit as gk
    >>> check_gradients(lambda x: gk.op.Tanh(x), [np.array([0.5, -1.0])], order=2)
    """
    arrays = [np.asarray(i) for i in inputs]
    chosen = list(wrt) if wrt is not None else [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
    loss = _weighted(f, seed)
    for _ in range(order - 1):
        loss = _with_squares(_weighted(transforms.grad(loss, chosen), seed + 1))
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    exact = _eager(loss, wide, chosen)
    if numeric:
        for n, got in zip(chosen, exact, strict=True):
            expected = differences(loss, wide, n, step)
            _agree(got, expected, (1e-5, 1e-6), f"input {n}: float64 gradient against central differences")
    if order > 1:
        _check_along(f, wide, chosen, step if numeric else None)
    if not float32:
        return
    narrow = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]
    single = _eager(loss, narrow, chosen)
    for n, got, expected in zip(chosen, single, exact, strict=True):
        _agree(got, expected, tolerance, f"input {n}: float32 gradient against float64")
    layouts: list[Sequence[Sequence[str | int] | None]] = [[None] * len(arrays)]
    if symbolic is not False:
        layouts.append(
            [[f"d{n}_{axis}" for axis in range(a.ndim)] for n, a in enumerate(arrays)] if symbolic is True else symbolic
        )
    for layout in layouts:
        how = "static" if layout[0] is None else "symbolic"
        for n, got, expected in zip(chosen, _graph(loss, narrow, chosen, layout), single, strict=True):
            _agree(got, expected, (1e-5, 1e-6), f"input {n}: {how} graph against eager")


def _weighted(f: Function, seed: int) -> Function:
    def loss(*args: Tensor) -> Tensor:
        total: Tensor | None = None
        for n, y in enumerate(tree.flatten(f(*args))[0]):
            if not isinstance(y, Tensor) or not dtypes.is_float(y.dtype):
                continue
            part = _wave(y, seed + n).sum()
            total = part if total is None else total + part
        assert total is not None, "the function returns no floating tensor"
        return total

    return loss


def _with_squares(loss: Function) -> Function:
    """The loss plus half the sum of squares: the gradient of a piecewise linear function depends on nothing else."""

    def total(*args: Tensor) -> Tensor:
        result: Tensor = loss(*args)
        for t in args:
            if dtypes.is_float(t.dtype):
                result = result + (t * t).sum() * 0.5
        return result

    return total


def _wave(y: Tensor, seed: int) -> Tensor:
    """y times weights that differ from element to element, whatever its shape: 1 + cos(position + seed) / 2."""
    from graphkit.interpreter import apply1
    from graphkit.methods import constant_ints

    size = apply1("Size", y)
    zero, one = as_tensor(np.int64(0)), as_tensor(np.int64(1))
    positions = apply1("Range", zero, size, one).astype("float64" if y.dtype == dtypes.FLOAT64 else "float32")
    weights = apply1("Cos", positions + float(seed)) * 0.5 + 1.0
    shape = constant_ints([]) if y.rank == 0 else apply1("Shape", y)
    return y * apply1("Reshape", weights, shape, allowzero=1).astype(y.dtype)


def _check_along(f: Function, arrays: Sequence[Array], wrt: Sequence[int], step: float | None) -> None:
    """jvp along one direction, against differences and as the derivative of the pullback at a cotangent of 0."""

    def outputs(*moved: Tensor) -> list[Tensor]:
        args = [as_tensor(a) for a in arrays]
        for n, t in zip(wrt, moved, strict=True):
            args[n] = t
        return [y for y in tree.flatten(f(*args))[0] if isinstance(y, Tensor) and dtypes.is_float(y.dtype)]

    base = [arrays[n] for n in wrt]
    direction = [np.cos(np.arange(a.size) + n).reshape(a.shape) for n, a in enumerate(base)]
    primals, tangents = [as_tensor(a) for a in base], [as_tensor(a) for a in direction]
    values, along = transforms.jvp(outputs, primals, tangents)

    def pulled(*cotangents: Tensor) -> Tensor:
        found = transforms.vjp(outputs, *primals)[1](list(cotangents))
        total: Tensor = (found[0] * tangents[0]).sum()
        for g, v in zip(found[1:], tangents[1:], strict=True):
            total = total + (g * v).sum()
        return total

    total, pull = transforms.vjp(pulled, *[zeros_like(y) for y in values])
    for n, (got, expected) in enumerate(zip(pull(ones_like(total)), along, strict=True)):
        what = f"output {n}: the pullback's derivative at a cotangent of 0 against the jvp"
        _agree(got.numpy(), expected.numpy(), (1e-6, 1e-7), what)
    if step is None:
        return
    with no_grad():
        ends = [
            outputs(*[as_tensor(a + sign * step * d) for a, d in zip(base, direction, strict=True)]) for sign in (1, -1)
        ]
    for n, (got, after, before) in enumerate(zip(along, *ends, strict=True)):
        expected = (after.numpy() - before.numpy()) / (2 * step)
        _agree(got.numpy(), expected, (1e-5, 1e-6), f"output {n}: float64 jvp against central differences")


def _eager(loss: Function, arrays: Sequence[Array], wrt: Sequence[int]) -> list[Array]:
    found = transforms.grad(loss, wrt)(*[as_tensor(a) for a in arrays])
    return [g.numpy() for g in found]


def _graph(
    loss: Function, arrays: Sequence[Array], wrt: Sequence[int], layout: Sequence[Sequence[str | int] | None]
) -> list[Array]:
    from graphkit.runtime import run

    specs = [
        Spec(dtypes.STRING if a.dtype.kind in "US" else a.dtype, tuple(a.shape if dims is None else dims))
        for a, dims in zip(arrays, layout, strict=True)
    ]
    names = [f"x{n}" for n in range(len(arrays))]
    model = trace(transforms.grad(loss, wrt), *specs, input_names=names)
    results = run(model, dict(zip(names, arrays, strict=True)), optimizations=False)
    return list(results.values())


def differences(loss: Function, arrays: Sequence[Array], n: int, step: float = 1e-5) -> Array:
    """Central differences of a scalar function with respect to input ``n``, in float64."""
    base = [np.array(a) for a in arrays]
    result = np.zeros(base[n].shape)
    with no_grad():
        for place in np.ndindex(*base[n].shape):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in base]
                moved[n][place] += sign * step
                ends.append(float(loss(*[as_tensor(a) for a in moved]).numpy()))
            result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


def _agree(got: Array, expected: Array, tolerance: tuple[float, float], what: str) -> None:
    assert got.shape == expected.shape, f"{what}: shape {got.shape} is not {expected.shape}"
    np.testing.assert_allclose(
        got, expected, rtol=tolerance[0], atol=tolerance[1] * max(1.0, float(np.max(np.abs(expected), initial=0))),
        err_msg=what,
    )  # fmt: skip
