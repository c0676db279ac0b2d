"""The same model two ways: loaded and differentiated eagerly, and with the gradient in its graph.

Both come from the same rules and run the same kernels, so they may differ by rounding alone: where the graph knows no
dims and the rule writes another form, or adds cotangents up in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import graphkit as gk
from graphkit import dtypes
from graphkit.optimizers.add_gradients import add_gradients
from graphkit.runtime import run


def check_traced(loss: Any, arrays: Sequence[Any], wrt: Sequence[int], layout: Sequence[Any]) -> None:
    """Trace a scalar function, write it as a file's bytes, and compare."""
    specs = [
        gk.spec(dtypes.STRING if a.dtype.kind in "US" else a.dtype, list(a.shape if dims is None else dims))
        for a, dims in zip(arrays, layout, strict=True)
    ]
    names = [f"x{n}" for n in range(len(arrays))]
    model = ir.to_proto(gk.trace(loss, *specs, input_names=names, output_names=["loss"]))
    feeds = dict(zip(names, arrays, strict=True))
    check_loaded(model.SerializeToString(), feeds, [names[n] for n in wrt])


def check_loaded(file: bytes, feeds: Mapping[str, Any], wrt: Sequence[str]) -> None:
    """Loss and gradients of what the file holds: eagerly, and by ONNX Runtime from the graph's own gradient nodes."""
    whole = add_gradients(onnx.ModelProto.FromString(file), of="loss", wrt=wrt, unreached="zeros")
    expected = run(whole, feeds, optimizations=False)
    args = {n: gk.tensor(a, requires_grad=n in wrt) for n, a in feeds.items()}
    results = gk.load(onnx.ModelProto.FromString(file))(**args)
    loss = results[0] if isinstance(results, tuple) else results
    np.testing.assert_allclose(loss.numpy(), expected["loss"], rtol=1e-6, err_msg="the loss, loaded")
    if loss.requires_grad:
        loss.backward()
    for name in wrt:
        got = args[name].grad
        value = np.zeros_like(feeds[name]) if got is None else got.numpy()
        want = expected[f"{name}_grad"]
        assert value.dtype == want.dtype
        np.testing.assert_allclose(
            value, want, rtol=1e-5, atol=1e-6 * max(1.0, float(np.abs(want).max(initial=0))), err_msg=f"{name}, loaded"
        )
