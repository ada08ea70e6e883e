"""Products of one shape on a GPU with every way of sharing them out: microseconds, GB/s of weights, TFLOP/s.

    python benchmarks/gpu_products.py --backend wgpu --format q4_k --shape 10240x2560 --rows 1 --rows 512
        [--activations q8_1] [--seconds 0.3] [--out FILE.json]

Each candidate multiplies other weights in turn, more than caches hold, in one recording. Before it is timed
it runs for some time without a pause: a GPU that idles lowers its clock, and short bursts took five times as
long. Times are by the device's own clock where it has one, and by the host's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np
from graphml_gpu import tuning
from graphml_gpu.device import GpuDevice
from graphml_gpu.program import GpuProgram

from graphml.backend import StepTime, no_progress
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import Symbol
from graphml.loading import discovery
from graphml.passes.fusions.linear import linear
from graphml.passes.plan import plan_memory
from graphml.weights.random_blocks import random_blocks

BEYOND_CACHES, MOST = 200e6, 48
ROUNDS = 7


def weights(product: tuning.Product) -> dict[str, Array]:
    """So many matrices that caches do not hold them, by name."""
    kind = graphml_quant.by_name(product.format)
    blocks = product.n * product.k // kind.block_elements
    count = max(2, min(MOST, int(BEYOND_CACHES / (blocks * kind.block_bytes))))
    made = {}
    for i in range(count):
        chunks = [chunk.reshape(-1) for chunk in random_blocks(kind, blocks, 0.02, i)]
        made[f"w{i}"] = np.concatenate(chunks).reshape(product.n, -1)
    return made


def graph_of(product: tuning.Product, names: Sequence[str]) -> Graph:
    """The products of one value with all of the matrices."""
    g = Builder()
    x = g.input("x", F32, (Symbol("T", product.columns), product.k))
    if product.activations != F32.name:
        x = g.call(quantize, x, dtype=product.activations)
    kind = dtype(product.format)
    return g.finish(
        **{f"y{name}": g.call(linear, g.weight(name, kind, (product.n, product.k)), x) for name in names}
    )


def timed(
    device: GpuDevice,
    product: tuning.Product,
    way: Mapping[str, int],
    stored: dict[str, Array],
    seconds: float,
) -> dict[str, Any]:
    """Seconds of one product by the device's clock and by the host's, median and least of some rounds."""
    graph, driver = graph_of(product, list(stored)), device.memory.driver
    chosen = tuning.GpuTuning({product: way})
    plan = plan_memory(graph, device)
    program = GpuProgram(graph, plan, stored, device.memory, no_progress, device.support, chosen)
    drawn = np.random.default_rng(0)
    program.inputs["x"][...] = drawn.standard_normal((product.columns, product.k), np.float32)
    state, dims = device.state(graph, {}), {"T": product.columns}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        program.run(dims, state)
        driver.wait()
    by_host = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        program.run(dims, state)
        driver.wait()
        by_host.append((time.perf_counter() - begin) / len(stored))
    found = {"host_s": statistics.median(by_host), "least_host_s": min(by_host)}
    if driver.facts.has_timestamps:
        steps: list[StepTime] = []
        program.time_steps(lambda dims, taken: steps.extend(taken()))
        program.run(dims, state)
        found["device_s"] = statistics.median(step.work_s[0] for step in steps)
    return found


def main() -> None:
    """Time what the arguments ask for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--backend", default="wgpu")
    parser.add_argument("--format", default="q4_k")
    parser.add_argument("--shape", default="10240x2560", metavar="NxK")
    parser.add_argument("--rows", type=int, action="append", metavar="N", help="rows of activations")
    parser.add_argument("--activations", default="q8_1", choices=["f32", "q8_1"])
    parser.add_argument("--seconds", type=float, default=0.3, help="of work before each timing")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = discovery.backend(options.backend).open(None)
    assert isinstance(device, GpuDevice), f"{options.backend} is not a GPU backend"
    n, k = map(int, options.shape.split("x"))
    rows: list[dict[str, Any]] = []
    print(f"{device.name}, {device.driver}\n\n| rows | candidate | us | by the host | GB/s | TFLOP/s |")
    print("|---:|---|---:|---:|---:|---:|")
    for columns in options.rows or [1]:
        product = tuning.Product(options.format, n, k, columns, options.activations)
        stored = weights(product)
        for way in tuning.candidates(device.facts, product):
            found = timed(device, product, way, stored, options.seconds)
            one = found.get("device_s", found["host_s"])
            rates = stored["w0"].nbytes / one / 1e9, 2 * n * k * columns / one / 1e12
            rows.append(
                {"columns": columns, "way": dict(way), **found, "gb_s": rates[0], "tflop_s": rates[1]}
            )
            shown = " ".join(f"{name}={value}" for name, value in way.items())
            times = f"{one * 1e6:.1f} | {found['host_s'] * 1e6:.1f}"
            print(f"| {columns} | {shown} | {times} | {rates[0]:.0f} | {rates[1]:.2f} |", flush=True)
    device.close()
    if options.out:
        result = {"device": device.name, "driver": device.driver, "product": vars(options), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
