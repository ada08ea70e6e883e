"""Types chosen by `graphml quantize --auto` beside mixtures of the same size, on an unread text.

    python benchmarks/chosen_types.py MODEL.gguf --text TEXT [--types Q4_K_M] [--texts 24] [--multiple 256]
        [--folder F]

Needs torch. MODEL is a llama of any type. Its matrices are written in float32 with their columns in another
order, consistently in all of them: the same function, but no type finds the blocks again that the weights
were rounded to. --multiple fills rows up to a multiple with columns of zeros among the others, and with whole
heads of zeros: the same function again, in rows that are whole blocks. The first half of the text is for
calibration (40 chunks for importance, --texts pieces for costs), 16 chunks of the second half for the KL
divergence from the model in float32. Printed for each file type: bytes, and the mean KL of the mixture plain,
with importance, and with squared gradients of columns as importance; of the choice with the same three, and
what was predicted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.weights import ModelFile, open_model
from graphml.weights.gguf_writing import TensorPlan, stored_values, writing_gguf
from graphml.weights.metadata import stored


def graphml(*arguments: object) -> str:
    command = [sys.executable, "-m", "graphml", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-1000:]}")
    return done.stdout


@dataclass(frozen=True)
class Sizes:
    """The width of a llama and its heads."""

    width: int
    n_head: int
    n_head_kv: int

    def rounded_up(self, multiple: int) -> Sizes:
        """With a width, and the values of all heads together, of a multiple of this."""
        size, group = self.width // self.n_head, self.n_head // self.n_head_kv
        n_head_kv = self.n_head_kv
        while n_head_kv * group * size % multiple:
            n_head_kv += 1
        return Sizes(-(-self.width // multiple) * multiple, n_head_kv * group, n_head_kv)


def reordered(file: ModelFile, old: Sizes, new: Sizes) -> dict[str, Any]:
    """The tensors in float32, the width, the hidden width and each head's values in another order."""
    numbers = np.random.default_rng(0)
    arrays = {name: tensor.numpy().astype(np.float32) for name, tensor in file.tensors.items()}
    by_width = numbers.permutation(new.width)
    size = old.width // old.n_head

    def take(name: str, order: Any, axis: int) -> None:
        if name in arrays:
            array = arrays[name]
            filling = [(0, len(order) - n if i == axis else 0) for i, n in enumerate(array.shape)]
            arrays[name] = np.pad(array, filling).take(order, axis)

    take("token_embd.weight", by_width, 1)
    take("output.weight", by_width, 1)
    take("output_norm.weight", by_width, 0)
    for layer in range(file.metadata["llama.block_count"]):
        blk = f"blk.{layer}."
        hidden = numbers.permutation(arrays[f"{blk}ffn_up.weight"].shape[0])
        heads = [numbers.permutation(size) for _ in range(new.n_head_kv)]
        values = np.concatenate([head * size + heads[head] for head in range(new.n_head_kv)])
        outputs = np.concatenate(
            [head * size + heads[head * new.n_head_kv // new.n_head] for head in range(new.n_head)]
        )
        for name in ("attn_norm", "ffn_norm", "attn_output", "ffn_down"):
            take(f"{blk}{name}.weight", by_width, 0)
        for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
            take(f"{blk}{name}.weight", by_width, 1)
        for name in ("ffn_gate", "ffn_up"):
            take(f"{blk}{name}.weight", hidden, 0)
        take(f"{blk}ffn_down.weight", hidden, 1)
        take(f"{blk}attn_q.weight", np.arange(new.n_head * size), 0)
        take(f"{blk}attn_k.weight", np.arange(new.n_head_kv * size), 0)
        take(f"{blk}attn_v.weight", values, 0)
        take(f"{blk}attn_output.weight", outputs, 1)
    for name, array in arrays.items():
        if name.endswith("norm.weight"):  # the mean of the squares is over more columns
            array *= np.sqrt(old.width / new.width, dtype=np.float32)
    return arrays


def written_whole(path: Path, whole: Path, multiple: int) -> None:
    """A llama's file in float32, in another order of columns, with rows of a multiple of this."""
    with open_model(path) as file:
        of = file.metadata
        old = Sizes(of["llama.embedding_length"], of["llama.attention.head_count"],
                    of["llama.attention.head_count_kv"])  # fmt: skip
        new = old.rounded_up(multiple)
        arrays = reordered(file, old, new)
        epsilon = of["llama.attention.layer_norm_rms_epsilon"] * old.width / new.width
        values = stored_values(of) | {
            "llama.embedding_length": stored(new.width, "u32"),
            "llama.attention.head_count": stored(new.n_head, "u32"),
            "llama.attention.head_count_kv": stored(new.n_head_kv, "u32"),
            "llama.attention.layer_norm_rms_epsilon": stored(epsilon, "f32"),
        }
        plans = [TensorPlan(name, "f32", array.shape) for name, array in arrays.items()]
        with writing_gguf(whole, values, plans) as written:
            for array in arrays.values():
                written.add([np.ascontiguousarray(array).view(np.uint8).ravel()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--types", default="Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--multiple", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, help="where files are kept, and what was measured is found again"
    )
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp())
    whole, base, out = folder / "whole.gguf", folder / "base.kld", folder / "out.gguf"
    seen, costs, plan = folder / "seen.gguf", folder / "costs.gguf", folder / "plan.json"
    text = asked.text.read_text(encoding="utf-8")
    for name, part in (("read.txt", text[: len(text) // 2]), ("unread.txt", text[len(text) // 2 :])):
        (folder / name).write_text(part, encoding="utf-8")
    written_whole(asked.model, whole, asked.multiple)
    graphml("perplexity", whole, "-f", folder / "unread.txt", "-c", 512, "--chunks", 16, "--kv", "f32",
            "--kl-divergence-base", base, "--force")  # fmt: skip
    if not seen.exists():
        graphml("imatrix", whole, "-f", folder / "read.txt", "-o", seen, "--chunks", 40)
    start = time.perf_counter()
    calibration = ["--auto", "-f", folder / "read.txt", "--texts", asked.texts, "--costs", costs]
    graphml("quantize", whole, *calibration, "--target-bits", 8, "--dry-run")
    print(f"costs: {time.perf_counter() - start:.0f} s\n")

    def divergence(*options: object) -> str:
        try:
            graphml("quantize", whole, out, *options, "--force")
        except SystemExit as error:
            if "wants importance" in str(error):
                return "wants importance"
            raise
        said = json.loads(
            graphml("perplexity", out, "--kl-divergence-base", base, "--kl-divergence", "--json")
        )
        return f"{said['statistics']['Mean KLD'][0]:.4f}"

    print(
        "| size of | bytes | mixture | importance | gradients | choice | importance | gradients | predicted |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for kind in asked.types.split(","):
        cells = [divergence(kind, *imatrix) for imatrix in ([], ["--imatrix", seen], ["--imatrix", costs])]
        graphml("quantize", whole, out, kind, "--force")
        n_bytes = out.stat().st_size
        choice = graphml("quantize", whole, *calibration, "--target-size", n_bytes, "--save-plan", plan,
                         "--dry-run", "--json", "--force")  # fmt: skip
        for imatrix in ([], ["--imatrix", seen], ["--imatrix", costs]):
            cells.append(divergence("--plan", plan, *imatrix))
        print(
            f"| {kind} | {n_bytes:,} | {' | '.join(cells)} | {json.loads(choice)['predicted_kl']:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
