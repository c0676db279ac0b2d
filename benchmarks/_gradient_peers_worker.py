"""Differentiate cases with one of the peers; run by ``benchmarks.gradient_peers`` in the peers' own environment.

    python _gradient_peers_worker.py TOOL FOLDER

For every case folder (``model.onnx``, ``feeds.npz``, ``gradients.npz``) one line of JSON: the case, a verdict (right,
wrong, refused, or broken: no runtime loads or runs it), the nodes added, and what was said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, inliner, shape_inference

RTOL, ATOL = 2e-3, 2e-4
Made = tuple[onnx.ModelProto, list[str], dict[str, Any], Callable[[Any], Any]]


def by_onnx_ad(model: onnx.ModelProto, wanted: list[str]) -> Made:
    """onnx-ad: a seed for the loss goes in, ``adj_<name>`` comes out."""
    import onnx_ad

    made = onnx_ad.reverse(model, inputs=wanted, outputs=["loss"], layout="onnx")
    names = [o.name for o in made.graph.output][-len(wanted) :]
    seeds = [v for v in made.graph.input if v.name not in {i.name for i in model.graph.input}]
    return made, names, {v.name: np.ones([1], np.float32) for v in seeds}, lambda a: a[..., 0]


def by_onnxsim(model: onnx.ModelProto, wanted: list[str]) -> Made:
    """onnxsim.graph_grad: nodes on a way from a wanted input to the loss, walked back."""
    from onnxsim import graph_grad, qat_graph

    inferred = shape_inference.infer_shapes(model)
    graph = inferred.graph
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*graph.input, *graph.output, *graph.value_info)
    }
    shapes.update({i.name: list(i.dims) for i in graph.initializer})
    reached, nodes = set(wanted), []
    for node in graph.node:
        if reached.intersection(node.input):
            reached.update(node.output)
            nodes.append(node)
    builder = qat_graph.GraphBuilder("gg_")
    builder.initializer.extend(graph.initializer)
    before = len(builder.initializer)
    seed = builder.const(np.ones((), np.float32))
    found = graph_grad.build_backward(builder, nodes, shapes, {"loss": seed}, wanted)
    made = onnx.ModelProto()
    made.CopyFrom(inferred)
    made.graph.node.extend(builder.nodes)
    made.graph.initializer.extend(builder.initializer[before:])
    if builder.functions:
        made.functions.extend(builder.functions)
        made.opset_import.extend(helper.make_opsetid(d, 1) for d in {f.domain for f in builder.functions})
        made = inliner.inline_local_functions(made)
    names = [found[n] for n in wanted]
    made.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in dict.fromkeys(names))
    return made, names, {}, lambda a: a


TOOLS = {"onnx-ad": by_onnx_ad, "onnxsim": by_onnxsim}


def judge(tool: str, folder: Path) -> tuple[str, int, str]:
    """One case."""
    model = onnx.load(folder / "model.onnx")
    feeds = dict(np.load(folder / "feeds.npz"))
    expected = dict(np.load(folder / "gradients.npz"))
    try:
        made, names, seeds, form = TOOLS[tool](model, list(expected))
    except Exception as error:  # noqa: BLE001  # whatever a peer raises is its refusal
        return "refused", 0, f"{type(error).__name__}: {error}"
    added = len(made.graph.node) - len(model.graph.node)
    try:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
        found = session.run(names, {**feeds, **seeds})
    except Exception as error:  # noqa: BLE001  # whatever the runtime raises: the graph is no use
        return "broken", added, f"{type(error).__name__}: {error}"
    for (name, want), got in zip(expected.items(), found, strict=True):
        got = form(np.asarray(got))
        scale = max(1.0, float(np.max(np.abs(want), initial=0)))
        if got.size != want.size or not np.allclose(got.reshape(want.shape), want, rtol=RTOL, atol=ATOL * scale):
            return "wrong", added, f"{name}"
    return "right", added, ""


def main() -> None:
    """Every case that has no line yet (a case that ended the process got one before it was tried)."""
    tool, root = sys.argv[1], Path(sys.argv[2])
    log = root / f"{tool}.jsonl"
    done = {json.loads(line)["case"] for line in log.read_text().splitlines()} if log.exists() else set()
    with log.open("a") as file:
        for folder in sorted(p for p in root.iterdir() if p.is_dir() and p.name not in done):
            trying = root / f"{tool}.trying"
            trying.write_text(folder.name)
            verdict, added, said = judge(tool, folder)
            print(json.dumps({"case": folder.name, "verdict": verdict, "added": added, "said": said[:300]}), file=file)
            file.flush()
            trying.unlink()


if __name__ == "__main__":
    main()
