"""How fast each weight format is encoded: million elements a second, beside ggml's own encoders.

    python benchmarks/quantize.py [TYPE ...] [--threads 1] [--rounds 7] [--ggml FOLDER] [--json OUT.json]

`graphml.quantize` and `ggml_quantize_chunk` encode the same rows of normal numbers in turns, without
importance and with it where it has an influence; ggml's threads have a share of the rows each. FOLDER has
ggml's shared library; llama-cpp-python brings one along. Medians, and the middle half of the rounds, of
which the first is left out. The last column is the share of blocks whose bytes are the same.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np

import graphml
from graphml.backend import Backend
from graphml.cli.terminal import machine
from graphml.loading import discovery

COLUMNS = 4096
SEARCHED_ROWS, PLAIN_ROWS = 64, 1024
NIBBLES = ("q4_0", "q4_1", "q5_0", "q5_1")
"""Formats that are searched with importance alone."""


def known_types(backend: Backend) -> list[str]:
    """The types that are encoded here, in ggml's order."""
    return [name.upper() for name in graphml_quant.formats() if backend.encoder(name) is not None]


def library(folder: Path | None) -> ctypes.CDLL | None:
    """ggml's library in a folder, or that of llama-cpp-python; None without."""
    if folder is None:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or not spec.submodule_search_locations:
            return None
        folder = Path(spec.submodule_search_locations[0]) / "lib"
    ggml = ctypes.CDLL(str(folder / "libggml-base.so"))
    count = ctypes.c_int64
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, count, count, count, ctypes.c_void_p,
    ]  # fmt: skip
    return ggml


def by_ggml(
    ggml: ctypes.CDLL | None,
    number: int,
    x: np.ndarray,
    importance: np.ndarray | None,
    out: np.ndarray,
    pool: ThreadPoolExecutor,
    threads: int,
) -> None:
    """Encode by ggml, a share of the rows on each thread."""
    assert ggml is not None
    encode, columns = ggml.ggml_quantize_chunk, x.shape[1]
    address = None if importance is None else importance.ctypes.data
    bounds = [len(x) * i // threads for i in range(threads + 1)]
    calls = [
        pool.submit(
            encode, number, x.ctypes.data, out.ctypes.data, begin * columns, end - begin, columns, address
        )
        for begin, end in itertools.pairwise(bounds)
    ]
    for call in calls:
        call.result()


def seconds(call: Callable[[], Any]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(kind: str, weighted: bool, ggml: ctypes.CDLL | None, threads: int, rounds: int) -> dict[str, Any]:
    """Elements a second of both sides, in turns."""
    format = graphml_quant.by_name(kind.lower())
    random = np.random.default_rng(0)
    is_searched = format.importance != "unused" and (weighted or format.name not in NIBBLES)
    rows = SEARCHED_ROWS if is_searched else PLAIN_ROWS
    x = random.standard_normal((rows, COLUMNS)).astype(np.float32)
    importance = (random.standard_normal(COLUMNS) ** 2 + 0.05).astype(np.float32) if weighted else None
    out = np.zeros((len(x), format.bytes_for(COLUMNS)), np.uint8)
    own = graphml.quantize(x, kind, importance, threads=threads)
    taken: dict[str, list[float]] = {"graphml": [], "ggml": []}

    def by_graphml() -> None:
        graphml.quantize(x, kind, importance, threads=threads)

    def by_other() -> None:
        by_ggml(ggml, format.ggml_type, x, importance, out, pool, threads)

    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds + 1):
            taken["graphml"].append(seconds(by_graphml))
            if ggml is not None:
                taken["ggml"].append(seconds(by_other))
    blocks = (own == out).reshape(-1, format.block_bytes).all(axis=1)
    return {
        "type": kind,
        "weighted": weighted,
        "threads": threads,
        "rows": len(x),
        "elements_per_second": {side: [x.size / each for each in times[1:]] for side, times in taken.items()},
        "same": float(blocks.mean()) if ggml is not None else None,
    }


def show(row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = []
    for rates in row["elements_per_second"].values():
        low, middle, high = np.percentile(rates, (25, 50, 75)) / 1e6 if rates else (0, 0, 0)
        cells.append(f"{middle:7.1f} ({low:.0f} to {high:.0f})" if rates else "")
    ours, theirs = row["elements_per_second"].values()
    ratio = f"{np.median(ours) / np.median(theirs):.1f}" if theirs else ""
    same = "" if row["same"] is None else f"{row['same']:.4%}"
    tag = "weighted" if row["weighted"] else "plain"
    return f"| {row['type']:7} | {tag:8} | {cells[0]:25} | {cells[1]:25} | {ratio:>5} | {same:>9} |"


def main() -> None:
    """Parse the arguments, measure, print a Markdown table and write the JSON."""
    known = known_types(discovery.backend("cpu"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", default=known, metavar="TYPE", help=", ".join(known))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ggml", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.types) - set(known):
        sys.exit(f"no such types: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    ggml = library(arguments.ggml)
    print(f"Million elements a second on {arguments.threads} threads: median (middle half)\n")
    print(f"| type    | encoded  | {'graphml':25} | {'ggml':25} | ratio | same      |")
    print(f"| :------ | :------- | {'':->24}: | {'':->24}: | ----: | --------: |")
    rows = []
    for kind in arguments.types:
        importance = graphml_quant.by_name(kind.lower()).importance
        for weighted in {"unused": (False,), "used": (False, True), "needed": (True,)}[importance]:
            rows.append(measure(kind, weighted, ggml, arguments.threads, arguments.rounds))
            print(show(rows[-1]), flush=True)
    if arguments.json:
        facts = {"processor": machine.cpu_name(), "rows": rows}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
