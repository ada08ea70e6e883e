"""How much of a plain read of memory decoding reaches, both in turns, and what pages the weights lie in.

    python benchmarks/reading.py MODEL.gguf [--threads 1] [--pages ahead,copy] [--rounds 7] [--tokens 16]

Between two rounds of tokens memory is read plainly, since its speed may change from minute to minute on a
shared machine. Every way of holding the weights (`graphml.load(pages=)`) takes its turn in each round. A row
of the embedding is read, not all of it, so its table is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import graphml
from graphml.cli.terminal.machine import read_bandwidth
from graphml.loading.architecture import EMBEDDING

TOKEN = 7


class Way:
    """A model whose weights are held in one way, and GB/s of each round."""

    def __init__(self, path: Path, threads: int, pages: str) -> None:
        self.pages = pages
        self.model = graphml.load(path, threads=threads, pages=pages)
        self.session = self.model.session(n_ctx=1024)
        tensors = self.model.executor.file.tensors
        tied = "output.weight" not in tensors
        self.n_bytes = sum(one.n_bytes for name, one in tensors.items() if tied or name != EMBEDDING)
        self.rates: list[float] = []
        self.shares: list[float] = []
        self.session.eval([TOKEN] * 8)

    def take(self, tokens: int, plain: float) -> None:
        """One round, after a plain read of so many bytes a second."""
        self.session.rewind(8)
        start = time.perf_counter()
        for _ in range(tokens):
            self.session.eval([TOKEN])
        rate = tokens * self.n_bytes / (time.perf_counter() - start)
        self.rates.append(rate / 1e9)
        self.shares.append(rate / plain)


def shown(values: list[float], digits: int) -> str:
    """The median and the ends."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pages", default="ahead")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    ways = [Way(options.model, options.threads, pages) for pages in options.pages.split(",")]
    plain = []
    for turn in range(options.rounds):
        for way in ways[:: 1 if turn % 2 else -1]:
            plain.append(read_bandwidth(options.threads))
            way.take(options.tokens, plain[-1])
    print(f"plain reads: {shown([one / 1e9 for one in plain], 1)} GB/s, {options.threads} threads")
    print("| pages | ms a token | GB/s | of the plain read before |")
    print("|---|---:|---:|---:|")
    for way in ways:
        milliseconds = [way.n_bytes / rate / 1e6 for rate in way.rates]
        print(f"| {way.pages} | {shown(milliseconds, 1)} | {shown(way.rates, 1)} | {shown(way.shares, 2)} |")


if __name__ == "__main__":
    main()
