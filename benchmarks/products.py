"""How fast each weight format is multiplied: GB/s of weights read for a few rows, GFLOP/s for many.

    python benchmarks/products.py [FORMAT ...] [--threads 1] [--rounds 5] [--json OUT.json]

Calls the kernels of the CPU backend on random weights, without a model. Few rows of activations (1, 2, 4, 8)
meet a matrix that is larger than the caches, so memory sets the limit: its streaming bandwidth is measured in
the same rounds, and the share of it at one row is printed. Many rows (512) meet a matrix of 4 million
weights.
The best of the rounds counts. Beside floats stands NumPy's BLAS with the same sizes and threads, the time to
make float32 of the weights included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np
from graphml_cpu import packed
from graphml_cpu.compiler import LoadedKernel, compile_kernels
from graphml_cpu.kernels import formats
from graphml_cpu.layouts import FEW_ROWS
from graphml_cpu.lowering.linear import conversion, product_kernel

from graphml import settings
from graphml.cli.terminal import machine

FLOATS = ("f32", "f16", "bf16")
FEW = (1, 2, 4, 8)
MANY = 512
K = 4096
MANY_N = 1024
LARGE_BYTES = 192 << 20
BLAS = """
import sys, time, numpy
kind, rows, n, k, rounds = sys.argv[1], *map(int, sys.argv[2:])
random = numpy.random.default_rng(0)
weights, x = (random.standard_normal(shape).astype(numpy.float32) for shape in ((n, k), (rows, k)))
if kind == "f16":
    weights = weights.astype(numpy.float16)
elif kind == "bf16":
    weights = (weights.view(numpy.uint32) >> 16).astype(numpy.uint16)
taken = []
for _ in range(rounds + 1):
    start = time.perf_counter()
    if kind == "bf16":
        x @ (weights.astype(numpy.uint32) << 16).view(numpy.float32).T
    else:
        x @ weights.astype(numpy.float32, copy=False).T
    taken.append(time.perf_counter() - start)
print(2 * rows * n * k / min(taken[1:]))
"""
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def aligned(n_bytes: int) -> np.ndarray:
    """Zeroed bytes whose address is a multiple of 64."""
    whole = np.zeros(n_bytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + n_bytes]


def random_weights(kind: str, n: int) -> np.ndarray:
    """uint8 [n, bytes of K weights]: random blocks that decode to ordinary numbers, some of them repeated."""
    format = graphml_quant.by_name(kind)
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (1 << 16, format.block_bytes), np.uint8)
    largest = np.abs(format.decode(blocks)).reshape(len(blocks), -1).max(axis=1)
    good = blocks[(largest > 1e-3) & (largest < 1e3)]
    wanted = n * K // format.block_elements
    return good[random.integers(0, len(good), wanted)].reshape(n, -1)


class Product:
    """One format's kernel with weights and activations."""

    def __init__(self, kind: str, kernel: LoadedKernel, n: int, rows: int, threads: int) -> None:
        self.kind, self.rows = kind, rows
        self.kernel, self.weights = kernel, random_weights(kind, n)
        x = np.random.default_rng(1).standard_normal((rows, K)).astype(np.float32)
        self.x = x if kind in FLOATS else pack(x)
        self.y = np.zeros((rows, n), np.float32)
        self.count = np.array([rows])
        self.scratch = [aligned(packed.scratch_bytes(kind, K)) for _ in range(threads)]
        self.blocks = [
            kernel.block(
                w=self.weights.ctypes.data,
                x=self.x.ctypes.data,
                y=self.y.ctypes.data,
                residual=0,
                bias=0,
                n=n,
                k=K,
                x_stride=self.x.strides[0],
                y_stride=self.y.strides[0],
                scratch=scratch.ctypes.data,
                few_rows=FEW_ROWS,
                rows=self.count.ctypes.data,
            )
            for scratch in self.scratch
        ]

    def seconds(self, pool: ThreadPoolExecutor) -> float:
        """Time of one product, by all threads."""
        threads = len(self.blocks)
        start = time.perf_counter()
        others = [pool.submit(self.kernel, self.blocks[i], i, threads) for i in range(1, threads)]
        self.kernel(self.blocks[0], 0, threads)
        for other in others:
            other.result()
        return time.perf_counter() - start


def pack(x: np.ndarray) -> np.ndarray:
    """Rows of float32 as the packed rows that integer kernels take."""
    out = aligned(len(x) * packed.packed_bytes(x.shape[1])).reshape(len(x), -1)
    ref = conversion("q8_1")
    kernel, count = compile_kernels([ref])[ref.name], np.array([len(x)])
    kernel(kernel.block(x=x.ctypes.data, out=out.ctypes.data, k=x.shape[1], rows=count.ctypes.data))
    return out


def best(measure: Callable[[], float], times: int) -> float:
    """The shortest of some measurements."""
    return min(measure() for _ in range(times))


def blas_flops(kind: str, threads: int, rounds: int) -> float:
    """Operations a second of the same product by NumPy, in a process whose BLAS has the threads."""
    sizes = map(str, (MANY, MANY_N, K, 2 * rounds))
    environment = settings.child_environment(dict.fromkeys(BLAS_THREADS, str(threads)))
    command = [sys.executable, "-c", BLAS, kind, *sizes]
    return float(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)


def measure_format(kind: str, threads: int, rounds: int) -> dict[str, Any]:
    """GB/s at few rows, GFLOP/s at many, the streaming bandwidth in between."""
    ref = product_kernel(kind)
    kernel = compile_kernels([ref])[ref.name]
    n = LARGE_BYTES // graphml_quant.by_name(kind).bytes_for(K)
    few = [Product(kind, kernel, n, rows, threads) for rows in FEW]
    many = Product(kind, kernel, MANY_N, MANY, threads)
    seconds = {product.rows: [] for product in [*few, many]}  # type: dict[int, list[float]]
    streaming = []
    with ThreadPoolExecutor(max(threads - 1, 1)) as pool:
        for round_number in range(rounds + 1):
            streaming.append(machine.read_bandwidth(threads))
            for product in [*few, many]:
                found = best(lambda product=product: product.seconds(pool), 2)  # type: ignore[misc]
                if round_number:
                    seconds[product.rows].append(found)
    return {
        "format": kind,
        "threads": threads,
        "bits_per_weight": graphml_quant.by_name(kind).bits_per_element,
        "streaming": max(streaming),
        "bytes_per_second": {rows: few[0].weights.nbytes / min(seconds[rows]) for rows in FEW},
        "flops": 2 * MANY * MANY_N * K / min(seconds[MANY]),
        "blas_flops": blas_flops(kind, threads, rounds) if kind in FLOATS else None,
    }


def show(row: dict[str, Any]) -> str:
    """A row of the table."""
    rates = row["bytes_per_second"]
    share = rates[1] / row["streaming"]
    blas = f"{row['blas_flops'] / 1e9:.0f}" if row["blas_flops"] else ""
    few = " | ".join(f"{rates[rows] / 1e9:6.1f}" for rows in FEW)
    return (f"| {row['format']:8} | {row['bits_per_weight']:5.2f} | {row['streaming'] / 1e9:6.1f} | {few} "
            f"| {share:6.0%} | {row['flops'] / 1e9:14.0f} | {blas:>4} |")  # fmt: skip


def main() -> None:
    """Parse the arguments, measure, print a Markdown table and write the JSON."""
    known = [name for name in formats.names() if formats.has_reader(name) or name in FLOATS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("formats", nargs="*", default=known, metavar="FORMAT", help=", ".join(known))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.formats) - set(known):
        sys.exit(f"no such formats: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    print(f"GB/s of weights read by a product of 1, 2, 4 and 8 rows, {arguments.threads} threads\n")
    print(
        "| format   |  bits | stream |      1 |      2 |      4 |      8 | 1 of it | GFLOP/s at 512 | BLAS |"
    )
    print(
        "| :------- | ----: | -----: | -----: | -----: | -----: | -----: | ------: | -------------: | ---: |"
    )
    rows = []
    for kind in arguments.formats:
        rows.append(measure_format(kind, arguments.threads, arguments.rounds))
        print(show(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
