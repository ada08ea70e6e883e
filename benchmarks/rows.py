"""Time of a product against the rows of activations, 1 to 128, beside the roofline: no hole, no step.

    python benchmarks/rows.py [FORMAT ...] [--shapes 2048x2048,...] [--threads 1] [--rounds 9] [--json OUT.json]
                              [--plot OUT.svg] [--forms]

Calls the kernels of the CPU backend alone, as `products.py` does, on random weights of which there are so many
copies that the caches hold none. Times are processor time of the busiest thread, all numbers of rows in turns,
the shortest of all rounds. The roof of a number of rows is the longer of two times: reading the weights at the
bandwidth of plain reads, measured in the same rounds, and the arithmetic at the rate of 512 rows. `--forms`
also times both loops that a product chooses from, whatever the number of rows: by rows, and by tiles.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np
from graphml_cpu import packed
from graphml_cpu.compiler import Kernel, compile_kernels
from graphml_cpu.kernels import formats
from graphml_cpu.lowering.linear import FLOAT_WEIGHTS, Loops, conversion, product_kernel

from graphml.cli import machine

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
MANY = 512
FORMATS = ("q4_1", "q4_0", "q8_0", "q4_k", "q6_k", "f16")
SMOLLM2, LLAMA = ("1536x576", "576x1536"), ("2048x2048", "5632x2048", "2048x5632")
import os; POOL_BYTES = int(os.environ.get("POOL", 96)) << 20
LEAST_SECONDS = 1e-3


def aligned(n_bytes: int) -> np.ndarray:
    """Zeroed bytes whose address is a multiple of 64."""
    whole = np.zeros(n_bytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + n_bytes]


def random_weights(kind: str, n_bytes: int) -> np.ndarray:
    """Random blocks of a format that decode to ordinary numbers, some of them repeated; uint8 [n_bytes]."""
    format = graphml_quant.by_name(kind)
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (1 << 16, format.block_bytes), np.uint8)
    largest = np.abs(format.decode(blocks)).reshape(len(blocks), -1).max(axis=1)
    good = blocks[(largest > 1e-3) & (largest < 1e3)]
    return good[random.integers(0, len(good), n_bytes // format.block_bytes + 1)].reshape(-1)


def pack(kind: str, x: np.ndarray) -> np.ndarray:
    """Rows of float32 as the kernels of a format take them."""
    if kind in FLOAT_WEIGHTS:
        return x
    rows, k = x.shape
    out = aligned(rows * packed.packed_bytes(k)).reshape(rows, -1)
    ref = conversion("q8_1")
    kernel = compile_kernels([ref])[ref.name]
    count = np.array([rows])
    kernel(kernel.block(x=x.ctypes.data, out=out.ctypes.data, k=k, rows=count.ctypes.data))
    return out


@dataclass
class Product:
    """One form of a product of `rows` rows: a parameter block for each copy of the weights and thread."""

    form: str
    rows: int
    kernel: Kernel
    blocks: list[list[Any]]
    times: list[float] = field(default_factory=list)
    calls: int = 1
    done: int = 0

    def _work(self, thread: int) -> float:
        blocks, threads = self.blocks, len(self.blocks[0])
        start = time.thread_time_ns()
        for call in range(self.done, self.done + self.calls):
            self.kernel(blocks[call % len(blocks)][thread], thread, threads)
        return (time.thread_time_ns() - start) / 1e9 / self.calls

    def run(self, pool: ThreadPoolExecutor) -> float:
        """Seconds of a call, of the busiest thread."""
        others = [pool.submit(self._work, thread) for thread in range(1, len(self.blocks[0]))]
        taken = max([self._work(0), *(other.result() for other in others)])
        self.done += self.calls
        return taken


def products(kind: str, n: int, k: int, threads: int, forms: bool) -> list[Product]:
    """Every number of rows, as the kernel chooses and with `forms` by either loop."""
    row_bytes = graphml_quant.by_name(kind).bytes_for(k)
    copies = max(1, POOL_BYTES // (n * row_bytes))
    weights = random_weights(kind, copies * n * row_bytes)
    x = pack(kind, np.random.default_rng(1).standard_normal((MANY, k)).astype(np.float32))
    y = np.zeros((MANY, n), np.float32)
    scratch = [aligned(packed.scratch_bytes(kind, k) + 1024 * k + (1 << 20)) for _ in range(threads)]
    # Everything that parameter blocks have addresses of lives as long as the process.
    _KEPT.append((weights, x, y, scratch))
    few, tiles = (ref for _, ref in Loops(kind).calls)
    whole = product_kernel(kind)
    kernels = compile_kernels([whole, few, tiles])
    found = []
    for rows in (*ROWS, MANY):
        count = np.array([rows])
        _KEPT.append(count)
        for form, ref in (("chosen", whole), ("by rows", few), ("by tiles", tiles)):
            if form != "chosen" and (not forms or rows == MANY):
                continue
            kernel = kernels[ref.name]
            blocks = []
            for copy in range(copies):
                arguments = {
                    "w": weights.ctypes.data + copy * n * row_bytes, "x": x.ctypes.data, "y": y.ctypes.data,
                    "residual": 0, "bias": 0, "n": n, "k": k, "x_stride": x.strides[0], "y_stride": y.strides[0],
                }  # fmt: skip
                blocks.append([_block(kernel, form, arguments, scratch[i], count, i, threads) for i in range(threads)])
            found.append(Product(form, rows, kernel, blocks))
    return found


_KEPT: list[Any] = []


def _block(
    kernel: Kernel, form: str, arguments: dict[str, int], scratch: np.ndarray, count: np.ndarray, thread: int, threads: int
) -> Any:
    """A parameter block; the loops are given the share of the thread that the whole kernel would give them."""
    given = {**arguments, "scratch": scratch.ctypes.data}
    if form == "chosen":
        return kernel.block(**given, rows=count.ctypes.data)
    unit = 1 if form == "by rows" else PANEL_ROWS
    units = -(-arguments["n"] // unit)
    given |= {"begin": units * thread // threads, "end": units * (thread + 1) // threads, "rows": int(count[0])}
    if form == "by rows":
        del given["n"]
    return kernel.block(**given)


def measure(kind: str, n: int, k: int, threads: int, rounds: int, forms: bool) -> dict[str, Any]:
    """Seconds of each form and number of rows, and of the roof."""
    all_products = products(kind, n, k, threads, forms)
    bandwidth = []
    with ThreadPoolExecutor(max(threads - 1, 1)) as pool:
        for product in all_products:
            once = min(product.run(pool) for _ in range(2))
            product.calls = max(1, round(LEAST_SECONDS / once))
        for _ in range(rounds):
            bandwidth.append(machine.read_bandwidth(threads))
            for product in all_products:
                product.times.append(product.run(pool))
    best = {(product.form, product.rows): min(product.times) for product in all_products}
    read = n * graphml_quant.by_name(kind).bytes_for(k) / max(bandwidth)
    a_row = best["chosen", MANY] / MANY
    return {
        "format": kind, "n": n, "k": k, "threads": threads, "bandwidth": max(bandwidth),
        "flops": 2 * n * k / a_row,
        "roof": {rows: max(read, rows * a_row) for rows in ROWS},
        **{form: {rows: best[form, rows] for rows in ROWS} for form in ("chosen", "by rows", "by tiles") if (form, 1) in best},
    }  # fmt: skip


PANEL_ROWS = 0


def show(found: dict[str, Any]) -> None:
    """Tables of microseconds a call, and of times over the roof."""
    print(f"\n{found['format']}, {found['n']} x {found['k']}, {found['threads']} threads: "
          f"{found['bandwidth'] / 1e9:.1f} GB/s, {found['flops'] / 1e9:.0f} GFLOP/s at {MANY} rows")  # fmt: skip
    print("| us | " + " | ".join(map(str, ROWS)) + " |")
    print("|---|" + "---:|" * len(ROWS))
    for form in ("roof", "chosen", "by rows", "by tiles"):
        if form in found:
            print(f"| {form} | " + " | ".join(f"{found[form][rows] * 1e6:.0f}" for rows in ROWS) + " |")
    for form in ("chosen", "by rows", "by tiles"):
        if form in found:
            over = (found[form][rows] / found["roof"][rows] for rows in ROWS)
            print(f"| {form} / roof | " + " | ".join(f"{one:.2f}" for one in over) + " |", flush=True)


def main() -> None:
    """Parse the arguments, measure, print the tables, write the JSON and the plot."""
    global PANEL_ROWS
    from graphml_cpu.kernels.products.mul_mat import PANEL_ROWS as panel_rows

    PANEL_ROWS = panel_rows
    known = [name for name in formats.names() if formats.has_reader(name) or name in FLOAT_WEIGHTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("formats", nargs="*", default=FORMATS, metavar="FORMAT", help=", ".join(known))
    parser.add_argument("--shapes", default=",".join((*SMOLLM2, *LLAMA)), help="N x K of the weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--forms", action="store_true", help="also time both loops at every number of rows")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.formats) - set(known):
        sys.exit(f"no such formats: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    found = []
    for kind in arguments.formats:
        for shape in arguments.shapes.split(","):
            n, k = map(int, shape.split("x"))
            found.append(measure(kind, n, k, arguments.threads, arguments.rounds, arguments.forms))
            show(found[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
