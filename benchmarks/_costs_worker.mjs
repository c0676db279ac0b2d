// Times pairs of models on the WASM build of onnxruntime-web under Node, interleaved. Read by benchmarks/costs.py.

import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

const [, , folder, seconds] = process.argv;
const require = createRequire(path.join(process.cwd(), "package.json"));
const ort = require("onnxruntime-web/wasm");
ort.env.wasm.numThreads = 1;

const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
const arrays = { float32: [Float32Array, normal], bool: [Uint8Array, () => Number(Math.random() > 0.5)] };

function drawn({ dtype, dims }) {
  const [kind, draw] = arrays[dtype];
  return new ort.Tensor(dtype, kind.from({ length: dims.reduce((a, b) => a * b, 1) }, draw), dims);
}

const results = [];
for (const { pair, inputs } of JSON.parse(fs.readFileSync(path.join(folder, "jobs.json"), "utf8"))) {
  const feeds = Object.fromEntries(inputs.map((entry) => [entry.name, drawn(entry)]));
  const sessions = [];
  for (const name of pair) {
    const bytes = new Uint8Array(fs.readFileSync(path.join(folder, name)));
    sessions.push(await ort.InferenceSession.create(bytes, { logSeverityLevel: 4 }));
  }
  for (const session of sessions) await session.run(feeds);
  const times = sessions.map(() => []);
  const end = performance.now() + 1000 * Number(seconds);
  while (performance.now() < end || times[0].length < 5) {
    for (const [index, session] of sessions.entries()) {
      const begun = performance.now();
      await session.run(feeds);
      times[index].push((performance.now() - begun) / 1000);
    }
  }
  results.push(times.map((row) => row.sort((a, b) => a - b)[Math.floor(row.length / 10)]));
  for (const session of sessions) await session.release();
}
console.log(JSON.stringify(results));
