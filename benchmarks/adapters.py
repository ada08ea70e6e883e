"""Sequences of an engine over LoRA adapters against the same without any, in turns.

    python benchmarks/adapters.py [MODEL] [--threads N] [--sequences N] [--adapters N] [--rank N] [--rounds N]
                                  [--tokens N] [--prompt N]

The adapters are random numbers for every matrix of every layer; the sequences are spread over them evenly.
Each round runs all sequences to their ends, without adapters and with. Printed are medians of generated
tokens per second, and of the ratios of a round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

import graphml


def write_adapter(path: Path, model: graphml.Model, rank: int, seed: int) -> Path:
    """An adapter for all matrices of all layers."""
    numbers = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    for name, tensor in model.executor.file.tensors.items():
        if len(tensor.shape) == 2 and name.startswith("blk."):
            n_out, n_in = tensor.shape
            writer.add_tensor(f"{name}.lora_a", numbers.standard_normal((rank, n_in), np.float32) / 50)
            writer.add_tensor(f"{name}.lora_b", numbers.standard_normal((n_out, rank), np.float32) / 50)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rate(engine: graphml.Engine, prompts: list[list[int]], files: list[Path], n_tokens: int) -> float:
    """Generated tokens per second, from the first step on in which all sequences have their prompts."""
    params = graphml.SamplingParams(temperature=0.0)
    handles = [
        engine.submit(ids, params, max_tokens=n_tokens, lora=[files[i % len(files)]] if files else None)
        for i, ids in enumerate(prompts)
    ]
    start = time.perf_counter()
    n_done = sum(handle.result().n_gen for handle in handles)
    return n_done / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, graphml.load(given.model, threads=given.threads) as model:
        files = [
            write_adapter(Path(folder, f"{i}.gguf"), model, given.rank, i) for i in range(given.adapters)
        ]
        numbers = np.random.default_rng(0)
        ids = numbers.integers(100, model.n_vocab - 100, (given.sequences, given.prompt)).tolist()
        n_ctx = given.prompt + given.tokens
        found: list[list[float]] = [[], []]
        with model.engine(max_sequences=given.sequences, n_ctx=n_ctx) as engine:
            for one in range(given.rounds + 1):
                both = [rate(engine, ids, each, given.tokens) for each in ([], files)]
                for kept, measured in zip(found, both, strict=True):
                    kept += [measured] if one else []  # the first compiles
        ratios = sorted(b / a for a, b in zip(*found, strict=True))
        plain, adapted = map(statistics.median, found)
        print(
            f"{given.sequences} sequences: without {plain:.0f} t/s, over {given.adapters} adapters of rank "
            f"{given.rank} {adapted:.0f} t/s, ratio {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
