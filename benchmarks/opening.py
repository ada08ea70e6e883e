"""How long a GGUF file takes to open, and its words to be read.

    python benchmarks/opening.py FILE.gguf [FILE.gguf ...]

Without a file: one that it makes, with 262,144 tokens, as many scores and 500,000 merges. Prints the median
and the spread of nine openings (header walked and checked, no word decoded) and nine readings of the words.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from graphml.weights import open_model

KEY = "tokenizer.ggml.tokens"


def make(path: Path) -> Path:
    """A file with the vocabulary of a large model and no weights."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"word{index * 7919 % 262_144}" for index in range(262_144)])
    writer.add_token_scores([float(index) for index in range(262_144)])
    writer.add_token_merges([f"{index} {index + 1}" for index in range(500_000)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def milliseconds(work: Callable[[], object]) -> str:
    """Median and spread of nine runs."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return f"{statistics.median(times):8.2f} ms ({min(times):.2f} to {max(times):.2f})"


def main() -> None:
    """Measure every file named, or the one made here."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(name) for name in sys.argv[1:]] or [make(Path(folder) / "262k-tokens.gguf")]
        for path in paths:
            print(f"{path.name}: open  {milliseconds(lambda p=path: open_model(p).close())}")
            print(f"{path.name}: words {milliseconds(lambda p=path: open_model(p).metadata.texts(KEY))}")


if __name__ == "__main__":
    main()
