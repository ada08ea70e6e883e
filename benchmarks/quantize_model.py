"""A whole model by `graphml quantize` and `llama-quantize` in turns: seconds, and whether bytes are equal.

    python benchmarks/quantize_model.py MODEL.gguf --llama-quantize PATH [--types Q4_K_M,IQ4_XS] [--imatrix F]
        [--threads 2] [--rounds 5]

MODEL is of F32, F16 or BF16. Each round runs both programs as processes, with the files in memory after the
first one, which is not counted. Medians of seconds, smallest and largest, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from graphml.weights import open_model


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-500:]}{done.stderr[-500:]}")
    return time.perf_counter() - start


def same_share(ours: Path, theirs: Path) -> float:
    """The share of tensors whose types and bytes are equal."""
    with open_model(ours) as a, open_model(theirs) as b:
        same = [
            tensor.dtype == b.tensors[name].dtype and np.array_equal(tensor.data, b.tensors[name].data)
            for name, tensor in a.tensors.items()
        ]
    return sum(same) / len(same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-quantize", required=True)
    parser.add_argument("--types", default="Q8_0,Q4_K_M,Q6_K,IQ4_XS,IQ3_S,IQ2_M")
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    imatrix = ["--imatrix", str(asked.imatrix)] if asked.imatrix else []
    print("| type | graphml, s | llama-quantize, s | graphml / llama-quantize | equal tensors |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours.gguf"), Path(folder, "theirs.gguf")
        for kind in asked.types.split(","):
            sides = {
                "graphml": [sys.executable, "-m", "graphml", "quantize", str(asked.model), str(ours), kind,
                            "--force", "--threads", str(asked.threads), *imatrix],
                "llama": [asked.llama_quantize, *imatrix, str(asked.model), str(theirs), kind,
                          str(asked.threads)],
            }  # fmt: skip
            times: dict[str, list[float]] = {side: [] for side in sides}
            for number in range(asked.rounds + 1):
                for side, command in sides.items():
                    took = seconds(command)
                    if number:
                        times[side].append(took)
            texts = [f"{statistics.median(t):.2f} ({min(t):.2f} to {max(t):.2f})" for t in times.values()]
            ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
            print(
                f"| {kind} | {texts[0]} | {texts[1]} | {ratio:.2f} | {same_share(ours, theirs):.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
