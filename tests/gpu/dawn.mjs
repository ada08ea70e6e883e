// Has Dawn, the WebGPU of Chromium, and its compiler Tint check kernels and dispatches; nothing is run.
//
// stdin: {kernels: [{name, text, bindings: [type of each]}],
//         buffers: [bytes of each],
//         dispatches: [{kernel: its number, ranges: [[number of a buffer, offset, bytes] of each binding], groups}]}
// stdout: [what is wrong with one], in JSON.
// Dawn's null backend validates as the others do and needs no driver. A kernel with more storage buffers than it
// binds is checked as a text alone.

import { create, globals } from "webgpu";

Object.assign(globalThis, globals);

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { kernels, buffers, dispatches } = JSON.parse(Buffer.concat(chunks).toString());

const gpu = create(["backend=null"]); // its devices are gone once this is
const adapter = await gpu.requestAdapter();
const most = adapter.limits.maxStorageBuffersPerShaderStage;
const device = await adapter.requestDevice({
  requiredFeatures: ["subgroups", "shader-f16"],
  requiredLimits: { maxStorageBuffersPerShaderStage: most },
});
const wrong = [];

async function checked(name, make) {
  device.pushErrorScope("validation");
  const made = make();
  const error = await device.popErrorScope();
  if (error) wrong.push(`${name}: ${error.message}`);
  return made;
}

function pipeline({ name, text, bindings }) {
  const module = device.createShaderModule({ code: text });
  if (bindings.filter((type) => type !== "uniform").length > most) return null;
  const entries = bindings.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
  const layout = device.createBindGroupLayout({ entries });
  const compute = { module, entryPoint: name };
  const made = device.createComputePipeline({ layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute });
  return { layout, made };
}

function dispatch({ kernel, ranges, groups }, held) {
  const { layout, made } = pipelines[kernel];
  const entries = ranges.map(([buffer, offset, size], binding) => ({ binding, resource: { buffer: held[buffer], offset, size } }));
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(made);
  pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
  pass.dispatchWorkgroups(...groups);
  pass.end();
  device.queue.submit([encoder.finish()]);
}

const pipelines = [];
for (const kernel of kernels) pipelines.push(await checked(kernel.name, () => pipeline(kernel)));
const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.UNIFORM;
const held = await checked("buffers", () => buffers.map((size) => device.createBuffer({ size, usage })));
for (const one of dispatches) await checked(kernels[one.kernel].name, () => dispatch(one, held));

process.stdout.write(JSON.stringify(wrong), () => process.exit(0));
