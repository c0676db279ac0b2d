"""Check the gradient graph of a model written as text: against differences, and against the eager gradient."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

import graphkit as gk
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.runtime import run

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'


def names_of(graph):
    """Every value and node name of a graph and its bodies; bodies of one node may not share any either."""
    values, nodes = [], []
    values += [v.name for v in graph.input] + [v.name for v in graph.initializer]
    for node in graph.node:
        nodes.append(node.name)
        values += [o for o in node.output if o]
        for a in node.attribute:
            if a.HasField("g"):
                inner_values, inner_nodes = names_of(a.g)
                values += inner_values
                nodes += inner_nodes
    return values, nodes


def model_of(text):
    return onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)


def gradient_model(model, wrt, unreached="error"):
    found = add_gradients(model, of="loss", wrt=wrt, unreached=unreached)
    onnx.checker.check_model(found, full_check=True)
    values, nodes = names_of(found.graph)
    assert len(values) == len(set(values)), "duplicate value names"
    made = [n for n in nodes if n]
    assert len(made) == len(set(made)), "duplicate node names"
    return found


def differences(model, feeds, name, step=1e-5):
    base = np.array(feeds[name])
    result = np.zeros(base.shape)
    for place in np.ndindex(*base.shape):
        ends = []
        for sign in (1, -1):
            moved = base.copy()
            moved[place] += sign * step
            ends.append(run(model, {**feeds, name: moved}, optimizations=False)["loss"].item())
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


def check_model(text, feeds, wrt, *, unreached="error", eager=True, rtol=1e-5, atol=1e-7):
    """The gradients of ``loss`` in float64: the graph's against differences, the eager ones against the graph's."""
    model = model_of(text)
    found = gradient_model(model, wrt, unreached)
    got = run(found, feeds, optimizations=False)
    for name in wrt:
        expected = differences(model, feeds, name)
        np.testing.assert_allclose(got[f"{name}_grad"], expected, rtol=rtol, atol=atol, err_msg=name)
    if eager:
        args = {n: gk.tensor(a, requires_grad=a.dtype.kind == "f") for n, a in feeds.items()}
        results = gk.load(model)(**args)
        loss = results[0] if isinstance(results, tuple) else results
        if loss.requires_grad:  # a loop that runs no iteration reads nothing
            loss.backward()
        for name in wrt:
            gradient = args[name].grad
            value = np.zeros_like(feeds[name]) if gradient is None else gradient.numpy()
            np.testing.assert_allclose(value, got[f"{name}_grad"], rtol=1e-9, atol=1e-10, err_msg=f"{name}, eagerly")
    return found
