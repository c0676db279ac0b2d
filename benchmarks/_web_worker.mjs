// Runs the jobs of a manifest on a given ONNX Runtime and says what came out. Read by benchmarks/web.py; the same file
// works in Node and in a browser: only how ONNX Runtime and files are got differs.

const arrays = {
  float32: Float32Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array, int8: Int8Array, bool: Uint8Array,
};

function tensor(ort, entry, bytes) {
  const kind = arrays[entry.dtype];
  const own = bytes.slice(entry.offset, entry.offset + entry.bytes);
  return new ort.Tensor(entry.dtype, new kind(own.buffer), entry.dims);
}

function plain(value) {
  return { dtype: value.type, dims: value.dims, data: Array.from(value.data, Number) };
}

const now = () => performance.now();

async function runJob(ort, job, read) {
  const session = await ort.InferenceSession.create(await read(job.model), { logSeverityLevel: 4, intraOpNumThreads: 1 });
  const bytes = await read(job.data);
  const feeds = Object.fromEntries(job.inputs.map((entry) => [entry.name, tensor(ort, entry, bytes)]));
  const times = [];
  const followed = [];
  let outputs;
  for (let step = 0; step < job.runs; step++) {
    const started = now();
    outputs = await session.run(feeds);
    times.push(now() - started);
    if (job.follow) followed.push(Number(outputs[job.follow].data[0]));
    for (const [name, next] of Object.entries(job.state ?? {})) feeds[name] = outputs[next];
  }
  times.sort((a, b) => a - b);
  const shown = job.follow ? {} : Object.fromEntries(Object.entries(outputs).map(([name, v]) => [name, plain(v)]));
  return { milliseconds: times[times.length >> 1], followed, outputs: shown };
}

export async function runJobs(ort, jobs, read) {
  const results = {};
  for (const job of jobs) {
    try {
      results[job.name] = await runJob(ort, job, read);
    } catch (error) {
      results[job.name] = { error: String(error?.message ?? error) };
    }
  }
  return results;
}

if (typeof process !== "undefined" && process.argv?.[2]) {
  const fs = await import("node:fs");
  const path = await import("node:path");
  const { createRequire } = await import("node:module");
  const [, , kind, folder, target] = process.argv;
  const require = createRequire(path.join(process.cwd(), "package.json"));
  const ort = require(kind === "node" ? "onnxruntime-node" : "onnxruntime-web/wasm");
  if (kind !== "node") ort.env.wasm.numThreads = 1;
  const read = async (name) => new Uint8Array(fs.readFileSync(path.join(folder, name)));
  const jobs = JSON.parse(fs.readFileSync(path.join(folder, "jobs.json"), "utf8"));
  fs.writeFileSync(target, JSON.stringify(await runJobs(ort, jobs, read)));
}
