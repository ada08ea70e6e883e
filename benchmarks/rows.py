"""Time of a product against the rows of activations, 1 to 128, beside the roofline.

    python benchmarks/rows.py [FORMAT ...] [--shapes NxK,...] [--threads 1] [--rounds 9] [--cached] [--forms]
                              [--json OUT.json] [--plot OUT.svg]

Calls the kernels of the CPU backend alone, as `products.py` does, on random weights, so many copies of them
in turns that they come from memory; with `--cached` one copy again and again. Times are processor time of the
busiest thread, all numbers of rows in turns, the shortest of all rounds. The roof is the longer of two times:
reading the weights as fast as plain reads in the same rounds (`--cached`: as fast as one row does), and the
arithmetic at the rate of 512 rows. `--forms`: also both loops of which a product chooses one, by rows and by
panels, at every number of rows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np
from graphml_cpu import packed
from graphml_cpu.compiler import LoadedKernel, compile_kernels
from graphml_cpu.kernels import formats
from graphml_cpu.lowering.linear import FLOAT_WEIGHTS, product_kernel
from products import K, aligned, pack, random_weights

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 25, 32, 33, 48, 64, 65, 96, 128)
MANY = 512
FORMATS = ("q4_1", "q4_0", "q8_0", "q4_k", "q6_k", "f16")
SHAPES = "1536x576,576x1536,2048x2048,5632x2048,2048x5632"  # SmolLM2's and TinyLlama's
POOL_BYTES = 96 << 20
LEAST_SECONDS = 1e-3
# Up to how many rows no panel is unpacked; None: as many as in programs.
FORMS = {"chosen": None, "by rows": MANY, "by panels": 0}
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


@dataclass
class Product:
    """A product of `rows` rows: a parameter block for each copy of the weights and each thread."""

    form: str
    rows: int
    kernel: LoadedKernel
    blocks: list[list[Any]]
    kept: Any  # the arrays whose addresses the blocks hold
    times: list[float] = field(default_factory=list)
    calls: int = 1
    done: int = 0

    def _work(self, thread: int) -> float:
        threads, start = len(self.blocks[0]), time.thread_time_ns()
        for call in range(self.done, self.done + self.calls):
            self.kernel(self.blocks[call % len(self.blocks)][thread], thread, threads)
        return (time.thread_time_ns() - start) / 1e9 / self.calls

    def run(self, pool: ThreadPoolExecutor) -> float:
        """Seconds of a call, of the busiest thread."""
        others = [pool.submit(self._work, thread) for thread in range(1, len(self.blocks[0]))]
        taken = max([self._work(0), *(other.result() for other in others)])
        self.done += self.calls
        return taken


def products(
    kind: str, n: int, k: int, threads: int, forms: tuple[str, ...], pool_bytes: int
) -> list[Product]:
    """Every form and number of rows."""
    w_bytes = n * graphml_quant.by_name(kind).bytes_for(k)
    copies = max(1, pool_bytes // w_bytes)
    in_k = graphml_quant.by_name(kind).bytes_for(K)
    weights = random_weights(kind, -(-copies * w_bytes // in_k)).reshape(-1)
    x = np.random.default_rng(1).standard_normal((MANY, k)).astype(np.float32)
    x = x if kind in FLOAT_WEIGHTS else pack(x)
    y = np.zeros((MANY, n), np.float32)
    # By rows more rows are measured here than a program's scratch memory is for.
    size = packed.scratch_bytes(kind, k) + packed.interleaved_scratch_bytes(k, MANY)
    scratch = [aligned(size) for _ in range(threads)]
    ref = product_kernel(kind)
    kernel = compile_kernels([ref])[ref.name]
    found = []
    for rows in (*ROWS, MANY):
        count = np.array([rows])
        for form in forms if rows != MANY else ("chosen",):
            most = packed.few_rows(kind, n) if FORMS[form] is None else FORMS[form]
            blocks = [
                [
                    kernel.block(
                        w=weights.ctypes.data + copy * w_bytes, x=x.ctypes.data, y=y.ctypes.data, residual=0,
                        bias=0, n=n, k=k, x_stride=x.strides[0], y_stride=y.strides[0],
                        scratch=one.ctypes.data, few_rows=most, rows=count.ctypes.data,
                    )
                    for one in scratch
                ]
                for copy in range(copies)
            ]  # fmt: skip
            found.append(Product(form, rows, kernel, blocks, (weights, x, y, scratch, count)))
    return found


def plain_read(pool: ThreadPoolExecutor, data: np.ndarray, threads: int) -> float:
    """Bytes per second of a plain read, in processor time of the busiest thread."""

    def read(part: np.ndarray) -> float:
        start = time.thread_time_ns()
        np.bitwise_or.reduce(part)
        return (time.thread_time_ns() - start) / 1e9

    return data.nbytes / max(pool.map(read, np.array_split(data, threads)))


def measure(
    kind: str, n: int, k: int, threads: int, rounds: int, forms: tuple[str, ...], cached: bool
) -> dict[str, Any]:
    """Seconds of each form and number of rows, and of the roof."""
    found, bandwidth = products(kind, n, k, threads, forms, 0 if cached else POOL_BYTES), [0.0]
    data = np.ones(POOL_BYTES // 8, np.int64)
    with ThreadPoolExecutor(threads) as pool:
        for product in found:
            product.calls = max(1, round(LEAST_SECONDS / min(product.run(pool) for _ in range(2))))
        for _ in range(rounds):
            if not cached:
                bandwidth.append(plain_read(pool, data, threads))
            for product in found:
                product.times.append(product.run(pool))
    best = {(product.form, product.rows): min(product.times) for product in found}
    w_bytes = n * graphml_quant.by_name(kind).bytes_for(k)
    read = best["chosen", 1] if cached else w_bytes / max(bandwidth)
    a_row = best["chosen", MANY] / MANY
    result = {"format": kind, "n": n, "k": k, "threads": threads, "bytes_per_second": w_bytes / read}
    result |= {"flops": 2 * n * k / a_row, "roof": [max(read, rows * a_row) for rows in ROWS]}
    return result | {form: [best[form, rows] for rows in ROWS] for form in forms}


def show(found: dict[str, Any], forms: tuple[str, ...]) -> None:
    """Tables of microseconds a call, and of times over the roof."""
    rates = f"{found['bytes_per_second'] / 1e9:.1f} GB/s, {found['flops'] / 1e9:.0f} GFLOP/s at {MANY} rows"
    print(f"\n{found['format']}, {found['n']} x {found['k']}, {found['threads']} threads: {rates}\n")
    print("| us | " + " | ".join(map(str, ROWS)) + " |\n|---|" + "---:|" * len(ROWS))
    for form in ("roof", *forms):
        print(f"| {form} | " + " | ".join(f"{seconds * 1e6:.0f}" for seconds in found[form]) + " |")
    for form in forms:
        over = (seconds / roof for seconds, roof in zip(found[form], found["roof"], strict=True))
        print(f"| {form} / roof | " + " | ".join(f"{one:.2f}" for one in over) + " |", flush=True)


def plot(results: list[dict[str, Any]]) -> str:
    """An SVG: time of a call against rows, both logarithmic, a line for each result, its roof dashed."""
    least = min(min(one["roof"]) for one in results)
    most = max(max(one["chosen"]) for one in results)
    high = math.log2(most / least) or 1.0

    def line(seconds: list[float]) -> str:
        return " ".join(
            f"{60 + 560 * math.log2(rows) / 7:.1f},{380 - 340 * math.log2(one / least) / high:.1f}"
            for rows, one in zip(ROWS, seconds, strict=True)
        )

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 420" '
        'font-family="sans-serif" font-size="12">'
    ]
    parts.append('<rect width="820" height="420" fill="white"/>')
    parts.append(
        '<text x="60" y="20">microseconds a call against rows of activations; dashed: the roof</text>'
    )
    for rows in ROWS[:2] + tuple(rows for rows in ROWS if rows in (4, 8, 16, 32, 64, 128)):
        across = 60 + 560 * math.log2(rows) / 7
        parts.append(
            f'<path d="M{across:.1f} 40V380" stroke="#ddd"/><text x="{across - 6:.1f}" y="398">{rows}</text>'
        )
    for step in range(5):
        seconds, down = least * 2 ** (high * step / 4), 380 - 85 * step
        parts.append(
            f'<path d="M60 {down}H620" stroke="#ddd"/><text x="8" y="{down}">{seconds * 1e6:.0f}</text>'
        )
    for index, one in enumerate(results):
        colour, name = COLOURS[index % len(COLOURS)], f"{one['format']} {one['n']} x {one['k']}"
        for form, dashes in (("roof", ' stroke-dasharray="4 4"'), ("chosen", "")):
            parts.append(f'<polyline points="{line(one[form])}" fill="none" stroke="{colour}"{dashes}/>')
        parts.append(f'<text x="635" y="{50 + 18 * index}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Parse the arguments, measure, print the tables, write the JSON and the plot."""
    known = [name for name in formats.names() if formats.has_reader(name) or name in FLOAT_WEIGHTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("formats", nargs="*", default=FORMATS, metavar="FORMAT", help=", ".join(known))
    parser.add_argument("--shapes", default=SHAPES, help=f"n x k of the weights, by default {SHAPES}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cached", action="store_true", help="weights that stay in the caches")
    parser.add_argument("--forms", action="store_true", help="both loops, whatever the number of rows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="an SVG of all results")
    arguments = parser.parse_args()
    if unknown := set(arguments.formats) - set(known):
        sys.exit(f"no such formats: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    forms = tuple(FORMS) if arguments.forms else ("chosen",)
    results = []
    for kind in arguments.formats:
        for shape in arguments.shapes.split(","):
            n, k = map(int, shape.split("x"))
            if k % graphml_quant.by_name(kind).block_elements:
                print(f"\n{kind}: rows of {k} are not whole blocks")
                continue
            found = measure(kind, n, k, arguments.threads, arguments.rounds, forms, arguments.cached)
            show(found, forms)
            results.append(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.plot and results:
        arguments.plot.write_text(plot(results))


if __name__ == "__main__":
    main()
