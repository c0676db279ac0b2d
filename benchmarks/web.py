"""Exported and training files on onnxruntime-web (WASM) and onnxruntime-node: the same numbers, and how fast.

    python -m benchmarks.web [--cache ~/.cache/graphkit/web] [--browser chromium] [--json]

Needs Node and npm, which fetch both runtimes into the cache folder (outside the repository). Every network of
``models/`` is exported, optimized with the preset ``web`` and run on the CPU of ONNX Runtime here, in Node, in the WASM
build under Node, and with ``--browser`` in the WASM build of a real page without a window. Its training step, the
file ``train.onnx`` of ``TrainingGraph.save``, goes on from its own outputs for twenty steps and must give the same
losses. One thread each; milliseconds are medians.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

import graphkit as gk
from models import gpt, lenet, mlp, resnet

PACKAGES = ("onnxruntime-web@1.30.0", "onnxruntime-node")
WORKER = Path(__file__).with_name("_web_worker.mjs")
STEPS = 20
BATCH = 16
PAGE = """<!doctype html><meta charset="utf-8"><pre id="said">starting</pre>
<script src="/node_modules/onnxruntime-web/dist/ort.wasm.min.js"></script>
<script type="module">
import { runJobs } from "/worker.mjs";
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = "/node_modules/onnxruntime-web/dist/";
const read = async (name) => new Uint8Array(await (await fetch("/work/" + name)).arrayBuffer());
let said;
try { said = await runJobs(ort, await (await fetch("/work/jobs.json")).json(), read); }
catch (error) { said = { error: String(error) }; }
await fetch("/said", { method: "POST", body: JSON.stringify(said) });
</script>"""


def networks() -> dict[str, tuple[gk.nn.Module, Any, np.ndarray[Any, Any]]]:
    """Each with its input's spec and a batch."""
    rng = np.random.default_rng(0)
    image = gk.spec("float32", ["batch", 784])
    images = rng.uniform(size=(BATCH, 784)).astype(np.float32)
    text = gk.spec("int64", ["batch", 32])
    return {
        "mlp": (mlp.MLP((784, 128, 10)), image, images),
        "lenet": (lenet.LeNet(), image, images),
        "resnet": (resnet.ResNet(), image, images),
        "gpt": (gpt.GPT(64, 64, 2, 4, 32), text, rng.integers(0, 64, (BATCH, 32))),
    }


class Jobs:
    """What the runtimes are asked, in files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: list[dict[str, Any]] = []

    def add(self, name: str, model: bytes, feeds: dict[str, np.ndarray[Any, Any]], runs: int, **more: Any) -> None:
        """One model with what it is fed."""
        entries, parts, offset = [], [], 0
        for key, array in feeds.items():
            content = np.ascontiguousarray(array).tobytes()
            dims, dtype = list(np.shape(array)), str(array.dtype)
            entries.append({"name": key, "dtype": dtype, "dims": dims, "offset": offset, "bytes": len(content)})
            parts.append(content)
            offset += len(content)
        (self.folder / f"{name}.onnx").write_bytes(model)
        (self.folder / f"{name}.bin").write_bytes(b"".join(parts))
        job = {"name": name, "model": f"{name}.onnx", "data": f"{name}.bin", "inputs": entries, "runs": runs}
        self.jobs.append(job | more)
        (self.folder / "jobs.json").write_text(json.dumps(self.jobs))


def prepare(folder: Path) -> tuple[Jobs, dict[str, dict[str, Any]]]:
    """The jobs, and what ONNX Runtime says to them here."""
    jobs, here = Jobs(folder), {}
    rng = np.random.default_rng(1)
    for name, (module, spec, x) in networks().items():
        module.train(False)
        exported = gk.trace(module, spec, input_names=["x"], output_names=["y"])
        model = ir.to_proto(gk.optimize(exported, "web")).SerializeToString()
        jobs.add(name, model, {"x": x}, 20)
        path = folder / f"{name}.onnx"
        session = gk.runtime.Session(path, threads=1)
        times, outputs = [], {}
        for _ in range(20):
            started = time.perf_counter()
            outputs = session.run({"x": x})
            times.append(time.perf_counter() - started)
        here[name] = {"milliseconds": 1e3 * float(np.median(times)), "outputs": outputs}

        module.train(True)
        graph = gk.training.build(module, loss="cross_entropy", optimizer=gk.optim.AdamW(1e-3), inputs={"x": spec})
        saved = folder / f"{name}-run"
        graph.save(saved)
        manifest = json.loads((saved / "manifest.json").read_text())
        labels = rng.integers(0, 10, x.shape if name == "gpt" else [BATCH])
        state = {entry["name"]: entry["next"] for entry in manifest["state"]}
        feeds = {key: np.asarray(value) for key, value in graph.state.items()}
        model = (saved / "train.onnx").read_bytes()
        feeds = {key: array for key, array in feeds.items() if key in state} | {"x": x, "labels": labels}
        jobs.add(f"{name}, training", model, feeds, STEPS, state=state, follow="loss")
        trainer, times, losses = gk.Trainer(graph, threads=1), [], []
        for _ in range(STEPS):
            started = time.perf_counter()
            losses.append(float(trainer.step({"x": x, "labels": labels})["loss"]))
            times.append(time.perf_counter() - started)
        here[f"{name}, training"] = {"milliseconds": 1e3 * float(np.median(times)), "followed": losses}
    return jobs, here


def fetch(cache: Path) -> None:
    """Both runtimes into the cache folder. Their install scripts only add CUDA's files, which nothing here needs."""
    if (cache / "node_modules").exists():
        return
    if shutil.which("npm") is None:
        raise SystemExit("this needs Node and its npm on PATH")
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "package.json").write_text('{"private": true}')
    subprocess.run(["npm", "install", "--silent", "--ignore-scripts", *PACKAGES], cwd=cache, check=True)


def in_node(kind: str, cache: Path, jobs: Jobs) -> dict[str, Any]:
    """What onnxruntime-node, or the WASM build under Node, answers."""
    target = jobs.folder / f"{kind}.json"
    subprocess.run(["node", WORKER, kind, jobs.folder, target], cwd=cache, check=True)
    answer: dict[str, Any] = json.loads(target.read_text())
    return answer


class Server(http.server.SimpleHTTPRequestHandler):
    """The page, its jobs and its runtime, from this machine to this machine; takes the answer."""

    answer: dict[str, Any] | None = None
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript", ".wasm": "application/wasm",
    }  # fmt: skip

    def __init__(self, *args: Any, work: Path, **more: Any) -> None:
        self.work = work
        super().__init__(*args, **more)

    def translate_path(self, path: str) -> str:
        """Jobs lie in a folder of their own, the worker beside this file."""
        if path.startswith("/work/"):
            return str(self.work / re.sub(r"%20|\+", " ", Path(path).name))
        return str(WORKER) if path == "/worker.mjs" else super().translate_path(path)

    def do_GET(self) -> None:
        """The page itself is no file."""
        if self.path != "/":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())
        return None

    def do_POST(self) -> None:
        """What the page found."""
        Server.answer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Nobody needs a line a request."""
        del format, args


def in_browser(browser: str, cache: Path, jobs: Jobs) -> dict[str, Any]:
    """What the WASM build answers in a page of a real browser."""
    handler = functools.partial(Server, work=jobs.folder, directory=str(cache))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waited = time.monotonic()
        while Server.answer is None and time.monotonic() - waited < 180 and process.poll() is None:
            time.sleep(0.2)
        process.terminate()
        process.wait()
    server.shutdown()
    return Server.answer or {"error": "the page gave no answer"}


def difference(name: str, found: dict[str, Any], right: dict[str, Any]) -> float | str:
    """The largest relative difference of a job's numbers, or what went wrong."""
    if name not in found:
        return str(found.get("error", "missing"))
    answer = found[name]
    if "error" in answer:
        return str(answer["error"])[:200]
    if "followed" in right:
        pairs = [(np.array(answer["followed"]), np.array(right["followed"]))]
    else:
        outputs = answer["outputs"]
        pairs = [(np.array(outputs[k]["data"]).reshape(outputs[k]["dims"]), v) for k, v in right["outputs"].items()]
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)


def main() -> int:
    """Prepare, run everywhere, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "graphkit" / "web")
    parser.add_argument("--browser", help="a Chromium or Chrome to start without a window")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    fetch(options.cache)
    with tempfile.TemporaryDirectory() as folder:
        jobs, here = prepare(Path(folder))
        places = {"Node": in_node("node", options.cache, jobs), "WASM in Node": in_node("wasm", options.cache, jobs)}
        if options.browser:
            places["WASM in the browser"] = in_browser(options.browser, options.cache, jobs)
    table = Table("", "Python, ms", *(f"{place}: ms, difference" for place in places))
    worst, rows = 0.0, []
    for name, right in here.items():
        cells, row = [], {"job": name, "milliseconds": right["milliseconds"]}
        for place, found in places.items():
            apart = difference(name, found, right)
            worst = max(worst, apart if isinstance(apart, float) else np.inf)
            taken = found.get(name, {}).get("milliseconds")
            row[place] = {"milliseconds": taken, "difference": apart}
            cells.append(f"{taken:.2f}, {apart:.0e}" if isinstance(apart, float) else apart)
        table.add_row(name, f"{right['milliseconds']:.2f}", *cells)
        rows.append(row)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        Console().print(table)
    return 0 if worst < 1e-4 else 1


if __name__ == "__main__":
    raise SystemExit(main())
