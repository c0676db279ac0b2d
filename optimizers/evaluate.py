"""Run some nodes of a model by themselves, on ONNX Runtime with its own optimizations off."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from graphkit.optimizers.context import Context
from graphkit.runtime.values import to_array, to_value

__all__ = ["evaluate", "open_session", "run_in_time"]

# Seconds after which a run on inputs that were made up is given up.
_LONGEST: Final = 30.0
# Types of inputs and outputs that ONNX Runtime does not exchange with numpy by itself.
_NOT_OF_NUMPY: Final = ("bfloat16", "float8", "float4", "int4)", "int2)")


def open_session(model: bytes | str, profile: str | None = None) -> onnxruntime.InferenceSession:
    """A session on the CPU that runs the model as it is written; ``profile`` begins the name of a file of what ran."""
    options = onnxruntime.SessionOptions()
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # The sessions here live for one or two runs: planning memory for many would cost more than it saves.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_in_time(
    session: onnxruntime.InferenceSession, names: list[str], feeds: Mapping[str, Any], seconds: float = _LONGEST
) -> list[Any]:
    """Run a session, and raise ``TimeoutError`` where it does not end: a Loop may wait for what these inputs lack."""
    options = onnxruntime.RunOptions()
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        options.terminate = True

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    ports = [*session.get_inputs(), *(one for one in session.get_outputs() if one.name in names)]
    try:
        if any(word in one.type for one in ports for word in _NOT_OF_NUMPY):
            values = {name: to_value(array, array.dtype) for name, array in feeds.items()}
            arrays = [to_array(value) for value in session.run_with_ort_values(names, values, options)]
        else:
            arrays = list(session.run(names, dict(feeds), options))
    except Exception as error:
        if stopped.is_set():
            raise TimeoutError(f"it did not end within {seconds:.0f} seconds") from error
        raise
    finally:
        timer.cancel()
    return arrays


def evaluate(
    ctx: Context, nodes: Sequence[ir.Node], wanted: Sequence[ir.Value]
) -> dict[ir.Value, np.ndarray[Any, Any]]:
    """Values that constant nodes compute; those that the runtime refuses to compute are left out."""
    try:
        return _evaluate_together(ctx, nodes, wanted)
    except Exception:  # noqa: BLE001 - whatever the runtime says, the node is not folded
        if len(nodes) == 1:
            return {}
    # One node has no kernel, or fails on these values: find the others one by one.
    found: dict[ir.Value, np.ndarray[Any, Any]] = {}
    for node in nodes:
        if all(value is None or value in found or ctx.tensor(value) is not None for value in node.inputs):
            outputs = [value for value in node.outputs if value.uses() or value.is_graph_output()]
            try:
                found.update(_evaluate_together(ctx, [node], outputs, found))
            except Exception:  # noqa: BLE001, S112 - as above
                continue
    return {value: found[value] for value in wanted if value in found}


def _evaluate_together(
    ctx: Context,
    nodes: Sequence[ir.Node],
    wanted: Sequence[ir.Value],
    known: dict[ir.Value, np.ndarray[Any, Any]] | None = None,
) -> dict[ir.Value, np.ndarray[Any, Any]]:
    if not wanted:
        return {}
    # Bodies side by side may use one name for different values, so each value is given a name of its own here.
    names: dict[ir.Value, str] = {}
    made = {value for node in nodes for value in node.outputs}
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    graph = onnx.GraphProto(name="constants")
    for node in nodes:
        for value in node.inputs:
            if value is None or value in made or value in names:
                continue
            array = (known or {}).get(value)
            if array is None:
                tensor = ctx.tensor(value)
                assert tensor is not None
                array = np.asarray(tensor.numpy())
                if array.dtype.kind not in "fiub":
                    raise TypeError(f"the runtime takes no numpy arrays of {tensor.dtype}")
            names[value] = f"in{len(names)}"
            feeds[names[value]] = array
        for value in node.outputs:
            names[value] = f"out{len(names)}"
        proto = ir.to_proto(node)
        del proto.input[:], proto.output[:]
        proto.input.extend("" if value is None else names[value] for value in node.inputs)
        proto.output.extend(names[value] for value in node.outputs)
        graph.node.append(proto)
    for name, array in feeds.items():
        # Without shapes in the signature, dims of 0 and rank 0 need no care.
        element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(onnx.helper.make_value_info(name, onnx.helper.make_tensor_type_proto(element, None)))
    graph.output.extend(onnx.ValueInfoProto(name=names[value]) for value in wanted)
    opset = onnx.helper.make_opsetid("", ctx.opset(nodes[0]))
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=max(4, min(ctx.model.ir_version, 10)))
    session = open_session(model.SerializeToString())
    arrays = session.run([names[value] for value in wanted], feeds)
    return {value: array for value, array in zip(wanted, arrays, strict=True) if isinstance(array, np.ndarray)}
